//! One part of a measured pair: connects its arm, then drives the workload over it.

use headworks_baselines::rivals::Plan;
use headworks_baselines::rivals::farm::Farm;
use headworks_baselines::rivals::l5::L5;
use headworks_baselines::rivals::raw::Raw;
use headworks_baselines::rivals::socksdirect::SocksDirect;

use super::bare::BareConnect;
use super::connect::{Connect, Role, StreamConnect};
use super::designs::{RingKind, RivalKind, plan, points};
use super::job::{Channel, Job, Report, Rival, Workload};
use super::message::{Mark, Marks, Paint, Sums};
use super::verbs::{Kind, VerbsConnect};
use super::{Arm, ArmError, Drive, Env, Turn, load, ping, rate};
use crate::pages::HugePages;
use crate::world::Handed;

/// What the director says to those that are to begin together.
pub const BEGIN: &[u8] = b"begin";

/// A part, of whatever arm and workload.
pub trait Part: Send {
    /// A bounded piece of work.
    fn step(&mut self, env: &mut dyn Env) -> Result<Turn, ArmError>;
}

/// The part of `job` that has `role`.
pub fn part(job: Job, role: Role, handed: &Handed) -> Result<Box<dyn Part>, ArmError> {
    match job.channel {
        Channel::Stream(transport, waiting, buffering) => {
            let connect = StreamConnect::new(job.clone(), role, transport, waiting, buffering);
            Ok(driven(connect, job, role))
        }
        Channel::Ring(mode) => on_verbs(job.clone(), role, RingKind::new(&job, mode)?, handed),
        Channel::Rival(rival) => {
            let plan = plan(&job)?;
            match rival {
                Rival::Farm => on_verbs(job, role, RivalKind(Farm(plan)), handed),
                Rival::SocksDirect => on_verbs(job, role, RivalKind(SocksDirect(plan)), handed),
                Rival::L5 => on_verbs(job, role, RivalKind(L5(plan)), handed),
                Rival::Points(combination) => {
                    let points = points(&job, combination)?;
                    on_verbs(job, role, RivalKind(points), handed)
                }
                Rival::Raw if job.is_two_way() => {
                    on_verbs(job, role, RivalKind(Raw { plan }), handed)
                }
                Rival::Raw => raw(job, role, plan, handed),
            }
        }
        Channel::Bare => Ok(driven(BareConnect::new(job.clone(), role), job, role)),
    }
}

fn on_verbs<K: Kind + 'static>(
    job: Job,
    role: Role,
    kind: K,
    handed: &Handed,
) -> Result<Box<dyn Part>, ArmError> {
    let connect = VerbsConnect::new(job.clone(), role, &kind, handed)?;
    Ok(driven(connect, job, role))
}

/// Raw WRITEs one way: nobody takes them, so the sender measures.
fn raw(job: Job, role: Role, plan: Plan, handed: &Handed) -> Result<Box<dyn Part>, ArmError> {
    let kind = RivalKind(Raw { plan });
    let connect = VerbsConnect::new(job.clone(), role, &kind, handed)?;
    let gate = Gate::of(&job, role);
    Ok(match (role, job.touch) {
        (Role::Sender, false) => on(connect, gate, rate::Blast::<Mark>::new(job)),
        (Role::Sender, true) => on(connect, gate, rate::Blast::<Paint>::new(job)),
        (Role::Receiver, _) => on(connect, gate, rate::Bystander),
    })
}

/// Puts the workload of `job` on what `connect` makes.
pub fn driven<C>(connect: C, job: Job, role: Role) -> Box<dyn Part>
where
    C: Connect + Send + 'static,
    C::Arm: Send + 'static,
{
    let gate = Gate::of(&job, role);
    match (job.workload, role, job.touch) {
        (Workload::Rate, Role::Sender, false) => on(connect, gate, rate::Sender::<Mark>::new(job)),
        (Workload::Rate, Role::Sender, true) => on(connect, gate, rate::Sender::<Paint>::new(job)),
        (Workload::Rate, Role::Receiver, false) => {
            on(connect, gate, rate::Receiver::<Marks>::new(job))
        }
        (Workload::Rate, Role::Receiver, true) => {
            on(connect, gate, rate::Receiver::<Sums>::new(job))
        }
        (Workload::PingPong | Workload::Rounds { .. }, Role::Sender, _) => {
            on(connect, gate, ping::Ping::new(job))
        }
        (Workload::PingPong | Workload::Rounds { .. }, Role::Receiver, _) => {
            on(connect, gate, ping::Pong::new(job))
        }
        (Workload::Load { per_second }, Role::Sender, _) => {
            on(connect, gate, load::Sender::new(job, per_second))
        }
        (Workload::Load { .. }, Role::Receiver, _) => on(connect, gate, load::Receiver::new(job)),
    }
}

