//! Input for traces and utilisation tables.
//!
//! Units and pipes log their busy times, and counters count misses. Nothing here influences the model, and
//! the model's other code does not depend on it.

use headworks_verbs::{Completion, Status};

use super::{Counters, Event, Host, Model, Piece, PieceKind, QpRef};
use crate::hardware_units::{BusyInterval, BusyLog, Pipe, Ps};
use crate::preset::PORTS_MAX;
use crate::trace::{Subject, TraceLabel, Tracer, Track};
use crate::utilisation::{
    ActorUsage, HostUsage, MEMORY, PAUSED_PORTS, STALLED_WRITES, TX, UnitUsage, Usage,
};

/// Names of the links of a host with several ports.
const LINKS_OUT: [&str; PORTS_MAX] = [
    "link out 0",
    "link out 1",
    "link out 2",
    "link out 3",
    "link out 4",
    "link out 5",
    "link out 6",
    "link out 7",
];
const LINKS_IN: [&str; PORTS_MAX] = [
    "link in 0",
    "link in 1",
    "link in 2",
    "link in 3",
    "link in 4",
    "link in 5",
    "link in 6",
    "link in 7",
];

/// An actor and its computing time.
pub(crate) struct ActorTime {
    pub(crate) role: String,
    pub(crate) host: u32,
    pub(crate) core: u32,
    pub(crate) busy: Ps,
    /// Time at which its last step ended.
    pub(crate) until: Ps,
}

/// State of tracing.
pub(crate) struct Instrumentation {
    tracer: Tracer,
    run: u32,
    /// Hosts as the tracer numbers them, each with its counters at the last record.
    hosts: Vec<(u32, Counters)>,
    /// Name and request that the next logged intervals belong to.
    label: (&'static str, Subject),
}

impl Instrumentation {
    pub(crate) fn new(tracer: Tracer) -> Self {
        Self {
            run: tracer.begin(),
            tracer,
            hosts: Vec::new(),
            label: ("", Subject::default()),
        }
    }

    /// Records a completion that becomes visible at that time.
    pub(super) fn completion(&self, host: u32, at: Ps, ends: &Completion) {
        let Some((process, _)) = self.hosts.get(host as usize) else {
            return;
        };
        let subject = Subject {
            qpn: ends.qpn.raw(),
            request: ends.wr_id,
            bytes: ends.byte_len.into(),
        };
        let name = match ends.status {
            Status::Success => "completion",
            Status::Flushed => "flushed",
            _ => "failed",
        };
        let label = TraceLabel::Of(name, subject);
        let track = Track::Completions;
        self.tracer.instant(*process, track, at, label);
    }

    /// Records what a host logged and counted since the last record.
    fn record_host(&mut self, number: usize, host: &mut Host, now: Ps) {
        let Some((process, before)) = self.hosts.get_mut(number) else {
            return;
        };
        let (tracer, process, (name, subject)) = (&self.tracer, *process, self.label);
        let spans = |log: &mut BusyLog, track: &dyn Fn(u32) -> Track| {
            for BusyInterval {
                unit,
                begin,
                end,
                bytes,
            } in log.drain()
            {
                let label = TraceLabel::Of(name, Subject { bytes, ..subject });
                tracer.span(process, track(unit), (begin, end), label);
            }
        };
        for (number, unit) in host.tx.iter_mut().enumerate() {
            spans(&mut unit.log, &|_| Track::Tx(number as u32));
        }
        spans(&mut host.rx.log, &Track::Rx);
        spans(&mut host.dma_in.log, &|_| Track::DmaRead);
        spans(&mut host.dma_out.log, &|_| Track::DmaWrite);
        let is_one = host.ports.count() == 1;
        for (number, port) in (0..).zip(host.ports.iter_mut()) {
            let number = (!is_one).then_some(number);
            spans(&mut port.link_out.log, &|_| Track::LinkOut(number));
            spans(&mut port.link_in.log, &|_| Track::LinkIn(number));
        }
        if host.counters == *before {
            return;
        }
        let since = host.counters.since(before);
        *before = host.counters;
        for (name, count) in [
            ("WQE miss", since.wqe_misses),
            ("ICM miss", since.icm_misses),
            ("MTT miss", since.mtt_misses),
            ("MPT miss", since.mpt_misses),
            ("sent again", since.sent_again),
            ("no receive", since.not_ready),
        ] {
            if count > 0 {
                let label = TraceLabel::Count(name, count);
                tracer.instant(process, Track::Events, now, label);
            }
        }
    }
}

impl Model {
    /// Starts tracing.
    pub(crate) fn trace_to(&mut self, tracer: Tracer) {
        self.instrumentation = Some(Box::new(Instrumentation::new(tracer)));
        for number in 0..self.hosts.len() as u32 {
            self.trace_host(number);
        }
    }

