//! Fuzz targets. Each feeds hostile data to code that reads what another process wrote: shared memory, a file
//! of the registry, or a stream. The code must not panic, crash, loop for ever, or access memory that is not
//! this process's.
//!
//! # Readers and their targets
//!
//! | data that a peer writes | code that reads it | target |
//! |---|---|---|
//! | a memory file: size, seals, header | `shm::segment` | `segment` |
//! | a queue's head, tail, slot words and values, also while this process uses the queue | `shm::slot_queue` | `slot_queue` |
//! | cursors; offsets and lengths into a view | `shm::cursor`, `shm::view` | `cursors` |
//! | the state that the processes of a paced RNIC share: clock, rate, rows, blocks, name and constants | `pacing::shared_state` | `pacing_share` |
//! | files and sockets of the registry | `shm::registry` (contexts, names, common segments) | `registry` |
//! | a context's table: rows of queue pairs, CQs, SRQs, regions, segments; `full_fences` | `softnic::table::peer`, `softnic::datapath::mr_key_check`, `softnic::datapath::qp::remote_qp` | `softnic_peer` |
//! | receive queues and CQs in the peer's memory | `softnic::datapath::qp::deliver`, `softnic::datapath::cq` | `softnic_peer` |
//! | entries that the peer puts into this process's queues, and words of this process's rows (`life`, `executing`, `armed`, `overrun`, `limit`, …) | `softnic::datapath::cq`, `softnic::datapath::srq`, `softnic::datapath::qp`, `softnic::table::initiator`, `shm::event_count` | `softnic_peer` |
//! | the location of a peer's bounce buffer, and the call in it | `softnic::datapath::bounce` (`ServedBounceBuffer`), `softnic::control::bounce_service`, on behalf of the memory's owner | `softnic_bounce` |
//! | the answer to a call, and the fetched bytes | `softnic::datapath::bounce` (`BounceBuffer::answer`), `softnic::datapath::qp::engine::bounce_call` | `softnic_bounce` |
//! | rows of the senders of datagrams to this context, and their number; their marks in this process's receive queues and CQs | `softnic::datapath::datagram_senders`, `softnic::datapath::qp::dead_senders`, `softnic::table::initiator`, `shm::slot_queue` (`recover`, `SingleProducer`) | `softnic_datagrams` |
//! | a datagram destination's queue pairs, receives and CQs; this process's sender row there | `softnic::datapath::qp::datagram`, `softnic::datapath::qp::deliver` | `softnic_datagrams` |
//! | the header at the start of a datagram's receive | `verbs::datagram` (`Grh::parse`) | `datagram_header` |
//! | any context's record and table, and the queues that it leads to | `softnic::inspect`, `shm::slot_queue` (`len_hint_at`) | `softnic_inspect` |
//! | a context's record, and the table that it leads to | `softnic::table::peer` (`Peer::attach`) | `softnic_record` |
//! | the bytes of a bring-up | `verbs::bringup`, `net::control_stream` | `bring_up` |
//! | frames and messages of a control stream | `net::framing`, `net::control_stream` | `line_frames` |
//! | a control stream's messages over a queue pair, and the numbers that they carry | `net::qp_stream` (`QpStream`) | `qp_stream` |
//! | the greeting of a paper design; its cursors, headers, immediates | `baselines::paper_baselines` (`setup`, `sender`, `receiver`) | `baseline_peer` |
//! | the bring-up of a requester, a responder or a dispatcher; its mailboxes, flags and messages | `patterns::bring_up`, `patterns::verb`, `patterns::requester`, `patterns::responder`, `patterns::dispatcher` | `pattern_peer` |
//! | the greeting of a ring; its cursors, headers, laps, immediates | `ring::setup`, `ring::sender`, `ring::receiver` | `ring_peer` |
//! | the words of a group's tail array, and the completions on its completion queue | `ring::group` | `ring_group` |
//! | the control messages of a pipe | `headworks::pipe`, `headworks::blocking` | `pipe_peer` |
//! | an application's packets; the records, cursors and marks in the memory that it shares with its daemon | `client::socket_message`, `client::egress`, `client::ingress`, `client::doorbell`, `daemon::daemon` | `daemon_application` |
//! | records of an egress ring, its tail, and the way of transfer | `client::egress` (`EgressReader`), `client::control_block` | `egress_records` |
//! | the head of an ingress ring, and the states of descriptors | `client::ingress` (`IngressWriter`), `client::descriptors`, `shm::descriptor_word` | `ingress_heads` |
//! | the marks of a doorbell, and its event counts | `client::doorbell`, `shm::dirty_set`, `shm::event_count` | `doorbell_marks` |
//! | what a daemon tells an application: tails, heads, rings, descriptors, status | `client::ingress` (`IngressReader`), `client::egress` (`EgressWriter`), `client::control_block` | `daemon_memory` |
//! | the memory of a pair: tails, heads, rings, status, changes of path, event counts and wake sets of a direct connection | `client::direct`, `client::connection`, `client::ingress`, `client::wake_set` | `direct_memory` |
//! | another daemon's messages and frames, also those about the receive pool | `daemon::control`, `daemon::frame`, `daemon::daemon::handshake`, `daemon::domain::receive` | `daemon_peer` |
//! | a device's name, from a command line, a file or another process | `verbs::device_name`, the providers | `device_name` |
//! | a capture file, from any program | `workloads::apps::flows` (`pcap`, `packet`) | `pcap_trace` |
//! | an HTTP request or response | `workloads::apps::http` | `http_request` |
//! | a plan of request and response patterns, and the names in it | `workloads::patterns` (`plan`, `design`) | `pattern_plan` |
//!
//! Three readers have no target. Two hosts that connect over RDMA exchange eight bytes; the tests of
//! `ibverbs::cm` feed its `Greeting` other bytes. `runtime::processes::protocol`, which parses the messages
//! between a coordinator and an actor's process, is private; its own tests feed it any bytes. `shm::lane` and
//! `shm::biased_lock` are not shared with other processes.
//!
//! # How the targets run
//!
//! A target is a function over bytes ([`Target::run`]). [`input`] splits the bytes into choices and values.
//! [`runner`] runs the target on its committed corpus (`corpus/TARGET/`), then on inputs that [`mutate`]
//! generates from the corpus with a seed. [`harness`] makes the target a test. The test runs the target in a
//! child process, so that it can report a crash, a hang, or a panic in any thread. The report has the input
//! and the command that repeats the failure. [`coverage`] serves runs that search for new inputs; see
//! CONTRIBUTING.md.
//!
//! # Why not an existing fuzzer
//!
//! bolero, the usual front end, was tried. It builds on the stable compiler in half a minute and replays a
//! corpus in `cargo test`. Its disadvantages here:
//!
//! - It takes its random seeds from the system, so no two runs are the same.
//! - It generates inputs from nothing instead of from the corpus.
//! - It notices neither a hang nor a panic in another thread, and devices have a thread.
//! - A crash ends the test, and the input is lost.
//! - It adds seventeen packages to the lock file, one of them a second version of a package that is there.
//!   A guided run also needs an installed command.
//!
//! proptest, which the crates' own tests use, has no corpus of bytes and no guidance. The parts that are
//! needed of either are the few hundred lines beside this file. Targets are plain functions over bytes, so
//! both could run them later.

