//! Event trace in Chrome's trace format, for its viewers (`chrome://tracing`, <https://ui.perfetto.dev>).
//!
//! Each process of the trace is a host. Its threads are the host's cores, units and pipes, and two tracks of
//! instant events: one for doorbells, misses and retransmissions, and one for completions. Spans of one track
//! follow each other or nest; they never overlap in part. All times are virtual and all spans simulated. The
//! same seed and program write the same bytes.

use std::collections::{BTreeMap, BTreeSet};
use std::io::{self, Write};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crate::hardware_units::Ps;

/// Default for the maximum number of entries of a trace: about 150 MB of text.
pub const TRACE_ENTRIES_MAX: usize = 1_000_000;

/// Collects a trace. The writer of the trace and the world that fills it hold a clone each.
#[derive(Clone, Debug)]
pub struct Tracer(Arc<Mutex<Trace>>);

#[derive(Debug)]
struct Trace {
    limit: usize,
    entries: Vec<Entry>,
    /// Time of the first entry that was left out; `None` if every entry had room.
    full: Option<Ps>,
    /// Number of entries that were left out.
    left_out: u64,
    /// Names of the hosts of all scenarios. A host's process number is its index here plus 1.
    hosts: Vec<String>,
    runs: u32,
    roles: Vec<String>,
    by_role: BTreeMap<String, u32>,
}

/// A track of a host. Viewers show tracks in this order.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Track {
    Core(u32),
    Events,
    Tx(u32),
    DmaRead,
    /// A link; the number of its port if the host has several.
    LinkOut(Option<u32>),
    LinkIn(Option<u32>),
    Rx(u32),
    DmaWrite,
    Completions,
}

/// Label of an entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum TraceLabel {
    /// Work on a request.
    Of(&'static str, Subject),
    /// A number of events of one kind.
    Count(&'static str, u64),
    /// A step of an actor, with the number of its role.
    Step(u32),
}

/// A request, identified by the queue pair's number and the request's number.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Subject {
    pub(crate) qpn: u32,
    pub(crate) request: u64,
    /// Number of bytes that this part of the work moves.
    pub(crate) bytes: u64,
}

#[derive(Clone, Copy, Debug)]
struct Entry {
    process: u32,
    track: Track,
    at: Ps,
    /// Duration; `None` for an instant.
    takes: Option<Ps>,
    label: TraceLabel,
}

impl Tracer {
    /// Creates a tracer of at most `limit` entries (usually [`TRACE_ENTRIES_MAX`]). Later ones are left out.
    pub fn new(limit: usize) -> Self {
        Self(Arc::new(Mutex::new(Trace {
            limit,
            entries: Vec::new(),
            full: None,
            left_out: 0,
            hosts: Vec::new(),
            runs: 0,
            roles: Vec::new(),
            by_role: BTreeMap::new(),
        })))
    }

    /// Returns a line that says how many entries were left out; `None` if none was.
    pub fn notice(&self) -> Option<String> {
        let trace = self.lock();
        let at = trace.full?;
        Some(format!(
            "simulated: the trace ends at {} µs of virtual time, where it had {} entries; {} more are left out",
            Micros(at),
            trace.limit,
            trace.left_out
        ))
    }

    /// Writes the trace as JSON.
    ///
    /// # Errors
    ///
    /// Returns the errors of `out`.
    pub fn write(&self, out: &mut dyn Write) -> io::Result<()> {
        self.lock().write(out)
    }

    /// Notes that a scenario begins. Returns its number.
    pub(crate) fn begin(&self) -> u32 {
        let mut trace = self.lock();
        trace.runs += 1;
        trace.runs
    }

    /// Adds a host of a scenario. Returns its process number.
    pub(crate) fn host(&self, run: u32, name: &str) -> u32 {
        let name = match run {
            0 | 1 => format!("simulated host {name}"),
            run => format!("simulated host {name} (play {run})"),
        };
        let mut trace = self.lock();
        trace.hosts.push(name);
        trace.hosts.len() as u32
    }

    /// Returns the number of a role, for [`TraceLabel::Step`].
    pub(crate) fn role(&self, role: &str) -> u32 {
        let mut trace = self.lock();
        if let Some(found) = trace.by_role.get(role) {
            return *found;
        }
        let number = trace.roles.len() as u32;
        trace.roles.push(role.to_owned());
        trace.by_role.insert(role.to_owned(), number);
        number
    }

