//! Tests of the ring's two ends over the software RNIC, in one process or in two.
#![cfg(not(loom))]

mod between_processes;
mod config_mismatch;
mod death;
mod edges;
mod figure4;
mod forked_child;
mod group;
mod group_oracle;
mod group_peers;
mod hostile;
mod hostile_devices;
mod hostile_processes;
mod kills;
mod minimal_device;
mod oracle;
mod pair;
mod parts;
mod sleeping_ends;
mod staged;
mod threads;
mod tuning;

/// Entry point of the processes that [`kills`], [`group_peers`] and [`hostile_processes`] start; does nothing
/// elsewhere.
#[test]
fn child_process_entry() {
    let mut actors = headworks_runtime::ActorRegistry::new();
    actors.register("ring-peer", |part| Ok(Box::new(kills::Peer::new(part)?)));
    actors.register("unruly-peer", |part| {
        Ok(Box::new(hostile_processes::Far::new(part)?))
    });
    headworks_runtime::child_entry_in_test(&actors, headworks_runtime::no_device_opener());
}