pub mod coverage;
pub mod harness;
pub mod input;
pub mod mutate;
pub mod runner;
mod targets;

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

pub use targets::TARGETS;

/// Default seed of generated inputs.
pub const SEED: u64 = 1;

/// A fuzz target.
#[derive(Debug)]
pub struct Target {
    /// Name of the target, and of its folder in `corpus/`.
    pub name: &'static str,
    /// Description of the data that the target reads, for the list of targets.
    pub about: &'static str,
    /// Runs the target on one input. Panics if the code under test misbehaves.
    pub run: fn(&[u8]),
    /// Maximum length of a generated input, in bytes.
    pub longest: usize,
    /// Number of generated inputs in an ordinary test; they take about a second.
    pub inputs: u64,
}

impl Target {
    /// Reads the committed inputs. Returns them with their file names, sorted by name.
    pub fn corpus(&self) -> io::Result<Vec<(String, Vec<u8>)>> {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("corpus");
        let mut files: Vec<PathBuf> = fs::read_dir(folder.join(self.name))?
            .map(|entry| entry.map(|entry| entry.path()))
            .collect::<io::Result<_>>()?;
        files.sort();
        let name = |file: &Path| {
            file.file_name()
                .map(|name| name.to_string_lossy().into_owned())
        };
        files
            .iter()
            .map(|file| Ok((name(file).unwrap_or_default(), fs::read(file)?)))
            .collect()
    }
}

/// Returns the target called `name`.
pub fn target(name: &str) -> Option<&'static Target> {
    TARGETS.iter().find(|target| target.name == name)
}

/// Returns the FNV-1a hash of an input, which names its file.
fn hash(bytes: &[u8]) -> u64 {
    bytes.iter().fold(0xcbf2_9ce4_8422_2325, |hash, byte| {
        (hash ^ u64::from(*byte)).wrapping_mul(0x0000_0100_0000_01b3)
    })
}
