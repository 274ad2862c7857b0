//! The longest inline payload, which a device shows in a queue pair only.

use std::fmt::{Debug, Write};
use std::sync::{Arc, Mutex};

use tracing::field::{Field, Visit};
use tracing::span::{Attributes, Id, Record};
use tracing::{Event, Level, Metadata, Subscriber};

use super::Bench;

/// Collects the warnings that are logged.
#[derive(Clone, Default)]
struct Warnings(Arc<Mutex<String>>);

struct Message<'a>(&'a mut String);

impl Visit for Message<'_> {
    fn record_debug(&mut self, _: &Field, value: &dyn Debug) {
        writeln!(self.0, "{value:?}").unwrap();
    }
}

impl Subscriber for Warnings {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        *metadata.level() == Level::WARN
    }
    fn new_span(&self, _: &Attributes<'_>) -> Id {
        Id::from_u64(1)
    }
    fn record(&self, _: &Id, _: &Record<'_>) {}
    fn record_follows_from(&self, _: &Id, _: &Id) {}
    fn event(&self, event: &Event<'_>) {
        event.record(&mut Message(&mut self.0.lock().unwrap()));
    }
    fn enter(&self, _: &Id) {}
    fn exit(&self, _: &Id) {}
}

/// Opens the stub as `prepare` sets it up. Returns its longest inline payload, and the warnings.
fn opened(prepare: impl FnOnce(&mut super::stub::State)) -> (u32, String) {
    let warnings = Warnings::default();
    let max_inline = tracing::subscriber::with_default(warnings.clone(), || {
        Bench::with("", prepare).device.info().limits.max_inline
    });
    let said = warnings.0.lock().unwrap().clone();
    (max_inline, said)
}

#[test]
fn a_limit_that_the_device_does_not_show_is_a_warning() {
    assert_eq!(opened(|_| {}), (192, String::new()));
    // A device without inline payloads is no failure.
    assert_eq!(opened(|stub| stub.max_inline = 0), (0, String::new()));
    let (max_inline, said) = opened(|stub| {
        stub.fails.insert("qp", libc::ENOMEM);
    });
    assert_eq!(max_inline, 0);
    assert_eq!(said.lines().count(), 1, "{said}");
    assert!(
        said.starts_with("ibv:stub0: a queue pair that shows the longest inline payload")
            && said.contains("Cannot allocate memory"),
        "{said}"
    );
}
