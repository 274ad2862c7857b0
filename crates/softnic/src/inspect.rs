//! A look at a live fabric from outside: its hosts, processes, queue pairs and what they count.
//!
//! [`look`] reads the tables of other processes where they lie, through mappings that cannot be
//! written to. It joins nothing, wakes nobody, and makes no registry. What it reads may change
//! while it is read, and may be anything at all where a process is broken: every length is
//! bounded, every number is only a number, and rows that changed hands meanwhile are left out.

use std::collections::HashMap;
use std::time::Duration;

use headworks_shm::segment::LAYOUT_VERSION;
use headworks_shm::{ContextRecord, HostKey, Registry, RegistryError, SharedSegment};
use headworks_verbs::{CqCounters, QpCounters, QpState, QpType};

use crate::table::Table;

mod rows;

/// What [`look`] saw.
#[derive(Clone, Debug, Default)]
pub struct RegistrySnapshot {
    /// The contexts, by host and index.
    pub contexts: Vec<ContextSnapshot>,
    /// Contexts that are there and could not be looked at.
    pub unreadable: Vec<Unreadable>,
}

/// A context that is there and could not be looked at.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Unreadable {
    /// Its soft host.
    pub host: String,
    /// Its process.
    pub pid: u32,
    /// Why, in one line.
    pub why: String,
}

/// A context: a device that a process has opened.
#[derive(Clone, Debug)]
pub struct ContextSnapshot {
    /// Its soft host. Written by its process: it may hold any characters.
    pub host: String,
    /// Which context of that host.
    pub index: u16,
    /// Tells it from others that have had the same index.
    pub incarnation: u64,
    /// Its process.
    pub pid: u32,
    /// When that started, in clock ticks since boot: tells it from others that have had its id.
    pub start_time: u64,
    /// The name of the process's command. Any characters.
    pub command: String,
    /// How long the process has been running.
    pub age: Duration,
    /// Queue pairs.
    pub queue_pairs: Vec<QueuePairCensus>,
    /// Completion queues.
    pub completion_queues: Vec<CompletionQueueCensus>,
    /// Shared receive queues.
    pub shared_receive_queues: Vec<SharedReceiveQueueCensus>,
    /// Registered regions.
    pub regions: Held,
    /// Shared-memory segments, in which queues and buffers are.
    pub segments: Held,
}

/// How many, and how many bytes together.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Held {
    /// Number of objects.
    pub count: u64,
    /// Bytes.
    pub bytes: u64,
}

impl Held {
    fn add(&mut self, bytes: u64) {
        self.count += 1;
        self.bytes = self.bytes.saturating_add(bytes);
    }
}

/// A queue pair.
#[derive(Clone, Debug)]
pub struct QueuePairCensus {
    /// Its number.
    pub qpn: u32,
    /// Its transport.
    pub qp_type: QpType,
    /// Its state.
    pub state: QpState,
    /// What it is connected to, from RTR on.
    pub peer: Option<PeerCensus>,
    /// Where its sends complete.
    pub send_cq: u32,
    /// Where its receives complete.
    pub recv_cq: u32,
    /// Where its receives come from, if not from a queue of its own.
    pub srq: Option<u32>,
    /// What it has done.
    pub counters: QpCounters,
}

/// The other end of a queue pair.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PeerCensus {
    /// The number of the queue pair there.
    pub qpn: u32,
    /// The context there, if it is alive: its soft host and its process.
    pub at: Option<(String, u32)>,
}

/// A completion queue.
#[derive(Clone, Debug)]
pub struct CompletionQueueCensus {
    /// Its number.
    pub id: u32,
    /// Completions it holds at most.
    pub depth: u64,
    /// Whether it has a completion channel.
    pub has_channel: bool,
    /// Whether the next completion, or solicited one, puts an event into that.
    pub armed: bool,
    /// What it has seen.
    pub counters: CqCounters,
}

/// A shared receive queue.
#[derive(Clone, Debug)]
pub struct SharedReceiveQueueCensus {
    /// Its number.
    pub id: u32,
    /// Receives posted, ever.
    pub posted: u64,
    /// Receives that wait to be taken.
    pub waiting: u64,
    /// Fewer receives than this left raise the limit event; 0 where that is not armed.
    pub limit: u32,
}

/// Looks at the contexts of `host`, or of all hosts. No fabric, or nobody in it, is an empty census.
pub fn look(fabric: &Registry, host: Option<&str>) -> Result<RegistrySnapshot, RegistryError> {
    let all = fabric.list_contexts()?;
    let names: Names = all
        .iter()
        .map(|(key, index, record)| {
            let at = (record.host_name.clone(), record.process.pid);
            ((key.0, *index), at)
        })
        .collect();
    let mut census = RegistrySnapshot::default();
    for (key, index, record) in &all {
        if host.is_some_and(|host| host != record.host_name) {
            continue;
        }
        match look_at(*index, record, &names) {
            Ok(Some(context)) => census.contexts.push(context),
            Ok(None) => {}
            Err(_) if record.process.is_ending() => {}
            // It may have been leaving: the registry forgets it before it closes anything.
            Err(_) if !is_still_there(fabric, *key, *index, record) => {}
            Err(why) => census.unreadable.push(Unreadable {
                host: record.host_name.clone(),
                pid: record.process.pid,
                why,
            }),
        }
    }
    let key = |context: &ContextSnapshot| (context.host.clone(), context.index);
    census.contexts.sort_by_key(key);
    Ok(census)
}

fn is_still_there(fabric: &Registry, host: HostKey, index: u16, record: &ContextRecord) -> bool {
    let found = fabric.lookup_context(host, index).ok().flatten();
    found.is_some_and(|found| found.incarnation == record.incarnation)
}

/// The live contexts: host key and index to host name and process id.
type Names = HashMap<(u64, u16), (String, u32)>;

/// One context; `None` if its process is dead.
fn look_at(
    index: u16,
    record: &ContextRecord,
    names: &Names,
) -> Result<Option<ContextSnapshot>, String> {
    let found = record.layout_version;
    if found != LAYOUT_VERSION {
        return Err(format!(
            "its tables have layout version {found}, this program reads version {LAYOUT_VERSION}"
        ));
    }
    let process = record.process;
    let table = process
        .open_fd_read_only(record.segment_fd)
        .map_err(|error| format!("opening its table: {error}"))?;
    let table = SharedSegment::attach_read_only(table)
        .map_err(|error| format!("attaching its table: {error}"))?;
    let table = Table::new(table.into()).ok_or("its table is too small to be one")?;
    let rows = rows::read(&table, process, names);
    // Who is dead by now is left out: nothing that was read describes anybody.
    let Some(command) = process.command().map_err(|error| error.to_string())? else {
        return Ok(None);
    };
    Ok(Some(ContextSnapshot {
        host: record.host_name.clone(),
        index,
        incarnation: record.incarnation,
        pid: process.pid,
        start_time: process.start_time,
        command,
        age: process.age(),
        queue_pairs: rows.queue_pairs,
        completion_queues: rows.completion_queues,
        shared_receive_queues: rows.shared_receive_queues,
        regions: rows.regions,
        segments: rows.segments,
    }))
}

#[cfg(test)]
pub(crate) mod tests;
