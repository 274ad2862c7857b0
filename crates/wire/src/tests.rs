//! Tests of both sides against each other.

use std::net::{IpAddr, Ipv6Addr, SocketAddr};

use proptest::prelude::*;

use super::*;

/// A field of one message.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Part {
    U8(u8),
    U16(u16),
    U32(u32),
    U64(u64),
    Bytes(Vec<u8>),
    Address(SocketAddr),
}

fn parts() -> impl Strategy<Value = Vec<Part>> {
    let ip = prop_oneof![
        any::<[u8; 4]>().prop_map(IpAddr::from),
        any::<[u8; 16]>().prop_map(|octets| Ipv6Addr::from(octets).to_canonical()),
    ];
    let address = (ip, any::<u16>());
    let part = prop_oneof![
        any::<u8>().prop_map(Part::U8),
        any::<u16>().prop_map(Part::U16),
        any::<u32>().prop_map(Part::U32),
        any::<u64>().prop_map(Part::U64),
        prop::collection::vec(any::<u8>(), 0..50).prop_map(Part::Bytes),
        address.prop_map(|(ip, port)| Part::Address((ip, port).into())),
    ];
    prop::collection::vec(part, 0..12)
}

fn encode<O: Output>(parts: &[Part], to: Encoder<O>) -> Encoder<O> {
    parts.iter().fold(to, |to, part| match part {
        Part::U8(value) => to.u8(*value),
        Part::U16(value) => to.u16(*value),
        Part::U32(value) => to.u32(*value),
        Part::U64(value) => to.u64(*value),
        Part::Bytes(bytes) => to.bytes(bytes),
        Part::Address(address) => to.address(*address),
    })
}

fn decode(like: &[Part], of: &mut Decoder<'_>) -> Result<Vec<Part>, Malformed> {
    let one = |part: &Part| {
        Ok(match part {
            Part::U8(_) => Part::U8(of.u8()?),
            Part::U16(_) => Part::U16(of.u16()?),
            Part::U32(_) => Part::U32(of.u32()?),
            Part::U64(_) => Part::U64(of.u64()?),
            Part::Bytes(_) => Part::Bytes(of.bytes(50)?.to_vec()),
            Part::Address(_) => Part::Address(of.address()?),
        })
    };
    like.iter().map(one).collect()
}

proptest! {
    #[test]
    fn fields_are_read_as_they_were_written(parts in parts(), kind: u8) {
        let bytes = encode(&parts, Encoder::message(kind)).finish();
        let (read, mut of) = Decoder::message(&bytes).unwrap();
        prop_assert_eq!(read, kind);
        prop_assert_eq!(decode(&parts, &mut of).unwrap(), parts.clone());
        prop_assert_eq!(of.clone().end(), Ok(()));
        // Every truncation lacks a field.
        for len in 1..bytes.len() {
            let (_, mut of) = Decoder::message(&bytes[..len]).unwrap();
            prop_assert!(decode(&parts, &mut of).is_err());
        }
        let longer = [&bytes[..], &[0]].concat();
        let (_, mut of) = Decoder::message(&longer).unwrap();
        decode(&parts, &mut of).unwrap();
        prop_assert_eq!(of.end(), Err(Malformed("too long")));
    }

    #[test]
    fn any_bytes_are_read_or_refused(parts in parts(), bytes in prop::collection::vec(any::<u8>(), 0..100)) {
        let mut of = Decoder::new(&bytes);
        if let Ok(read) = decode(&parts, &mut of) {
            let left = of.rest().len();
            let again = encode(&read, Encoder::new()).finish();
            prop_assert_eq!(&again[..], &bytes[..bytes.len() - left]);
        }
    }
}

#[test]
fn fixed_and_growing_encodings_are_alike() {
    let fields = [Part::U8(1), Part::U32(0x0403_0201), Part::U64(u64::MAX)];
    let fixed: [u8; 13] = encode(&fields, Encoder::fixed()).finish();
    assert_eq!(fixed[..], encode(&fields, Encoder::new()).finish());
    assert_eq!(fixed[..5], [1, 1, 2, 3, 4], "little-endian");
    let behind = encode(&fields, Encoder::after(vec![9])).finish();
    assert_eq!(behind[1..], fixed);
}

#[test]
fn what_is_wrong_is_said() {
    assert_eq!(Decoder::message(&[]).unwrap_err(), Malformed("empty"));
    let long = Encoder::new().bytes(&[b'a'; 9]).finish();
    assert_eq!(Decoder::new(&long).bytes(8), Err(Malformed("too long")));
    assert_eq!(Decoder::new(&long).text(9), Ok("aaaaaaaaa"));
    let no_text = Encoder::new().bytes(&[0xff]).finish();
    let not_utf8 = Err(Malformed("not UTF-8"));
    assert_eq!(Decoder::new(&no_text).text(9), not_utf8);
    let with_port = Encoder::new().address(([10, 0, 0, 1], 5).into()).finish();
    Decoder::new(&with_port).address_without_port().unwrap_err();
}

#[test]
fn what_does_not_fit_is_cut_off_or_panics() {
    let long = Encoder::new().bytes(&[7; 70_000]).finish();
    assert_eq!(long.len(), 2 + usize::from(u16::MAX));
    assert_eq!(Decoder::new(&long).bytes(70_000).unwrap().len(), 65_535);
    let overflow = std::panic::catch_unwind(|| Encoder::<Fixed<2>>::fixed().u32(1).finish());
    overflow.unwrap_err();
}
