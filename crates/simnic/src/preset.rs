//! Presets: every constant of the model, with its unit, meaning, source, and value for each machine.
//!
//! docs/simulation.md has them as a table. `headworks sim
//! presets` prints them, `--set key=value` changes one. Sources marked † were cited from memory.
//! [`Preset::check`] refuses values that contradict each other.

mod contradictions;

pub use contradictions::{CONTRADICTIONS, Contradiction, OrderedPair};
pub use headworks_constants::{Constant, Kind, SetError, Value};

/// A constant of the model and a legal value for it: `key=value`.
pub type Setting = headworks_constants::Setting<Preset>;

/// Largest number of ports of a host (`link.ports`).
pub(crate) const PORTS_MAX: usize = 8;

/// All constants, in the order of the documentation.
pub const CONSTANTS: &[Constant] = Preset::CONSTANTS;

headworks_constants::constants! {
    /// Constants of a machine, with its RNIC and its network.
    pub struct Preset {
        unknown: "no constant is called",
        list: "`headworks sim presets` lists them",
        example: "nic.icm=4096",
        columns: ["cx3-40g", "cx5-100g", "cx6-100g", "cx4lx-2x25g", "cx6dx-2x100g"],
    }

    cores as "cpu.cores": whole "cores" 1..1024 [24, 24, 56, 24, 56] "Cores of a host; actors share cores only if there are more actors than cores"
        "The papers' machines: RaaS Table II (24 cores), RB² V-A (two Xeon Gold 5118), Weir V-A (Xeon Gold 6330; two sockets assumed); cx4lx: two sockets of a Xeon E5, assumed; cx6dx: as cx6";
    post_ns as "cpu.post": number "ns" 0..100000 [50, 45, 45, 45, 45] "Building one request and putting it on the queue"
        "Derived: a core that posts in batches does 27.4 M requests/s, which is 36 ns in all (Kalia et al., ATC 2016, 4.2); on another machine it takes 28 ns, and 38 ns of barriers (Zambre et al., ICPP 2019 †); cx4lx: as cx5; cx6dx: as cx6";
    doorbell_cpu_ns as "cpu.doorbell": number "ns" 0..100000 [55, 55, 55, 55, 55] "The store that rings a doorbell, with its fence"
        "Derived: together with the request about 100 ns, because a core does 10 M unbatched requests/s (Kalia et al., rdma_bench); cx4lx: as cx5; cx6dx: as cx6";
    inline_ns as "cpu.inline": number "ns/64 B" 0..100000 [40, 15, 15, 15, 15] "Each 64-byte line that an inline payload takes beyond the request's first"
        "Derived: `ib_write_lat` of 128 B inline takes 0.13 µs more than of 64 B on mlx4, and 0.05 µs more on mlx5, minus wire and bus (published outputs of perftest); cx4lx and cx6dx have the driver mlx5, too";
    post_recv_ns as "cpu.post_recv": number "ns" 0..100000 [25, 25, 25, 25, 25] "Posting one receive"
        "Assumed: a few stores and a doorbell record in memory, no store to the RNIC (rdma-core, mlx4 and mlx5)";
    poll_empty_ns as "cpu.poll_empty": number "ns" 0..100000 [10, 10, 10, 10, 10] "Polling an empty completion queue"
        "Assumed: one load of a cached line and a comparison";
    poll_cqe_ns as "cpu.poll_cqe": number "ns" 0..100000 [50, 50, 50, 50, 50] "Taking one completion"
        "62 ns on another machine (Zambre et al., ICPP 2019 †); the RNIC has just written the cache line";
    copy_ns as "cpu.copy": number "ns" 0..100000 [20, 20, 20, 20, 20] "Fixed cost of a copy"
        "Assumed: the function call and its tail";
    copy_gbps as "cpu.copy_rate": number "Gbit/s" 1..100000 [64, 80, 96, 64, 96] "Rate of copying from one cached buffer to another"
        "4 KiB in 0.40 µs (Li et al., SocksDirect, SIGCOMM 2019, Table 2 †); the scaling by generation is assumed; cx4lx: as cx3; cx6dx: as cx6";
    bench_ns as "cpu.bench": number "ns" 0..100000 [30, 100, 100, 100, 100] "Work of perftest for each request, beside the verbs"
        "Derived: one thread of perftest does 7.4 to 7.8 M requests/s on mlx4 and 4.7 M on mlx5 (published outputs). cx4lx and cx6dx: as cx5, with the same driver. The model does not charge it; an actor that stands for perftest does";
    message_ns as "cpu.message": number "ns" 0..100000 [15, 15, 15, 15, 15] "Work of a program for each message, beside verbs and copies"
        "Assumed: a few loads and stores, one of them of a cache line that the other side had. The model does not charge it; an actor that stands for the program does";
    wake_ns as "cpu.wake": number "ns" 0..10000000 [6000, 5000, 5000, 5000, 5000] "From an event until the thread that slept on it runs"
        "A process wakes in 2.8 to 5.5 µs (Li et al., SocksDirect, SIGCOMM 2019, Table 2 †); the interrupt before that is assumed; cx4lx: as cx5; cx6dx: as cx6";
    lock_ns as "cpu.lock": number "ns" 0..1000000 [150, 150, 150, 150, 150] "Passing a lock from one core to another"
        "100 to 200 ns (Li et al., SocksDirect, SIGCOMM 2019, Table 2 †). The model does not charge it; an actor that stands for threads with a shared queue pair does";
    lock_waiter_ns as "cpu.lock_waiter": number "ns" 0..1000000 [5, 5, 5, 5, 5] "Time that each further waiter adds when a lock changes hands"
        "Fitted to RaaS III-B, 66 % with three threads and 56 % with nine. At each release all waiters read the lock's line again, one after the other, and the next owner is one of them (Boyd-Wickizer et al., Linux Symposium 2012 †). The model does not charge it; an actor that stands for threads with a shared queue pair does";
    line_ns as "cpu.line": number "ns" 0..1000000 [50, 50, 50, 50, 50] "Reading a cache line that another core wrote last"
        "109 cycles of a Xeon within a die (David et al., SOSP 2013, Table 2 †), at 2.1 GHz. The model does not charge it; an actor that stands for two programs with shared memory does";
    scan_ns as "cpu.scan": number "ns" 0..1000000 [2, 2, 2, 2, 2] "Polling the flag of one mailbox that is empty"
        "About 10 instructions of the loop in `headworks-patterns` (counted by callgrind), two in a cycle, at `cpu.clock`; the line is in the first-level cache. The model does not charge it; an actor that stands for the program does";
    srq_lock_ns as "cpu.srq_lock": number "ns" 0..1000000 [0, 147, 147, 147, 147] "The lock of a shared receive queue, each time it is taken: for a completion, and for a receive that is posted"
        "Fitted to RDMA Communication Patterns 6: 40 requesters and one responder by SendSend reach 8 GB/s with responses of 4 KiB. cx4lx, cx6 and cx6dx: as cx5; cx3: no value. The model does not charge it; an actor that stands for the program does";
    clock_ghz as "cpu.clock": number "GHz" 0.1..100 [2.1, 3.2, 3.1, 2.1, 3.1] "Clock of a core"
        "RaaS Table II (2.1 GHz); the turbo clocks of the Xeon Gold 5120 and 6330 (product pages). At 3.2 GHz the 1,700 and 1,100 cycles of RDMA Communication Patterns 6 are 7.7 and 11.9 GB/s with responses of 4 KiB. cx4lx: as cx3; cx6dx: as cx6";
    mail_ns as "cpu.mail": number "ns" 0..10000000 [20000, 20000, 20000, 20000, 20000] "A message from one program to another outside of the RDMA network"
        "Assumed: a message over TCP on another network. Only figures of setup include it";
    page_kib as "cpu.page": power_of_two "KiB" 4..1048576 [4, 4, 4, 4, 4] "Size of an ordinary page"
        "x86-64";
    huge_page_kib as "cpu.huge_page": power_of_two "KiB" 4..1048576 [2048, 2048, 2048, 2048, 2048] "Size of a huge page"
        "x86-64";
    doorbell_ns as "pcie.doorbell": number "ns" 0..100000 [150, 140, 140, 140, 140] "From the store that rings the doorbell to the RNIC"
        "137.5 ns one way, on the bus of a ConnectX-4 (Zambre et al., ICPP 2019 †); cx6dx: as cx6";
    dma_read_ns as "pcie.read": number "ns" 0..100000 [370, 400, 400, 400, 400] "Round trip of a DMA read of one line"
        "NEO-Host on an idle 100 Gbit/s card at PCIe 3.0 x16: 403 ns, from 372 to 488; report 131 to perftest: 1.32 µs where the payload is read, minus 0.93 µs where it is not. cx3: at most 370 ns, because its atomics do 2.7 M/s one by one (Kalia et al., ATC 2016, 5.4); cx4lx: as cx5; cx6dx: as cx6";
    dma_write_ns as "pcie.write": number "ns" 0..100000 [240, 230, 220, 230, 220] "From a DMA write until the processor sees it"
        "Derived: 137.5 ns of bus (Zambre et al., ICPP 2019 †), and for the memory what remains of the published latencies; cx4lx: as cx5; cx6dx: as cx6";
    read_gbps as "pcie.read_rate": number "Gbit/s" 1..10000 [63, 126, 126, 63, 252] "Rate of DMA reads, headers included"
        "PCIe 3.0 x8 (cx3, cx4lx), 3.0 x16 (cx5, cx6) and 4.0 x16 (cx6dx) after 128b/130b encoding; NEO-Host says 125.4 Gbit/s of 3.0 x16";
    write_gbps as "pcie.write_rate": number "Gbit/s" 1..10000 [63, 126, 126, 63, 252] "Rate of DMA writes, headers included"
        "PCIe 3.0 x8 (cx3, cx4lx), 3.0 x16 (cx5, cx6) and 4.0 x16 (cx6dx) after 128b/130b encoding; NEO-Host says 125.4 Gbit/s of 3.0 x16";
    tlp_bytes as "pcie.header": whole "B" 0..1000 [26, 26, 26, 26, 26] "Headers of each write packet on the bus"
        "PCIe 3.0; Kalia et al., ATC 2016, appendix; cx6dx: assumed the same on PCIe 4.0";
    tlp_payload as "pcie.payload": power_of_two "B" 64..4096 [256, 256, 256, 256, 256] "Maximum payload of a write packet on the bus"
        "Assumed: the setting of servers, as in Kalia et al., ATC 2016";
    completion_bytes as "pcie.read_header": whole "B" 0..1000 [22, 22, 22, 22, 22] "Headers of each packet on the bus with bytes of a DMA read"
        "PCIe 3.0; derived from the byte counts in the appendix of Kalia et al., ATC 2016; cx6dx: assumed the same on PCIe 4.0";
    completion_payload as "pcie.read_payload": power_of_two "B" 64..4096 [128, 128, 256, 128, 256] "Maximum payload of a packet on the bus with bytes of a DMA read"
        "128 B on the hosts of Kalia et al., ATC 2016, 2.1; 256 B on newer ones is assumed; cx4lx: as cx3; cx6dx: as cx6";
    tx_units as "nic.tx_units": whole "units" 1..256 [2, 8, 16, 4, 16] "Sending units"
        "Processing units of the generations (Reda et al., RedN, NSDI 2022 †); cx4lx: between cx3 and cx5, assumed; cx6dx: as cx6";
    tx_ns as "nic.tx_message": number "ns" 0..100000 [130, 127, 143, 127, 143] "Time that a sending unit takes for a message"
        "Derived: the number of units over the 15, 63 and 112 M requests/s of all of them (Reda et al., RedN, NSDI 2022 †); CX-6 pairs do 106 to 123 M WRITEs/s (published benchmarks); cx4lx: as cx5, which is 31 M requests/s with its units and 42 % of the 75 M packets/s in its product brief (cx6: 52 % of 215 M messages/s); cx6dx: as cx6";
    packet_ns as "nic.packet": number "ns" 0..100000 [15, 8, 6, 13, 6] "Time that a unit takes for each further packet"
        "Assumed, from NEO-Host's own bound of 228 M packets/s on a CX-6; the older ones are scaled; cx4lx: from the 75 M packets/s in its product brief; cx6dx: as cx6";
    tx_latency_ns as "nic.tx_latency": number "ns" 0..100000 [30, 33, 7, 33, 7] "From a sending unit to the wire, beside the unit's time"
        "Derived: what remains of 160, 160 and 150 ns from a request to the wire, which follow from the published latencies; two RNICs and a cable take 275 ns (Zambre et al., ICPP 2019 †); cx4lx: as cx5; cx6dx: as cx6";
    rx_units as "nic.rx_units": whole "units" 1..256 [4, 8, 16, 4, 16] "Receiving units"
        "Assumed; with `nic.rx_packet` they give the rates cited there; cx4lx: between cx3 and cx5; cx6dx: as cx6";
    rx_ns as "nic.rx_packet": number "ns" 0..100000 [114, 80, 139, 80, 139] "Time that a receiving unit takes for a packet"
        "Derived: the number of units over the rate of incoming requests: 35 M WRITEs/s on CX-3 (Kalia et al., HERD, SIGCOMM 2014 †), 115 M on CX-6 (published benchmarks, 106 to 123); cx5 is between them: assumed; cx4lx: as cx5, assumed; cx6dx: as cx6";
    rx_latency_ns as "nic.rx_latency": number "ns" 0..100000 [46, 80, 11, 80, 11] "From the wire to a receiving unit, beside the unit's time"
        "Derived: what remains of 160, 160 and 150 ns from the wire to the bus, as for `nic.tx_latency`; cx4lx: as cx5; cx6dx: as cx6";
    ack_ns as "nic.ack": number "ns" 0..100000 [20, 20, 20, 20, 20] "From a packet to its acknowledgement"
        "Assumed";
    respond_ns as "nic.respond": number "ns" 0..100000 [130, 100, 100, 100, 100] "Time of a READ or an atomic beside the DMA and the wire"
        "Derived: what remains of the time of a READ of 64 B: 1.91 µs on mlx5 (report 131 to perftest), 2.02 µs on mlx4 (published output of perftest); cx4lx: as cx5; cx6dx: as cx6";
    atomic_ns as "nic.atomic": number "ns" 0..100000 [40, 45, 70, 45, 70] "Time that an atomic holds its lock, beside its DMA read"
        "Derived: one address does 2.24 M/s on Connect-IB (Kalia et al., ATC 2016, 5.4), 2.04 to 2.17 M/s on CX-6 (published benchmark). cx3 is calibrated: RaaS VI-A, 2.4 M/s; a published output of perftest on mlx4 agrees, 2.45 M/s; others found 2.7 M/s (Kalia et al.); cx4lx: as cx5; cx6dx: as cx6";
    atomic_locks as "nic.atomic_locks": whole "locks" 1..1048576 [1, 512, 512, 512, 512] "Locks of atomics, selected by the low bits of the word's address"
        "One for all on CX-3; later 4,096 buckets by the low 12 bits of the address, which are 512 of words (Kalia et al., ATC 2016, 5.4)";
    blueflame_bytes as "nic.blueflame": whole "B" 0..4096 [256, 256, 256, 256, 256] "Longest request that travels with its doorbell"
        "rdma-core, mlx5: 256 B, and only a request that is posted alone; cx3: assumed the same";
    wqe_bytes as "nic.wqe": whole "B" 16..4096 [64, 64, 64, 64, 64] "Size of an entry of the request cache"
        "rdma-core, mlx5: the basic block of a request";
    wqe_kib as "nic.wqe_cache": number "KiB" 0..1048576 [256, 1024, 1024, 1024, 1024] "Size of the request cache; 0 is unlimited"
        "Calibrated: Weir II-B, throughput drops from 128 queue pairs on, with 128 requests each: 128 × 128 × 64 B. cx4lx, cx5 and cx6dx: assumed the same; cx3: assumed a quarter";
    wqe_ways as "nic.wqe_ways": whole "ways" 1..64 [8, 8, 8, 8, 8] "Ways of the request cache"
        "Assumed";
    icm_entries as "nic.icm": whole "entries" 0..16777216 [400, 2048, 2048, 2048, 2048] "Queue-pair contexts on the chip; 0 is unlimited"
        "Calibrated: RaaS VI-A, throughput drops beyond 400 queue pairs; Weir II-B, misses only beyond 2 Ki. cx4lx, cx5 and cx6dx: assumed as cx6";
    icm_ways as "nic.icm_ways": whole "ways" 1..64 [8, 8, 8, 8, 8] "Ways of the context cache"
        "Assumed";
    mtt_entries as "nic.mtt": whole "entries" 0..16777216 [1024, 2048, 4096, 2048, 4096] "Address translations on the chip; 0 is unlimited"
        "Assumed: no size was published; cx4lx: as cx5; cx6dx: as cx6";
    mtt_ways as "nic.mtt_ways": whole "ways" 1..64 [8, 8, 8, 8, 8] "Ways of the translation cache"
        "Assumed";
    mpt_entries as "nic.mpt": whole "entries" 0..16777216 [512, 1024, 2048, 1024, 2048] "Protections on the chip; 0 is unlimited"
        "Assumed: no size was published; cx4lx: as cx5; cx6dx: as cx6";
    mpt_ways as "nic.mpt_ways": whole "ways" 1..64 [8, 8, 8, 8, 8] "Ways of the protection cache"
        "Assumed";
    write_order_bytes as "nic.write_order": whole "B" 0..1073741824 [0, 0, 0, 0, 0] "Length up to which the RNIC promises to place the bytes of a WRITE in the order of their addresses; 0 promises nothing"
        "No specification promises an order. RB² found none on its ConnectX-5; RDMA Communication Patterns 4.1 relies on one there; cx4lx and cx6dx: nothing is promised";
    max_reads as "nic.max_reads": whole "requests" 1..255 [16, 16, 16, 16, 16] "READs and atomics outstanding of a queue pair"
        "perftest, `ibv_devinfo -v`: 16 on cx3, cx5 and cx6; cx4lx and cx6dx: assumed the same";
    max_inline as "nic.max_inline": whole "B" 0..4096 [220, 220, 220, 220, 220] "Longest inline payload"
        "perftest's own default for WRITEs; drivers allow up to about 1 KB";
    tx_buffer_kib as "nic.tx_buffer": number "KiB" 1..65536 [64, 128, 128, 32, 128] "Buffer on the chip for bytes that wait for a link"
        "Assumed: about 10 µs of the link";
    burst_packets as "nic.burst": whole "packets" 1..1024 [4, 4, 4, 4, 4] "Packets of a message that are sent before another queue pair's turn"
        "Assumed";
    link_gbps as "link.rate": number "Gbit/s" 0.1..10000 [40, 100, 100, 25, 100] "Rate of a link in one direction"
        "RaaS VI (40 Gbit/s), RB² V-A (EDR), Weir V-A (100 Gbit/s); cx4lx and cx6dx: the cards of their names";
    ports as "link.ports": whole "ports" 1..8 [1, 1, 1, 2, 2] "Ports of a host, each with a link in each direction; queue pairs use them in turn"
        "The papers use one port of each RNIC; cx4lx and cx6dx: the cards of their names";
    header_bytes as "link.header": whole "B" 0..1000 [94, 26, 82, 82, 82] "Headers and gaps of a packet"
        "InfiniBand specification, volume 1, and its annex A17: cx3 is RoCE version 1 with Ethernet's preamble and gap, cx5 InfiniBand, cx4lx, cx6 and cx6dx RoCE version 2 with preamble and gap";
    reth_bytes as "link.reth": whole "B" 0..1000 [16, 16, 16, 16, 16] "Additional header of the first packet of a WRITE or READ"
        "InfiniBand specification, volume 1, 9.3.2";
    ack_bytes as "link.ack": whole "B" 1..1000 [98, 30, 86, 86, 86] "Size of an acknowledgement"
        "As `link.header`, plus 4 B (InfiniBand specification, volume 1, 9.3.5)";
    mtu_bytes as "link.mtu": whole "B" 256..4096 [1024, 4096, 4096, 1024, 4096] "Maximum payload of a packet, unless the program sets less"
        "cx3 and cx4lx: what fits into Ethernet's 1,500 B; cx5: RDMA Communication Patterns, 5; cx6: assumed; cx6dx: as cx6";
    propagation_ns as "link.propagation": number "ns" 0..1000000 [15, 15, 65, 15, 65] "Latency of a cable, including the coding at its ends"
        "3 m at 5 ns/m; cx6 with 50 ns of error correction: assumed, below the 100 ns that IEEE 802.3bj aims at †; cx4lx without error correction, which cables of up to 3 m can do without at 25 Gbit/s (IEEE 802.3by †); cx6dx: as cx6";
    switch_ns as "link.switch": number "ns" 0..1000000 [300, 90, 300, 300, 300] "Latency of the switch"
        "Product briefs: SN2000 300 ns (Ethernet), SB7890 90 ns (InfiniBand) †";
    host_cache_kib as "host.cache": whole "KiB" 0..4194304 [0, 0, 0, 20480, 61440] "Last-level cache of a host; 0 leaves out the memory of hosts"
        "cx4lx: Jet 2.2 (20 MB of a Xeon E5); cx6dx: derived from Jet 1, 12 MB are 20 % of the cache";
    host_dma_kib as "host.dma_cache": whole "KiB" 0..4194304 [0, 0, 0, 4096, 6144] "Part of the last-level cache in which DMA allocates lines"
        "Jet 2.1: 4 MB and 6 MB";
    host_isolated as "host.isolated": bool "0 or 1" [false, false, false, false, false] "Whether processors do not allocate lines in that part, as with Intel's CAT"
        "Jet 5 isolates it, the baseline does not";
    host_memory as "host.memory": number "GB/s" 0.1..100000 [60, 60, 60, 60, 250] "Bandwidth of a host's memory"
        "Jet 2.1: about 60 GB/s are close to the capacity, and 250 GB/s. The others: as cx4lx, and of no effect without a cache";
    host_rnic_share as "host.rnic_share": number "%" 0.1..100 [5.47, 5.47, 5.47, 5.47, 5.47] "Smallest share of the memory's bandwidth that the RNIC gets"
        "Fitted on cx4lx to Jet 2.1: 43.2 % less throughput at 1 MiB than at 64 KiB";
    host_antagonist as "host.antagonist": number "GB/s" 0..100000 [0, 0, 0, 0, 0] "Bandwidth that an antagonist on each host would use alone"
        "Jet 2.1: `membw` takes all of it if it is alone; its rate is set by the experiment";
    host_posted_lines as "host.posted_lines": whole "lines" 0..65536 [0, 0, 0, 92, 184] "Lines of the RNIC's writes that are under way on the host; 0 is unlimited"
        "cx4lx: Vuppalapati et al., Understanding the Host Network, SIGCOMM 2024 †; cx6dx: assumed twice as many, for twice the lanes' rate";
    host_posted_ns as "host.posted_time": number "ns" 0..100000 [300, 300, 300, 300, 300] "Time for which a line that the RNIC writes is under way on the host"
        "Vuppalapati et al., Understanding the Host Network, SIGCOMM 2024 †";
    host_line_ns as "host.line_time": number "ns" 0..100000 [90, 90, 90, 90, 90] "Latency of a line from idle memory"
        "Assumed, usual for servers with two sockets";
    host_loaded_ns as "host.loaded_line_time": number "ns" 0..100000 [270, 270, 270, 270, 270] "Latency of a line from saturated memory"
        "Assumed: three times that of idle memory";
    host_core_lines as "host.core_lines": whole "lines" 1..1024 [10, 10, 10, 10, 12] "Lines that a core waits for at a time"
        "Line fill buffers of a core: 10 to 12 †";
    straggler_share as "host.straggler_share": number "%" 0..100 [0, 0, 0, 0, 0] "Share of the messages of a storage server that are stragglers: they stay in memory for `host.straggler_time`"
        "None, unless an experiment injects them. The model does not apply it; an actor that stands for a storage server does";
    straggler_us as "host.straggler_time": number "µs" 0..10000000 [10000, 10000, 10000, 10000, 10000] "Time for which a straggler stays in memory after it has arrived"
        "Assumed: five times the straggler time of the receive pool, and far longer than the hundreds of microseconds of Jet 2.2";
    rx_buffer_kib as "nic.rx_buffer": number "KiB" 0..1048576 [0, 0, 0, 255.875, 1024] "Buffer on the chip for packets that arrived; 0 is unlimited"
        "cx4lx: 262,016 B (NVIDIA's community note DOC-2933); cx6dx: assumed four times as much, for four times the rate";
    rx_pause_kib as "nic.rx_pause": number "KiB" 0..1048576 [0, 0, 0, 244, 0] "Content of that buffer at which the RNIC pauses the switch's port (PFC); 0 never pauses"
        "Linux's driver mlx5, port_buffer.c: the buffer less (301 + 2.16 × metres) × Gbit/s + 2.72 × MTU bytes; cx6dx: Jet 2.1, no PFC";
    rx_resume_kib as "nic.rx_resume": number "KiB" 0..1048576 [0, 0, 0, 234, 0] "Content of that buffer at which the RNIC resumes the switch's port"
        "Linux's driver mlx5, port_buffer.c: the longest packet less than that at which it pauses";
    rx_notify_kib as "nic.rx_notify": number "KiB" 0..1048576 [0, 0, 0, 0, 128] "Content of that buffer beyond which the RNIC notifies senders (CNP); 0 never notifies"
        "cx6dx: Jet 2.1, the RNIC notifies at a watermark of its buffer; an eighth of it is assumed";
    switch_buffer_kib as "switch.buffer": number "KiB" 0..16777216 [0, 0, 0, 2048, 4096] "Buffer of the switch for the packets to one port; 0 is unlimited"
        "Assumed: a share of the 16 to 32 MB of a switch";
    switch_pause_kib as "switch.pause": number "KiB" 0..16777216 [0, 0, 0, 1024, 0] "Length of that queue at which the switch pauses the link that a packet came on (PFC); 0 never pauses"
        "Assumed; cx6dx: Jet 2.1, no PFC";
    switch_resume_kib as "switch.resume": number "KiB" 0..16777216 [0, 0, 0, 960, 0] "Length of that queue at which the switch resumes that link"
        "Assumed";
    switch_mark_kib as "switch.mark_from": number "KiB" 0..16777216 [0, 0, 0, 100, 400] "Length of that queue from which the switch marks packets (ECN)"
        "Li et al., HPCC, SIGCOMM 2019 †: 100 KB for each 25 Gbit/s";
    switch_mark_all_kib as "switch.mark_all": number "KiB" 0..16777216 [0, 0, 0, 400, 1600] "Length of that queue from which the switch marks all packets; 0 marks none"
        "Li et al., HPCC, SIGCOMM 2019 †: 400 KB for each 25 Gbit/s";
    switch_mark_share as "switch.mark_share": number "%" 0..100 [0, 0, 0, 20, 20] "Share of the packets that the switch marks just below that length"
        "Li et al., HPCC, SIGCOMM 2019 †";
    dcqcn as "dcqcn.on": bool "0 or 1" [false, false, false, true, true] "Whether notifications lower the rates of queue pairs (DCQCN)"
        "Jet 2.1: both networks run DCQCN";
    dcqcn_notify_us as "dcqcn.notify_time": number "µs" 0..1000000 [50, 50, 50, 50, 4] "Least time between two notifications about a queue pair"
        "Zhu et al., SIGCOMM 2015; cx6dx: the default of newer adapters †";
    dcqcn_alpha_us as "dcqcn.alpha_time": number "µs" 1..1000000 [55, 55, 55, 55, 55] "Time without a notification after which the estimate of congestion decays"
        "Zhu et al., SIGCOMM 2015";
    dcqcn_gain as "dcqcn.gain": number "1/256" 0.1..256 [1, 1, 1, 1, 1] "Weight of a notification in that estimate"
        "Zhu et al., SIGCOMM 2015: 1/256";
    dcqcn_rise_us as "dcqcn.rise_time": number "µs" 1..1000000 [55, 55, 55, 55, 55] "Time after which a rate rises by a step"
        "Zhu et al., SIGCOMM 2015";
    dcqcn_rise_mb as "dcqcn.rise_bytes": number "MB" 0.001..1000000 [10, 10, 10, 10, 10] "Bytes after which a rate rises by a step"
        "Zhu et al., SIGCOMM 2015";
    dcqcn_step_mbps as "dcqcn.step": number "Mbit/s" 0.1..1000000 [40, 40, 40, 40, 40] "Step by which a rate rises beyond the rate before the cut"
        "Zhu et al., SIGCOMM 2015 †";
    dcqcn_lowest_mbps as "dcqcn.lowest": number "Mbit/s" 0.1..1000000 [100, 100, 100, 100, 100] "Lowest rate of a queue pair"
        "Assumed; drivers allow less";
}

