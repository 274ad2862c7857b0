use std::collections::HashSet;

use proptest::prelude::*;

use super::*;

const KIB: u64 = 1024;
const MIB: u64 = 1024 * KIB;

fn cache(kib: u64, dma_kib: u64, is_isolated: bool) -> LastLevelCache {
    LastLevelCache::new(kib * KIB, dma_kib * KIB, is_isolated, Random::new(7))
}

impl LastLevelCache {
    /// Checks that the counts, masks and indexes agree.
    fn check(&self) {
        let mut numbers = HashSet::new();
        for (number, part) in self.parts.iter().enumerate() {
            let mut used = 0;
            for (at, block) in part.blocks.iter().enumerate() {
                assert_ne!(block.present, 0);
                assert_eq!(block.dirty & !block.present, 0);
                assert!(numbers.insert(block.number), "a block in two places");
                assert_eq!(
                    self.index.get(&block.number),
                    Some(&(number as u8, at as u32))
                );
                used += u64::from(block.present.count_ones());
            }
            assert_eq!(used, part.used);
            assert!(used <= part.capacity, "{used} of {}", part.capacity);
        }
        assert_eq!(numbers.len(), self.index.len());
    }
}

/// Writes areas of `size` bytes one after the other, round and round, and returns the share of hits of the last
/// half.
fn cyclic_hits(cache: &mut LastLevelCache, footprint: u64, fills_per_round: f64) -> f64 {
    let (rounds, piece) = (40, 16 * KIB);
    let pieces = footprint / piece;
    let mut sum = CacheOutcome::default();
    for round in 0..rounds {
        for at in 0..pieces {
            let outcome = cache.write(CacheUser::Dma, at * piece, piece);
            cache.fill(fills_per_round / pieces as f64);
            if round >= rounds / 2 {
                sum += outcome;
            }
        }
    }
    cache.check();
    sum.hits as f64 / (sum.hits + sum.misses) as f64
}

#[test]
fn a_range_is_split_into_blocks_and_lines() {
    let split: Vec<_> = blocks_of(4096 - 64, 128).collect();
    assert_eq!(split, [(0, 1 << 63), (1, 1)]);
    assert_eq!(blocks_of(0, 0).count(), 0);
    assert_eq!(blocks_of(63, 2).collect::<Vec<_>>(), [(0, 3)]);
    assert_eq!(blocks_of(8192, 4096).collect::<Vec<_>>(), [(2, u64::MAX)]);
}

#[test]
fn what_fits_stays_and_is_not_written_back() {
    let mut cache = cache(20 * 1024, 4 * 1024, false);
    assert!(cyclic_hits(&mut cache, 4 * MIB, 0.0) > 0.999);
    let again = cache.write(CacheUser::Dma, 0, 4 * MIB);
    assert_eq!((again.misses, again.write_backs), (0, 0));
}

/// Random replacement: of a footprint of `n` capacities that is used in turn, `h` hits with `h = exp(-n (1 - h))`.
#[test]
fn a_footprint_beyond_the_dma_ways_hits_as_random_replacement_predicts() {
    for (footprint, expected) in [(8 * MIB, 0.203), (16 * MIB, 0.0198), (32 * MIB, 0.0003)] {
        let found = cyclic_hits(&mut cache(20 * 1024, 4 * 1024, false), footprint, 0.0);
        assert!((found - expected).abs() < 0.02, "{footprint}: {found}");
    }
}

#[test]
fn lines_survive_an_antagonist_by_the_share_that_it_filled() {
    let capacity = 20 * MIB / LINE_BYTES;
    for share in [0.1, 0.5, 1.0, 3.0] {
        let fills = capacity as f64 * share;
        // A footprint far below the ways, so that only the antagonist evicts.
        let found = cyclic_hits(&mut cache(20 * 1024, 4 * 1024, false), 256 * KIB, fills);
        let expected = (-share).exp();
        assert!((found - expected).abs() < 0.07, "{share}: {found}");
        let isolated = cyclic_hits(&mut cache(20 * 1024, 4 * 1024, true), 256 * KIB, fills);
        assert!(isolated > 0.999, "{share}: {isolated}");
    }
}

#[test]
fn processors_find_what_dma_wrote_and_displace_it_only_without_isolation() {
    for is_isolated in [false, true] {
        let mut cache = cache(4 * 1024, 1024, is_isolated);
        cache.write(CacheUser::Dma, 0, MIB);
        let read = cache.read(CacheUser::Processor, 0, MIB);
        assert_eq!((read.hits, read.misses), (MIB / 64, 0));
        for round in 0..4 {
            cache.read(CacheUser::Processor, (4 + 16 * round) * MIB, 16 * MIB);
        }
        let hits = cache.read(CacheUser::Dma, 0, MIB).hits;
        assert_eq!(hits == MIB / 64, is_isolated, "{hits}");
        cache.check();
    }
}

#[test]
fn dirty_lines_are_written_back_once_and_reading_dma_allocates_nothing() {
    let mut cache = cache(64, 64, false);
    let first = cache.write(CacheUser::Dma, 0, 64 * KIB);
    assert_eq!(first.write_backs, 0);
    let second = cache.write(CacheUser::Dma, MIB, 64 * KIB);
    assert_eq!(second.write_backs, second.misses);
    let read = cache.read(CacheUser::Dma, 16 * MIB, 64 * KIB);
    assert_eq!((read.hits, read.misses, read.write_backs), (0, 1024, 0));
    // Memory that is gone needs no write-back.
    cache.forget(0, 2 * MIB);
    let third = cache.write(CacheUser::Dma, 2 * MIB, 64 * KIB);
    assert_eq!(third.write_backs, 0);
}

#[test]
fn without_ways_for_dma_everything_goes_to_memory() {
    let mut cache = cache(64, 0, false);
    let outcome = cache.write(CacheUser::Dma, 0, 4096);
    assert_eq!(
        (outcome.hits, outcome.misses, outcome.write_backs),
        (0, 64, 64)
    );
}

proptest! {
    /// Whatever is used by whomever, counts, masks and indexes agree, no part holds more than its capacity, and
    /// what was just written is cached.
    #[test]
    fn counts_agree(
        uses in proptest::collection::vec((0u8..5, 0u64..600_000, 1u64..40_000), 1..200),
        dma_kib in 0u64..128, isolated: bool,
    ) {
        let mut cache = cache(128, dma_kib, isolated);
        for (kind, begin, len) in uses {
            match kind {
                0 => { cache.write(CacheUser::Dma, begin, len); }
                1 => { cache.write(CacheUser::Processor, begin, len); }
                2 => { cache.read(CacheUser::Processor, begin, len); }
                3 => { cache.fill(len as f64 / 64.0); }
                _ => cache.forget(begin, len),
            }
            cache.check();
            if kind == 0 && (4..=124).contains(&dma_kib) {
                let line = (begin + len - 1) / 64 * 64;
                prop_assert_eq!(cache.read(CacheUser::Dma, line, 1).hits, 1);
            }
        }
    }
}
