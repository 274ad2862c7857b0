//! Plan of a seed: machines, rings, how their ends are used, and which faults occur. Pure.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use headworks::ring::{Framing, Mode, RingConfig};
use headworks::sim::ObjectCounts;
use headworks::sim::faults::{FaultEvent, NetworkFaults, Random, Rule, Rules, Verdict, rules};
use headworks::verbs::{Device, Duration, Instant, Pages, Promises};

/// Role of the receiving end.
pub(super) const RECEIVER: &str = "receiver";
/// Host of all senders, if they share one.
const SENDERS: &str = "senders";

/// Presets that plans draw from. A longer list would change the meaning of every seed.
const PRESETS: [&str; 3] = ["cx3-40g", "cx5-100g", "cx6-100g"];

/// Presets of machines that model the memory of hosts and congestion.
const MEMORY_PRESETS: [&str; 2] = ["cx4lx-2x25g", "cx6dx-2x100g"];

/// Maximum number of packets that the messages of a plan are expected to take. A packet is about four
/// events.
const PACKETS_MAX: u64 = 1_000_000;
/// Bytes of the smallest slices that paced devices cut.
const SLICE_MIN: u64 = 256;
/// Maximum number of requests for a message without those for its bytes: cursors, in both directions.
const WORDS: u64 = 3;
/// Number of packets, at four events each, whose events equal those until a sender's timer expires.
const PACKETS_IN_TIMEOUT: u64 = 15_000;
/// Minimum number of messages of a ring, however many packets they take.
const FEW: u64 = 20;
/// Constants that make machines drop packets, and the packets per thousand that are expected to be dropped then.
const DROPPING: [&str; 2] = ["nic.rx_buffer", "switch.buffer"];
const DROPPED_OF_1000: u64 = 50;
/// Maximum number of a sender's timeouts, of 67 ms each, that the bytes of a ring may take if packets are dropped.
const TIMEOUTS: u64 = 32;
/// Fault rates: one packet in this many meets a fault.
const SOME: [u64; 4] = [1_000, 200, 50, 20];
/// Promises of a device that polled rings need.
const PROMISES: Promises = Promises {
    ordered_between_writes: true,
    atomic_aligned_8: true,
    in_order_within_write: 0,
};

/// Plan of a seed.
#[derive(Debug)]
pub(super) struct Plan {
    pub(super) seed: u64,
    pub(super) preset: &'static str,
    /// Constants of the preset that are changed, and their values.
    pub(super) constants: Vec<(&'static str, &'static str)>,
    pub(super) rings: usize,
    /// Whether there are two rings between the same two ends, one in each direction.
    pub(super) crosses: bool,
    /// Host of all senders; if unset, each sender is on its own host.
    pub(super) senders_host: Option<&'static str>,
    /// Whether the receiver is a group.
    pub(super) is_group: bool,
    /// Configurations of the sending ends and of the receiving ends.
    pub(super) configs: [RingConfig; 2],
    pub(super) promises: Promises,
    /// Number of messages of each ring.
    pub(super) messages: u64,
    pub(super) sending: UsagePattern,
    pub(super) receiving: UsagePattern,
    pub(super) rules: Rules,
    /// Whether ends stay when they have everything, so that their objects are counted.
    pub(super) lingers: bool,
    /// A ring of a group that the receiver removes, and the number of its messages after which it does.
    pub(super) removes: Option<(usize, u64)>,
    /// Replaces the device of a role. Only tests of the soak itself use another device.
    pub(super) wrap_device: Unprinted<WrapDevice>,
    /// Maps a message's number to that of the message sent in its place. Differs only in tests of the soak
    /// itself.
    pub(super) sends: Unprinted<fn(u64) -> u64>,
    /// Options in the devices' names that pace them; empty if they are not paced.
    pub(super) pacing: String,
    pub(super) fatal: ExpectedFailure,
    /// Packets per thousand that are lost or overtaken, so that the receiver sees a gap.
    pub(super) gaps: u64,
    /// Acknowledgements per thousand that are lost.
    pub(super) lost_answers: u64,
    /// Whether the rule for `fatal` ever fired.
    pub(super) fired: Arc<AtomicBool>,
    pub(super) said: Vec<String>,
}

