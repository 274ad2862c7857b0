//! Watches a daemon: reads its metrics and shows them, with rates since the last sample.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::net::IpAddr;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use anyhow::Context;
use headworks::daemon::config::Metrics;
use headworks::daemon::metrics::{self, Sample};
use headworks::daemon::server::MetricsAt;
use headworks::service::{metrics_of, socket_of};
use serde_json::{Map, Value, json};

use super::scrape::scrape;
use super::text::{bytes, cut, plain, uptime, without_controls};
use crate::args::Top;
use crate::exit_status::bad_input;

/// Returns the path of a daemon's metrics: `path` itself, or the default one of the daemon whose applications attach at
/// `path`.
fn metrics_at(path: PathBuf) -> PathBuf {
    let of_socket = metrics_of(&path);
    if of_socket.exists() { of_socket } else { path }
}

pub(super) fn run(which: &str, args: &Top) -> anyhow::Result<()> {
    let named = std::env::var("HEADWORKS_DAEMON").unwrap_or_default();
    let which = match (which, &*named) {
        ("", "") => "127.0.0.1",
        ("", named) => named,
        (which, _) => which,
    };
    let bare = which
        .strip_prefix('[')
        .and_then(|rest| rest.strip_suffix(']'))
        .unwrap_or(which);
    let address = bare.parse::<IpAddr>().map(|address| address.to_canonical());
    let at = match (address, which.parse()) {
        (Ok(address), _) => MetricsAt::Path(metrics_of(&socket_of(address))),
        (_, Ok(Metrics::At(MetricsAt::Path(path)))) => MetricsAt::Path(metrics_at(path)),
        (_, Ok(Metrics::At(at))) => at,
        _ => {
            return Err(bad_input(format_args!(
                "--daemon {which}: it must be an IP address, a path (with a slash) or IP:PORT"
            )));
        }
    };
    let mut before: Option<(Instant, MetricsSnapshot)> = None;
    super::watch(args, |width, interrupt| {
        let now = Instant::now();
        let look = MetricsSnapshot::of(scrape(&at, interrupt)?)?;
        let earlier = before.as_ref().map(|(then, look)| PreviousMetrics {
            look,
            seconds: (now - *then).as_secs_f64().max(1e-9),
        });
        let text = match args.json {
            true => format!("{}\n", look.json()),
            false => cut(&look.drawn(earlier.as_ref()), width),
        };
        before = Some((now, look));
        Ok(text)
    })
}

/// Shown for a metric or a label that the daemon does not have: it may be of another version.
const ABSENT: &str = "-";

/// Returns a value to show; [`ABSENT`] if it is missing.
fn shown(value: Option<f64>, how: impl FnOnce(f64) -> String) -> String {
    value.map_or_else(|| ABSENT.to_owned(), how)
}

/// Labels of one subject, and its metrics by name.
#[derive(Default)]
struct MetricsRow {
    labels: Vec<(String, String)>,
    values: BTreeMap<String, f64>,
}

impl MetricsRow {
    /// Returns a label as the daemon wrote it; empty if it is missing.
    fn raw_label(&self, name: &str) -> &str {
        let found = self.labels.iter().find(|(label, _)| label == name);
        found.map_or("", |(_, is)| is)
    }

    fn label(&self, name: &str) -> String {
        match self.raw_label(name) {
            "" => ABSENT.to_owned(),
            label => plain(label),
        }
    }

    fn value(&self, name: &str) -> Option<f64> {
        self.values.get(name).copied()
    }

    /// Returns a number to show.
    fn number(&self, name: &str) -> String {
        shown(self.value(name), |value| value.to_string())
    }

    /// Returns a number of bytes to show.
    fn size(&self, name: &str) -> String {
        shown(self.value(name), bytes)
    }

    /// Whether this row is of the same tenant of the daemon as `other`: one user at one socket.
    fn is_of_tenant(&self, other: &Self) -> bool {
        let same = |label| self.raw_label(label) == other.raw_label(label);
        same("user") && same("socket")
    }

    fn json(&self) -> Value {
        let labels = self.labels.iter().map(|(k, v)| (k.clone(), json!(v)));
        let values = self.values.iter().map(|(k, v)| (k.clone(), json!(v)));
        Value::Object(labels.chain(values).collect::<Map<_, _>>())
    }
}

