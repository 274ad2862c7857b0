//! How busy simulated machines were while something was measured: looks at what a play counts, and the table that
//! names what held each point back.

use headworks::sim::usage::ActorUsage;
use headworks::sim::{Figures, Usage};

use crate::outcome::Grid;

/// How many looks are kept. Beyond, every other one is forgotten, and they are taken half as often.
const LOOKS: usize = 64;
/// Time between two of the first looks, in picoseconds: 20 µs.
const FIRST_EVERY: u64 = 20_000_000;
/// Picoseconds of a nanosecond.
const NS: u64 = 1_000;

/// What a play had counted at times that lie about as far apart as each other.
#[derive(Debug)]
pub(crate) struct Looks {
    every: u64,
    taken: Vec<Usage>,
}

impl Default for Looks {
    fn default() -> Self {
        Self {
            every: FIRST_EVERY,
            taken: Vec::new(),
        }
    }
}

impl Looks {
    /// How long to play on until a look is due again, in nanoseconds.
    pub(crate) fn pause_ns(&self) -> u64 {
        self.every / NS
    }

    /// Looks, if one is due.
    pub(crate) fn look(&mut self, figures: &Figures) {
        if let Some(usage) = figures.now() {
            self.note(usage);
        }
    }

    fn note(&mut self, usage: Usage) {
        let last = self.taken.last().map(|usage| usage.over);
        if last.is_some_and(|last| usage.over.saturating_sub(last) < self.every) {
            return;
        }
        self.taken.push(usage);
        if self.taken.len() > LOOKS {
            let mut number = 0;
            self.taken.retain(|_| {
                number += 1;
                number % 2 == 1
            });
            self.every *= 2;
        }
    }

    /// What lies between two looks within that time, in nanoseconds; where there are no two, between the last before
    /// it and the first behind it, or from the beginning, or to the last. `None` without any.
    pub(crate) fn between(&self, began_ns: u64, ended_ns: u64) -> Option<Usage> {
        let within = |usage: &&Usage| (began_ns..=ended_ns).contains(&(usage.over / NS));
        let first = self.taken.iter().find(within);
        let last = self.taken.iter().rfind(within);
        match (first, last) {
            (Some(first), Some(last)) if last.over > first.over => Some(last.since(first)),
            _ => self.around(began_ns, ended_ns),
        }
    }

    fn around(&self, began_ns: u64, ended_ns: u64) -> Option<Usage> {
        let behind = self.taken.iter().find(|usage| usage.over / NS > ended_ns);
        let behind = behind.or_else(|| self.taken.last())?;
        let is_before = |usage: &&Usage| usage.over / NS < began_ns && usage.over < behind.over;
        Some(match self.taken.iter().rfind(is_before) {
            Some(before) => behind.since(before),
            None => behind.clone(),
        })
    }
}

/// Points by name, each with what its last play counted while it was measured.
pub(crate) fn grid<'a>(points: impl IntoIterator<Item = &'a (String, Usage)>) -> Option<Grid> {
    let mut points = points.into_iter().peekable();
    let (_, first) = points.peek()?;
    let mut header = vec!["point".to_owned(), "held back by".to_owned()];
    for host in &first.hosts {
        let name = &host.host;
        header.extend(
            host.groups
                .iter()
                .map(|group| format!("{name}: {}", group.what)),
        );
        header.push(format!("{name}: busiest core"));
    }
    let row = |(label, usage): &(String, Usage)| {
        let mut row = vec![label.clone(), usage.utilisation().bottleneck_name()];
        for host in &usage.hosts {
            let shares = host.groups.iter().map(|group| {
                let all = group.busy.len().max(1) as u64;
                percent(group.total(), usage.over.saturating_mul(all))
            });
            row.extend(shares);
            let core = busiest_core(usage, &host.host);
            row.push(core.map_or_else(String::new, |busy| percent(busy, usage.over)));
        }
        row
    };
    Some(Grid {
        title: "Utilisation (simulated)".to_owned(),
        header,
        rows: points.map(row).collect(),
    })
}

