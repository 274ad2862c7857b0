//! Formats a [`Snapshot`] in Prometheus's text format (version 0.0.4), and parses that format: pure.

use std::fmt::Write;

use headworks_verbs::Duration;

use crate::snapshot::{
    ApplicationSnapshot, DomainSnapshot, EcnSnapshot, PoolSnapshot, QpGroupSnapshot, Snapshot,
};

/// Facts about the daemon's process, which the core does not know.
#[derive(Clone, Debug, PartialEq)]
pub struct ProcessMetrics {
    /// The device's name.
    pub device: String,
    /// How long the daemon has served.
    pub up: Duration,
    /// Processor time that the process has used.
    pub cpu: Duration,
    /// How often the daemon went to sleep.
    pub sleeps: u64,
    /// Paths of the sockets that applications attach at.
    pub sockets: Vec<String>,
}

/// Returns the metrics of a daemon in Prometheus's text format.
pub fn text(snapshot: &Snapshot, process: &ProcessMetrics) -> String {
    let mut text = MetricsText::default();
    let address = snapshot.address.to_string();
    text.metric("info", GAUGE, "The address served, and the device.")
        .row(&[("address", &address), ("device", &process.device)], 1.0);
    text.metric("draining", GAUGE, "1 while the daemon is draining.")
        .row(&[], f64::from(u8::from(snapshot.is_draining)));
    text.metric("uptime_seconds", GAUGE, "How long the daemon has served.")
        .row(&[], process.up.as_secs_f64());
    text.metric("cpu_seconds_total", COUNTER, "Processor time used.")
        .row(&[], process.cpu.as_secs_f64());
    let help = "How often the daemon went to sleep.";
    text.metric("sleeps_total", COUNTER, help)
        .row(&[], process.sleeps as f64);
    text.metric("peers", GAUGE, "Other hosts whose daemons are known.")
        .row(&[], snapshot.peers.len() as f64);
    of_host(&mut text, snapshot);
    of_domains(&mut text, snapshot, process);
    of_pools(&mut text, snapshot, process);
    of_group(&mut text, snapshot, process);
    of_applications(&mut text, snapshot, process);
    text.0
}

fn of_host(text: &mut MetricsText, snapshot: &Snapshot) {
    let columns: [Column<EcnSnapshot>; 4] = [
        (
            "ecn_lowered",
            GAUGE,
            "1 while the RNIC's threshold for congestion marks may be lowered: no restore succeeded since the start or the last lower.",
            |of| of.is_lowered.into(),
        ),
        (
            "ecn_failing",
            GAUGE,
            "1 if the last command for the threshold failed.",
            |of| of.is_failing.into(),
        ),
        (
            "ecn_runs_total",
            COUNTER,
            "Times that a command for the threshold was run.",
            |of| of.runs as f64,
        ),
        (
            "ecn_failures_total",
            COUNTER,
            "Times that such a command failed.",
            |of| of.failures as f64,
        ),
    ];
    if let Some(ecn) = &snapshot.ecn {
        text.table(&columns, &[(Vec::new(), ecn)]);
    }
    if let Some(cache) = &snapshot.cache {
        let help = "1 if the daemon's threads have their part of the last-level cache.";
        let mask = format!("{:x}", cache.mask);
        text.metric("cache_part", GAUGE, help).row(
            &[("cache_group", &cache.group), ("l3", &mask)],
            cache.is_in_force.into(),
        );
    }
}

const GAUGE: &str = "gauge";
const COUNTER: &str = "counter";

