//! The fuzz targets. The crate's documentation lists the code that each one tests.

use crate::Target;

mod baseline_peer;
mod bring_up;
mod contract;
mod cursors;
mod daemon;
mod datagram_header;
mod device_name;
mod fixtures;
mod http_request;
mod line_frames;
mod pacing_share;
mod pattern_peer;
mod pattern_plan;
mod pcap_trace;
mod pipe_peer;
mod qp_stream;
mod registry;
mod ring_group;
mod ring_peer;
mod segment;
mod slot_queue;
mod softnic_inspect;
mod softnic_peer;
mod softnic_record;

/// Every fuzz target.
pub const TARGETS: &[Target] = &[
    Target {
        name: "segment",
        about: "attaching a memory file that another process made",
        run: segment::run,
        longest: 256,
        inputs: 20_000,
    },
    Target {
        name: "slot_queue",
        about: "a queue of many producers and consumers in memory that another process overwrites",
        run: slot_queue::run,
        longest: 1024,
        inputs: 20_000,
    },
    Target {
        name: "cursors",
        about: "the peer's cursors, and its offsets and lengths into a view",
        run: cursors::run,
        longest: 512,
        inputs: 50_000,
    },
    Target {
        name: "pacing_share",
        about: "the shared state of a paced RNIC, as a member and as an observer",
        run: pacing_share::run,
        longest: 1024,
        inputs: 3_000,
    },
    Target {
        name: "registry",
        about: "files of the registry that another program wrote",
        run: registry::run,
        longest: 1024,
        inputs: 2_000,
    },
    Target {
        name: "device_name",
        about: "names of devices and their options",
        run: device_name::run,
        longest: 256,
        inputs: 20_000,
    },
    Target {
        name: "datagram_header",
        about: "the header that a datagram's receive begins with",
        run: datagram_header::run,
        longest: 64,
        inputs: 50_000,
    },
    Target {
        name: "bring_up",
        about: "the other end's bytes while a queue pair is connected",
        run: bring_up::run,
        longest: 8192,
        inputs: 20_000,
    },
    Target {
        name: "line_frames",
        about: "the bytes of a control stream: bring-up, then control messages",
        run: line_frames::run,
        longest: 8192,
        inputs: 10_000,
    },
    Target {
        name: "qp_stream",
        about: "a control stream over a queue pair: messages, and the numbers that they carry",
        run: qp_stream::run,
        longest: 2048,
        inputs: 1_000,
    },
    Target {
        name: "ring_peer",
        about: "a ring's other end: greeting, cursors, headers, immediates",
        run: ring_peer::run,
        longest: 1024,
        inputs: 400,
    },
    Target {
        name: "baseline_peer",
        about: "the other end of a paper design's channel: greeting, cursors, headers, immediates",
        run: baseline_peer::run,
        longest: 1024,
        inputs: 400,
    },
    Target {
        name: "ring_group",
        about: "the other ends of a group's rings: greetings, the tail array, immediates, departures",
        run: ring_group::run,
        longest: 1024,
        inputs: 200,
    },
    Target {
        name: "pipe_peer",
        about: "the other side of a pipe: hello, ring, last messages",
        run: pipe_peer::run,
        longest: 512,
        inputs: 200,
    },
    Target {
        name: "softnic_peer",
        about: "the table and memory of a connected peer, and its writes into this process's memory",
        run: softnic_peer::run,
        longest: 1024,
        inputs: 100,
    },
    Target {
        name: "softnic_bounce",
        about: "calls and answers in bounce buffers that another process overwrites",
        run: softnic_peer::bounce,
        longest: 1024,
        inputs: 100,
    },
    Target {
        name: "softnic_datagrams",
        about: "datagrams, their senders' rows and the receives that they take",
        run: softnic_peer::datagrams,
        longest: 1024,
        inputs: 100,
    },
    Target {
        name: "softnic_record",
        about: "connecting to a fake context of the registry",
        run: softnic_record::run,
        longest: 1024,
        inputs: 100,
    },
    Target {
        name: "softnic_inspect",
        about: "inspecting a registry that has a fake context",
        run: softnic_inspect::run,
        longest: 1024,
        inputs: 50,
    },
    Target {
        name: "pcap_trace",
        about: "a capture file in pcap or pcapng, its packets and their replay",
        run: pcap_trace::run,
        longest: 1024,
        inputs: 20_000,
    },
    Target {
        name: "http_request",
        about: "an HTTP request or response",
        run: http_request::run,
        longest: 2048,
        inputs: 10_000,
    },
    Target {
        name: "pattern_peer",
        about: "the peer of a requester, a responder or a dispatcher: bring-up, mailboxes, messages",
        run: pattern_peer::run,
        longest: 1024,
        inputs: 400,
    },
    Target {
        name: "pattern_plan",
        about: "a plan of request and response patterns, and the names of its designs",
        run: pattern_plan::run,
        longest: 512,
        inputs: 5_000,
    },
    Target {
        name: "daemon_application",
        about: "a daemon whose applications send any packets and overwrite the memory that they share with it",
        run: daemon::application::run,
        longest: 1024,
        inputs: 1_500,
    },
    Target {
        name: "daemon_peer",
        about: "a daemon to which another daemon sends any control messages and frames",
        run: daemon::peer::run,
        longest: 1024,
        inputs: 1_500,
    },
    Target {
        name: "egress_records",
        about: "a daemon's reader of records, in a ring that an application overwrites",
        run: contract::egress_records::run,
        longest: 1024,
        inputs: 4_000,
    },
    Target {
        name: "ingress_heads",
        about: "a daemon's writer of received bytes, of which an application stores head and descriptor states",
        run: contract::ingress_heads::run,
        longest: 1024,
        inputs: 4_000,
    },
    Target {
        name: "doorbell_marks",
        about: "a doorbell, whose marks and event counts an application overwrites",
        run: contract::doorbell_marks::run,
        longest: 512,
        inputs: 4_000,
    },
    Target {
        name: "daemon_memory",
        about: "an application's reader and writer, in memory that its daemon overwrites",
        run: contract::daemon_memory::run,
        longest: 1024,
        inputs: 4_000,
    },
    Target {
        name: "direct_memory",
        about: "both ends of a direct connection, in memory that the other application overwrites",
        run: contract::direct_memory::run,
        longest: 1024,
        inputs: 4_000,
    },
];
