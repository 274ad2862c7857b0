//! Compares a queue with a plain model: requests in a list, each of which completes once.

use proptest::collection::vec;
use proptest::prelude::*;

use super::*;
use crate::monitor::Class;

mod lifetimes;

/// A request as the program posts it.
#[derive(Clone, Debug)]
struct Request {
    wr_id: u64,
    op: SendOp,
    payload: Result<Vec<Sge>, Vec<u8>>,
    flags: SendFlags,
    is_signaled: bool,
}

impl Request {
    fn wr(&self) -> SendWr<'_> {
        SendWr {
            wr_id: self.wr_id,
            op: self.op,
            payload: match &self.payload {
                Ok(sges) => Payload::Gather(sges),
                Err(bytes) => Payload::Inline(bytes),
            },
            flags: self.flags,
        }
    }

    fn len(&self) -> u64 {
        self.wr().payload.len()
    }

    /// The in-flight record of the request, posted whole.
    fn flying(&self) -> InFlight {
        InFlight {
            wr_id: self.wr_id,
            doorbell: 0,
            bytes: self.len() as u32,
            total: self.len() as u32,
            opcode: opcode(&self.op),
            kind: kind(&self.op),
            is_last: true,
            is_signaled: self.is_signaled,
        }
    }
}

fn kind(op: &SendOp) -> Kind {
    Kind::new(Class::of(op), false)
}

fn remote() -> impl Strategy<Value = RemoteAddr> {
    // The address leaves room for the slices behind it.
    (0..u64::MAX / 2, any::<u32>()).prop_map(|(addr, rkey)| RemoteAddr { addr, rkey })
}

fn operation() -> impl Strategy<Value = SendOp> {
    let to = (any::<u32>(), 0..1_u32 << 24, any::<u32>()).prop_map(|(ah, qpn, qkey)| Destination {
        ah: AhKey(ah),
        qpn: Qpn::new(qpn).expect("24 bits"),
        qkey,
    });
    let words = (any::<u64>(), any::<u64>());
    prop_oneof![
        Just(SendOp::Send),
        any::<u32>().prop_map(SendOp::SendImm),
        to.clone().prop_map(SendOp::SendTo),
        (to, any::<u32>()).prop_map(|(to, imm)| SendOp::SendToImm(to, imm)),
        remote().prop_map(SendOp::Write),
        (remote(), any::<u32>()).prop_map(|(to, imm)| SendOp::WriteImm(to, imm)),
        remote().prop_map(SendOp::Read),
        (remote(), words).prop_map(|(remote, (expect, swap))| SendOp::CompareSwap {
            remote,
            expect,
            swap
        }),
        (remote(), any::<u64>()).prop_map(|(remote, add)| SendOp::FetchAdd { remote, add }),
    ]
}

fn flags() -> impl Strategy<Value = SendFlags> {
    let one = |flag: SendFlags| prop_oneof![Just(SendFlags::NONE), Just(flag)];
    let all = (
        one(SendFlags::FENCE),
        one(SendFlags::SIGNALED),
        one(SendFlags::SOLICITED),
    );
    all.prop_map(|(a, b, c)| a | b | c)
}

fn request() -> impl Strategy<Value = Request> {
    let sge = (0..u64::MAX / 2, 0..100_u32, any::<u32>());
    let sge = sge.prop_map(|(addr, len, lkey)| Sge { addr, len, lkey });
    let payload = prop_oneof![
        3 => vec(sge, 0..6).prop_map(Ok),
        1 => vec(any::<u8>(), 0..40).prop_map(Err),
    ];
    let parts = (any::<u64>(), operation(), payload, flags(), any::<bool>());
    parts.prop_map(|(wr_id, op, payload, flags, is_signaled)| Request {
        wr_id,
        op,
        payload,
        flags,
        is_signaled,
    })
}

/// Address and key of each byte.
fn places(sges: &[Sge]) -> Vec<(u64, u32)> {
    let each = |sge: &Sge| {
        let (first, lkey) = (sge.addr, sge.lkey);
        (0..u64::from(sge.len)).map(move |at| (first + at, lkey))
    };
    sges.iter().flat_map(each).collect()
}