    /// Adds a span.
    pub(crate) fn span(
        &self,
        process: u32,
        track: Track,
        (begin, end): (Ps, Ps),
        label: TraceLabel,
    ) {
        self.lock().enter(Entry {
            process,
            track,
            at: begin,
            takes: Some(end - begin),
            label,
        });
    }

    /// Adds an instant.
    pub(crate) fn instant(&self, process: u32, track: Track, at: Ps, label: TraceLabel) {
        self.lock().enter(Entry {
            process,
            track,
            at,
            takes: None,
            label,
        });
    }

    fn lock(&self) -> MutexGuard<'_, Trace> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Trace {
    fn enter(&mut self, entry: Entry) {
        if self.entries.len() < self.limit {
            return self.entries.push(entry);
        }
        self.full.get_or_insert(entry.at);
        self.left_out += 1;
    }

    fn write(&mut self, out: &mut dyn Write) -> io::Result<()> {
        // Pipes and completion queues add entries with times in the future, so the entries are out of order. Of
        // spans with the same start the longest comes first, so that the others nest in it.
        self.entries
            .sort_by_key(|entry| (entry.at, std::cmp::Reverse(entry.takes)));
        writeln!(out, "{{\"displayTimeUnit\":\"ns\",")?;
        writeln!(
            out,
            "\"otherData\":{{\"simulated\":true,\"left_out\":{}}},",
            self.left_out
        )?;
        writeln!(out, "\"traceEvents\":[")?;
        for (index, name) in self.hosts.iter().enumerate() {
            let process = index + 1;
            writeln!(
                out,
                "{{\"ph\":\"M\",\"pid\":{process},\"name\":\"process_name\",\"args\":{{\"name\":{}}}}},",
                Text(name)
            )?;
        }
        let tracks: BTreeSet<_> = self.entries.iter().map(|e| (e.process, e.track)).collect();
        for (process, track) in tracks {
            let (thread, name) = (track.number(), track.name());
            writeln!(
                out,
                "{{\"ph\":\"M\",\"pid\":{process},\"tid\":{thread},\"name\":\"thread_name\",\"args\":{{\"name\":{}}}}},",
                Text(&name)
            )?;
            writeln!(
                out,
                "{{\"ph\":\"M\",\"pid\":{process},\"tid\":{thread},\"name\":\"thread_sort_index\",\"args\":{{\"sort_index\":{thread}}}}},"
            )?;
        }
        for entry in &self.entries {
            self.write_entry(out, entry)?;
        }
        // The last element has no comma behind it. It also shows that the file is complete.
        writeln!(
            out,
            "{{\"ph\":\"M\",\"pid\":0,\"name\":\"process_name\",\"args\":{{\"name\":\"simulated\"}}}}"
        )?;
        writeln!(out, "]}}")
    }

    fn write_entry(&self, out: &mut dyn Write, entry: &Entry) -> io::Result<()> {
        let (process, thread, at) = (entry.process, entry.track.number(), Micros(entry.at));
        match entry.takes {
            Some(takes) => write!(
                out,
                "{{\"ph\":\"X\",\"pid\":{process},\"tid\":{thread},\"ts\":{at},\"dur\":{},",
                Micros(takes)
            )?,
            None => write!(
                out,
                "{{\"ph\":\"i\",\"s\":\"t\",\"pid\":{process},\"tid\":{thread},\"ts\":{at},"
            )?,
        }
        match entry.label {
            TraceLabel::Of(name, of) => writeln!(
                out,
                "\"name\":{},\"args\":{{\"qp\":{},\"request\":{},\"bytes\":{}}}}},",
                Text(name),
                of.qpn,
                of.request,
                of.bytes
            ),
            TraceLabel::Count(name, count) => {
                writeln!(
                    out,
                    "\"name\":{},\"args\":{{\"count\":{count}}}}},",
                    Text(name)
                )
            }
            TraceLabel::Step(role) => {
                let role = self.roles.get(role as usize).map_or("", String::as_str);
                writeln!(out, "\"name\":{}}},", Text(role))
            }
        }
    }
}

