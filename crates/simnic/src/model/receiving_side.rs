//! The receiving host's memory and congestion: applies [`crate::receiving_host`] and [`crate::congestion`] to
//! packets, notifications and the accesses of processors.

use super::{Event, Model, QpRef};
use crate::congestion::dcqcn::{Dcqcn, DcqcnConstants};
use crate::congestion::switch_port::{SwitchConstants, SwitchPort};
use crate::hardware_units::{NS, Pipe, Ps, ns};
use crate::preset::Preset;
use crate::receiving_host::memory_bandwidth::MemoryConstants;
use crate::receiving_host::{BufferVerdict, HostConstants, HostCounters, ReceivingHost};
use headworks_faults::Random;

/// Constants of hosts that receive, and of congestion.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ReceivingConstants {
    pub(crate) host: HostConstants,
    pub(crate) switch: SwitchConstants,
    /// Rates of queue pairs that are notified; without them notifications have no effect.
    pub(crate) dcqcn: Option<DcqcnConstants>,
    /// Least time between two notifications about a queue pair.
    pub(crate) notify_time: Ps,
    /// Bandwidth that an antagonist uses on each host from the start, in bytes a picosecond.
    pub(crate) antagonist: f64,
}

impl ReceivingConstants {
    /// Returns the constants of a preset; `None` if it leaves all of this out.
    pub(crate) fn of(preset: &Preset) -> Option<Self> {
        let has_queues = preset.switch_buffer_kib + preset.switch_mark_all_kib > 0.0;
        if preset.host_cache_kib == 0 && preset.rx_buffer_kib == 0.0 && !has_queues {
            return None;
        }
        let bytes = |kib: f64| (kib * 1024.0) as u64;
        let gb = |gb_per_s: f64| gb_per_s * 1e-3;
        let micros = |span: f64| (span * 1000.0 * NS as f64) as Ps;
        let megabits = |rate: f64| rate * 1e6 / 8.0 * 1e-12;
        let line_rate = megabits(preset.link_gbps * 1000.0);
        Some(Self {
            host: HostConstants {
                cache: preset.host_cache_kib * 1024,
                dma_ways: preset.host_dma_kib * 1024,
                is_isolated: preset.host_isolated,
                memory: MemoryConstants {
                    bandwidth: gb(preset.host_memory),
                    rnic_share: preset.host_rnic_share / 100.0,
                },
                posted_lines: preset.host_posted_lines,
                posted_time: ns(preset.host_posted_ns),
                line_time: ns(preset.host_line_ns),
                loaded_line_time: ns(preset.host_loaded_ns),
                core_lines: preset.host_core_lines,
                buffer: bytes(preset.rx_buffer_kib),
                pause_at: bytes(preset.rx_pause_kib),
                resume_at: bytes(preset.rx_resume_kib),
                notify_at: bytes(preset.rx_notify_kib),
            },
            switch: SwitchConstants {
                capacity: bytes(preset.switch_buffer_kib),
                pause_at: bytes(preset.switch_pause_kib),
                resume_at: bytes(preset.switch_resume_kib),
                mark_from: bytes(preset.switch_mark_kib),
                mark_all_from: bytes(preset.switch_mark_all_kib),
                mark_share: preset.switch_mark_share / 100.0,
            },
            dcqcn: preset.dcqcn.then(|| DcqcnConstants {
                line_rate,
                lowest_rate: megabits(preset.dcqcn_lowest_mbps).min(line_rate),
                gain: preset.dcqcn_gain / 256.0,
                alpha_time: micros(preset.dcqcn_alpha_us),
                rise_time: micros(preset.dcqcn_rise_us),
                rise_bytes: (preset.dcqcn_rise_mb * 1e6) as u64,
                step: megabits(preset.dcqcn_step_mbps),
            }),
            notify_time: micros(preset.dcqcn_notify_us),
            antagonist: gb(preset.host_antagonist),
        })
    }
}

/// Receiving side of a host beyond the RNIC's units: the switch's ports before it, its buffer and its memory.
#[derive(Debug)]
pub(crate) struct ReceivingSide {
    constants: ReceivingConstants,
    pub(crate) host: ReceivingHost,
    ports: Vec<SwitchPort>,
    /// Time until which the switch has paused each of this host's links.
    held_until: Vec<Ps>,
    random: Random,
}

/// Bytes that wait before a host's memory.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Backlog {
    /// Bytes in the RNIC's buffer.
    pub rnic_bytes: u64,
    /// Bytes in the longest of the switch's queues for a port of the host, headers included.
    pub switch_bytes: u64,
}