    /// Starts tracing a new host.
    pub(super) fn trace_host(&mut self, number: u32) {
        let Some(instrumentation) = &mut self.instrumentation else {
            return;
        };
        let host = &mut self.hosts[number as usize];
        let process = instrumentation.tracer.host(instrumentation.run, &host.name);
        instrumentation.hosts.push((process, host.counters));
        host.tx.iter_mut().for_each(|unit| unit.log.begin());
        host.rx.log.begin();
        host.dma_in.log.begin();
        host.dma_out.log.begin();
        for port in host.ports.iter_mut() {
            port.link_out.log.begin();
            port.link_in.log.begin();
        }
    }

    /// Processes and records events up to `limit`; with `until_change`, up to the first visible change.
    #[cold]
    #[inline(never)]
    pub(super) fn run_traced(&mut self, limit: Ps, until_change: bool) {
        while (!until_change || self.changed_hosts.is_empty())
            && let Some((at, event)) = self.event_queue.take(limit)
        {
            self.now = at;
            self.events += 1;
            self.label_event(&event);
            self.happen(event);
            self.record_hosts("call", Subject::default());
        }
    }

    /// Records a doorbell that reaches the RNIC at that time.
    #[cold]
    #[inline(never)]
    pub(super) fn trace_doorbell(&mut self, qp: QpRef, upto: u64, at: Ps) {
        if let Some((host, subject)) = self.subject(qp, upto)
            && let Some(instrumentation) = &self.instrumentation
            && let Some((process, _)) = instrumentation.hosts.get(host as usize)
        {
            let label = TraceLabel::Of("doorbell", subject);
            instrumentation
                .tracer
                .instant(*process, Track::Events, at, label);
        }
    }

    /// Sets the label of what is logged during an event.
    fn label_event(&mut self, event: &Event) {
        // Entries that an actor's call logged belong to no event.
        self.record_hosts("call", Subject::default());
        let (name, subject) = match event {
            Event::Doorbell { qp, upto } => ("fetch", self.subject(*qp, *upto)),
            Event::Arrive(id) | Event::Place(id) => match self.piece(*id) {
                Some(piece) => self.piece_subject(piece),
                None => ("", None),
            },
            Event::Respond { qp } => ("response", self.requester_of(*qp)),
            Event::Acknowledge { qp, psn, .. } => ("answer", self.subject(*qp, *psn)),
            Event::Timeout { qp } => ("overdue", self.subject(*qp, 0)),
            _ => ("", None),
        };
        if let Some(instrumentation) = &mut self.instrumentation {
            instrumentation.label = (name, subject.unwrap_or_default().1);
        }
    }

    /// Sets the label when a queue pair gets its turn on a sending unit.
    #[inline]
    pub(super) fn label_request(&mut self, index: u32) {
        if self.instrumentation.is_some() {
            self.label_request_traced(index);
        }
    }

    #[cold]
    #[inline(never)]
    fn label_request_traced(&mut self, index: u32) {
        let Some(qp) = self.qps[index as usize].1.as_deref_mut() else {
            return;
        };
        let (qpn, request) = (qp.qpn, qp.sending);
        let name = qp.wqe(request).map_or("", |wqe| verb(wqe.reads()));
        let subject = Subject {
            qpn,
            request,
            bytes: 0,
        };
        self.record_hosts(name, subject);
    }

    /// Records what was logged so far, and labels what is logged from now on.
    fn record_hosts(&mut self, name: &'static str, subject: Subject) {
        let Some(instrumentation) = &mut self.instrumentation else {
            return;
        };
        for (number, host) in self.hosts.iter_mut().enumerate() {
            instrumentation.record_host(number, host, self.now);
        }
        instrumentation.label = (name, subject);
    }

    /// Returns the host and the trace subject of a queue pair's request.
    fn subject(&self, qp: QpRef, request: u64) -> Option<(u32, Subject)> {
        let (_, found) = self.qps.get(qp.index as usize)?;
        let found = found.as_deref().filter(|found| found.life == qp.life)?;
        let subject = Subject {
            qpn: found.qpn,
            request,
            bytes: 0,
        };
        Some((found.host, subject))
    }

