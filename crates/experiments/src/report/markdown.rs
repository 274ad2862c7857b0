//! `report.md`: what people read.

use std::fmt::Write;

use headworks::sim::Setting;

use super::StatedValues;
use crate::about::{About, Options};
use crate::chance;
use crate::format::human;
use crate::machine::{Machine, PROFILE};
use crate::outcome::{ELSEWHERE, Grid, Outcome};

/// The report as Markdown.
pub fn report(
    about: &About,
    stated: &StatedValues,
    options: &Options,
    machine: &Machine,
    outcome: &Outcome,
) -> String {
    let mut out = String::new();
    heading(&mut out, about, options, machine, outcome);
    if !outcome.figures.is_empty() {
        for figure in &outcome.figures {
            out += &format!("![{}]({})\n", figure.title, figure.file);
        }
        out.push('\n');
    }
    ratios(&mut out, stated, outcome);
    for table in &outcome.grids {
        grid(&mut out, table);
    }
    let arms = outcome.arms.iter();
    let arms = arms.map(|a| {
        [&a.name, &a.what, a.waiting, &a.copies]
            .map(str::to_owned)
            .to_vec()
    });
    let header = ["arm", "what", "both sides", "copies of the bytes"];
    let arms = Grid::of("Arms", header, arms.collect());
    arms.iter().for_each(|arms| grid(&mut out, arms));
    if !outcome.notes.is_empty() {
        out += "## Remarks\n\n";
        for note in &outcome.notes {
            out += &format!("- {note}\n");
        }
    }
    out
}

fn heading(
    out: &mut String,
    about: &About,
    options: &Options,
    machine: &Machine,
    outcome: &Outcome,
) {
    out.push_str(&format!(
        "# {}\n\n{}\n\n{}\n\n",
        about.name, about.line, about.measures
    ));
    if let Some(paper) = about.paper {
        out.push_str(&format!(
            "Paper: {} ({}), {}.\n\n",
            paper.title, paper.year, paper.figure
        ));
    }
    let mut item = |name: &str, value: &str| {
        out.push_str(&format!("- {name}: {value}\n"));
    };
    let (device, is_simulated) = outcome.ran_on(options);
    let simulated = if is_simulated { " (simulated)" } else { "" };
    let peer = match &*outcome.devices {
        [] => options.peer().to_string(),
        _ => "the same".to_owned(),
    };
    item("device", &format!("{device}{simulated}, peer {peer}"));
    if let Some(seed) = chance::seed(&options.device) {
        item("seed", &seed.to_string());
    }
    let settings: Vec<_> = options.settings().map(with_unit).collect();
    if !settings.is_empty() {
        item(
            "settings",
            &format!("{}; the preset has others", settings.join(", ")),
        );
    }
    item(
        "machine",
        &format!(
            "{}, {} cores, {} GiB",
            machine.cpu, machine.cores, machine.memory_gib
        ),
    );
    if !outcome.pinning.is_empty() {
        item("pinning", &outcome.pinning);
    }
    item(
        "repeats",
        &format!(
            "{}{}",
            outcome.repeats,
            if options.quick { ", quick" } else { "" }
        ),
    );
    let version = env!("CARGO_PKG_VERSION");
    item("headworks", &format!("{version}, profile {PROFILE}"));
    for (name, version) in &outcome.versions {
        item(name, version);
    }
    out.push('\n');
}

/// `link.rate=56 Gbit/s`.
fn with_unit(setting: &Setting) -> String {
    format!("{setting} {}", setting.constant().unit)
}

