//! Content of requests and responses.
//!
//! A request has [`REQUEST`] bytes: the number of an item, the slot of the requester, zeros, and a flag in its
//! last byte. A response is an item of the responder's region, filled before the run: its first word is the
//! item's number, and its last byte is a flag. The paper's responder executes no application code either
//! (section 4.2).

use headworks_baselines::WordMemory;

/// Bytes of a request, including its flag (section 4.2).
pub const REQUEST: usize = 64;

/// Bytes of a word. Lengths of messages are multiples of it.
pub const WORD: usize = 8;

/// A flag in the highest byte of the last word of a message: the message's last byte.
pub const FLAG: u64 = 1 << 56;

/// Returns the request for `item` from `slot`, including the flag.
#[inline(always)]
pub fn request_bytes(item: u64, slot: u32) -> [u8; REQUEST] {
    let mut bytes = [0; REQUEST];
    bytes[..WORD].copy_from_slice(&item.to_ne_bytes());
    bytes[WORD..2 * WORD].copy_from_slice(&u64::from(slot).to_ne_bytes());
    bytes[REQUEST - WORD..].copy_from_slice(&FLAG.to_ne_bytes());
    bytes
}

/// Writes the request for `item` from `slot` into the [`REQUEST`] bytes at `at`, including the flag.
#[inline(always)]
pub fn write_request(memory: &WordMemory, at: usize, item: u64, slot: u32) {
    use std::sync::atomic::Ordering::Relaxed;
    memory.word(at).store(item, Relaxed);
    memory.word(at + WORD).store(slot.into(), Relaxed);
    memory.word(at + REQUEST - WORD).store(FLAG, Relaxed);
}

/// Reads the item and the slot of the request at `at`. A hostile peer may have written any values.
#[inline(always)]
pub fn read_request(memory: &WordMemory, at: usize) -> (u64, u64) {
    use std::sync::atomic::Ordering::Relaxed;
    let word = |at| memory.word(at).load(Relaxed);
    (word(at), word(at + WORD))
}

/// Word `at` of `item`, which has `len` bytes. Differs between items and between words.
pub const fn item_word(item: u64, at: usize, len: usize) -> u64 {
    let word = match at {
        0 => item,
        // SplitMix64's finaliser: a bijection, so that no two words are alike.
        _ => {
            let mixed = (item << 24 | at as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15);
            (mixed ^ mixed >> 29).wrapping_mul(0xbf58_476d_1ce4_e5b9)
        }
    };
    match at == len / WORD - 1 {
        true => word & !(0xff << 56) | FLAG,
        false => word,
    }
}

/// Fills the `len` bytes at `at` with `item`.
pub fn write_item(memory: &WordMemory, at: usize, item: u64, len: usize) {
    for word in 0..len / WORD {
        let value = item_word(item, word, len);
        memory
            .word(at + word * WORD)
            .store(value, std::sync::atomic::Ordering::Relaxed);
    }
}

/// Returns the offset of the first byte of the response at `at` that differs from `item`; `None` if all bytes
/// are right.
pub fn first_wrong_byte(memory: &WordMemory, at: usize, item: u64, len: usize) -> Option<usize> {
    let found = |word| {
        memory
            .word(at + word * WORD)
            .load(std::sync::atomic::Ordering::Relaxed)
    };
    (0..len / WORD).find_map(|word| {
        let differing = found(word) ^ item_word(item, word, len);
        (differing != 0).then(|| word * WORD + differing.trailing_zeros() as usize / 8)
    })
}
