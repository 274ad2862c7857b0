//! A sample as text.

use std::fmt::Write;
use std::time::Duration;

use headworks::inspect::{ContextSnapshot, QueuePairSnapshot, RegistrySnapshot};
use headworks::verbs::{DeviceName, QpState};

use super::counter_rates::{Rate, Rates, traffic_of};

/// A snapshot of the fabric, and how it is displayed.
pub(super) struct FabricView<'a> {
    pub(super) snapshot: &'a RegistrySnapshot,
    /// Rates since the snapshot before, if there is one.
    pub(super) rates: Option<&'a Rates>,
    pub(super) device: &'a DeviceName,
    /// Most characters of a line.
    pub(super) width: usize,
    /// Most queue pairs shown of a context; `None` shows only sums.
    pub(super) queue_pairs: Option<usize>,
}

impl FabricView<'_> {
    pub(super) fn drawn(&self) -> String {
        let mut text = String::new();
        let contexts = &self.snapshot.contexts;
        if contexts.is_empty() && self.snapshot.unreadable.is_empty() {
            let _ = writeln!(text, "no process has {} open", self.device);
        } else {
            let pairs: usize = contexts.iter().map(|c| c.queue_pairs.len()).sum();
            let _ = writeln!(
                text,
                "{}: {} contexts, {pairs} queue pairs",
                self.device,
                contexts.len()
            );
        }
        for context in contexts {
            self.context(&mut text, context);
        }
        let mut unnamed = Vec::new();
        for one in &self.snapshot.unreadable {
            let why = without_controls(&one.why);
            let Some(host) = &one.host else {
                unnamed.push(why);
                continue;
            };
            let pid = one
                .pid
                .map_or_else(|| "-".to_owned(), |pid| pid.to_string());
            let host = plain(host);
            let _ = writeln!(text, "\n{host} pid {pid}: cannot be inspected: {why}");
        }
        if let Some(why) = unnamed.first() {
            let _ = writeln!(text, "\n{} more cannot be read: {why}", unnamed.len());
        }
        cut(&text, self.width)
    }

    fn context(&self, text: &mut String, context: &ContextSnapshot) {
        let (host, command) = (plain(&context.host), plain(&context.command));
        let _ = writeln!(
            text,
            "\n{host}.{} pid {} {command}, up {}",
            context.index,
            context.pid,
            uptime(context.age)
        );
        let pairs = &context.queue_pairs;
        let sum =
            |f: fn(&QueuePairSnapshot) -> u64| pairs.iter().map(f).fold(0, u64::saturating_add);
        let in_state = |state| pairs.iter().filter(|qp| qp.state == state).count();
        let _ = write!(
            text,
            "  QPs {}: {} RTS, {} error; sends {} posted, {} outstanding, {}; received {}, {}",
            pairs.len(),
            in_state(QpState::Rts),
            in_state(QpState::Error),
            sum(|qp| qp.counters.sends_posted),
            sum(|qp| qp.counters.sends_outstanding()),
            bytes(sum(|qp| traffic_of(qp).1) as f64),
            sum(|qp| qp.counters.received),
            bytes(sum(|qp| qp.counters.received_bytes) as f64),
        );
        let rate = self.rates.map(|rates| rates.of_all(context));
        let _ = writeln!(text, "{}", per_second(rate));
        let bad = [
            ("RNR", sum(|qp| qp.counters.rnr)),
            ("errors", sum(|qp| qp.counters.errors)),
            ("flushed", sum(|qp| qp.counters.flushed)),
        ];
        let bad: Vec<_> = bad.iter().filter(|(_, count)| *count > 0).collect();
        if !bad.is_empty() {
            let said: Vec<_> = bad.iter().map(|(what, n)| format!("{n} {what}")).collect();
            let _ = writeln!(text, "  {}", said.join(", "));
        }
        let cqs = &context.completion_queues;
        let count = |f: fn(&&headworks::inspect::CompletionQueueSnapshot) -> bool| {
            cqs.iter().filter(f).count()
        };
        let unpolled = cqs.iter().map(|cq| cq.counters.unpolled);
        let polled = cqs.iter().map(|cq| cq.counters.polled);
        let _ = writeln!(
            text,
            "  CQs {}: {} polled, {} unpolled; {} armed, {} overrun",
            cqs.len(),
            polled.fold(0, u64::saturating_add),
            unpolled.fold(0, u64::saturating_add),
            count(|cq| cq.armed),
            count(|cq| cq.counters.overrun),
        );
        let srqs = &context.shared_receive_queues;
        if !srqs.is_empty() {
            let waiting = srqs.iter().map(|srq| srq.waiting);
            let posted = srqs.iter().map(|srq| srq.posted);
            let _ = writeln!(
                text,
                "  SRQs {}: {} posted, {} waiting",
                srqs.len(),
                posted.fold(0, u64::saturating_add),
                waiting.fold(0, u64::saturating_add),
            );
        }
        let _ = writeln!(
            text,
            "  regions {}, {}; segments {}, {}",
            context.regions.count,
            bytes(context.regions.bytes as f64),
            context.segments.count,
            bytes(context.segments.bytes as f64),
        );
        if let Some(most) = self.queue_pairs {
            self.queue_pairs(text, context, most);
        }
    }

    /// Appends the busiest queue pairs, one per line.
    fn queue_pairs(&self, text: &mut String, context: &ContextSnapshot, most: usize) {
        let mut pairs: Vec<_> = context.queue_pairs.iter().collect();
        if pairs.is_empty() {
            return;
        }
        let rate = |qp: &QueuePairSnapshot| self.rates.map(|rates| rates.of(context, qp));
        // Sorted by the current rate if it is known, then by the totals.
        pairs.sort_by(|a, b| {
            let now = |qp| rate(qp).map_or(0.0, |rate: Rate| rate.requests);
            let by_rate = now(b).total_cmp(&now(a));
            by_rate.then_with(|| traffic_of(b).cmp(&traffic_of(a)))
        });
        let _ = writeln!(
            text,
            "    {:>8} {:4} {:5} {:28} {:>12} {:>6} {:>10} {:>6} {:>10}",
            "QPN", "TYPE", "STATE", "PEER", "POSTED", "OUT", "BYTES", "RECVS", "RECEIVED"
        );
        for qp in pairs.iter().take(most) {
            let peer = match &qp.peer {
                None => "-".to_owned(),
                Some(peer) => match &peer.at {
                    Some((host, pid)) => format!("{}/{pid}/{}", plain(host), peer.qpn),
                    None => format!("gone/{}", peer.qpn),
                },
            };
            let counters = &qp.counters;
            let _ = writeln!(
                text,
                "    {:>8} {:4} {:5} {peer:28} {:>12} {:>6} {:>10} {:>6} {:>10}{}",
                qp.qpn,
                format!("{:?}", qp.qp_type).to_uppercase(),
                format!("{:?}", qp.state).to_uppercase(),
                counters.sends_posted,
                counters.sends_outstanding(),
                bytes(traffic_of(qp).1 as f64),
                counters.receives_outstanding(),
                counters.received,
                per_second(rate(qp)),
            );
        }
        if pairs.len() > most {
            let _ = writeln!(text, "    and {} more", pairs.len() - most);
        }
    }
}

