//! Control loops under incast: many hosts send to one host whose memory is contended, and feed idle hosts beside that.
//! The expectations combine three papers: Jet's receiving host, Weir's pacing by delay, and the service of RaaS.
//! On simulated devices that model the memory of hosts.

use std::fmt;

use crate::cases::jet::receiving_host::{memory_of, refuse_antagonist};
use crate::cases::prelude::*;
use crate::cases::weir::arms::probe_of;
use crate::incast::{Control, Incast, IncastResult, SLICE, VICTIM_SHARE, variation};
use crate::nic::{Verb, VerbLoad};
use crate::service::virtual_time::Machine;

/// Sending hosts.
const SENDERS: [u64; 4] = [4, 8, 16, 64];
const QUICK_SENDERS: [u64; 3] = [4, 8, 16];
/// Demand of the antagonist, in percent of the memory's bandwidth.
const ANTAGONISTS: [u64; 3] = [0, 50, 100];
const QUICK_ANTAGONISTS: [u64; 1] = [100];

/// Warm-up and measured time.
const TIMES: (Duration, Duration) = (Duration::from_millis(100), Duration::from_millis(100));
const QUICK_TIMES: (Duration, Duration) = (Duration::from_millis(20), Duration::from_millis(20));
/// Warm-up of Weir's pacing alone. A completion lowers the rate by 12 Mbit/s, so the way from the line rate to the
/// lowest rate takes thousands of completions on each sender.
const WEIR_WARM_UP: Duration = Duration::from_millis(500);

/// Share of the victims' goodput that counts as no loss, in percent.
const NO_LOSS: f64 = 95.0;
/// Variation of goodput that counts as steady, in percent.
const STEADY: f64 = 10.0;

/// Quantities of a point.
const GOODPUT: Quantity = "goodput";
const VICTIMS: Quantity = "victims";
const SHARE: Quantity = "victims' share";
const MESSAGE_TIME: Quantity = "p99.9";
const VICTIM_TIME: Quantity = "victims' p99.9";
const PAUSED: Quantity = "paused";
const HELD: Quantity = "held";
const VARIATION: Quantity = "variation";
const SPREAD: Quantity = "spread";
const DROPPED: Quantity = "dropped";
const SIGNALS: Quantity = "signals";

/// A control loop.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Arm {
    /// No flow to the contended host: the victims alone.
    Alone,
    /// Pauses and nothing else.
    Pauses,
    /// DCQCN.
    Dcqcn,
    /// Weir's pacing by delay.
    Weir,
    /// Signals that cut the rate of the sender's RNIC.
    Rnic,
    /// Signals that cut the rate of the flow to the contended host.
    Link,
    /// Signals that cut both.
    Both,
}

impl Arm {
    /// The control loops.
    const LOOPS: [Self; 6] = [
        Self::Pauses,
        Self::Dcqcn,
        Self::Weir,
        Self::Rnic,
        Self::Link,
        Self::Both,
    ];

    fn is_signalled_rnic(self) -> bool {
        matches!(self, Self::Rnic | Self::Both)
    }

    /// Returns what limits the senders. `base_delay` is that of Weir's pacing.
    fn control(self, base_delay: Duration) -> Control {
        let base = format!(",pace,pace_base_delay_ns={}", base_delay.nanos());
        let device_options = match self {
            Self::Weir => base,
            // The rate rises whatever the delay is, so that nothing but signals lowers it.
            Self::Rnic | Self::Both => {
                format!("{base},pace_init_alpha=1000000,pace_init_beta=1000000")
            }
            Self::Alone | Self::Pauses | Self::Dcqcn | Self::Link => String::new(),
        };
        Control {
            device_options,
            cuts_rnic: self.is_signalled_rnic(),
            cuts_link: matches!(self, Self::Link | Self::Both),
        }
    }

