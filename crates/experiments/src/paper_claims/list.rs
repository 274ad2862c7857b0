//! The list.

use super::Figure::{Left, Measured};
use super::Value::{About, Below};
use super::{Statement, measures};

/// Everything that the papers state in figures of raw devices, or of plain verbs on them.
pub const STATED: &[Statement] = &[
    Statement {
        paper: "RB² V-B, experiment 1",
        says: "plain WRITEs of large messages: close to 90 Gbit/s",
        figure: Measured {
            preset: "cx5-100g",
            value: About(90.0),
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
            value: About(2.5),
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
            value: About(1.0),
            unit: "of a WRITE's",
            ours: measures::reads_over_writes,
            unmet: None,
        },
    },
    Statement {
        paper: "RaaS VI-A",
        says: "atomics on one counter",
        figure: Measured {
            preset: "cx3-40g",
            value: About(2.4),
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
            value: About(2.4),
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
            value: About(400.0),
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
        says: "a queue pair that three threads share under a lock does so much of three of their own (ours WRITEs of 64 B, four outstanding of each)",
        figure: Measured {
            preset: "cx3-40g",
            value: About(66.0),
            unit: "%",
            ours: measures::shared_by_three,
            unmet: None,
        },
    },
    Statement {
        paper: "RaaS III-B",
        says: "the same, nine threads",
        figure: Measured {
            preset: "cx3-40g",
            value: About(56.0),
            unit: "%",
            ours: measures::shared_by_nine,
            unmet: Some(
                "every request takes the lock from another thread here, so more threads do no more. A mutex that is \
                 not fair is taken again by whoever had it last, and handed over less often. Nor is it stated what \
                 the threads send and how many are outstanding: with one of each ours are 100 and 88 %, with 16 \
                 they are 30 and 25 %.",
            ),
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
            value: Below(3.0),
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
            value: Below(3.0),
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
            value: Below(4.0),
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
            value: Below(4.0),
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
        says: "16 KiB: responses by SEND come later than by WRITE by",
        figure: Left {
            value: "almost 2 µs",
            why: "not measured: what a program does with a message in a receive is not stated; a copy of 16 KiB takes \
                  about that",
        },
    },
    Statement {
        paper: "Patterns 6",
        says: "16 clients of one thread, 64 and 256 B: by SENDs; by WRITEs; 4 KiB: by SENDs",
        figure: Left {
            value: "500 MB/s; 1.2 GB/s; 8 to 9.5 GB/s",
            why: "not measured: the serving thread's program decides it, which is stated for 4 KiB only (1,700 cycles \
                  a message by SENDs, 1,100 by WRITEs)",
        },
    },
    Statement {
        paper: "Patterns 7",
        says: "six RNICs could carry 66 GB/s together, responses of 4 KiB: of each",
        figure: Measured {
            preset: "cx5-100g",
            value: About(88.0),
            unit: "Gbit/s",
            ours: measures::writes_of_a_page,
            unmet: None,
        },
    },
    Statement {
        paper: "Jet 4.1.2",
        says: "four READs at a time fill two ports of 100 Gbit/s (CX-6 Dx; ours 64 KiB and one port)",
        figure: Measured {
            preset: "cx6-100g",
            value: About(100.0),
            unit: "Gbit/s",
            ours: measures::four_reads,
            unmet: None,
        },
    },
    Statement {
        paper: "Jet 2.1",
        says: "DMA misses the last-level cache always, with 32 queue pairs of 1 MiB; memory bandwidth runs out at",
        figure: Left {
            value: "100 %; 230 of 250 GB/s",
            why: "left out: the receiving host's cache and memory",
        },
    },
    Statement {
        paper: "Weir II-B, Figure 2",
        says: "throughput drops suddenly when there are that many queue pairs, with 128 requests each",
        figure: Measured {
            preset: "cx6-100g",
            value: About(128.0),
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
            value: About(2048.0),
            unit: "queue pairs",
            ours: measures::contexts_are_missed,
            unmet: None,
        },
    },
    Statement {
        paper: "Weir V-B",
        says: "512 B over few queue pairs, as the port counts, headers among it",
        figure: Measured {
            preset: "cx6-100g",
            value: About(97.0),
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
            value: Below(1000.0),
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
