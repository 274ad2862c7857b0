//! The RB² paper's Table I, and the number of requests and completions of each design for a message. They are
//! counted on a device that counts, in a run separate from the timed ones.

use std::collections::BTreeMap;
use std::time::Duration;

use headworks_baselines::counting::Counts;

use super::table2::M1;
use super::{FARM_PAPER, L5, RB2, RB2_HUGE, SD};
use crate::bench::Bench;
use crate::error::RunError;
use crate::outcome::{Grid, Outcome};
use crate::testbed::private_dir;
use crate::transports::WorkloadError;
use crate::transports::job::{Channel, Job, Report, Workload};

/// Time for which messages are counted.
const RUN: Duration = Duration::from_millis(20);

/// The paper's Table I: an attribute and its value for each system, an empty cell where the system lacks it.
const TABLE_1: &str = "\
attribute | MVAPICH | FaRM | SocksDirect | L5 | RB²
C1: RDMA verb | WRITE | WRITE | WRITE | WRITE | WRITE
C2: transport mode | RC | RC | RC | RC | RC
C3: data structure | linked list | big array | big array | big array | big array
C4: data structure maintenance | both | receiver only | both | both | both
C5: message layout | slot-to-slot | back-to-back | back-to-back | back-to-back | slot-to-slot
head synchronization | active push | lazy push | lazy push | lazy push | lazy push
tail synchronization | poll message | poll message | poll RDMA CQ | write twice | write twice
batching of sending messages | | | yes | | adaptive batching
zero copy | | | socket-level | | yes
cache-friendly structure | | | | | yes
NUMA-aware allocation | | | | | yes
huge page | | yes | | | yes";

/// The arms that represent the systems of [`TABLE_1`]. MVAPICH has none, because the paper does not measure
/// it. RB² has three: the second is that of Table II, and the third is on ordinary pages, for machines
/// without huge ones.
const SYSTEMS: [&[Channel]; 5] = [&[], &[FARM_PAPER], &[SD], &[L5], &[RB2_HUGE, M1, RB2]];

/// The counts of the sending and of the receiving end for all messages.
type Ends = [Counts; 2];
/// A column's name, and the count in it.
type Column = (&'static str, fn(&Ends) -> u64);

const COUNTED: [Column; 10] = [
    ("WRITEs", |[sent, _]| sent.writes),
    ("with immediate", |[sent, _]| sent.immediates),
    ("READs", |[sent, _]| sent.reads),
    ("doorbells", |[sent, _]| sent.doorbells),
    ("bytes written", |[sent, _]| sent.bytes),
    ("lines touched", |[sent, _]| sent.lines),
    ("CQEs sender", |[sent, _]| sent.completions),
    ("CQEs receiver", |[_, got]| got.completions),
    ("receives", |[_, got]| got.receives),
    ("head WRITEs", |[_, got]| got.writes),
];

/// Returns the names of the columns of [`cells`].
fn columns() -> impl Iterator<Item = &'static str> {
    COUNTED.iter().map(|(name, _)| *name).chain(["copies"])
}

