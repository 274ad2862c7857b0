use proptest::prelude::*;

use self::oracle::plain_crc32c;
use super::*;

#[path = "oracle.rs"]
mod oracle;

proptest! {
    /// The parts of a transfer, of any sizes and in any order, give the checksum of the whole.
    #[test]
    fn parts_in_any_order_give_the_checksum_of_the_whole(
        bytes in proptest::collection::vec(any::<u8>(), 0..20_000),
        cuts in proptest::collection::vec(any::<proptest::sample::Index>(), 0..8),
        swaps in proptest::collection::vec(any::<(usize, usize)>(), 0..8),
    ) {
        let len = bytes.len() as u64;
        let mut cuts: Vec<usize> = cuts.iter().map(|cut| cut.index(bytes.len() + 1)).collect();
        cuts.extend([0, bytes.len()]);
        cuts.sort_unstable();
        let mut parts: Vec<_> = cuts.windows(2).map(|cut| cut[0]..cut[1]).collect();
        for (one, other) in swaps {
            let count = parts.len();
            parts.swap(one % count, other % count);
        }
        let mut whole = TransferChecksum::new(len);
        for part in parts {
            let one = PartChecksum::of(&bytes[part.clone()], part.start as u64, len).unwrap();
            prop_assert_eq!(whole.add(&one), Ok(()));
        }
        let expected = plain_crc32c(&bytes);
        prop_assert_eq!(whole.value(), Ok(expected));
        prop_assert_eq!(check(&bytes, expected), Ok(()));
        let wrong = Err(ChecksumError::Mismatch { expected: !expected, found: expected });
        prop_assert_eq!(whole.check(!expected), wrong);
        prop_assert_eq!(check(&bytes, !expected), wrong);
    }
}

#[test]
fn the_checksum_is_that_of_the_standard() {
    // RFC 3720, B.4.
    assert_eq!(checksum(&[0; 32]), 0x8a91_36aa);
    assert_eq!(checksum(b"123456789"), 0xe306_9283);
}

#[test]
fn a_part_is_moved_as_far_as_the_transfer_is_long() {
    let crc = 0x1234_5678;
    for behind in [1, 15, 16, 4096, 4097, 123_456_789, u32::MAX as usize] {
        let other = crc32c::crc32c_combine(crc, 0, behind);
        assert_eq!(moved(crc, behind as u64), other, "{behind} bytes");
    }
    // Further than the other function goes: twice half of the way.
    let far = u64::MAX - 1;
    assert_eq!(moved(crc, far), moved(moved(crc, far / 2), far / 2));
}

#[test]
fn parts_outside_of_the_transfer_and_missing_ones_are_errors() {
    let range = |at, len, transfer| ChecksumError::Range { at, len, transfer };
    assert_eq!(PartChecksum::of(&[1; 3], 8, 10), Err(range(8, 3, 10)));
    let far = u64::MAX;
    assert_eq!(PartChecksum::of(&[1; 3], far, far), Err(range(far, 3, far)));
    let part = PartChecksum::of(&[1; 6], 0, 10).unwrap();
    let mut whole = TransferChecksum::new(10);
    assert_eq!(whole.add(&part), Ok(()));
    assert_eq!(whole.add(&part), Err(range(0, 6, 10)), "too many bytes");
    let missing = ChecksumError::Incomplete {
        added: 6,
        transfer: 10,
    };
    assert_eq!(whole.check(0), Err(missing));
    let mut other = TransferChecksum::new(11);
    assert_eq!(other.add(&part), Err(range(0, 6, 11)), "another length");
}