type Rows = BTreeMap<Vec<(String, String)>, MetricsRow>;

/// Metrics of a daemon at one time.
struct MetricsSnapshot {
    daemon: MetricsRow,
    domains: Rows,
    qp_groups: Rows,
    applications: Rows,
}

/// The sample before, and the time since.
struct PreviousMetrics<'a> {
    look: &'a MetricsSnapshot,
    seconds: f64,
}

impl MetricsSnapshot {
    fn of(text: String) -> anyhow::Result<Self> {
        let samples = metrics::parse(&text).context("the daemon's metrics")?;
        let mut look = Self {
            daemon: MetricsRow::default(),
            domains: Rows::new(),
            qp_groups: Rows::new(),
            applications: Rows::new(),
        };
        for Sample {
            name,
            labels,
            value,
        } in samples
        {
            let Some(name) = name.strip_prefix(metrics::PREFIX) else {
                continue;
            };
            let (rows, name) = if let Some(name) = name.strip_prefix("qp_group_") {
                (&mut look.qp_groups, name)
            } else if let Some(name) = name.strip_prefix("application_") {
                (&mut look.applications, name)
            } else if labels.iter().any(|(label, _)| label == "user") {
                (&mut look.domains, name)
            } else {
                look.daemon.labels.extend(labels);
                look.daemon.values.insert(name.to_owned(), value);
                continue;
            };
            let row = rows.entry(labels.clone()).or_insert_with(|| MetricsRow {
                labels,
                ..MetricsRow::default()
            });
            row.values.insert(name.to_owned(), value);
        }
        Ok(look)
    }

    fn json(&self) -> Value {
        let rows = |rows: &Rows| rows.values().map(MetricsRow::json).collect::<Vec<_>>();
        json!({
            "daemon": self.daemon.json(),
            "domains": rows(&self.domains),
            "qp_groups": rows(&self.qp_groups),
            "applications": rows(&self.applications),
        })
    }

    fn drawn(&self, earlier: Option<&PreviousMetrics<'_>>) -> String {
        let mut text = String::new();
        let daemon = &self.daemon;
        let up = shown(daemon.value("uptime_seconds"), |seconds| {
            uptime(Duration::try_from_secs_f64(seconds).unwrap_or_default())
        });
        // Without rows the sum is 0; it is missing if it is missing in one of them.
        let sum = |rows: &Rows, name: &str| {
            let mut values = rows.values().map(|row| row.value(name));
            let sum = values.try_fold(0.0, |sum, value| Some(sum + value?));
            shown(sum, |sum| sum.to_string())
        };
        // Writing to a string does not fail.
        let _ = write!(
            text,
            "{} on {}, up {up}",
            daemon.label("address"),
            daemon.label("device"),
        );
        if let Some(PreviousMetrics { look, seconds }) = earlier {
            let passed = |name| {
                let (now, then) = (daemon.value(name)?, look.daemon.value(name)?);
                Some((now - then).max(0.0) / seconds)
            };
            let whole = |value: f64| format!("{value:.0}");
            let _ = write!(
                text,
                ", {} % of a core, {} sleeps/s",
                shown(passed("cpu_seconds_total"), |cores| whole(cores * 100.0)),
                shown(passed("sleeps_total"), whole),
            );
        }
        let state = match daemon.value("draining") {
            Some(0.0) => "",
            Some(_) => "; DRAINING",
            None => "; draining -",
        };
        let _ = writeln!(
            text,
            ": {} applications, {} connections, {} queue-pair groups, {} queue pairs{state}",
            self.applications.len(),
            sum(&self.domains, "connections"),
            self.qp_groups.len(),
            sum(&self.domains, "queue_pairs"),
        );
        self.host(&mut text);
        for domain in self.domains.values() {
            // The path is shown whole: those of two sockets may begin alike.
            let socket = match domain.raw_label("socket") {
                "" => String::new(),
                path => format!(" at {}", without_controls(path)),
            };
            let _ = writeln!(
                text,
                "\nuser {}{socket}: {} connections, {} queue pairs, {} of {} receives promised, {} of {} used",
                domain.label("user"),
                domain.number("connections"),
                domain.number("queue_pairs"),
                domain.number("receives_promised"),
                domain.number("receives_posted"),
                domain.size("memory_used_bytes"),
                domain.size("memory_allocated_bytes"),
            );
            let huge = match domain.value("pool_huge_bytes") {
                Some(bytes) if bytes > 0.0 => ", in huge pages",
                _ => "",
            };
            let _ = writeln!(
                text,
                "  receive pool: {} of {} free, {} waiting, {} replaced, {} copies, {} resets, {} signals{huge}",
                domain.size("pool_free_bytes"),
                domain.size("pool_bytes"),
                domain.number("pool_waiting"),
                domain.size("pool_replaced_bytes"),
                domain.number("pool_copies_total"),
                domain.number("pool_resets_total"),
                domain.number("pool_signals_total"),
            );
            self.qp_groups_of(&mut text, domain, earlier);
            self.applications_of(&mut text, domain, earlier);
        }
        text
    }

