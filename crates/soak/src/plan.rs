//! What a seed stands for: machines, rings, how their ends are used, what goes wrong. Pure.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use headworks::ring::{Framing, Mode, RingConfig};
use headworks::sim::faults::{Chance, Event, Rule, Rules, Verdict, rules};
use headworks::sim::{Census, Preset};
use headworks::verbs::{Device, Duration, Instant, Pages, Promises};

/// The role of the receiving end.
pub(super) const RECEIVER: &str = "receiver";
/// The host of all senders, where they share one.
const SENDERS: &str = "senders";

/// Packets that all messages of a plan are expected to take, at most; a packet is about four events.
const PACKETS_MAX: u64 = 1_000_000;
/// The shortest slices that paced devices cut.
const SLICE_MIN: u64 = 256;
/// What is sent of a message beside its bytes, at most: cursors, either way.
const WORDS: u64 = 3;
/// Packets that could be sent while a sender's timer runs out, at the four events that one is.
const PACKETS_IN_TIMEOUT: u64 = 15_000;
/// Messages of a ring that are sent whatever they take.
const FEW: u64 = 20;
/// One packet in so many meets a fault.
const SOME: [u64; 4] = [1_000, 200, 50, 20];
/// The promises of the device that polled rings need.
const PROMISES: Promises = Promises {
    ordered_between_writes: true,
    atomic_aligned_8: true,
    in_order_within_write: 0,
};

/// What a seed stands for.
#[derive(Debug)]
pub(super) struct Plan {
    pub(super) seed: u64,
    pub(super) preset: &'static str,
    /// Constants that are set to something else.
    pub(super) constants: Vec<(&'static str, &'static str)>,
    pub(super) rings: usize,
    /// There are two, between the same two ends, one each way.
    pub(super) crosses: bool,
    /// All senders are on this host; otherwise each is on its own.
    pub(super) senders_host: Option<&'static str>,
    /// The receiver is a group.
    pub(super) is_group: bool,
    /// Of the sending ends and of the receiving one.
    pub(super) configs: [RingConfig; 2],
    pub(super) promises: Promises,
    /// Messages of each ring.
    pub(super) messages: u64,
    pub(super) sending: Pace,
    pub(super) receiving: Pace,
    pub(super) rules: Rules,
    /// Ends stay when they have all they wanted, so that what they have then is counted.
    pub(super) lingers: bool,
    /// A ring of a group that the receiver ends, after so many messages of it.
    pub(super) removes: Option<(usize, u64)>,
    /// Replaces the device of a role: only tests of the soak itself use another device.
    pub(super) around: Unprinted<Replace>,
    /// The message that is sent as that of a number: another one only in tests of the soak itself.
    pub(super) sends: Unprinted<fn(u64) -> u64>,
    /// Options of the devices' name that pace them; empty where they are not paced.
    pub(super) pacing: String,
    pub(super) fatal: Fatal,
    /// Of so many packets a thousand are lost or overtaken, so that the receiver sees a gap.
    pub(super) gaps: u64,
    /// Of so many answers a thousand are lost.
    pub(super) lost_answers: u64,
    /// It came to that.
    pub(super) fired: Arc<AtomicBool>,
    pub(super) said: Vec<String>,
}

/// Replaces the device of a role.
pub(super) type Replace = fn(&str, Arc<dyn Device>) -> Arc<dyn Device>;

/// A function. A plan is printed without it: where a function is differs from run to run.
#[derive(Clone, Copy)]
pub(super) struct Unprinted<F>(pub(super) F);

impl<F> fmt::Debug for Unprinted<F> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("_")
    }
}

/// A rule of which is noted whether it ever had something to say.
struct Noted<R> {
    rule: R,
    fired: Arc<AtomicBool>,
}

