//! Traffic made up from a seed: a mix of flows of which few are large and most are small.
//!
//! Each flow is given a size, drawn from a bounded Pareto distribution, and each packet is of a flow
//! drawn with its size as weight. So the popularity of flows by rank falls about as Zipf's law has it,
//! with an exponent of 1/shape. Packets are small or full-sized, seldom anything between, and come
//! at irregular intervals. What real traffic also has, and this has not: flows that begin and end, and
//! packets of one flow that come in bursts.
//!
//! A record costs two random numbers and three looks into tables, of 24 bytes for each flow. Where these
//! are wider than a core's caches the looks are what it costs; `Capture::drawn` draws beforehand.

use std::sync::Arc;

use super::{FlowKey, Record, Source};
use crate::random::Random;

/// What traffic is made of.
#[derive(Clone, Debug, PartialEq)]
pub struct Mix {
    /// Where its random numbers begin.
    pub seed: u64,
    /// Flows, at least 1.
    pub flows: u32,
    /// Shape of the Pareto distribution of their sizes, above 0: the smaller, the heavier its tail.
    /// Between 1 and 1.5 in measurements of the Internet.
    pub shape: f64,
    /// Packets of the largest flow for each of the smallest: where the distribution is cut off.
    pub largest: f64,
    /// Mean time between two packets, in ns, at most a second.
    pub interval_ns: u64,
}

impl Default for Mix {
    /// 65,536 flows of shape 1.2, the largest 100,000 times the smallest; 2 µs between packets, as in
    /// the paper's minute of 30 million.
    fn default() -> Self {
        Self {
            seed: 1,
            flows: 1 << 16,
            shape: 1.2,
            largest: 1e5,
            interval_ns: 2_000,
        }
    }
}

/// Longest mean time between two packets.
const INTERVAL_MAX_NS: u64 = 1_000_000_000;
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
    interval_ns: u64,
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
        let weights: Vec<_> = (0..count)
            .map(|_| bounded_pareto(random.unit(), mix.shape, mix.largest))
            .collect();
        let columns = columns(&weights);
        Self {
            flows: Arc::new(Flows {
                keys,
                columns,
                sizes: sizes(),
            }),
            random,
            interval_ns: mix.interval_ns.min(INTERVAL_MAX_NS),
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
        let size_bytes = self.flows.sizes[draw as u8 as usize].into();
        let record = Record {
            key: self.flows.keys[flow],
            time_ns: self.time_ns,
            sequence: self.sequence,
            size_bytes,
        };
        // Anything up to twice the mean.
        self.time_ns = self
            .time_ns
            .saturating_add(part(draw, 2 * self.interval_ns + 1));
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

/// A number between 1 and `largest`, from a uniform one below 1: the inverse of the distribution.
fn bounded_pareto(uniform: f64, shape: f64, largest: f64) -> f64 {
    let cut = 1.0 - largest.max(1.0).powf(-shape);
    (1.0 - uniform * cut).powf(-1.0 / shape)
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
            let size = bounded_pareto(uniform, 1.2, 1000.0);
            assert!((1.0..=1000.0).contains(&size), "{size}");
        }
        assert_eq!(bounded_pareto(0.0, 1.2, 1000.0), 1.0);
        assert!(bounded_pareto(1.0 - f64::EPSILON, 1.2, 1000.0) > 999.0);
    }

    #[test]
    fn traffic_is_the_same_from_the_same_seed_and_heavy_tailed() {
        let mix = Mix {
            flows: 1000,
            ..Mix::default()
        };
        let mut traffic = Synthetic::new(&mix);
        let mut again = Synthetic::new(&mix);
        let mut other = Synthetic::new(&Mix { seed: 2, ..mix });
        let (mut flows, mut sizes, mut same) = (BTreeMap::new(), BTreeMap::new(), 0);
        let mut time_ns = 0;
        let records = 100_000;
        for sequence in 0..records {
            let record = traffic.record();
            assert_eq!(record, again.record());
            same += u64::from(record.key == other.record().key);
            assert_eq!(record.sequence, sequence);
            assert!((time_ns..=time_ns + 4000).contains(&record.time_ns));
            time_ns = record.time_ns;
            *flows.entry(record.key).or_insert(0u64) += 1;
            *sizes.entry(record.size_bytes).or_insert(0u64) += 1;
        }
        assert_eq!(same, 0, "another seed has other flows");
        // Most flows are seen, and a tenth of them have most of the packets.
        let mut counts: Vec<_> = flows.into_values().collect();
        counts.sort_unstable();
        assert!((900..=1000).contains(&counts.len()), "{}", counts.len());
        let tenth: u64 = counts.iter().rev().take(100).sum();
        assert!((records / 2..records * 9 / 10).contains(&tenth), "{tenth}");
        // The two usual sizes, and as many as they should be.
        let per_mille = |size| sizes[&size] * 1000 / records;
        assert!((420..455).contains(&per_mille(52)), "{}", per_mille(52));
        assert!((420..455).contains(&per_mille(1500)), "{}", per_mille(1500));
        assert!(sizes.keys().all(|size| (52..=1500).contains(size)));
        let mean_ns = time_ns / records;
        assert!((1980..2020).contains(&mean_ns), "{mean_ns}");
    }
}