/// Cuts each line to `width` characters.
pub(super) fn cut(text: &str, width: usize) -> String {
    text.lines()
        .map(|line| match line.char_indices().nth(width) {
            Some((at, _)) => format!("{}\n", &line[..at]),
            None => format!("{line}\n"),
        })
        .collect()
}

/// Returns text that another process wrote, without control characters, which a terminal would obey.
pub(super) fn without_controls(text: &str) -> String {
    let shown = |c: char| if c.is_control() { '\u{fffd}' } else { c };
    text.chars().map(shown).collect()
}

/// Returns the beginning of a name that another process wrote, without control characters.
pub(super) fn plain(text: &str) -> String {
    without_controls(text).chars().take(64).collect()
}

fn per_second(rate: Option<Rate>) -> String {
    match rate {
        None => String::new(),
        Some(rate) => format!("; {:.0} requests/s, {}/s", rate.requests, bytes(rate.bytes)),
    }
}

pub(super) fn uptime(age: Duration) -> String {
    let seconds = age.as_secs();
    let (days, hours, minutes) = (seconds / 86_400, seconds / 3600 % 24, seconds / 60 % 60);
    match seconds {
        0..60 => format!("{seconds} s"),
        60..86_400 => format!("{hours}:{minutes:02}:{:02}", seconds % 60),
        _ => format!("{days} d {hours}:{minutes:02}"),
    }
}

pub(super) fn bytes(count: f64) -> String {
    const UNITS: [&str; 6] = ["B", "KiB", "MiB", "GiB", "TiB", "PiB"];
    let mut unit = 0;
    let mut left = count;
    while left >= 1024.0 && unit + 1 < UNITS.len() {
        left /= 1024.0;
        unit += 1;
    }
    let digits = usize::from(unit > 0);
    format!("{left:.digits$} {}", UNITS[unit])
}

#[cfg(test)]
mod tests {
    use headworks::inspect::UnreadableContext;

    use super::*;

    #[test]
    fn sizes_and_times_are_short() {
        assert_eq!(bytes(1023.0), "1023 B");
        assert_eq!(bytes(1536.0), "1.5 KiB");
        assert_eq!(bytes(u64::MAX as f64), "16384.0 PiB");
        assert_eq!(uptime(Duration::from_secs(59)), "59 s");
        assert_eq!(uptime(Duration::from_secs(3_661)), "1:01:01");
        assert_eq!(uptime(Duration::from_secs(90_061)), "1 d 1:01");
    }

    #[test]
    fn control_characters_are_replaced_and_long_text_cut() {
        assert_eq!(plain("a\x1b[2J\nb"), "a\u{fffd}[2J\u{fffd}b");
        assert_eq!(plain(&"x".repeat(1000)).len(), 64);
    }

    #[test]
    fn contexts_that_cannot_be_read_are_named_or_counted() {
        let drawn = |unreadable: &[UnreadableContext]| {
            let snapshot = RegistrySnapshot {
                unreadable: unreadable.to_vec(),
                ..RegistrySnapshot::default()
            };
            let view = FabricView {
                snapshot: &snapshot,
                rates: None,
                device: &"soft".parse().unwrap(),
                width: 200,
                queue_pairs: None,
            };
            view.drawn()
        };
        let context = |host: Option<&str>, pid, why: &str| UnreadableContext {
            host: host.map(str::to_owned),
            pid,
            why: why.to_owned(),
        };
        assert_eq!(drawn(&[]), "no process has soft open\n");
        let long = "a reason ".repeat(10);
        assert_eq!(
            drawn(&[
                context(None, None, &long),
                context(Some("h1"), Some(7), "it is stopped"),
                context(Some("h2"), None, "no descriptors"),
                context(None, None, "another"),
            ]),
            format!(
                "soft: 0 contexts, 0 queue pairs\n\nh1 pid 7: cannot be inspected: it is stopped\n\n\
                 h2 pid -: cannot be inspected: no descriptors\n\n2 more cannot be read: {long}\n"
            )
        );
    }
}