impl<R: Rule> Rule for Noted<R> {
    fn judge(&self, event: &Event<'_>, chance: &mut Chance) -> Option<Verdict> {
        let said = self.rule.judge(event, chance);
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
pub(super) struct Pace {
    /// Messages in a row at most.
    pub(super) batch: u64,
    /// Once in so many batches it does something else for a while.
    pub(super) rests: u64,
    /// For how long at most.
    pub(super) rest: Duration,
    /// What a message costs it.
    pub(super) cost: Duration,
    /// It sleeps on its descriptor where it has one.
    pub(super) sleeps: bool,
    /// Of a receiver: messages are held and released in any order.
    pub(super) holds: bool,
}

/// What ends a ring.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Fatal {
    Nothing,
    /// An actor dies.
    Crash(String),
    /// A queue pair of a host fails by itself, or its link is down for longer than is retried.
    Host(String),
    /// Queue pairs fail by themselves, whichever they are.
    AnyHost,
}

impl Plan {
    pub(super) fn of(seed: u64) -> Self {
        let chance = &mut Chance::of(seed, &[1]);
        let is_group = chance.once_in(3);
        let crosses = !is_group && chance.once_in(3);
        let rings = match is_group {
            true => chance.within(1, 4) as usize,
            false => 1 + usize::from(crosses),
        };
        let senders_host = (is_group && rings > 1 && chance.once_in(3)).then_some(SENDERS);
        let (configs, promises) = configs(is_group, chance);
        let mut plan = Self {
            preset: chance.one_of(&Preset::NAMES),
            constants: constants(chance),
            rings,
            crosses,
            senders_host,
            is_group,
            promises,
            messages: chance.one_of(&[1, 20, 200, 200, 600]),
            sending: pace(chance),
            receiving: pace(chance),
            lingers: !chance.once_in(3),
            pacing: pacing(seed),
            ..Self::calm(seed, configs)
        };
        if crosses {
            // One that sleeps on one ring sleeps on both.
            plan.sending.sleeps = plan.receiving.sleeps;
        }
        if is_group && chance.once_in(4) {
            let ring = chance.below(rings as u64) as usize;
            plan.removes = Some((ring, chance.within(1, plan.messages)));
        }
        plan.add_faults(chance);
        if chance.once_in(3) {
            plan.add_death(chance);
        }
        plan.bound();
        plan
    }

    /// One ring on which nothing goes wrong, and which is used in one way.
    pub(super) fn calm(seed: u64, configs: [RingConfig; 2]) -> Self {
        let pace = Pace {
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
            around: Unprinted(|_, device| device),
            sends: Unprinted(|number| number),
            pacing: String::new(),
            fatal: Fatal::Nothing,
            gaps: 0,
            lost_answers: 0,
            fired: Arc::default(),
            said: Vec::new(),
        }
    }

    /// Has no more messages than take [`PACKETS_MAX`].
    ///
    /// Whatever is behind a gap is sent again (the specification's reliable connections go back, they do not choose), and
    /// that is all that the sender has under way, at most its array. Of 640 KiB in packets of 256 B, one in 14 of
    /// which is lost or overtaken, each message goes over the wire more than a hundred times.
    pub(super) fn bound(&mut self) {
        let mtu = self.constant("link.mtu").unwrap_or(1024);
        let ring = &self.configs[0];
        let slot = ring.settle().map_or(0, |ring| ring.slot_size as u64).max(1);
        let under_way = u64::from(ring.slots) * slot / mtu;
        let longest = match ring.framing {
            Framing::Fixed(_) => slot,
            // A third of the messages are up to that long, the others take a slot (`messages`).
            Framing::Variable(longest) => slot + longest as u64 / 6,
        };
        let times = 1 + self.gaps * under_way / 1_000;
        // What is held back and cut goes in small pieces, with a call of the program's for each.
        let pieces = if self.is_paced() { 16 } else { 1 };
        let mut each = longest.div_ceil(mtu) * times * pieces * self.rings as u64;
        if self.pacing.contains("pace_window=1") {
            // A slice or two are under way at a time: behind a lost one nothing comes that would tell the receiver, and
            // the sender's timer runs out, while programs call all the time.
            let requests = longest.div_ceil(SLICE_MIN) + WORDS;
            let losses_of_1000 = requests * (self.gaps + self.lost_answers);
            each += losses_of_1000 * PACKETS_IN_TIMEOUT / 1_000 * self.rings as u64;
        }
        self.messages = self.messages.min((PACKETS_MAX / each).max(FEW));
        if let Some((_, after)) = &mut self.removes {
            *after = (*after).min(self.messages);
        }
    }

    /// The role of the end that sends on a ring; of two that cross, of the one that is not called the receiver.
    pub(super) fn sender(&self, ring: usize) -> String {
        match self.crosses {
            true => "sender0".to_owned(),
            false => format!("sender{ring}"),
        }
    }

