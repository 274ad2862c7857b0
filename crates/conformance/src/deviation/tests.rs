use super::*;
use Status::{Flushed, LocalProtection, LocalQpOperation, Success};

const fn known(operations: &'static [&'static str], behaviour: DeviantBehaviour) -> Deviation {
    Deviation {
        cases: &["a::case"],
        operations,
        behaviour,
        verb_and_request: ("", ""),
        demanded: "",
        observed: "",
    }
}

/// Returns a certain list of these deviations.
fn certain(all: Vec<Deviation>) -> KnownDeviations {
    KnownDeviations {
        all: all.leak(),
        is_certain: true,
    }
}

const OTHER: DeviantBehaviour = DeviantBehaviour::Completes(LocalProtection, LocalQpOperation);

fn failed(line: &str) -> Verdict {
    Err(line.to_owned())
}

#[test]
fn verdicts_are_unchanged_without_known_deviations() {
    let mut watch = DeviationTracker::for_case("another::case", certain(vec![known(&[], OTHER)]));
    assert_eq!(
        watch.status(LocalProtection, LocalQpOperation),
        LocalProtection
    );
    assert!(!watch.refuses("Operation"));
    watch.begin_section("SEND");
    assert_eq!(watch.end_section(failed("bad")), failed("bad"));
    assert_eq!(watch.end(Ok(())), Ok(()));
    let usual = Duration::from_millis(10_000);
    assert_eq!(watch.deadline(Some("a wait"), usual), usual);
}

#[test]
fn another_status_is_demanded_in_place_of_one_and_must_come() {
    let mut watch = DeviationTracker::for_case("a::case", certain(vec![known(&[], OTHER)]));
    assert!(watch.end(Ok(())).is_err(), "never asked for");
    assert_eq!(watch.status(Flushed, LocalQpOperation), Flushed);
    assert!(watch.end(Ok(())).is_err(), "another was asked for");
    assert_eq!(watch.status(LocalProtection, Success), LocalQpOperation);
    assert_eq!(
        watch.status(LocalProtection, LocalProtection),
        LocalQpOperation
    );
    assert!(
        watch.end(Ok(())).is_err(),
        "asked for, and something else came"
    );
    watch.begin_section("SEND");
    assert_eq!(
        watch.status(LocalProtection, LocalQpOperation),
        LocalQpOperation
    );
    assert_eq!(watch.end_section(Ok(())), Ok(()));
    assert_eq!(watch.end(Ok(())), Ok(()));
    assert_eq!(watch.end(failed("bad")), failed("bad"));
}

#[test]
fn a_deviation_applies_only_to_its_listed_operations() {
    let all = [known(&["SEND", "WRITE"], OTHER)];
    let mut watch = DeviationTracker::for_case("a::case", certain(all.to_vec()));
    for part in ["SEND", "READ", "WRITE"] {
        watch.begin_section(part);
        let expected = match part {
            "READ" => LocalProtection,
            _ => LocalQpOperation,
        };
        assert_eq!(watch.status(LocalProtection, expected), expected);
        assert_eq!(watch.end_section(Ok(())), Ok(()));
    }
    assert_eq!(watch.end(Ok(())), Ok(()));
    let mut watch = DeviationTracker::for_case("a::case", certain(all.to_vec()));
    watch.begin_section("SEND");
    assert!(watch.end_section(Ok(())).is_err(), "did not come with SEND");
    watch.begin_section("SEND");
    watch.status(LocalProtection, LocalQpOperation);
    assert_eq!(watch.end_section(Ok(())), Ok(()));
    assert!(watch.end(Ok(())).is_err(), "WRITE never came");
}

#[test]
fn a_case_that_must_end_early_ends_so_and_not_otherwise() {
    for does in [
        DeviantBehaviour::Ends("no event"),
        DeviantBehaviour::Hangs("no event"),
    ] {
        let mut watch = DeviationTracker::for_case("a::case", certain(vec![known(&[], does)]));
        assert_eq!(watch.end(failed("no event within 2 s")), Ok(()));
        assert_eq!(watch.end(failed("bad")), failed("bad"));
        assert!(watch.end(Ok(())).is_err(), "it went well");
        let mut watch =
            DeviationTracker::for_case("a::case", certain(vec![known(&["SEND"], does)]));
        watch.begin_section("SEND");
        assert_eq!(watch.end_section(failed("no event within 2 s")), Ok(()));
        watch.begin_section("WRITE");
        assert_eq!(watch.end_section(failed("no event")), failed("no event"));
        assert_eq!(watch.end(failed("no event")), failed("no event"));
        assert_eq!(watch.end(Ok(())), Ok(()));
    }
}

