//! What each design posts and polls for a message, beside the RB² paper's Table I: one run on a device
//! that counts, apart from what is timed.

use std::time::Duration;

use headworks_baselines::counting::Counts;

use crate::bench::Bench;
use crate::error::RunError;
use crate::outcome::{Grid, Outcome};
use crate::pages::HugePages;
use crate::transports::job::{Channel, Report, RingMode, Rival, Variant, Workload};

use super::sweep::{job, private};

/// How long messages are counted.
const RUN: Duration = Duration::from_millis(20);

/// The columns.
const HEADER: [&str; 17] = [
    "arm",
    "size [B]",
    "WRITEs",
    "with immediate",
    "READs",
    "doorbells",
    "bytes written",
    "lines touched",
    "CQEs sender",
    "CQEs receiver",
    "receives",
    "head WRITEs",
    "copies",
    "Table I: head",
    "Table I: tail",
    "Table I: batching",
    "Table I: zero copy",
];

/// What the sending and the receiving end did for a message.
#[derive(Clone, Copy, Debug)]
pub(super) struct PerMessage {
    messages: f64,
    sender: Counts,
    receiver: Counts,
    /// What huge pages the sender's process had, and the receiver's.
    pub(super) pages: [HugePages; 2],
}

/// Counts for every arm at every size, a quick run at the first size only, and puts the table into the
/// report.
pub(super) fn record(
    bench: &mut Bench<'_>,
    outcome: &mut Outcome,
    channels: &[Channel],
    sizes: &[u64],
) -> Result<(), RunError> {
    let mut grid = Grid {
        title: "Posted and polled for a message, counted in a run of its own".into(),
        header: HEADER.map(String::from).to_vec(),
        rows: Vec::new(),
    };
    let sizes = match bench.options.quick {
        true => &sizes[..sizes.len().min(1)],
        false => sizes,
    };
    for &size in sizes {
        for &channel in channels {
            let label = format!("counting {} {size} B", channel.name());
            let counted = bench.once(&label, |bench| count(bench, channel, size))?;
            match counted {
                Ok(counted) => grid.rows.push(row(channel, size, counted)),
                Err(why) => outcome
                    .notes
                    .push(format!("{} was not counted: {why}", channel.name())),
            }
        }
    }
    outcome.notes.push(
        "Of the table of counts: WRITEs and what follows are the sender's, but for receives, CQEs \
         receiver and head WRITEs; lines touched are cache lines at the target, counted for every WRITE; \
         copies are the sender's, the device's and the receiver's by design, not counted. \
         The columns of Table I are the paper's words on the systems that the designs are after. FaRM's \
         takes a WRITE more here than polling the message would: the paper's own test writes the length \
         apart (section V-A)."
            .into(),
    );
    if bench.options.device.kind() == "soft" {
        outcome.notes.push(
            "The software RNIC completes a WRITE of up to 64 KiB while it is posted: up to there the \
             elastic threshold never defers, and SocksDirect's batch, which forms while ten requests \
             are in flight, never forms."
                .into(),
        );
    }
    outcome.grids.push(grid);
    Ok(())
}

/// Counts for one arm at one size, in a run of its own.
pub(super) fn count(bench: &Bench<'_>, channel: Channel, size: u64) -> Result<PerMessage, String> {
    let dir = private().map_err(|why| why.to_string())?;
    let run = match bench.place.is_simulated() {
        // Some hundred messages at 100 Gbit/s: the same again would be counted.
        true => Duration::from_nanos(32 * size).clamp(RUN / 10, RUN),
        false => RUN,
    };
    let mut job = job(channel, Workload::Rate, size, run, &dir);
    job.counted = true;
    job.yields = bench.place.is_crowded(1);
    let reports = bench.place.run_pair(job).map_err(|why| why.to_string())?;
    let [
        Report::Counted {
            messages,
            counts,
            pages,
        },
        Report::Counted {
            counts: receiver,
            pages: its_pages,
            ..
        },
    ] = reports
    else {
        return Err("it did not count".into());
    };
    match messages {
        0 => Err("no message was sent in time".into()),
        _ => Ok(PerMessage {
            messages: messages as f64,
            sender: counts,
            receiver,
            pages: [pages, its_pages],
        }),
    }
}

fn row(channel: Channel, size: u64, counted: PerMessage) -> Vec<String> {
    let each = |count: u64| {
        let each = count as f64 / counted.messages;
        match each {
            x if x >= 100.0 => format!("{x:.0}"),
            x => format!("{x:.3}"),
        }
    };
    let (sent, got) = (counted.sender, counted.receiver);
    let mut row = vec![channel.name(), size.to_string()];
    row.extend(
        [
            sent.writes,
            sent.immediates,
            sent.reads,
            sent.doorbells,
            sent.bytes,
            sent.lines,
            sent.completions,
            got.completions,
            got.receives,
            got.writes,
        ]
        .map(each),
    );
    row.push(channel.note().copies);
    row.extend(table_1(channel).map(String::from));
    row
}

/// What Table I says of head, tail, batching of messages and zero copy of the system that an arm is
/// after; nothing of arms that it does not have.
fn table_1(channel: Channel) -> [&'static str; 4] {
    let full = [Variant::Full, Variant::HugePages, Variant::OrdinaryPages];
    match channel {
        Channel::Ring(RingMode::Paper(variant)) if full.contains(&variant) => {
            ["lazy push", "write twice", "adaptive", "yes"]
        }
        Channel::Rival(Rival::Farm) => ["lazy push", "poll message", "no", "no"],
        Channel::Rival(Rival::SocksDirect) => ["lazy push", "poll RDMA CQ", "yes", "socket-level"],
        Channel::Rival(Rival::L5) => ["lazy push", "write twice", "no", "no"],
        _ => [""; 4],
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cases::rb2::{FARM, L5, RAW, RB2, SOCKSDIRECT};

    #[test]
    fn a_row_has_a_cell_for_every_column_and_table_1_is_the_papers() {
        let counted = PerMessage {
            messages: 2.0,
            sender: Counts {
                writes: 4,
                ..Counts::default()
            },
            receiver: Counts::default(),
            pages: [HugePages::default(); 2],
        };
        let row = row(FARM, 64, counted);
        assert_eq!(row.len(), HEADER.len());
        assert_eq!(row[..3], ["farm", "64", "2.000"]);
        let tails = [RB2, FARM, SOCKSDIRECT, L5, RAW].map(|channel| table_1(channel)[1]);
        let wanted = [
            "write twice",
            "poll message",
            "poll RDMA CQ",
            "write twice",
            "",
        ];
        assert_eq!(tails, wanted);
    }
}