    /// The host of that end.
    fn senders_host(&self, ring: usize) -> String {
        match self.senders_host {
            Some(host) => host.to_owned(),
            None => self.sender(ring),
        }
    }

    /// Whether an actor may die.
    pub(super) fn may_die(&self, role: &str) -> bool {
        self.fatal == Fatal::Crash(role.to_owned())
    }

    /// Whether there was a reason for a ring to break.
    pub(super) fn may_break(&self, ring: usize) -> bool {
        if !self.fired.load(Ordering::Relaxed) {
            return false;
        }
        match &self.fatal {
            Fatal::Nothing => false,
            Fatal::Crash(role) => role == RECEIVER || *role == self.sender(ring),
            Fatal::Host(host) => host == RECEIVER || *host == self.senders_host(ring),
            Fatal::AnyHost => true,
        }
    }

    /// Whether ends made from this one of the two configurations have a completion channel.
    fn sleeps(&self, config: usize) -> bool {
        let can_poll = self.promises.ordered_between_writes && self.promises.atomic_aligned_8;
        self.configs[config].mode == Mode::Notify || !can_poll
    }

    /// Whether devices are paced.
    pub(super) fn is_paced(&self) -> bool {
        !self.pacing.is_empty()
    }

    /// The objects of a connected end that is made from this one of the two configurations, or of a group whose rings
    /// have all gone.
    pub(super) fn objects(&self, config: usize, of_group: bool) -> Census {
        let is_end = usize::from(!of_group);
        // Where nothing is taken inline, cursors are sent from a region of their own.
        let is_inline = self.constant("nic.max_inline") != Some(0);
        Census {
            queue_pairs: is_end,
            // A paced device has one of its own for each.
            completion_queues: 1 + usize::from(self.is_paced()),
            completion_channels: usize::from(self.sleeps(config)),
            regions: 1 + if is_inline { 0 } else { is_end },
            ..Census::default()
        }
    }

    /// Hosts on which something may go wrong.
    fn a_host(&self, chance: &mut Chance) -> String {
        match chance.once_in(2) {
            true => RECEIVER.to_owned(),
            false => self.senders_host(chance.below(self.rings as u64) as usize),
        }
    }

    pub(super) fn fatal(&mut self, said: String, rule: impl Rule + 'static, fatal: Fatal) {
        let fired = self.fired.clone();
        self.rule(said, Noted { rule, fired });
        self.fatal = fatal;
    }

    pub(super) fn rule(&mut self, said: String, rule: impl Rule + 'static) {
        self.said.push(said);
        self.rules = std::mem::replace(&mut self.rules, Rules::new(0)).with(rule);
    }

    /// What a constant was set to.
    fn constant(&self, key: &str) -> Option<u64> {
        let found = self.constants.iter().find(|(name, _)| *name == key);
        found.and_then(|(_, value)| value.parse().ok())
    }

    /// A fault that once in so many packets makes some late. How many.
    fn add_late<R: Rule + 'static>(
        &mut self,
        said: &str,
        rule: fn(u64, Duration) -> R,
        chance: &mut Chance,
    ) -> u64 {
        let (times, most) = (chance.one_of(&SOME), micros(chance.one_of(&[1, 10, 100])));
        self.rule(format!("{said} 1/{times} {most}"), rule(times, most));
        times
    }