    /// Writes lines about what holds for the whole host, if it is configured.
    fn host(&self, text: &mut String) {
        let daemon = &self.daemon;
        if let Some(lowered) = daemon.value("ecn_lowered") {
            let state = match lowered {
                0.0 => "normal",
                _ => "may be lowered",
            };
            let last = match daemon.value("ecn_failing") {
                Some(failing) if failing > 0.0 => ", THE LAST ONE TOO",
                _ => "",
            };
            let _ = writeln!(
                text,
                "ECN threshold {state}: {} commands run, {} failed{last}",
                daemon.number("ecn_runs_total"),
                daemon.number("ecn_failures_total"),
            );
        }
        if let Some(part) = daemon.value("cache_part") {
            let state = match part {
                0.0 => "NOT IN FORCE",
                _ => "in force",
            };
            let _ = writeln!(
                text,
                "part of the cache {state}: mask {}, group {}",
                daemon.label("l3"),
                daemon.label("cache_group"),
            );
        }
    }

    fn qp_groups_of(
        &self,
        text: &mut String,
        domain: &MetricsRow,
        earlier: Option<&PreviousMetrics<'_>>,
    ) {
        let own: Vec<_> = of_tenant(&self.qp_groups, domain).collect();
        if own.is_empty() {
            return;
        }
        let _ = writeln!(
            text,
            "  {:24} {:>8} {:5} {:>11} {:>7} {:>8} {:>14} {:>14}",
            "PEER HOST",
            "DOMAIN",
            "STATE",
            "CONNECTIONS",
            "CREDIT",
            "PROMISED",
            "FRAMES SENT",
            "CAME"
        );
        for (labels, row) in own {
            let rate = |name| rate(row, labels, name, earlier, |look| &look.qp_groups);
            let state = match row.value("up") {
                Some(1.0) => "up",
                Some(_) => "down",
                None => ABSENT,
            };
            let _ = writeln!(
                text,
                "  {:24} {:>8} {state:5} {:>11} {:>7} {:>8} {:>14} {:>14}",
                row.label("host"),
                row.label("peer_domain"),
                row.number("connections"),
                row.number("credit"),
                row.number("promised"),
                rate("sent_frames_total").shown(|count| format!("{count:.0}")),
                rate("received_frames_total").shown(|count| format!("{count:.0}")),
            );
        }
    }

