//! What is promised.

promises! {
    OneOwner: "A VM belongs to one object at most: no list shows it twice, and no two answers give it away.",
    UniqueNames: "A name is one object's: no list shows it twice, and no create gets it while another has it.",
    Acknowledged: "What a create was answered with exists under its name, with its VM, until a client deletes it or its node loses it.",
    NeverMissing: "As long as the server lives, what was acknowledged is in every list until a client deletes it or its node loses it.",
    OnlyTheDeleted: "A release hits only the VM of an object that a client deleted, by its name while it had it or by its uid, or one whose create was not answered with it.",
    NoGuess: "A VM that somebody else made is never destroyed, unless a client deletes its object.",
    Deleted: "A delete that was answered with success is done: its VM is gone at that moment, and its object is not seen again as long as the server lives, and not in the end.",
    Owed: "A delete that was answered at all is carried out, also after the server was killed.",
    Settled: "What a node granted to a create that was refused or failed is released.",
    NothingSpent: "A create that is refused because its name is taken takes no VM.",
    NoLeak: "What the nodes hold and what is listed is the same.",
    Paused: "A pause that was acknowledged shows in every read until somebody resumes the sandbox.",
    Written: "A label that was acknowledged shows in the end: as long as the server lives, and whatever is killed if the answer came without a warning.",
    Versions: "Versions of lists only grow, over restarts as well.",
    WatchHistory: "A watch tells changes that follow from each other, and together they lead to what is listed.",
    Alive: "Server and agents end only when they are killed, no task of them panics, and the server becomes ready again.",
}
