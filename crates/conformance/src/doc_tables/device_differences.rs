//! Table for `docs/verbs.md` of what devices do differently.

use std::fmt::Write;

use crate::Deviation;

const HEAD: &str = "\
# What verbs do where

Generated from what `headworks-conformance` knows of devices; do not edit. After a change of it:
`HEADWORKS_WRITE_TABLE=1 cargo test -p headworks-conformance --test doc_tables`.

[conformance.md](conformance.md) says what must come of which verb, with which mistake: so it is on `soft`,
on `soft…,hostile`, and on any `ibv` device, but for what is listed here. Numbers in brackets are sections
of the InfiniBand specification, volume 1. Of `ibv` devices only the kernel's rxe (Linux 6.1) was ever run:
*ibv* below is what the provider makes of any device, *rxe* what was seen on that one.

The cases demand what is listed for rxe there, and nowhere else, and on Linux 6.1 what is listed and no
longer seen fails them too, but for what chance decides. So this page is as true as the last run of
`cargo xtask ci rxe`. On another kernel rxe may do what is listed or what is specified, and what is not seen
is told of.

## What the specification leaves open

| what | soft | ibv | rxe |
|---|---|---|---|
";

/// Behaviour that the specification leaves open: the aspect, then `soft`, `ibv` devices, rxe.
const UNSPECIFIED_BEHAVIOUR: &[[&str; 4]] = &[
    [
        "a failed completion beyond `wr_id`, status and queue pair (11.4.2.1)",
        "the opcode that was posted",
        "blank (opcode `Send`, length 0): devices need not write these fields",
        "the same",
    ],
    [
        "sizes of queue pairs and shared receive queues",
        "as asked for",
        "as the device says (`caps()`, `max_wr()`): at least as asked for",
        "one less than a power of two",
    ],
    [
        "room in a queue that is taken by requests that are done",
        "free when a completion is polled that covers them",
        "free then, or as soon as they are done",
        "free as soon as they are done",
    ],
    [
        "a short request",
        "done when the call returns",
        "done later",
        "done later",
    ],
    [
        "bytes that were moved before a mistake in memory was found",
        "none: all is checked first",
        "may be",
        "may be: packet by packet",
    ],
    [
        "`QpFatal` where a completion tells of the failure",
        "always, once",
        "perhaps, once",
        "if its state is asked for before that completion is polled: rxe itself tells of no failure",
    ],
    [
        "an idle queue pair whose peer dies",
        "fails within a second",
        "learns nothing (chapter 9): its next request ends with RetryExceeded",
        "the same",
    ],
    [
        "a datagram by an address handle that is gone, or of another domain",
        "LocalQpOperation, SQE",
        "refused when it is posted: Operation",
        "the same",
    ],
    [
        "a datagram longer than the MTU (C10-93.1.1)",
        "Success, and nothing is sent",
        "refused when it is posted: MessageTooLong",
        "the same",
    ],
    [
        "a `retry_count` of 7",
        "as asked for",
        "as asked for",
        "6, since rxe takes 7 for ever",
    ],
    [
        "completions in a queue that overran",
        "can be polled, then Overrun",
        "may be gone",
        "may be gone",
    ],
];

const ABOUT_RXE: &str = "
## Where rxe does otherwise

*soft* does what the specification demands. So, it is assumed, do NICs: none was ever asked.

| verb | asked of it | specification, *soft* | rxe | seen by |
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
            let _ = write!(cases, " and {} more like them", more.len());
        }
        let _ = writeln!(
            text,
            "| `{verb}` | {asked} | {demanded} | {seen} | {cases} |"
        );
    }
    text
}