/// Metric of a table: its name, type and help text, and a function that reads its value from a row's subject.
type Column<T> = (&'static str, &'static str, &'static str, fn(&T) -> f64);

fn of_domains(text: &mut MetricsText, snapshot: &Snapshot, process: &ProcessMetrics) {
    let columns: [Column<crate::ObjectCounts>; 6] = [
        ("queue_pairs", GAUGE, "Queue pairs.", |of| {
            of.queue_pairs as f64
        }),
        ("connections", GAUGE, "Ends of connections.", |of| {
            of.connections as f64
        }),
        (
            "receives_posted",
            GAUGE,
            "Receives that are posted or can be.",
            |of| of.receives.into(),
        ),
        (
            "receives_promised",
            GAUGE,
            "Receives that are promised to queue-pair groups.",
            |of| of.promised.into(),
        ),
        (
            "memory_used_bytes",
            GAUGE,
            "Memory shared with applications that is in use.",
            |of| of.in_use as f64,
        ),
        (
            "memory_allocated_bytes",
            GAUGE,
            "Memory shared with applications.",
            |of| of.allocated as f64,
        ),
    ];
    let rows = snapshot.domains.iter();
    let rows = rows.map(|of| (of_tenant(of, process).to_vec(), &of.object_counts));
    text.table(&columns, &rows.collect::<Vec<_>>());
}

fn of_pools(text: &mut MetricsText, snapshot: &Snapshot, process: &ProcessMetrics) {
    let columns: [Column<PoolSnapshot>; 11] = [
        ("pool_bytes", GAUGE, "Bytes of the receive pool.", |of| {
            of.bytes as f64
        }),
        (
            "pool_free_bytes",
            GAUGE,
            "Bytes of the receive pool that are free.",
            |of| of.free as f64,
        ),
        (
            "pool_replaced_bytes",
            GAUGE,
            "Bytes of late extents that other memory replaces.",
            |of| of.replaced as f64,
        ),
        (
            "pool_waiting",
            GAUGE,
            "Connections that wait for memory of the receive pool.",
            |of| of.waiting.iter().sum::<usize>() as f64,
        ),
        (
            "pool_reads_bytes",
            GAUGE,
            "Bytes that are being read into the receive pool.",
            |of| of.read_bytes as f64,
        ),
        (
            "pool_replacements_total",
            COUNTER,
            "Late extents that were replaced.",
            |of| of.replacements as f64,
        ),
        (
            "pool_copies_total",
            COUNTER,
            "Times that an application's bytes were copied out of the receive pool.",
            |of| of.copies as f64,
        ),
        (
            "pool_resets_total",
            COUNTER,
            "Times that connections of an application were reset because it kept memory of the receive pool.",
            |of| of.resets as f64,
        ),
        (
            "pool_signals_total",
            COUNTER,
            "Signals to other hosts to send more slowly.",
            |of| of.signals as f64,
        ),
        (
            "pool_huge_bytes",
            GAUGE,
            "Bytes of the receive pool's memory that lie in reserved huge pages.",
            |of| of.huge as f64,
        ),
        (
            "pool_touched_bytes_total",
            COUNTER,
            "Bytes of the receive pool that were read so that they stay in the cache.",
            |of| of.touched as f64,
        ),
    ];
    let rows = snapshot.domains.iter();
    let rows = rows.map(|of| (of_tenant(of, process).to_vec(), &of.pool));
    text.table(&columns, &rows.collect::<Vec<_>>());
}

fn of_group<'s>(text: &mut MetricsText, snapshot: &'s Snapshot, process: &ProcessMetrics) {
    let columns: [Column<QpGroupSnapshot>; 10] = [
        (
            "qp_group_up",
            GAUGE,
            "1 if a queue-pair group's queue pairs are connected.",
            |of| of.is_up.into(),
        ),
        (
            "qp_group_connections",
            GAUGE,
            "Ends of connections on a queue-pair group.",
            |of| of.connections as f64,
        ),
        (
            "qp_group_credit",
            GAUGE,
            "Frames that a queue-pair group may send before it is promised more receives.",
            |of| of.credit as f64,
        ),
        (
            "qp_group_promised",
            GAUGE,
            "Receives that the other side was promised and has not used.",
            |of| of.promised as f64,
        ),
        (
            "qp_group_sent_frames_total",
            COUNTER,
            "Frames sent on a queue-pair group.",
            |of| of.sent as f64,
        ),
        (
            "qp_group_received_frames_total",
            COUNTER,
            "Frames received on a queue-pair group.",
            |of| of.came as f64,
        ),
        (
            "qp_group_reads_total",
            COUNTER,
            "Pieces of streams that were read from the other host's memory.",
            |of| of.reads as f64,
        ),
        (
            "qp_group_announced_total",
            COUNTER,
            "Transfers that were announced to the other host, which reads them.",
            |of| of.announced as f64,
        ),
        (
            "qp_group_signals_sent_total",
            COUNTER,
            "Signals to the other host to send more slowly.",
            |of| of.signals.0 as f64,
        ),
        (
            "qp_group_signals_received_total",
            COUNTER,
            "Signals of the other host to send more slowly.",
            |of| of.signals.1 as f64,
        ),
    ];
    let groups = |of: &'s DomainSnapshot| of.groups.iter().map(move |group| (of, group));
    let rows = snapshot.domains.iter().flat_map(groups);
    let rows = rows.map(|(of, group)| {
        let host = group
            .host
            .map_or_else(|| "gone".to_owned(), |host| host.to_string());
        let labels = [("host", host), ("peer_domain", group.domain.to_string())];
        ([&of_tenant(of, process)[..], &labels].concat(), group)
    });
    text.table(&columns, &rows.collect::<Vec<_>>());
}

