use proptest::prelude::*;

use super::EcnCommand::{Lower, Restore};
use super::PoolLevel::{Danger, Idle, Safe, Short};
use super::*;

fn at(ms: u64) -> Instant {
    Instant::ZERO + Duration::from_millis(ms)
}

/// A control that has restored the threshold at its start, at 10 ms.
fn started() -> EcnControl {
    let mut control = EcnControl::new(Duration::from_millis(100));
    assert_eq!(control.begin(at(10)), Some(Restore));
    control.ended(true, at(10));
    control
}

#[test]
fn a_host_is_in_danger_only_if_all_pools_in_use_are() {
    for (pools, level) in [
        (&[][..], Idle),
        (&[Idle, Idle], Idle),
        (&[Idle, Danger], Danger),
        (&[Danger, Danger], Danger),
        (&[Danger, Safe], Short),
        (&[Safe, Danger, Danger], Short),
        (&[Short, Safe], Short),
        (&[Safe, Idle, Safe], Safe),
    ] {
        assert_eq!(
            PoolLevel::of_host(pools.iter().copied()),
            level,
            "{pools:?}"
        );
    }
}

#[test]
fn a_start_restores_and_danger_lowers() {
    let mut control = started();
    assert_eq!((control.begin(at(500)), control.deadline()), (None, None));
    control.set_level(Danger);
    assert_eq!(control.begin(at(500)), Some(Lower));
    assert!(control.is_lowered());
    assert_eq!(control.begin(at(900)), None, "one command at a time");
    control.ended(true, at(900));
    assert_eq!(control.begin(at(2000)), None, "once is enough");
    control.set_level(Short);
    assert_eq!(control.begin(at(2000)), None, "not above the safety line");
    control.set_level(Safe);
    assert_eq!(control.begin(at(2000)), Some(Restore));
    assert!(control.is_lowered(), "until it has succeeded");
    control.ended(true, at(2010));
    assert!(!control.is_lowered());
}

#[test]
fn the_threshold_may_be_lowered_until_the_first_restore_succeeds() {
    let mut control = EcnControl::new(Duration::from_millis(100));
    assert!(
        control.is_lowered(),
        "an earlier daemon may have lowered it"
    );
    assert_eq!(control.begin(at(10)), Some(Restore));
    control.ended(false, at(10));
    assert!(control.is_lowered());
    assert_eq!(control.begin(at(110)), Some(Restore));
    control.ended(true, at(110));
    assert!(!control.is_lowered());
}

#[test]
fn two_runs_have_their_least_distance() {
    let mut control = started();
    control.set_level(Danger);
    assert_eq!(control.begin(at(109)), None);
    assert_eq!(control.deadline(), Some(at(110)));
    control.set_level(Safe);
    assert_eq!(control.deadline(), None, "it was never lowered");
    control.set_level(Danger);
    assert_eq!(control.begin(at(110)), Some(Lower));
}

#[test]
fn a_command_that_fails_is_run_again_ever_later() {
    let mut control = started();
    control.set_level(Danger);
    let mut now = at(1000);
    for pause in [100, 200, 400, 800, 1600, 3200, 6400, 6400] {
        assert_eq!(control.begin(now), Some(Lower));
        control.ended(false, now);
        let next = now + Duration::from_millis(pause);
        assert_eq!(control.deadline(), Some(next));
        now = next;
    }
    // It may have done something before it failed. Restoring does not wait for as long.
    control.set_level(Idle);
    assert!(control.is_lowered());
    let last_end = now.since(at(6400));
    let since = Instant::ZERO + last_end + Duration::from_millis(100);
    assert_eq!(control.deadline(), Some(since));
    assert_eq!(control.begin(since), Some(Restore));
}

#[test]
fn the_end_restores_what_may_be_lowered() {
    let mut control = started();
    control.end();
    assert!(control.is_over(), "nothing was lowered");

    let mut control = started();
    control.set_level(Danger);
    assert_eq!(control.begin(at(500)), Some(Lower));
    control.end();
    assert!(!control.is_over(), "a command runs");
    control.set_level(Danger);
    control.ended(true, at(600));
    assert!(!control.is_over());
    assert_eq!(control.begin(at(600)), Some(Restore), "at once");
    control.ended(false, at(700));
    assert!(
        control.is_over(),
        "a restore that fails is not run for ever"
    );
    assert_eq!(control.begin(at(90_000)), None);
}

#[derive(Clone, Copy, Debug)]
enum Happens {
    Level(PoolLevel),
    Begin,
    Ended(bool),
    Passes(u64),
}

fn happens() -> impl Strategy<Value = Happens> {
    let levels = prop::sample::select(vec![Idle, Safe, Short, Danger]);
    prop_oneof![
        levels.prop_map(Happens::Level),
        Just(Happens::Begin),
        any::<bool>().prop_map(Happens::Ended),
        (0u64..300).prop_map(Happens::Passes),
    ]
}

proptest! {
    /// Whatever happens: runs do not overlap and have their distance, and after the end the last command that ran is no
    /// `lower`.
    #[test]
    fn the_last_command_restores(all in prop::collection::vec(happens(), 0..60)) {
        let mut control = EcnControl::new(Duration::from_millis(100));
        let (mut now, mut running, mut last, mut ended) = (at(0), false, None, None);
        for one in all {
            match one {
                Happens::Level(level) => control.set_level(level),
                Happens::Passes(ms) => now += Duration::from_millis(ms),
                Happens::Ended(is_done) if running => {
                    control.ended(is_done, now);
                    (running, ended) = (false, Some(now));
                }
                Happens::Ended(_) => {}
                Happens::Begin => if let Some(command) = control.begin(now) {
                    prop_assert!(!running);
                    prop_assert!(ended.is_none_or(|end| now >= end + Duration::from_millis(100)));
                    (running, last) = (true, Some(command));
                }
            }
        }
        control.end();
        let mut rounds = 0;
        while !control.is_over() {
            if running {
                control.ended(false, now);
                running = false;
            } else {
                last = control.begin(now);
                prop_assert_eq!(last, Some(Restore));
                running = true;
            }
            rounds += 1;
            prop_assert!(rounds < 5);
        }
        prop_assert!(last != Some(Lower));
    }
}