fn ratios(out: &mut String, stated: &StatedValues, outcome: &Outcome) {
    let paper = |key: &str| {
        let stated = stated.get(key);
        stated.map_or(String::new(), |s| format!("{} ({})", s.claim, s.section))
    };
    let measured = outcome.ratios().iter().map(|(key, value)| {
        let spread = format!("{} – {}", human(value.low), human(value.high));
        vec![key.clone(), human(value.median), spread, paper(key)]
    });
    let (elsewhere, skipped): (Vec<_>, Vec<_>) = outcome
        .skipped()
        .iter()
        .partition(|(_, why)| why.as_str() == ELSEWHERE);
    let skipped = skipped
        .into_iter()
        .map(|(key, why)| vec![key.clone(), "skipped".to_owned(), why.clone(), paper(key)]);
    let header = ["key", "median", "lowest – highest repeat", "paper"];
    let figures = Grid::of("Figures", header, measured.chain(skipped).collect());
    figures.iter().for_each(|figures| grid(out, figures));
    if !elsewhere.is_empty() {
        let _ = write!(
            out,
            "{} keys of `summary.json` are of points that this run does not measure, and not in this table.\n\n",
            elsewhere.len()
        );
    }
}

fn grid(out: &mut String, table: &Grid) {
    if table.rows.is_empty() {
        return;
    }
    let cell = |text: &String| text.replace('|', "\\|").replace('\n', " ");
    let line = |cells: &[String]| {
        format!(
            "| {} |\n",
            cells.iter().map(cell).collect::<Vec<_>>().join(" | ")
        )
    };
    let _ = write!(out, "## {}\n\n{}", table.title, line(&table.header));
    out.push_str(&line(&vec!["---".to_owned(); table.header.len()]));
    for row in &table.rows {
        out.push_str(&line(row));
    }
    out.push('\n');
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::claim::{Claim, Stated};
    use crate::outcome::ArmNote;
    use crate::stats::Spread;

    #[test]
    fn says_what_ran_where_and_how() {
        let about = About::new("demo", "A demo.", "Nothing.");
        let mut outcome = Outcome::default();
        outcome.pinning = "sender on cpu 0".into();
        outcome.versions = vec![("ucx".into(), "1.13.1".into())];
        outcome.arms = vec![ArmNote {
            name: "tcp".into(),
            what: "a|b".into(),
            waiting: "block",
            copies: "2".into(),
        }];
        outcome.measured("k", Spread::of(&[1.0, 2.0, 3.0]).unwrap());
        outcome.skip("m", "not installed");
        outcome.skip("n", ELSEWHERE);
        outcome.skip("o", ELSEWHERE);
        let stated = Stated {
            claim: Claim::Above(2.0),
            section: "V-B",
        };
        let stated = StatedValues::from([("k".to_owned(), stated)]);
        let options = Options::on("soft".parse().unwrap());
        let machine = Machine {
            cpu: "C".into(),
            cores: 2,
            memory_gib: 4.0,
        };
        let text = report(&about, &stated, &options, &machine, &outcome);
        assert!(
            !text.contains("- seed") && !text.contains("- settings"),
            "{text}"
        );
        assert!(text.contains("\n2 keys of `summary.json` are of points that"));
        assert!(
            !text.contains("| n |") && !text.contains(ELSEWHERE),
            "{text}"
        );
        let simulated = Options {
            set: vec![
                "link.rate=56".parse().unwrap(),
                "nic.icm=7".parse().unwrap(),
            ],
            ..Options::on("sim:cx5-100g,seed=3".parse().unwrap())
        };
        let said = report(&about, &stated, &simulated, &machine, &outcome);
        for wanted in [
            "- device: sim:cx5-100g,seed=3 (simulated)",
            "- seed: 3\n",
            "- settings: link.rate=56 Gbit/s, nic.icm=7 entries; the preset has others\n",
        ] {
            assert!(said.contains(wanted), "{wanted} in\n{said}");
        }
        for wanted in [
            "- device: soft, peer soft:h2",
            "- machine: C, 2 cores, 4 GiB",
            "- pinning: sender on cpu 0",
            "- ucx: 1.13.1",
            "| k | 2.000 | 1.000 – 3.000 | above 2.000 (V-B) |",
            "| m | skipped | not installed |  |",
            "| tcp | a\\|b | block | 2 |",
        ] {
            assert!(text.contains(wanted), "{wanted} in\n{text}");
        }
    }
}
