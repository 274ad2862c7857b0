//! The ring's two ends over the software RNIC, in one process or in two.
#![cfg(not(loom))]

mod apart;
mod asleep;
mod death;
mod edges;
mod figure4;
mod forked;
mod group;
mod group_oracle;
mod group_peers;
mod hostile;
mod killed;
mod mismatch;
mod narrow;
mod oracle;
mod pair;
mod parts;
mod staged;
mod threads;
mod unruly;
mod unruly_apart;

/// Runs only in the processes that the tests of [`killed`], [`group_peers`] and [`unruly_apart`] start.
#[test]
fn child_process_entry() {
    let mut cast = headworks_runtime::ActorRegistry::new();
    cast.register("ring-peer", |part| Ok(Box::new(killed::Peer::new(part)?)));
    cast.register("unruly-peer", |part| {
        Ok(Box::new(unruly_apart::Far::new(part)?))
    });
    headworks_runtime::child_entry_in_test(&cast, headworks_runtime::no_device_opener());
}
