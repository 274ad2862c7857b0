//! Devices, queue pairs and memory of both hosts, all in one process.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use headworks::verbs::bringup::ConnectionParams;
use headworks::verbs::{
    AllocRequest, BringUp, Completion, CompletionQueue, Device, DeviceName, Pages, Payload, QpCaps,
    QueuePair, RemoteAddr, SendFlags, SendOp, SendWr, Sge,
};
use headworks_baselines::{End, EndSizes, WordMemory};

use super::receive_memory::{MESSAGE_MAX, MemoryKind, PIECES_MAX, Piece};
use crate::error::{Result, WorkloadError};
use crate::huge_pages::HugePages;
use crate::nic::requester::polled;

/// Value of every word that is sent.
pub(super) const WORD: u64 = 0x0123_4567_89ab_cdef;
/// Bytes of an ordinary page.
const PAGE: usize = 4096;
/// The device option that switches off stores that bypass the caches.
const NON_TEMPORAL: &str = "non_temporal";

/// One end of a connection: posts requests and waits for them.
pub(super) struct Requests {
    qp: Box<dyn QueuePair>,
    cq: Arc<dyn CompletionQueue>,
}

impl Requests {
    /// Posts a request for each of `pieces`, the pieces of one message, and waits until all have completed.
    #[inline]
    pub(super) fn execute(
        &mut self,
        pieces: &[Piece],
        request: impl Fn(Piece, usize) -> (SendOp, Sge),
    ) -> Result<()> {
        let mut at = 0;
        let requests: [(SendOp, [Sge; 1]); PIECES_MAX] = std::array::from_fn(|index| {
            let piece = pieces[index.min(pieces.len() - 1)];
            let (op, sge) = request(piece, at);
            at += piece.len as usize;
            (op, [sge])
        });
        let last = pieces.len() - 1;
        let wrs: [SendWr<'_>; PIECES_MAX] = std::array::from_fn(|index| SendWr {
            wr_id: index as u64,
            op: requests[index].0,
            payload: Payload::Gather(&requests[index].1),
            flags: match index == last {
                true => SendFlags::SIGNALED,
                false => SendFlags::NONE,
            },
        });
        let posted = self.qp.post_send(&wrs[..=last]);
        posted.map_err(|why| WorkloadError::at("posting", why))?;
        let mut found = [Completion::default(); PIECES_MAX];
        while polled(&*self.cq, &mut found)?.is_empty() {
            std::hint::spin_loop();
        }
        Ok(())
    }
}

/// The sending host: what it sends, and its end of a connection.
pub(super) struct Sender {
    pub(super) requests: Requests,
    /// The memory that every message comes from.
    pub(super) source: WordMemory,
    _end: End,
}

impl Sender {
    /// WRITEs one message into `pieces` of the memory at `target`, and waits until it has completed.
    #[inline]
    pub(super) fn write(&mut self, target: RemoteAddr, pieces: &[Piece]) -> Result<()> {
        let source = &self.source;
        self.requests.execute(pieces, |piece, at| {
            let remote = target.plus(piece.offset.into());
            (
                SendOp::Write(remote),
                source.sge(at % MESSAGE_MAX, piece.len as usize),
            )
        })
    }
}

/// The receiving host's end of a connection, and the memory of the sender that it READs.
pub(super) struct Fetcher {
    requests: Requests,
    source: RemoteAddr,
}

impl Fetcher {
    /// READs one message into `pieces` of `memory`, and waits until it has completed.
    #[inline]
    pub(super) fn read(&mut self, memory: &WordMemory, pieces: &[Piece]) -> Result<()> {
        let source = self.source;
        self.requests.execute(pieces, |piece, at| {
            let remote = source.plus((at % MESSAGE_MAX) as u64);
            let here = memory.sge(piece.offset as usize, piece.len as usize);
            (SendOp::Read(remote), here)
        })
    }
}

/// A connection between the hosts.
pub(super) struct Link {
    pub(super) sender: Sender,
    pub(super) fetcher: Fetcher,
}

/// Both hosts.
pub struct Hosts {
    /// The connection of the devices as they are.
    plain: Link,
    /// A connection on which the sender never bypasses the caches, if the device has that option.
    ordinary_stores: Option<Link>,
    areas: BTreeMap<(MemoryKind, bool), WordMemory>,
    receiver: End,
}

fn sizes() -> EndSizes {
    EndSizes {
        queue_pairs: 1,
        caps: QpCaps {
            max_send_wr: 2 * PIECES_MAX as u32,
            max_recv_wr: 1,
            ..QpCaps::default()
        },
        cq_depth: 4 * PIECES_MAX as u32,
        shared_receives: 0,
        channel: false,
    }
}

fn open(name: &DeviceName) -> Result<Arc<dyn Device>> {
    headworks::open(name).map_err(|why| WorkloadError::at("device", why))
}