    /// Returns the word for this loop in the names of metrics.
    fn key(self) -> &'static str {
        match self {
            Self::Alone => "alone",
            Self::Pauses => "pfc",
            Self::Dcqcn => "dcqcn",
            Self::Weir => "weir",
            Self::Rnic => "per_rnic",
            Self::Link => "per_link",
            Self::Both => "both",
        }
    }

    fn note(self) -> ArmNote {
        let what = match self {
            Self::Alone => {
                "no flow to the contended host: the goodput that the victims have without contention"
            }
            Self::Pauses => {
                "PFC, where the preset has it, and nothing else (dcqcn.on=0), as in all arms below but DCQCN"
            }
            Self::Dcqcn => "as PFC, with the preset's DCQCN",
            Self::Weir => {
                "as PFC, on devices that pace by delay, with the measured base delay and otherwise default constants"
            }
            Self::Rnic => {
                "as PFC; a signal halves the rate of the sender's whole RNIC (headworks::pace::cut_rate), and completions \
                 raise it again. Delay does not lower it: both thresholds are a million base delays"
            }
            Self::Link => {
                "as PFC; a signal cuts the rate of the flow to the contended host alone, by the rule that the daemon has \
                 for its queue-pair groups (daemon::link_rate). The program cuts its messages into WRITEs of 16 KiB"
            }
            Self::Both => "as PFC; a signal cuts the rate of the RNIC and that of the flow",
        };
        arm(
            self.to_string(),
            what,
            "sleep until a completion or mail; poll every 4 µs where devices are paced",
            "0",
        )
    }
}

impl fmt::Display for Arm {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Alone => "victims alone",
            Self::Pauses => "PFC",
            Self::Dcqcn => "DCQCN",
            Self::Weir => "Weir's pacing",
            Self::Rnic => "signals per RNIC",
            Self::Link => "signals per link",
            Self::Both => "both signals",
        })
    }
}

fn at(arm: Arm, senders: u64, antagonist: u64, quantity: Quantity) -> Expr<Arm> {
    Expr::At(Point::at(arm, senders).with(antagonist), quantity)
}

/// The victims alone, at a number of senders.
fn alone(senders: u64) -> Point<Arm> {
    Point::at(Arm::Alone, senders).with(0)
}

/// The experiment `incast-loops`.
pub static INCAST_LOOPS: Case<Arm> = Case {
    about: About {
        runs_on: RunsOn::Simulated,
        paces: true,
        ..About::new(
            "incast-loops",
            "Control loops while 4 to 64 hosts send to one host with contended memory (--device sim:cx4lx-2x25g).",
            "Each sending host WRITEs 256 KiB messages to the contended host, as many as it can, and 64 KiB messages to an \
             idle host at 10 % of its links. An antagonist on the contended host uses 0, 50 or 100 % of its memory's \
             bandwidth. Goodput, the victims' share of what they have alone, times of messages, pauses, drops and how \
             goodput varies, by control loop.",
        )
    },
    table,
    measure: |bench, t, _| {
        let preset = memory_of(bench)?;
        refuse_antagonist(bench, INCAST_LOOPS.about.name)?;
        let seed = bench.options.machine().and_then(Result::ok);
        let seed = seed.map_or(1, |(_, seed)| seed);
        let (senders, antagonists, times) = match bench.options.quick {
            true => (&QUICK_SENDERS[..], &QUICK_ANTAGONISTS[..], QUICK_TIMES),
            false => (&SENDERS[..], &ANTAGONISTS[..], TIMES),
        };
        let base_delay = bench.once("base delay", |bench| {
            let load = VerbLoad::of(Verb::Write, SLICE);
            let place = bench.testbed_with(&["dcqcn.on=0".to_owned()])?;
            let batches = probe_of(&place, preset.all_links_gbps(), load);
            place.take_usage();
            batches
        })?;
        let base_delay = base_delay.map_err(|why| RunError::Failed(why.to_string()))?;
        t.note(format!(
            "{}: {} Gbit/s on {} ports, {} GB/s of memory. Pacing has a base delay of {} ns: the median time of one WRITE of \
             16 KiB at a time on the idle machine, less the time of its bytes at the rate of all links. That is the length \
             of the slices into which pacing cuts WRITEs.",
            preset.name,
            preset.all_links_gbps(),
            preset.ports,
            preset.host_memory,
            base_delay.nanos()
        ));
        let mut points: Vec<_> = senders.iter().map(|senders| alone(*senders)).collect();
        for antagonist in antagonists {
            let loops = grid("", &Arm::LOOPS, senders).into_iter();
            points.extend(loops.map(|point| point.with(*antagonist)));
        }
        let sweep = Sweep::in_virtual_time("senders", "% antagonist");
        let mut measured = bench.measure(points, sweep, |bench, point, _| {
            let mut preset = preset.clone();
            let dcqcn = u8::from(point.arm == Arm::Dcqcn).to_string();
            let set = preset.set("dcqcn.on", &dcqcn);
            set.map_err(|e| WorkloadError::at("setting", e))?;
            let incast = Incast {
                senders: point.x as usize,
                is_contended: point.arm != Arm::Alone,
                antagonist: preset.host_memory * point.n as f64 / 100.0,
                control: point.arm.control(base_delay),
            };
            let times = match (point.arm, bench.options.quick) {
                (Arm::Weir, false) => (WEIR_WARM_UP, times.1),
                _ => times,
            };
            let found = incast.measure(&Machine { preset, seed }, times, bench.stop())?;
            Ok(Some(sample(&found)))
        })?;
        add_shares(&mut measured);
        Ok(measured)
    },
};

