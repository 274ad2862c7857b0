//! Support for tests of your own RDMA code: a private fabric for each test, and devices on it that misbehave
//! on purpose. A seed makes each run repeatable.
//!
//! ```
//! use headworks::connect;
//! use headworks::ring::{RingConfig, SendError};
//! use headworks::testing::{Fabric, Rules, each_seed, rules};
//!
//! each_seed(1..=3, |seed| {
//!     let fabric = Fabric::new(std::env::temp_dir()).unwrap();
//!     // The sender's device injects every legal fault that breaks nothing.
//!     let near = fabric.open(&format!("soft:h1,hostile,seed={seed}")).unwrap();
//!     // The receiver's device injects exactly the fault that the test is about.
//!     let late = Rules::new(seed).with(rules::late(2, 20));
//!     let far = fabric.open_with_rules(late.clone(), "soft:h2").unwrap();
//!     let config = RingConfig::fixed(128, 64);
//!     let (mut sender, mut receiver) = connect::pair(&near, &far, &config).unwrap();
//!
//!     // The code under test: numbers arrive in order, each once.
//!     let (mut sent, mut received) = (0u64, 0u64);
//!     while received < 1000 {
//!         if sent < 1000 {
//!             let mut message = [0; 64];
//!             message[..8].copy_from_slice(&sent.to_le_bytes());
//!             match sender.try_send(&message) {
//!                 Ok(()) => sent += 1,
//!                 // The receiver must make room first.
//!                 Err(SendError::Full) => {}
//!                 Err(error) => panic!("{error}"),
//!             }
//!         }
//!         sender.flush().unwrap();
//!         while let Some(message) = receiver.try_recv().unwrap() {
//!             assert_eq!(message[..8], received.to_le_bytes());
//!             received += 1;
//!         }
//!         receiver.step().unwrap();
//!     }
//!     // Otherwise the test would have shown nothing.
//!     assert!(late.verdicts() > 0);
//! });
//! ```
//!
//! # Whose rules decide
//!
//! The rules of the device that posts a request decide its faults: when it begins, in which order its bytes are
//! placed, whether it finds a receive, whether its queue pair dies, whether a datagram is lost. The rules of the
//! device that it reaches do not affect it. So to test a receiver, make the sender's device hostile. Each device
//! decides about its own receives when they are posted, and about its own completion queues when they are polled.
//!
//! # Connecting
//!
//! [`connect`](crate::connect) connects rings. [`BringUp`](crate::verbs::BringUp) connects two queue pairs
//! over a stream. [`connect_both`](crate::verbs::BringUp::connect_both) connects two queue pairs of one
//! process. Datagrams need no connection, only a
//! [queue pair that is ready](crate::verbs::bringup::bring_up_ud) and the address of another:
//!
//! ```
//! use headworks::testing::{Fabric, read_region};
//! use headworks::verbs::bringup::bring_up_ud;
//! use headworks::verbs::{
//!     Access, AhInit, AllocRequest, Completion, CqInit, Destination, GRH_BYTES, Payload, QpCaps,
//!     QpInit, QpType, RecvWr, SendFlags, SendOp, SendWr, Status,
//! };
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! const QKEY: u32 = 7;
//! let fabric = Fabric::new(std::env::temp_dir())?;
//! let device = fabric.open("soft:h1,hostile,seed=3")?;
//! let (pd, cq) = (device.alloc_pd()?, device.create_cq(&CqInit { depth: 16, channel: None, timestamps: false })?);
//! let init = QpInit {
//!     qp_type: QpType::Ud,
//!     send_cq: cq.clone(),
//!     recv_cq: cq.clone(),
//!     srq: None,
//!     caps: QpCaps::default(),
//!     signal_all: true,
//! };
//! let (mut from, mut to) = (pd.create_qp(&init)?, pd.create_qp(&init)?);
//! for qp in [&mut from, &mut to] {
//!     bring_up_ud(&mut **qp, QKEY, 1)?;
//! }
//! // A datagram arrives after the 40 bytes of its header.
//! let region = pd.register(&device.alloc(&AllocRequest::of(4096))?, Access::LOCAL_WRITE)?;
//! let sges = [region.sge(0, 100)];
//! to.post_recv(&[RecvWr { wr_id: 1, sges: &sges }])?;
//! let ah = pd.create_ah(&AhInit::to(device.info().gid))?;
//! let to_there = Destination { ah: ah.key(), qpn: to.qpn(), qkey: QKEY };
//! from.post_send(&[SendWr {
//!     wr_id: 2,
//!     op: SendOp::SendTo(to_there),
//!     payload: Payload::Inline(b"over the weir"),
//!     flags: SendFlags::default(),
//! }])?;
//! let mut done = Vec::new();
//! while done.len() < 2 {
//!     let mut found = [Completion::default(); 2];
//!     let count = cq.poll(&mut found)?;
//!     done.extend_from_slice(&found[..count]);
//! }
//! assert!(done.iter().all(|one| one.status == Status::Success));
//! let arrived = done.iter().find(|one| one.wr_id == 1).ok_or("nothing arrived")?;
//! assert_eq!(arrived.byte_len as usize, GRH_BYTES + 13);
//! let mut bytes = [0; 13];
//! read_region(&region, GRH_BYTES, &mut bytes);
//! assert_eq!(&bytes, b"over the weir");
//! # Ok(())
//! # }
//! ```
#![cfg_attr(feature = "daemon", doc = include_str!("testing/streams.md"))]

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use headworks_ring::view_of;
use headworks_shm::{Registry, RegistryError};
use headworks_softnic::SoftProvider;
use headworks_verbs::{Device, DeviceName, OpenError, Provider, Region};