/// Connects a sending host on the device `name` with the receiving host.
fn connect(name: &DeviceName, receiver: &mut End) -> Result<Link> {
    let shape = sizes();
    let mut end = End::open(open(name)?, &shape)?;
    end.populate(&shape)?;
    receiver.populate(&shape)?;
    let no_queue_pair = || WorkloadError("the device made no queue pair".into());
    let mut here = end.queue_pairs.pop().ok_or_else(no_queue_pair)?;
    let mut there = receiver.queue_pairs.pop().ok_or_else(no_queue_pair)?;
    let failed = |why| WorkloadError::at("connecting", why);
    let start = |device: &dyn Device, qp: &mut dyn QueuePair| {
        let params = ConnectionParams::default();
        BringUp::start(device.info(), qp, params, 1, Vec::new()).map_err(failed)
    };
    let mut one = start(&*end.device, &mut *here)?;
    let mut two = start(&*receiver.device, &mut *there)?;
    one.connect_both(&mut *here, &mut two, &mut *there)
        .map_err(failed)?;
    let source = end.memory(MESSAGE_MAX)?;
    for at in (0..MESSAGE_MAX).step_by(size_of::<u64>()) {
        source.word(at).store(WORD, Ordering::Relaxed);
    }
    let fetcher = Fetcher {
        requests: Requests {
            qp: there,
            cq: receiver.send_cq.clone(),
        },
        source: source.region().remote(0),
    };
    let sender = Sender {
        requests: Requests {
            qp: here,
            cq: end.send_cq.clone(),
        },
        source,
        _end: end,
    };
    Ok(Link { sender, fetcher })
}

impl Hosts {
    /// Opens the device of the sending host and of the receiving host, and connects them.
    pub fn open(sender: &DeviceName, receiver: &DeviceName) -> Result<Self> {
        let mut end = End::open(open(receiver)?, &sizes())?;
        let plain = connect(sender, &mut end)?;
        let without = (sender.kind() == "soft" && sender.option(NON_TEMPORAL).is_none())
            .then(|| format!("{}{NON_TEMPORAL}=no", with_comma(sender)));
        let without = without.and_then(|name| name.parse().ok());
        let ordinary_stores = without.map(|name| connect(&name, &mut end)).transpose()?;
        Ok(Self {
            plain,
            ordinary_stores,
            areas: BTreeMap::new(),
            receiver: end,
        })
    }

    /// Whether the sender can be kept from bypassing the caches.
    pub fn has_ordinary_stores(&self) -> bool {
        self.ordinary_stores.is_some()
    }

    /// Allocates and registers the memory of `kind`, on pages of 2 MiB if `is_huge`, and has both hosts touch all pages
    /// of it, so that no page fault is left for later. Does nothing if that was done before.
    ///
    /// # Errors
    ///
    /// The device has no such memory, or there are too few huge pages for all of it.
    pub fn prepare(&mut self, kind: MemoryKind, is_huge: bool) -> Result<()> {
        if self.areas.contains_key(&(kind, is_huge)) {
            return Ok(());
        }
        let len = kind.registered_bytes();
        let request = AllocRequest {
            align: PAGE,
            pages: match is_huge {
                true => Pages::PreferHuge,
                false => Pages::Ordinary,
            },
            ..AllocRequest::of(len)
        };
        let before = HugePages::here().bytes();
        let memory = self.receiver.memory_as(&request)?;
        let too_few = |got: u64| {
            let [asked, got] = [len as u64 >> 10, got >> 10];
            WorkloadError(format!(
                "{asked} KiB of huge pages are needed and {got} KiB were free (raise vm.nr_hugepages)"
            ))
        };
        memory.word(0).store(1, Ordering::Relaxed);
        // The first page shows whether there are any. Touching a GiB for nothing takes seconds.
        if is_huge && HugePages::here().bytes() == before {
            return Err(too_few(0));
        }
        for page in (0..len).step_by(PAGE) {
            memory.word(page).store(1, Ordering::Relaxed);
        }
        let got = HugePages::here().bytes().saturating_sub(before);
        if is_huge && got < len as u64 {
            return Err(too_few(got));
        }
        let links = std::iter::once(&mut self.plain).chain(&mut self.ordinary_stores);
        let target = memory.region().remote(0);
        for link in links {
            // Pieces of 4 KiB at least: the pool's memory is no multiple of a message.
            let message = MESSAGE_MAX / PIECES_MAX;
            for offset in (0..len).step_by(message) {
                let piece = Piece {
                    offset: offset as u32,
                    len: message.min(len - offset) as u32,
                };
                link.sender.write(target, &[piece])?;
            }
        }
        self.areas.insert((kind, is_huge), memory);
        Ok(())
    }

    /// Returns the memory of `kind`, if it was [prepared](Self::prepare).
    pub fn area(&self, kind: MemoryKind, is_huge: bool) -> Result<&WordMemory> {
        let memory = self.areas.get(&(kind, is_huge));
        memory.ok_or_else(|| WorkloadError(format!("the memory of {kind:?} was not prepared")))
    }

    /// Returns a connection, and the receiver's memory of `kind`.
    pub(super) fn parts(
        &mut self,
        kind: MemoryKind,
        is_huge: bool,
        bypasses_caches: bool,
    ) -> Result<(&mut Link, WordMemory)> {
        let memory = self.area(kind, is_huge)?.clone();
        let link = match bypasses_caches {
            true => Some(&mut self.plain),
            false => self.ordinary_stores.as_mut(),
        };
        let link = link.ok_or_else(|| {
            let why = "the device cannot be kept from bypassing the caches";
            WorkloadError(why.into())
        })?;
        Ok((link, memory))
    }
}

/// Returns a device's name as the start of one with more options.
fn with_comma(name: &DeviceName) -> String {
    let host = name.name().unwrap_or("h1");
    let mut text = format!("{}:{host},", name.kind());
    for (key, value) in name.options() {
        match value {
            Some(value) => text += &format!("{key}={value},"),
            None => text += &format!("{key},"),
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn options_are_added_behind_those_that_are_there() {
        for (name, longer) in [
            ("soft", "soft:h1,x=no"),
            ("soft:a", "soft:a,x=no"),
            ("soft:a,hostile,seed=7", "soft:a,hostile,seed=7,x=no"),
        ] {
            let name = name.parse().expect("a device name");
            assert_eq!(with_comma(&name) + "x=no", longer);
        }
    }
}
