//! The list of statements.

use crate::measurements::{
    contexts_are_missed, deep, doubled, last_of_a_batch, long_lose, long_miss, port_counts,
    reads_drop, reads_over_writes, sends_drop, unreliable_over_reliable,
};
use crate::{Statement, left, on};
use headworks_experiments::claim::Claim::{About, Below, Exactly};
use headworks_experiments::nic::Verb::{FetchAdd, Read, Send, Write};

const MIB: usize = 1 << 20;

/// Declares the list from rows of paper and section, statement, and value.
macro_rules! statements {
    ($($paper:literal: $says:literal => $figure:expr;)*) => {
        /// Statements with a value about raw devices, or about plain verbs on them. The papers state more:
        /// rings and services are not plain verbs, and a drawing without numbers states no value.
        pub(crate) const STATED: &[Statement] = &[$(Statement {
            paper: $paper,
            says: $says,
            figure: $figure,
        }),*];
    };
}

statements! {
    "RB² V-B, experiment 1": "plain WRITEs of large messages: close to 90 Gbit/s"
        => on("cx5-100g", About(90.0), "Gbit/s", |bed| bed.gbit(deep(Write, MIB, 1, 16), 3_000));
    "RB² V-B, experiment 2":
        "round trip of 64 B: 2.5 µs is close to plain WRITEs (ours: from memory, not inline)"
        => on("cx5-100g", About(2.5), "µs", |bed| bed.there_and_back((Write, 64), (Write, 64)));
    "RaaS III-A": "READs of large messages come close to WRITEs (ours: 1 MiB)"
        => on("cx3-40g", About(1.0), "of the WRITEs' rate", reads_over_writes);
    "RaaS III-A, Figure 1": "WRITEs over UC perform as well as over RC (ours: 64 B)"
        => on("cx3-40g", About(1.0), "of the rate over RC", unreliable_over_reliable);
    "RaaS VI-A": "calibration (`nic.atomic`, `pcie.read`): atomics on one counter"
        => on("cx3-40g", Exactly(2.4), "M/s", |bed| bed.millions(deep(FetchAdd, 8, 1, 16), 500));
    "RaaS VI-A": "calibration (`nic.atomic_locks`): atomics on 20 counters"
        => on("cx3-40g", Exactly(2.4), "M/s", |bed| bed.millions(deep(FetchAdd, 8, 20, 16), 500));
    "RaaS VI-A": "calibration (`nic.icm`): READs of 64 KiB: number of queue pairs beyond which throughput drops"
        => on("cx3-40g", About(400.0), "queue pairs", reads_drop)
        .unmet("the link hides the drop. With 1,000 queue pairs nearly every READ misses its context at both ends. \
                Some miss from 401 queue pairs on. But 64 KiB take the link 14 µs. The requesting units are busy for \
                31 % of the time, the responding units for 16 %. The responding port is full, with 36.6 Gbit/s, as \
                with 100 queue pairs. The result is the same with 500 queue pairs that have a process and a region \
                each. Even if responses took turns packet by packet and each packet missed, the link would be the \
                limit: two units would take 0.19 µs for a packet, and the link 0.22 µs. Where the units are the limit, \
                throughput does drop: READs of 64 B by eight processes do 15.4 M/s up to 400 queue pairs, and 9.6 M/s \
                with 448. In the paper these READs do less than those of shared queue pairs even with fewer than 400, \
                so the link did not limit them. The paper does not state what did. Each of its queue pairs had a \
                thread, on 24 cores.");
    "RaaS III-B":
        "calibration, not prediction (`cpu.lock_waiter` is fitted to this row and the next): rate of three threads \
         that share a queue pair under a lock, over one thread (ours: READs of 64 B, 16 outstanding for each thread)"
        => on("cx3-40g", About(66.0), "%", |bed| bed.shared_by(3));
    "RaaS III-B": "calibration: the same with nine threads"
        => on("cx3-40g", About(56.0), "%", |bed| bed.shared_by(9));
    "RaaS III-B": "size from which registering is faster than copying"
        => left("128 KiB", "left out: registering takes no time in the model");
    "Patterns 5": "round trip: 64 B by WRITE, 256 B back by WRITE"
        => on("cx5-100g", Below(3.0), "µs", |bed| bed.there_and_back((Write, 64), (Write, 256)));
    "Patterns 5": "round trip: 64 B by SEND, 256 B back by WRITE"
        => on("cx5-100g", Below(3.0), "µs", |bed| bed.there_and_back((Send, 64), (Write, 256)));
    "Patterns 5": "round trip: 64 B by WRITE, 256 B back by SEND"
        => on("cx5-100g", Below(4.0), "µs", |bed| bed.there_and_back((Write, 64), (Send, 256)));
    "Patterns 5": "round trip: 64 B by SEND, 256 B back by SEND"
        => on("cx5-100g", Below(4.0), "µs", |bed| bed.there_and_back((Send, 64), (Send, 256)));
    "Patterns 5": "one thread, 64 and 256 B: advantage of all by WRITE over all by SEND"
        => left("40 %", "not measured here, because it depends on the program's own work: see patterns-fig3");
    "Patterns 5": "one thread: advantage of all by WRITE over all by SEND at 16 KiB; at 4 MiB"
        => left("700 MB/s; no gap",
            "not measured here, because it depends on the program's own work: see patterns-fig3");
    "Patterns 5": "16 KiB: latency of responses by SEND over those by WRITE"
        => left("almost 2 µs",
            "not measured here, because it depends on the program's own work: see patterns-fig3");
    "Patterns 5, Figure 4": "instructions per byte of a 64 B response: responder; requester"
        => left("up to 800; 450", "left out: the model counts no instructions; patterns-fig4 counts those of our programs");
    "Patterns 6": "16 clients of one thread: 64 and 256 B by SENDs; by WRITEs; 4 KiB by SENDs"
        => left("500 MB/s; 1.2 GB/s; 8 to 9.5 GB/s",
            "not measured here, because it depends on the program's own work: see patterns-fig5");
    "Patterns 6":
        "number of clients of one thread that fill its link: 4 KiB, requests by WRITE, without and with dispatchers; \
         16 KiB, requests by SEND, responses by WRITE and by SEND"
        => left("16, 40; 16, 40", "not measured here, because it depends on the program's own work: see patterns-fig5, patterns-fig6");
    "Patterns 6, Figure 7": "processor cycles for a response of 4 KiB: requests by SEND; by WRITE"
        => left("about 1,700; about 1,100",
            "not measured here, because it depends on the program's own work: see patterns-fig7");
    "Patterns 6, Table 1": "share of those cycles with SENDs: a spin lock; the poll itself"
        => left("61 %; 17 %", "verbs calls take no lock in the model; patterns-table1 charges one");
    "Patterns 7": "six RNICs could carry 66 GB/s together, responses of 4 KiB: rate of each"
        => on("cx5-100g", About(88.0), "Gbit/s", |bed| bed.gbit(deep(Write, 4096, 8, 32), 500));
    "Patterns 7": "4 KiB, requests by SEND, responses by WRITE, 90 clients, 18 serving threads: rate of all RNICs"
        => left("well over 40 GB/s", "not measured here, because it depends on the program's own work: see patterns-fig8");
    "Patterns 7, Figure 9": "one thread, 4 KiB, requests by WRITE, 90 clients of which 70, 80, 90 % are idle"
        => left("stable; 8 GB/s; 4 GB/s", "not measured here, because it depends on the program's own work: see patterns-fig9b");
    "Patterns 7, Table 2": "empty mailboxes with 6, 12, 18 serving threads"
        => left("83.3; 91.6; 94.4 %", "it follows from 90 clients, not from a device: patterns-table2");
    "Patterns 7, Figure 10": "16 KiB, responses by SEND: advantage of dispatchers over connections of each thread"
        => left("up to 5 GB/s", "not measured here, because a dispatcher is a part of the program: see patterns-fig10");
    "Jet 4.1.2": "four READs at a time fill two ports of 100 Gbit/s (CX-6 Dx; ours: 64 KiB and one port)"
        => on("cx6-100g", About(100.0), "Gbit/s", |bed| bed.gbit(deep(Read, 65536, 1, 4), 1_000));
    "Jet 4.1.2": "the same on both ports, READs of 64 KiB over 4 queue pairs"
        => on("cx6dx-2x100g", About(200.0), "Gbit/s", |bed| bed.gbit(deep(Read, 65536, 4, 1), 1_000));
    "Jet 2.1, Figure 1":
        "incidents in production: memory bandwidth used, of 250 GB/s; used on hosts with 25 Gbit/s, and numbers of \
         pauses (PFC) that they average and exceed"
        => left("230 GB/s; 60 GB/s, 80 K and 100 K",
            "used for constants (`host.memory`); the numbers of pauses have no unit");
    "Jet 2.1, Figure 2":
        "calibration (`host.rnic_share`): loss of throughput of 1 MiB against 64 KiB while memory bandwidth is in use"
        => on("cx4lx-2x25g", Exactly(43.2), "%", long_lose);
    "Jet 2.1, Figure 2": "the same on 2 × 100 Gbit/s"
        => on("cx6dx-2x100g", About(43.1), "%", long_lose);
    "Jet 2.1, Figure 2":
        "average latency of 1 MiB over that of 64 KiB on the two testbeds; 99th percentile"
        => left("11.1, 5.1; 9.8, 8.9 times",
            "not compared: the paper does not state how many messages were outstanding; jet-fig2 prints ours beside these");
    "Jet 2.1, Figure 3": "32 queue pairs of 1 MiB: DMA that misses the last-level cache"
        => on("cx4lx-2x25g", Exactly(100.0), "%", long_miss);
    "Jet 2.1, Figure 3": "the same on 2 × 100 Gbit/s"
        => on("cx6dx-2x100g", Exactly(100.0), "%", long_miss);
    "Jet 2.1": "twice the last-level cache for DMA changes nothing: throughput over that without, 1 MiB"
        => on("cx6dx-2x100g", Exactly(1.0), "times", |bed| doubled(bed, 1024));
    "Jet 2.1": "the same with 256 KiB, 2 × 25 Gbit/s"
        => on("cx4lx-2x25g", About(1.0), "times", |bed| doubled(bed, 256));
    "Jet 2.1": "the same with 256 KiB, 2 × 100 Gbit/s"
        => on("cx6dx-2x100g", About(1.0), "times", |bed| doubled(bed, 256))
        .unmet("the paper does not state at which size it doubled the cache. 32 buffers of 256 KiB are 8 MiB. They do \
                not fit into 6 MiB and fit into 12 MiB, so more lines stay cached: about a quarter are hits, in place of \
                an eighth. The antagonist still evicts most of them before they are written again.");
    "Weir II-B, Figure 2":
        "calibration (`nic.wqe_cache`): number of queue pairs with 128 requests each at which throughput drops suddenly"
        => on("cx6-100g", Exactly(128.0), "queue pairs", sends_drop);
    "Weir II-B": "the same with one memory region for all queue pairs"
        => left("identical", "not measured: queue pairs of a process share a region here anyway");
    "Weir II-B, V-B": "calibration (`nic.icm`): number of queue pairs beyond which contexts are missed"
        => on("cx6-100g", Exactly(2048.0), "queue pairs", contexts_are_missed);
    "Weir V-B": "growth of those misses beyond 8 Ki queue pairs"
        => left("slightly slower",
            "calibration: the random replacement of contexts is taken from it; `weir-fig7` to `weir-fig9` check it");
    "Weir V-B":
        "with 64, 32 and 16 requests each: lower throughput with few queue pairs, higher with more, then a sudden drop"
        => left("no value", "not measured here: `weir-fig7` to `weir-fig9` check it");
    "Weir V-B": "misses of translations and protections grow fast with queue pairs, then settle"
        => left("no value", "not measured here: `weir-fig7` to `weir-fig9` check it");
    "Weir abstract, V-B":
        "512 B over few queue pairs, as the port counts, headers included; derived: 97 Gbit/s is Weir's own \
         (abstract), and plain verbs are basically the same there (V-B)"
        => on("cx6-100g", About(97.0), "Gbit/s", port_counts);
    "Weir III-C, Figure 4": "100 requests of 8 KiB are done within a pause of 1 ms: time of the last one"
        => on("cx6-100g", Below(1000.0), "µs", last_of_a_batch);
    "Weir III-C": "a request takes 8 B of the chip's 2 MB: number of requests that fit"
        => left("200 K requests",
            "not used: 128 queue pairs with 128 requests each could not overflow that, see above");
}