#[cfg(feature = "daemon")]
mod daemons;

#[cfg(feature = "daemon")]
pub use daemons::{Daemons, DaemonsBuilder, DaemonsError};

pub use headworks_softnic::hostile::{
    FaultEvent, FaultPoint, Random, Rule, Rules, SoftFaults, Verdict, plan, rules,
};

/// Environment variable that makes [`each_seed`] run one seed only.
pub const SEED_VARIABLE: &str = "HEADWORKS_SEED";

/// A private fabric for one test: its devices connect only to each other.
pub struct Fabric {
    fabric: Arc<Registry>,
    path: PathBuf,
}

impl Fabric {
    /// Makes a new fabric in a new directory below `parent`. The directory is removed when the last of its
    /// devices is closed.
    pub fn new(parent: impl AsRef<Path>) -> Result<Self, RegistryError> {
        static NEXT: AtomicU64 = AtomicU64::new(0);
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let name = format!("headworks-test-{}-{number}", std::process::id());
        let path = parent.as_ref().join(name);
        let fabric = Registry::open_at(&path)?;
        Ok(Self { fabric, path })
    }

    /// Returns its directory: the value of `HEADWORKS_FABRIC` for other processes of the test.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Opens a soft device on this fabric.
    pub fn open(&self, name: &str) -> Result<Arc<dyn Device>, OpenError> {
        Self::open_with(&SoftProvider::on(self.fabric.clone()), name)
    }

    fn open_with(provider: &SoftProvider, name: &str) -> Result<Arc<dyn Device>, OpenError> {
        let name: DeviceName = name.parse()?;
        if name.kind() != provider.kind() {
            return Err(OpenError::UnknownKind {
                kind: name.kind().to_owned(),
                known: provider.kind().to_owned(),
            });
        }
        provider.open(&name)
    }

    /// Opens a soft device on this fabric that injects faults by `rules` instead of the options in its name. They
    /// decide about the requests that this device posts: see [whose rules decide](self#whose-rules-decide).
    pub fn open_with_rules(&self, rules: Rules, name: &str) -> Result<Arc<dyn Device>, OpenError> {
        Self::open_with(
            &SoftProvider::on(self.fabric.clone()).with_rules(rules),
            name,
        )
    }
}

impl Drop for Fabric {
    /// Removes the directory if no device is open. Otherwise the last device to close removes it.
    fn drop(&mut self) {
        let _ = self.fabric.remove_dead();
    }
}

/// Copies bytes out of registered memory, from byte `at` on, while peers may write to it.
///
/// Peers' bytes may arrive in any order, so a test reads after the completion that says that they arrived.
///
/// # Panics
///
/// If the region ends before the last byte.
pub fn read_region(region: &Region, at: usize, into: &mut [u8]) {
    let read = view_of(region, 0).read(at, into);
    read.expect("the bytes are within the region");
}

/// Runs `test` with each seed, or only with `HEADWORKS_SEED` if it is set. If `test` panics, prints the seed.
///
/// # Panics
///
/// If `test` panics, or if `HEADWORKS_SEED` is not a number.
pub fn each_seed(seeds: impl IntoIterator<Item = u64>, mut test: impl FnMut(u64)) {
    let only = std::env::var(SEED_VARIABLE).ok().map(|text| {
        let number = text.parse::<u64>();
        number.unwrap_or_else(|_| panic!("{SEED_VARIABLE} is {text:?}: a number is needed"))
    });
    let seeds: Vec<_> = match only {
        Some(seed) => vec![seed],
        None => seeds.into_iter().collect(),
    };
    for seed in seeds {
        let told = SeedReport(seed);
        test(seed);
        std::mem::forget(told);
    }
}

/// Prints its seed when dropped. `each_seed` forgets it after a successful run, so only a panic drops it.
struct SeedReport(u64);

impl Drop for SeedReport {
    fn drop(&mut self) {
        eprintln!(
            "failed with seed {0}; {SEED_VARIABLE}={0} runs it alone",
            self.0
        );
    }
}
