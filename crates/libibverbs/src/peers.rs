//! Lines on peers that are not where a program expects them.
//!
//! Programs of two users, or with two registries, do not see each other. Neither notices: their devices have the same addresses, and
//! mostly the same queue pair numbers.

use std::sync::Once;

use headworks_softnic::provider::registry_path;

use crate::errors::complain;
use crate::faults;

/// Says once that a queue pair is connected with itself. Programs rarely mean that.
#[cold]
pub(crate) fn is_connected_with_itself(device: &str, qpn: u32) {
    static SAID: Once = Once::new();
    SAID.call_once(|| {
        let path = registry_path();
        complain(&format!(
            "{device}: queue pair {qpn:#08x} is connected with itself. If its peer is to be another program, run both as one user with one HEADWORKS_FABRIC; this program's is {}",
            path.display()
        ));
    });
}

/// Says once that a request failed because its peer did not answer. A program that injects faults expects such failures.
#[cold]
pub(crate) fn is_silent(device: &str, qpn: u32) {
    static SAID: Once = Once::new();
    if !matches!(faults::of_process(), Ok(None)) {
        return;
    }
    SAID.call_once(|| {
        let path = registry_path();
        complain(&format!(
            "{device}: a request of queue pair {qpn:#08x} found no peer that answers. The peer's queue pair is in another state, its program has ended, or it runs as another user or with another HEADWORKS_FABRIC; this program's is {}",
            path.display()
        ));
    });
}
