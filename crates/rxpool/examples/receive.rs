//! Sends two transfers, receives them into a pool, and processes them in slices: the program of docs/receive-pool.md.

use std::collections::HashMap;
use std::error::Error;
use std::sync::Arc;

use headworks_ring::{view_of, view_of_buffer};
use headworks_rxpool::admission::Class;
use headworks_rxpool::checksum::{PartChecksum, TransferChecksum, checksum};
use headworks_rxpool::config::PoolConfig;
use headworks_rxpool::holdings::HeldExtent;
use headworks_rxpool::jobs::{Jobs, JobsConfig, SliceBytes};
use headworks_rxpool::pool::AppLimits;
use headworks_rxpool::receiver::{Announcement, Receiver, ReceiverEvent, TransferId};
use headworks_rxpool::sender::{SendPayload, Sender, SenderConfig, Ticket};
use headworks_rxpool::slices::ExtentSlices;
use headworks_rxpool::units::UNIT;
use headworks_shm::Registry;
use headworks_softnic::SoftProvider;
use headworks_verbs::bringup::ConnectionParams;
use headworks_verbs::completion::{CompletionQueue, CqInit};
use headworks_verbs::{
    Access, AllocRequest, BringUp, Device, Instant, ProtectionDomain, Provider, QpCaps, QpInit,
    QpType, QueuePair, Region,
};

/// Bytes of a payload that is copied, and of one that is registered.
const SHORT: usize = 100_000;
const LONG: usize = 1_000_000;
/// READs in flight on the queue pair.
const DEPTH: u32 = 4;

fn main() -> Result<(), Box<dyn Error>> {
    // Any provider will do. This one needs no hardware.
    let folder = tempfile::tempdir()?;
    let provider = SoftProvider::on(Registry::open_at(folder.path().join("fabric"))?);
    let peer = Host::open(&provider, "soft:h0")?;
    let host = Host::open(&provider, "soft:h1")?;
    let (_peer_end, own_end) = connect(&peer, &host)?;

    // The sender copies short payloads into memory that is registered already. It registers the buffer of a long
    // payload. So the long payload is made in memory of the device.
    let config = SenderConfig::default();
    let mut sender = Sender::new(&*peer.device, peer.pd.clone(), &config, view_of_buffer)?;
    let bytes: Vec<u8> = (0..LONG).map(|at| (at % 251) as u8).collect();
    let long = peer.device.alloc(&AllocRequest::of(LONG))?;
    view_of_buffer(&long).write(0, &bytes)?;
    let payloads = [
        SendPayload::Bytes(&bytes[..SHORT]),
        SendPayload::Memory {
            buffer: &long,
            range: 0..LONG,
        },
    ];

    // The pool's memory is registered with local write alone: no peer gets its key.
    let config = PoolConfig {
        budget: 512 << 10,
        ..PoolConfig::default()
    };
    let len = config.memory_units() as usize * UNIT as usize;
    let memory = host.memory(len, Access::LOCAL_WRITE)?;
    let mut receiver = Receiver::new(&config, memory.clone(), host.cq.clone())?;
    let link = receiver.add_link(own_end, DEPTH);
    let app = receiver.add_app(AppLimits {
        class: Class::Normal,
        quota: config.budget_units(),
    });

    // Two threads compute checksums. The tag of a job is the extent that its slice belongs to, and the length of the
    // transfer.
    let view = view_of(&memory, 0);
    let process = |(_, len): (HeldExtent, u64), bytes: &mut SliceBytes<'_>| {
        let at = bytes.slice().at;
        PartChecksum::of(bytes.copied(), at, len)
    };
    let mut jobs = Jobs::start(JobsConfig::default(), view, process)?;

    let mut incoming: HashMap<TransferId, Incoming> = HashMap::new();
    for payload in payloads {
        let sent = sender.send(payload)?;
        // Two processes send the address, the key and the length over any connection. The checksum goes with them.
        let transfer = receiver.announce(Announcement {
            link,
            app,
            from: sent.from,
            len: sent.len,
        })?;
        let one = Incoming {
            ticket: sent.ticket,
            way: if sent.is_copied {
                "copied"
            } else {
                "registered"
            },
            len: sent.len,
            checksum: checksum(&bytes[..sent.len as usize]),
            computed: TransferChecksum::new(sent.len),
        };
        incoming.insert(transfer, one);
    }

    let clock = std::time::Instant::now();
    let mut extents: HashMap<HeldExtent, (TransferId, ExtentSlices)> = HashMap::new();
    while sender.in_flight() > 0 || !extents.is_empty() {
        let now = Instant::from_nanos(clock.elapsed().as_nanos() as u64);
        receiver.step(now)?;
        // A device without a thread of its own makes progress when it is polled. The peer's is in this process too.
        peer.cq.poll(&mut [])?;

        while let Some(event) = receiver.event() {
            match event {
                ReceiverEvent::Arrived {
                    transfer,
                    at,
                    held,
                    len,
                } => {
                    extents.insert(held, (transfer, ExtentSlices::new(held, at, len)?));
                }
                // The receiving process tells the sending one, which frees the copy or deregisters the buffer.
                ReceiverEvent::Done(transfer) => sender.done(incoming[&transfer].ticket)?,
                ReceiverEvent::Failed { why, .. } => return Err(why.into()),
                // The pool is short. This program releases everything as soon as it can, and has no other sender.
                ReceiverEvent::Copy(_) | ReceiverEvent::Overdue(_) | ReceiverEvent::Signal => {}
            }
        }
        for (held, (transfer, slices)) in &mut extents {
            while jobs.room() > 0
                && let Some(slice) = slices.next()
            {
                jobs.submit(slice, (*held, incoming[transfer].len))?;
            }
        }
        while let Some(job) = jobs.poll() {
            let (held, _) = job.tag;
            let (transfer, slices) = extents.get_mut(&held).ok_or("a job of no extent")?;
            let one = incoming
                .get_mut(transfer)
                .ok_or("an extent of no transfer")?;
            one.computed.add(&job.result??)?;
            slices.processed(job.slice.unit)?;
            while let Some(units) = slices.releasable() {
                receiver.release(app, held, units.start, units.len() as u32, now)?;
            }
            if slices.is_over() {
                extents.remove(&held);
            }
        }
        std::thread::yield_now();
    }
    let mut incoming: Vec<Incoming> = incoming.into_values().collect();
    incoming.sort_by_key(|one| one.len);
    for one in incoming {
        one.computed.check(one.checksum)?;
        let Incoming {
            len, way, checksum, ..
        } = one;
        println!("{len} bytes ({way}) arrived, CRC32C {checksum:#010x}");
    }
    Ok(())
}

