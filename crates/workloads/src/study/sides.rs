//! The sides: each steps its application, takes the time, and says by mail what the other must know.

use std::sync::Arc;

use headworks::ring::{MessageReceiver, MessageSender};
use headworks::verbs::Instant;

use super::{Met, PACKETS_MAX, Side, Study, Task, failed, rate};
use crate::apps::flows::{Capture, Digest, Meter, Mix, Monitor, Replay, Synthetic, Tap};
use crate::apps::{AppError, Progress, http, kv};
use crate::error::WorkloadError;
use crate::latency::Histogram;
use crate::pair::Role;
use crate::pair::{PairCx, wait};
use crate::report::Report;
use crate::transports::cpu_cost::{Price, Till};
use crate::transports::verbs::{Kind, Receiver, Sender};
use headworks_stage::{ActorError, Cx, Step};

/// Packets that are made up before the time is taken, and then replayed: 32 MB.
const DRAWN: usize = 1 << 20;
/// Steps in vain between two looks at the mail.
const LOOK_EVERY: u32 = 256;

/// The side of `task` that has `role`.
pub(super) fn side<K: Kind>(task: &Task, role: Role) -> Result<Box<dyn Side<K>>, WorkloadError> {
    Ok(match (&task.study, role) {
        (Study::Flows { records, capture }, Role::Sender) => {
            let capture = match capture {
                None => Capture::drawn(&mut Synthetic::new(&Mix::default()), DRAWN),
                Some(path) => {
                    let capture = Capture::read(path, PACKETS_MAX);
                    capture.map_err(|e| WorkloadError(e.to_string()))?
                }
            };
            let nothing = || WorkloadError("there are no packets to replay".into());
            let source = Replay::new(Arc::new(capture)).ok_or_else(nothing)?;
            Box::new(FlowsTap {
                digest: Digest::of(&mut source.clone(), *records),
                tap: Tap::new(source, *records),
                farewell: None,
            })
        }
        (Study::Flows { records, .. }, Role::Receiver) => Box::new(FlowsMonitor {
            monitor: Monitor::new(Meter::default(), *records),
            records: *records,
            began: None,
            report: None,
        }),
        (
            &Study::Kv {
                requests,
                window,
                records,
            },
            Role::Sender,
        ) => {
            let zipf = kv::Zipf::new(records, 1);
            Box::new(KvClient {
                client: kv::Client::new(zipf, requests, window),
                requests,
                began: None,
                farewell: None,
            })
        }
        (&Study::Kv { records, .. }, Role::Receiver) => Box::new(Serving {
            server: kv::Server::new(kv::Store::of(records)),
            idle: 0,
        }),
        (&Study::Http { requests, warm }, Role::Sender) => Box::new(HttpClient {
            client: http::Client::new(http::FILES, warm + requests),
            warm,
            asked_at: Instant::ZERO,
            began: Instant::ZERO,
            histogram: Histogram::default(),
            farewell: None,
        }),
        (Study::Http { .. }, Role::Receiver) => Box::new(Serving {
            server: http::Server::new(http::Site::new(http::FILES)),
            idle: 0,
        }),
    })
}

fn missing() -> WorkloadError {
    WorkloadError("an application lacks a channel".into())
}

/// The end that a part sends on.
fn sender<K: Kind>(ends: &mut Met<K>) -> Result<&mut Sender<K>, WorkloadError> {
    ends.sender.as_mut().ok_or_else(missing)
}

/// The end that a part receives from.
fn receiver<K: Kind>(ends: &mut Met<K>) -> Result<&mut Receiver<K>, WorkloadError> {
    ends.receiver.as_mut().ok_or_else(missing)
}

/// A part's two ends.
type Both<'e, K> = (&'e mut Sender<K>, &'e mut Receiver<K>);

/// Both ends.
fn both<K: Kind>(ends: &mut Met<K>) -> Result<Both<'_, K>, WorkloadError> {
    match (&mut ends.sender, &mut ends.receiver) {
        (Some(out), Some(from)) => Ok((out, from)),
        _ => Err(missing()),
    }
}

