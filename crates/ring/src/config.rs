//! Configuration of a ring, and its legal ranges.

use headworks_verbs::Pages;

/// Bytes of a cache line: slots are multiples of it.
pub const LINE: usize = 64;
/// Largest number of slots.
pub const SLOTS_MAX: u32 = 1 << 20;
/// Largest slot, in bytes.
pub const SLOT_MAX: usize = 1 << 30;
/// Largest array of one end, in bytes.
pub const ARRAY_MAX: usize = 1 << 36;

/// Layout of messages in slots.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Framing {
    /// Every message has this length, in bytes and at least 1, and takes one slot. It has no header
    /// outside latency mode. The papers measure this layout.
    Fixed(usize),
    /// Messages have 0 bytes up to this many. Each has an 8-byte header and takes as many slots as
    /// it needs, at most N−1. A message of more than N/2 slots waits for the receiver at the wrap.
    Variable(usize),
}

/// How the two ends learn of each other's progress.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Default)]
pub enum Mode {
    /// Both ends poll memory. Tail and head travel by WRITE (write twice, lazy push). Fastest.
    #[default]
    Poll,
    /// As [`Mode::Poll`], but every message is sent at once: α and β are 1. If both devices place
    /// bytes in order, a message of one slot is a single WRITE, whose last word the receiver polls.
    Latency,
    /// Tail and head travel by WRITE with immediate, so that either end can sleep. A ring also uses
    /// this mode, whatever mode it was configured with, if a device does not order its WRITEs.
    Notify,
}

/// The configuration of a ring. N, slot size and framing must be the same at both ends, and so must
/// [`Mode::Latency`], unless one end needs [`Mode::Notify`]: that applies to both ends.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RingConfig {
    /// N: slots of each array, at least 2. One slot is always empty. Default 128.
    pub slots: u32,
    /// Bytes of a slot: a multiple of 64. Default: the size that one [`Framing::Fixed`] message
    /// needs, or 64.
    pub slot_size: Option<usize>,
    /// β: slots after which the sender transmits a group, 1 to α. Default N/8.
    pub transmit_every: Option<u32>,
    /// α: slots after which the sender publishes its tail, 1 to N−1. Default N/4.
    pub publish_every: Option<u32>,
    /// γ: slots after which the receiver pushes its head, 1 to N−1. Default N/4.
    pub push_every: Option<u32>,
    /// Layout of messages in slots. Default: variable, up to N/2 slots of 64 bytes.
    pub framing: Framing,
    /// How the two ends learn of each other's progress.
    pub mode: Mode,
    /// Whether to defer publication while an earlier one is in flight (the elastic threshold).
    /// Default: true if messages are batched, α > 1. Without it completions only free slots, so the
    /// sender signals a few WRITEs a lap instead of every WRITE of the tail.
    pub elastic: Option<bool>,
    /// Kind of pages to ask the device for.
    pub pages: Pages,
    /// NUMA node of the array; `None` leaves the choice to the device.
    pub numa_node: Option<u32>,
    /// Offset of this end's memory from a cache line, in bytes: a multiple of 8 below 64. Default 0.
    /// Other values serve to measure what alignment is worth (section IV-C).
    #[doc(hidden)]
    pub misaligned_by: usize,
}

/// An illegal value in a configuration. The message names the key and the legal range.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{key} is {value}: {legal}")]
pub struct ConfigError {
    /// Key of the setting.
    pub key: &'static str,
    /// Value found.
    pub value: u64,
    /// Legal range, or the rule that the value breaks.
    pub legal: String,
}

impl Default for RingConfig {
    fn default() -> Self {
        Self {
            slots: 128,
            slot_size: None,
            transmit_every: None,
            publish_every: None,
            push_every: None,
            framing: Framing::Variable(128 / 2 * LINE - 8),
            mode: Mode::Poll,
            elastic: None,
            pages: Pages::Ordinary,
            numa_node: None,
            misaligned_by: 0,
        }
    }
}

/// A checked configuration in which every default is filled in.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CheckedConfig {
    /// N.
    pub slots: u64,
    /// Bytes of a slot.
    pub slot_size: usize,
    /// β.
    pub transmit_every: u64,
    /// α.
    pub publish_every: u64,
    /// γ.
    pub push_every: u64,
    /// Layout of messages in slots.
    pub framing: Framing,
    /// How the two ends learn of each other's progress.
    pub mode: Mode,
    /// Whether publication is deferred while an earlier one is in flight.
    pub elastic: bool,
    /// Slots that the longest message takes.
    pub max_slots: u64,
    /// Bytes of the longest message.
    pub max_message: usize,
    /// Most slots that one WRITE carries: as many as the device's longest message holds. A sender's
    /// setup sets it; before, it is `u64::MAX`.
    pub write_slots: u64,
}

