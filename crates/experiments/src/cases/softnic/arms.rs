//! The arms: what each pair of parts does, under which name.

use crate::nic::{Over, Waker, Way, What};
use crate::outcome::ArmNote;

/// Queue pairs that WRITEs are spread over, and whose memory is counted.
pub(super) const MANY: usize = 1000;

/// Every pair, those to be compared next to each other.
pub(super) fn all() -> Vec<What> {
    let mut all = vec![What::Footprint { queue_pairs: MANY }];
    for chain in [1, 16] {
        for way in [Way::PolledMemory, Way::SharedReceives] {
            all.push(What::Flow { way, chain });
        }
        for queue_pairs in [1, MANY] {
            all.push(What::Spread { queue_pairs, chain });
        }
    }
    for size in [64, 65536] {
        for over in [Over::Verbs, Over::SystemCall] {
            all.push(What::Foreign { size, over });
        }
    }
    all.extend([Waker::Channel, Waker::EventFd].map(What::Wake));
    all
}

/// An arm's name in the points.
pub(super) fn name(what: What) -> String {
    match what {
        What::Flow { way, chain } => {
            let way = match way {
                Way::PolledMemory => "write-and-poll",
                Way::SharedReceives => "srq",
            };
            format!("{way}-chain{chain}")
        }
        What::Spread { queue_pairs, chain } => format!("write-{queue_pairs}qp-chain{chain}"),
        What::Footprint { queue_pairs } => format!("memory-{queue_pairs}qp"),
        What::Foreign { size, over } => match over {
            Over::Verbs => format!("foreign-{size}"),
            Over::SystemCall => format!("process_vm_writev-{size}"),
        },
        What::Wake(Waker::Channel) => "channel-wakeup".into(),
        What::Wake(Waker::EventFd) => "eventfd-wakeup".into(),
        What::Loaded(load) | What::PingPong(load) => load.to_string(),
        What::Batches(batches) => batches.load.to_string(),
        What::Posts { chain } => format!("posts-chain{chain}"),
        What::Flows(flows) => flows.load.to_string(),
        What::Watched(watched) => watched.load.to_string(),
    }
}

/// All arms, described.
pub(super) fn notes() -> Vec<ArmNote> {
    all().into_iter().map(describe).collect()
}

fn describe(what: What) -> ArmNote {
    let (text, waiting, copies) = match what {
        What::Flow { way, chain } => {
            let way = match way {
                Way::PolledMemory => "WRITEs of 64 B into memory that the receiver polls",
                Way::SharedReceives => {
                    "SENDs of 64 B into 128 receives of an SRQ, each posted again when its \
                     completion was polled"
                }
            };
            let text = format!(
                "{way}; one queue pair; {chain} per call (the receiver polls and posts as many); \
                 1 in 32 signalled, 128 under way at most, the receiver WRITEs its head every 32; \
                 first and last word of each written and checked"
            );
            (text, "poll", "1")
        }
        What::Spread { queue_pairs, chain } => {
            let text = format!(
                "WRITEs of 64 B round robin over {queue_pairs} queue pairs, {chain} per call, round \
                 1,000 places of 64 B of one region, which nobody reads meanwhile; of each queue \
                 pair 1 in 32 is signalled (not all at the same time), all into one CQ that is \
                 polled as often"
            );
            (text, "poll", "1")
        }
        What::Footprint { queue_pairs } => {
            let text = format!(
                "{queue_pairs} queue pairs, each connected and used for a WRITE, both ways"
            );
            (text, "-", "-")
        }
        What::Foreign { size, over } => {
            let way = match over {
                Over::Verbs => "WRITEs, 1 in 32 signalled,",
                Over::SystemCall => "bare calls of process_vm_writev",
            };
            let text = format!(
                "{way} of {size} B into private memory of the other process, again and again the \
                 same; first and last word of each written"
            );
            (text, "poll", "1")
        }
        What::Wake(waker) => {
            let way = match waker {
                Waker::Channel => {
                    "a SEND of 8 B; poll(2), next_event, arm, poll the CQ, post the receive again"
                }
                Waker::EventFd => "a write; poll(2), read",
            };
            (format!("each wakes the other in turn: {way}"), "block", "-")
        }
        What::Loaded(_)
        | What::PingPong(_)
        | What::Batches(_)
        | What::Posts { .. }
        | What::Flows(_)
        | What::Watched(_) => (name(what), "poll", "0"),
    };
    ArmNote {
        name: name(what),
        what: text,
        waiting,
        copies: copies.into(),
    }
}
