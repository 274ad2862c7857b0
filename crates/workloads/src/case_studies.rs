//! The case studies as actors: an application's two sides, over the channels of any design.
//!
//! [`StudyTask`] names the application and the design. [`actor`] makes an actor of it, which connects its
//! channels by mail and then steps its side. The applications check what they receive; anything else that
//! both sides must agree on goes by mail as well. The side that knows when everything is done measures the
//! time.

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

/// An application, and how much work it does.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub enum CaseStudy {
    /// Packet records are sent and counted.
    Flows {
        /// Number of records.
        records: u64,
        /// Capture file to take them from; if unset, they are synthetic.
        capture: Option<PathBuf>,
    },
    /// Keys are requested and answered.
    Kv {
        /// Number of requests.
        requests: u64,
        /// Maximum number of requests outstanding.
        window: usize,
        /// Number of records in the table.
        records: u64,
    },
    /// Files are fetched one at a time.
    Http {
        /// Number of measured requests.
        requests: u64,
        /// Number of warm-up requests before them.
        warm: u64,
    },
}

/// The task of both actors of a pair.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct StudyTask {
    /// The application.
    pub study: CaseStudy,
    /// The design: a variant of the ring, or a baseline.
    pub channel: Channel,
    /// Whether an idle side yields its processor.
    pub yields: bool,
    /// Expected duration of the application, in nanoseconds.
    pub planned_ns: u64,
}

impl StudyTask {
    /// Returns how long the application of `role` computes for a message that it sends, and for one that it
    /// takes. Used where time is virtual. Measured with this code in loops without a channel, on one core of
    /// a present-day server.
    fn work(&self, role: Role) -> [Duration; 2] {
        let nanos = match (&self.study, role) {
            // Sender: replay and write a record. Receiver: parse and count it.
            (CaseStudy::Flows { .. }, Role::Sender) => [5, 0],
            (CaseStudy::Flows { .. }, Role::Receiver) => [0, 15],
            // Client: write a request, check a value. Server: parse a request, look the key up, answer.
            (CaseStudy::Kv { .. }, Role::Sender) => [5, 10],
            (CaseStudy::Kv { .. }, Role::Receiver) => [10, 0],
            // Client: copy a request of 489 B, compare a file. Server: parse a request, copy head and file.
            (CaseStudy::Http { .. }, Role::Sender) => [10, 235],
            (CaseStudy::Http { .. }, Role::Receiver) => [20, 430],
        };
        nanos.map(Duration::from_nanos)
    }

    /// Returns the length in bytes of the longest message to the receiver, and of the longest reply if there
    /// are replies; and whether all messages have that length.
    fn messages(&self) -> (usize, Option<usize>, bool) {
        match self.study {
            CaseStudy::Flows { .. } => (crate::apps::flows::RECORD, None, true),
            CaseStudy::Kv { .. } => (kv::REQUEST, Some(kv::RESPONSE), true),
            CaseStudy::Http { .. } => (http::MESSAGE_MAX, Some(http::MESSAGE_MAX), false),
        }
    }
}

/// Makes the actor of `task` for the pair's role: the sender is the client.
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
        other => Err(WorkloadError(format!(
            "{other} cannot carry an application"
        ))),
    }
}

/// Returns the configuration of a ring whose slots each hold the longest message.
fn ring(longest: usize, is_fixed: bool) -> RingConfig {
    if is_fixed {
        return RingConfig::fixed(SLOTS, longest);
    }
    RingConfig {
        framing: Framing::Variable(longest),
        ..RingConfig::variable(SLOTS, (longest + 8).next_multiple_of(64))
    }
}

/// Makes the actor over channels that `kind` makes, given the longest message.
fn actor_on<K: ChannelDesign>(
    task: &StudyTask,
    pair: &PairContext,
    kind: impl Fn(usize) -> K,
) -> Result<Box<dyn Actor>> {
    let (there, back, _) = task.messages();
    let (there, back) = (kind(there), back.map(kind));
    let meet = meet(pair.open_device()?, pair.role, &there, back.as_ref())?;
    // With these designs, whether a message is copied does not depend on its length.
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
                // The requests go one at a time, so their latencies add up to the whole time.
                let sum = latency.mean_ns * requests as f64;
                assert!((sum / nanos as f64 - 1.0).abs() < 0.01, "{sum} {nanos}");
            }
        }
    }

    #[test]
    fn a_missing_capture_file_is_reported() {
        let error = FlowsTap::new(Some("/nowhere/trace.pcap".as_ref()), 1).err();
        let told = error.expect("there is no such file").to_string();
        assert!(told.contains("/nowhere/trace.pcap"), "{told}");
    }
}
