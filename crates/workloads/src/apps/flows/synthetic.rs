//! Traffic made up from a seed: a mix of flows of which few are large and most are small.
//!
//! Each flow has a size, drawn from a bounded Pareto distribution, and each packet is of a flow that is drawn with
//! its size as weight. The popularity of flows by rank therefore falls about as Zipf's law has it, with an exponent
//! of 1/`SHAPE`. Most packets are small or full-sized; they come at irregular intervals. Unlike real traffic, flows
//! do not begin and end, and packets of one flow do not come in bursts.
//!
//! A record costs two random numbers and three looks into tables, of 24 bytes for each flow. `Capture::drawn` draws
//! beforehand, for runs in which the looks would cost too much.

use std::sync::Arc;

use super::{FlowKey, Record, Source};
use crate::random::Random;

/// What traffic is made of.
#[derive(Clone, Debug, PartialEq)]
pub struct Mix {
    /// Seed of its random numbers.
    pub seed: u64,
    /// Flows, at least 1.
    pub flows: u32,
}

impl Default for Mix {
    fn default() -> Self {
        let (seed, flows) = (1, 1 << 16);
        Self { seed, flows }
    }
}

/// Shape of the Pareto distribution of flow sizes: the smaller, the heavier its tail. Measurements of the Internet
/// give 1 to 1.5.
const SHAPE: f64 = 1.2;
/// Packets of the largest flow for each of the smallest: where the distribution is cut off.
const LARGEST: f64 = 1e5;
/// Mean time between two packets: the paper's minute has 30 million.
const INTERVAL_NS: u64 = 2_000;
/// Bytes of a small packet, and of a full-sized one.
const SMALL: u16 = 52;
const FULL: u16 = 1500;
/// Of 256 packets so many are small, and as many full-sized; the rest lie between, evenly.
const USUAL: usize = 112;

/// Records of traffic that is made up.
#[derive(Clone, Debug)]
pub struct Synthetic {
    flows: Arc<Flows>,
    random: Random,
    time_ns: u64,
    sequence: u64,
}

/// Flows, and Walker's alias method (as Vose has it, 1991) to draw one: each column of the table holds
/// a part of its own flow's weight and fills up with another's.
#[derive(Debug)]
struct Flows {
    keys: Vec<FlowKey>,
    columns: Vec<Column>,
    /// Of packets, each as probable as the others.
    sizes: [u16; 256],
}

#[derive(Clone, Copy, Debug)]
struct Column {
    /// The column is its own flow's for numbers up to this one, of 32 bits.
    own: u32,
    other: u32,
}

impl Synthetic {
    /// Traffic of this mix, from its beginning, which is time 0.
    pub fn new(mix: &Mix) -> Self {
        let mut random = Random::new(mix.seed);
        let count = mix.flows.max(1);
        let keys = (0..count).map(|_| key(&mut random)).collect();
        let weight = |_| bounded_pareto(random.unit());
        let weights: Vec<_> = (0..count).map(weight).collect();
        Self {
            flows: Arc::new(Flows {
                keys,
                columns: columns(&weights),
                sizes: sizes(),
            }),
            random,
            time_ns: 0,
            sequence: 0,
        }
    }
}

impl Source for Synthetic {
    #[inline]
    fn record(&mut self) -> Record {
        // Without a branch: whoever guesses a random number is wrong, and that costs more than this.
        let draw = self.random.word();
        let at = part(draw, self.flows.columns.len() as u64);
        let column = self.flows.columns[at as usize];
        let borrowed = u64::from(draw as u32 > column.own).wrapping_neg();
        let flow = (at ^ ((at ^ u64::from(column.other)) & borrowed)) as usize;
        let draw = self.random.word();
        let record = Record {
            key: self.flows.keys[flow],
            time_ns: self.time_ns,
            sequence: self.sequence,
            size_bytes: self.flows.sizes[draw as u8 as usize].into(),
        };
        // Anything up to twice the mean.
        let interval_ns = part(draw, 2 * INTERVAL_NS + 1);
        self.time_ns = self.time_ns.saturating_add(interval_ns);
        self.sequence += 1;
        record
    }
}

/// The upper half of `draw` as a number below `limit`, which is below 2^32.
#[inline(always)]
fn part(draw: u64, limit: u64) -> u64 {
    ((draw >> 32) * limit) >> 32
}