/// Replaces the device of a role.
pub(super) type WrapDevice = fn(&str, Arc<dyn Device>) -> Arc<dyn Device>;

/// A function. It is left out of a printed plan, since its address differs from run to run.
#[derive(Clone, Copy)]
pub(super) struct Unprinted<F>(pub(super) F);

impl<F> fmt::Debug for Unprinted<F> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("_")
    }
}

/// A rule that records whether it ever gave a verdict.
struct RecordedRule<R> {
    rule: R,
    fired: Arc<AtomicBool>,
}

impl<R: Rule<NetworkFaults>> Rule<NetworkFaults> for RecordedRule<R> {
    fn judge(&self, event: &FaultEvent<'_>, random: &mut Random) -> Option<Verdict> {
        let said = self.rule.judge(event, random);
        if said.is_some() {
            self.fired.store(true, Ordering::Relaxed);
        }
        said
    }

    fn moments(&self) -> Vec<Instant> {
        self.rule.moments()
    }
}

/// How an end is used.
#[derive(Clone, Copy, Debug)]
pub(super) struct UsagePattern {
    /// Maximum number of messages in a row.
    pub(super) batch: u64,
    /// One in this many batches, the end rests for a while; 0: never.
    pub(super) rests: u64,
    /// Longest rest.
    pub(super) rest: Duration,
    /// Processor time of a message.
    pub(super) cost: Duration,
    /// Whether the end sleeps on its descriptor, if it has one.
    pub(super) sleeps: bool,
    /// Receivers only: whether messages are held and released in any order.
    pub(super) holds: bool,
}

/// Failure that may end a ring.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum ExpectedFailure {
    Nothing,
    /// An actor dies.
    Crash(String),
    /// A queue pair of a host fails by itself, or the host's link is down for longer than is retried.
    Host(String),
    /// Queue pairs of any host fail by themselves.
    AnyHost,
}

impl Plan {
    pub(super) fn of(seed: u64) -> Self {
        let random = &mut Random::of(seed, &[1]);
        let is_group = random.once_in(3);
        let crosses = !is_group && random.once_in(3);
        let rings = match is_group {
            true => random.within(1, 4) as usize,
            false => 1 + usize::from(crosses),
        };
        let senders_host = (is_group && rings > 1 && random.once_in(3)).then_some(SENDERS);
        let (configs, promises) = configs(is_group, random);
        let mut plan = Self {
            preset: random.one_of(&PRESETS),
            constants: constants(random),
            rings,
            crosses,
            senders_host,
            is_group,
            promises,
            messages: random.one_of(&[1, 20, 200, 200, 600]),
            sending: pace(random),
            receiving: pace(random),
            lingers: !random.once_in(3),
            pacing: pacing(seed),
            ..Self::without_faults(seed, configs)
        };
        if crosses {
            // A side that sleeps on one ring sleeps on both.
            plan.sending.sleeps = plan.receiving.sleeps;
        }
        if is_group && random.once_in(4) {
            let ring = random.below(rings as u64) as usize;
            plan.removes = Some((ring, random.within(1, plan.messages)));
        }
        plan.add_faults(random);
        if random.once_in(3) {
            plan.add_death(random);
        }
        plan.add_memory();
        plan.bound_messages();
        plan
    }

    /// Returns a plan of one ring on which nothing goes wrong, with one usage pattern.
    pub(super) fn without_faults(seed: u64, configs: [RingConfig; 2]) -> Self {
        let pace = UsagePattern {
            batch: 3,
            rests: 0,
            rest: micros(1),
            cost: Duration::from_nanos(50),
            sleeps: false,
            holds: false,
        };
        Self {
            seed,
            preset: "cx5-100g",
            constants: Vec::new(),
            rings: 1,
            crosses: false,
            senders_host: None,
            is_group: false,
            configs,
            promises: PROMISES,
            messages: 200,
            sending: pace,
            receiving: pace,
            rules: Rules::new(seed),
            lingers: true,
            removes: None,
            wrap_device: Unprinted(|_, device| device),
            sends: Unprinted(|number| number),
            pacing: String::new(),
            fatal: ExpectedFailure::Nothing,
            gaps: 0,
            lost_answers: 0,
            fired: Arc::default(),
            said: Vec::new(),
        }
    }