/// Returns the values of a point.
fn sample(found: &IncastResult) -> Sample {
    let percent = |share: f64| 100.0 * share;
    let times = |nanos: f64, count: u64| if count > 0 { nanos * 1e-3 } else { f64::NAN };
    let (messages, victims) = (&found.messages, &found.victim_messages);
    Sample::of([
        (GOODPUT, found.goodput() * 1e-9),
        (VICTIMS, found.victim_goodput() * 1e-9),
        (MESSAGE_TIME, times(messages.p999_ns, messages.count)),
        (VICTIM_TIME, times(victims.p999_ns, victims.count)),
        (PAUSED, percent(found.paused)),
        (HELD, percent(found.held)),
        (VARIATION, percent(variation(&found.windows))),
        (SPREAD, percent(variation(&found.by_sender))),
        (DROPPED, found.dropped as f64),
        (SIGNALS, found.signals as f64 / found.seconds),
    ])
}

/// Adds to each point which share of their goodput alone the victims have, in percent.
fn add_shares(measured: &mut Measured<Arm>) {
    let points: Vec<_> = measured.points().collect();
    for point in points {
        let without = Expr::At(alone(point.x), VICTIMS).median(measured);
        let with = Expr::At(point, VICTIMS).median(measured);
        if let (Some(with), Some(without)) = (with, without) {
            measured.extend(point, SHARE, 100.0 * with / without);
        }
    }
}

