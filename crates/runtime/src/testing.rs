//! Support for tests that run on soft hosts, or on the two real devices that the environment names.
//!
//! A soft host executes a request in the call that posts it. A real device, or the kernel's rxe, executes it
//! some time later. A test therefore states what must be found, and [`poll_until`] and
//! [`poll_expr!`](crate::poll_expr) decide how long to poll: on soft hosts it must be there at once, which
//! keeps the test strict there; on real devices polling goes on for a while.

pub mod world_scenarios;

use std::path::Path;
use std::process::Command;

use headworks_verbs::{Duration, Instant};

use headworks_net::clock;

/// Environment variable that names two devices, separated by a semicolon, as in `ibv:rxe0;ibv:rxe1`.
pub const DEVICES: &str = "HEADWORKS_IBV";

/// Longest wait, also on a machine that does several other things. Only an event that never comes takes this
/// long.
const LIMIT: Duration = Duration::from_millis(60_000);
/// Factor by which fewer messages are sent on a slow device, and the least number that is sent then.
const LESS: u64 = 200;
const LEAST: u64 = 100;
/// Least number of laps of a ring that are sent on a slow device.
const LAPS: u64 = 4;

/// Copies the program `from` to `to`, for a test that starts the copy. `cp` writes it, because a child that
/// another thread of this process forked meanwhile would have a file of this process open for writing, and
/// starting the copy would fail with `ETXTBSY`.
///
/// # Panics
///
/// If `cp` fails.
pub fn copy_program(from: &Path, to: &Path) {
    let copied = Command::new("cp").args([from, to]).status();
    let copied = copied.is_ok_and(|status| status.success());
    assert!(copied, "cp {} {}", from.display(), to.display());
}

/// Environment variable that lists what must not be skipped, separated by commas.
const REQUIRE: &str = "HEADWORKS_REQUIRE";

/// Whether `name` (a program, a device, a privilege, a case) must not be skipped.
pub fn is_required(name: &str) -> bool {
    has(&std::env::var(REQUIRE).unwrap_or_default(), name)
}

fn has(required: &str, name: &str) -> bool {
    required.split(',').any(|word| word.trim() == name)
}

/// The names of the two devices to run on; `None` for soft hosts.
///
/// # Panics
///
/// If the variable does not hold two names, or if it is not set and `HEADWORKS_REQUIRE` has `ibv`.
pub fn devices() -> Option<[String; 2]> {
    let names = std::env::var(DEVICES).ok();
    match read(names.as_deref(), is_required("ibv")) {
        Ok(devices) => devices,
        Err(why) => panic!("{why}"),
    }
}

/// The names of two devices for a test that is about real devices: the named ones, or the first two that
/// `listed` finds, or one of them twice if there is no other. If there is none, prints why and returns
/// `None`.
///
/// # Panics
///
/// If the variable does not hold two names, or there is no device and `HEADWORKS_REQUIRE` has `ibv`.
pub fn devices_or(listed: impl FnOnce() -> Result<Vec<String>, String>) -> Option<[String; 2]> {
    let names = std::env::var(DEVICES).ok();
    match read(names.as_deref(), false) {
        Ok(Some(devices)) => Some(devices),
        Ok(None) => listed().and_then(first_two).map_err(report_skip).ok(),
        Err(why) => panic!("{why}"),
    }
}

/// The names of the devices for a test that needs one at a time: the named ones, each once, or all that
/// `listed` finds. If there is none, prints why and returns an empty list.
///
/// # Panics
///
/// In the cases in which [`devices_or`] panics.
pub fn each_device_or(listed: impl FnOnce() -> Result<Vec<String>, String>) -> Vec<String> {
    let names = std::env::var(DEVICES).ok();
    match read(names.as_deref(), false) {
        Ok(named) => each(named, listed).map_err(report_skip).unwrap_or_default(),
        Err(why) => panic!("{why}"),
    }
}

fn each(
    named: Option<[String; 2]>,
    listed: impl FnOnce() -> Result<Vec<String>, String>,
) -> Result<Vec<String>, String> {
    let mut names = match named {
        Some(named) => named.into(),
        None => listed()?,
    };
    names.dedup();
    match names.is_empty() {
        true => Err("there is no device".to_owned()),
        false => Ok(names),
    }
}

fn first_two(listed: Vec<String>) -> Result<[String; 2], String> {
    let first = listed.first().ok_or("there is no device")?;
    let second = listed.get(1).unwrap_or(first);
    Ok([first.clone(), second.clone()])
}

fn read(names: Option<&str>, is_required: bool) -> Result<Option<[String; 2]>, String> {
    let Some(names) = names else {
        return match is_required {
            true => Err(format!(
                "ibv is required, and {DEVICES} names no devices: two are needed, as in ibv:rxe0;ibv:rxe1"
            )),
            false => Ok(None),
        };
    };
    match names.split(';').collect::<Vec<_>>()[..] {
        [one, other] if !one.is_empty() && !other.is_empty() => {
            Ok(Some([one.to_owned(), other.to_owned()]))
        }
        _ => Err(format!(
            "{DEVICES} is {names:?}: two names and a semicolon between them are needed, as in ibv:rxe0;ibv:rxe1"
        )),
    }
}

/// Prints why a test of real devices is skipped.
///
/// # Panics
///
/// If `HEADWORKS_REQUIRE` has `ibv`, because nothing may be skipped then.
pub fn report_skip(why: impl std::fmt::Display) {
    assert!(!is_required("ibv"), "ibv is required, and {why}");
    println!("skipped: {why}");
}