/// A flow between two addresses: mostly TCP, the rest UDP and a little ICMP.
fn key(random: &mut Random) -> FlowKey {
    const SERVICES: [u16; 8] = [443, 443, 443, 443, 80, 53, 22, 25];
    let addresses = [(); 2].map(|()| (random.word() as u32).to_le_bytes());
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

fn sizes() -> [u16; 256] {
    let rest = (256 - 2 * USUAL) as u16;
    std::array::from_fn(|at| match at {
        ..USUAL => SMALL,
        _ if at < 2 * USUAL => FULL,
        _ => SMALL + (FULL - SMALL) / rest * (at - 2 * USUAL) as u16,
    })
}

/// A number between 1 and [`LARGEST`], from a uniform one below 1: the inverse of the distribution.
fn bounded_pareto(uniform: f64) -> f64 {
    let cut = 1.0 - LARGEST.powf(-SHAPE);
    (1.0 - uniform * cut).powf(-1.0 / SHAPE)
}

fn columns(weights: &[f64]) -> Vec<Column> {
    let mean = weights.iter().sum::<f64>() / weights.len() as f64;
    // What each flow has left to be put somewhere, in columns.
    let mut left: Vec<_> = weights.iter().map(|weight| weight / mean).collect();
    let full = |at: usize| Column {
        own: u32::MAX,
        other: at as u32,
    };
    let mut columns: Vec<_> = (0..weights.len()).map(full).collect();
    let (mut small, mut large): (Vec<_>, Vec<_>) =
        (0..weights.len()).partition(|&at| left[at] < 1.0);
    while let (Some(&giver), Some(taker)) = (large.last(), small.pop()) {
        columns[taker] = Column {
            own: (left[taker] * f64::from(u32::MAX)) as u32,
            other: giver as u32,
        };
        left[giver] -= 1.0 - left[taker];
        if left[giver] < 1.0 {
            large.pop();
            small.push(giver);
        }
    }
    columns
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;

    #[test]
    fn flows_are_drawn_by_their_weight() {
        let weights = [1.0, 2.0, 5.0, 0.5, 11.5];
        let mut share = [0.0; 5];
        let columns = columns(&weights);
        for (at, column) in columns.iter().enumerate() {
            let own = f64::from(column.own) / f64::from(u32::MAX);
            share[at] += own / 5.0;
            share[column.other as usize] += (1.0 - own) / 5.0;
        }
        for (share, weight) in share.iter().zip(weights) {
            assert!((share - weight / 20.0).abs() < 1e-8, "{share} {weight}");
        }
        assert_eq!(columns.len(), 5);
    }

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
        let mix = |seed| Synthetic::new(&Mix { seed, flows: 1000 });
        let (mut traffic, mut again, mut other) = (mix(1), mix(1), mix(2));
        let (mut flows, mut sizes) = (BTreeMap::new(), BTreeMap::new());
        let (mut time_ns, records) = (0, 100_000);
        for sequence in 0..records {
            let record = traffic.record();
            assert_eq!(record, again.record());
            assert_ne!(record.key, other.record().key);
            assert_eq!(record.sequence, sequence);
            assert!((time_ns..=time_ns + 4000).contains(&record.time_ns));
            time_ns = record.time_ns;
            *flows.entry(record.key).or_insert(0u64) += 1;
            *sizes.entry(record.size_bytes).or_insert(0u64) += 1;
        }
        // Most flows are seen, and a tenth of them have most of the packets.
        let mut counts: Vec<_> = flows.into_values().collect();
        counts.sort_unstable();
        assert!((900..=1000).contains(&counts.len()), "{}", counts.len());
        let tenth: u64 = counts.iter().rev().take(100).sum();
        assert!((records / 2..records * 9 / 10).contains(&tenth), "{tenth}");
        // The two usual sizes, and as many as they should be.
        for size in [52, 1500] {
            let per_mille = sizes[&size] * 1000 / records;
            assert!((420..455).contains(&per_mille), "{size}: {per_mille}");
        }
        assert!(sizes.keys().all(|size| (52..=1500).contains(size)));
        let mean_ns = time_ns / records;
        assert!((1980..2020).contains(&mean_ns), "{mean_ns}");
    }
}
