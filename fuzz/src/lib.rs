//! Fuzz targets: whatever a peer wrote, into shared memory, a file of the registry or a stream, is
//! read without a panic, a crash, an endless loop or an access to memory that is not ours.
//!
//! # Readers and their targets
//!
//! | what a peer writes | who reads it | target |
//! |---|---|---|
//! | a memory file: size, seals, header | `shm::segment` | `segment` |
//! | a queue's head, tail, slot words and values, also while we use it | `shm::slot_queue` | `slot_queue` |
//! | cursors; offsets and lengths into a view | `shm::cursor`, `shm::view` | `cursors` |
//! | what the processes of a paced RNIC share: clock, rate, rows, blocks, name and constants | `pacing::shared_state` | `pacing_share` |
//! | files and sockets of the registry | `shm::registry` (contexts, names, common segments) | `registry` |
//! | a context's table: rows of queue pairs, CQs, SRQs, regions, segments; `full_fences` | `softnic::peer`, `softnic::mr_key_check`, `softnic::qp::remote_qp` | `softnic_peer` |
//! | receive queues and CQs in the peer's memory | `softnic::qp::deliver`, `softnic::cq` | `softnic_peer` |
//! | what it puts into our queues, and the words of our own rows (`life`, `executing`, `armed`, `overrun`, `taken`, `limit`, …) | `softnic::cq`, `softnic::srq`, `softnic::qp`, `softnic::quarantine`, `shm::bell` | `softnic_peer` |
//! | the header of a call through a window, and where that is | `softnic::bounce` (`serve`), in the name of the memory's owner | `softnic_bounce` |
//! | the answer to a call, what was fetched | `softnic::bounce` (`WriteWindow::answer`), `softnic::qp::engine` (`ask`) | `softnic_bounce` |
//! | rows of who sends datagrams here, how many there are; marks in our receive queues and CQs | `softnic::datagram_senders`, `softnic::quarantine`, `shm::slot_queue` (`recover`, `SingleProducer`) | `softnic_datagrams` |
//! | queue pairs of datagrams, receives and CQs of a destination; our row there | `softnic::qp::datagram`, `softnic::qp::deliver` | `softnic_datagrams` |
//! | a datagram's header, in the receive | `verbs::datagram` (`Grh::parse`) | `datagram_header` |
//! | any context's record and table, and the queues that it leads to | `softnic::inspect`, `shm::slot_queue` (`len_hint_at`) | `softnic_inspect` |
//! | a context's record, and the table that it leads to | `softnic::peer` (`Peer::attach`) | `softnic_record` |
//! | the bytes of a bring-up | `verbs::bringup`, `net::line` | `bring_up` |
//! | frames and control messages of a line | `net::framing`, `net::line` | `line_frames` |
//! | a line's messages over a queue pair, and the numbers that they carry | `net::qp_stream` (`QpStream`) | `qp_stream` |
//! | the greeting of a rival design; its cursors, headers, immediates | `baselines::paper_baselines` (`setup`, `sender`, `receiver`) | `baseline_peer` |
//! | the greeting of a ring; its cursors, headers, laps, immediates | `ring::setup`, `ring::sender`, `ring::receiver` | `ring_peer` |
//! | the words of a group's board, and what comes on its completion queue | `ring::group` | `ring_group` |
//! | the words of a pipe | `headworks::pipe`, `headworks::blocking` | `pipe_peer` |
//! | an application's packets; the records, cursors and marks in the memory that it shares with its daemon | `client::socket_message`, `client::egress`, `client::ingress`, `client::doorbell`, `daemon::daemon` | `daemon_application` |
//! | another daemon's messages and frames | `daemon::control`, `daemon::frame`, `daemon::daemon::handshake`, `daemon::domain::receive` | `daemon_peer` |
//! | a device's name | `verbs::device_name`, the providers | `device_name` |
//! | nobody of ours: a capture file | `workloads::apps::flows` (`pcap`, `packet`) | `pcap_trace` |
//! | a request or response of HTTP | `workloads::apps::http` | `http_request` |
//!
//! Not here: what is said while two hosts meet over RDMA is eight bytes, read by `ibverbs::cm` (`Greeting`),
//! whose own tests feed it others. `shm::lane` and `shm::biased_lock` are not shared with other processes. What a coordinator and
//! the process of a part say to each other is parsed by a private module, `runtime::processes::protocol`,
//! whose own tests feed it any bytes.
//!
//! # How they run
//!
//! A target is a function over bytes, [`Target::run`]; [`input`] takes the bytes apart. [`runner`] runs
//! it on the committed corpus (`corpus/TARGET/`), then on inputs made from that ([`mutate`]) by a
//! seed. [`harness`] makes it a test: a process of its own, so that a crash, a hang or a panic in any
//! thread is told with the input and the command that does it again. [`coverage`] is for runs that
//! look for new inputs; CONTRIBUTING.md says how.
//!
//! # Why a driver of our own
//!
//! The usual front end, bolero, was tried. It builds on the stable compiler in half a minute and replays
//! a corpus in `cargo test`, but takes its random seeds from the system, so that no two runs are
//! the same; it makes inputs from nothing instead of from the corpus; it does not see a hang, nor a
//! panic of another thread (devices have one); a crash takes the test with it, input and all; and it
//! brings seventeen packages into the lock file, a second version of one that is there, and for a
//! guided run a command to be installed. proptest, which the crates' own tests use, has no corpus
//! of bytes and no guidance. All that is wanted from either are the few hundred lines beside this
//! file, and since targets are plain functions over bytes, both could drive them any day.

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

/// Where made inputs begin unless somebody says otherwise.
pub const SEED: u64 = 1;

/// Something to be fuzzed.
#[derive(Debug)]
pub struct Target {
    /// Its name; its corpus is in the folder of that name.
    pub name: &'static str,
    /// What it reads.
    pub about: &'static str,
    /// Does it all with one input; panics if something is wrong.
    pub run: fn(&[u8]),
    /// Longest input made, in bytes.
    pub longest: usize,
    /// Inputs made when it runs as an ordinary test: about a second of them.
    pub inputs: u64,
}

impl Target {
    /// The committed inputs, by the names of their files.
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

/// The target called `name`.
pub fn target(name: &str) -> Option<&'static Target> {
    TARGETS.iter().find(|target| target.name == name)
}

/// FNV-1a, to name an input by.
fn hash(bytes: &[u8]) -> u64 {
    bytes.iter().fold(0xcbf2_9ce4_8422_2325, |hash, byte| {
        (hash ^ u64::from(*byte)).wrapping_mul(0x0000_0100_0000_01b3)
    })
}
