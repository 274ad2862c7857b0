//! For tests of your own RDMA code: a private fabric for each, and devices on it that misbehave on
//! purpose, from a seed that replays.
//!
//! ```
//! use headworks::testing::{Fabric, Rules, each_seed, rules};
//!
//! each_seed(1..=3, |seed| {
//!     let fabric = Fabric::new(std::env::temp_dir()).unwrap();
//!     // Everything that is legal, and about one request in a hundred kills its queue pair.
//!     let device = fabric.open(&format!("soft:h1,hostile,seed={seed},kills=100")).unwrap();
//!     assert_eq!(device.info().promises.in_order_within_write, 0);
//!     // Or exactly what the test is about.
//!     let rules = Rules::new(seed).with(rules::scatter(4)).with(rules::kill_after(10));
//!     let peer = fabric.open_by(rules, "soft:h2").unwrap();
//!     // … connect them, and run the code under test …
//!     # drop((device, peer));
//! });
//! ```

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use headworks_shm::{FabricDir, FabricError};
use headworks_softnic::SoftProvider;
use headworks_verbs::{Device, DeviceName, OpenError, Provider};

pub use headworks_softnic::hostile::{Chance, Event, Point, Rule, Rules, Verdict, rules};

/// Names the one seed that [`each_seed`] runs.
pub const SEED_VARIABLE: &str = "HEADWORKS_SEED";

/// A fabric of a test's own: its devices meet nobody else's.
pub struct Fabric {
    fabric: Arc<FabricDir>,
    path: PathBuf,
}

impl Fabric {
    /// A new one, below `parent`. The last of its devices to go removes it.
    pub fn new(parent: impl AsRef<Path>) -> Result<Self, FabricError> {
        static NEXT: AtomicU64 = AtomicU64::new(0);
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let name = format!("headworks-test-{}-{number}", std::process::id());
        let path = parent.as_ref().join(name);
        let fabric = FabricDir::at(&path)?;
        Ok(Self { fabric, path })
    }

    /// Where it is: `HEADWORKS_FABRIC` for other processes that belong to the test.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Opens a soft device on it.
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

    /// Opens a soft device on it that misbehaves by these rules, not by those that its name may ask for.
    pub fn open_by(&self, rules: Rules, name: &str) -> Result<Arc<dyn Device>, OpenError> {
        Self::open_with(
            &SoftProvider::on(self.fabric.clone()).with_rules(rules),
            name,
        )
    }
}

impl Drop for Fabric {
    /// What a device never was opened on is removed here.
    fn drop(&mut self) {
        let _ = self.fabric.remove_dead();
    }
}

/// Runs `test` with each seed, or with that of `HEADWORKS_SEED` alone. Says with which it panicked.
///
/// # Panics
///
/// If `test` does, or if `HEADWORKS_SEED` is no number.
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
        let told = Told(seed);
        test(seed);
        std::mem::forget(told);
    }
}

/// Dropped only by a panic.
struct Told(u64);

impl Drop for Told {
    fn drop(&mut self) {
        eprintln!(
            "failed with seed {0}; {SEED_VARIABLE}={0} runs it alone",
            self.0
        );
    }
}
