//! Receives a transfer into a pool, and processes it in slices: the program of docs/receive-pool.md.

use std::collections::HashMap;
use std::error::Error;
use std::sync::Arc;

use headworks_ring::view_of;
use headworks_rxpool::admission::Class;
use headworks_rxpool::checksum::{PartChecksum, TransferChecksum, checksum};
use headworks_rxpool::config::PoolConfig;
use headworks_rxpool::holdings::HeldExtent;
use headworks_rxpool::jobs::{Jobs, JobsConfig, SliceBytes};
use headworks_rxpool::pool::AppLimits;
use headworks_rxpool::receiver::{Announcement, Receiver, ReceiverEvent};
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

const LEN: usize = 1_000_000;
/// READs in flight on the queue pair.
const DEPTH: u32 = 4;

fn main() -> Result<(), Box<dyn Error>> {
    // Any provider will do. This one needs no hardware.
    let folder = tempfile::tempdir()?;
    let provider = SoftProvider::on(Registry::open_at(folder.path().join("fabric"))?);
    let sender = Host::open(&provider, "soft:h0")?;
    let host = Host::open(&provider, "soft:h1")?;
    let (_sender_end, own_end) = connect(&sender, &host)?;

    // The sender lets the peer read its bytes, and computes their checksum.
    let bytes: Vec<u8> = (0..LEN).map(|at| (at % 251) as u8).collect();
    let source = sender.memory(LEN, Access::REMOTE_READ)?;
    view_of(&source, 0).write(0, &bytes)?;
    let sent = checksum(&bytes);

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

    // Two threads compute checksums. The tag of a job is the extent that its slice belongs to.
    let view = view_of(&memory, 0);
    let process = |_: HeldExtent, bytes: &mut SliceBytes<'_>| {
        let at = bytes.slice().at;
        PartChecksum::of(bytes.copied(), at, LEN as u64)
    };
    let mut jobs = Jobs::start(JobsConfig::default(), view, process)?;

    // The address, the key and the length came from the sender, over any connection.
    receiver.announce(Announcement {
        link,
        app,
        from: source.remote(0),
        len: LEN as u64,
    })?;

    let clock = std::time::Instant::now();
    let mut extents: HashMap<HeldExtent, ExtentSlices> = HashMap::new();
    let mut whole = TransferChecksum::new(LEN as u64);
    let mut is_done = false;
    while !is_done || !extents.is_empty() {
        let now = Instant::from_nanos(clock.elapsed().as_nanos() as u64);
        receiver.step(now)?;
        // A device without a thread of its own makes progress when it is polled. The sender's is in this process too.
        sender.cq.poll(&mut [])?;

        while let Some(event) = receiver.event() {
            match event {
                ReceiverEvent::Arrived { at, held, len, .. } => {
                    extents.insert(held, ExtentSlices::new(held, at, len)?);
                }
                ReceiverEvent::Done(_) => is_done = true,
                ReceiverEvent::Failed { why, .. } => return Err(why.into()),
                // The pool is short. This program releases everything as soon as it can, and has no other sender.
                ReceiverEvent::Copy(_) | ReceiverEvent::Signal => {}
            }
        }
        for (held, slices) in &mut extents {
            while jobs.room() > 0
                && let Some(slice) = slices.next()
            {
                jobs.submit(slice, *held)?;
            }
        }
        while let Some(job) = jobs.poll() {
            let held = job.tag;
            whole.add(&job.result??)?;
            let slices = extents.get_mut(&held).ok_or("a job of no extent")?;
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
    whole.check(sent)?;
    println!("{LEN} bytes arrived, CRC32C {sent:#010x}");
    Ok(())
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
