//! Seeds of the random decisions of a run.

use headworks::verbs::{DeviceInfo, DeviceName};

use crate::cpu_prices::machine;
use crate::random::mix;

/// Returns the seed of a simulated run, `seed=N` of its device's name. `None` where time is real, so that no
/// run is repeatable.
pub fn seed(device: &DeviceName) -> Option<u64> {
    machine(device, &[])?.ok().map(|(_, seed)| seed)
}

/// Returns the seed of the initial packet sequence numbers that an end draws when it connects. It differs
/// between processes. On a simulated device, it depends only on the device's seed and host.
pub(crate) fn bring_up_seed(info: &DeviceInfo) -> u32 {
    let Some(seed) = seed(&info.name) else {
        return std::process::id();
    };
    let host = info.name.option("host").flatten().unwrap_or_default();
    stirred(seed, host) as u32
}

/// Returns the seed of an actor's own random decisions: like [`bring_up_seed`], but different for each role.
pub(crate) fn actor_seed(info: &DeviceInfo, role: &str) -> u64 {
    stirred(bring_up_seed(info).into(), role)
}

fn stirred(seed: u64, text: &str) -> u64 {
    let of = |word: u64, byte: u8| mix(word ^ u64::from(byte));
    text.bytes().fold(mix(seed), of)
}

#[cfg(test)]
mod tests {
    use super::*;
    use headworks::verbs::Provider;
    use std::sync::Arc;

    #[test]
    fn simulated_ends_draw_from_the_seed_and_others_from_their_process() {
        let of = |name: &str| {
            let provider = headworks::sim::SimProvider::new();
            let open = headworks::pace::opener(Arc::new(move |name| provider.open(name)));
            bring_up_seed(open(&name.parse().unwrap()).unwrap().info())
        };
        let [one, paced, again, other, another] = [
            "sim:cx5-100g,host=a",
            "sim:cx5-100g,pace,host=a",
            "sim:cx5-100g,host=a,seed=1",
            "sim:cx5-100g,host=a,seed=2",
            "sim:cx5-100g,host=b",
        ]
        .map(of);
        assert_eq!((one, one), (again, paced));
        assert!(one != other && one != another && other != another);
        assert_ne!(one, std::process::id());
        let named = |name: &str| seed(&name.parse().unwrap());
        assert_eq!(named("sim:cx6-100g"), Some(1));
        assert_eq!(named("sim:cx6-100g,seed=7"), Some(7));
        assert_eq!(named("soft:h1,hostile,seed=7"), None);
        let fabric = headworks::testing::Fabric::new(std::env::temp_dir()).unwrap();
        let soft = fabric.open("soft:h1").unwrap();
        assert_eq!(bring_up_seed(soft.info()), std::process::id());
    }
}
