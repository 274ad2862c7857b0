//! Checks every kind of constant through a struct that the macro declares.

use headworks_constants::{Constant, Kind, SetError, Value};
use proptest::prelude::*;

headworks_constants::constants! {
    /// Constants of every kind, in two columns.
    pub struct Machine {
        unknown: "a machine has no constant",
        list: "`machines` lists them",
        example: "units=4",
        columns: ["small", "large"],
    }

    units as "nic.units": whole "units" 1..16777216 [2, 16] "Number of units" "Data sheet";
    page as "cpu.page": power_of_two "KiB" 4..1048576 [4, 64] "Size of a page" "x86-64";
    rate_gbps as "link.rate": number "Gbit/s" 0.1..10000 [40, 100.5] "Rate of the link" "Assumed";
    is_fast as "nic.fast": bool "0 or 1" [false, true] "Whether it is fast" "Assumed";
}

headworks_constants::constants! {
    /// Constants with defaults and without sources.
    #[derive(Eq)]
    struct Defaults {
        unknown: "nothing is called",
        example: "depth=2",
        columns: default,
    }

    depth: whole "" 0..1e6 [7] "Depth.";
    window: bool "0 or 1" [true] "Whether there is a window.";
}

type Setting = headworks_constants::Setting<Machine>;

/// Returns text that means this number, in one of the forms that are legal.
fn written(number: f64, form: usize) -> String {
    match form {
        0 => format!("{number}"),
        1 => format!("{number:e}"),
        2 => format!("+{number}"),
        3 if number.fract() == 0.0 => format!("{number:.1}"),
        _ => format!("0{number}"),
    }
}

/// Texts that mean a legal value of a constant, each with that value.
fn legal() -> impl Strategy<Value = (&'static str, String, Value)> {
    let form = 0..5_usize;
    prop_oneof![
        (1..=16_777_216_u64, form.clone()).prop_map(|(n, form)| (
            "nic.units",
            written(n as f64, form),
            Value::Whole(n)
        )),
        (2..=20_u32, form.clone()).prop_map(|(n, form)| (
            "cpu.page",
            written(f64::from(1 << n), form),
            Value::Whole(1 << n)
        )),
        (0.1..=10_000.0_f64, form).prop_map(|(n, form)| (
            "link.rate",
            written(n, form),
            Value::Number(n)
        )),
        proptest::sample::select(vec![
            ("0", false),
            ("off", false),
            ("false", false),
            ("0.0", false),
            ("1", true),
            ("on", true),
            ("true", true),
            ("1.0", true),
            ("1e0", true),
        ])
        .prop_map(|(text, is_on)| ("nic.fast", text.to_owned(), Value::Bool(is_on))),
    ]
}

/// Texts that mean no legal value of a constant.
fn illegal() -> impl Strategy<Value = (&'static str, String)> {
    let keys = proptest::sample::select(vec!["nic.units", "cpu.page", "link.rate", "nic.fast"]);
    let outside = prop_oneof![
        (1e8..1e300_f64).prop_map(|number| format!("{number:e}")),
        (1e-9..1e300_f64).prop_map(|number| format!("-{number:e}")),
        proptest::sample::select(vec![
            "", " ", "1 ", "nan", "inf", "-inf", "0x10", "1_000", "4k", "yes", "1=1"
        ])
        .prop_map(str::to_owned),
        // A control character makes it no number, whatever the rest is.
        "[0-9a-z.]{0,6}\u{1}",
    ];
    prop_oneof![
        (keys, outside),
        (1..1_000_000_u64).prop_map(|n| ("nic.units", format!("{n}.5"))),
        (4..1_048_576_u64)
            .prop_filter("a power of two", |n| !n.is_power_of_two())
            .prop_map(|n| ("cpu.page", n.to_string())),
        (2..1_000_u64).prop_map(|n| ("nic.fast", n.to_string())),
        (0.001..0.999_f64).prop_map(|n| ("nic.fast", n.to_string())),
        (0.0..0.0999_f64).prop_map(|n| ("link.rate", n.to_string())),
        proptest::sample::select(vec!["on", "true", "off"])
            .prop_map(|text| ("nic.units", text.to_owned())),
    ]
}