fn of_applications<'s>(text: &mut MetricsText, snapshot: &'s Snapshot, process: &ProcessMetrics) {
    let columns: [Column<ApplicationSnapshot>; 14] = [
        (
            "application_connections",
            GAUGE,
            "Ends of connections that an application has.",
            |of| of.connections as f64,
        ),
        (
            "application_direct_connections",
            GAUGE,
            "Ends of connections of an application that do not go through the daemons.",
            |of| of.direct as f64,
        ),
        (
            "application_listeners",
            GAUGE,
            "Ports that an application listens at.",
            |of| of.listeners as f64,
        ),
        (
            "application_opened_connections_total",
            COUNTER,
            "Connections that an application made or accepted.",
            |of| of.traffic.opened as f64,
        ),
        (
            "application_opened_direct_connections_total",
            COUNTER,
            "Connections that an application made or accepted and that do not go through the daemons.",
            |of| of.traffic.direct as f64,
        ),
        (
            "application_reset_connections_total",
            COUNTER,
            "Connections of an application that were reset.",
            |of| of.traffic.reset as f64,
        ),
        (
            "application_sent_bytes_total",
            COUNTER,
            "Bytes of streams that an application sent.",
            |of| of.traffic.sent as f64,
        ),
        (
            "application_received_bytes_total",
            COUNTER,
            "Bytes of streams received for an application.",
            |of| of.traffic.received as f64,
        ),
        (
            "application_pooled_bytes_total",
            COUNTER,
            "Bytes of streams that were read into the receive pool for an application.",
            |of| of.traffic.pooled as f64,
        ),
        (
            "application_pool_bytes",
            GAUGE,
            "Bytes of the receive pool that an application holds.",
            |of| of.pool_held.0 as f64,
        ),
        (
            "application_pool_late_bytes",
            GAUGE,
            "Bytes of the receive pool that an application has held for long.",
            |of| of.pool_held.1 as f64,
        ),
        (
            "application_copied_out_bytes_total",
            COUNTER,
            "Bytes copied out of the receive pool because an application did not read them.",
            |of| of.traffic.copied_out as f64,
        ),
        (
            "application_beside_pool_bytes_total",
            COUNTER,
            "Bytes read into other memory than the receive pool's, which had none for long.",
            |of| of.traffic.beside_pool as f64,
        ),
        (
            "application_memory_bytes",
            GAUGE,
            "Shared memory that an application uses.",
            |of| of.in_use as f64,
        ),
    ];
    let applications = |of: &'s DomainSnapshot| of.applications.iter().map(move |one| (of, one));
    let rows = snapshot.domains.iter().flat_map(applications);
    let rows = rows.map(|(of, application)| {
        let pid = application.pid.map_or(String::new(), |pid| pid.to_string());
        let labels = [
            ("pid", pid),
            ("session", application.session.0.to_string()),
            ("name", application.name.clone()),
        ];
        ([&of_tenant(of, process)[..], &labels].concat(), application)
    });
    text.table(&columns, &rows.collect::<Vec<_>>());
}

/// Returns the labels of a domain's tenant.
fn of_tenant(of: &DomainSnapshot, process: &ProcessMetrics) -> [(&'static str, String); 2] {
    let socket = process.sockets.get(usize::from(of.socket));
    [
        ("user", of.user.to_string()),
        ("socket", socket.cloned().unwrap_or_default()),
    ]
}

/// Prefix of all metric names.
pub const PREFIX: &str = "headworks_";

#[derive(Default)]
struct MetricsText(String);

/// Row of a table: its labels and its subject.
type Row<'s, T> = (Vec<(&'static str, String)>, &'s T);

