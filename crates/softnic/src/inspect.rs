//! Inspection of a live fabric from outside: its hosts, processes, queue pairs and their counters.
//!
//! [`look`] reads the tables of other processes in place, through read-only mappings. It asks each process for
//! the descriptors, opens no context, and creates no registry. The tables may change while they are read, and those of a
//! broken process may hold anything. So every length is bounded, no number is trusted, and rows that changed
//! hands meanwhile are left out.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use headworks_shm::segment::LAYOUT_VERSION;
use headworks_shm::{
    ContextRecord, DescriptorClient, HostKey, ProcessId, ProcessRecord, Registry, RegistryError,
    SharedSegment,
};
use headworks_verbs::{CqCounters, QpCounters, QpState, QpType};

use crate::table::addresses::host_key;
use crate::table::descriptors::DescriptorKind;
use crate::table::rows::Table;

mod rows;

/// How long a process has to answer an observer.
const ANSWER_LIMIT: Duration = Duration::from_millis(300);

/// The result of [`look`].
#[derive(Clone, Debug, Default)]
pub struct RegistrySnapshot {
    /// The contexts, sorted by host and index.
    pub contexts: Vec<ContextSnapshot>,
    /// Contexts whose registry entry, process entry or table could not be read.
    pub unreadable: Vec<UnreadableContext>,
}

/// A context that could not be read. It may be alive.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UnreadableContext {
    /// Name of its soft host; `None` if the context's registry entry could not be read.
    pub host: Option<String>,
    /// Process id of its process, in that process's PID namespace; `None` if it is not known.
    pub pid: Option<u32>,
    /// The reason, in one line.
    pub why: String,
}

/// A context: a device that a process has opened.
#[derive(Clone, Debug)]
pub struct ContextSnapshot {
    /// Name of its soft host. Its process wrote it, so it may hold any characters.
    pub host: String,
    /// Index of the context within its soft host.
    pub index: u16,
    /// Number that tells the context from others that have had the same index.
    pub incarnation: u64,
    /// Process id of its process, in that process's PID namespace.
    pub pid: u32,
    /// Identity of its process: tells it from others that have, or have had, the same id.
    pub process: ProcessId,
    /// Name of the process's command. It may hold any characters.
    pub command: String,
    /// How long ago the process joined the registry.
    pub age: Duration,
    /// The queue pairs.
    pub queue_pairs: Vec<QueuePairSnapshot>,
    /// The completion queues.
    pub completion_queues: Vec<CompletionQueueSnapshot>,
    /// The shared receive queues.
    pub shared_receive_queues: Vec<SharedReceiveQueueSnapshot>,
    /// The registered regions.
    pub regions: CountAndBytes,
    /// The shared-memory segments, which hold queues and buffers.
    pub segments: CountAndBytes,
}

/// Number of objects, and their size together.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CountAndBytes {
    /// Number of objects.
    pub count: u64,
    /// Bytes of all objects together.
    pub bytes: u64,
}

impl CountAndBytes {
    fn add(&mut self, bytes: u64) {
        self.count += 1;
        self.bytes = self.bytes.saturating_add(bytes);
    }
}

/// A queue pair.
#[derive(Clone, Debug)]
pub struct QueuePairSnapshot {
    /// Its QPN.
    pub qpn: u32,
    /// Its transport.
    pub qp_type: QpType,
    /// Its state.
    pub state: QpState,
    /// The queue pair that it is connected to, from RTR on.
    pub peer: Option<PeerSnapshot>,
    /// Number of the CQ for its sends.
    pub send_cq: u32,
    /// Number of the CQ for its receives.
    pub recv_cq: u32,
    /// Number of its shared receive queue, if it has no receive queue of its own.
    pub srq: Option<u32>,
    /// Its counters.
    pub counters: QpCounters,
}

/// The other end of a queue pair.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PeerSnapshot {
    /// QPN of the queue pair there.
    pub qpn: u32,
    /// Soft host and process id of the context there, if it is alive.
    pub at: Option<(String, u32)>,
}

/// A completion queue.
#[derive(Clone, Debug)]
pub struct CompletionQueueSnapshot {
    /// Its number.
    pub id: u32,
    /// Maximum number of completions that it holds.
    pub depth: u64,
    /// Whether it has a completion channel.
    pub has_channel: bool,
    /// Whether the next completion, or the next solicited one, puts an event into the channel.
    pub armed: bool,
    /// Its counters.
    pub counters: CqCounters,
}