proptest! {
    #[test]
    fn every_legal_text_is_applied_and_read_back((key, text, value) in legal()) {
        let setting = Machine::parse(&format!("{key}={text}")).expect("a legal value");
        prop_assert_eq!((setting.constant().key, setting.value()), (key, value));
        prop_assert_eq!(setting.to_string().parse::<Setting>(), Ok(setting));
        for name in Machine::NAMES {
            let mut machine = Machine::named(name).expect("a column");
            let before = machine.clone();
            machine.apply(&setting);
            prop_assert_eq!(machine.value(key), Some(value));
            for (constant, value) in machine.values() {
                let is_other = constant.key != key;
                prop_assert!(!is_other || before.value(constant.key) == Some(value), "{}", constant.key);
            }
            // The text of every value means that value.
            let mut again = before;
            for (constant, value) in machine.values() {
                again.set(constant.key, &value.to_string()).expect("a legal value");
            }
            prop_assert_eq!(again, machine);
        }
    }

    #[test]
    fn every_illegal_text_is_refused_with_its_key_and_range((key, text) in illegal()) {
        let mut machine = Machine::named("small").expect("a column");
        let before = machine.clone();
        let error = machine.set(key, &text).expect_err(&text).to_string();
        let range = match key {
            "nic.units" => "a whole number from 1 to 16777216, in units",
            "cpu.page" => "a power of two from 4 to 1048576, in KiB",
            "link.rate" => "a number from 0.1 to 10000, in Gbit/s",
            _ => "0 or 1, off or on, false or true",
        };
        prop_assert_eq!(error, format!("{key}={text:?}: {range}"));
        prop_assert_eq!(machine, before);
    }

    #[test]
    fn no_text_is_a_panic(text in "\\PC{0,40}") {
        if let Ok(setting) = text.parse::<Setting>() {
            prop_assert_eq!(setting.to_string().parse::<Setting>(), Ok(setting));
        }
    }
}

#[test]
fn fields_have_the_values_of_their_column() {
    let large = Machine {
        name: "large",
        units: 16,
        page: 64,
        rate_gbps: 100.5,
        is_fast: true,
    };
    assert_eq!(Machine::named("large"), Some(large));
    assert_eq!(Machine::named("Large"), None);
    let rate = Machine::constant("link.rate").expect("a constant");
    assert_eq!(rate.values, [Value::Number(40.0), Value::Number(100.5)]);
    let defaults = Defaults::default();
    assert_eq!((defaults.depth, defaults.window), (7, true));
    assert_eq!(Defaults::CONSTANTS[0].default(), Value::Whole(7));
    assert_eq!(Defaults::CONSTANTS[0].source, "");
}

#[test]
fn a_range_names_its_kind() {
    let ranges: Vec<_> = Machine::CONSTANTS.iter().map(Constant::range).collect();
    assert_eq!(
        ranges,
        [
            "1 to 16777216, whole",
            "4 to 1048576, 2^n",
            "0.1 to 10000",
            "0 to 1, whole"
        ]
    );
    let kinds: Vec<_> = Machine::CONSTANTS
        .iter()
        .map(|constant| constant.kind)
        .collect();
    assert_eq!(
        kinds,
        [Kind::Whole, Kind::PowerOfTwo, Kind::Number, Kind::Bool]
    );
}

#[test]
fn unknown_keys_and_other_forms_are_refused_with_what_is_legal() {
    let error = |text: &str| Machine::parse(text).expect_err(text).to_string();
    assert_eq!(
        error("nic.x=1"),
        "a machine has no constant \"nic.x\": `machines` lists them"
    );
    assert_eq!(
        error("nic.units"),
        "\"nic.units\" is not KEY=VALUE, as in units=4"
    );
    let unknown = Defaults::parse("x=1").expect_err("unknown");
    assert!(matches!(unknown, SetError::Unknown { .. }));
    assert_eq!(
        unknown.to_string(),
        "nothing is called \"x\": it has depth, window"
    );
    let error = Defaults::parse("depth=x")
        .expect_err("no number")
        .to_string();
    assert_eq!(error, "depth=\"x\": a whole number from 0 to 1000000");
}