fn table() -> Table<Arm> {
    let arms = [Arm::Alone].into_iter().chain(Arm::LOOPS);
    let mut t = Table::new(arms.map(Arm::note).collect());
    t.arm().x("senders").n("antagonist [%]");
    t.value("goodput of the contended host [GB/s]", GOODPUT);
    t.value("goodput of the victims [GB/s]", VICTIMS);
    t.value("victims' share [%]", SHARE);
    t.value("p99.9 of a message [µs]", MESSAGE_TIME);
    t.value("p99.9 of a victim's message [µs]", VICTIM_TIME);
    t.value("paused by the RNIC [% of the time]", PAUSED);
    t.value("senders' links paused [% of the time]", HELD);
    t.value("variation over 1 ms [%]", VARIATION);
    t.value("variation over senders [%]", SPREAD);
    t.value("dropped packets", DROPPED);
    t.value("signals [1/s]", SIGNALS);
    for senders in [16, 64] {
        for arm in Arm::LOOPS {
            for (what, quantity) in [
                ("victims_percent", SHARE),
                ("goodput_gb_per_s", GOODPUT),
                ("paused_percent", PAUSED),
                ("links_paused_percent", HELD),
            ] {
                let key = format!("{what}_{}_{senders}", arm.key());
                t.metric(key, at(arm, senders, 100, quantity));
            }
        }
    }
    for arm in Arm::LOOPS {
        let (variation, dropped) = (at(arm, 64, 100, VARIATION), at(arm, 64, 100, DROPPED));
        t.metric(format!("variation_percent_{}_64", arm.key()), variation);
        t.metric(format!("dropped_{}_64", arm.key()), dropped);
    }
    expect(&mut t);
    notes(&mut t);
    let x = || Axis::log("senders");
    for (file, title, quantity, y) in [
        (
            "victims.svg",
            "Victims' share, antagonist at 100 %",
            SHARE,
            "of their goodput alone [%]",
        ),
        (
            "goodput.svg",
            "Goodput of the contended host, antagonist at 100 %",
            GOODPUT,
            "goodput [GB/s]",
        ),
        (
            "held.svg",
            "Time for which the switch paused senders' links, antagonist at 100 %",
            HELD,
            "time [%]",
        ),
    ] {
        t.chart(file, title, (x(), Axis::linear(y)), move |point| {
            let is_drawn = point.n == 100;
            is_drawn.then(|| {
                let name = point.arm.to_string();
                (name, point.x as f64, Expr::At(*point, quantity))
            })
        });
    }
    t
}

/// Adds what was expected before the first run.
fn expect(t: &mut Table<Arm>) {
    t.expectations();
    let of = |arm: Arm, senders, quantity| at(arm, senders, 100, quantity);
    let each = |arms: &[Arm], senders: &[u64], quantity: Quantity, claim: Claim| {
        let mut parts = Vec::new();
        for senders in senders {
            for arm in arms {
                let what = format!("{arm}, {senders} senders: {quantity} [%]");
                parts.push((what, of(*arm, *senders, quantity), claim));
            }
        }
        parts
    };
    t.sentence(
        "Weir's pacing becomes an accidental control of the receiver: pauses vanish",
        each(&[Arm::Weir], &[16, 64], HELD, Claim::Below(1.0)),
    );
    t.sentence(
        "and the victims lose",
        each(&[Arm::Weir], &[16, 64], SHARE, Claim::Below(NO_LOSS)),
    );
    t.sentence(
        "signals per link leave the victims 95 % or more",
        each(&[Arm::Link], &[16, 64], SHARE, Claim::Above(NO_LOSS)),
    );
    let mut calm = each(&[Arm::Link], &[64], VARIATION, Claim::Below(STEADY));
    let dropped = of(Arm::Link, 64, DROPPED);
    calm.push(("dropped packets".to_owned(), dropped, Claim::Below(0.5)));
    t.sentence(
        "64 senders with signals per link: no packet is dropped, and goodput over 1 ms varies by at most 10 %",
        calm,
    );
}

