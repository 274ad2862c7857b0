//! Utilisation of units, pipes and cores, and the bottleneck of a run. Pure.
//!
//! A [`Usage`] holds what a world counted up to some time
//! ([`UsageMonitor`](crate::UsageMonitor)). [`Usage::since`] returns the
//! difference of two, [`Usage::utilisation`] the table that names the bottleneck.

use std::collections::BTreeMap;
use std::fmt;

use crate::hardware_units::Ps;
use crate::model::Counters;
use crate::receiving_host::HostCounters;

/// Share of the time for which a bottleneck is busy at least. If nothing is, latency is the bottleneck.
pub const BOTTLENECK: f64 = 0.8;

/// A unit that is busier than the average of its kind by this factor gets a row of its own.
const UNEVEN: f64 = 1.25;

/// Counts of a world up to some time, or between two times.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Usage {
    /// Length of the time counted, in picoseconds.
    pub over: Ps,
    /// Hosts in the order in which they were made.
    pub hosts: Vec<HostUsage>,
    /// Actors in the order of the scenario.
    pub actors: Vec<ActorUsage>,
}

/// Counts of a host's RNIC.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HostUsage {
    /// Its name.
    pub host: String,
    /// Counters as its vendor's tools would show them.
    pub counters: Counters,
    /// Counters of its memory and of congestion, if the preset models them.
    pub receiving: Option<HostCounters>,
    /// Its units and pipes.
    pub units: Vec<UnitUsage>,
}

impl HostUsage {
    /// Returns the number of the host's ports; 1 if no link is among the units.
    #[must_use]
    pub fn ports(&self) -> u64 {
        let links = self
            .units
            .iter()
            .filter(|unit| unit.what.starts_with("link in"));
        links.count().max(1) as u64
    }
}

/// Use of the servers of one kind.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UnitUsage {
    /// Their name: `tx units`, `rx units`, `DMA read`, `DMA write`, `link out`, `link in`.
    /// If the host has several ports, each has rows of its own: `link out 0`, `link in 0`, `link out 1`, ….
    pub what: &'static str,
    /// Time that each of them was busy, in picoseconds. Work counts
    /// from when it was assigned, though its end may lie ahead.
    pub busy: Vec<Ps>,
    /// Bytes that a pipe carried, headers included; 0 for units.
    pub bytes: u64,
}

impl UnitUsage {
    /// Returns the sum of the times that each was busy, in picoseconds.
    pub fn total(&self) -> Ps {
        self.busy.iter().sum()
    }
}

/// Computing time of an actor.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ActorUsage {
    /// Its role.
    pub role: String,
    /// Its host's name.
    pub host: String,
    /// The core that it runs on.
    pub core: u32,
    /// Time that its steps took, in picoseconds, without repeated polls that find nothing.
    pub busy: Ps,
}

impl Usage {
    /// Returns the difference from an earlier look at the same scenario.
    #[must_use]
    pub fn since(&self, earlier: &Self) -> Self {
        let mut since = self.clone();
        since.over = since.over.saturating_sub(earlier.over);
        for (host, before) in since.hosts.iter_mut().zip(&earlier.hosts) {
            host.counters = host.counters.since(&before.counters);
            if let (Some(counters), Some(before)) = (&mut host.receiving, &before.receiving) {
                *counters = counters.since(before);
            }
            for (group, before) in host.units.iter_mut().zip(&before.units) {
                for (busy, before) in group.busy.iter_mut().zip(&before.busy) {
                    *busy = busy.saturating_sub(*before);
                }
                group.bytes = group.bytes.saturating_sub(before.bytes);
            }
        }
        for (actor, before) in since.actors.iter_mut().zip(&earlier.actors) {
            actor.busy = actor.busy.saturating_sub(before.busy);
        }
        since
    }

    /// Returns the share of the time for which each resource was busy.
    pub fn utilisation(&self) -> Utilisation {
        let groups = self.hosts.iter().flat_map(|host| {
            let groups = host.units.iter();
            groups.flat_map(move |group| self.unit_rows(host, group))
        });
        let mut rows: Vec<_> = groups.collect();
        rows.extend(self.core_rows());
        Utilisation {
            over: self.over,
            rows,
        }
    }

    /// Returns a share of the time, 0 to 1. It is cut to 1,
    /// because work that began may end after the time counted.
    fn share(&self, busy: Ps, count: u32) -> f64 {
        let all = self.over as f64 * f64::from(count.max(1));
        match all > 0.0 {
            true => (busy as f64 / all).min(1.0),
            false => 0.0,
        }
    }

