//! The case studies as parts of a play: an application's two sides, over the channels of any design.
//!
//! [`StudyTask`] says which application and which design; [`actor`] makes an actor of it, which connects its
//! channels by mail and then steps its side. What both sides must agree on, besides what the
//! applications check themselves, goes by mail as well. The side that knows when everything is done
//! has the time taken.

mod actors;

use std::path::PathBuf;

use headworks::ring::{Framing, RingConfig};
use headworks::verbs::Duration;
use headworks_baselines::paper_baselines::Plan;
use headworks_baselines::paper_baselines::farm::Farm;
use headworks_baselines::paper_baselines::l5::L5;
use headworks_baselines::paper_baselines::socksdirect::SocksDirect;
use headworks_runtime::Actor;
use serde::{Deserialize, Serialize};

use crate::actor_pair::{PairContext, Role};
use crate::apps::{http, kv};
use crate::error::{Result, WorkloadError};
use crate::transports::channel_designs::{BaselineDesign, RingDesign};
use crate::transports::cpu_cost::MessageCost;
use crate::transports::job::{Channel, PaperBaseline, RingMode};
use crate::transports::verbs_connect::{ChannelDesign, meet};
pub use actors::PACKETS_MAX;
use actors::{FlowsMonitor, FlowsTap, HttpClient, KvClient, drive};

/// N of every channel.
const SLOTS: u32 = 128;

/// Which application, and how much of it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub enum CaseStudy {
    /// Records of packets are sent and counted.
    Flows {
        /// Number of records.
        records: u64,
        /// A capture to take them from; unset: they are made up.
        capture: Option<PathBuf>,
    },
    /// Keys are asked for and answered.
    Kv {
        /// How often.
        requests: u64,
        /// Requests on their way at most.
        window: usize,
        /// Records of the table.
        records: u64,
    },
    /// Files are fetched, one after the other.
    Http {
        /// Requests that are measured.
        requests: u64,
        /// Requests before them.
        warm: u64,
    },
}

/// What both parts of a pair are told.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct StudyTask {
    /// The application.
    pub study: CaseStudy,
    /// The design: a setting of the ring, or a rival.
    pub channel: Channel,
    /// Whether a side with nothing to do offers its processor to others.
    pub yields: bool,
    /// Nanoseconds that the application is expected to take.
    pub planned_ns: u64,
}

impl StudyTask {
    /// What the application of `role` computes for a message that it sends, and for one that it takes, where
    /// time is virtual: measured of this code in loops without a channel, on one core of a present-day server.
    fn work(&self, role: Role) -> [Duration; 2] {
        let nanos = match (&self.study, role) {
            // A record replayed and written; parsed and counted.
            (CaseStudy::Flows { .. }, Role::Sender) => [5, 0],
            (CaseStudy::Flows { .. }, Role::Receiver) => [0, 15],
            // A request written, a value checked; a request parsed, looked up and answered.
            (CaseStudy::Kv { .. }, Role::Sender) => [5, 10],
            (CaseStudy::Kv { .. }, Role::Receiver) => [10, 0],
            // A request of 489 B copied, a file compared; a request parsed, head and file copied.
            (CaseStudy::Http { .. }, Role::Sender) => [10, 235],
            (CaseStudy::Http { .. }, Role::Receiver) => [20, 430],
        };
        nanos.map(Duration::from_nanos)
    }

    /// Bytes of the longest message there, and of the longest back, if there is any; and whether all
    /// are of that length.
    fn messages(&self) -> (usize, Option<usize>, bool) {
        match self.study {
            CaseStudy::Flows { .. } => (crate::apps::flows::RECORD, None, true),
            CaseStudy::Kv { .. } => (kv::REQUEST, Some(kv::RESPONSE), true),
            CaseStudy::Http { .. } => (http::MESSAGE_MAX, Some(http::MESSAGE_MAX), false),
        }
    }
}

/// The actor of `task` that has the pair's role: the sender is the client.
pub fn actor(task: StudyTask, pair: &PairContext) -> Result<Box<dyn Actor>> {
    let plan = |longest| Plan {
        messages: SLOTS,
        longest,
    };
    let (.., is_fixed) = task.messages();
    match task.channel {
        Channel::Ring(RingMode::Paper(variant)) => {
            let kind = |longest| RingDesign::of(ring(longest, is_fixed), variant);
            actor_on(&task, pair, kind)
        }
        Channel::Baseline(PaperBaseline::Farm) => {
            actor_on(&task, pair, |longest| BaselineDesign(Farm(plan(longest))))
        }
        Channel::Baseline(PaperBaseline::SocksDirect) => actor_on(&task, pair, |longest| {
            BaselineDesign(SocksDirect(plan(longest)))
        }),
        Channel::Baseline(PaperBaseline::L5) => {
            actor_on(&task, pair, |longest| BaselineDesign(L5(plan(longest))))
        }
        other => Err(WorkloadError(format!("{other} carries no application"))),
    }
}