impl Preset {
    /// Returns the rate of all links of a host in one direction, in Gbit/s.
    pub fn all_links_gbps(&self) -> f64 {
        self.link_gbps * self.ports as f64
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_presets_with_several_ports_say_so() {
        for name in Preset::NAMES {
            let preset = Preset::named(name).expect("a preset");
            let ports = if name.contains("-2x") { 2 } else { 1 };
            assert_eq!(preset.ports, ports, "{name}");
            let rate = format!("{}g", preset.link_gbps);
            assert!(name.ends_with(&rate), "{name}");
        }
        let ports = Preset::constant("link.ports").expect("a constant");
        assert_eq!(ports.highest, PORTS_MAX as f64, "every port has a name");
    }

    #[test]
    fn constants_are_set_by_key_and_within_bounds() {
        let mut preset = Preset::named("cx5-100g").expect("a preset");
        preset.set("pcie.read", "700.5").expect("legal");
        assert_eq!(preset.dma_read_ns, 700.5);
        for wrong in ["-1", "x", "", "1e9", "nan"] {
            let said = preset.set("pcie.read", wrong).expect_err(wrong).to_string();
            assert!(
                said.contains("pcie.read") && said.contains("0 to 100000"),
                "{said}"
            );
        }
        assert!(preset.set("nic.magic", "1").is_err());
        let said = preset.set("nic.icm", "2.5").expect_err("half a context");
        assert!(said.to_string().contains("a whole number"), "{said}");
        assert!(Preset::named("cx9").is_none());
    }

    #[test]
    fn a_setting_is_read_as_it_is_written() {
        let setting: Setting = "nic.icm=4096".parse().expect("legal");
        assert_eq!(setting.to_string(), "nic.icm=4096");
        let mut preset = Preset::named("cx5-100g").expect("a preset");
        preset.apply(&setting);
        assert_eq!(preset.icm_entries, 4096);
        for wrong in ["nic.icm", "=1", "nic.icm=", "nic.icm=1=2"] {
            assert!(wrong.parse::<Setting>().is_err(), "{wrong}");
        }
    }

    #[test]
    fn every_constant_says_where_it_comes_from() {
        for constant in CONSTANTS {
            assert!(!constant.source.is_empty(), "{}", constant.key);
            assert!(!constant.source.contains('|'), "{}", constant.key);
        }
    }

    #[test]
    fn keys_are_unique_and_values_are_within_their_bounds() {
        for name in Preset::NAMES {
            let mut preset = Preset::named(name).expect("a preset");
            let values = preset.values();
            for (constant, value) in &values {
                preset
                    .set(constant.key, &value.to_string())
                    .expect("within bounds");
                let same = values.iter().filter(|(other, _)| other.key == constant.key);
                assert_eq!(same.count(), 1, "{}", constant.key);
            }
            assert_eq!(Preset::named(name), Some(preset));
        }
    }
}