#[test]
fn a_possible_hang_may_also_succeed() {
    let mut watch = DeviationTracker::for_case(
        "a::case",
        certain(vec![known(
            &["SEND"],
            DeviantBehaviour::MayHang("a wait: no event"),
        )]),
    );
    for (verdict, judged) in [
        (Ok(()), Ok(())),
        (failed("a wait: no event within 1 s"), Ok(())),
        (
            failed("no event within 10 s"),
            failed("no event within 10 s"),
        ),
        (failed("bad"), failed("bad")),
    ] {
        watch.begin_section("SEND");
        let usual = Duration::from_millis(10_000);
        assert_eq!(
            watch.deadline(Some("a wait"), usual),
            DeviantBehaviour::HANG_TIMEOUT
        );
        assert_eq!(watch.end_section(verdict), judged);
    }
    assert_eq!(watch.end(Ok(())), Ok(()));
}

#[test]
fn a_hang_excuses_deviations_not_yet_shown() {
    let status = DeviantBehaviour::Completes(LocalProtection, LocalQpOperation);
    let hang = DeviantBehaviour::MayHang("a wait: no event");
    let all = [known(&["SEND"], status), known(&["SEND"], hang)];
    for (verdict, is_good) in [
        (failed("a wait: no event within 1 s"), true),
        (Ok(()), false),
    ] {
        let mut watch = DeviationTracker::for_case("a::case", certain(all.to_vec()));
        watch.begin_section("SEND");
        assert_eq!(watch.end_section(verdict).is_ok(), is_good);
    }
}

#[test]
fn an_event_may_be_known_not_to_come() {
    let mut watch = DeviationTracker::for_case(
        "a::case",
        certain(vec![known(&[], DeviantBehaviour::Keeps("Last"))]),
    );
    assert!(!watch.keeps("Fatal(1)"));
    assert!(watch.end(Ok(())).is_err());
    assert!(watch.keeps("Last(1)"));
    assert_eq!(watch.end(Ok(())), Ok(()));
}

#[test]
fn only_known_hangs_get_the_short_timeout() {
    let usual = Duration::from_millis(10_000);
    let all = vec![known(&["SEND"], DeviantBehaviour::Hangs("a wait: no"))];
    let mut watch = DeviationTracker::for_case("a::case", certain(all));
    assert_eq!(watch.deadline(Some("a wait"), usual), usual);
    watch.begin_section("SEND");
    assert_eq!(
        watch.deadline(Some("a wait"), usual),
        DeviantBehaviour::HANG_TIMEOUT
    );
    for another in [
        None,
        Some(""),
        Some("a"),
        Some("a wait: no"),
        Some("another"),
    ] {
        assert_eq!(watch.deadline(another, usual), usual, "{another:?}");
    }
}

#[test]
fn only_the_listed_optional_deviation_may_occur() {
    let does = DeviantBehaviour::MayComplete(LocalProtection, LocalQpOperation);
    let mut watch = DeviationTracker::for_case("a::case", certain(vec![known(&[], does)]));
    assert_eq!(watch.end(Ok(())), Ok(()));
    assert_eq!(
        watch.status(LocalProtection, LocalQpOperation),
        LocalQpOperation
    );
    assert_eq!(
        watch.status(LocalProtection, LocalProtection),
        LocalProtection
    );
    assert_eq!(watch.status(LocalProtection, Success), LocalProtection);
}

#[test]
fn a_refusal_counts_when_it_came() {
    let all = vec![known(&[], DeviantBehaviour::Refuses("Operation"))];
    let mut watch = DeviationTracker::for_case("a::case", certain(all));
    assert!(!watch.refuses("QueueFull"));
    assert!(watch.end(Ok(())).is_err());
    assert!(watch.refuses("Operation"));
    assert_eq!(watch.end(Ok(())), Ok(()));
}

#[test]
fn an_uncertain_deviation_may_be_absent_and_is_reported() {
    let all = vec![
        known(&[], OTHER),
        known(&[], DeviantBehaviour::Refuses("Operation")),
        known(&[], DeviantBehaviour::Ends("no event")),
    ];
    let known_deviations = KnownDeviations {
        is_certain: false,
        ..certain(all)
    };
    let mut watch = DeviationTracker::for_case("a::case", known_deviations);
    assert_eq!(
        watch.status(LocalProtection, LocalProtection),
        LocalProtection
    );
    assert_eq!(
        watch.status(LocalProtection, Success),
        LocalProtection,
        "bad all the same"
    );
    assert_eq!(watch.end(failed("bad")), failed("bad"));
    assert_eq!(watch.unseen().len(), 0);
    assert_eq!(watch.end(Ok(())), Ok(()));
    assert_eq!(watch.unseen().len(), 3, "{:?}", watch.unseen());
    let mut watch = DeviationTracker::for_case("a::case", known_deviations);
    assert_eq!(
        watch.status(LocalProtection, LocalQpOperation),
        LocalQpOperation
    );
    assert!(watch.refuses("Operation"));
    assert_eq!(watch.end(failed("no event within 2 s")), Ok(()));
    assert_eq!(watch.unseen().len(), 0);
}