/// What to do after a step that came to `progress`.
fn turn(progress: Progress) -> Step {
    match progress {
        Progress::Worked => Step::Again,
        Progress::Idle | Progress::Done => wait(),
    }
}

/// The end of a client: it has said that it is finished, and stays until the other side has read that.
/// An end that left earlier would be taken for one that died.
struct Farewell {
    report: Report,
    idle: u32,
}

impl Farewell {
    fn say(cx: &mut Cx<'_>, words: &[u8], report: Report) -> Result<Self, WorkloadError> {
        cx.mail(words)?;
        Ok(Self { report, idle: 0 })
    }

    fn step(&mut self, cx: &mut Cx<'_>) -> Result<Step, ActorError> {
        self.idle += 1;
        if self.idle.is_multiple_of(LOOK_EVERY) && cx.mailed().is_some() {
            return cx.done(&self.report);
        }
        Ok(wait())
    }
}

/// Sends the records, and the digest of what was sent.
struct FlowsTap {
    tap: Tap<Replay>,
    digest: Digest,
    farewell: Option<Farewell>,
}

impl<K: Kind> Side<K> for FlowsTap {
    fn in_virtual_time(&mut self) {
        self.tap.step_by(1);
    }

    fn step(
        &mut self,
        ends: &mut Met<K>,
        cx: &mut Cx<'_>,
        price: Option<Price>,
    ) -> Result<Step, ActorError> {
        if let Some(farewell) = &mut self.farewell {
            return farewell.step(cx);
        }
        let out = sender(ends)?;
        let progress = match price {
            None => self.tap.step(out),
            Some(price) => self.tap.step(&mut Till::new(cx, price).at(out)),
        };
        let progress = progress.map_err(failed)?;
        if progress == Progress::Done {
            let digest = self.digest.emit();
            self.farewell = Some(Farewell::say(cx, &digest, Report::None)?);
        }
        Ok(turn(progress))
    }
}

/// Counts the records, and compares with what was sent.
struct FlowsMonitor {
    monitor: Monitor,
    records: u64,
    began: Option<Instant>,
    report: Option<Report>,
}

impl<K: Kind> Side<K> for FlowsMonitor {
    fn in_virtual_time(&mut self) {
        self.monitor.step_by(1);
    }

    fn step(
        &mut self,
        ends: &mut Met<K>,
        cx: &mut Cx<'_>,
        price: Option<Price>,
    ) -> Result<Step, ActorError> {
        let Some(report) = &self.report else {
            let from = receiver(ends)?;
            let progress = match price {
                None => self.monitor.step(from),
                Some(price) => self.monitor.step(&mut Till::new(cx, price).at(from)),
            };
            let progress = progress.map_err(failed)?;
            if self.began.is_none() && self.monitor.taken() > 0 {
                self.began = Some(cx.now());
            }
            if progress == Progress::Done {
                let now = cx.now();
                self.report = Some(rate(self.records, self.began.unwrap_or(now), now));
            }
            return Ok(turn(progress));
        };
        let Some(mail) = cx.mailed() else {
            return Ok(wait());
        };
        if Digest::parse(&mail) != Some(self.monitor.meter().digest()) {
            let what = "the flows that were counted are not those that were sent";
            return Err(WorkloadError(what.into()).into());
        }
        cx.mail(b"counted")?;
        cx.done(report)
    }
}

/// Asks for keys.
struct KvClient {
    client: kv::Client,
    requests: u64,
    began: Option<Instant>,
    farewell: Option<Farewell>,
}

impl<K: Kind> Side<K> for KvClient {
    fn in_virtual_time(&mut self) {
        self.client.step_by(1);
    }

    fn step(
        &mut self,
        ends: &mut Met<K>,
        cx: &mut Cx<'_>,
        price: Option<Price>,
    ) -> Result<Step, ActorError> {
        if let Some(farewell) = &mut self.farewell {
            return farewell.step(cx);
        }
        if self.began.is_none() {
            self.began = Some(cx.now());
        }
        let (out, from) = both(ends)?;
        let progress = match price {
            None => self.client.step(out, from),
            Some(price) => {
                let till = Till::new(cx, price);
                self.client.step(&mut till.at(out), &mut till.at(from))
            }
        };
        let progress = progress.map_err(failed)?;
        // The table of the other side is made before it answers: time counts from the first answer.
        if self.client.answered() == 0 {
            self.began = None;
        }
        if progress == Progress::Done {
            let now = cx.now();
            let report = rate(self.requests, self.began.unwrap_or(now), now);
            self.farewell = Some(Farewell::say(cx, b"finished", report)?);
        }
        Ok(turn(progress))
    }
}