fn on<C, D>(connect: C, gate: Gate, drive: D) -> Box<dyn Part>
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
    fn step(&mut self, env: &mut dyn Env) -> Option<Turn> {
        match self {
            Self::Open => None,
            Self::Closed => {
                *self = Self::Ready;
                Some(Turn::Report(Report::Ready))
            }
            Self::Ready => {
                match env.mailed() {
                    Some(mail) if mail == BEGIN => *self = Self::Open,
                    Some(_) => {}
                    None => return Some(Turn::Wait),
                }
                Some(Turn::Again)
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

impl<C, A, D> Part for Driven<C, D>
where
    C: Connect<Arm = A> + Send,
    A: Arm + Send,
    D: Drive<A> + Send,
{
    fn step(&mut self, env: &mut dyn Env) -> Result<Turn, ArmError> {
        if let Some(arm) = &mut self.arm {
            if self.gate != Gate::Open
                && let Some(turn) = self.gate.step(env)
            {
                return Ok(turn);
            }
            let turn = self.drive.step(arm, env)?;
            return Ok(match (turn, self.connect.counts()) {
                (Turn::Done(_), Some(counts)) => {
                    let messages = self.drive.moved();
                    let pages = HugePages::here();
                    Turn::Done(Report::Counted {
                        messages,
                        counts,
                        pages,
                    })
                }
                (turn, _) => turn,
            });
        }
        self.arm = self.connect.step(env)?;
        Ok(if self.arm.is_some() {
            Turn::Again
        } else {
            Turn::Wait
        })
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::super::job::{
        Buffering, Combination, Report, RingMode, Transport, Variant, Waiting,
    };
    use super::*;
    use crate::transports::desk::{play_both, play_both_as};

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
        play_both(&|role, handed| part(job.clone(), role, handed))
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
        let variants = Variant::ALL.into_iter();
        let variants = variants.filter(|variant| !matches!(variant, Variant::WrongNode(_)));
        let rivals = [Rival::Farm, Rival::SocksDirect, Rival::L5];
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
        let rivals = [Rival::Farm, Rival::SocksDirect, Rival::L5].map(Channel::Rival);
        for channel in rivals.into_iter().chain([Channel::Ring(RingMode::Latency)]) {
            let dir = tempfile::tempdir().unwrap();
            let job = Job {
                run_ns: hour,
                yields: true,
                ..job(channel, workload, 4096, false, dir.path())
            };
            // Contents are checked by both.
            let [sent, _] = play_both_as(
                &|role, handed| part(job.clone(), role, handed),
                ",hostile,seed=3",
            );
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

    /// Mail that comes to somebody who has none to send.
    struct Mailed(Vec<&'static [u8]>);

    impl Env for Mailed {
        fn now(&mut self) -> headworks::verbs::Instant {
            unreachable!("nothing is timed")
        }
        fn mail(&mut self, _: &[u8]) -> Result<(), ArmError> {
            unreachable!("it has nothing to say to the other part")
        }
        fn mailed(&mut self) -> Option<Vec<u8>> {
            self.0.pop().map(<[u8]>::to_vec)
        }
    }

    #[test]
    fn a_part_of_many_begins_when_it_is_told_to() {
        let mut gate = Gate::Closed;
        let mut env = Mailed(vec![]);
        assert_eq!(gate.step(&mut env), Some(Turn::Report(Report::Ready)));
        assert_eq!(gate.step(&mut env), Some(Turn::Wait));
        env.0 = vec![BEGIN, b"late"];
        assert_eq!(gate.step(&mut env), Some(Turn::Again));
        assert_eq!(gate, Gate::Ready);
        assert_eq!(gate.step(&mut env), Some(Turn::Again));
        assert_eq!(gate.step(&mut env), None);
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
        let reports = play_both(&|role, handed| part(job.clone(), role, handed));
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
