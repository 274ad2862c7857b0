//! `headworks sim presets`.

use std::fmt::Write;

use headworks::sim::{CONSTANTS, Constant, Preset, Value as ConstantValue};
use serde_json::{Map, Value, json};

use crate::exit_status::{bad_input, print};

/// Options of `headworks sim presets`.
#[derive(clap::Args)]
pub(crate) struct Presets {
    /// List this preset only.
    name: Option<String>,
    /// Print JSON for programs: an object of all constants.
    #[arg(long)]
    json: bool,
}

pub(crate) fn run(command: &Presets) -> anyhow::Result<()> {
    let presets = chosen(command.name.as_deref())?;
    if command.json {
        return print(&format!("{:#}\n", in_json(&presets)));
    }
    print(&in_text(&presets))
}

fn chosen(name: Option<&str>) -> anyhow::Result<Vec<Preset>> {
    let Some(name) = name else {
        return Ok(Preset::NAMES
            .into_iter()
            .filter_map(Preset::named)
            .collect());
    };
    let Some(preset) = Preset::named(name) else {
        let there = Preset::NAMES.join(", ");
        return Err(bad_input(format_args!(
            "no preset is called {name:?}: there are {there}"
        )));
    };
    Ok(vec![preset])
}

/// Returns the value of a constant in each preset.
fn values(presets: &[Preset], constant: &Constant) -> Vec<ConstantValue> {
    let of = |preset: &Preset| preset.value(constant.key);
    presets.iter().filter_map(of).collect()
}

fn in_text(presets: &[Preset]) -> String {
    let width = |head: &str, of: fn(&Constant) -> &str| {
        let longest = CONSTANTS
            .iter()
            .map(|constant| of(constant).chars().count())
            .max();
        longest.unwrap_or(0).max(head.len())
    };
    let (key, unit) = (width("key", |c| c.key), width("unit", |c| c.unit));
    let column = |preset: &Preset| preset.name.len().max("16777216".len());
    let bounds = CONSTANTS.iter().map(Constant::range).collect::<Vec<_>>();
    let bound = bounds.iter().map(String::len).max().unwrap_or(0);
    let mut text = "simulated machines and their constants; --set KEY=VALUE changes one\n\
        below each constant is its source; † was cited from memory\n\n"
        .to_owned();
    // Writing to a string does not fail.
    let _ = write!(text, "{:key$}  {:unit$}", "key", "unit");
    for preset in presets {
        let _ = write!(text, "  {:>1$}", preset.name, column(preset));
    }
    let _ = writeln!(text, "  {:bound$}  what", "range");
    for (constant, bounds) in CONSTANTS.iter().zip(&bounds) {
        let _ = write!(text, "{:key$}  {:unit$}", constant.key, constant.unit);
        for (preset, value) in presets.iter().zip(values(presets, constant)) {
            let _ = write!(text, "  {value:>0$}", column(preset));
        }
        let _ = writeln!(text, "  {bounds:bound$}  {}", constant.what);
        let _ = writeln!(text, "    {}", constant.source);
    }
    text
}

fn in_json(presets: &[Preset]) -> Value {
    let constant = |constant: &Constant| {
        let names = presets.iter().map(|preset| preset.name.to_owned());
        let values = values(presets, constant).into_iter();
        let values = values.map(|value| Value::from(value.as_f64()));
        json!({
            "key": constant.key,
            "unit": constant.unit,
            "what": constant.what,
            "source": constant.source,
            "lowest": constant.lowest,
            "highest": constant.highest,
            "whole": constant.kind.is_whole(),
            "values": names.zip(values).collect::<Map<_, _>>(),
        })
    };
    let names: Vec<_> = presets.iter().map(|preset| preset.name).collect();
    json!({
        "simulated": true,
        "presets": names,
        "constants": CONSTANTS.iter().map(constant).collect::<Vec<_>>(),
    })
}
