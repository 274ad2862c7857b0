//! One part of a measured pair: connects its arm, then drives the workload over it.

use headworks_baselines::paper_baselines::Plan;
use headworks_baselines::paper_baselines::farm::{Farm, FarmAsPublished};
use headworks_baselines::paper_baselines::l5::L5;
use headworks_baselines::paper_baselines::raw::Raw;
use headworks_baselines::paper_baselines::socksdirect::SocksDirect;

use super::bare::BareConnect;
use super::connect::{Connect, StreamConnect};
use super::designs::{RingKind, RivalKind, plan, points};
use super::job::{Channel, Job, Rival, Workload};
use super::message::{Mark, Marks, Paint, Sums};
use super::verbs::{Kind, VerbsConnect};
use super::{Arm, Drive, load, ping, rate};
use crate::error::WorkloadError;
use crate::pair::{BEGIN, PairContext, PairCx, Role, wait};
use crate::report::Report;
use headworks_stage::{Actor, ActorError, Cx, Step};

/// The actor of `job` that has the pair's role.
pub fn actor(job: Job, pair: &PairContext) -> Result<Box<dyn Actor>, WorkloadError> {
    match job.channel {
        Channel::Stream(transport, waiting, buffering) => {
            let connect = StreamConnect::new(job.clone(), pair.role, transport, waiting, buffering);
            Ok(driven(connect, job, pair))
        }
        Channel::Ring(mode) => {
            let kind = RingKind::new(&job, mode)?;
            on_verbs(job, kind, pair)
        }
        Channel::Rival(rival) => {
            let plan = plan(&job)?;
            match rival {
                Rival::Farm => on_verbs(job, RivalKind(Farm(plan)), pair),
                Rival::FarmAsPublished => on_verbs(job, RivalKind(FarmAsPublished(plan)), pair),
                Rival::SocksDirect => on_verbs(job, RivalKind(SocksDirect(plan)), pair),
                Rival::L5 => on_verbs(job, RivalKind(L5(plan)), pair),
                Rival::Points(combination) => {
                    let points = points(&job, combination)?;
                    on_verbs(job, RivalKind(points), pair)
                }
                Rival::Raw if job.is_two_way() => on_verbs(job, RivalKind(Raw { plan }), pair),
                Rival::Raw => raw(job, plan, pair),
            }
        }
        Channel::Bare => Ok(driven(BareConnect::new(job.clone(), pair.role), job, pair)),
    }
}

fn on_verbs<K: Kind + 'static>(
    job: Job,
    kind: K,
    pair: &PairContext,
) -> Result<Box<dyn Actor>, WorkloadError> {
    let connect = VerbsConnect::new(job.clone(), &kind, pair)?;
    Ok(driven(connect, job, pair))
}

/// Raw WRITEs one way: nobody takes them, so the sender measures.
fn raw(job: Job, plan: Plan, pair: &PairContext) -> Result<Box<dyn Actor>, WorkloadError> {
    let kind = RivalKind(Raw { plan });
    let connect = VerbsConnect::new(job.clone(), &kind, pair)?;
    let gate = Gate::of(&job, pair.role);
    Ok(match (pair.role, job.touch) {
        (Role::Sender, false) => on(connect, gate, rate::Blast::<Mark>::new(job, pair)),
        (Role::Sender, true) => on(connect, gate, rate::Blast::<Paint>::new(job, pair)),
        (Role::Receiver, _) => on(connect, gate, rate::Bystander),
    })
}

/// Puts the workload of `job` on what `connect` makes.
pub fn driven<C>(connect: C, job: Job, pair: &PairContext) -> Box<dyn Actor>
where
    C: Connect + Send + 'static,
    C::Arm: Send + 'static,
{
    let gate = Gate::of(&job, pair.role);
    match (job.workload, pair.role, job.touch) {
        (Workload::Rate | Workload::Volume { .. }, Role::Sender, false) => {
            on(connect, gate, rate::Sender::<Mark>::new(job, pair))
        }
        (Workload::Rate | Workload::Volume { .. }, Role::Sender, true) => {
            on(connect, gate, rate::Sender::<Paint>::new(job, pair))
        }
        (Workload::Rate | Workload::Volume { .. }, Role::Receiver, false) => {
            on(connect, gate, rate::Receiver::<Marks>::new(job, pair))
        }
        (Workload::Rate | Workload::Volume { .. }, Role::Receiver, true) => {
            on(connect, gate, rate::Receiver::<Sums>::new(job, pair))
        }
        (Workload::PingPong | Workload::Rounds { .. }, Role::Sender, _) => {
            on(connect, gate, ping::Ping::new(job, pair))
        }
        (Workload::PingPong | Workload::Rounds { .. }, Role::Receiver, _) => {
            on(connect, gate, ping::Pong::new(&job, pair))
        }
        (Workload::Load { per_second }, Role::Sender, _) => {
            on(connect, gate, load::Sender::new(job, per_second, pair))
        }
        (Workload::Load { .. }, Role::Receiver, _) => {
            on(connect, gate, load::Receiver::new(&job, pair))
        }
    }
}