/// A server of either kind: answers until the client has finished.
struct Serving<S> {
    server: S,
    idle: u32,
}

/// What servers have in common.
trait Answers: Send {
    /// See [`Side::in_virtual_time`].
    fn in_virtual_time(&mut self) {}

    fn answer(
        &mut self,
        out: &mut impl MessageSender,
        from: &mut impl MessageReceiver,
    ) -> Result<Progress, AppError>;
}

impl Answers for kv::Server {
    fn in_virtual_time(&mut self) {
        self.step_by(1);
    }

    #[inline]
    fn answer(
        &mut self,
        out: &mut impl MessageSender,
        from: &mut impl MessageReceiver,
    ) -> Result<Progress, AppError> {
        self.step(out, from)
    }
}

impl Answers for http::Server {
    #[inline]
    fn answer(
        &mut self,
        out: &mut impl MessageSender,
        from: &mut impl MessageReceiver,
    ) -> Result<Progress, AppError> {
        self.step(out, from)
    }
}

impl<K: Kind, S: Answers> Side<K> for Serving<S> {
    fn in_virtual_time(&mut self) {
        self.server.in_virtual_time();
    }

    fn step(
        &mut self,
        ends: &mut Met<K>,
        cx: &mut Cx<'_>,
        price: Option<Price>,
    ) -> Result<Step, ActorError> {
        let (out, from) = both(ends)?;
        let answered = match price {
            None => self.server.answer(out, from),
            Some(price) => {
                let till = Till::new(cx, price);
                self.server.answer(&mut till.at(out), &mut till.at(from))
            }
        };
        let answered = answered.map_err(failed)?;
        if answered == Progress::Idle {
            self.idle += 1;
            if self.idle.is_multiple_of(LOOK_EVERY) && cx.mailed().is_some() {
                cx.mail(b"served")?;
                return cx.done(&Report::None);
            }
        }
        Ok(turn(answered))
    }
}

/// Fetches files and times each.
struct HttpClient {
    client: http::Client,
    warm: u64,
    asked_at: Instant,
    began: Instant,
    histogram: Histogram,
    farewell: Option<Farewell>,
}

impl<K: Kind> Side<K> for HttpClient {
    fn step(
        &mut self,
        ends: &mut Met<K>,
        cx: &mut Cx<'_>,
        price: Option<Price>,
    ) -> Result<Step, ActorError> {
        if let Some(farewell) = &mut self.farewell {
            return farewell.step(cx);
        }
        let (waited, before) = (self.client.is_waiting(), self.client.answered());
        let (out, from) = both(ends)?;
        let progress = match price {
            None => self.client.step(out, from),
            Some(price) => {
                let till = Till::new(cx, price);
                self.client.step(&mut till.at(out), &mut till.at(from))
            }
        };
        let progress = progress.map_err(failed)?;
        if self.client.answered() > before {
            // The time of an answer is the time of the next request: one clock read for each.
            let now = cx.now();
            if before >= self.warm {
                self.histogram.record(now.since(self.asked_at));
            }
            if before + 1 == self.warm {
                self.began = now;
            }
            self.asked_at = now;
        } else if !waited && before == 0 {
            self.asked_at = cx.now();
            if self.warm == 0 {
                self.began = self.asked_at;
            }
        }
        if progress == Progress::Done {
            let report = Report::Served {
                messages: self.client.answered() - self.warm,
                nanos: self.asked_at.since(self.began).nanos(),
                latency: self.histogram.quantiles(1.0),
            };
            self.farewell = Some(Farewell::say(cx, b"finished", report)?);
        }
        Ok(turn(progress))
    }
}