impl MetricsText {
    /// Writes metrics that have the same subjects.
    fn table<T>(&mut self, columns: &[Column<T>], rows: &[Row<'_, T>]) {
        for (name, kind, help, value) in columns {
            let mut metric = self.metric(name, kind, help);
            for (labels, of) in rows {
                let labels: Vec<_> = labels.iter().map(|(name, is)| (*name, &**is)).collect();
                metric.row(&labels, value(of));
            }
        }
    }

    fn metric<'t>(&'t mut self, name: &'static str, kind: &str, help: &str) -> Metric<'t> {
        // Writing to a string does not fail.
        let _ = writeln!(self.0, "# HELP {PREFIX}{name} {help}");
        let _ = writeln!(self.0, "# TYPE {PREFIX}{name} {kind}");
        Metric {
            text: &mut self.0,
            name,
        }
    }
}

struct Metric<'t> {
    text: &'t mut String,
    name: &'static str,
}

impl Metric<'_> {
    fn row(&mut self, labels: &[(&str, &str)], value: f64) {
        let _ = write!(self.text, "{PREFIX}{}", self.name);
        for (at, (label, is)) in labels.iter().enumerate() {
            let before = if at == 0 { '{' } else { ',' };
            let _ = write!(self.text, "{before}{label}=\"");
            for c in is.chars() {
                match c {
                    '\\' => self.text.push_str("\\\\"),
                    '"' => self.text.push_str("\\\""),
                    '\n' => self.text.push_str("\\n"),
                    c => self.text.push(c),
                }
            }
            self.text.push('"');
        }
        if !labels.is_empty() {
            self.text.push('}');
        }
        let _ = writeln!(self.text, " {value}");
    }
}

/// A line of the text format: one value of a metric.
#[derive(Clone, Debug, PartialEq)]
pub struct Sample {
    /// Name of the metric.
    pub name: String,
    /// Its labels, in order.
    pub labels: Vec<(String, String)>,
    /// Value of the metric with these labels.
    pub value: f64,
}

impl Sample {
    /// Returns the value of a label, or an empty text if the sample does not have it.
    pub fn label(&self, name: &str) -> &str {
        let found = self.labels.iter().find(|(label, _)| label == name);
        found.map_or("", |(_, is)| is)
    }
}

/// Error: the text is not in the format.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("line {line} is not a metric in text format")]
pub struct MetricsParseError {
    /// Line number, starting at 1.
    pub line: usize,
}

/// Parses text in the format, as far as [`text`] uses the format.
///
/// # Errors
///
/// [`MetricsParseError`]: a line is malformed.
pub fn parse(text: &str) -> Result<Vec<Sample>, MetricsParseError> {
    let lines = text.split('\n').enumerate();
    let samples = lines.filter(|(_, line)| !line.is_empty() && !line.starts_with('#'));
    let samples = samples.map(|(at, line)| sample(line).ok_or(MetricsParseError { line: at + 1 }));
    samples.collect()
}

fn sample(line: &str) -> Option<Sample> {
    let end = line.find(['{', ' '])?;
    let (name, mut rest) = line.split_at(end);
    let mut labels = Vec::new();
    if let Some(inside) = rest.strip_prefix('{') {
        rest = inside;
        while !rest.starts_with('}') {
            let (label, behind) = rest.split_once("=\"")?;
            let (is, behind) = quoted(behind)?;
            labels.push((label.to_owned(), is));
            rest = behind.strip_prefix(',').unwrap_or(behind);
        }
        rest = &rest[1..];
    }
    Some(Sample {
        name: name.to_owned(),
        labels,
        value: rest.trim_ascii().parse().ok()?,
    })
}