    /// Returns the request that a queue pair responds to.
    fn requester_of(&self, qp: QpRef) -> Option<(u32, Subject)> {
        let (_, found) = self.qps.get(qp.index as usize)?;
        let (from, request) = found.as_deref()?.responses.front()?.asked();
        self.subject(from, request)
    }

    /// Returns the request that a piece belongs to, in either direction.
    fn piece_subject(&self, piece: &Piece) -> (&'static str, Option<(u32, Subject)>) {
        let (name, qp) = match piece.kind {
            PieceKind::Bytes => (verb(false), piece.from),
            PieceKind::ReadRequest => (verb(true), piece.from),
            PieceKind::Response(_) => ("response", piece.to),
            PieceKind::Datagram(_) => ("datagram", piece.from),
            PieceKind::Unreliable(_) => (verb(false), piece.from),
        };
        (name, self.subject(qp, piece.wqe))
    }

    /// Records an actor's step.
    pub(crate) fn record_step(&mut self, actor: usize, (began, end): (Ps, Ps)) {
        let Some(acted) = self.actors.get_mut(actor) else {
            return;
        };
        acted.busy += end - began;
        acted.until = end;
        if let Some(instrumentation) = &self.instrumentation
            && let Some((process, _)) = instrumentation.hosts.get(acted.host as usize)
        {
            let label = TraceLabel::Step(instrumentation.tracer.role(&acted.role));
            let track = Track::Core(acted.core);
            instrumentation
                .tracer
                .span(*process, track, (began, end), label);
        }
    }

    /// Returns what all hosts and actors counted up to now.
    pub(crate) fn usage(&mut self) -> Usage {
        let acted = self.actors.iter().map(|acted| acted.until).max();
        let over = match self.acting {
            Some(acting) => acting.now,
            None => acted.unwrap_or(0).max(self.now),
        };
        let now = over.max(self.now);
        let hosts = self
            .hosts
            .iter_mut()
            .map(|host| Self::host_usage(host, now));
        let hosts = hosts.collect();
        let actors = self.actors.iter().map(|acted| ActorUsage {
            role: acted.role.clone(),
            host: self.hosts[acted.host as usize].name.clone(),
            core: acted.core,
            busy: acted.busy,
        });
        Usage {
            over,
            hosts,
            actors: actors.collect(),
        }
    }

    fn host_usage(host: &mut Host, now: Ps) -> HostUsage {
        let receiving = host.receiving.as_deref_mut();
        let receiving = receiving.map(|side| (side.counters(now), side.memory_time(now)));
        let pipe = |what, pipe: &Pipe| UnitUsage {
            what,
            busy: vec![pipe.busy()],
            bytes: pipe.bytes(),
        };
        let units = |what, busy| UnitUsage {
            what,
            busy,
            bytes: 0,
        };
        let mut groups = vec![
            units(TX, host.tx.iter().map(|unit| unit.busy).collect()),
            units("rx units", host.rx.busy().to_vec()),
            pipe("DMA read", &host.dma_in),
            pipe("DMA write", &host.dma_out),
        ];
        let names = match host.ports.count() {
            1 => (&["link out"][..], &["link in"][..]),
            _ => (&LINKS_OUT[..], &LINKS_IN[..]),
        };
        let out = names.0.iter().zip(host.ports.iter());
        groups.extend(out.map(|(what, port)| pipe(what, &port.link_out)));
        let inward = names.1.iter().zip(host.ports.iter());
        groups.extend(inward.map(|(what, port)| pipe(what, &port.link_in)));
        if let Some((counters, memory_time)) = &receiving {
            let bytes =
                counters.memory_rnic + counters.memory_processors + counters.memory_antagonist;
            groups.push(UnitUsage {
                what: MEMORY,
                busy: vec![*memory_time],
                bytes,
            });
            groups.push(units(STALLED_WRITES, vec![counters.stalled_writes]));
            let ports = host.ports.count();
            let paused = counters.paused / ports as u64;
            groups.push(units(PAUSED_PORTS, vec![paused; ports]));
        }
        HostUsage {
            host: host.name.clone(),
            counters: host.counters,
            receiving: receiving.map(|(counters, _)| counters),
            units: groups,
        }
    }
}

/// Returns the trace's name for a request on the sending RNIC.
fn verb(reads: bool) -> &'static str {
    match reads {
        true => "request",
        false => "send",
    }
}
