//! One actor of a measured pair: connects its transport, then drives the workload over it.

use headworks_baselines::paper_baselines::farm::{Farm, FarmAsPublished};
use headworks_baselines::paper_baselines::l5::L5;
use headworks_baselines::paper_baselines::raw::Raw;
use headworks_baselines::paper_baselines::socksdirect::SocksDirect;
use headworks_runtime::Actor;

use super::MessageTransport;
use super::bare_ring::BareConnect;
use super::channel_designs::{BaselineDesign, RingDesign, plan, sync_variant};
use super::job::{Channel, Job, PaperBaseline, Workload};
use super::kernel_byte_stream::ByteStreamConnect;
use super::message_contents::{LatencyRecorder, MessageChecker, MessageWriter, TimestampWriter};
use super::one_way::{IdleReceiver, Receiver, Sender, UnreadSender};
use super::ping_pong::PingPong;
use super::verbs_connect::{self, ChannelDesign};
use crate::actor_pair::{PairContext, Role};
use crate::connecting_actor::{Connect, connecting_actor};
use crate::error::Result;

/// Makes the actor of `job` for the pair's role.
pub fn actor(job: Job, pair: &PairContext) -> Result<Box<dyn Actor>> {
    let plan = plan(&job);
    match job.channel {
        Channel::Stream(transport, waiting, buffering) => {
            let stream = (transport, waiting, buffering);
            let connect = ByteStreamConnect::new(job.clone(), pair.role, stream);
            Ok(on(connect, job, pair.role))
        }
        Channel::Bare => Ok(on(BareConnect::new(job.clone(), pair.role), job, pair.role)),
        Channel::Ring(mode) => on_verbs(RingDesign::new(&job, mode), job, pair),
        Channel::Baseline(baseline) => match baseline {
            PaperBaseline::Farm => on_verbs(BaselineDesign(Farm(plan)), job, pair),
            PaperBaseline::FarmAsPublished => {
                on_verbs(BaselineDesign(FarmAsPublished(plan)), job, pair)
            }
            PaperBaseline::SocksDirect => on_verbs(BaselineDesign(SocksDirect(plan)), job, pair),
            PaperBaseline::L5 => on_verbs(BaselineDesign(L5(plan)), job, pair),
            PaperBaseline::SyncVariant(of) => {
                on_verbs(BaselineDesign(sync_variant(&job, of)), job, pair)
            }
            PaperBaseline::Raw => on_verbs(BaselineDesign(Raw { plan }), job, pair),
        },
    }
}

fn on_verbs<K: ChannelDesign>(kind: K, job: Job, pair: &PairContext) -> Result<Box<dyn Actor>> {
    let connect = verbs_connect::connect(job.clone(), kind, pair)?;
    Ok(on(connect, job, pair.role))
}

