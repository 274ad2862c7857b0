//! For tests that run on soft hosts, or on the two real devices that the environment names.
//!
//! A soft host executes a request in the call that posts it; a real device, and the kernel's rxe, some
//! time later. So a test says what must be found, and [`poll_until`] and [`poll_expr!`](crate::poll_expr) say when: on soft hosts at once, which
//! keeps the test as sharp there as it was, on others in the end.

pub mod world_scenarios;

use headworks_verbs::{Duration, Instant};

use headworks_net::clock;

/// Names two devices, separated by a semicolon, as in `ibv:rxe0;ibv:rxe1`.
pub const DEVICES: &str = "HEADWORKS_IBV";

/// Nothing takes so long on any device but what never comes.
const LIMIT: Duration = Duration::from_millis(60_000);
/// Nothing takes so long on soft hosts.
const SOON: Duration = Duration::from_millis(10_000);
/// How many times less is sent on a device that takes its time, and the least that this comes to.
const LESS: u64 = 200;
const LEAST: u64 = 100;
/// Laps of a ring that it comes to at least.
const LAPS: u64 = 4;

/// Names what must not be skipped, separated by commas.
const REQUIRE: &str = "HEADWORKS_REQUIRE";

/// Whether what `name` says must not be skipped: a program, a device, a privilege, a case.
pub fn is_required(name: &str) -> bool {
    has(&std::env::var(REQUIRE).unwrap_or_default(), name)
}

fn has(required: &str, name: &str) -> bool {
    required.split(',').any(|word| word.trim() == name)
}

/// The names of the two devices to run on; `None` is for soft hosts.
///
/// # Panics
///
/// If the variable does not hold two names, or names none where `HEADWORKS_REQUIRE` has `ibv`.
pub fn devices() -> Option<[String; 2]> {
    let names = std::env::var(DEVICES).ok();
    match read(names.as_deref(), is_required("ibv")) {
        Ok(devices) => devices,
        Err(why) => panic!("{why}"),
    }
}

/// The names of the two devices to run a test on that is about real ones: those that are named, or the first
/// two that `listed` finds, one twice if there is no other. `None`, aloud, with what it says, if it finds none.
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

/// The names of the devices to run a test on that needs one at a time: those that are named, each once, or all
/// that `listed` finds. None, aloud, with what it says, if it finds none.
///
/// # Panics
///
/// As [`devices_or`].
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

/// Says why a test of real devices is skipped.
///
/// # Panics
///
/// If `HEADWORKS_REQUIRE` has `ibv`: nothing may be skipped then.
pub fn report_skip(why: impl std::fmt::Display) {
    assert!(!is_required("ibv"), "ibv is required, and {why}");
    println!("skipped: {why}");
}

/// How long a test waits for what is due: on real devices longer than on soft hosts, which are held to
/// less.
pub fn limit() -> Duration {
    if is_slow_device() { LIMIT } else { SOON }
}

/// Whether the devices take their time, and the machine with them.
pub fn is_slow_device() -> bool {
    devices().is_some()
}

/// As many messages for a ring of so many slots as `count`; far fewer on a device that takes its time, but
/// several laps.
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

/// Of so many cases of a property, those that are tried.
pub fn case_count(count: u32) -> u32 {
    match is_slow_device() {
        true => (count / 10).max(1),
        false => count,
    }
}

/// What `look` finds: at once on soft hosts, in the end on others. [`poll_expr!`](crate::poll_expr) is the same
/// for what is lent.
///
/// # Panics
///
/// If it is not found.
#[track_caller]
pub fn poll_until<T>(look: impl FnMut() -> Option<T>) -> T {
    poll_until_within(1, look)
}

/// The same, where so many looks are due on soft hosts.
///
/// # Panics
///
/// If it is not found.
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

/// What `$look`, an expression that is evaluated again and again, is `Some` of in the end: on soft hosts at
/// once. It may be lent.
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

/// How long a test goes on looking.
#[derive(Debug)]
pub struct PollBudget {
    looks: u32,
    since: Option<Instant>,
}

impl PollBudget {
    /// For so many looks on soft hosts.
    pub const fn of(looks: u32) -> Self {
        Self { looks, since: None }
    }

    /// Between two looks.
    ///
    /// # Panics
    ///
    /// If there were enough.
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