/// A transfer that was announced.
struct Incoming {
    ticket: Ticket,
    /// Whether the sender copied or registered it.
    way: &'static str,
    len: u64,
    /// CRC32C of the bytes that were sent.
    checksum: u32,
    /// CRC32C of the bytes that arrived.
    computed: TransferChecksum,
}

/// A device and what both ends need of it.
struct Host {
    device: Arc<dyn Device>,
    pd: Arc<dyn ProtectionDomain>,
    cq: Arc<dyn CompletionQueue>,
}

impl Host {
    fn open(provider: &dyn Provider, name: &str) -> Result<Self, Box<dyn Error>> {
        let device = provider.open(&name.parse()?)?;
        let pd = device.alloc_pd()?;
        let cq = device.create_cq(&CqInit {
            depth: 64,
            channel: None,
            timestamps: false,
        })?;
        Ok(Self { device, pd, cq })
    }

    fn memory(&self, len: usize, access: Access) -> Result<Arc<Region>, Box<dyn Error>> {
        let buffer = self.device.alloc(&AllocRequest::of(len))?;
        Ok(Arc::new(self.pd.register(&buffer, access)?))
    }

    fn queue_pair(&self) -> Result<Box<dyn QueuePair>, Box<dyn Error>> {
        let queue_pair = self.pd.create_qp(&QpInit {
            qp_type: QpType::Rc,
            send_cq: self.cq.clone(),
            recv_cq: self.cq.clone(),
            srq: None,
            caps: QpCaps::default(),
            signal_all: false,
        })?;
        Ok(queue_pair)
    }
}

type QueuePairs = (Box<dyn QueuePair>, Box<dyn QueuePair>);

/// Connects a queue pair of the sender, whose memory the peer may read, with one of the receiver. Two processes
/// exchange the messages of their `BringUp` over any connection.
fn connect(sender: &Host, receiver: &Host) -> Result<QueuePairs, Box<dyn Error>> {
    let (mut one, mut two) = (sender.queue_pair()?, receiver.queue_pair()?);
    let readable = ConnectionParams {
        access: Access::REMOTE_READ,
        ..ConnectionParams::default()
    };
    let closed = ConnectionParams {
        access: Access::NONE,
        ..ConnectionParams::default()
    };
    // A program of your own draws a random number.
    let seed = 7;
    let mut from = BringUp::start(sender.device.info(), &mut *one, readable, seed, Vec::new())?;
    let mut to = BringUp::start(receiver.device.info(), &mut *two, closed, seed, Vec::new())?;
    from.connect_both(&mut *one, &mut to, &mut *two)?;
    Ok((one, two))
}
