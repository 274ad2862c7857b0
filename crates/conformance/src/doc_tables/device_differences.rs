//! Table for `docs/verbs.md` of what devices do differently.

use std::fmt::Write;

use crate::Deviation;

const HEAD: &str = "\
# Device differences

This page is generated from what `headworks-conformance` knows of devices; do not edit it. After you change that, run
`HEADWORKS_WRITE_TABLE=1 cargo test -p headworks-conformance --test doc_tables`.

[conformance.md](conformance.md) lists the required outcome of each verb, with and without faults. The devices `soft`,
`soft…,hostile` and `ibv` follow it, except where this page says otherwise. Numbers in brackets are sections of the
InfiniBand specification, volume 1. The only `ibv` device that the suite has run on is the kernel's rxe (Linux 6.1).
Below, *ibv* is the provider's behaviour on any device, and *rxe* is the behaviour observed on rxe.

On rxe, the cases require the deviations listed here and accept no others. On Linux 6.1, a case also fails if a listed
deviation does not show, unless the deviation depends on chance. This page is therefore as current as the last run of
`cargo xtask ci rxe`. On another kernel, rxe may behave as listed or as specified, and the cases print the listed
deviations that did not show.

## Behaviour that the specification leaves open

| aspect | soft | ibv | rxe |
|---|---|---|---|
";

/// Behaviour that the specification leaves open: the aspect, then `soft`, `ibv` devices, rxe.
const UNSPECIFIED_BEHAVIOUR: &[[&str; 4]] = &[
    [
        "fields of a failed completion other than `wr_id`, status and queue pair (11.4.2.1)",
        "the opcode is the posted one",
        "blank (opcode `Send`, length 0): devices need not write these fields",
        "as `ibv`",
    ],
    [
        "capacity of queue pairs and shared receive queues",
        "as requested",
        "at least as requested; the device reports it (`caps()`, `max_wr()`)",
        "one less than a power of two",
    ],
    [
        "queue slots of requests that are done",
        "free when a completion that covers them is polled",
        "free then, or as soon as the requests are done",
        "free as soon as the requests are done",
    ],
    [
        "a short request",
        "done when the call returns",
        "done later",
        "done later",
    ],
    [
        "bytes moved before a memory fault is found",
        "none: everything is checked first",
        "possible",
        "possible: rxe moves data packet by packet",
    ],
    [
        "`QpFatal` if a completion reports the failure",
        "always, once",
        "possibly, once",
        "only if the state is queried before that completion is polled: rxe itself reports no failure",
    ],
    [
        "an idle queue pair whose peer's process dies",
        "fails within a second",
        "learns nothing (chapter 9): its next request ends with RetryExceeded",
        "as `ibv`",
    ],
    [
        "a datagram with an address handle that is destroyed or of another protection domain",
        "LocalQpOperation and SQE",
        "refused when posted: Operation",
        "as `ibv`",
    ],
    [
        "a datagram longer than the MTU (C10-93.1.1)",
        "Success, and nothing is sent",
        "refused when posted: MessageTooLong",
        "as `ibv`",
    ],
    [
        "a `retry_count` of 7",
        "as requested",
        "as requested",
        "lowered to 6, because rxe retries without end at 7",
    ],
    [
        "completions in a CQ that overran",
        "can be polled, then Overrun",
        "may be lost",
        "may be lost",
    ],
];

const ABOUT_RXE: &str = "
## Deviations of rxe

*soft* follows the specification. NICs are assumed to follow it too, but the suite has not run on one.

| verb | request | specification, *soft* | rxe | observed by |
|---|---|---|---|---|
";

/// Maximum number of cases named per deviation; further ones are only counted.
const CASES_SHOWN_MAX: usize = 4;

/// Returns the page as Markdown.
pub fn markdown(rxe_deviations: &[Deviation]) -> String {
    let mut text = HEAD.to_owned();
    // Writing to a string cannot fail.
    for row in UNSPECIFIED_BEHAVIOUR {
        let _ = writeln!(text, "| {} |", row.join(" | "));
    }
    text.push_str(ABOUT_RXE);
    for known in rxe_deviations {
        let (verb, asked) = known.verb_and_request;
        let (demanded, seen) = (known.demanded, known.observed);
        let verb = verb.split(", ").collect::<Vec<_>>().join("`, `");
        let (first, more) = known.cases.split_at(known.cases.len().min(CASES_SHOWN_MAX));
        let mut cases = format!("`{}`", first.join("`, `"));
        if !more.is_empty() {
            let _ = write!(cases, " and {} similar cases", more.len());
        }
        let _ = writeln!(
            text,
            "| `{verb}` | {asked} | {demanded} | {seen} | {cases} |"
        );
    }
    text
}