/// Arrival of packets at the switch and at the RNIC's buffer.
#[derive(Clone, Copy, Debug)]
pub(super) struct Arrival {
    /// Time at which they have arrived completely; `None` if they are dropped.
    pub(super) through: Option<Ps>,
    /// Whether their sender is to be notified.
    pub(super) notifies: bool,
    /// Time until which the switch pauses their sender.
    pub(super) holds_until: Option<Ps>,
}

impl ReceivingSide {
    pub(crate) fn new(constants: ReceivingConstants, ports: usize, mut random: Random) -> Self {
        let mut host = ReceivingHost::new(constants.host, Random::new(random.bits()));
        host.set_antagonist(0, constants.antagonist);
        Self {
            constants,
            host,
            ports: (0..ports).map(|_| SwitchPort::default()).collect(),
            held_until: vec![0; ports],
            random,
        }
    }

    /// Carries packets of `len` bytes, `wire` with headers, from the switch over `link` to the RNIC's buffer.
    pub(super) fn arrive(
        &mut self,
        now: Ps,
        (port, link): (u8, &mut Pipe),
        (len, wire, packets): (u64, u64, u64),
    ) -> Arrival {
        let switch = &mut self.ports[usize::from(port)];
        let admission = switch.admit(now, wire, &self.constants.switch, &mut self.random);
        let mut arrival = Arrival {
            through: None,
            notifies: false,
            holds_until: admission.pauses_until,
        };
        if admission.is_dropped {
            self.host.counters.dropped += packets;
            return arrival;
        }
        if admission.is_marked {
            self.host.counters.marked += packets;
            arrival.notifies = true;
        }
        let begin = now.saturating_sub(link.time(wire)).max(switch.free_at());
        let begin = self.host.pause(now, begin, len).unwrap_or(begin);
        let through = link.carry(begin, wire).max(now);
        switch.put(through, wire);
        match self.host.admit(now, through, len, packets) {
            BufferVerdict::Dropped => return arrival,
            BufferVerdict::TakenAndNotify => arrival.notifies = true,
            BufferVerdict::Taken => {}
        }
        arrival.through = Some(through);
        arrival
    }

    /// Returns the time until which the switch holds one of this host's links.
    pub(super) fn held_until(&self, port: u8) -> Ps {
        self.held_until[usize::from(port)]
    }

    /// Holds a link of this host until that time.
    fn hold(&mut self, now: Ps, port: u8, until: Ps) {
        let held = &mut self.held_until[usize::from(port)];
        if until > *held {
            self.host.counters.held += until - now.max(*held);
            *held = until;
        }
    }

    /// Replaces the bandwidth that the preset's antagonist would use alone, in GB/s.
    fn replace_antagonist(&mut self, now: Ps, gb_per_s: f64) {
        self.constants.antagonist = gb_per_s * 1e-3;
        self.set_antagonist(now, 0);
    }

    /// Sets the bandwidth that an antagonist uses besides the preset's, in GB/s.
    pub(super) fn set_antagonist(&mut self, now: Ps, gb_per_s: u32) {
        let demand = self.constants.antagonist + f64::from(gb_per_s) * 1e-3;
        self.host.set_antagonist(now, demand);
    }

    /// Returns what waits at `now` for this host.
    pub(crate) fn backlog(&self, now: Ps) -> Backlog {
        let of_port = |port: &SwitchPort| port.bytes_at(now);
        Backlog {
            rnic_bytes: self.host.buffered(now),
            switch_bytes: self.ports.iter().map(of_port).max().unwrap_or(0),
        }
    }

    /// Returns the counters at `now`.
    pub(crate) fn counters(&mut self, now: Ps) -> HostCounters {
        self.host.counters(now)
    }

    /// Returns the time that memory needed for what was moved by `now`, at its full bandwidth.
    pub(crate) fn memory_time(&mut self, now: Ps) -> Ps {
        let counters = self.host.counters(now);
        let bytes = counters.memory_rnic + counters.memory_processors + counters.memory_antagonist;
        (bytes as f64 / self.constants.host.memory.bandwidth) as Ps
    }
}