impl RingConfig {
    /// A ring of N slots for messages of exactly `len` bytes, one a slot.
    pub fn fixed(slots: u32, len: usize) -> Self {
        Self {
            slots,
            framing: Framing::Fixed(len),
            ..Self::default()
        }
    }

    /// A ring of N slots of `slot_size` bytes, for messages that fill up to half of the array.
    pub fn variable(slots: u32, slot_size: usize) -> Self {
        let half = (slots as usize / 2).max(1) * slot_size;
        let framing = Framing::Variable(half.saturating_sub(8));
        Self {
            slots,
            slot_size: Some(slot_size),
            framing,
            ..Self::default()
        }
    }

    /// Fills in the defaults and checks every value.
    pub fn settle(&self) -> Result<CheckedConfig, ConfigError> {
        let check = |key, value: u64, lowest: u64, highest: u64| {
            if (lowest..=highest).contains(&value) {
                return Ok(value);
            }
            Err(ConfigError {
                key,
                value,
                legal: format!("{lowest} to {highest}"),
            })
        };
        let slots = check("slots", self.slots.into(), 2, SLOTS_MAX.into())?;
        let latency = self.mode == Mode::Latency;
        let needed = match (self.framing, latency) {
            (Framing::Fixed(len), false) => len,
            (Framing::Fixed(len), true) => len.saturating_add(8),
            (Framing::Variable(_), _) => LINE,
        };
        if let Framing::Fixed(len) = self.framing {
            check(
                "framing (Fixed length)",
                len as u64,
                1,
                (SLOT_MAX - LINE) as u64,
            )?;
        }
        let slot_size = self
            .slot_size
            .unwrap_or_else(|| needed.next_multiple_of(LINE));
        check(
            "slot_size",
            slot_size as u64,
            needed as u64,
            SLOT_MAX as u64,
        )?;
        if !slot_size.is_multiple_of(LINE) {
            let legal = format!("a multiple of {LINE}");
            return Err(ConfigError {
                key: "slot_size",
                value: slot_size as u64,
                legal,
            });
        }
        let off = self.misaligned_by;
        if off >= LINE || !off.is_multiple_of(8) {
            return Err(ConfigError {
                key: "misaligned_by",
                value: off as u64,
                legal: format!("a multiple of 8 below {LINE}"),
            });
        }
        let array = slots.saturating_mul(slot_size as u64);
        check("slots × slot_size", array, 1, ARRAY_MAX as u64)?;
        let per = |every: Option<u32>, part: u64| match every {
            Some(every) => u64::from(every),
            None => (slots / part).max(1).min(slots - 1),
        };
        let alpha = if latency {
            1
        } else {
            per(self.publish_every, 4)
        };
        let beta = if latency {
            1
        } else {
            per(self.transmit_every, 8).min(alpha)
        };
        let publish_every = check("publish_every", alpha, 1, slots - 1)?;
        // A value that was asked for is checked. The default was limited to α above.
        let asked = if latency {
            1
        } else {
            self.transmit_every.map_or(beta, u64::from)
        };
        let transmit_every = check("transmit_every", asked, 1, publish_every)?;
        let push_every = check("push_every", per(self.push_every, 4), 1, slots - 1)?;
        let mut settled = CheckedConfig {
            slots,
            slot_size,
            transmit_every,
            publish_every,
            push_every,
            framing: self.framing,
            mode: self.mode,
            elastic: self.elastic.unwrap_or(publish_every > 1) && !latency,
            max_slots: 1,
            max_message: 0,
            write_slots: u64::MAX,
        };
        settled.max_message = match self.framing {
            Framing::Fixed(len) => len,
            Framing::Variable(len) => {
                let longest = settled.longest_variable();
                check("framing (Variable length)", len as u64, 0, longest as u64)? as usize
            }
        };
        settled.max_slots = settled.slots_of(settled.max_message);
        Ok(settled)
    }
}