/// What there is to say of the table.
pub(crate) const NOTE: &str = "Utilisation: the share of the measured time in which units, bus (DMA) and link of each simulated host \
     were busy, of all of a kind together, and the core that computed most; of the last repeat. What is busy for 80 % \
     of the time holds the rest back, be it one unit or core of several; where nothing is, it is latency: things wait \
     for each other.";

/// What the busiest core of a host computed, in picoseconds.
fn busiest_core(usage: &Usage, host: &str) -> Option<u64> {
    let actors: Vec<&ActorUsage> = usage
        .actors
        .iter()
        .filter(|actor| actor.host == host)
        .collect();
    let of = |core: u32| {
        actors
            .iter()
            .filter(|actor| actor.core == core)
            .map(|actor| actor.busy)
            .sum()
    };
    actors.iter().map(|actor| of(actor.core)).max()
}

/// A part of the time; what was begun may be ahead of it.
fn percent(busy: u64, over: u64) -> String {
    match over {
        0 => String::new(),
        over => format!("{:.0} %", (100.0 * busy as f64 / over as f64).min(100.0)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use headworks::sim::Counters;
    use headworks::sim::usage::{GroupUsage, HostUsage};

    /// What was counted up to then: a unit of two is always busy, and so is half of the link.
    fn up_to(micros: u64) -> Usage {
        let over = micros * 1_000_000;
        let group = |what, busy: &[u64]| GroupUsage {
            what,
            busy: busy.to_vec(),
            bytes: 0,
        };
        let actor = |role: &str, core, busy| ActorUsage {
            role: role.to_owned(),
            host: "a".to_owned(),
            core,
            busy,
        };
        Usage {
            over,
            hosts: vec![HostUsage {
                host: "a".to_owned(),
                counters: Counters {
                    requests: micros,
                    ..Counters::default()
                },
                groups: vec![
                    group("tx units", &[over, 0]),
                    group("link out", &[over / 2]),
                ],
            }],
            actors: vec![
                actor("x", 0, over / 4),
                actor("y", 1, over / 10),
                actor("z", 1, over / 5),
            ],
        }
    }

    #[test]
    fn looks_are_few_however_long_a_play_is_and_lie_within_what_is_asked_for() {
        let mut looks = Looks::default();
        for micros in 0..100_000 {
            looks.note(up_to(micros));
        }
        assert!((LOOKS / 2..=LOOKS).contains(&looks.taken.len()));
        assert!(looks.taken.is_sorted_by_key(|usage| usage.over));
        let found = looks.between(20_000_000, 60_000_000).unwrap();
        let micros = found.over / 1_000_000;
        assert!((34_000..=40_000).contains(&micros), "{micros}");
        assert_eq!(found.hosts[0].counters.requests, micros);
        // Too short to hold two: those on either side of it.
        let every = looks.every / 1_000_000;
        let around = looks.between(20_000_000, 20_000_001).unwrap();
        let micros = around.over / 1_000_000;
        assert!((every..=2 * every + 40).contains(&micros), "{micros}");
        assert_eq!(around.hosts[0].counters.requests, micros);
        // None behind it, none before it.
        let last = looks.between(99_999_999, u64::MAX).unwrap();
        assert!(last.over < 100_000_000 * 1_000 / 2, "{}", last.over);
        let first = looks.between(0, 1).unwrap();
        assert_eq!(first.over / 1_000_000, looks.taken[1].over / 1_000_000);
        assert_eq!(Looks::default().between(0, u64::MAX), None);
    }

    #[test]
    fn the_table_names_what_holds_a_point_back() {
        assert_eq!(grid(&[]), None);
        let mut slow = up_to(100);
        slow.hosts[0].groups[0].busy = vec![1, 2];
        let points = [("fast".to_owned(), up_to(10)), ("slow".to_owned(), slow)];
        let grid = grid(&points).unwrap();
        assert!(grid.title.contains("simulated"));
        assert_eq!(
            grid.header,
            [
                "point",
                "held back by",
                "a: tx units",
                "a: link out",
                "a: busiest core"
            ]
        );
        assert_eq!(
            grid.rows[0],
            ["fast", "a tx unit 0", "50 %", "50 %", "30 %"]
        );
        assert_eq!(grid.rows[1][..3], ["slow", "latency", "0 %"]);
    }
}