    /// Returns a row for all servers of a kind, and one for the busiest if it is much busier.
    fn unit_rows(&self, host: &HostUsage, group: &UnitUsage) -> Vec<UtilisationRow> {
        let count = group.busy.len() as u32;
        let row = |what, share, note| UtilisationRow {
            host: host.host.clone(),
            what,
            share,
            note,
        };
        let share = self.share(group.total(), count);
        let what = match count {
            1 => group.what.to_owned(),
            count => format!("{} ({count})", group.what),
        };
        let note = match group.bytes {
            0 => stalls(host, group),
            bytes if group.what == MEMORY => memory_note(host, bytes, self.over),
            bytes => {
                let gbps = bytes as f64 * 8_000.0 / self.over.max(1) as f64;
                format!("{gbps:.2} Gbit/s")
            }
        };
        let mut rows = vec![row(what, share, note)];
        let busiest = (0..)
            .zip(&group.busy)
            .max_by_key(|(unit, busy)| (**busy, -*unit));
        if let Some((unit, busy)) = busiest {
            let alone = self.share(*busy, 1);
            if alone > share * UNEVEN {
                let what = format!("{} {unit}", group.what.trim_end_matches('s'));
                rows.push(row(what, alone, "the busiest of them".to_owned()));
            }
        }
        rows
    }

    fn core_rows(&self) -> Vec<UtilisationRow> {
        let mut cores: BTreeMap<(&str, u32), (Ps, Vec<&str>)> = BTreeMap::new();
        for actor in &self.actors {
            let core = cores.entry((&actor.host, actor.core)).or_default();
            core.0 += actor.busy;
            core.1.push(&actor.role);
        }
        let row = |((host, core), (busy, roles)): ((&str, u32), (Ps, Vec<&str>))| UtilisationRow {
            host: host.to_owned(),
            what: format!("core {core}"),
            share: self.share(busy, 1),
            note: roles.join(", "),
        };
        cores.into_iter().map(row).collect()
    }
}

/// Returns a note on the stalls of the sending units.
fn stalls(host: &HostUsage, group: &UnitUsage) -> String {
    let counters = &host.counters;
    if group.what != TX || counters.stalls == 0 || group.total() == 0 {
        return String::new();
    }
    let share = 100.0 * counters.stalls as f64 / group.total() as f64;
    let misses = [
        ("WQE", counters.wqe_misses),
        ("ICM", counters.icm_misses),
        ("MTT", counters.mtt_misses),
        ("MPT", counters.mpt_misses),
    ];
    let misses = misses.iter().filter(|(_, count)| *count > 0);
    let misses: Vec<_> = misses
        .map(|(what, count)| format!("{count} {what}"))
        .collect();
    format!(
        "up to {share:.0} % of that waits for DMA reads (misses: {})",
        misses.join(", ")
    )
}

/// Returns a note on a host's memory: what it moved, and which share of the DMA writes missed the cache.
fn memory_note(host: &HostUsage, bytes: u64, over: Ps) -> String {
    let rate = bytes as f64 * 1_000.0 / over.max(1) as f64;
    let Some(counters) = &host.receiving else {
        return String::new();
    };
    let lines = (counters.dma_hits + counters.dma_misses).max(1);
    let missed = 100.0 * counters.dma_misses as f64 / lines as f64;
    format!("{rate:.1} GB/s; {missed:.0} % of the lines written by DMA were not cached")
}

/// Name of the memory's bandwidth.
pub(crate) const MEMORY: &str = "memory";

/// Name of the time for which posted writes of the RNIC waited.
pub(crate) const STALLED_WRITES: &str = "stalled DMA writes";

/// Name of the time for which the RNIC paused the switch.
pub(crate) const PAUSED_PORTS: &str = "paused link in";

/// Name of the sending units.
pub(crate) const TX: &str = "tx units";

/// Utilisation of all resources.
#[derive(Clone, Debug, PartialEq)]
pub struct Utilisation {
    /// Length of the time counted, in picoseconds.
    pub over: Ps,
    /// Units and pipes by host; then cores.
    pub rows: Vec<UtilisationRow>,
}

/// Utilisation of one resource.
#[derive(Clone, Debug, PartialEq)]
pub struct UtilisationRow {
    /// Name of its host.
    pub host: String,
    /// Name of the unit or resource.
    pub what: String,
    /// Share of the time for which it was busy, 0 to 1.
    pub share: f64,
    /// Throughput of a pipe, stalls of sending units, or the roles of a core's actors.
    pub note: String,
}

impl Utilisation {
    /// Returns the row with the largest share, if that is at least [`BOTTLENECK`]. `None` means latency:
    /// requests wait for each other's answers.
    pub fn bottleneck(&self) -> Option<&UtilisationRow> {
        let mut most: Option<&UtilisationRow> = None;
        for row in &self.rows {
            if most.is_none_or(|most| row.share > most.share) {
                most = Some(row);
            }
        }
        most.filter(|row| row.share >= BOTTLENECK)
    }

    /// Returns the bottleneck's name: `b rx units (8)`, or `latency`.
    pub fn bottleneck_name(&self) -> String {
        match self.bottleneck() {
            Some(row) => format!("{} {}", row.host, row.what),
            None => "latency".to_owned(),
        }
    }
}

