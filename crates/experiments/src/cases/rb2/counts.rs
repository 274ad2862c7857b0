//! What each design posts and polls for a message, beside the RB² paper's Table I: one run on a device
//! that counts, apart from what is timed.

use std::time::Duration;

use headworks_baselines::counting::Counts;

use crate::arms::job::{Channel, Report, Workload};
use crate::bench::Bench;
use crate::outcome::{Grid, Outcome};
use crate::runner::RunError;

use super::sweep::{job, private};

/// How long messages are counted.
const RUN: Duration = Duration::from_millis(20);

/// What the sending and the receiving end did for a message.
#[derive(Clone, Copy, Debug)]
struct PerMessage {
    messages: f64,
    sender: Counts,
    receiver: Counts,
}

/// Counts for every arm at every size, a quick run at the first size only, and puts the table into the
/// report.
pub(super) fn record(
    bench: &mut Bench<'_>,
    outcome: &mut Outcome,
    channels: &[Channel],
    sizes: &[usize],
) -> Result<(), RunError> {
    let header = [
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
    ];
    let mut grid = Grid {
        title: "Posted and polled for a message, counted in a run of its own".into(),
        header: header.map(String::from).to_vec(),
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
         copies are the sender's, the device's and the receiver's by design (Table I: who has zero copy), \
         not counted."
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

fn count(bench: &Bench<'_>, channel: Channel, size: usize) -> Result<PerMessage, String> {
    let dir = private().map_err(|why| why.to_string())?;
    let mut job = job(channel, Workload::Rate, size, RUN, &dir);
    job.counted = true;
    job.yields = bench.place.is_crowded(1);
    let reports = bench.place.run_pair(&job).map_err(|why| why.to_string())?;
    let [
        Report::Counted { messages, counts },
        Report::Counted {
            counts: receiver, ..
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
        }),
    }
}

fn row(channel: Channel, size: usize, counted: PerMessage) -> Vec<String> {
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
    row
}
