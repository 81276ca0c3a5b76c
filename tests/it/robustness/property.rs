//! What is promised.

promises! {
    Ordered: "A watcher gets events in the order of their versions.",
    Unique: "A watcher gets no event twice.",
    Atomic: "Each version is one change of one object, which follows from the state before it.",
    Reliable: "A watcher gets every event between where it began and the newest it saw, at once, over reconnects and lost readers.",
    Punctual: "A watch ends when its time is over, and before that only with the reason.",
    Resumable: "A watch from a version gets what came after it and nothing up to it, or is told that it came too late, exactly if it did.",
    Initial: "Initial events are what was there at one version, no older than asked for, each as ADDED.",
    Bookmarkable: "A bookmark's version is behind everything that was delivered and ahead of nothing that was not; one comes every minute.",
    InitialEnd: "The bookmark that ends the initial events comes once, after all of them, no older than any, exactly if it was asked for.",
    Consistent: "A list is the state after all changes up to its version and none after it.",
    Paged: "All pages of a list are of one version, and together they are one list, each object once; what remains is counted exactly.",
    Fresh: "A list is as new as was asked for: the newest, no older than a version, or exactly of it.",
    Expired: "A list whose version is forgotten is told so, with a token to go on by, and no other is.",
    Selected: "A selector's watcher sees what comes into it as ADDED, what leaves it as DELETED, and nothing that is outside of it.",
    LastState: "DELETED carries the last state that the watcher could see, with the version of the deletion.",
    NeverReused: "A version stands for the same content wherever it is seen.",
    Kinds: "Every event, item and bookmark is of the kind and form that was asked for.",
    ReadYourWrites: "A write's answer is what the history says, and a read after it shows it.",
    Faithful: "What a node said last, or has acknowledged, is what is listed; what ended does not come back by old news.",
    Quiet: "What changes nothing makes no version.",
}
