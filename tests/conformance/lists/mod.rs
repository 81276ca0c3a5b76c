//! GET and LIST.

mod pages;
mod reads;
mod selection;
mod versions;

use pages::{c_104, c_105, c_106, c_107};
use reads::{c_098, c_099, c_112, c_113, c_114, c_115};
use selection::{c_108, c_109, c_110, c_111};
use versions::{c_096, c_097, c_100, c_101, c_102, c_103};

items! {
    c_096 P0 "A resourceVersion is a positive decimal integer below 2^63 that rises with every change, and an object has the same uid and version in all API versions.", ours;
    c_097 P0 "Versions never go backward over a restart, none is used twice, and one that the new process does not know is 410.", ours;
    c_098 P0 "A list names the version from which a watch misses nothing; its items are in order and have their kind, and a namespace that does not exist has none.";
    c_099 P0 "An object whose node has just fallen silent is there in GET and LIST with its last state, also for a server that starts meanwhile.", ours;
    c_100 P0 "`resourceVersion` and `resourceVersionMatch` choose the newest, any, one at least as new, or exactly that version or 410.";
    c_101 P0 "A version of the future is waited for up to 3 s, then refused with 504 Timeout, cause ResourceVersionTooLarge and Retry-After 1.";
    c_102 P0 "A resourceVersion that is no number is 400 BadRequest in LIST, GET and WATCH.";
    c_103 P0 "List options that contradict each other are 422 Invalid, with details of ListOptions.";
    c_104 P0 "`limit` cuts a list into pages of one version, and `continue` is there as long as there is more.";
    c_105 P0 "`remainingItemCount` is exact, and there only with `continue` and without a selector.";
    c_106 P0 "A continue token goes with no resourceVersion, is refused when malformed, and never leads out of its list.";
    c_107 P0 "A page of a version that is gone is 410 Expired with a token that goes on from there at the newest version.", ours;
    c_108 P0 "fieldSelector takes the name, the namespace and `status.nodeName` with `=`, `==`, `!=` and commas; anything else is 400.", ours;
    c_109 P0 "labelSelector takes equality, sets, presence and absence; bad syntax is 400.";
    c_110 P0 "A list by name has one item or none, and `metadata.namespace` narrows the list of all namespaces.";
    c_111 P0 "All namespaces are listed and watched in one collection, in which nothing can be created.";
    c_112 P0 "A missing object is answered with 404 NotFound and details of what is missing.";
    c_113 P1 "A method that a known resource does not support is 405 MethodNotAllowed.";
    c_114 P1 "Unknown query parameters are ignored; `limit`, `timeoutSeconds` and `timeout` that cannot be read are 400.";
    c_115 P0 "A read that starts after the answer to a write shows that write, whatever the nodes have published by then.";
}