/// A shared receive queue.
#[derive(Clone, Debug)]
pub struct SharedReceiveQueueSnapshot {
    /// Its number.
    pub id: u32,
    /// Receives posted in total.
    pub posted: u64,
    /// Receives posted and not yet taken.
    pub waiting: u64,
    /// The limit event is raised when fewer receives than this are left; 0 if the limit is not armed.
    pub limit: u32,
}

/// Reads the contexts of `host`, or of all hosts. Without a fabric, or in an empty one, it finds none.
pub fn look(
    registry: &Arc<Registry>,
    host: Option<&str>,
) -> Result<RegistrySnapshot, RegistryError> {
    let listing = registry.list_contexts()?;
    let mut snapshot = RegistrySnapshot::default();
    for ((key, _), error) in listing.unreadable {
        if host.is_none_or(|host| host_key(host) == key) {
            snapshot.unreadable.push(UnreadableContext {
                host: None,
                pid: None,
                why: error.to_string(),
            });
        }
    }
    let all = listing.entries;
    let mut processes: HashMap<ProcessId, Result<Option<ProcessRecord>, String>> = HashMap::new();
    for (_, record) in &all {
        let process = record.process;
        let read = || registry.process_record(process);
        processes
            .entry(process)
            .or_insert_with(|| read().map_err(|error| error.to_string()));
    }
    let pid = |process| match processes.get(&process) {
        Some(Ok(Some(record))) => record.pid,
        _ => 0,
    };
    let names: HostNames = all
        .iter()
        .map(|((key, index), record)| {
            let at = (record.host_name.clone(), pid(record.process));
            ((key.0, *index), at)
        })
        .collect();
    for ((key, index), record) in &all {
        if host.is_some_and(|host| host != record.host_name) {
            continue;
        }
        let (pid, seen) = match processes.get(&record.process) {
            Some(Ok(Some(process))) => (
                Some(process.pid),
                look_at(registry, *index, record, process, &names),
            ),
            Some(Err(why)) => (None, Err(why.clone())),
            // A process that is dead by now is left out.
            Some(Ok(None)) | None => continue,
        };
        match seen {
            Ok(Some(context)) => snapshot.contexts.push(context),
            Ok(None) => {}
            // The context may have been leaving: its process removes the record before it closes anything.
            Err(_) if is_gone(registry, *key, *index, record) => {}
            Err(why) => snapshot.unreadable.push(UnreadableContext {
                host: Some(record.host_name.clone()),
                pid,
                why,
            }),
        }
    }
    let key = |context: &ContextSnapshot| (context.host.clone(), context.index);
    snapshot.contexts.sort_by_key(key);
    Ok(snapshot)
}

/// Returns whether a context is certainly gone. An entry that cannot be read may be there.
fn is_gone(registry: &Registry, host: HostKey, index: u16, record: &ContextRecord) -> bool {
    match registry.lookup_context(host, index) {
        Ok(found) => found.is_none_or(|found| found.incarnation != record.incarnation),
        Err(_) => false,
    }
}

/// The contexts in the registry: host key and index to host name and process id.
type HostNames = HashMap<(u64, u16), (String, u32)>;

/// Reads one context. Returns `None` if it is gone.
fn look_at(
    registry: &Arc<Registry>,
    index: u16,
    record: &ContextRecord,
    process: &ProcessRecord,
    names: &HostNames,
) -> Result<Option<ContextSnapshot>, String> {
    let found = record.layout_version;
    if found != LAYOUT_VERSION {
        return Err(format!(
            "its tables have layout version {found}, this program reads version {LAYOUT_VERSION}"
        ));
    }
    let failed = |error: RegistryError| format!("opening its table: {error}");
    let client = DescriptorClient::connect_within(registry, record.process, ANSWER_LIMIT);
    let Some(mut client) = client.map_err(failed)? else {
        return Ok(None);
    };
    let table = client.descriptors(record.incarnation, DescriptorKind::Table.into());
    let table = table
        .map_err(failed)?
        .and_then(|all| all.into_iter().next());
    // The context is closing: its process no longer hands out the table.
    let Some(table) = table else {
        return Ok(None);
    };
    let table = SharedSegment::attach_read_only(table)
        .map_err(|error| format!("attaching its table: {error}"))?;
    let table = Table::new(table.into()).ok_or("its segment is smaller than a table")?;
    let rows = rows::read(&table, &mut client, record.incarnation, names);
    // The rows of a process that is dead by now describe nothing.
    if !registry.is_alive(record.process) {
        return Ok(None);
    }
    Ok(Some(ContextSnapshot {
        host: record.host_name.clone(),
        index,
        incarnation: record.incarnation,
        pid: process.pid,
        process: record.process,
        command: process.command(),
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
