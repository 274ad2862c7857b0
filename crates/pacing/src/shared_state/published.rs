//! Publishes the name of a paced RNIC, and the constants of its thresholds, for observers.

use headworks_constants::Value;
use headworks_shm::primitive::Ordering;

use super::{FIRST_ROW, NAME, PUBLISHED, SharedPacing};
use crate::config::PacingConfig;

/// The published constants, in the order of their words. The first is never zero.
const KEYS: [&str; 6] = [
    "line_rate_gbps",
    "min_rate_gbps",
    "init_alpha",
    "init_beta",
    "qps_per_step",
    "window",
];
const _: () = assert!(PUBLISHED + 8 * KEYS.len() <= NAME);

/// Longest name of an RNIC, in bytes; a longer name is truncated.
const NAME_BYTES_MAX: usize = FIRST_ROW - NAME;

impl SharedPacing {
    /// Publishes the RNIC's name and constants. If processes pace it with different constants, observers see
    /// those of the last one.
    pub fn publish(&self, rnic: &str, config: &PacingConfig) {
        for (index, key) in KEYS.iter().enumerate().rev() {
            let value = config.value(key).map_or(0.0, Value::as_f64);
            let word = self.word(PUBLISHED + 8 * index);
            // The first constant is stored last: a reader that finds it finds the others.
            word.store(value.to_bits(), Ordering::Release);
        }
        let mut bytes = [0; NAME_BYTES_MAX];
        for (to, byte) in bytes.iter_mut().zip(rnic.bytes()) {
            *to = byte;
        }
        let (words, _) = bytes.as_chunks::<8>();
        for (index, word) in words.iter().enumerate().rev() {
            let to = self.word(NAME + 8 * index);
            to.store(u64::from_le_bytes(*word), Ordering::Release);
        }
    }

    /// Reads the published constants, with the others at their defaults. `None` if none are published, or if
    /// they are not legal.
    pub fn published(&self) -> Option<PacingConfig> {
        let mut config = PacingConfig::default();
        for (index, key) in KEYS.iter().enumerate() {
            // Pairs with the Release in `publish`; so does every load here.
            let word = self.word(PUBLISHED + 8 * index).load(Ordering::Acquire);
            // Display gives the shortest digits that mean this number, and `set` checks its range.
            config.set(key, &f64::from_bits(word).to_string()).ok()?;
        }
        config.check().is_ok().then_some(config)
    }

    /// Reads the RNIC's name. `None` if none is published, or if the bytes are no name.
    pub fn rnic(&self) -> Option<String> {
        let mut bytes = Vec::with_capacity(NAME_BYTES_MAX);
        for at in (NAME..FIRST_ROW).step_by(8) {
            bytes.extend(self.word(at).load(Ordering::Acquire).to_le_bytes());
        }
        let len = bytes.iter().position(|byte| *byte == 0);
        bytes.truncate(len.unwrap_or(bytes.len()));
        let is_name = !bytes.is_empty() && bytes.iter().all(u8::is_ascii_graphic);
        is_name.then(|| String::from_utf8(bytes).ok()).flatten()
    }
}

#[cfg(test)]
mod tests {
    use headworks_shm::{HugePages, SegmentRequest, SharedSegment, View};
    use proptest::prelude::*;

    use super::*;
    use crate::shared_state::BYTES;

    fn share() -> SharedPacing {
        let request = SegmentRequest {
            name: "said",
            len: BYTES,
            huge_pages: HugePages::No,
            numa_node: None,
            is_sealed: false,
        };
        let segment = SharedSegment::create(&request).unwrap();
        SharedPacing::over(View::from(std::sync::Arc::new(segment))).unwrap()
    }

    #[test]
    fn published_settings_are_read_and_absent_ones_are_none() {
        let share = share();
        assert_eq!((share.published(), share.rnic()), (None, None));
        let mut config = PacingConfig::default();
        for (key, value) in [
            ("line_rate_gbps", "25"),
            ("min_rate_gbps", "0.3"),
            ("init_alpha", "0.1"),
            ("qps_per_step", "64"),
            ("window", "1"),
        ] {
            config.set(key, value).unwrap();
        }
        share.publish("soft:h1", &config);
        assert_eq!(share.published(), Some(config.clone()));
        assert_eq!(share.rnic().as_deref(), Some("soft:h1"));
        // A shorter name leaves no bytes of a longer one.
        share.publish("ibv", &config);
        assert_eq!(share.rnic().as_deref(), Some("ibv"));
        share.publish(&"x".repeat(100), &config);
        assert_eq!(share.rnic().map(|name| name.len()), Some(NAME_BYTES_MAX));
    }

    proptest! {
        #[test]
        fn any_words_are_no_constants_or_legal_ones(
            words in proptest::collection::vec(
                prop_oneof![any::<u64>(), (0.0..1e4_f64).prop_map(f64::to_bits)],
                (FIRST_ROW - PUBLISHED) / 8,
            ),
        ) {
            let share = share();
            for (index, word) in words.iter().enumerate() {
                share.word(PUBLISHED + 8 * index).store(*word, Ordering::Relaxed);
            }
            if let Some(config) = share.published() {
                prop_assert_eq!(config.check(), Ok(()));
                prop_assert!(config.line_rate() > 0);
            }
            if let Some(name) = share.rnic() {
                prop_assert!((1..=NAME_BYTES_MAX).contains(&name.len()));
                prop_assert!(name.chars().all(|c| c.is_ascii_graphic()));
            }
        }
    }
}