    fn applications_of(
        &self,
        text: &mut String,
        domain: &MetricsRow,
        earlier: Option<&PreviousMetrics<'_>>,
    ) {
        let mut own: Vec<_> = of_tenant(&self.applications, domain).collect();
        if own.is_empty() {
            return;
        }
        let traffic_of = |row: &MetricsRow| {
            let both = ["sent_bytes_total", "received_bytes_total"];
            let sum = both.map(|name| row.value(name).unwrap_or_default());
            sum[0] + sum[1]
        };
        own.sort_by(|(_, one), (_, other)| traffic_of(other).total_cmp(&traffic_of(one)));
        let _ = writeln!(
            text,
            "  {:>8} {:24} {:>11} {:>6} {:>6} {:>9} {:>6} {:>14} {:>14} {:>10} {:>10}",
            "PID",
            "NAME",
            "CONNECTIONS",
            "DIRECT",
            "PORTS",
            "OPENED",
            "RESET",
            "SENT",
            "RECEIVED",
            "POOL",
            "MEMORY"
        );
        for (labels, row) in own {
            let rate = |name| rate(row, labels, name, earlier, |look| &look.applications);
            let _ = writeln!(
                text,
                "  {:>8} {:24} {:>11} {:>6} {:>6} {:>9} {:>6} {:>14} {:>14} {:>10} {:>10}",
                row.label("pid"),
                row.label("name"),
                row.number("connections"),
                row.number("direct_connections"),
                row.number("listeners"),
                row.number("opened_connections_total"),
                row.number("reset_connections_total"),
                rate("sent_bytes_total").shown(bytes),
                rate("received_bytes_total").shown(bytes),
                row.size("pool_bytes"),
                row.size("memory_bytes"),
            );
        }
    }
}

type Labels = Vec<(String, String)>;

/// Returns the rows of the tenant that a domain belongs to.
fn of_tenant<'a>(
    rows: &'a Rows,
    domain: &'a MetricsRow,
) -> impl Iterator<Item = (&'a Labels, &'a MetricsRow)> {
    rows.iter().filter(|(_, row)| row.is_of_tenant(domain))
}

/// A counter: the total, or, if there is an earlier sample, the rate since then.
enum CounterKind {
    Absent,
    InAll(f64),
    PerSecond(f64),
}

impl CounterKind {
    fn shown(&self, how: impl Fn(f64) -> String) -> String {
        match self {
            Self::Absent => ABSENT.to_owned(),
            Self::InAll(count) => how(*count),
            Self::PerSecond(count) => format!("{}/s", how(*count)),
        }
    }
}