/// How long a test waits for an expected event. Only an event that never comes takes this long.
pub fn limit() -> Duration {
    LIMIT
}

/// Whether the devices, and the machine with them, are slow.
pub fn is_slow_device() -> bool {
    devices().is_some()
}

/// Number of messages to send through a ring of `slots` slots: `count`, or far fewer, but several laps, on a
/// slow device.
pub fn message_count(count: u64, slots: u64) -> u64 {
    match is_slow_device() {
        true => fewer(count, slots),
        false => count,
    }
}

fn fewer(count: u64, slots: u64) -> u64 {
    let least = LEAST.max(slots * LAPS);
    (count / LESS).max(least).min(count)
}

/// Number of cases of a property to try: `count`, or a tenth on a slow device.
pub fn case_count(count: u32) -> u32 {
    match is_slow_device() {
        true => (count / 10).max(1),
        false => count,
    }
}

/// Returns what `look` finds. On soft hosts it must be there at once; on others this polls. Use
/// [`poll_expr!`](crate::poll_expr) for a value that borrows.
///
/// # Panics
///
/// If `look` finds nothing in time.
#[track_caller]
pub fn poll_until<T>(look: impl FnMut() -> Option<T>) -> T {
    poll_until_within(1, look)
}

/// Like [`poll_until`], with up to `looks` polls on soft hosts.
///
/// # Panics
///
/// If `look` finds nothing in time.
#[track_caller]
pub fn poll_until_within<T>(looks: u32, mut look: impl FnMut() -> Option<T>) -> T {
    let mut patience = PollBudget::of(looks);
    loop {
        if let Some(found) = look() {
            return found;
        }
        patience.wait();
    }
}

/// Evaluates `$look` again and again until it is `Some`, and returns the value. On soft hosts it must be so
/// at once. The value may borrow.
#[macro_export]
macro_rules! poll_expr {
    ($look:expr) => {{
        let mut patience = $crate::testing::PollBudget::of(1);
        loop {
            if let Some(found) = $look {
                break found;
            }
            patience.wait();
        }
    }};
}

/// How long a test goes on polling.
#[derive(Debug)]
pub struct PollBudget {
    looks: u32,
    since: Option<Instant>,
}

impl PollBudget {
    /// Allows `looks` polls on soft hosts.
    pub const fn of(looks: u32) -> Self {
        Self { looks, since: None }
    }

    /// Waits between two polls.
    ///
    /// # Panics
    ///
    /// If the budget is used up.
    #[track_caller]
    pub fn wait(&mut self) {
        self.looks = self.looks.saturating_sub(1);
        if self.looks > 0 {
            return;
        }
        let now = clock::now();
        let since = *self.since.get_or_insert_with(|| {
            assert!(is_slow_device(), "it is not there");
            now
        });
        assert!(now.since(since) < LIMIT, "it is not there after {LIMIT}");
        std::thread::yield_now();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn two_devices_are_named_or_none() {
        let two = read(Some("ibv:a,port=1;ibv:b"), false).unwrap().unwrap();
        assert_eq!(two, ["ibv:a,port=1", "ibv:b"]);
        assert_eq!(read(None, false), Ok(None));
        assert!(read(None, true).unwrap_err().contains("required"));
        for bad in ["", "ibv:a", "ibv:a;", "ibv:a;ibv:b;ibv:c"] {
            let error = read(Some(bad), false).unwrap_err();
            assert!(
                error.contains(bad) && error.contains("semicolon"),
                "{error}"
            );
        }
    }

    #[test]
    fn a_name_is_required_as_a_whole() {
        for (required, is_it) in [
            ("ibv", true),
            ("rxe,ibv", true),
            ("rxe, ibv ,gdb", true),
            ("", false),
            ("rxe,gdb", false),
            ("ibv0,libibv", false),
        ] {
            assert_eq!(has(required, "ibv"), is_it, "{required:?}");
        }
        assert!(!has("", "ibv") && !has(",", "ibv"));
    }

    #[test]
    fn of_those_that_are_there_the_first_two_are_taken() {
        let listed =
            |names: &[&str]| first_two(names.iter().map(|name| (*name).to_owned()).collect());
        assert_eq!(listed(&["a", "b", "c"]).unwrap(), ["a", "b"]);
        assert_eq!(listed(&["a"]).unwrap(), ["a", "a"]);
        assert!(listed(&[]).is_err());
    }

    #[test]
    fn one_at_a_time_all_that_are_there_are_taken_and_each_that_is_named_once() {
        let of = |names: &[&str]| names.iter().map(|name| (*name).to_owned()).collect();
        let listed = || Ok(of(&["a", "b", "c"]));
        assert_eq!(each(None, listed), listed());
        let named = |one: &str, other: &str| Some([one.to_owned(), other.to_owned()]);
        assert_eq!(each(named("x", "b"), listed), Ok(of(&["x", "b"])));
        assert_eq!(each(named("x", "x"), listed), Ok(of(&["x"])));
        assert!(each(None, || Ok(Vec::new())).is_err());
        assert_eq!(each(None, || Err("why".to_owned())).unwrap_err(), "why");
    }

    #[test]
    fn fewer_are_several_laps_and_never_more() {
        assert_eq!(fewer(10, 8), 10);
        assert_eq!(fewer(10_000, 8), 100);
        assert_eq!(fewer(10_000, 128), 512);
        assert_eq!(fewer(1_000_000, 128), 5000);
    }
}
