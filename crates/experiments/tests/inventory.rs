//! The list of experiments, their metrics and their figures: what scripts read by name stays there.

use std::collections::BTreeSet;
use std::path::Path;

use headworks_experiments::registry;

/// `EXPERIMENT METRIC` or `EXPERIMENT FIGURE.svg` in each line.
const LIST: &str = "tests/inventory.txt";

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
        let lines: Vec<_> = declared.iter().map(|line| format!("{line}\n")).collect();
        std::fs::write(&path, lines.concat()).expect("the list can be written");
    }
    let listed = std::fs::read_to_string(&path).expect("the list");
    let listed: BTreeSet<String> = listed.lines().map(str::to_owned).collect();
    let gone: Vec<_> = listed.difference(&declared).collect();
    let new: Vec<_> = declared.difference(&listed).collect();
    assert!(
        gone.is_empty() && new.is_empty(),
        "gone: {gone:#?}, new: {new:#?}; HEADWORKS_WRITE_TABLE=1 writes {LIST} anew"
    );
}
