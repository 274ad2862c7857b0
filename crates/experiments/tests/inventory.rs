//! The list of experiments, their metrics and their figures. Scripts read these by name, so no name may
//! disappear unnoticed.

use std::collections::BTreeSet;
use std::path::Path;

use headworks_experiments::registry;

/// Path of the list: `EXPERIMENT:`, then its metrics and its figures (`*.svg`).
const LIST: &str = "tests/inventory.txt";
/// Greatest width of a line.
const WIDTH: usize = 118;

/// Returns `EXPERIMENT NAME` for each name in the list.
fn parse(list: &str) -> BTreeSet<String> {
    let mut experiment = "";
    let names = list.split_whitespace().filter_map(|word| {
        if let Some(name) = word.strip_suffix(':') {
            experiment = name;
            return None;
        }
        Some(format!("{experiment} {word}"))
    });
    names.collect()
}

/// Formats the list in the form that [`parse`] reads.
fn list(declared: &BTreeSet<String>) -> String {
    let (mut list, mut experiment, mut column) = (String::new(), "", 0);
    for entry in declared {
        let (of, name) = entry.split_once(' ').expect("an experiment and a name");
        if of != experiment {
            let newline = if list.is_empty() { "" } else { "\n" };
            list += &format!("{newline}{of}:");
            (experiment, column) = (of, of.len() + 1);
        }
        if column + name.len() >= WIDTH {
            list += "\n ";
            column = 1;
        }
        list += &format!(" {name}");
        column += name.len() + 1;
    }
    list + "\n"
}

#[test]
fn every_experiment_metric_and_figure_of_the_list_is_declared_and_no_other() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join(LIST);
    let mut declared = BTreeSet::new();
    for experiment in registry() {
        let metrics = experiment.metrics().into_iter().map(|(key, _)| key);
        let names = metrics.chain(experiment.figures());
        declared.extend(names.map(|name| format!("{} {name}", experiment.about().name)));
    }
    if std::env::var_os("HEADWORKS_WRITE_TABLE").is_some() {
        std::fs::write(&path, list(&declared)).expect("the list can be written");
    }
    let listed = parse(&std::fs::read_to_string(&path).expect("the list"));
    let gone: Vec<_> = listed.difference(&declared).collect();
    let new: Vec<_> = declared.difference(&listed).collect();
    assert!(
        gone.is_empty() && new.is_empty(),
        "gone: {gone:#?}, new: {new:#?}; HEADWORKS_WRITE_TABLE=1 writes {LIST} anew"
    );
}