fn on<C, D>(connect: C, gate: Gate, drive: D) -> Box<dyn Actor>
where
    C: Connect + Send + 'static,
    C::Arm: Send + 'static,
    D: Drive<C::Arm> + Send + 'static,
{
    Box::new(Driven {
        connect,
        arm: None,
        drive,
        gate,
    })
}

/// What a part waits for once it is connected.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Gate {
    /// To say that it is ready, then the director's word.
    Closed,
    /// The director's word.
    Ready,
    /// Nothing.
    Open,
}

impl Gate {
    /// The sending part begins for both.
    fn of(job: &Job, role: Role) -> Self {
        match (job.together, role) {
            (true, Role::Sender) => Self::Closed,
            _ => Self::Open,
        }
    }

    /// What a connected part does instead of its work, while there is something.
    fn step(&mut self, cx: &mut Cx<'_>) -> Result<Option<Step>, ActorError> {
        match self {
            Self::Open => Ok(None),
            Self::Closed => {
                *self = Self::Ready;
                cx.report_and_go_on(&Report::Ready).map(Some)
            }
            Self::Ready => {
                match cx.mailed() {
                    Some(mail) if mail == BEGIN => *self = Self::Open,
                    Some(_) => {}
                    None => return Ok(Some(wait())),
                }
                Ok(Some(Step::Again))
            }
        }
    }
}

struct Driven<C: Connect, D> {
    connect: C,
    arm: Option<C::Arm>,
    drive: D,
    gate: Gate,
}

