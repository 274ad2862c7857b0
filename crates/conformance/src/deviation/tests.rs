use super::*;
use Status::{Flushed, LocalProtection, LocalQpOperation, Success};

const fn known(of: &'static [&'static str], does: Does) -> Deviation {
    Deviation {
        cases: &["a::case"],
        of,
        does,
        asked: ("", ""),
        demanded: "",
        seen: "",
    }
}

/// What is known for certain.
fn certain(all: Vec<Deviation>) -> Knowledge {
    Knowledge {
        all: all.leak(),
        is_certain: true,
    }
}

const OTHER: Does = Does::Completes(LocalProtection, LocalQpOperation);

fn failed(line: &str) -> Verdict {
    Err(line.to_owned())
}

#[test]
fn where_nothing_is_known_a_verdict_stays_what_it_is() {
    let mut watch = Watch::of("another::case", certain(vec![known(&[], OTHER)]));
    assert_eq!(
        watch.status(LocalProtection, LocalQpOperation),
        LocalProtection
    );
    assert!(!watch.refuses("Operation"));
    watch.enter("SEND");
    assert_eq!(watch.leave(failed("bad")), failed("bad"));
    assert_eq!(watch.end(Ok(())), Ok(()));
    let usual = Duration::from_millis(10_000);
    assert_eq!(watch.deadline(Some("a wait"), usual), usual);
}

#[test]
fn another_status_is_demanded_in_place_of_one_and_must_come() {
    let mut watch = Watch::of("a::case", certain(vec![known(&[], OTHER)]));
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
    watch.enter("SEND");
    assert_eq!(
        watch.status(LocalProtection, LocalQpOperation),
        LocalQpOperation
    );
    assert_eq!(watch.leave(Ok(())), Ok(()));
    assert_eq!(watch.end(Ok(())), Ok(()));
    assert_eq!(watch.end(failed("bad")), failed("bad"));
}

#[test]
fn what_is_known_of_some_operations_holds_for_each_of_them_and_no_other() {
    let all = [known(&["SEND", "WRITE"], OTHER)];
    let mut watch = Watch::of("a::case", certain(all.to_vec()));
    for part in ["SEND", "READ", "WRITE"] {
        watch.enter(part);
        let expected = match part {
            "READ" => LocalProtection,
            _ => LocalQpOperation,
        };
        assert_eq!(watch.status(LocalProtection, expected), expected);
        assert_eq!(watch.leave(Ok(())), Ok(()));
    }
    assert_eq!(watch.end(Ok(())), Ok(()));
    let mut watch = Watch::of("a::case", certain(all.to_vec()));
    watch.enter("SEND");
    assert!(watch.leave(Ok(())).is_err(), "did not come with SEND");
    watch.enter("SEND");
    watch.status(LocalProtection, LocalQpOperation);
    assert_eq!(watch.leave(Ok(())), Ok(()));
    assert!(watch.end(Ok(())).is_err(), "WRITE never came");
}

#[test]
fn a_case_that_must_end_early_ends_so_and_not_otherwise() {
    for does in [Does::Ends("no event"), Does::Hangs("no event")] {
        let mut watch = Watch::of("a::case", certain(vec![known(&[], does)]));
        assert_eq!(watch.end(failed("no event within 2 s")), Ok(()));
        assert_eq!(watch.end(failed("bad")), failed("bad"));
        assert!(watch.end(Ok(())).is_err(), "it went well");
        let mut watch = Watch::of("a::case", certain(vec![known(&["SEND"], does)]));
        watch.enter("SEND");
        assert_eq!(watch.leave(failed("no event within 2 s")), Ok(()));
        watch.enter("WRITE");
        assert_eq!(watch.leave(failed("no event")), failed("no event"));
        assert_eq!(watch.end(failed("no event")), failed("no event"));
        assert_eq!(watch.end(Ok(())), Ok(()));
    }
}

#[test]
fn what_may_hang_may_go_well() {
    let mut watch = Watch::of(
        "a::case",
        certain(vec![known(&["SEND"], Does::MayHang("a wait: no event"))]),
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
        watch.enter("SEND");
        let usual = Duration::from_millis(10_000);
        assert_eq!(watch.deadline(Some("a wait"), usual), Does::SOON);
        assert_eq!(watch.leave(verdict), judged);
    }
    assert_eq!(watch.end(Ok(())), Ok(()));
}

#[test]
fn what_hung_has_not_come_to_show_the_rest() {
    let status = Does::Completes(LocalProtection, LocalQpOperation);
    let hang = Does::MayHang("a wait: no event");
    let all = [known(&["SEND"], status), known(&["SEND"], hang)];
    for (verdict, is_good) in [
        (failed("a wait: no event within 1 s"), true),
        (Ok(()), false),
    ] {
        let mut watch = Watch::of("a::case", certain(all.to_vec()));
        watch.enter("SEND");
        assert_eq!(watch.leave(verdict).is_ok(), is_good);
    }
}

#[test]
fn an_event_may_be_known_not_to_come() {
    let mut watch = Watch::of("a::case", certain(vec![known(&[], Does::Keeps("Last"))]));
    assert!(!watch.keeps("Fatal(1)"));
    assert!(watch.end(Ok(())).is_err());
    assert!(watch.keeps("Last(1)"));
    assert_eq!(watch.end(Ok(())), Ok(()));
}

#[test]
fn what_never_comes_is_not_waited_for_as_long_and_everything_else_is() {
    let usual = Duration::from_millis(10_000);
    let all = vec![known(&["SEND"], Does::Hangs("a wait: no"))];
    let mut watch = Watch::of("a::case", certain(all));
    assert_eq!(watch.deadline(Some("a wait"), usual), usual);
    watch.enter("SEND");
    assert_eq!(watch.deadline(Some("a wait"), usual), Does::SOON);
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
fn what_chance_decides_may_come_or_not_and_nothing_else_may() {
    let does = Does::MayComplete(LocalProtection, LocalQpOperation);
    let mut watch = Watch::of("a::case", certain(vec![known(&[], does)]));
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
    let all = vec![known(&[], Does::Refuses("Operation"))];
    let mut watch = Watch::of("a::case", certain(all));
    assert!(!watch.refuses("QueueFull"));
    assert!(watch.end(Ok(())).is_err());
    assert!(watch.refuses("Operation"));
    assert_eq!(watch.end(Ok(())), Ok(()));
}

#[test]
fn what_was_found_elsewhere_may_be_mended_here_and_is_told_of() {
    let all = vec![
        known(&[], OTHER),
        known(&[], Does::Refuses("Operation")),
        known(&[], Does::Ends("no event")),
    ];
    let knowledge = Knowledge {
        is_certain: false,
        ..certain(all)
    };
    let mut watch = Watch::of("a::case", knowledge);
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
    let mut watch = Watch::of("a::case", knowledge);
    assert_eq!(
        watch.status(LocalProtection, LocalQpOperation),
        LocalQpOperation
    );
    assert!(watch.refuses("Operation"));
    assert_eq!(watch.end(failed("no event within 2 s")), Ok(()));
    assert_eq!(watch.unseen().len(), 0);
}
