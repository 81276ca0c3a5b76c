//! WATCH.

mod changes;
mod ends;
mod initial;
mod kubectl;
mod websocket;

use changes::{c_118, c_119, c_120, c_121, c_134};
use ends::{c_127, c_128, c_129, c_130, c_132};
use initial::{c_122, c_123, c_124, c_125, c_126};
use kubectl::c_131;
use websocket::c_133;

items! {
    c_118 P0 "Events are JSON objects, a line each, of the five known types.";
    c_119 P0 "A watch from a version shows every later change once and in order, and nothing before; a deletion has the last state with a version of its own.";
    c_120 P0 "An object that comes into a selection is ADDED, one that leaves it is DELETED with what it was before and the new version.";
    c_121 P0 "A watch without a version, or from 0, begins with what is there; one from a version does not.";
    c_122 P0 "A streamed list shows all objects, then the bookmark that ends them, then the changes, on one stream.";
    c_123 P0 "No streamed list waits for ever for its bookmark, whatever it selects and in whatever form.";
    c_124 P0 "The bookmark has the kind of the items and a version not older than any of them or than the request.";
    c_125 P0 "`sendInitialEvents` goes with `NotOlderThan` and with nothing else, and the other way round: else 422.";
    c_126 P0 "Bookmarks come to those who allow them and to nobody else, the last shortly before the end, with a version alone.";
    c_127 P0 "A version that is too old is an ERROR event with 410 Expired and the end of the stream.";
    c_128 P0 "What fails after the request was understood is an ERROR event; a plain watch from the future is silent until then.";
    c_129 P0 "`timeoutSeconds` ends the stream in order, and no stream ends within a second without an event.";
    c_130 P0 "A reader that is too slow is cut off and misses nothing before that.", ours;
    c_131 P0 "`kubectl get -w` shows every change of a list once, and of an object every change behind the state that its watch begins with.";
    c_132 P1 "A watch that a starting server cannot serve yet is 429 TooManyRequests with Retry-After.", ours;
    c_133 P1 "A watch over WebSocket sends the same events, a text message each, and ignores what it is told.";
    c_134 P1 "Watches of both API versions see the same versions, each object in the version that was asked for.", ours;
}

/// What client-go's informers ask for first.
const STREAMED_LIST: &str = "watch=true&sendInitialEvents=true&resourceVersionMatch=NotOlderThan&allowWatchBookmarks=true&timeoutSeconds=300";