/// Number of thread numbers that are reserved for each kind of track.
const KIND: u32 = 1_000;

impl Track {
    fn number(self) -> u32 {
        let (kind, which) = match self {
            Self::Core(core) => (1, core),
            Self::Events => (3, 0),
            Self::Tx(unit) => (4, unit),
            Self::DmaRead => (5, 0),
            Self::LinkOut(port) => (6, port.unwrap_or(0)),
            Self::LinkIn(port) => (7, port.unwrap_or(0)),
            Self::Rx(unit) => (8, unit),
            Self::DmaWrite => (9, 0),
            Self::Completions => (10, 0),
        };
        // Cores may need more numbers than one kind has, so kind 2 is theirs as well.
        kind * KIND + which
    }

    fn name(self) -> String {
        match self {
            Self::Core(core) => format!("core {core}"),
            Self::Events => "doorbells and misses".to_owned(),
            Self::Tx(unit) => format!("tx unit {unit}"),
            Self::DmaRead => "DMA read".to_owned(),
            Self::LinkOut(None) => "link out".to_owned(),
            Self::LinkOut(Some(port)) => format!("link out {port}"),
            Self::LinkIn(None) => "link in".to_owned(),
            Self::LinkIn(Some(port)) => format!("link in {port}"),
            Self::Rx(unit) => format!("rx unit {unit}"),
            Self::DmaWrite => "DMA write".to_owned(),
            Self::Completions => "completions".to_owned(),
        }
    }
}

/// Displays picoseconds as the microseconds of the format, without loss.
struct Micros(Ps);

impl std::fmt::Display for Micros {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}.{:06}", self.0 / 1_000_000, self.0 % 1_000_000)
    }
}

/// Displays a string as JSON.
struct Text<'t>(&'t str);

impl std::fmt::Display for Text<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        use std::fmt::Write;
        f.write_char('"')?;
        for letter in self.0.chars() {
            match letter {
                '"' | '\\' => write!(f, "\\{letter}")?,
                ..' ' => write!(f, "\\u{:04x}", u32::from(letter))?,
                letter => f.write_char(letter)?,
            }
        }
        f.write_char('"')
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn text(tracer: &Tracer) -> String {
        let mut text = Vec::new();
        tracer.write(&mut text).expect("memory");
        String::from_utf8(text).expect("UTF-8")
    }

    #[test]
    fn times_are_whole_picoseconds_and_names_any_text() {
        let tracer = Tracer::new(10);
        let first = tracer.host(tracer.begin(), "a\"\\\n");
        let step = TraceLabel::Step(tracer.role("x"));
        tracer.span(first, Track::Core(0), (1_000_001, 3_000_000), step);
        let text = text(&tracer);
        assert!(text.contains("\"ts\":1.000001,\"dur\":1.999999,"), "{text}");
        assert!(
            text.contains(r#""name":"simulated host a\"\\\u000a""#),
            "{text}"
        );
    }

    #[test]
    fn trace_times_are_sorted_with_enclosing_spans_first() {
        let tracer = Tracer::new(10);
        let first = tracer.host(tracer.begin(), "a");
        for span in [(7, 8), (3, 4), (3, 9), (5, 6)] {
            let label = TraceLabel::Count("x", span.0 * 10 + span.1);
            tracer.span(first, Track::LinkIn(None), span, label);
        }
        let text = text(&tracer);
        let counts = text.split("\"count\":").skip(1);
        let counts: Vec<_> = counts.map(|rest| &rest[..2]).collect();
        assert_eq!(counts, ["39", "34", "56", "78"]);
    }

    #[test]
    fn excess_events_are_left_out_and_counted() {
        let tracer = Tracer::new(2);
        let first = tracer.host(tracer.begin(), "a");
        let label = TraceLabel::Count("miss", 1);
        for at in 1..=5 {
            assert_eq!(tracer.notice().is_some(), at > 3);
            tracer.instant(first, Track::Events, at * 1_000, label);
        }
        let notice = tracer.notice().expect("full");
        assert!(
            notice.contains(" 0.003000 µs") && notice.contains("3 more"),
            "{notice}"
        );
        assert!(text(&tracer).contains("\"left_out\":3"));
        assert_eq!(text(&tracer).matches("\"ph\":\"i\"").count(), 2);
    }
}