impl fmt::Display for Utilisation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let bottleneck = match self.bottleneck() {
            Some(row) => format!("{} {}, {:.0} % busy", row.host, row.what, 100.0 * row.share),
            None => "latency".to_owned(),
        };
        let micros = self.over as f64 / 1e6;
        writeln!(f, "simulated: {micros:.3} µs; bottleneck: {bottleneck}")?;
        let width = |head: &str, of: fn(&UtilisationRow) -> &str| {
            let longest = self.rows.iter().map(|row| of(row).chars().count()).max();
            longest.unwrap_or(0).max(head.chars().count())
        };
        let (host, what) = (
            width("host", |row| &row.host),
            width("what", |row| &row.what),
        );
        writeln!(f, "{:host$}  {:what$}  {:>7}  note", "host", "what", "busy")?;
        for row in &self.rows {
            let share = format!("{:.1} %", 100.0 * row.share);
            let line = format!(
                "{:host$}  {:what$}  {share:>7}  {}",
                row.host, row.what, row.note
            );
            writeln!(f, "{}", line.trim_end())?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn group(what: &'static str, busy: &[Ps], bytes: u64) -> UnitUsage {
        let busy = busy.to_vec();
        UnitUsage { what, busy, bytes }
    }

    fn actor(role: &str, core: u32, busy: Ps) -> ActorUsage {
        ActorUsage {
            role: role.to_owned(),
            host: "a".to_owned(),
            core,
            busy,
        }
    }

    /// One millisecond, of which two units were busy for 0.5 and 0.7 ms, and the link for 0.7 ms.
    fn usage() -> Usage {
        let ms = 1_000_000_000;
        Usage {
            over: ms,
            hosts: vec![HostUsage {
                host: "a".to_owned(),
                counters: Counters {
                    stalls: ms * 3 / 10,
                    icm_misses: 7,
                    ..Counters::default()
                },
                receiving: None,
                units: vec![
                    group(TX, &[ms * 5 / 10, ms * 7 / 10], 0),
                    group("link out", &[ms * 7 / 10], 8_750_000),
                ],
            }],
            actors: vec![
                actor("x", 0, ms / 2),
                actor("y", 1, ms / 4),
                actor("z", 1, ms / 4),
            ],
        }
    }

    #[test]
    fn shares_are_of_all_servers_of_a_kind() {
        let found: Vec<_> = usage().utilisation().rows;
        let shares: Vec<_> = found
            .iter()
            .map(|row| (row.what.as_str(), row.share))
            .collect();
        assert_eq!(
            shares,
            [
                ("tx units (2)", 0.6),
                ("link out", 0.7),
                ("core 0", 0.5),
                ("core 1", 0.5),
            ]
        );
        assert_eq!(found[1].note, "70.00 Gbit/s");
        assert!(
            found[0].note.contains("25 %") && found[0].note.contains("7 ICM"),
            "{}",
            found[0].note
        );
        assert_eq!(found[3].note, "y, z");
    }

    #[test]
    fn the_bottleneck_is_the_busiest_unit_or_latency() {
        let mut usage = usage();
        assert_eq!(usage.utilisation().bottleneck_name(), "latency");
        usage.hosts[0].units[1].busy = vec![820_000_000];
        assert_eq!(usage.utilisation().bottleneck_name(), "a link out");
        // One unit is busy, and the others are idle.
        usage.hosts[0].units[0].busy = vec![0, 900_000_000];
        assert_eq!(usage.utilisation().bottleneck_name(), "a tx unit 1");
        usage.hosts[0].units[0].busy = vec![850_000_000, 900_000_000];
        assert_eq!(usage.utilisation().bottleneck_name(), "a tx units (2)");
        usage.actors[0].busy = 2_000_000_000;
        let found = usage.utilisation();
        let row = found.bottleneck().expect("one");
        assert_eq!((row.what.as_str(), row.share), ("core 0", 1.0));
    }

    #[test]
    fn usage_between_two_samples_is_their_difference() {
        let (first, mut second) = (usage(), usage());
        second.over *= 2;
        second.hosts[0].units[0].busy[1] += 1_000;
        second.hosts[0].counters.icm_misses += 3;
        second.actors[2].busy += 17;
        let between = second.since(&first);
        assert_eq!(between.over, first.over);
        let host = &between.hosts[0];
        assert_eq!(host.units[0].busy, [0, 1_000]);
        assert_eq!((host.units[1].total(), host.units[1].bytes), (0, 0));
        assert_eq!((host.counters.icm_misses, host.counters.stalls), (3, 0));
        assert_eq!(between.actors[2].busy, 17);
    }

    #[test]
    fn the_table_says_that_it_is_simulated_and_its_columns_are_aligned() {
        let text = usage().utilisation().to_string();
        assert!(
            text.starts_with("simulated: 1000.000 µs; bottleneck: latency\n"),
            "{text}"
        );
        let lines: Vec<_> = text.lines().skip(1).collect();
        assert_eq!(lines.len(), 5);
        let head = lines[0].find("busy").expect("a column") + "busy".len();
        for line in &lines[1..] {
            assert_eq!(line.find('%').map(|at| at + 1), Some(head), "{text}");
        }
        let nothing = Usage::default().utilisation();
        assert_eq!(nothing.bottleneck_name(), "latency");
        assert_eq!(nothing.to_string().lines().count(), 2);
    }
}