    /// Reduces the number of messages so that they take at most [`PACKETS_MAX`] packets.
    ///
    /// After a gap, the sender retransmits everything behind it (reliable connections go back N; the
    /// specification has no selective retransmission). That is all that it has in flight, at most its array.
    /// With 640 KiB in packets of 256 B, one in 14 of them lost or overtaken, each message crosses the wire
    /// more than a hundred times.
    pub(super) fn bound_messages(&mut self) {
        let mtu = self.constant("link.mtu").unwrap_or(1024);
        let ring = &self.configs[0];
        let slot = ring.settle().map_or(0, |ring| ring.slot_size as u64).max(1);
        let under_way = self.array_bytes() / mtu;
        let longest = match ring.framing {
            Framing::Fixed(_) => slot,
            // A third of the messages are up to that long; the others take about a slot (`message_contents`).
            Framing::Variable(longest) => slot + longest as u64 / 6,
        };
        let times = 1 + self.gaps * under_way / 1_000;
        // A paced device cuts what it holds back into small pieces, and the program makes a call for each.
        let pieces = if self.is_paced() { 16 } else { 1 };
        let mut each = longest.div_ceil(mtu) * times * pieces * self.rings as u64;
        if self.pacing.contains("pace_window=1") {
            // Only a slice or two are in flight. After a lost one, no packet follows that shows the receiver
            // a gap. So the sender's timer must expire, while programs make calls all the time.
            let requests = longest.div_ceil(SLICE_MIN) + WORDS;
            let losses_of_1000 = requests * (self.gaps + self.lost_answers);
            each += losses_of_1000 * PACKETS_IN_TIMEOUT / 1_000 * self.rings as u64;
        }
        self.messages = self.messages.min((PACKETS_MAX / each).max(FEW));
        if let Some((_, after)) = &mut self.removes {
            *after = (*after).min(self.messages);
        }
    }

    /// Returns the bytes of a ring's slots.
    fn array_bytes(&self) -> u64 {
        let ring = &self.configs[0];
        let slot = ring.settle().map_or(0, |ring| ring.slot_size as u64).max(1);
        u64::from(ring.slots) * slot
    }

    /// Returns the role of the end that sends on a ring. If rings cross, it is the side that is not
    /// [`RECEIVER`].
    pub(super) fn sender(&self, ring: usize) -> String {
        match self.crosses {
            true => "sender0".to_owned(),
            false => format!("sender{ring}"),
        }
    }

    /// Returns the host of the end that sends on a ring.
    fn senders_host(&self, ring: usize) -> String {
        match self.senders_host {
            Some(host) => host.to_owned(),
            None => self.sender(ring),
        }
    }

    /// Returns whether an actor may die.
    pub(super) fn may_die(&self, role: &str) -> bool {
        self.fatal == ExpectedFailure::Crash(role.to_owned())
    }

    /// Returns whether there was a reason for a ring to break.
    pub(super) fn may_break(&self, ring: usize) -> bool {
        if !self.fired.load(Ordering::Relaxed) {
            return false;
        }
        match &self.fatal {
            ExpectedFailure::Nothing => false,
            ExpectedFailure::Crash(role) => role == RECEIVER || *role == self.sender(ring),
            ExpectedFailure::Host(host) => host == RECEIVER || *host == self.senders_host(ring),
            ExpectedFailure::AnyHost => true,
        }
    }

    /// Returns whether ends made from configuration `config` have a completion channel.
    fn sleeps(&self, config: usize) -> bool {
        let can_poll = self.promises.ordered_between_writes && self.promises.atomic_aligned_8;
        self.configs[config].mode == Mode::Notify || !can_poll
    }

    /// Returns whether devices are paced.
    pub(super) fn is_paced(&self) -> bool {
        !self.pacing.is_empty()
    }

    /// Returns the objects of a connected end made from configuration `config`, or of a group whose rings
    /// have all gone.
    pub(super) fn objects(&self, config: usize, of_group: bool) -> ObjectCounts {
        let is_end = usize::from(!of_group);
        // Without inline payloads, cursors are sent from a region of their own.
        let is_inline = self.constant("nic.max_inline") != Some(0);
        ObjectCounts {
            queue_pairs: is_end,
            // A paced device adds one of its own for each.
            completion_queues: 1 + usize::from(self.is_paced()),
            completion_channels: usize::from(self.sleeps(config)),
            regions: 1 + if is_inline { 0 } else { is_end },
            ..ObjectCounts::default()
        }
    }

