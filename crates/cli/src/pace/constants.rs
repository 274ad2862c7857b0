//! `headworks pace constants`.

use std::fmt::Write;

use headworks::pace::{CONSTANTS, Constant};
use serde_json::{Value, json};

use crate::exit_status::print;

/// Options of `headworks pace constants`.
#[derive(clap::Args)]
pub(crate) struct Constants {
    /// Print JSON for programs: an array.
    #[arg(long)]
    json: bool,
}

pub(crate) fn run(command: &Constants) -> anyhow::Result<()> {
    if command.json {
        let all: Vec<_> = CONSTANTS.iter().map(in_json).collect();
        return print(&format!("{:#}\n", Value::Array(all)));
    }
    print(&in_text())
}

/// Text of one column for a constant.
type Column = fn(&Constant) -> String;

fn in_text() -> String {
    let width = |head: &str, of: Column| {
        let longest = CONSTANTS.iter().map(|constant| of(constant).len()).max();
        longest.unwrap_or(0).max(head.len())
    };
    let columns: [(&str, Column); 4] = [
        ("key", |constant| constant.key.to_owned()),
        ("unit", |constant| constant.unit.to_owned()),
        ("default", |constant| constant.default().to_string()),
        ("range", Constant::range),
    ];
    let mut text = "constants of pacing; a device's name changes them: soft:h1,pace_KEY=VALUE\n\
        other defaults: sim:PRESET has its own line rate, soft takes no timestamps\n\n"
        .to_owned();
    // Writing to a string does not fail.
    for (head, of) in columns {
        let _ = write!(text, "{head:0$}  ", width(head, of));
    }
    let _ = writeln!(text, "what");
    for constant in CONSTANTS {
        for (head, of) in columns {
            let _ = write!(text, "{:1$}  ", of(constant), width(head, of));
        }
        let _ = writeln!(text, "{}", constant.what);
    }
    text
}

fn in_json(constant: &Constant) -> Value {
    json!({
        "key": constant.key,
        "unit": constant.unit,
        "what": constant.what,
        "lowest": constant.lowest,
        "highest": constant.highest,
        "whole": constant.kind.is_whole(),
        "default": constant.default().as_f64(),
    })
}