/// Splits a quoted label value at its closing quote. Returns the unescaped value and the text after the
/// quote.
fn quoted(text: &str) -> Option<(String, &str)> {
    let mut is = String::new();
    let mut chars = text.char_indices();
    loop {
        match chars.next()? {
            (at, '"') => return Some((is, &text[at + 1..])),
            (_, '\\') => is.push(match chars.next()?.1 {
                'n' => '\n',
                c => c,
            }),
            (_, c) => is.push(c),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ids::SessionId;
    use crate::snapshot::{CacheSnapshot, DomainSnapshot, ObjectCounts, Traffic};
    use proptest::prelude::*;

    fn snapshot(name: &str, sent: u64) -> Snapshot {
        Snapshot {
            address: "127.0.0.1".parse().unwrap(),
            is_draining: true,
            ecn: Some(EcnSnapshot {
                is_lowered: true,
                is_failing: false,
                runs: 5,
                failures: 2,
            }),
            cache: Some(CacheSnapshot {
                group: "headworks".to_owned(),
                mask: 0xff0,
                is_in_force: true,
            }),
            peers: vec!["127.0.0.2".parse().unwrap()],
            domains: vec![DomainSnapshot {
                user: 1000,
                socket: 1,
                object_counts: ObjectCounts {
                    queue_pairs: 2,
                    ..ObjectCounts::default()
                },
                pool: PoolSnapshot::default(),
                groups: vec![QpGroupSnapshot {
                    worker: 0,
                    host: Some("127.0.0.2".parse().unwrap()),
                    domain: 7,
                    is_up: true,
                    connections: 3,
                    credit: 8,
                    promised: 9,
                    sent: 10,
                    came: 11,
                    reads: 12,
                    announced: 13,
                    signals: (1, 2),
                }],
                applications: vec![ApplicationSnapshot {
                    session: SessionId(4),
                    name: name.to_owned(),
                    pid: Some(77),
                    connections: 5,
                    direct: 4,
                    listeners: 1,
                    traffic: Traffic {
                        sent,
                        direct: 6,
                        ..Traffic::default()
                    },
                    pool_held: (8192, 4096),
                    in_use: 4096,
                    allocated: 1 << 22,
                }],
            }],
        }
    }

    fn process() -> ProcessMetrics {
        ProcessMetrics {
            device: "soft:h1".to_owned(),
            up: Duration::from_secs(90),
            cpu: Duration::from_millis(1500),
            sleeps: 12,
            sockets: vec!["/run/a.sock".to_owned(), "/run/b.sock".to_owned()],
        }
    }

    proptest! {
        /// An application may choose any name without affecting other lines or values.
        #[test]
        fn metrics_text_parses_back_for_any_name(name in any::<String>(), sent in 0u64..1 << 50) {
            let text = text(&snapshot(&name, sent), &process());
            let samples = parse(&text).unwrap();
            let is_it = |one: &&Sample| one.name == "headworks_application_sent_bytes_total";
            let all: Vec<_> = samples.iter().filter(is_it).collect();
            prop_assert_eq!(all.len(), 1);
            prop_assert_eq!(all[0].label("name"), &name);
            prop_assert_eq!(all[0].label("pid"), "77");
            prop_assert_eq!(all[0].value, sent as f64);
        }

        #[test]
        fn any_text_is_understood_or_refused(text in ".*") {
            let _ = parse(&text);
        }
    }

    #[test]
    fn lines_are_as_scrapers_want_them() {
        let text = text(&snapshot("a\"b", 5), &process());
        for line in [
            "# TYPE headworks_cpu_seconds_total counter",
            "headworks_cpu_seconds_total 1.5",
            "headworks_draining 1",
            "headworks_ecn_lowered 1",
            "headworks_ecn_failures_total 2",
            "headworks_cache_part{cache_group=\"headworks\",l3=\"ff0\"} 1",
            "headworks_queue_pairs{user=\"1000\",socket=\"/run/b.sock\"} 2",
            "headworks_qp_group_credit{user=\"1000\",socket=\"/run/b.sock\",host=\"127.0.0.2\",peer_domain=\"7\"} 8",
            "headworks_application_direct_connections{user=\"1000\",socket=\"/run/b.sock\",pid=\"77\",session=\"4\",name=\"a\\\"b\"} 4",
            "headworks_application_opened_direct_connections_total{user=\"1000\",socket=\"/run/b.sock\",pid=\"77\",session=\"4\",name=\"a\\\"b\"} 6",
            "headworks_application_sent_bytes_total{user=\"1000\",socket=\"/run/b.sock\",pid=\"77\",session=\"4\",name=\"a\\\"b\"} 5",
        ] {
            assert!(text.lines().any(|own| own == line), "{line} in\n{text}");
        }
        let kinds = text.lines().filter(|line| line.starts_with("# TYPE"));
        let names: Vec<&str> = kinds.collect();
        let mut once = names.clone();
        once.sort_unstable();
        once.dedup();
        assert_eq!(once.len(), names.len(), "a metric appears twice");
    }
}
