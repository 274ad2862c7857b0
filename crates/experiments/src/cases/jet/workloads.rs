//! Figure 9: the storage server of [`storage`](super::storage) with messages of many sizes, as three workloads have them.
//! On simulated devices that model the memory of hosts.

use std::fmt;

use super::receiving_host::{FASTER_TESTBED, about, check_arms, memory_of, unless_set};
use super::storage::{
    ANTAGONIST, Arm as Design, DEVICE_HITS, LATENCY, MEMORY, MESSAGES, TAIL, THROUGHPUT, serve,
};
use crate::cases::prelude::*;
use crate::nic::storage::{StayTime, StorageLoad};

/// A workload of distributed storage. The paper does not state its range of sizes: these are assumed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Load {
    name: &'static str,
    key: &'static str,
    /// KiB of the shortest and of the longest message.
    kib: (u64, u64),
    /// Messages under way on each connection.
    outstanding: u64,
}

const LOADS: [Load; 3] = [
    Load {
        name: "OLAP",
        key: "olap",
        kib: (16, 128),
        outstanding: 8,
    },
    Load {
        name: "File Backup",
        key: "backup",
        kib: (64, 256),
        outstanding: 4,
    },
    Load {
        name: "OLTP",
        key: "oltp",
        kib: (4, 16),
        outstanding: 12,
    },
];

/// A server.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Server(Design);

impl fmt::Display for Server {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

const O: Server = Server(Design::O);
const JET: Server = Server(Design::JET);
const ARMS: [Server; 2] = [O, JET];

impl Server {
    fn load(self, load: Load) -> StorageLoad {
        let (least, most) = load.kib;
        StorageLoad {
            least: (least * 1024) as usize,
            outstanding: load.outstanding as usize,
            stay: StayTime::Exponential,
            ..self.0.load(most, load.outstanding)
        }
    }
}

fn load_of(point: &Point<Server>) -> Load {
    LOADS[point.x as usize % LOADS.len()]
}

fn gain(number: u64, quantity: Quantity) -> Expr<Server> {
    let at = |arm| Expr::At(Point::at(arm, number), quantity);
    at(JET) / at(O)
}

/// Figure 9.
pub static FIG9: Case<Server> = Case {
    about: about(
        "jet-fig9",
        "Figure 9",
        "A storage server under memory pressure with messages of many sizes: OLAP, File Backup, OLTP \
         (--device sim:cx6dx-2x100g).",
        "The server of jet-fig8 with messages of several sizes at a time: 16 to 128 KiB (OLAP), 64 to 256 KiB (File Backup) \
         and 4 to 16 KiB (OLTP). Messages of 4 KiB are SENDs. Areas, and Jet: throughput, messages a second, latency.",
    ),
    table,
    measure: |bench, _, _| {
        let preset = memory_of(bench)?;
        check_arms(bench, ARMS.map(|arm| arm.0.settings(&preset, 1.0)))?;
        let is_quick = bench.options.quick;
        let numbers: Vec<u64> = (0..LOADS.len() as u64).collect();
        let sweep = Sweep::in_virtual_time("", "");
        bench.measure(grid("", &ARMS, &numbers), sweep, |bench, point, _| {
            let settings = unless_set(bench, point.arm.0.settings(&preset, 1.0));
            let testbed = bench.testbed_with(&settings)?;
            serve(&testbed, &point.arm.load(load_of(point)), is_quick)
        })
    },
};

fn table() -> Table<Server> {
    let mut t = Table::new(ARMS.map(|arm| arm.0.note()).to_vec());
    t.arm().cell("workload", |point| load_of(point).name.into());
    t.cell("sizes [KiB]", |point| {
        let (least, most) = load_of(point).kib;
        format!("{least}–{most}").as_str().into()
    });
    t.value("throughput [GB/s]", THROUGHPUT);
    t.value("messages [1,000/s]", MESSAGES);
    t.value("average latency [µs]", LATENCY);
    t.value("p99.9 [µs]", TAIL);
    t.value("hits of the device that reads [%]", DEVICE_HITS);
    t.value("memory, without the antagonist [GB/s]", MEMORY);
    t.value("antagonist [GB/s]", ANTAGONIST);
    for (number, load) in (0..).zip(LOADS) {
        let key = load.key;
        t.metric(
            format!("{key}_throughput_over_areas"),
            gain(number, THROUGHPUT),
        );
        let faster = Expr::Is(1.0) / gain(number, LATENCY);
        t.metric(format!("{key}_latency_areas_over_jet"), faster);
    }
    let of_all =
        |of: fn(u64) -> Expr<Server>| Expr::Highest((0..LOADS.len() as u64).map(of).collect());
    t.metric(
        "most_throughput_over_areas",
        of_all(|number| gain(number, THROUGHPUT)),
    )
    .paper_on(
        FASTER_TESTBED,
        Claim::About(1.97),
        "6.3, Figure 9a: up to 1.97 times",
    );
    t.metric(
        "most_latency_areas_over_jet",
        of_all(|number| Expr::Is(1.0) / gain(number, LATENCY)),
    )
    .paper_on(
        FASTER_TESTBED,
        Claim::About(1.97),
        "6.3, Figure 9b: up to 1.97 times",
    );
    t.note(
        "Everything is simulated. The paper names three workloads, monitored in production, and states no sizes: the ranges \
         are assumed. Each power of two in a range is equally frequent. Messages stay in memory for 200 µs on average, \
         exponentially distributed. An area holds as many messages of the longest size as are under way.",
    );
    t.lines(
        "throughput.svg",
        "Throughput of a storage server under memory pressure",
        (
            Axis::linear("workload: OLAP, File Backup, OLTP"),
            Axis::linear("throughput [GB/s]"),
        ),
        |point| Expr::At(*point, THROUGHPUT),
    );
    t.lines(
        "latency.svg",
        "Average latency of messages",
        (
            Axis::linear("workload: OLAP, File Backup, OLTP"),
            Axis::linear("latency [µs]"),
        ),
        |point| Expr::At(*point, LATENCY),
    );
    t
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn areas_have_room_for_the_longest_messages_and_only_oltp_sends() {
        let [olap, backup, oltp] = LOADS;
        assert_eq!(O.load(olap).memory, 32 * 8 * (128 << 10));
        assert_eq!(O.load(backup).memory, 32 * 4 * (256 << 10));
        assert_eq!(JET.load(backup).memory, 8 << 20);
        let least = [olap, backup, oltp].map(|load| JET.load(load).least);
        assert_eq!(least, [16 << 10, 64 << 10, 4 << 10]);
    }
}
