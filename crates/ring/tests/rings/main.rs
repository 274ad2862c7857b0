//! The ring's two ends over the software RNIC, in one process or in two.
#![cfg(not(loom))]

mod asleep;
mod death;
mod edges;
mod hostile;
mod killed;
mod mismatch;
mod narrow;
mod oracle;
mod pair;
mod threads;
mod unruly;

/// Runs only in the processes that the tests of [`killed`] start.
#[test]
fn plays_a_part() {
    let mut cast = headworks_stage::Cast::new();
    cast.register("ring-peer", |part| Ok(Box::new(killed::Peer::new(part)?)));
    headworks_stage::child_entry_in_test(&cast, headworks_stage::no_devices());
}