fn notes(t: &mut Table<Arm>) {
    t.note(
        "Everything is simulated. The expectations were written down before the first run. After it, only the warm-up of \
         Weir's pacing was lengthened, because its rate was still falling. Only the contended host has an antagonist. Bytes that an RNIC reads to send them cost no memory bandwidth.",
    );
    t.note(format!(
        "A sender has a queue pair for each port to the contended host, with 2 messages outstanding on each, and one for each \
         port to an idle host, with at most 4 on each. The victims' demand is {} % of the sender's links; a message that is \
         due while all are outstanding is not sent. The senders share 32 MiB of the contended host's memory.",
        100.0 * VICTIM_SHARE
    ));
    t.note(
        "A program on the contended host looks every 10 µs. It signals all senders by mail (20 µs) while the RNIC's buffer \
         or a queue of the switch holds more than half of the length at which PFC pauses, at most once in 1 ms, as the \
         daemon's receive pool does. It knows both lengths from the model; a real program would need counters for them.",
    );
    t.note(
        "Paused by the RNIC: the mean of both ports of the contended host. Senders' links paused: the mean of all links of \
         the senders, which the switch pauses. Variation is the standard deviation over the mean: of the contended host's \
         goodput in windows of 1 ms, and of the senders' goodput at the contended host over the whole time. A run measures \
         100 ms after 100 ms (Weir's pacing: after 500 ms), a quick one 20 ms after 20 ms. With 64 senders that is about \
         20 messages for each, so the 99.9th percentile is close to the longest time, and the variation over senders has \
         steps of some percent.",
    );
    t.note(
        "Pacing does not lower the rate of an RNIC below 5 Gbit/s (pace_min_rate_gbps). 64 RNICs at that rate send 320 \
         Gbit/s. The daemon's rule for a link has a lowest rate of 1 MiB/s; its rate rises every 10 ms, in sixteenths.",
    );
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::latency::Quantiles;

    fn result() -> IncastResult {
        IncastResult {
            seconds: 2e-3,
            windows: vec![1e6, 3e6],
            victim_bytes: 8_000_000,
            paused: 0.25,
            held: 0.5,
            dropped: 7,
            sent_again: 7,
            signals: 2,
            messages: Quantiles {
                count: 3,
                p999_ns: 5000.0,
                ..Quantiles::default()
            },
            victim_messages: Quantiles::default(),
            by_sender: vec![1.0, 1.0],
        }
    }

    #[test]
    fn a_sample_has_the_units_of_its_columns() {
        let found = sample(&result());
        let values = [
            GOODPUT,
            VICTIMS,
            MESSAGE_TIME,
            PAUSED,
            HELD,
            VARIATION,
            SPREAD,
            DROPPED,
            SIGNALS,
        ];
        let values = values.map(|quantity| found.get(quantity));
        assert_eq!(values, [2.0, 4.0, 5.0, 25.0, 50.0, 50.0, 0.0, 7.0, 1000.0]);
        assert!(found.get(VICTIM_TIME).is_nan(), "no message of a victim");
    }

    #[test]
    fn shares_are_of_the_victims_alone_with_as_many_senders() {
        let of = |victims| vec![Some(Sample::of([(VICTIMS, victims)]))];
        let point = Point::at(Arm::Weir, 16).with(100);
        let points = [(alone(4), of(1.0)), (alone(16), of(4.0)), (point, of(3.0))];
        let mut measured = Measured::new(points, std::collections::BTreeMap::new());
        add_shares(&mut measured);
        assert_eq!(at(Arm::Weir, 16, 100, SHARE).median(&measured), Some(75.0));
        let own = Expr::At(alone(4), SHARE).median(&measured);
        assert_eq!(own, Some(100.0));
    }

    #[test]
    fn only_the_arms_that_need_it_pace_and_only_weirs_by_delay() {
        let base = Duration::from_nanos(6000);
        for arm in Arm::LOOPS {
            let Control {
                device_options,
                cuts_rnic,
                cuts_link,
            } = arm.control(base);
            let paces = matches!(arm, Arm::Weir | Arm::Rnic | Arm::Both);
            assert_eq!(device_options.starts_with(",pace,"), paces, "{arm}");
            let ignores_delay = device_options.contains("pace_init_beta=1000000");
            assert_eq!(ignores_delay, cuts_rnic, "{arm}");
            assert_eq!(cuts_link, arm.key() == "per_link" || arm.key() == "both");
        }
    }

    #[test]
    fn every_loop_has_its_metrics_at_16_and_64_senders() {
        let keys: Vec<_> = table().keys().into_iter().map(|(key, _)| key).collect();
        assert_eq!(keys.len(), 2 * 6 * 4 + 6 * 2);
        for key in [
            "victims_percent_weir_64",
            "links_paused_percent_per_link_16",
        ] {
            assert!(keys.contains(&key.to_owned()), "{key}");
        }
    }
}