fn rate(
    row: &MetricsRow,
    labels: &Labels,
    name: &str,
    earlier: Option<&PreviousMetrics<'_>>,
    of: impl Fn(&MetricsSnapshot) -> &Rows,
) -> CounterKind {
    let Some(now) = row.value(name) else {
        return CounterKind::Absent;
    };
    match earlier {
        None => CounterKind::InAll(now),
        Some(PreviousMetrics { look, seconds }) => {
            // A subject that the earlier sample did not have began at zero.
            let then = of(look).get(labels).and_then(|row| row.value(name));
            let passed = now - then.unwrap_or_default();
            CounterKind::PerSecond(passed.max(0.0) / seconds)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SAID: &str = "headworks_info{address=\"127.0.0.1\",device=\"soft\"} 1\n\
        headworks_uptime_seconds 61\n\
        headworks_cpu_seconds_total 2\n\
        headworks_sleeps_total 7\n\
        headworks_draining 0\n\
        headworks_queue_pairs{user=\"7\",socket=\"/a\"} 2\n\
        headworks_connections{user=\"7\",socket=\"/a\"} 3\n\
        headworks_qp_group_up{user=\"7\",socket=\"/a\",host=\"127.0.0.2\",peer_domain=\"8\"} 1\n\
        headworks_application_sent_bytes_total{user=\"7\",socket=\"/a\",pid=\"9\",session=\"1\",name=\"kv\"} 2048\n";

    fn drawn(text: &str) -> String {
        MetricsSnapshot::of(text.to_owned()).unwrap().drawn(None)
    }

    #[test]
    fn daemon_metrics_are_shown_by_application_and_queue_pair_group() {
        let look = MetricsSnapshot::of(SAID.to_owned()).unwrap();
        let drawn = look.drawn(None);
        let first = drawn.lines().next().unwrap();
        assert_eq!(
            first,
            "127.0.0.1 on soft, up 0:01:01: 1 applications, 3 connections, 1 queue-pair groups, 2 queue pairs"
        );
        assert!(drawn.contains("127.0.0.2"), "{drawn}");
        assert!(drawn.contains("2.0 KiB"), "{drawn}");
        // Half a second later it has sent twice as many bytes.
        let later = MetricsSnapshot::of(SAID.replace("2048", "4096")).unwrap();
        let earlier = PreviousMetrics {
            look: &look,
            seconds: 0.5,
        };
        let drawn = later.drawn(Some(&earlier));
        assert!(drawn.contains("4.0 KiB/s"), "{drawn}");
        assert!(drawn.contains("0 sleeps/s"), "{drawn}");
        assert_eq!(later.json()["qp_groups"][0]["host"], "127.0.0.2");
    }

    #[test]
    fn metrics_that_a_daemon_does_not_have_are_shown_as_absent() {
        let words = |text: &str, begin: &str| -> Vec<String> {
            let drawn = drawn(text);
            let line = drawn.lines().find(|line| line.trim().starts_with(begin));
            let words = line.expect("a line").split_whitespace();
            words.map(str::to_owned).collect()
        };
        assert_eq!(
            words(SAID, "127.0.0.2"),
            ["127.0.0.2", "8", "up", "-", "-", "-", "-", "-"]
        );
        let down = SAID.replace("peer_domain=\"8\"} 1", "peer_domain=\"8\"} 0");
        assert_eq!(words(&down, "127.0.0.2")[2], "down");
        let other = SAID.replace("qp_group_up", "qp_group_credit");
        assert_eq!(words(&other, "127.0.0.2")[2], "-");
        assert_eq!(
            words(SAID, "9 kv"),
            [
                "9", "kv", "-", "-", "-", "-", "-", "2.0", "KiB", "-", "-", "-"
            ]
        );
        let text =
            drawn("headworks_info{address=\"127.0.0.1\"} 1\nheadworks_peers{user=\"7\"} 1\n");
        assert_eq!(
            text,
            "127.0.0.1 on -, up -: 0 applications, - connections, 0 queue-pair groups, - queue pairs; draining -\n\n\
             user 7: - connections, - queue pairs, - of - receives promised, - of - used\n  \
             receive pool: - of - free, - waiting, - replaced, - copies, - resets, - signals\n"
        );
    }

    #[test]
    fn what_holds_for_the_host_is_shown_if_it_is_configured() {
        assert!(!drawn(SAID).contains("ECN") && !drawn(SAID).contains("cache"));
        let more = "headworks_ecn_lowered 1\nheadworks_ecn_failing 0\nheadworks_ecn_runs_total 3\n\
            headworks_ecn_failures_total 1\n\
            headworks_cache_part{cache_group=\"own\",l3=\"ff0\"} 1\n\
            headworks_pool_huge_bytes{user=\"7\",socket=\"/a\"} 4096\n";
        let text = drawn(&(SAID.to_owned() + more));
        let lines: Vec<&str> = text.lines().collect();
        assert_eq!(
            lines[1],
            "ECN threshold may be lowered: 3 commands run, 1 failed"
        );
        assert_eq!(lines[2], "part of the cache in force: mask ff0, group own");
        assert!(text.contains("- signals, in huge pages\n"), "{text}");
        let other = more
            .replace("lowered 1", "lowered 0")
            .replace("failing 0", "failing 1");
        let other = other.replace("l3=\"ff0\"} 1", "l3=\"ff0\"} 0");
        let text = drawn(&(SAID.to_owned() + &other));
        let lines: Vec<&str> = text.lines().collect();
        assert_eq!(
            lines[1],
            "ECN threshold normal: 3 commands run, 1 failed, THE LAST ONE TOO"
        );
        assert_eq!(
            lines[2],
            "part of the cache NOT IN FORCE: mask ff0, group own"
        );
    }

    #[test]
    fn tenants_of_one_user_at_two_sockets_are_shown_apart() {
        let at_b = SAID.lines().filter(|line| line.contains("user=\"7\""));
        let at_b = at_b.map(|line| line.replace("/a", "/b").replace("\"kv\"", "\"db\"") + "\n");
        let text = drawn(&(SAID.to_owned() + &at_b.collect::<String>()));
        let (a, b) = text.split_once("user 7 at /b: ").expect("a tenant");
        assert!(a.contains("user 7 at /a: "), "{text}");
        assert!(a.contains(" kv ") && !a.contains(" db "), "{text}");
        assert!(b.contains(" db ") && !b.contains(" kv "), "{text}");
        for of in [a, b] {
            assert_eq!(of.matches("127.0.0.2").count(), 1, "{text}");
        }
    }
}