impl Model {
    /// Applies what the switch and the RNIC did with packets to their sender.
    #[cold]
    #[inline(never)]
    pub(super) fn slow_down(&mut self, (from, to): (QpRef, QpRef), port: u8, arrival: Arrival) {
        let (now, wire) = (self.now, self.cost.wire);
        let Some(host) = self.qp(from).map(|qp| qp.host) else {
            return;
        };
        if let Some(until) = arrival.holds_until
            && let Some(side) = self.hosts[host as usize].receiving.as_deref_mut()
        {
            side.hold(now, port, until + wire / 2);
        }
        if !arrival.notifies {
            return;
        }
        let (notify_time, ack) = match &self.receiving {
            Some(constants) => (constants.notify_time, self.cost.ack + self.cost.ack_time),
            None => return,
        };
        let Some(qp) = self.qp(to).filter(|qp| qp.may_notify_at <= now) else {
            return;
        };
        qp.may_notify_at = now + notify_time;
        let receiver = qp.host;
        if let Some(side) = self.hosts[receiver as usize].receiving.as_deref_mut() {
            side.host.counters.notifications_sent += 1;
        }
        if self.is_notification_lost(receiver) {
            return;
        }
        self.event_queue
            .put(now + ack + wire, Event::Notification { qp: from });
    }

    /// Handles a notification at the sender: lowers the rate of the queue pair.
    pub(super) fn on_notification(&mut self, reference: QpRef) {
        let now = self.now;
        let Some(constants) = self.receiving.as_ref().map(|constants| constants.dcqcn) else {
            return;
        };
        let Some(qp) = self.qp(reference) else {
            return;
        };
        let host = qp.host as usize;
        if let Some(constants) = &constants {
            qp.dcqcn
                .get_or_insert_with(|| Box::new(Dcqcn::new(constants)))
                .notify(now, constants);
        }
        if let Some(side) = self.hosts[host].receiving.as_deref_mut() {
            side.host.counters.notifications_received += 1;
        }
    }

    /// Writes a SEND's or a datagram's bytes at `target`, which was not known when they crossed the bus. Returns
    /// how long that takes longer.
    pub(super) fn place_late(&mut self, host: u32, target: (u64, u64)) -> Ps {
        let now = self.now;
        match self.hosts[host as usize].receiving.as_deref_mut() {
            Some(side) => side.host.place_late(now, target),
            None => 0,
        }
    }

    /// Returns how long a processor waits for memory that reads or writes `len` bytes at an address. Memory that
    /// is not registered is always cached.
    pub(crate) fn access_time(&mut self, host: u32, (addr, len): (u64, u64), writes: bool) -> Ps {
        let now = self.time();
        let Some(side) = self.hosts[host as usize].receiving.as_deref_mut() else {
            return 0;
        };
        match self.regions.place_of(addr, len) {
            Some(span) => side.host.process(now, span, writes),
            None => 0,
        }
    }

    /// A device other than the RNIC reads `len` bytes at an address.
    pub(crate) fn device_reads(&mut self, host: u32, (addr, len): (u64, u64)) {
        let now = self.time();
        if let Some(side) = self.hosts[host as usize].receiving.as_deref_mut()
            && let Some(span) = self.regions.place_of(addr, len)
        {
            side.host.device_reads(now, span);
        }
    }

    /// Returns what waits now for the host called `name`; `None` if there is no such host, or if the preset does
    /// not model it.
    pub(crate) fn backlog(&self, name: &str) -> Option<Backlog> {
        let now = self.time().max(self.now);
        let host = self.hosts.iter().find(|host| host.name == name)?;
        Some(host.receiving.as_deref()?.backlog(now))
    }

    /// Replaces the bandwidth that the preset's antagonist would use alone on a host, in GB/s.
    pub(crate) fn replace_antagonist(&mut self, host: u32, gb_per_s: f64) {
        let now = self.now;
        if let Some(side) = self.hosts[host as usize].receiving.as_deref_mut() {
            side.replace_antagonist(now, gb_per_s);
        }
    }

    /// Deregisters a region. Returns what to drop when the lock is released.
    pub(crate) fn deregister(&mut self, key: u32) -> Option<crate::registered_memory::Removed> {
        let removed = self.regions.remove(key)?;
        if let Some((host, place, len)) = removed.gone
            && let Some(side) = self.hosts[host as usize].receiving.as_deref_mut()
        {
            side.host.forget((place, len));
        }
        Some(removed)
    }
}

/// Returns the time at which a queue pair may send more, after it sent `bytes` at `now`.
pub(super) fn paced(
    qp: &mut super::Qp,
    constants: Option<&ReceivingConstants>,
    now: Ps,
    bytes: u64,
) -> Ps {
    match (&mut qp.dcqcn, constants.and_then(|all| all.dcqcn.as_ref())) {
        (Some(dcqcn), Some(constants)) => dcqcn.sent(now, bytes, constants),
        _ => 0,
    }
}
