use std::collections::BTreeMap;

use super::*;
use crate::outcome::ELSEWHERE;

const FAST: Point<&str> = Point::at("fast", 64);
const SLOW: Point<&str> = Point::at("slow", 64);

fn value(point: Point<&'static str>) -> Expr<&'static str> {
    Expr::At(point, VALUE)
}

fn table() -> Table<&'static str> {
    let mut table = Table::new(vec![arm("fast", "a fast one", "poll", "0")]);
    table
        .arm()
        .x("size [B]")
        .spread("rate [1/s]", |point| value(*point));
    table.repeats(|point| value(*point));
    table.metric("fast_over_slow", value(FAST) / value(SLOW));
    table
        .of("fast_over_slow")
        .paper(Claim::Between(2.0, 2.5), "V-B");
    table
        .metric("fast_mmsg_per_s", value(FAST) * 1e-6)
        .paper(Claim::About(1.0), "abstract");
    table.metric("absent", value(Point::at("absent", 64)));
    table.metric("virtual", value(Point::at("fast", 7)));
    table.declare(["by_hand", "by_hand_not"]);
    table.check("fast is faster", |of| {
        let gain = (value(FAST) / value(SLOW)).median(of)?;
        Some((format!("{} times", human(gain)), gain > 1.0))
    });
    table.sentence(
        "fast is above 1 M/s and below 2 M/s",
        [
            ("above", value(FAST), Claim::Above(1e6)),
            ("below", value(FAST), Claim::Below(2e6)),
            ("absent", value(Point::at("absent", 64)), Claim::Above(0.0)),
        ],
    );
    table.sentence(
        "nothing is said",
        [("absent", value(Point::at("absent", 64)), Claim::Above(0.0))],
    );
    let axes = (Axis::log("size [B]"), Axis::linear("rate [1/s]"));
    table.chart("rate.svg", "Rate over size", axes, |point| {
        Some((point.arm.to_owned(), point.x as f64, value(*point)))
    });
    table
}

fn rendered(measured: &Measured<&'static str>) -> Outcome {
    let mut outcome = Outcome::default();
    outcome.measured("by_hand", Spread::single(7.0));
    outcome.skip("by_hand_not", "it needs valgrind");
    table().render(measured, &mut outcome);
    outcome
}

fn measured() -> Measured<&'static str> {
    let rounds = |values: [f64; 2]| values.map(|value| Some(value.into())).to_vec();
    let points = [(FAST, rounds([3e6, 6e6])), (SLOW, rounds([1e6, 2e6]))];
    let why = BTreeMap::from([("absent".to_owned(), "it is not installed".to_owned())]);
    Measured::new(points, why)
}

#[test]
fn points_metrics_checks_and_charts_come_from_one_table() {
    let outcome = rendered(&measured());
    let csv = outcome.points.to_csv();
    let lines: Vec<&str> = csv.lines().collect();
    assert_eq!(
        lines[0],
        "arm,size [B],rate [1/s],rate low [1/s],rate high [1/s],repeats"
    );
    assert_eq!(lines[1], "fast,64,4500000,3000000,6000000,2");
    assert_eq!(outcome.grids[0].rows[1][2], "1.50M (1.00M – 2.00M)");
    assert_eq!(outcome.ratios()["fast_over_slow"].median, 3.0);
    assert_eq!(outcome.ratios()["by_hand"].median, 7.0);
    for (key, why) in [
        ("absent", "it is not installed"),
        ("virtual", ELSEWHERE),
        ("by_hand_not", "it needs valgrind"),
    ] {
        assert_eq!(outcome.skipped()[key], why);
    }
    let said: Vec<_> = outcome.grids[1]
        .rows
        .iter()
        .map(|row| row.join("; "))
        .collect();
    assert_eq!(
        said,
        [
            "fast_over_slow: 2.000 to 2.500 (V-B); 3.000; no",
            "fast_mmsg_per_s: about 1.000 (abstract); 4.500; no",
            "fast is faster; 3.000 times; yes",
            "fast is above 1 M/s and below 2 M/s; above 4.50M (above 1.00M), below 4.50M (below 2.00M); –",
        ]
    );
    let figure = &outcome.figures[0];
    assert_eq!(figure.series[1].points, [(64.0, 1.5e6)]);
    assert!(outcome.notes[0].starts_with("absent was not measured"));
}

#[test]
fn derived_points_are_drawn_and_have_no_rows_and_lists_that_are_long_stay_in_the_csv() {
    let mut measured = measured();
    let times = [1.0, 2.0, 9.0].map(|value| Some(value.into()));
    let settled = Point::of("settled", "fast", 0);
    measured.derive(settled, times.to_vec());
    let mut table = table();
    table.metric(
        "settled",
        value(settled).all(|spread| spread.median) / value(SLOW),
    );
    table.metric("moved", value(settled).fluctuation());
    let axes = (Axis::linear("x"), Axis::linear("y"));
    table.marks("marks.svg", "Marks", axes, |point| {
        let mark = |y| (point.load.to_owned(), value(*point), Expr::Is(y));
        vec![mark(0.5), mark(0.9)]
    });
    table.unlisted().keep_charts(|file| file == "marks.svg");
    let mut outcome = Outcome::default();
    table.render(&measured, &mut outcome);
    assert_eq!((outcome.points.rows.len(), outcome.repeats), (2, 2));
    assert_eq!(outcome.ratios()["settled"].median, 2.0 / 1e6);
    assert_eq!(outcome.ratios()["moved"].median, 4.0);
    assert!(
        outcome
            .grids
            .iter()
            .all(|grid| !grid.title.contains("Points"))
    );
    let [figure] = &outcome.figures[..] else {
        panic!("{:?}", outcome.figures);
    };
    assert_eq!(figure.series[1].points, [(2.0, 0.5), (2.0, 0.9)]);
}

#[test]
fn a_table_of_nothing_skips_every_metric_and_can_be_drawn() {
    let outcome = rendered(&Measured::default());
    let keys: Vec<String> = table().keys().into_iter().map(|(key, _)| key).collect();
    for key in keys.iter().filter(|key| *key != "by_hand") {
        assert!(!outcome.skipped()[key].is_empty(), "no word on {key}");
    }
    assert_eq!(table().files(), ["rate.svg"]);
    outcome.figures[0].to_svg().expect("a figure of nothing");
}
