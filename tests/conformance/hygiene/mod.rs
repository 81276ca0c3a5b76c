//! Limits, errors, and the life of the process.

mod answers;
mod limits;
mod process;

use answers::{c_207, c_208, c_209, c_210};
use limits::{c_203, c_204, c_205, c_206};
use process::{c_211, c_212, c_213, c_214};

items! {
    c_203 P0 "A body over 3 MiB is refused with 413 RequestEntityTooLarge by every verb, whether its length is told or not, and one of 3 MiB is not.";
    c_204 P0 "Work that takes longer than `?timeout` or the server's own limit ends with 504 Timeout, and what it began is settled.", ours;
    c_205 P1 "Of 401 reads or 201 writes at once one is refused with 429; watches and system:masters are never refused.", ours;
    c_206 P1 "No header claims priority and fairness, which the server does not have.", ours;
    c_207 P0 "A node's failure is 500 InternalError or 503 ServiceUnavailable, and `Retry-After` is in the Status as in the header.", ours;
    c_208 P0 "Every refusal on a resource's path is a Status with code and reason.";
    c_209 P1 "All answers have an Audit-Id and are not to be cached, refusals are not to be sniffed, and no text has raw markup.";
    c_210 P1 "Warnings are quoted, told once each, and cut when they are many.";
    c_211 P0 "Health is told check by check without causes, readiness waits for what the server must know, and no dead node fails it.", ours;
    c_212 P0 "A server that is asked to end says so, serves for a while, then refuses, ends watches in order, finishes its work and exits with 0.", ours;
    c_213 P1 "No request takes the process down, and metrics are for those who may read them.", ours;
    c_214 P1 "Every request leaves a line in the log: who did what to which object, how it ended and how long it took, with no secret.", ours;
}