    /// Returns a host on which something may go wrong.
    fn random_host(&self, random: &mut Random) -> String {
        match random.once_in(2) {
            true => RECEIVER.to_owned(),
            false => self.senders_host(random.below(self.rings as u64) as usize),
        }
    }

    pub(super) fn add_fatal_rule(
        &mut self,
        said: String,
        rule: impl Rule<NetworkFaults> + 'static,
        fatal: ExpectedFailure,
    ) {
        let fired = self.fired.clone();
        self.add_rule(said, RecordedRule { rule, fired });
        self.fatal = fatal;
    }

    pub(super) fn add_rule(&mut self, said: String, rule: impl Rule<NetworkFaults> + 'static) {
        self.said.push(said);
        self.rules = std::mem::replace(&mut self.rules, Rules::new(0)).with(rule);
    }

    /// Returns the changed value of a constant, if it is changed.
    fn constant(&self, key: &str) -> Option<u64> {
        let found = self.constants.iter().find(|(name, _)| *name == key);
        found.and_then(|(_, value)| value.parse().ok())
    }

    /// Adds a fault that delays one packet in some number. Returns that number.
    fn add_late<R: Rule<NetworkFaults> + 'static>(
        &mut self,
        said: &str,
        rule: fn(u64, Duration) -> R,
        random: &mut Random,
    ) -> u64 {
        let (times, most) = (random.one_of(&SOME), micros(random.one_of(&[1, 10, 100])));
        self.add_rule(format!("{said} 1/{times} {most}"), rule(times, most));
        times
    }

    /// Adds a fault of a host that lasts for a power of two of microseconds.
    fn add_spell<R: Rule<NetworkFaults> + 'static>(
        &mut self,
        said: &str,
        (least, most): (u64, u64),
        rule: fn(&str, Instant, Duration) -> R,
        random: &mut Random,
    ) {
        let (host, from) = (self.random_host(random), moment(random));
        let span = micros(1 << random.within(least, most));
        let said = format!("{host} {said} {} for {span}", told(from));
        self.add_rule(said, rule(&host, from, span));
    }

    /// Adds faults that rings survive.
    fn add_faults(&mut self, random: &mut Random) {
        // A sender gives up after eight losses in a row. That must be out of reach, also for bursts, all of
        // whose packets are lost with one.
        let burst = self.constant("nic.burst").unwrap_or(4);
        if random.once_in(2) {
            let times = random.one_of(&SOME).max(12 * burst);
            self.gaps += 1_000 / times;
            self.add_rule(format!("loss 1/{times}"), rules::loss(times));
        }
        if random.once_in(4) {
            let times = random.within(10, 40);
            self.lost_answers = 1_000 / times;
            let said = format!("lost answers 1/{times}");
            self.add_rule(said, rules::lose_acknowledges(times));
        }
        if random.once_in(2) {
            self.gaps += 1_000 / self.add_late("reorder", rules::reorder, random);
        }
        if random.once_in(2) {
            self.add_late("jitter", rules::jitter, random);
        }
        if random.once_in(4) {
            let times = random.within(2, 50);
            self.add_rule(format!("not ready 1/{times}"), rules::not_ready(times));
        }
        for _ in 0..random.below(3) {
            self.add_spell("down", (0, 17), rules::link_down, random);
        }
        for _ in 0..random.below(3) {
            self.add_spell("stalled", (0, 15), rules::stall_actors, random);
        }
        if random.once_in(4) {
            self.add_spell("without receives", (5, 15), rules::no_receives, random);
        }
        if self.promises.in_order_within_write == 0 && random.once_in(3) {
            let times = random.one_of(&[1, 2, 10]);
            self.add_rule(
                format!("backwards 1/{times}"),
                rules::place_backwards(times),
            );
        }
        if random.once_in(4) {
            let (host, ppm) = (self.random_host(random), random.within(0, 400) as i32 - 200);
            self.add_rule(
                format!("{host} drifts {ppm} ppm"),
                rules::clock_drift(&host, ppm),
            );
        }
    }

    /// Replaces the machines of one plan in three by machines that model the memory of hosts and congestion, and adds
    /// faults of those. All random numbers are drawn from a stream of their own, so everything else in the plan stays.
    fn add_memory(&mut self) {
        let random = &mut Random::of(self.seed, &[5]);
        if !random.once_in(3) {
            return;
        }
        self.preset = random.one_of(&MEMORY_PRESETS);
        // A full buffer drops what several senders send together, whoever sends it. So one of them may lose eight
        // packets in a row and give up. The oldest packet of a single sender finds the buffer empty at last. On paced
        // devices, programs would make calls until the sender's timer expires, too often for the limit of events.
        let drops = self.rings == 1 && !self.is_paced();
        let changed = memory_constants(drops.then(|| self.array_bytes()), random);
        if changed.iter().any(|(key, _)| DROPPING.contains(key)) {
            self.gaps += DROPPED_OF_1000;
        }
        self.constants.extend(changed);
        for _ in 0..random.below(4) {
            let (host, from) = (self.random_host(random), moment(random));
            let span = micros(1 << random.within(3, 15));
            let rate = random.one_of(&[1, 30, 250]);
            self.add_rule(
                format!(
                    "{host} has an antagonist of {rate} GB/s {} for {span}",
                    told(from)
                ),
                rules::antagonist(&host, from, span, rate),
            );
        }
        if random.once_in(2) {
            let times = random.one_of(&[1, 2, 10]);
            self.add_rule(
                format!("lost notifications 1/{times}"),
                rules::lose_notifications(times),
            );
        }
        for _ in 0..random.below(3) {
            self.add_spell("paused", (0, 14), rules::pause_link, random);
        }
    }

    /// Adds a fault that rings do not survive.
    fn add_death(&mut self, random: &mut Random) {
        let host = self.random_host(random);
        match random.below(4) {
            0 => {
                let ring = random.below(self.rings as u64) as usize;
                let role = match random.once_in(2) {
                    true => RECEIVER.to_owned(),
                    false => self.sender(ring),
                };
                let at = moment(random);
                let said = format!("{role} crashes {}", told(at));
                self.add_fatal_rule(
                    said,
                    rules::kill_actor(&role, at),
                    ExpectedFailure::Crash(role),
                );
            }
            1 => {
                let number = random.within(1, 100);
                let said = format!("{host} fails with packet {number}");
                self.add_fatal_rule(
                    said,
                    rules::kill_queue_pair_at(&host, number),
                    ExpectedFailure::Host(host),
                );
            }
            2 => {
                let times = random.one_of(&[30, 300, 3_000]);
                let said = format!("kills 1/{times}");
                self.add_fatal_rule(
                    said,
                    rules::kill_queue_pair(times),
                    ExpectedFailure::AnyHost,
                );
            }
            _ => {
                let (from, span) = (moment(random), Duration::from_millis(1_500));
                let said = format!("{host} down {} for {span}", told(from));
                self.add_fatal_rule(
                    said,
                    rules::link_down(&host, from, span),
                    ExpectedFailure::Host(host),
                );
            }
        }
    }
}

