use proptest::prelude::*;

use super::*;
use crate::direct::DirectPlace;

fn address() -> impl Strategy<Value = SocketAddr> {
    let v4 = any::<([u8; 4], u16)>().prop_map(SocketAddr::from);
    // An IPv4-mapped address is decoded as the IPv4 address.
    let v6 = any::<([u8; 16], u16)>()
        .prop_map(|(ip, port)| SocketAddr::new(std::net::Ipv6Addr::from(ip).to_canonical(), port));
    prop_oneof![v4, v6]
}

fn extent() -> impl Strategy<Value = Extent> {
    any::<(u32, u32, u64)>().prop_map(|(slab, len, offset)| Extent { slab, len, offset })
}

fn place() -> impl Strategy<Value = DirectPlace> {
    (any::<u32>(), extent(), extent()).prop_map(|(number, block, ring)| DirectPlace {
        number,
        block,
        ring,
    })
}

fn end() -> impl Strategy<Value = End> {
    let own = proptest::option::of(extent());
    let direct = (any::<u32>(), place(), place());
    let direct = direct.prop_map(|(pair, outgoing, incoming)| DirectEnd {
        pair,
        outgoing,
        incoming,
    });
    let direct = proptest::option::of(direct);
    (any::<u32>(), extent(), address(), address(), own, direct).prop_map(
        |(handle, block, local, peer, doorbell, direct)| End {
            handle,
            block,
            doorbell,
            direct,
            local,
            peer,
        },
    )
}

fn why() -> impl Strategy<Value = Refusal> {
    proptest::sample::select(Refusal::ALL.to_vec())
}

fn request() -> impl Strategy<Value = Request> {
    let number = any::<u32>;
    prop_oneof![
        (any::<u16>(), any::<u16>(), "[ -~]{0,64}").prop_map(|(version, oldest, name)| {
            Request::Attach {
                version,
                oldest,
                name,
            }
        }),
        (number(), address(), any::<bool>()).prop_map(|(request, to, is_watched)| {
            Request::Connect {
                request,
                to,
                is_watched,
            }
        }),
        (number(), number()).prop_map(|(request, handle)| Request::Watch { request, handle }),
        (number(), number())
            .prop_map(|(request, listener)| Request::WatchListener { request, listener }),
        number().prop_map(|listener| Request::Arm { listener }),
        (number(), number(), extent(), any::<u8>()).prop_map(
            |(request, handle, extent, rights)| {
                Request::Export {
                    request,
                    handle,
                    extent,
                    rights: Rights::from_bits_truncate(rights),
                }
            }
        ),
        (number(), number(), number()).prop_map(|(request, handle, export_id)| Request::Revoke {
            request,
            handle,
            export_id,
        }),
        (number(), any::<u16>(), number()).prop_map(|(request, port, backlog)| Request::Listen {
            request,
            port,
            backlog
        }),
        number().prop_map(|listener| Request::Unlisten { listener }),
        number().prop_map(|listener| Request::Took { listener }),
        number().prop_map(|handle| Request::Close { handle }),
        number().prop_map(|handle| Request::Abort { handle }),
        (number(), number()).prop_map(|(request, len)| Request::Alloc { request, len }),
        extent().prop_map(|extent| Request::Free { extent }),
        Just(Request::Wake),
        number().prop_map(|bits| Request::Features { bits }),
    ]
}

fn reply() -> impl Strategy<Value = Reply> {
    let number = any::<u32>;
    prop_oneof![
        number().prop_map(|request| Reply::Watched { request }),
        (number(), number())
            .prop_map(|(request, export_id)| Reply::Exported { request, export_id }),
        number().prop_map(|request| Reply::Revoked { request }),
        (any::<u16>(), extent(), number(), address()).prop_map(
            |(version, doorbell, handles, address)| Reply::Attached {
                version,
                doorbell,
                handles,
                address: address.ip(),
            }
        ),
        (number(), any::<bool>()).prop_map(|(number, is_read_only)| Reply::Slab {
            number,
            is_read_only,
        }),
        (number(), end()).prop_map(|(request, end)| Reply::Connected { request, end }),
        (number(), number(), any::<u16>()).prop_map(|(request, listener, port)| {
            Reply::Listening {
                request,
                listener,
                port,
            }
        }),
        (number(), end()).prop_map(|(listener, end)| Reply::Incoming { listener, end }),
        (number(), extent()).prop_map(|(request, extent)| Reply::Allocated { request, extent }),
        (number(), why()).prop_map(|(request, why)| Reply::Refused { request, why }),
        why().prop_map(|why| Reply::Over { why }),
        number().prop_map(|handle| Reply::Rang { handle }),
        (number(), any::<bool>())
            .prop_map(|(pair, is_outgoing)| Reply::PairMemory { pair, is_outgoing }),
        number().prop_map(|pair| Reply::PairSocket { pair }),
    ]
}

proptest! {
    #[test]
    fn a_request_is_read_as_it_was_written(request in request(), cut in 0usize..64) {
        let message = request.encode();
        prop_assert!(message.len() <= MESSAGE_MAX);
        prop_assert_eq!(Request::decode(&message), Ok(request));
        if let Some(short) = message.len().checked_sub(cut + 1) {
            prop_assert!(Request::decode(&message[..short]).is_err());
        }
        prop_assert!(Request::decode(&[message, vec![0]].concat()).is_err());
    }

    #[test]
    fn a_reply_is_read_as_it_was_written(reply in reply(), cut in 0usize..64) {
        let message = reply.encode();
        prop_assert!(message.len() <= MESSAGE_MAX);
        prop_assert_eq!(Reply::decode(&message), Ok(reply));
        if let Some(short) = message.len().checked_sub(cut + 1) {
            prop_assert!(Reply::decode(&message[..short]).is_err());
        }
        prop_assert!(Reply::decode(&[message, vec![0]].concat()).is_err());
    }

    #[test]
    fn any_bytes_are_a_message_or_none(bytes in proptest::collection::vec(any::<u8>(), 0..80)) {
        if let Ok(request) = Request::decode(&bytes) {
            prop_assert_eq!(request.encode().len(), bytes.len());
        }
        if let Ok(reply) = Reply::decode(&bytes) {
            prop_assert_eq!(reply.encode().len(), bytes.len());
        }
    }
}

#[test]
fn a_long_name_is_cut_at_a_character() {
    let name = "ä".repeat(40) + "b";
    let attach = Request::Attach {
        version: 1,
        oldest: 1,
        name,
    };
    let Ok(Request::Attach { name, .. }) = Request::decode(&attach.encode()) else {
        panic!("it is legal")
    };
    assert_eq!(name, "ä".repeat(32));
}