/// Makes an actor that runs the workload of `job` over the transport that `connect` makes.
fn on<C: Connect<Connected: MessageTransport> + 'static>(
    connect: C,
    job: Job,
    role: Role,
) -> Box<dyn Actor> {
    // The receiving actor needs no gate: it waits for the sending one.
    let is_gated = job.together && role == Role::Sender;
    // No receiver takes one-way raw WRITEs, so their sender measures.
    let is_untaken = job.channel == Channel::Baseline(PaperBaseline::Raw) && !job.is_two_way();
    match (job.workload, role) {
        (_, Role::Sender) if is_untaken => {
            connecting_actor(connect, is_gated, UnreadSender::new(job))
        }
        (_, Role::Receiver) if is_untaken => connecting_actor(connect, is_gated, IdleReceiver),
        (Workload::Rate | Workload::Volume { .. }, Role::Sender) => {
            connecting_actor(connect, is_gated, Sender::<MessageWriter>::new(job))
        }
        (Workload::Rate | Workload::Volume { .. }, Role::Receiver) => {
            connecting_actor(connect, is_gated, Receiver::<MessageChecker>::new(job))
        }
        (Workload::PingPong | Workload::Rounds { .. }, Role::Sender) => {
            connecting_actor(connect, is_gated, PingPong::new(job))
        }
        (Workload::PingPong | Workload::Rounds { .. }, Role::Receiver) => {
            connecting_actor(connect, is_gated, PingPong::echo())
        }
        (Workload::Load { .. }, Role::Sender) => {
            connecting_actor(connect, is_gated, Sender::<TimestampWriter>::new(job))
        }
        (Workload::Load { .. }, Role::Receiver) => {
            connecting_actor(connect, is_gated, Receiver::<LatencyRecorder>::new(job))
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::super::job::{Buffering, Combination, RingMode, StreamKind, Variant, Waiting};
    use super::*;
    use crate::actor_pair::testing::run_both;
    use crate::report::Report;

    /// Nanoseconds of an hour: longer than any run.
    const HOUR: u64 = 3_600_000_000_000;

    /// Returns the reports of both actors for a short job that `with` changes.
    fn pair_as(
        options: &str,
        channel: Channel,
        workload: Workload,
        with: impl Fn(&mut Job),
    ) -> [Report; 2] {
        let dir = tempfile::tempdir().unwrap();
        let mut job = Job {
            slots: 8,
            warm_ns: 200_000,
            run_ns: 2_000_000,
            buffer: Some(65536),
            ..Job::new(channel, workload, 64, Duration::ZERO, dir.path())
        };
        with(&mut job);
        run_both(move |pair| actor(job.clone(), pair), options)
    }

    fn pair(channel: Channel, workload: Workload, with: impl Fn(&mut Job)) -> [Report; 2] {
        pair_as("", channel, workload, with)
    }

    fn latencies(report: &Report) -> u64 {
        match report {
            Report::Latency(quantiles) => quantiles.count,
            other => panic!("{other:?}"),
        }
    }

    /// Returns the designs whose messages are taken.
    fn baselines() -> impl Iterator<Item = Channel> {
        let baselines = PaperBaseline::ALL.iter().copied();
        let baselines = baselines.filter(|baseline| {
            !matches!(baseline, PaperBaseline::Raw | PaperBaseline::SyncVariant(_))
        });
        baselines.map(Channel::Baseline)
    }

    fn rings() -> impl Iterator<Item = Channel> {
        // These need a second NUMA node.
        let is_here = |v: &Variant| !matches!(v, Variant::WrongNode(_) | Variant::WrongThreads(_));
        let variants = Variant::ALL.iter().copied().filter(is_here);
        let modes = RingMode::ALL
            .iter()
            .copied()
            .chain(variants.map(RingMode::Paper));
        let points = [(false, false), (false, true), (true, false), (true, true)];
        let points = points.map(|(pull, cq)| {
            let (batch, lazy) = (3, 2);
            PaperBaseline::SyncVariant(Combination {
                pull,
                cq,
                batch,
                lazy,
            })
        });
        let others = baselines().chain(points.map(Channel::Baseline));
        modes
            .map(Channel::Ring)
            .chain([Channel::Bare])
            .chain(others)
    }

    fn channels() -> impl Iterator<Item = Channel> {
        let transports = [StreamKind::Tcp, StreamKind::Unix, StreamKind::Pipe];
        let streams = transports.into_iter().flat_map(|transport| {
            [Waiting::Spinning, Waiting::Blocking]
                .into_iter()
                .flat_map(move |waiting| {
                    let both = [Buffering::None, Buffering::Buffered];
                    both.map(|buffering| Channel::Stream(transport, waiting, buffering))
                })
        });
        streams.chain(rings())
    }

    #[test]
    fn every_channel_carries_every_size_unharmed() {
        for channel in channels() {
            for (size, touch) in [(8, false), (24, true), (100_000, true), (200_000, false)] {
                // The receiver checks the contents. How many messages come after the warm-up depends on the
                // scheduler.
                let [_, got] = pair(channel, Workload::Rate, |job| {
                    (job.size, job.touch) = (size, touch);
                });
                assert!(
                    matches!(got, Report::Rate { .. }),
                    "{channel} {size} {got:?}"
                );
            }
        }
    }

    #[test]
    fn every_channel_measures_latency() {
        let per_second = 20_000.0;
        for channel in channels() {
            let [sent, _] = pair(channel, Workload::PingPong, |_| ());
            assert!(latencies(&sent) > 0, "{channel}");
            let [_, got] = pair(channel, Workload::Load { per_second }, |_| ());
            assert!(latencies(&got) > 0, "{channel}");
        }
    }

    #[test]
    fn a_device_without_room_for_a_message_that_is_written_harms_none() {
        let (warm, measured) = (0, 500);
        let rounds = Workload::Rounds { warm, measured };
        let latency = Channel::Ring(RingMode::Latency);
        for channel in baselines().chain([latency]) {
            // Both ends check the contents.
            let [sent, _] = pair_as(",hostile,seed=3", channel, rounds, |job| {
                (job.size, job.run_ns, job.yields) = (4096, HOUR, true);
            });
            assert_eq!(latencies(&sent), measured);
        }
    }

    #[test]
    fn raw_writes_are_measured_by_their_sender() {
        let channel = Channel::Baseline(PaperBaseline::Raw);
        let [sent, got] = pair(channel, Workload::Rate, |_| ());
        assert!(sent.per_second().is_some() && got == Report::None);
        let [sent, _] = pair(channel, Workload::PingPong, |_| ());
        assert!(latencies(&sent) > 0);
    }

    #[test]
    fn rounds_end_after_enough_measurements_or_time() {
        let rounds = |warm, measured| Workload::Rounds { warm, measured };
        for baseline in [PaperBaseline::Farm, PaperBaseline::Raw].map(Channel::Baseline) {
            let [sent, _] = pair(baseline, rounds(20, 300), |job| job.run_ns = HOUR);
            assert_eq!(latencies(&sent), 300);
            let [sent, _] = pair(baseline, rounds(u64::MAX, u64::MAX), |_| ());
            assert!(latencies(&sent) > 0);
        }
    }

    #[test]
    fn a_volume_ends_once_it_is_sent_or_its_time_is_up() {
        for channel in [PaperBaseline::L5, PaperBaseline::Raw].map(Channel::Baseline) {
            for (messages, run_ns) in [(3_000, HOUR), (u64::MAX, 2_000_000)] {
                let reports = pair(channel, Workload::Volume { messages }, |job| {
                    (job.run_ns, job.warm_ns, job.yields) = (run_ns, 1_000_000, true);
                });
                let is_rate = |report| matches!(report, &Report::Rate { .. });
                assert!(reports.iter().any(is_rate), "{channel}");
            }
        }
    }

    #[test]
    fn posted_requests_are_counted_at_both_ends() {
        let reports = pair(
            Channel::Baseline(PaperBaseline::L5),
            Workload::Rate,
            |job| {
                (job.slots, job.touch, job.warm_ns) = (128, true, 0);
                (job.yields, job.counted) = (true, true);
            },
        );
        let [(sent, ours), (got, theirs)] = reports.map(|report| match report {
            Report::Counted { messages, counts } => (messages, counts),
            other => panic!("{other:?}"),
        });
        assert!(sent > 0 && sent == got);
        assert_eq!((ours.writes, ours.doorbells), (2 * sent, sent));
        assert!(theirs.writes >= got / 33, "{theirs:?}");
    }
}
