//! Processors on which the daemon's threads run.

use headworks_net::cpu_affinity;
use headworks_verbs::DeviceInfo;

use crate::config::NumaChoice;

/// Binds the calling thread, and those that it starts, to the processors of the chosen NUMA node. Where that is impossible the log says
/// so, and the threads run where they may.
pub(super) fn keep_near(choice: NumaChoice, device: &DeviceInfo) {
    let node = match choice {
        NumaChoice::Any => return,
        NumaChoice::Node(node) => node,
        // Software devices, and machines with one node, have none.
        NumaChoice::Device => match device.numa_node {
            Some(node) => node,
            None => return,
        },
    };
    match cpu_affinity::keep_to_node(node) {
        Ok(()) => tracing::info!("the threads run on NUMA node {node}"),
        Err(error) => tracing::warn!(
            "the threads run on any NUMA node, not on {node} of {}: {error}; numa = \"any\" accepts that",
            device.name
        ),
    }
}