/// Counts for every arm at every size, in a quick run only at the first size, and adds the tables to the
/// report.
pub(super) fn record(
    bench: &mut Bench<'_>,
    outcome: &mut Outcome,
    channels: &[Channel],
    sizes: &[u64],
) -> Result<(), RunError> {
    let sizes = &sizes[..if bench.options.quick { 1 } else { sizes.len() }];
    let (mut rows, mut first) = (Vec::new(), BTreeMap::new());
    for &size in sizes {
        for &channel in channels {
            let name = channel.name();
            let label = format!("counting {name} {size} B");
            match bench.once(&label, |bench| count(bench, channel, size))? {
                Ok(cells) => {
                    rows.push([vec![name, size.to_string()], cells.clone()].concat());
                    first.entry(channel).or_insert(cells);
                }
                Err(why) => outcome.notes.push(format!("{name} was not counted: {why}")),
            }
        }
    }
    outcome.notes.push(
        "About the table of counts: the numbers of WRITEs and of the columns after it are the sender's, except for \
         receives, CQEs receiver and head WRITEs. Lines touched are cache lines at the target, counted for every \
         WRITE. Copies are not counted: they are those that the sender, the device and the receiver make by design. \
         FaRM takes one WRITE more here than if the receiver polled the message, because the paper's own test writes \
         the length separately (section V-A)."
            .into(),
    );
    if bench.options.device.kind() == "soft" {
        outcome.notes.push(
            "The software RNIC completes a WRITE of up to 64 KiB while it is posted. Up to this size the elastic \
             threshold therefore never defers, and SocksDirect never forms a batch, which it does only while ten \
             requests are in flight."
                .into(),
        );
    }
    let header = ["arm", "size [B]"].into_iter().chain(columns());
    let title = "Posted and polled for a message, counted in a run of its own";
    outcome.grids.extend(Grid::of(title, header, rows));
    if SYSTEMS.concat().iter().any(|arm| first.contains_key(arm)) {
        outcome.grids.push(table_1(&first, sizes[0]));
    }
    Ok(())
}

/// Counts for one arm at one size, in a separate run.
fn count(bench: &Bench<'_>, channel: Channel, size: u64) -> Result<Vec<String>, WorkloadError> {
    let dir = private_dir()?;
    let run = match bench.testbed.is_simulated() {
        // At least 200 messages at 100 Gbit/s; more messages would give the same counts.
        true => Duration::from_nanos(32 * size).clamp(RUN / 10, RUN),
        false => RUN,
    };
    let mut job = Job::new(channel, Workload::Rate, size, run, dir.path());
    job.counted = true;
    job.yields = bench.testbed.is_crowded(1);
    match bench.testbed.run_pair(job)? {
        [Report::Counted { messages: 0, .. }, _] => {
            Err(WorkloadError("no message was sent in time".into()))
        }
        [
            Report::Counted {
                messages,
                counts: sent,
            },
            Report::Counted { counts: got, .. },
        ] => Ok(cells(channel, messages, &[sent, got])),
        _ => Err(WorkloadError("it did not count".into())),
    }
}

/// Returns the counts for each message, as cells.
fn cells(channel: Channel, messages: u64, ends: &Ends) -> Vec<String> {
    let each = COUNTED
        .iter()
        .map(|(_, count)| match count(ends) as f64 / messages as f64 {
            x if x >= 100.0 => format!("{x:.0}"),
            x => format!("{x:.3}"),
        });
    each.chain([channel.note().copies]).collect()
}

/// Makes a table of Table I, followed by the counts of each system for a message of `size` bytes.
fn table_1(counted: &BTreeMap<Channel, Vec<String>>, size: u64) -> Grid {
    let split = |row: &str| row.split('|').map(|cell| cell.trim().to_owned()).collect();
    let mut rows: Vec<Vec<String>> = TABLE_1.lines().map(split).collect();
    let header = rows.remove(0);
    for (at, what) in columns().enumerate() {
        let of = SYSTEMS.map(|arms| {
            let cells = arms.iter().find_map(|arm| counted.get(arm));
            cells.map_or_else(|| "–".to_owned(), |cells| cells[at].clone())
        });
        rows.push([&[format!("counted, {size} B: {what}")], &of[..]].concat());
    }
    Grid {
        title: "The paper's Table I, and what was counted of the arms after its systems".into(),
        header,
        rows,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn table_1_has_the_paper_and_counted_cells() {
        let sent = Counts {
            writes: 4,
            ..Counts::default()
        };
        let cells = cells(FARM_PAPER, 2, &[sent, Counts::default()]);
        let Grid { header, rows, .. } = table_1(&[(FARM_PAPER, cells)].into(), 64);
        assert!(rows.iter().all(|row| row.len() == 6) && header.len() == 6);
        assert_eq!(rows.len(), 12 + columns().count());
        assert_eq!(
            rows[6][1..4],
            ["poll message", "poll message", "poll RDMA CQ"]
        );
        assert_eq!(rows[12][..4], ["counted, 64 B: WRITEs", "–", "2.000", "–"]);
    }
}
