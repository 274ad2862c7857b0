//! Synthetic traffic from a seed: a mix of a few large and many small flows.
//!
//! Each flow has a size, drawn from a bounded Pareto distribution. The flow of each packet is drawn with the
//! flow's size as weight. The popularity of flows by rank therefore falls roughly by Zipf's law, with an
//! exponent of 1/`SHAPE`. Most packets are small or full-sized; they come at irregular intervals. Unlike in
//! real traffic, flows do not begin and end, and packets of one flow do not come in bursts.

use rand_distr::Distribution;
use rand_distr::weighted::WeightedAliasIndex;

use super::FlowKey;
use super::capture::{Capture, Packet};
use crate::random::Random;

/// Default number of flows.
pub const FLOWS: u32 = 1 << 16;
/// Shape of the Pareto distribution of flow sizes. The smaller the shape, the heavier the tail. Measurements
/// of the Internet give 1 to 1.5.
const SHAPE: f64 = 1.2;
/// Largest flow size, relative to the smallest, which is 1. The distribution is cut off here.
const LARGEST: f64 = 1e5;
/// Mean time between two packets, in ns. The paper's trace has 30 million packets in one minute.
const INTERVAL_NS: u64 = 2_000;
/// Length in bytes of a small packet, and of a full-sized one.
const SMALL: u32 = 52;
const FULL: u32 = 1500;
/// Number of small packets among 256 packets. The same number is full-sized; the sizes of the others are
/// spread evenly in between.
const USUAL: u32 = 112;
const BOTH: u32 = 2 * USUAL;

impl Capture {
    /// Makes `packets` synthetic packets (at least 1) of `flows` flows (at least 1).
    pub fn synthetic(seed: u64, flows: u32, packets: usize) -> Self {
        let mut random = Random::new(seed);
        let keys: Vec<_> = (0..flows.max(1)).map(|_| key(&mut random)).collect();
        let sizes = keys.iter().map(|_| bounded_pareto(random.unit())).collect();
        let by_size = WeightedAliasIndex::new(sizes).expect("sizes of at least 1");
        let mut time_ns = 0;
        let packet = |_| {
            let packet = Packet {
                key: keys[by_size.sample(random.generator())],
                time_ns,
                size_bytes: match random.below(256) as u32 {
                    ..USUAL => SMALL,
                    USUAL..BOTH => FULL,
                    rest => SMALL + (FULL - SMALL) / (256 - BOTH) * (rest - BOTH),
                },
            };
            // Uniform, up to twice the mean.
            time_ns += random.below(2 * INTERVAL_NS + 1);
            packet
        };
        Self {
            packets: (0..packets.max(1)).map(packet).collect(),
            skipped: 0,
            note: None,
        }
    }
}

/// Draws a flow between two addresses: mostly TCP, the rest UDP and a little ICMP.
fn key(random: &mut Random) -> FlowKey {
    const SERVICES: [u16; 8] = [443, 443, 443, 443, 80, 53, 22, 25];
    let addresses = [(); 2].map(|()| (random.bits() as u32).to_le_bytes());
    let client = 1024 + random.below(65536 - 1024) as u16;
    let service = SERVICES[random.below(SERVICES.len() as u64) as usize];
    let ports = match random.below(2) {
        0 => [client, service],
        _ => [service, client],
    };
    match random.below(100) {
        ..82 => FlowKey::v4(addresses, ports, 6),
        82..98 => FlowKey::v4(addresses, ports, 17),
        _ => FlowKey::v4(addresses, [0; 2], 1),
    }
}

/// Maps a uniform number below 1 to a number from 1 to [`LARGEST`], by the inverse of the distribution
/// function.
fn bounded_pareto(uniform: f64) -> f64 {
    let cut = 1.0 - LARGEST.powf(-SHAPE);
    (1.0 - uniform * cut).powf(-1.0 / SHAPE)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;

    #[test]
    fn sizes_of_flows_stay_within_their_bounds() {
        for uniform in [0.0, 0.3, 0.999_999, 1.0 - f64::EPSILON] {
            let size = bounded_pareto(uniform);
            assert!((1.0..=LARGEST).contains(&size), "{size}");
        }
        assert_eq!(bounded_pareto(0.0), 1.0);
        assert!(bounded_pareto(1.0 - f64::EPSILON) > 0.999 * LARGEST);
    }

    #[test]
    fn traffic_is_the_same_from_the_same_seed_and_heavy_tailed() {
        let (records, mix) = (100_000, |seed| Capture::synthetic(seed, 1000, 100_000));
        let traffic = mix(1);
        assert_eq!(traffic, mix(1));
        assert_ne!(traffic, mix(2));
        let (mut flows, mut sizes) = (BTreeMap::new(), BTreeMap::new());
        let mut time_ns = 0;
        for packet in &traffic.packets {
            assert!((time_ns..=time_ns + 4000).contains(&packet.time_ns));
            time_ns = packet.time_ns;
            *flows.entry(packet.key).or_insert(0u64) += 1;
            *sizes.entry(packet.size_bytes).or_insert(0u64) += 1;
        }
        // Most flows are seen, and a tenth of them have most of the packets.
        let mut counts: Vec<_> = flows.into_values().collect();
        counts.sort_unstable();
        assert!((900..=1000).contains(&counts.len()), "{}", counts.len());
        let tenth: u64 = counts.iter().rev().take(100).sum();
        assert!((records / 2..records * 9 / 10).contains(&tenth), "{tenth}");
        // The two usual sizes have the intended shares.
        for size in [52, 1500] {
            let per_mille = sizes[&size] * 1000 / records;
            assert!((420..455).contains(&per_mille), "{size}: {per_mille}");
        }
        assert!(sizes.keys().all(|size| (52..=1500).contains(size)));
        let mean_ns = time_ns / records;
        assert!((1980..2020).contains(&mean_ns), "{mean_ns}");
    }
}