/// A ring of slots that each hold the longest message.
fn ring(longest: usize, is_fixed: bool) -> RingConfig {
    if is_fixed {
        return RingConfig::fixed(SLOTS, longest);
    }
    RingConfig {
        framing: Framing::Variable(longest),
        ..RingConfig::variable(SLOTS, (longest + 8).next_multiple_of(64))
    }
}

/// The actor over channels that `kind` makes for a longest message.
fn actor_on<K: ChannelDesign>(
    task: &StudyTask,
    pair: &PairContext,
    kind: impl Fn(usize) -> K,
) -> Result<Box<dyn Actor>> {
    let (there, back, _) = task.messages();
    let (there, back) = (kind(there), back.map(kind));
    let meet = meet(pair.open_device()?, pair.role, &there, back.as_ref())?;
    // Nothing that is copied or not hangs on how long it is.
    let price = |prices| MessageCost::of(task.channel, 0, prices).with_work(task.work(pair.role));
    let with = (meet, pair.prices.map(price), task.yields);
    Ok(match (&task.study, pair.role) {
        (CaseStudy::Flows { records, capture }, Role::Sender) => {
            drive(with, FlowsTap::new(capture.as_deref(), *records)?)
        }
        (CaseStudy::Flows { records, .. }, Role::Receiver) => {
            drive(with, FlowsMonitor::new(*records))
        }
        (
            &CaseStudy::Kv {
                requests,
                window,
                records,
            },
            Role::Sender,
        ) => drive(with, KvClient::new(requests, window, records)),
        (&CaseStudy::Kv { records, .. }, Role::Receiver) => {
            drive(with, kv::Server::new(kv::Store::of(records)))
        }
        (&CaseStudy::Http { requests, warm }, Role::Sender) => {
            drive(with, HttpClient::new(requests, warm))
        }
        (CaseStudy::Http { .. }, Role::Receiver) => {
            drive(with, http::Server::new(http::Site::new(http::FILES)))
        }
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::actor_pair::testing::run_both;
    use crate::report::Report;
    use crate::transports::job::Variant;

    fn designs() -> impl Iterator<Item = Channel> {
        let variants = [Variant::Full, Variant::Unbatched, Variant::Latency];
        let baselines = [
            PaperBaseline::Farm,
            PaperBaseline::SocksDirect,
            PaperBaseline::L5,
        ];
        let rings = variants.map(|variant| Channel::Ring(RingMode::Paper(variant)));
        rings.into_iter().chain(baselines.map(Channel::Baseline))
    }

    fn reports_of(study: &CaseStudy, channel: Channel) -> [Report; 2] {
        let task = StudyTask {
            study: study.clone(),
            channel,
            yields: true,
            planned_ns: 0,
        };
        run_both(move |pair| actor(task.clone(), pair), "")
    }

    #[test]
    fn flows_are_counted_and_keys_answered_over_every_design() {
        let flows = CaseStudy::Flows {
            records: 5_000,
            capture: None,
        };
        let keys = CaseStudy::Kv {
            requests: 3_000,
            window: 20,
            records: 1_000,
        };
        // The monitor counts flows; the client counts answers.
        for (study, role, all) in [(flows, 1, 5_000), (keys, 0, 3_000)] {
            for channel in designs() {
                let report = &reports_of(&study, channel)[role];
                let is_all = matches!(report, Report::Rate { messages, .. } if *messages == all);
                assert!(is_all, "{channel} {report:?}");
            }
        }
    }

    #[test]
    fn files_are_fetched_over_every_design() {
        for warm in [0, 10] {
            let requests = 500;
            let study = CaseStudy::Http { requests, warm };
            for channel in designs() {
                let [asked, _] = reports_of(&study, channel);
                let Report::Served {
                    messages,
                    nanos,
                    latency,
                } = asked
                else {
                    panic!("{channel:?} {asked:?}");
                };
                assert_eq!((messages, latency.count), (requests, requests));
                // One after the other: the times of all are the time of the whole.
                let sum = latency.mean_ns * requests as f64;
                assert!((sum / nanos as f64 - 1.0).abs() < 0.01, "{sum} {nanos}");
            }
        }
    }

    #[test]
    fn a_capture_that_is_none_is_told() {
        let error = FlowsTap::new(Some("/nowhere/trace.pcap".as_ref()), 1).err();
        let told = error.expect("there is no such file").to_string();
        assert!(told.contains("/nowhere/trace.pcap"), "{told}");
    }
}
