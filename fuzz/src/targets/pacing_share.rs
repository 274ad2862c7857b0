//! The state that the processes of a paced RNIC share. A peer writes any words into it while this process is a
//! member.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use headworks::pacing::shared_state::{BYTES, ShareMember};
use headworks::pacing::{PacingConfig, SharedPacing};
use headworks::verbs::{Duration, Instant};
use headworks_shm::{HugePages, SegmentRequest, SharedSegment, View};

use crate::input::Input;

/// Size in bytes of the part in front of the bitmap: clock, rate, published constants, the first rows. Most
/// words are written here.
const FRONT: usize = 320 + 4 * 64;
/// Maximum number of members at a time.
const MEMBERS: usize = 4;

pub(super) fn run(bytes: &[u8]) {
    let mut input = Input::new(bytes);
    let request = SegmentRequest {
        name: "fuzz",
        len: BYTES,
        huge_pages: HugePages::No,
        numa_node: None,
        is_sealed: false,
    };
    let view = View::from(Arc::new(SharedSegment::create(&request).expect("memory")));
    let share = SharedPacing::over(view.clone()).expect("long enough");
    let config = PacingConfig::default();
    let mut now = Instant::from_nanos(input.word(1 << 40));
    let mut members: Vec<ShareMember> = Vec::new();
    while !input.is_over() {
        match input.byte() % 8 {
            0 | 1 => {
                let words = if input.byte().is_multiple_of(4) {
                    BYTES
                } else {
                    FRONT
                } / 8;
                let at = 8 * (input.u64() as usize % words);
                let word = view.atomic_u64(at).expect("within");
                word.store(input.word(word.load(Ordering::Relaxed)), Ordering::Relaxed);
            }
            2 if members.len() < MEMBERS => members.extend(share.join(now)),
            2 => drop(members.pop()),
            3 => looks(&share, &config, now),
            4 => {
                share.publish("soft:h1", &config);
                assert_eq!(share.published().as_ref(), Some(&config));
            }
            5 => {
                share.change_rate(&config, input.u64() as i64, now);
                share.cut(&config, now);
                let rate = share.rate(&config);
                assert!((config.min_rate()..=config.line_rate()).contains(&rate));
            }
            6 => now += Duration::from_nanos(input.u64() % 1_000_000_000),
            _ => {
                let (bytes, slot) = (input.u64(), usize::from(input.byte()));
                if let Some(member) = members.last_mut() {
                    // The result may be any time in the future: a peer is allowed to delay this process.
                    let _ = member.take(bytes, share.rate(&config), 65_536, now);
                    let _ = member.idle_for(now);
                    if member.reserve(slot, now).is_ok() {
                        member.set_active(slot, bytes.is_multiple_of(2));
                    }
                    member.seen(now, Duration::from_nanos(bytes), f64::from_bits(bytes));
                    share.forgive(&config, now);
                }
            }
        }
    }
}

/// Reads the state as an observer does, and checks that all values are in range.
fn looks(share: &SharedPacing, config: &PacingConfig, now: Instant) {
    let said = share.published();
    let config = said.as_ref().unwrap_or(config);
    let status = share.status(config, now);
    let bounds = config.min_rate()..=config.line_rate();
    assert!(bounds.contains(&status.rate_bytes_per_s));
    assert!(status.ratio.is_finite() && status.raise_below <= status.lower_above);
    share.bits();
    if let Some(name) = share.rnic() {
        assert!(name.chars().all(|c| c.is_ascii_graphic()));
    }
}
