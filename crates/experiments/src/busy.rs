//! Utilisation of simulated machines while a point was measured, as a table that names what held each point back.

use headworks::sim::Usage;
use headworks::sim::usage::ActorUsage;

use crate::outcome::Grid;

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
    Grid::of("Utilisation (simulated)", header, points.map(row).collect())
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
