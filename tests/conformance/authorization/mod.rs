//! What the caller may do.

mod decisions;
mod questions;

use self::{
    decisions::{c_036, c_040, c_042, c_043, c_045, c_047},
    questions::{c_037, c_038, c_039, c_041, c_044},
};

items! {
    c_036 P0 "The server authorizes every request itself, whoever has authorized it before.", ours;
    c_037 P0 "Members of `system:masters` and the three health paths need no review; everything else does.", ours;
    c_038 P0 "A review says who wants to do what: all of the user, and all of the resource or the path.", ours;
    c_039 P0 "The verb follows from the method, the name, and whether `watch` is on.", ours;
    c_040 P0 "Who may see one object by its name may list and watch it by a field selector.";
    c_041 P1 "Selectors of lists, watches and deletes of collections are in the review, as far as it can say them.", ours;
    c_042 P0 "Only a yes allows: no and no opinion are 403, a review that fails or is never answered is 500.", ours;
    c_043 P0 "A refusal says who cannot do what, in the words of Kubernetes.", ours;
    c_044 P0 "Answers count for 10 s, are bounded, and are not kept for overlong questions.", ours;
    c_045 P0 "An apply that would create needs the right to create.";
    c_046 P0 "A stream to a sandbox over WebSocket needs the right to create it.", later "no exec, attach or port-forward streams yet";
    c_047 P0 "The shipped roles let the server ask for reviews, read whom to trust, and follow namespaces.", ours;
}