impl<C, A, D> Actor for Driven<C, D>
where
    C: Connect<Arm = A> + Send,
    A: Arm + Send,
    D: Drive<A> + Send,
{
    fn step(&mut self, cx: &mut Cx<'_>) -> Result<Step, ActorError> {
        if let Some(arm) = &mut self.arm {
            if self.gate != Gate::Open
                && let Some(step) = self.gate.step(cx)?
            {
                return Ok(step);
            }
            let step = self.drive.step(arm, cx)?;
            if !matches!(step, Step::Done) {
                return Ok(step);
            }
            let report = self.drive.report()?;
            return cx.done(&match self.connect.counts() {
                None => report,
                Some(counts) => Report::Counted {
                    messages: self.drive.moved(),
                    counts,
                },
            });
        }
        self.arm = self.connect.step(cx)?;
        Ok(if self.arm.is_some() {
            Step::Again
        } else {
            wait()
        })
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use headworks_stage::{CxBackend, Mail, MailError};

    use super::super::job::{Buffering, Combination, RingMode, Transport, Variant, Waiting};
    use super::*;
    use crate::pair::testing::{play_both, play_both_as};

    fn pair(channel: Channel, workload: Workload, size: usize, touch: bool) -> [Report; 2] {
        for_a_time(channel, workload, size, touch, 2_000_000)
    }

    fn for_a_time(
        channel: Channel,
        workload: Workload,
        size: usize,
        touch: bool,
        run_ns: u64,
    ) -> [Report; 2] {
        let dir = tempfile::tempdir().unwrap();
        let job = Job {
            run_ns,
            warm_ns: run_ns / 10,
            ..job(channel, workload, size, touch, dir.path())
        };
        play_both(move |pair| actor(job.clone(), pair))
    }

    fn job(channel: Channel, workload: Workload, size: usize, touch: bool, dir: &Path) -> Job {
        Job {
            channel,
            workload,
            size,
            slots: 8,
            touch,
            run_ns: 0,
            warm_ns: 0,
            buffer: Some(65536),
            yields: false,
            counted: false,
            together: false,
            dir: dir.to_owned(),
        }
    }

    fn rings() -> impl Iterator<Item = Channel> {
        let modes = [RingMode::Default, RingMode::Unbatched, RingMode::Latency];
        // There is no other node here.
        let elsewhere = [Variant::WrongNode(1), Variant::WrongThreads(1)];
        let variants = Variant::ALL.into_iter();
        let variants = variants.filter(move |variant| !elsewhere.contains(variant));
        let rivals = [
            Rival::Farm,
            Rival::FarmAsPublished,
            Rival::SocksDirect,
            Rival::L5,
        ];
        let points = [(false, false), (false, true), (true, false), (true, true)];
        let points = points.map(|(pull, cq)| {
            let (batch, lazy) = (3, 2);
            Rival::Points(Combination {
                pull,
                cq,
                batch,
                lazy,
            })
        });
        let modes = modes
            .into_iter()
            .chain(variants.into_iter().map(RingMode::Paper));
        let rivals = rivals.into_iter().chain(points);
        [Channel::Bare]
            .into_iter()
            .chain(modes.map(Channel::Ring))
            .chain(rivals.map(Channel::Rival))
    }

    fn streams() -> impl Iterator<Item = Channel> {
        let transports = [Transport::Tcp, Transport::Unix, Transport::Pipe];
        transports.into_iter().flat_map(|t| {
            [
                Channel::Stream(t, Waiting::Spinning, Buffering::None),
                Channel::Stream(t, Waiting::Blocking, Buffering::None),
                Channel::Stream(t, Waiting::Spinning, Buffering::Buffered),
                Channel::Stream(t, Waiting::Blocking, Buffering::Buffered),
            ]
        })
    }

    #[test]
    fn every_channel_carries_every_size_unharmed() {
        for channel in streams().chain(rings()) {
            for (size, touch) in [(8, false), (24, true), (100_000, true), (200_000, false)] {
                // Contents are checked by the receiver. How many were after the warm-up is up to
                // the scheduler.
                let [_, got] = pair(channel, Workload::Rate, size, touch);
                assert!(
                    matches!(got, Report::Rate { .. }),
                    "{channel:?} {size} {got:?}"
                );
            }
        }
    }

    #[test]
    fn a_device_without_room_for_a_message_that_is_written_harms_none() {
        let workload = Workload::Rounds {
            warm: 0,
            measured: 500,
        };
        let hour = 3_600_000_000_000;
        let rivals = [
            Rival::Farm,
            Rival::FarmAsPublished,
            Rival::SocksDirect,
            Rival::L5,
        ];
        let rivals = rivals.map(Channel::Rival);
        for channel in rivals.into_iter().chain([Channel::Ring(RingMode::Latency)]) {
            let dir = tempfile::tempdir().unwrap();
            let job = Job {
                run_ns: hour,
                yields: true,
                ..job(channel, workload, 4096, false, dir.path())
            };
            // Contents are checked by both.
            let [sent, _] = play_both_as(move |pair| actor(job.clone(), pair), ",hostile,seed=3");
            assert!(matches!(sent, Report::Latency(q) if q.count == 500));
        }
    }

    #[test]
    fn raw_writes_are_measured_by_who_posts_them() {
        let channel = Channel::Rival(Rival::Raw);
        let [sent, got] = pair(channel, Workload::Rate, 64, false);
        assert!(sent.per_second().is_some() && got == Report::None);
        let [sent, _] = pair(channel, Workload::PingPong, 64, false);
        assert!(matches!(sent, Report::Latency(q) if q.count > 0));
    }

    #[test]
    fn so_many_rounds_are_measured_and_no_more() {
        let rounds = Workload::Rounds {
            warm: 20,
            measured: 300,
        };
        for rival in [Rival::Farm, Rival::Raw] {
            let hour = 3_600_000_000_000;
            let [sent, _] = for_a_time(Channel::Rival(rival), rounds, 64, false, hour);
            assert!(
                matches!(sent, Report::Latency(q) if q.count == 300),
                "{sent:?}"
            );
        }
    }

    #[test]
    fn a_volume_ends_once_it_is_sent_or_its_time_is_up() {
        let hour = 3_600_000_000_000;
        let messages = 3_000;
        for channel in [Rival::L5, Rival::Raw].map(Channel::Rival) {
            for (messages, run_ns) in [(messages, hour), (u64::MAX, 2_000_000)] {
                let dir = tempfile::tempdir().unwrap();
                let job = Job {
                    run_ns,
                    warm_ns: 1_000_000,
                    yields: true,
                    ..job(
                        channel,
                        Workload::Volume { messages },
                        64,
                        false,
                        dir.path(),
                    )
                };
                let reports = play_both(move |pair| actor(job.clone(), pair));
                assert!(
                    reports
                        .iter()
                        .any(|report| matches!(report, Report::Rate { .. })),
                    "{channel:?}"
                );
            }
        }
    }

    #[test]
    fn rounds_end_when_their_time_is_up() {
        let rounds = Workload::Rounds {
            warm: u64::MAX,
            measured: u64::MAX,
        };
        let [sent, _] = pair(Channel::Rival(Rival::L5), rounds, 64, false);
        assert!(
            matches!(sent, Report::Latency(q) if q.count > 0),
            "{sent:?}"
        );
    }

    /// Mail that comes to an actor, which reports.
    struct Mailed {
        mail: Vec<&'static [u8]>,
        reports: Vec<Report>,
    }

    impl CxBackend for Mailed {
        fn role(&self) -> &str {
            "sender"
        }
        fn now(&mut self) -> headworks::verbs::Instant {
            unreachable!("nothing is timed")
        }
        fn send(&mut self, _: &str, _: &[u8]) -> Result<(), MailError> {
            unreachable!("it has nothing to say to the other actor")
        }
        fn receive(&mut self) -> Option<Mail> {
            let bytes = self.mail.pop()?.to_vec();
            let from = "director".to_owned();
            Some(Mail { from, bytes })
        }
        fn report(&mut self, bytes: &[u8]) -> Result<(), MailError> {
            self.reports.push(Report::from_bytes(bytes).unwrap());
            Ok(())
        }
        fn interrupted(&self) -> bool {
            false
        }
    }

    #[test]
    fn a_sender_of_many_begins_when_it_is_told_to() {
        let mut gate = Gate::Closed;
        let mut world = Mailed {
            mail: vec![],
            reports: vec![],
        };
        let mut step = |mail: &[&'static [u8]]| {
            world.mail.extend(mail);
            let step = gate.step(&mut Cx::new(&mut world)).unwrap();
            (step, gate, std::mem::take(&mut world.reports))
        };
        let (first, gate, reports) = step(&[]);
        assert!(matches!(first, Some(Step::Again)));
        assert_eq!((gate, reports), (Gate::Ready, vec![Report::Ready]));
        assert!(matches!(
            step(&[]),
            (Some(Step::OnChange(_)), Gate::Ready, _)
        ));
        assert!(matches!(
            step(&[BEGIN, b"late"]),
            (Some(Step::Again), Gate::Ready, _)
        ));
        assert!(matches!(step(&[]), (Some(Step::Again), Gate::Open, _)));
        assert!(matches!(step(&[]), (None, Gate::Open, _)));
    }

    #[test]
    fn what_is_posted_is_counted_at_either_end() {
        let dir = tempfile::tempdir().unwrap();
        let job = Job {
            channel: Channel::Rival(Rival::L5),
            workload: Workload::Rate,
            size: 64,
            slots: 128,
            touch: true,
            run_ns: 2_000_000,
            warm_ns: 0,
            buffer: None,
            yields: true,
            counted: true,
            together: false,
            dir: dir.path().to_owned(),
        };
        let reports = play_both(move |pair| actor(job.clone(), pair));
        let [(sent, ours), (got, theirs)] = reports.map(|report| match report {
            Report::Counted {
                messages, counts, ..
            } => (messages, counts),
            other => panic!("{other:?}"),
        });
        assert!(sent > 0 && sent == got);
        assert_eq!((ours.writes, ours.doorbells), (2 * sent, sent));
        assert!(theirs.writes >= got / 33, "{theirs:?}");
    }

    #[test]
    fn every_channel_measures_latency() {
        for channel in streams().chain(rings()) {
            let [sent, _] = pair(channel, Workload::PingPong, 64, false);
            assert!(
                matches!(sent, Report::Latency(q) if q.count > 0),
                "{channel:?} {sent:?}"
            );
            let [_, got] = pair(
                channel,
                Workload::Load {
                    per_second: 20_000.0,
                },
                64,
                false,
            );
            assert!(
                matches!(got, Report::Latency(q) if q.count > 0),
                "{channel:?} {got:?}"
            );
        }
    }
}
