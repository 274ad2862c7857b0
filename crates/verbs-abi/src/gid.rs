//! GIDs in the representation of the C structs: two words in the order of the bytes.

use headworks_verbs::Gid;

/// Converts a GID to its C representation.
pub fn words_of_gid(gid: Gid) -> [u64; 2] {
    let word = |at: usize| {
        let mut bytes = [0; 8];
        bytes.copy_from_slice(&gid.0[at..at + 8]);
        u64::from_ne_bytes(bytes)
    };
    [word(0), word(8)]
}

/// Converts a GID from its C representation.
pub fn gid_of_words(words: [u64; 2]) -> Gid {
    let mut gid = Gid::default();
    gid.0[..8].copy_from_slice(&words[0].to_ne_bytes());
    gid.0[8..].copy_from_slice(&words[1].to_ne_bytes());
    gid
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_gid_goes_and_comes_back() {
        let gid = Gid(std::array::from_fn(|at| at as u8 * 17));
        let words = words_of_gid(gid);
        assert_eq!(words[0].to_ne_bytes(), gid.0[..8]);
        assert_eq!(gid_of_words(words), gid);
    }
}