    /// A fault of a host that lasts for a power of two of microseconds.
    fn add_spell<R: Rule + 'static>(
        &mut self,
        said: &str,
        (least, most): (u64, u64),
        rule: fn(&str, Instant, Duration) -> R,
        chance: &mut Chance,
    ) {
        let (host, from) = (self.a_host(chance), moment(chance));
        let span = micros(1 << chance.within(least, most));
        let said = format!("{host} {said} {} for {span}", told(from));
        self.rule(said, rule(&host, from, span));
    }

    /// Faults that rings survive.
    fn add_faults(&mut self, chance: &mut Chance) {
        // Eight times in a row is a cause to give up: that must be out of reach, also for packets of which all
        // are lost with one.
        let burst = self.constant("nic.burst").unwrap_or(4);
        if chance.once_in(2) {
            let times = chance.one_of(&SOME).max(12 * burst);
            self.gaps += 1_000 / times;
            self.rule(format!("loss 1/{times}"), rules::loss(times));
        }
        if chance.once_in(4) {
            let times = chance.within(10, 40);
            self.lost_answers = 1_000 / times;
            let said = format!("lost answers 1/{times}");
            self.rule(said, rules::lost_answers(times));
        }
        if chance.once_in(2) {
            self.gaps += 1_000 / self.add_late("reorder", rules::reorder, chance);
        }
        if chance.once_in(2) {
            self.add_late("jitter", rules::jitter, chance);
        }
        if chance.once_in(4) {
            let times = chance.within(2, 50);
            self.rule(format!("not ready 1/{times}"), rules::not_ready(times));
        }
        for _ in 0..chance.below(3) {
            self.add_spell("down", (0, 17), rules::flap, chance);
        }
        for _ in 0..chance.below(3) {
            self.add_spell("stalled", (0, 15), rules::stall, chance);
        }
        if chance.once_in(4) {
            self.add_spell("without receives", (5, 15), rules::storm, chance);
        }
        if self.promises.in_order_within_write == 0 && chance.once_in(3) {
            let times = chance.one_of(&[1, 2, 10]);
            self.rule(format!("backwards 1/{times}"), rules::backwards(times));
        }
        if chance.once_in(4) {
            let (host, ppm) = (self.a_host(chance), chance.within(0, 400) as i32 - 200);
            self.rule(format!("{host} drifts {ppm} ppm"), rules::drift(&host, ppm));
        }
    }

    /// What rings do not.
    fn add_death(&mut self, chance: &mut Chance) {
        let host = self.a_host(chance);
        match chance.below(4) {
            0 => {
                let ring = chance.below(self.rings as u64) as usize;
                let role = match chance.once_in(2) {
                    true => RECEIVER.to_owned(),
                    false => self.sender(ring),
                };
                let at = moment(chance);
                let said = format!("{role} crashes {}", told(at));
                self.fatal(said, rules::crash(&role, at), Fatal::Crash(role));
            }
            1 => {
                let number = chance.within(1, 100);
                let said = format!("{host} fails with packet {number}");
                self.fatal(said, rules::kill_after(&host, number), Fatal::Host(host));
            }
            2 => {
                let times = chance.one_of(&[30, 300, 3_000]);
                let said = format!("kills 1/{times}");
                self.fatal(said, rules::kills(times), Fatal::AnyHost);
            }
            _ => {
                let (from, span) = (moment(chance), Duration::from_millis(1_500));
                let said = format!("{host} down {} for {span}", told(from));
                self.fatal(said, rules::flap(&host, from, span), Fatal::Host(host));
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

/// A time at which rings are likely to be at work.
fn moment(chance: &mut Chance) -> Instant {
    let scale = 1 << chance.within(6, 14);
    Instant::ZERO + micros(chance.within(scale / 2, scale))
}

fn pace(chance: &mut Chance) -> Pace {
    Pace {
        batch: chance.one_of(&[1, 3, 16, 64]),
        rests: chance.one_of(&[0, 0, 2, 10, 100]),
        rest: micros(chance.one_of(&[1, 20, 400])),
        cost: Duration::from_nanos(chance.one_of(&[0, 50, 1_000, 5_000])),
        sleeps: chance.once_in(2),
        holds: chance.once_in(3),
    }
}

/// Machines are as their preset has them, or smaller: short packets, few at a time, caches that hold little.
fn constants(chance: &mut Chance) -> Vec<(&'static str, &'static str)> {
    let mut all = Vec::new();
    if chance.once_in(3) {
        all.push(("link.mtu", chance.one_of(&["256", "1024"])));
    }
    if chance.once_in(3) {
        all.push(("nic.burst", chance.one_of(&["1", "2", "16"])));
    }
    if chance.once_in(4) {
        all.extend([("nic.icm", "8"), ("nic.mtt", "8"), ("nic.mpt", "8")]);
    }
    if chance.once_in(4) {
        all.push(("nic.max_inline", "0"));
    }
    all
}

/// Whether and how devices are paced: from hardly ever holding anything back to holding back and cutting nearly all.
fn pacing(seed: u64) -> String {
    let chance = &mut Chance::of(seed, &[2]);
    if !chance.once_in(3) {
        return String::new();
    }
    let line = chance.one_of(&[1, 4, 100]);
    let mut options = format!(",pace,pace_line_rate_gbps={line},pace_min_rate_gbps=0.5");
    let mut set = |key: &str, values: &[u64]| {
        if chance.once_in(2) {
            let value = chance.one_of(values);
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

/// What the two ends are made from, and what their devices promise.
fn configs(is_group: bool, chance: &mut Chance) -> ([RingConfig; 2], Promises) {
    let mut promises = PROMISES;
    let modes = [Mode::Poll, Mode::Poll, Mode::Notify, Mode::Latency];
    let most = if is_group { 3 } else { 4 };
    let mode = chance.one_of(&modes[..most]);
    if mode == Mode::Latency && !chance.once_in(4) {
        // The model places bytes in order; no preset promises it.
        promises.in_order_within_write = u32::MAX;
    }
    let config = loop {
        let config = config(mode, chance);
        if config.settle().is_ok() {
            break config;
        }
    };
    let mut configs = [config.clone(), config];
    // One end that sleeps makes both.
    if mode == Mode::Poll && chance.once_in(6) {
        let end = if is_group {
            1
        } else {
            chance.below(2) as usize
        };
        configs[end].mode = Mode::Notify;
    } else if mode != Mode::Latency && chance.once_in(6) {
        match chance.once_in(2) {
            true => promises.ordered_between_writes = false,
            false => promises.atomic_aligned_8 = false,
        }
        if is_group {
            // Nothing can be polled: a group must be told.
            configs[1].mode = Mode::Notify;
        }
    }
    (configs, promises)
}

fn config(mode: Mode, chance: &mut Chance) -> RingConfig {
    let slots = chance.one_of(&[2, 3, 4, 5, 8, 16, 33, 128]);
    let slot_size = chance.one_of(&[64, 64, 128, 192, 1024, 5120]);
    let array = (slots as u64 - 1) * slot_size;
    let framing = match chance.once_in(2) {
        true => Framing::Fixed(chance.within(1, slot_size) as usize),
        false => Framing::Variable(chance.within(0, array.min(60_000)) as usize),
    };
    let every = |chance: &mut Chance| match chance.below(3) {
        0 => None,
        1 => Some(1),
        _ => Some(chance.within(1, u64::from(slots) - 1) as u32),
    };
    RingConfig {
        slots,
        slot_size: Some(slot_size as usize),
        transmit_every: every(chance),
        publish_every: every(chance),
        push_every: every(chance),
        framing,
        mode,
        elastic: chance.one_of(&[None, None, Some(true), Some(false)]),
        misaligned_by: chance.one_of(&[0, 0, 0, 8, 56]),
        pages: chance.one_of(&[Pages::Ordinary, Pages::Ordinary, Pages::PreferHuge]),
        ..RingConfig::default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sabotage::{bounded, calm, rough};

    #[test]
    fn everything_there_is_is_drawn() {
        let plans: Vec<Plan> = (1..=300).map(Plan::of).collect();
        type Is = fn(&Plan) -> bool;
        let kinds: [(&str, Is); 9] = [
            ("cross", |plan| plan.crosses),
            ("cross asleep", |plan| plan.crosses && plan.sleeps(0)),
            ("cross, held", |plan| plan.crosses && plan.receiving.holds),
            ("group, held", |plan| plan.is_group && plan.receiving.holds),
            ("one, held", |plan| !plan.is_group && plan.receiving.holds),
            ("senders of a host", |plan| plan.senders_host.is_some()),
            ("removed", |plan| plan.removes.is_some()),
            ("kills", |plan| plan.fatal == Fatal::AnyHost),
            ("huge", |plan| plan.configs[0].pages == Pages::PreferHuge),
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
        assert_eq!(bounded(calm()).messages, 200);
        let few = bounded(rough(600));
        assert!((FEW..300).contains(&few.messages), "{few:?}");
        let mut more = rough(600);
        (more.rings, more.removes) = (4, Some((2, 600)));
        let more = bounded(more);
        assert!((FEW..few.messages).contains(&more.messages), "{more:?}");
        assert_eq!(more.removes, Some((2, more.messages)));
    }
}
