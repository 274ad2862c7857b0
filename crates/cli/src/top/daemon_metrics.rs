//! Watches a daemon: reads its metrics and shows them, with rates since the last sample.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::io::{Read, Write};
use std::net::{IpAddr, TcpStream};
use std::os::unix::net::UnixStream;
use std::time::{Duration, Instant};

use anyhow::{Context, bail};
use headworks::daemon::config::Metrics;
use headworks::daemon::metrics::{self, Sample};
use headworks::daemon::server::MetricsAt;
use headworks::service::{metrics_of, socket_of};
use serde_json::{Map, Value, json};

use super::text::{bytes, cut, plain, uptime};
use crate::args::Top;
use crate::exit_status::bad_input;

/// Longest time that a daemon may take to answer.
const PATIENCE: Duration = Duration::from_secs(5);
/// Longest answer that is read, in bytes. No sane number of applications needs more.
const ANSWER_MAX: u64 = 64 << 20;

pub(super) fn run(which: &str, args: &Top) -> anyhow::Result<()> {
    let bare = which
        .strip_prefix('[')
        .and_then(|rest| rest.strip_suffix(']'))
        .unwrap_or(which);
    let address = bare.parse::<IpAddr>().map(|address| address.to_canonical());
    let at = match (address, which.parse()) {
        (Ok(address), _) => MetricsAt::Path(metrics_of(&socket_of(address))),
        (_, Ok(Metrics::At(at))) => at,
        _ => {
            return Err(bad_input(format_args!(
                "--daemon {which}: it must be an IP address, a path (with a slash) or IP:PORT"
            )));
        }
    };
    let mut before: Option<(Instant, MetricsSnapshot)> = None;
    super::watch(args, |width| {
        let now = Instant::now();
        let look = MetricsSnapshot::of(scrape(&at)?)?;
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

/// Requests a daemon's metrics.
pub(crate) fn scrape(at: &MetricsAt) -> anyhow::Result<String> {
    let nobody = || format!("no daemon serves metrics at {at}");
    match at {
        MetricsAt::Path(path) => {
            let stream = UnixStream::connect(path).with_context(nobody)?;
            stream.set_read_timeout(Some(PATIENCE))?;
            ask(stream)
        }
        MetricsAt::Address(address) => {
            let stream = TcpStream::connect_timeout(address, PATIENCE).with_context(nobody)?;
            stream.set_read_timeout(Some(PATIENCE))?;
            ask(stream)
        }
    }
    .with_context(|| format!("{at} does not answer like a daemon"))
}

fn ask(mut stream: impl Read + Write) -> anyhow::Result<String> {
    stream.write_all(b"GET /metrics HTTP/1.0\r\n\r\n")?;
    let mut answer = String::new();
    stream.take(ANSWER_MAX).read_to_string(&mut answer)?;
    let Some((head, body)) = answer.split_once("\r\n\r\n") else {
        bail!("no HTTP answer");
    };
    let status = head.lines().next().unwrap_or_default();
    if status.split(' ').nth(1) != Some("200") {
        bail!("{status:?}");
    }
    Ok(body.to_owned())
}

/// Labels of one subject, and its metrics by name.
#[derive(Default)]
struct MetricsRow {
    labels: Vec<(String, String)>,
    values: BTreeMap<String, f64>,
}

impl MetricsRow {
    fn label(&self, name: &str) -> String {
        let found = self.labels.iter().find(|(label, _)| label == name);
        plain(found.map_or("", |(_, is)| is))
    }

    fn value(&self, name: &str) -> f64 {
        self.values.get(name).copied().unwrap_or(0.0)
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
        let up = Duration::try_from_secs_f64(daemon.value("uptime_seconds")).unwrap_or_default();
        let sum = |rows: &Rows, name: &str| {
            let values = rows.values().map(|row| row.value(name));
            // The sum of no values would be -0.
            values.fold(0.0, |sum, value| sum + value)
        };
        // Writing to a string does not fail.
        let _ = write!(
            text,
            "{} on {}, up {}",
            daemon.label("address"),
            daemon.label("device"),
            uptime(up)
        );
        if let Some(PreviousMetrics { look, seconds }) = earlier {
            let passed = |name| (daemon.value(name) - look.daemon.value(name)).max(0.0) / seconds;
            let _ = write!(
                text,
                ", {:.0} % of a core, {:.0} sleeps/s",
                passed("cpu_seconds_total") * 100.0,
                passed("sleeps_total")
            );
        }
        let state = match daemon.value("draining") {
            0.0 => "",
            _ => "; DRAINING",
        };
        let _ = writeln!(
            text,
            ": {} applications, {} connections, {} queue-pair groups, {} queue pairs{state}",
            self.applications.len(),
            sum(&self.domains, "connections"),
            self.qp_groups.len(),
            sum(&self.domains, "queue_pairs"),
        );
        for domain in self.domains.values() {
            let _ = writeln!(
                text,
                "\nuser {}: {} connections, {} queue pairs, {} of {} receives promised, {} of {} used",
                domain.label("user"),
                domain.value("connections"),
                domain.value("queue_pairs"),
                domain.value("receives_promised"),
                domain.value("receives_posted"),
                bytes(domain.value("memory_used_bytes")),
                bytes(domain.value("memory_allocated_bytes")),
            );
            let user = domain.label("user");
            self.qp_groups_of(&mut text, &user, earlier);
            self.applications_of(&mut text, &user, earlier);
        }
        text
    }

    fn qp_groups_of(&self, text: &mut String, user: &str, earlier: Option<&PreviousMetrics<'_>>) {
        let own: Vec<_> = of_user(&self.qp_groups, user).collect();
        if own.is_empty() {
            return;
        }
        let _ = writeln!(
            text,
            "  {:24} {:>8} {:5} {:>11} {:>7} {:>8} {:>14} {:>14}",
            "PEER HOST",
            "USER",
            "STATE",
            "CONNECTIONS",
            "CREDIT",
            "PROMISED",
            "FRAMES SENT",
            "CAME"
        );
        for (labels, row) in own {
            let rate = |name| rate(row, labels, name, earlier, |look| &look.qp_groups);
            let _ = writeln!(
                text,
                "  {:24} {:>8} {:5} {:>11} {:>7} {:>8} {:>14} {:>14}",
                row.label("host"),
                row.label("peer_user"),
                if row.value("up") == 1.0 { "up" } else { "down" },
                row.value("connections"),
                row.value("credit"),
                row.value("promised"),
                rate("sent_frames_total").shown(|count| format!("{count:.0}")),
                rate("received_frames_total").shown(|count| format!("{count:.0}")),
            );
        }
    }

    fn applications_of(
        &self,
        text: &mut String,
        user: &str,
        earlier: Option<&PreviousMetrics<'_>>,
    ) {
        let mut own: Vec<_> = of_user(&self.applications, user).collect();
        if own.is_empty() {
            return;
        }
        let traffic_of =
            |row: &MetricsRow| row.value("sent_bytes_total") + row.value("received_bytes_total");
        own.sort_by(|(_, one), (_, other)| traffic_of(other).total_cmp(&traffic_of(one)));
        let _ = writeln!(
            text,
            "  {:>8} {:24} {:>11} {:>6} {:>9} {:>6} {:>14} {:>14} {:>10}",
            "PID", "NAME", "CONNECTIONS", "PORTS", "OPENED", "RESET", "SENT", "RECEIVED", "MEMORY"
        );
        for (labels, row) in own {
            let rate = |name| rate(row, labels, name, earlier, |look| &look.applications);
            let _ = writeln!(
                text,
                "  {:>8} {:24} {:>11} {:>6} {:>9} {:>6} {:>14} {:>14} {:>10}",
                row.label("pid"),
                row.label("name"),
                row.value("connections"),
                row.value("listeners"),
                row.value("opened_connections_total"),
                row.value("reset_connections_total"),
                rate("sent_bytes_total").shown(bytes),
                rate("received_bytes_total").shown(bytes),
                bytes(row.value("memory_bytes")),
            );
        }
    }
}

type Labels = Vec<(String, String)>;

fn of_user<'a>(rows: &'a Rows, user: &str) -> impl Iterator<Item = (&'a Labels, &'a MetricsRow)> {
    rows.iter()
        .filter(move |(_, row)| row.label("user") == user)
}

/// A counter: the total, or, if there is an earlier sample, the rate since then.
enum CounterKind {
    InAll(f64),
    PerSecond(f64),
}

impl CounterKind {
    fn shown(&self, how: impl Fn(f64) -> String) -> String {
        match self {
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
    let now = row.value(name);
    match earlier {
        None => CounterKind::InAll(now),
        Some(PreviousMetrics { look, seconds }) => {
            let then = of(look).get(labels).map_or(0.0, |row| row.value(name));
            CounterKind::PerSecond((now - then).max(0.0) / seconds)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SAID: &str = "headworks_info{address=\"127.0.0.1\",device=\"soft\"} 1\n\
        headworks_uptime_seconds 61\n\
        headworks_queue_pairs{user=\"7\"} 2\n\
        headworks_connections{user=\"7\"} 3\n\
        headworks_qp_group_up{user=\"7\",host=\"127.0.0.2\",peer_user=\"8\"} 1\n\
        headworks_application_sent_bytes_total{user=\"7\",pid=\"9\",session=\"1\",name=\"kv\"} 2048\n";

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
}
