//! One part of a measured pair: connects its arm, then drives the workload over it.

use super::bare::BareConnect;
use super::connect::{Connect, Role, StreamConnect};
use super::job::{Channel, Job, Workload};
use super::message::{Mark, Marks, Paint, Sums};
use super::ring::RingConnect;
use super::{Arm, ArmError, Drive, Env, Turn, load, ping, rate};
use crate::world::Handed;

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
        Channel::Ring(mode) => {
            let connect = RingConnect::new(job.clone(), role, mode, handed)?;
            Ok(driven(connect, job, role))
        }
        Channel::Bare => Ok(driven(BareConnect::new(job.clone(), role), job, role)),
    }
}

/// Puts the workload of `job` on what `connect` makes.
pub fn driven<C>(connect: C, job: Job, role: Role) -> Box<dyn Part>
where
    C: Connect + Send + 'static,
    C::Arm: Send + 'static,
{
    match (job.workload, role, job.touch) {
        (Workload::Rate, Role::Sender, false) => on(connect, rate::Sender::<Mark>::new(job)),
        (Workload::Rate, Role::Sender, true) => on(connect, rate::Sender::<Paint>::new(job)),
        (Workload::Rate, Role::Receiver, false) => on(connect, rate::Receiver::<Marks>::new(job)),
        (Workload::Rate, Role::Receiver, true) => on(connect, rate::Receiver::<Sums>::new(job)),
        (Workload::PingPong, Role::Sender, _) => on(connect, ping::Ping::new(job)),
        (Workload::PingPong, Role::Receiver, _) => on(connect, ping::Pong::default()),
        (Workload::Load { per_second }, Role::Sender, _) => {
            on(connect, load::Sender::new(job, per_second))
        }
        (Workload::Load { .. }, Role::Receiver, _) => on(connect, load::Receiver::default()),
    }
}

fn on<C, D>(connect: C, drive: D) -> Box<dyn Part>
where
    C: Connect + Send + 'static,
    C::Arm: Send + 'static,
    D: Drive<C::Arm> + Send + 'static,
{
    Box::new(Driven {
        connect,
        arm: None,
        drive,
    })
}

struct Driven<C: Connect, D> {
    connect: C,
    arm: Option<C::Arm>,
    drive: D,
}

impl<C, A, D> Part for Driven<C, D>
where
    C: Connect<Arm = A> + Send,
    A: Arm + Send,
    D: Drive<A> + Send,
{
    fn step(&mut self, env: &mut dyn Env) -> Result<Turn, ArmError> {
        if let Some(arm) = &mut self.arm {
            return self.drive.step(arm, env);
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
    use super::super::job::RingMode;
    use super::super::job::{Buffering, Report, Transport, Waiting};
    use super::*;
    use crate::arms::desk::play_both;

    fn pair(channel: Channel, workload: Workload, size: usize, touch: bool) -> [Report; 2] {
        let dir = tempfile::tempdir().unwrap();
        let job = Job {
            channel,
            workload,
            size,
            slots: 8,
            touch,
            run_ns: 2_000_000,
            warm_ns: 200_000,
            buffer: Some(65536),
            dir: dir.path().to_owned(),
        };
        play_both(&|role, handed| part(job.clone(), role, handed))
    }

    fn rings() -> [Channel; 4] {
        [
            Channel::Bare,
            Channel::Ring(RingMode::Default),
            Channel::Ring(RingMode::Unbatched),
            Channel::Ring(RingMode::Latency),
        ]
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
