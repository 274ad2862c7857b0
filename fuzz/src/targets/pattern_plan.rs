//! A plan of request and response patterns: every plan that is accepted can be run.

use headworks_workloads::patterns::Design;
use headworks_workloads::patterns::plan::{Plan, parse_bytes};

/// Points of a plan that are looked at.
const POINTS: usize = 16;

pub(super) fn run(bytes: &[u8]) {
    let Ok(text) = std::str::from_utf8(bytes) else {
        return;
    };
    for word in text.split([' ', '"', '\n']) {
        if let Ok(design) = word.parse::<Design>() {
            assert_eq!(design.to_string().parse(), Ok(design));
        }
        if let Some(bytes) = parse_bytes(word) {
            assert_eq!(parse_bytes(&bytes.to_string()), Some(bytes));
        }
    }
    let plan = match Plan::parse(text) {
        Ok(plan) => plan,
        Err(error) => {
            assert!(!error.to_string().contains('\n'), "{error}");
            return;
        }
    };
    let points = plan.points().expect("a parsed plan has legal values");
    for point in points.iter().take(POINTS) {
        let task = plan.task(point, bytes.len().is_multiple_of(2));
        task.check().expect("a plan's tasks are legal");
        assert!(task.requester_actors() >= 1);
    }
}
