//! The cases on simulated RNICs, in virtual time: between hosts, and on one that talks to itself.

use std::os::fd::BorrowedFd;
use std::sync::Arc;

use headworks_conformance::time::{Time, is_readable};
use headworks_conformance::worlds::{Layout, Local};
use headworks_conformance::{Manners, cases, run};
use headworks_simnic::SimProvider;
use headworks_stage::Opener;
use headworks_verbs::{Duration, Instant, Provider};

/// Whatever a device does in its own time; what it has, it has exactly.
const SIM: Manners = Manners {
    at_once: false,
    refusals: 0,
    late: 0,
    checks_first: false,
    tells_twice: true,
    notices_deaths: false,
    holds_unpolled: true,
    refuses_datagrams: false,
    many: 10_000,
    sizes_exactly: true,
    by_itself: true,
    holds_back: false,
    keeps_what_overran: true,
};

/// What a moment is.
const MOMENT: Duration = Duration::from_micros(2);

/// A network of its own, and its time.
#[derive(Default)]
struct Network(SimProvider);

impl Time for Network {
    fn now(&self) -> Instant {
        self.0.now()
    }

    fn advance(&self) {
        self.0.advance(MOMENT);
    }

    fn sleep(&self, fd: BorrowedFd<'_>, at_most: Duration) -> rustix::io::Result<bool> {
        let until = self.now() + at_most;
        loop {
            if is_readable(fd, Duration::ZERO)? {
                return Ok(true);
            }
            if self.now() >= until {
                return Ok(false);
            }
            self.advance();
        }
    }
}

fn world(layout: &Layout) -> Local {
    let network = Arc::new(Network::default());
    let there = network.clone();
    let opener: Opener = Arc::new(move |name| there.0.open(name));
    Local::new(opener, layout.clone()).in_time(network)
}

fn run_in(name: &str, layout: &Layout) {
    let tally = run::run(name, cases().filter(run::wanted()), || world(layout));
    let (ran, skipped, failed) = (tally.ran, &tally.skipped, &tally.failed);
    println!("{name}: {ran} cases, {} skipped", skipped.len());
    assert!(failed.is_empty(), "{name}: {failed:?}");
    // Whoever names cases may name none that runs here.
    let is_all = std::env::var_os("HEADWORKS_CASE").is_none();
    assert!(ran > skipped.len() || !is_all, "{name}: {skipped:?}");
}

#[test]
fn between_hosts() {
    let hosts = ["h1", "h2", "h3"].map(|host| format!("sim:cx5-100g,host={host}"));
    let layout = Layout::of([&hosts[0], &hosts[1], &hosts[2]]).with(SIM);
    run_in("hosts", &layout);
}

#[test]
fn on_one_device() {
    let layout = Layout::loopback("sim:cx5-100g").with(SIM);
    run_in("loopback", &layout);
}