fn told(at: Instant) -> String {
    format!("at {}", at.since(Instant::ZERO))
}

fn micros(count: u64) -> Duration {
    Duration::from_micros(count)
}

/// Returns a time at which rings are likely to be busy.
fn moment(random: &mut Random) -> Instant {
    let scale = 1 << random.within(6, 14);
    Instant::ZERO + micros(random.within(scale / 2, scale))
}

fn pace(random: &mut Random) -> UsagePattern {
    UsagePattern {
        batch: random.one_of(&[1, 3, 16, 64]),
        rests: random.one_of(&[0, 0, 2, 10, 100]),
        rest: micros(random.one_of(&[1, 20, 400])),
        cost: Duration::from_nanos(random.one_of(&[0, 50, 1_000, 5_000])),
        sleeps: random.once_in(2),
        holds: random.once_in(3),
    }
}

/// Returns changed constants: machines match their preset, or have short packets, short bursts or small
/// caches.
fn constants(random: &mut Random) -> Vec<(&'static str, &'static str)> {
    let mut all = Vec::new();
    if random.once_in(3) {
        all.push(("link.mtu", random.one_of(&["256", "1024"])));
    }
    if random.once_in(3) {
        all.push(("nic.burst", random.one_of(&["1", "2", "16"])));
    }
    if random.once_in(4) {
        all.extend([("nic.icm", "8"), ("nic.mtt", "8"), ("nic.mpt", "8")]);
    }
    if random.once_in(4) {
        all.push(("nic.max_inline", "0"));
    }
    all
}