proptest! {
    #[test]
    fn a_queued_request_decodes_as_it_was_posted(
        requests in vec(request(), 1..10),
        shift in 0..40_usize,
    ) {
        // The words begin anywhere in the deque's ring.
        let mut words: VecDeque<u64> = (0..shift as u64).collect();
        for request in &requests {
            encode(&mut words, &request.wr(), request.is_signaled);
        }
        words.drain(..shift);
        let mut at = 0;
        for request in &requests {
            let found = decode(&words, at);
            prop_assert_eq!(
                (found.wr_id, found.op, found.flags, found.is_signaled, found.len),
                (request.wr_id, request.op, request.flags, request.is_signaled, request.len())
            );
            prop_assert_eq!(found.is_inline, request.payload.is_err());
            match &request.payload {
                Ok(sges) => prop_assert_eq!(&found.sges(&words).collect::<Vec<_>>(), sges),
                Err(bytes) => {
                    // The bytes are appended after those already there.
                    let mut into = vec![7];
                    found.read_bytes(&words, &mut into);
                    prop_assert_eq!(&into[1..], &bytes[..]);
                }
            }
            at += found.words;
        }
        prop_assert_eq!(at, words.len());
    }

    /// Plans any number of slices ahead and posts any prefix of them. What is posted is what was asked for,
    /// in order.
    #[test]
    fn slices_are_posted_in_order_and_whole(
        requests in vec(request(), 1..8),
        steps in vec((1..8_usize, 0..8_usize), 1..30),
        slice in 1..120_u64,
        with_imm in any::<bool>(),
    ) {
        let cut = SliceRule { slice, with_imm };
        let mut queue = RequestQueue::default();
        for request in &requests {
            queue.wait(&request.wr(), request.is_signaled);
        }
        let mut rest = requests.iter();
        let (mut current, mut done, mut seen) = (rest.next(), 0, Vec::new());
        // At the end everything that is left is posted.
        for (ahead, posts) in steps.into_iter().chain(std::iter::repeat((3, 3))) {
            if !queue.is_waiting() {
                break;
            }
            let (mut from, mut scratch) = (PlanPosition::default(), (Vec::new(), Vec::new()));
            let plans: Vec<_> = std::iter::from_fn(|| queue.plan(&mut from, cut, kind, &mut scratch)).take(ahead).collect();
            for planned in &plans[..posts.min(plans.len())] {
                let request = current.expect("there is one");
                let is_cut = slices::is_cut(&request.op, request.len(), cut) && request.payload.is_ok();
                let (flying, is_last) = (planned.flying, planned.flying.is_last);
                prop_assert_eq!((flying.wr_id, flying.is_signaled), (request.wr_id, request.is_signaled));
                prop_assert_eq!(u64::from(flying.total), request.len());
                prop_assert!(planned.flags.contains(SendFlags::SIGNALED));
                let fences = request.flags.contains(SendFlags::FENCE) && done == 0;
                let solicits = request.flags.contains(SendFlags::SOLICITED) && is_last;
                prop_assert_eq!(planned.flags.contains(SendFlags::FENCE), fences);
                prop_assert_eq!(planned.flags.contains(SendFlags::SOLICITED), solicits);
                let expected = match request.op {
                    op if !is_cut => op,
                    SendOp::Read(remote) => SendOp::Read(remote.plus(done)),
                    SendOp::WriteImm(remote, imm) if is_last => SendOp::WriteImm(remote.plus(done), imm),
                    SendOp::Write(remote) | SendOp::WriteImm(remote, _) => SendOp::Write(remote.plus(done)),
                    _ => unreachable!("not cut"),
                };
                prop_assert_eq!(planned.op, expected);
                match &request.payload {
                    Ok(sges) => {
                        let list = &scratch.0[planned.sges.0..planned.sges.1];
                        prop_assert!(list.len() <= sges.len());
                        seen.extend(places(list));
                        if is_last {
                            prop_assert_eq!(std::mem::take(&mut seen), places(sges));
                        }
                    }
                    Err(bytes) => {
                        let (first, end) = planned.bytes.expect("inline");
                        prop_assert_eq!(&scratch.1[first..end], &bytes[..]);
                    }
                }
                prop_assert!(!is_cut || u64::from(flying.bytes) <= slice);
                done += u64::from(flying.bytes);
                queue.fly_first(flying);
                if is_last {
                    prop_assert_eq!(done, request.len());
                    (current, done) = (rest.next(), 0);
                }
            }
        }
        prop_assert!(current.is_none() && queue.waiting.is_empty());
        prop_assert_eq!(queue.outstanding() as usize, requests.len());
    }
}