impl CheckedConfig {
    /// Returns this configuration in the mode that the two ends agreed on. Message lengths stay
    /// legal, because latency mode needs the most slots for a message.
    pub fn in_mode(&self, mode: Mode) -> Self {
        let mut ring = Self {
            mode,
            ..self.clone()
        };
        ring.max_slots = ring.slots_of(ring.max_message);
        ring
    }

    /// Size of one end's array, in bytes.
    pub fn array_len(&self) -> usize {
        self.slots as usize * self.slot_size
    }

    /// Returns the number of slots that a message of `len` bytes takes.
    #[inline(always)]
    pub fn slots_of(&self, len: usize) -> u64 {
        match self.framing {
            Framing::Fixed(_) => 1,
            // A short message shares one slot with its lap word. A longer one has a slot for the word
            // alone, and lies in the slots after it.
            Framing::Variable(_) if self.mode == Mode::Latency => {
                if len + 8 <= self.slot_size {
                    1
                } else {
                    1 + len.div_ceil(self.slot_size) as u64
                }
            }
            Framing::Variable(_) => (len + 8).div_ceil(self.slot_size) as u64,
        }
    }

    /// Longest message that N−1 slots hold, in bytes.
    fn longest_variable(&self) -> usize {
        let slots = (self.slots - 1) as usize;
        let bytes = match self.mode {
            Mode::Latency if slots > 1 => (slots - 1) * self.slot_size,
            _ => slots * self.slot_size - 8,
        };
        bytes.min(crate::header::LEN_MAX)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn the_papers_numbers_are_the_defaults() {
        let s = RingConfig::fixed(128, 64).settle().unwrap();
        assert_eq!(
            (s.publish_every, s.transmit_every, s.push_every),
            (32, 16, 32)
        );
        assert_eq!((s.slot_size, s.max_slots), (64, 1));
    }

    #[test]
    fn errors_name_the_key_and_the_range() {
        let error = |config: RingConfig| config.settle().unwrap_err().to_string();
        let base = RingConfig::fixed(8, 64);
        assert_eq!(
            error(RingConfig {
                slots: 1,
                ..base.clone()
            }),
            "slots is 1: 2 to 1048576"
        );
        let beta = RingConfig {
            transmit_every: Some(3),
            publish_every: Some(2),
            ..base.clone()
        };
        assert_eq!(error(beta), "transmit_every is 3: 1 to 2");
        let off = RingConfig {
            misaligned_by: 12,
            ..base.clone()
        };
        assert_eq!(error(off), "misaligned_by is 12: a multiple of 8 below 64");
        let odd = RingConfig {
            slot_size: Some(100),
            ..base.clone()
        };
        assert_eq!(error(odd), "slot_size is 100: a multiple of 64");
        let small = RingConfig {
            slot_size: Some(64),
            mode: Mode::Latency,
            ..base.clone()
        };
        assert_eq!(error(small), "slot_size is 64: 72 to 1073741824");
        let none = RingConfig {
            framing: Framing::Fixed(0),
            ..base.clone()
        };
        assert_eq!(error(none), "framing (Fixed length) is 0: 1 to 1073741760");
        let long = RingConfig {
            framing: Framing::Variable(1000),
            ..base
        };
        assert_eq!(error(long), "framing (Variable length) is 1000: 0 to 440");
    }

    proptest! {
        #[test]
        fn whatever_settles_is_consistent(
            slots in 0u32..300,
            slot in proptest::option::of(0usize..1000),
            (alpha, beta, gamma) in any::<(Option<u8>, Option<u8>, Option<u8>)>(),
            len in 0usize..5000,
            fixed in any::<bool>(),
            latency in any::<bool>(),
        ) {
            let config = RingConfig {
                slots,
                slot_size: slot,
                transmit_every: beta.map(u32::from),
                publish_every: alpha.map(u32::from),
                push_every: gamma.map(u32::from),
                framing: if fixed { Framing::Fixed(len) } else { Framing::Variable(len) },
                mode: if latency { Mode::Latency } else { Mode::Poll },
                ..RingConfig::default()
            };
            if let Ok(s) = config.settle() {
                prop_assert!(1 <= s.transmit_every && s.transmit_every <= s.publish_every);
                prop_assert!(s.publish_every < s.slots && s.push_every < s.slots);
                prop_assert!(s.max_slots >= 1 && s.max_slots < s.slots);
                prop_assert!(s.slot_size % LINE == 0);
            }
        }
    }
}