/// Returns changed constants of machines that model the memory of hosts: slow or small memory, and short queues that
/// drop packets, pause links, or notify senders. `array` is the size of the ring; without it nothing is dropped.
fn memory_constants(array: Option<u64>, random: &mut Random) -> Vec<(&'static str, &'static str)> {
    let mut all = Vec::new();
    if random.once_in(2) {
        all.extend([("host.cache", "64"), ("host.dma_cache", "16")]);
    }
    if random.once_in(2) {
        all.push(("host.memory", random.one_of(&["1", "10"])));
    }
    if random.once_in(4) {
        all.push(("host.isolated", "1"));
    }
    if random.once_in(4) {
        all.push(("host.antagonist", random.one_of(&["1", "250"])));
    }
    // A receiver with one posted line at a time takes bytes more slowly than the link carries them.
    if !random.once_in(4) {
        all.push(("host.posted_lines", "1"));
        all.push(("host.posted_time", random.one_of(&["300", "1000"])));
    }
    let (room, bytes) = random.one_of(&[("0.25", 256), ("1", 1 << 10), ("16", 16 << 10)]);
    // At worst a sender brings through as much as the buffer holds until its timer expires. The ring must not stall.
    let small = match array {
        Some(array) if array > TIMEOUTS * bytes => "64",
        _ => room,
    };
    let drops = array.is_some();
    let pauses = [("nic.rx_pause", room), ("nic.rx_resume", "0")];
    match random.below(5) {
        0 if drops => all.extend([("nic.rx_buffer", small), ("nic.rx_pause", "0")]),
        1 if drops => {
            all.extend(pauses);
            all.extend([("switch.buffer", small), ("switch.pause", "0")]);
        }
        0..=2 => {
            all.extend(pauses);
            all.extend([("switch.pause", room), ("switch.resume", "0")]);
        }
        3 => all.extend([("nic.rx_notify", room), ("nic.rx_pause", "0")]),
        _ => {
            all.extend(pauses);
            all.extend([("switch.mark_from", "0.25"), ("switch.mark_all", "16")]);
        }
    }
    if random.once_in(4) {
        all.push(("dcqcn.on", "0"));
    }
    if random.once_in(4) {
        all.push(("dcqcn.notify_time", "1"));
    }
    all
}

/// Returns the devices' pacing options, if any: from hardly ever holding anything back to cutting nearly
/// everything.
fn pacing(seed: u64) -> String {
    let random = &mut Random::of(seed, &[2]);
    if !random.once_in(3) {
        return String::new();
    }
    let line = random.one_of(&[1, 4, 100]);
    let mut options = format!(",pace,pace_line_rate_gbps={line},pace_min_rate_gbps=0.5");
    let mut set = |key: &str, values: &[u64]| {
        if random.once_in(2) {
            let value = random.one_of(values);
            options += &format!(",pace_{key}={value}");
        }
    };
    set("base_delay_ns", &[1_000, 10_000]);
    set("slice_bytes", &[SLICE_MIN, 1_000, 4_096]);
    set("slice_imm", &[1]);
    set("burst_bytes", &[0, 2_048]);
    set("quantum_bytes", &[0]);
    set("max_in_flight", &[16]);
    set("sample_every", &[1, 100]);
    set("window", &[1]);
    set("timestamps", &[0]);
    set("dec_mbps", &[1_000]);
    options
}

/// Returns the configurations of the two ends, and the promises of their devices.
fn configs(is_group: bool, random: &mut Random) -> ([RingConfig; 2], Promises) {
    let mut promises = PROMISES;
    let modes = [Mode::Poll, Mode::Poll, Mode::Notify, Mode::Latency];
    let most = if is_group { 3 } else { 4 };
    let mode = random.one_of(&modes[..most]);
    if mode == Mode::Latency && !random.once_in(4) {
        // The model places bytes in order, but no preset promises it.
        promises.in_order_within_write = u32::MAX;
    }
    let config = loop {
        let config = config(mode, random);
        if config.settle().is_ok() {
            break config;
        }
    };
    let mut configs = [config.clone(), config];
    // If one end sleeps, both do.
    if mode == Mode::Poll && random.once_in(6) {
        let end = if is_group {
            1
        } else {
            random.below(2) as usize
        };
        configs[end].mode = Mode::Notify;
    } else if mode != Mode::Latency && random.once_in(6) {
        match random.once_in(2) {
            true => promises.ordered_between_writes = false,
            false => promises.atomic_aligned_8 = false,
        }
        if is_group {
            // Without these promises nothing can be polled, so a group needs notifications.
            configs[1].mode = Mode::Notify;
        }
    }
    (configs, promises)
}

