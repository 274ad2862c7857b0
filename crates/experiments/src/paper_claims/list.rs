//! The list of statements.

use super::Figure::{Left, Measured};
use super::{Statement, measures};
use crate::claim::Claim::{About, Below};

/// Statements with a value about raw devices, or about plain verbs on them. Not all that the papers have: rings and services
/// are not plain verbs, and what a drawing alone shows has no value.
pub const STATED: &[Statement] = &[
    Statement {
        paper: "RB² V-B, experiment 1",
        says: "plain WRITEs of large messages: close to 90 Gbit/s",
        figure: Measured {
            preset: "cx5-100g",
            claim: About(90.0),
            unit: "Gbit/s",
            ours: measures::large_writes,
            unmet: None,
        },
    },
    Statement {
        paper: "RB² V-B, experiment 2",
        says: "64 B there and back: 2.5 µs is close to plain WRITEs (ours from memory, not inline)",
        figure: Measured {
            preset: "cx5-100g",
            claim: About(2.5),
            unit: "µs",
            ours: measures::small_write_there_and_back,
            unmet: None,
        },
    },
    Statement {
        paper: "RaaS III-A",
        says: "READs of large messages come close to WRITEs (ours 1 MiB)",
        figure: Measured {
            preset: "cx3-40g",
            claim: About(1.0),
            unit: "of a WRITE's",
            ours: measures::reads_over_writes,
            unmet: None,
        },
    },
    Statement {
        paper: "RaaS III-A, Figure 1",
        says: "WRITEs over UC perform as well as over RC",
        figure: Left {
            value: "equal",
            why: "left out: there is no UC here",
        },
    },
    Statement {
        paper: "RaaS VI-A",
        says: "atomics on one counter",
        figure: Measured {
            preset: "cx3-40g",
            claim: About(2.4),
            unit: "M/s",
            ours: measures::atomics_on_one_word,
            unmet: None,
        },
    },
    Statement {
        paper: "RaaS VI-A",
        says: "atomics on 20 counters",
        figure: Measured {
            preset: "cx3-40g",
            claim: About(2.4),
            unit: "M/s",
            ours: measures::atomics_on_twenty_words,
            unmet: None,
        },
    },
    Statement {
        paper: "RaaS VI-A",
        says: "READs of 64 KiB: throughput starts to drop beyond that many queue pairs",
        figure: Measured {
            preset: "cx3-40g",
            claim: About(400.0),
            unit: "queue pairs",
            ours: measures::reads_drop,
            unmet: Some(
                "the link hides it. With 1,000 queue pairs nearly every READ misses its context at both ends, as some \
                 do from 401 on, but 64 KiB take the link 14 µs: the units that ask are busy for 31 % of the time, \
                 those that are asked for 16 %, and the answering port is full, with 36.6 Gbit/s as with 100 queue \
                 pairs; also with a process and a region for each of 500. Were answers to take turns packet by \
                 packet, and each packet to miss, two units would still be faster than the link: 0.19 µs for a \
                 packet, and 0.22 µs. Where the units are the limit it does drop there: READs of 64 B by eight \
                 processes, 15.4 M/s up to 400 queue pairs, 9.6 M/s with 448. In the paper these READs do less than \
                 those of shared queue pairs with fewer than 400, too: so it was not the link that limited them. What \
                 did it does not say; each queue pair had a thread, on 24 cores.",
            ),
        },
    },
    Statement {
        paper: "RaaS III-B",
        says: "calibration, not prediction (`cpu.lock_waiter` is fitted to this row and the next): three threads that share a queue pair under a lock, of one thread (ours READs of 64 B, 16 outstanding of each)",
        figure: Measured {
            preset: "cx3-40g",
            claim: About(66.0),
            unit: "%",
            ours: measures::shared_by_three,
            unmet: None,
        },
    },
    Statement {
        paper: "RaaS III-B",
        says: "calibration: the same, nine threads",
        figure: Measured {
            preset: "cx3-40g",
            claim: About(56.0),
            unit: "%",
            ours: measures::shared_by_nine,
            unmet: None,
        },
    },
    Statement {
        paper: "RaaS III-B",
        says: "registering beats copying from so many bytes on",
        figure: Left {
            value: "128 KiB",
            why: "left out: registering takes no time here",
        },
    },
    Statement {
        paper: "Patterns 5",
        says: "64 B by WRITE, 256 B back by WRITE",
        figure: Measured {
            preset: "cx5-100g",
            claim: Below(3.0),
            unit: "µs",
            ours: measures::write_and_write,
            unmet: None,
        },
    },
    Statement {
        paper: "Patterns 5",
        says: "64 B by SEND, 256 B back by WRITE",
        figure: Measured {
            preset: "cx5-100g",
            claim: Below(3.0),
            unit: "µs",
            ours: measures::send_and_write,
            unmet: None,
        },
    },
    Statement {
        paper: "Patterns 5",
        says: "64 B by WRITE, 256 B back by SEND",
        figure: Measured {
            preset: "cx5-100g",
            claim: Below(4.0),
            unit: "µs",
            ours: measures::write_and_send,
            unmet: None,
        },
    },
    Statement {
        paper: "Patterns 5",
        says: "64 B by SEND, 256 B back by SEND",
        figure: Measured {
            preset: "cx5-100g",
            claim: Below(4.0),
            unit: "µs",
            ours: measures::send_and_send,
            unmet: None,
        },
    },
    Statement {
        paper: "Patterns 5",
        says: "one thread, 64 and 256 B: all by WRITE does more than all by SEND by",
        figure: Left {
            value: "40 %",
            why: "not measured: what a program does for a receive decides it, see below",
        },
    },
    Statement {
        paper: "Patterns 5",
        says: "one thread, 16 KiB: all by WRITE does more than all by SEND by; at 4 MiB",
        figure: Left {
            value: "700 MB/s; no gap",
            why: "not measured: what the serving thread does beside the verbs decides the first, and is not stated; the link decides the second",
        },
    },
    Statement {
        paper: "Patterns 5",
        says: "16 KiB: responses by SEND come later than by WRITE by",
        figure: Left {
            value: "almost 2 µs",
            why: "not measured: what a program does with a message in a receive is not stated; a copy of 16 KiB takes \
                  about that",
        },
    },
    Statement {
        paper: "Patterns 5, Figure 4",
        says: "instructions for a byte of a 64 B response, responder; requester",
        figure: Left {
            value: "up to 800; 450",
            why: "left out: the model counts no instructions",
        },
    },
    Statement {
        paper: "Patterns 6",
        says: "16 clients of one thread, 64 and 256 B: by SENDs; by WRITEs; 4 KiB: by SENDs",
        figure: Left {
            value: "500 MB/s; 1.2 GB/s; 8 to 9.5 GB/s",
            why: "not measured: the serving thread's program decides it, which is stated for 4 KiB only (see the row after the next)",
        },
    },
    Statement {
        paper: "Patterns 6",
        says: "clients of one thread that fill its link: 4 KiB, requests by WRITE, without and with dispatchers; 16 KiB, requests by SEND, responses by WRITE and by SEND",
        figure: Left {
            value: "16, 40; 16, 40",
            why: "not measured: what the serving thread does beside the verbs decides it, and is not stated",
        },
    },
    Statement {
        paper: "Patterns 6, Figure 7",
        says: "processor cycles for a response of 4 KiB: requests by SEND; by WRITE",
        figure: Left {
            value: "about 1,700; about 1,100",
            why: "not measured: it is the whole loop of the serving thread, of which the model charges calls of verbs alone",
        },
    },
    Statement {
        paper: "Patterns 6, Table 1",
        says: "share of those cycles by SENDs: a spin lock; the poll itself",
        figure: Left {
            value: "61 %; 17 %",
            why: "left out: no lock is taken within a call of verbs",
        },
    },
    Statement {
        paper: "Patterns 7",
        says: "six RNICs could carry 66 GB/s together, responses of 4 KiB: of each",
        figure: Measured {
            preset: "cx5-100g",
            claim: About(88.0),
            unit: "Gbit/s",
            ours: measures::writes_of_a_page,
            unmet: None,
        },
    },
    Statement {
        paper: "Patterns 7",
        says: "4 KiB, requests by SEND, responses by WRITE, 90 clients, 18 serving threads: of all RNICs",
        figure: Left {
            value: "well over 40 GB/s",
            why: "not measured: what the serving thread does beside the verbs decides it, and is not stated",
        },
    },
    Statement {
        paper: "Patterns 7, Figure 9",
        says: "one thread, 4 KiB, requests by WRITE, 90 clients of which 70, 80, 90 % are idle",
        figure: Left {
            value: "stable; 8 GB/s; 4 GB/s",
            why: "not measured: what a look at an empty mailbox costs is the program's",
        },
    },
    Statement {
        paper: "Patterns 7, Table 2",
        says: "empty mailboxes with 6, 12, 18 serving threads",
        figure: Left {
            value: "83.3; 91.6; 94.4 %",
            why: "not measured: it follows from 90 clients, not from a device",
        },
    },
    Statement {
        paper: "Patterns 7, Figure 10",
        says: "16 KiB, responses by SEND: dispatchers do more than connections of each thread by",
        figure: Left {
            value: "up to 5 GB/s",
            why: "not measured: the dispatcher and its hand-over are programs",
        },
    },
    Statement {
        paper: "Jet 4.1.2",
        says: "four READs at a time fill two ports of 100 Gbit/s (CX-6 Dx; ours 64 KiB and one port)",
        figure: Measured {
            preset: "cx6-100g",
            claim: About(100.0),
            unit: "Gbit/s",
            ours: measures::four_reads,
            unmet: None,
        },
    },
    Statement {
        paper: "Jet 2.1, Figure 1",
        says: "incidents in production: memory bandwidth used, of 250 GB/s; on hosts with 25 Gbit/s, where pauses (PFC) average and exceed",
        figure: Left {
            value: "230 GB/s; 60 GB/s, 80 K and 100 K",
            why: "left out: the receiving host's cache and memory; congestion",
        },
    },
    Statement {
        paper: "Jet 2.1, Figure 2",
        says: "testbeds with their memory bandwidth taken, 1 MiB instead of 64 KiB, 2 × 25 and 2 × 100 Gbit/s: throughput; average latency; 99th percentile",
        figure: Left {
            value: "-43.2, -43.1 %; 11.1, 5.1 times; 9.8, 8.9 times",
            why: "left out: the receiving host's cache and memory",
        },
    },
    Statement {
        paper: "Jet 2.1, Figure 3",
        says: "the same testbeds, 32 queue pairs of 1 MiB: DMA misses the last-level cache",
        figure: Left {
            value: "100 %",
            why: "left out: the receiving host's cache and memory",
        },
    },
    Statement {
        paper: "Jet 2.1",
        says: "twice the last-level cache for DMA changes that by",
        figure: Left {
            value: "nothing",
            why: "left out: the receiving host's cache and memory",
        },
    },
    Statement {
        paper: "Weir II-B, Figure 2",
        says: "throughput drops suddenly when there are that many queue pairs, with 128 requests each",
        figure: Measured {
            preset: "cx6-100g",
            claim: About(128.0),
            unit: "queue pairs",
            ours: measures::sends_drop,
            unmet: None,
        },
    },
    Statement {
        paper: "Weir II-B",
        says: "the same with one memory region for all queue pairs",
        figure: Left {
            value: "identical",
            why: "not measured: queue pairs of a process share one here in any case",
        },
    },
    Statement {
        paper: "Weir II-B, V-B",
        says: "contexts are missed only beyond that many queue pairs",
        figure: Measured {
            preset: "cx6-100g",
            claim: About(2048.0),
            unit: "queue pairs",
            ours: measures::contexts_are_missed,
            unmet: None,
        },
    },
    Statement {
        paper: "Weir V-B",
        says: "growth of those misses beyond 8 Ki queue pairs",
        figure: Left {
            value: "slightly slower",
            why: "calibration: the contexts' replacement by chance comes of it",
        },
    },
    Statement {
        paper: "Weir V-B",
        says: "with 64, 32 and 16 requests each: less over few queue pairs, more with their number, then a sudden drop",
        figure: Left {
            value: "no value",
            why: "not measured here: `weir-fig7` to `weir-fig9` judge it for 16",
        },
    },
    Statement {
        paper: "Weir V-B",
        says: "misses of translations and protections grow fast with queue pairs, then settle",
        figure: Left {
            value: "no value",
            why: "not measured here: `weir-fig7` to `weir-fig9` draw them",
        },
    },
    Statement {
        paper: "Weir abstract, V-B",
        says: "512 B over few queue pairs, as the port counts, headers among it; derived: 97 Gbit/s is Weir's own (abstract), and plain verbs are basically the same there (V-B)",
        figure: Measured {
            preset: "cx6-100g",
            claim: About(97.0),
            unit: "Gbit/s",
            ours: measures::port_counts,
            unmet: None,
        },
    },
    Statement {
        paper: "Weir III-C, Figure 4",
        says: "100 requests of 8 KiB are consumed within a pause of 1 ms: the last of them takes",
        figure: Measured {
            preset: "cx6-100g",
            claim: Below(1000.0),
            unit: "µs",
            ours: measures::last_of_a_batch,
            unmet: None,
        },
    },
    Statement {
        paper: "Weir III-C",
        says: "a request takes 8 B of the chip's 2 MB, which holds",
        figure: Left {
            value: "200 K requests",
            why: "not taken: 128 queue pairs of 128 requests could not overflow that, see above",
        },
    },
];
