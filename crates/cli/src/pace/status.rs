//! `headworks pace status`.

use std::fmt::Write;

use headworks::pace::{Observer, observers};
use serde_json::{Value, json};

use super::{gbps, is_window, micros, unreadable_line};
use crate::exit_status::{print, write_line};

/// Options of `headworks pace status`.
#[derive(clap::Args)]
pub(crate) struct Status {
    /// Print JSON for programs: an array of the RNICs. What cannot be read is a line on standard error.
    #[arg(long)]
    json: bool,
}

pub(crate) fn run(command: &Status) -> anyhow::Result<()> {
    let all = observers()?;
    let unreadable = unreadable_line(&all);
    if command.json {
        if let Some(line) = unreadable {
            write_line(line);
        }
        let all: Vec<_> = all.rnics.iter().map(in_json).collect();
        return print(&format!("{:#}\n", Value::Array(all)));
    }
    let mut text: String = all.rnics.iter().map(in_text).collect();
    if let Some(line) = unreadable {
        text += &format!("{line}\n");
    } else if all.rnics.is_empty() {
        text += "no process of this user paces an RNIC now\n";
    }
    print(&text)
}

fn in_text(observer: &Observer) -> String {
    let (status, constants) = (observer.status(), observer.constants());
    let mut text = format!("{}\n", observer.rnic());
    // Writing to a string does not fail.
    let _ = match is_window(observer) {
        true => writeln!(
            text,
            "    limits the bytes in flight, not the rate (pace_window)"
        ),
        false => writeln!(
            text,
            "    rate {:.3} Gbit/s, of {} to {}; the clock is {} ahead",
            gbps(status.rate_bytes_per_s),
            constants.min_rate_gbps,
            constants.line_rate_gbps,
            status.ahead,
        ),
    };
    let _ = match status.delay.nanos() {
        0 => write!(text, "    no delay measured yet;"),
        _ => write!(
            text,
            "    delay {:.3} us, {:.2} base delays above the base delay;",
            micros(&status),
            status.ratio,
        ),
    };
    let _ = writeln!(
        text,
        " the rate rises up to {} and falls from {} on",
        status.raise_below, status.lower_above,
    );
    let pids: Vec<_> = observer.pids().iter().map(u32::to_string).collect();
    let _ = writeln!(
        text,
        "    active queue pairs {}, completion queues {}; pid {}",
        status.active,
        status.members,
        pids.join(", "),
    );
    text
}

fn in_json(observer: &Observer) -> Value {
    let (status, constants) = (observer.status(), observer.constants());
    json!({
        "rnic": observer.rnic(),
        "pids": observer.pids(),
        "rate_bytes_per_s": status.rate_bytes_per_s,
        "line_rate_bytes_per_s": constants.line_rate(),
        "min_rate_bytes_per_s": constants.min_rate(),
        "window": is_window(observer),
        // 0 before the first completion.
        "delay_ns": status.delay.nanos(),
        "ratio": status.ratio,
        "raise_below": status.raise_below,
        "lower_above": status.lower_above,
        "active": status.active,
        "members": status.members,
        "ahead_ns": status.ahead.nanos(),
    })
}