fn config(mode: Mode, random: &mut Random) -> RingConfig {
    let slots = random.one_of(&[2, 3, 4, 5, 8, 16, 33, 128]);
    let slot_size = random.one_of(&[64, 64, 128, 192, 1024, 5120]);
    let array = (slots as u64 - 1) * slot_size;
    let framing = match random.once_in(2) {
        true => Framing::Fixed(random.within(1, slot_size) as usize),
        false => Framing::Variable(random.within(0, array.min(60_000)) as usize),
    };
    let every = |random: &mut Random| match random.below(3) {
        0 => None,
        1 => Some(1),
        _ => Some(random.within(1, u64::from(slots) - 1) as u32),
    };
    RingConfig {
        slots,
        slot_size: Some(slot_size as usize),
        transmit_every: every(random),
        publish_every: every(random),
        push_every: every(random),
        framing,
        mode,
        elastic: random.one_of(&[None, None, Some(true), Some(false)]),
        misaligned_by: random.one_of(&[0, 0, 0, 8, 56]),
        pages: random.one_of(&[Pages::Ordinary, Pages::Ordinary, Pages::PreferHuge]),
        ..RingConfig::default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::mutation_tests::{bounded, plan_with_faults, plan_without_faults};

    #[test]
    fn everything_there_is_is_drawn() {
        let plans: Vec<Plan> = (1..=300).map(Plan::of).collect();
        type Is = fn(&Plan) -> bool;
        fn has(plan: &Plan, text: &str) -> bool {
            plan.said.iter().any(|said| said.contains(text))
        }
        fn changes(plan: &Plan, key: &str) -> bool {
            plan.constants.iter().any(|(name, _)| *name == key)
        }
        let kinds: [(&str, Is); 14] = [
            ("cross", |plan| plan.crosses),
            ("cross asleep", |plan| plan.crosses && plan.sleeps(0)),
            ("cross, held", |plan| plan.crosses && plan.receiving.holds),
            ("group, held", |plan| plan.is_group && plan.receiving.holds),
            ("one, held", |plan| !plan.is_group && plan.receiving.holds),
            ("senders of a host", |plan| plan.senders_host.is_some()),
            ("removed", |plan| plan.removes.is_some()),
            ("kills", |plan| plan.fatal == ExpectedFailure::AnyHost),
            ("huge", |plan| plan.configs[0].pages == Pages::PreferHuge),
            ("antagonist", |plan| has(plan, "antagonist")),
            ("lost notifications", |plan| has(plan, "notifications")),
            ("pauses", |plan| has(plan, "paused")),
            ("drops of the RNIC", |plan| changes(plan, "nic.rx_buffer")),
            ("drops of the switch", |plan| changes(plan, "switch.buffer")),
        ];
        for (what, is) in kinds {
            let drawn = plans.iter().filter(|plan| is(plan)).count();
            assert!(drawn >= 3, "{what}: {drawn}");
        }
        for plan in plans {
            assert!(
                !plan.crosses || (plan.rings == 2 && !plan.is_group),
                "{plan:?}"
            );
        }
    }

    #[test]
    fn few_messages_are_drawn_where_each_takes_many_packets() {
        assert_eq!(bounded(plan_without_faults()).messages, 200);
        let few = bounded(plan_with_faults(600));
        assert!((FEW..300).contains(&few.messages), "{few:?}");
        let mut more = plan_with_faults(600);
        (more.rings, more.removes) = (4, Some((2, 600)));
        let more = bounded(more);
        assert!((FEW..few.messages).contains(&more.messages), "{more:?}");
        assert_eq!(more.removes, Some((2, more.messages)));
    }
}
