//! The header in front of a datagram (GRH).

use headworks_verbs::datagram::{GRH_BYTES, Grh};

pub(super) fn run(bytes: &[u8]) {
    match Grh::parse(bytes) {
        Some(grh) => assert_eq!(Grh::parse(&grh.emit()), Some(grh)),
        None => assert!(bytes.len() < GRH_BYTES || bytes[0] >> 4 != 6),
    }
}
