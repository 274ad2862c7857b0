//! Utilisation of simulated machines at each point, as a table that names each point's bottleneck.

use headworks::sim::Usage;

use crate::outcome::Grid;

/// Makes the table from points by name, each with the usage that its last scenario counted while it was
/// measured. Returns `None` if there are no points.
pub(crate) fn grid<'a>(points: impl IntoIterator<Item = &'a (String, Usage)>) -> Option<Grid> {
    let mut points = points.into_iter().peekable();
    let (_, first) = points.peek()?;
    let mut header = vec!["point".to_owned(), "held back by".to_owned()];
    for host in &first.hosts {
        let name = &host.host;
        header.extend(
            host.units
                .iter()
                .map(|group| format!("{name}: {}", group.what)),
        );
        header.push(format!("{name}: busiest core"));
    }
    let row = |(label, usage): &(String, Usage)| {
        let utilisation = usage.utilisation();
        let mut row = vec![label.clone(), utilisation.bottleneck_name()];
        for host in &usage.hosts {
            row.extend(host.units.iter().map(|group| {
                let all = usage.over.saturating_mul(group.busy.len().max(1) as u64);
                percent(group.total() as f64 / all as f64)
            }));
            let rows = utilisation.rows.iter();
            let cores = rows.filter(|row| row.host == host.host && row.what.starts_with("core "));
            let busiest = cores.map(|row| row.share).max_by(f64::total_cmp);
            row.push(busiest.map_or_else(String::new, percent));
        }
        row
    };
    Grid::of("Utilisation (simulated)", header, points.map(row).collect())
}

/// The note that explains the table in a report.
pub(crate) const NOTE: &str = "Utilisation in the last repeat: the share of the measured time in which the units, the bus (DMA) \
     and the link of each simulated host were busy (average of all units of a kind), and the core that computed most. \
     What is busy for 80 % of the time or more is the bottleneck, even if it is one unit or core of several. If nothing \
     is, latency is: things wait for each other.";

/// Formats a share of the measured time. A unit's busy time may extend past the measured time, so more than
/// the whole counts as the whole. A share of no time is empty.
fn percent(share: f64) -> String {
    match share.is_finite() {
        true => format!("{:.0} %", 100.0 * share.min(1.0)),
        false => String::new(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use headworks::sim::Counters;
    use headworks::sim::utilisation::{ActorUsage, HostUsage, UnitUsage};

    /// Usage up to a time: one of two units was always busy, and the link was busy for half of the time.
    fn up_to(micros: u64) -> Usage {
        let over = micros * 1_000_000;
        let group = |what, busy: &[u64]| UnitUsage {
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
                counters: Counters::default(),
                receiving: None,
                units: vec![
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
    fn the_table_names_the_bottleneck_of_each_point() {
        assert_eq!(grid(&[]), None);
        let mut slow = up_to(100);
        slow.hosts[0].units[0].busy = vec![1, 2];
        let points = [("fast".to_owned(), up_to(10)), ("slow".to_owned(), slow)];
        let grid = grid(&points).unwrap();
        assert!(grid.title.contains("simulated"));
        let header = "point; held back by; a: tx units; a: link out; a: busiest core";
        assert_eq!(grid.header.join("; "), header);
        let fast = "fast; a tx unit 0; 50 %; 50 %; 30 %";
        assert_eq!(grid.rows[0].join("; "), fast);
        assert_eq!(grid.rows[1][..3], ["slow", "latency", "0 %"]);
    }
}
