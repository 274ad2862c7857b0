//! Plans: which designs, sizes and counts a run measures, as a TOML file. Pure: the caller reads the file.
//!
//! ```toml
//! designs = ["WriteWrite", "SendSend", "WriteSend+flag"]
//! responses = ["64", "4KiB"]
//! requesters = [1, 8]
//! responders = [1]
//! seconds = 1.0
//! ```

use std::fmt;

use headworks_patterns::config::OUTSTANDING_MAX;
use headworks_patterns::message::{REQUEST, WORD};
use serde::{Deserialize, Serialize};

use super::design::{Connections, Design};
use super::task::PatternTask;

/// Longest response in bytes.
const RESPONSE_MAX: usize = 1 << 30;
/// Most workers of a dispatcher: each has a request outstanding.
const WORKERS_MAX: usize = OUTSTANDING_MAX as usize;
/// Most points of a plan.
const POINTS_MAX: usize = 10_000;

/// A plan: every combination of its lists is measured.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Plan {
    /// Names of designs.
    pub designs: Vec<String>,
    /// Bytes of responses: numbers with `B`, `KiB` or `MiB`, or without.
    pub responses: Vec<String>,
    /// Numbers of requesters.
    #[serde(default = "one")]
    pub requesters: Vec<usize>,
    /// Numbers of responders.
    #[serde(default = "one")]
    pub responders: Vec<usize>,
    /// Numbers of requests outstanding for each requester. The paper has 1.
    #[serde(default = "one_request")]
    pub outstanding: Vec<u32>,
    /// Requesters that one thread or dispatcher serves; by default all of a number of requesters up to eight.
    #[serde(default)]
    pub requesters_per_thread: Option<usize>,
    /// Measured time of a point in seconds.
    #[serde(default = "one_second")]
    pub seconds: f64,
    /// How often each point is measured.
    #[serde(default = "thrice")]
    pub repeats: u32,
}

fn one() -> Vec<usize> {
    vec![1]
}

fn one_request() -> Vec<u32> {
    vec![1]
}

fn one_second() -> f64 {
    1.0
}

fn thrice() -> u32 {
    3
}

/// A plan is not legal.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PlanError {
    /// The text is no TOML, or has an unknown key or a value of the wrong type.
    #[error("{0}")]
    Syntax(String),
    /// A value is not legal.
    #[error("{key} = {value}: {legal}")]
    Value {
        /// The key.
        key: &'static str,
        /// The value.
        value: String,
        /// The legal values.
        legal: String,
    },
}

/// A point of a plan.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct PlanPoint {
    /// The design.
    pub design: Design,
    /// Bytes of a response.
    pub response: usize,
    /// Number of requesters.
    pub requesters: usize,
    /// Number of responders.
    pub responders: usize,
    /// Requests outstanding for each requester.
    pub outstanding: u32,
}

impl fmt::Display for PlanPoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{}, {} B, {}:{}",
            self.design, self.response, self.requesters, self.responders
        )?;
        match self.outstanding {
            1 => Ok(()),
            more => write!(f, ", {more} outstanding"),
        }
    }
}

impl PlanPoint {
    /// Returns the name of the point's file, without its repeat.
    pub fn file_stem(&self) -> String {
        format!(
            "{}-{}b-{}to{}-{}",
            self.design.to_string().replace('+', "_"),
            self.response,
            self.requesters,
            self.responders,
            self.outstanding
        )
    }
}

/// Parses a number of bytes: `64`, `64 B`, `4KiB`, `1 MiB`.
pub fn parse_bytes(text: &str) -> Option<usize> {
    let digits = text
        .find(|c: char| !c.is_ascii_digit())
        .unwrap_or(text.len());
    let (number, unit) = text.split_at(digits);
    let factor = match unit.trim() {
        "" | "B" => 1,
        "KiB" => 1 << 10,
        "MiB" => 1 << 20,
        "GiB" => 1 << 30,
        _ => return None,
    };
    number.parse::<usize>().ok()?.checked_mul(factor)
}

impl Plan {
    /// Parses a plan, and checks its values.
    ///
    /// # Errors
    ///
    /// [`PlanError`]: names the line, or the key and the legal values.
    pub fn parse(text: &str) -> Result<Self, PlanError> {
        let plan: Self = toml::from_str(text).map_err(|why| {
            let line = why.span().map(|span| {
                let before = text.get(..span.start).unwrap_or_default();
                before.matches('\n').count() + 1
            });
            let message = why.message().lines().next().unwrap_or_default().to_owned();
            PlanError::Syntax(match line {
                Some(line) => format!("line {line}: {message}"),
                None => message,
            })
        })?;
        plan.points()?;
        Ok(plan)
    }

    /// Returns the first key whose value differs from that in `other`, and its value here. `None` if the plans are the
    /// same.
    pub fn difference(&self, other: &Self) -> Option<(String, String)> {
        let fields = |plan| match serde_json::to_value(plan) {
            Ok(serde_json::Value::Object(fields)) => fields,
            _ => serde_json::Map::new(),
        };
        let others = fields(other);
        let mut differing = fields(self)
            .into_iter()
            .filter(|(key, value)| others.get(key) != Some(value));
        differing
            .next()
            .map(|(key, value)| (key, value.to_string()))
    }

    /// Returns the points in the order in which they are measured.
    ///
    /// # Errors
    ///
    /// [`PlanError::Value`]: a value is not legal.
    pub fn points(&self) -> Result<Vec<PlanPoint>, PlanError> {
        let wrong = |key, value: String, legal: &str| {
            Err(PlanError::Value {
                key,
                value,
                legal: legal.to_owned(),
            })
        };
        for (key, is_empty) in [
            ("designs", self.designs.is_empty()),
            ("responses", self.responses.is_empty()),
            ("requesters", self.requesters.is_empty()),
            ("responders", self.responders.is_empty()),
            ("outstanding", self.outstanding.is_empty()),
        ] {
            if is_empty {
                return wrong(key, "[]".into(), "at least one value");
            }
        }
        if !(1e-6..=3600.0).contains(&self.seconds) {
            return wrong("seconds", self.seconds.to_string(), "0.000001 to 3600");
        }
        if self.repeats == 0 || self.repeats > 1000 {
            return wrong("repeats", self.repeats.to_string(), "1 to 1000");
        }
        if self.requesters_per_thread == Some(0) {
            return wrong("requesters_per_thread", "0".into(), "at least 1");
        }
        let mut points = Vec::new();
        for design in &self.designs {
            let design: Design =
                design
                    .parse()
                    .map_err(|why: super::design::DesignError| PlanError::Value {
                        key: "designs",
                        value: design.clone(),
                        legal: why.to_string(),
                    })?;
            for response in &self.responses {
                let Some(bytes) = parse_bytes(response) else {
                    let legal = "a number, with B, KiB, MiB or GiB behind it";
                    return wrong("responses", response.clone(), legal);
                };
                if !(REQUEST..=RESPONSE_MAX).contains(&bytes) || !bytes.is_multiple_of(WORD) {
                    let legal = "a multiple of 8 from 64 to 1GiB";
                    return wrong("responses", response.clone(), legal);
                }
                let together = self.requesters_per_thread.unwrap_or(1);
                if design.connections == Connections::Dispatcher && together > WORKERS_MAX {
                    let legal = "1 to 64 with dispatchers";
                    return wrong("requesters_per_thread", together.to_string(), legal);
                }
                for (requesters, responders, outstanding) in self.counts() {
                    if requesters == 0 || responders == 0 {
                        let key = if requesters == 0 {
                            "requesters"
                        } else {
                            "responders"
                        };
                        return wrong(key, "0".into(), "at least 1");
                    }
                    if outstanding == 0 || outstanding > 64 {
                        return wrong("outstanding", outstanding.to_string(), "1 to 64");
                    }
                    if design.connections == Connections::Dispatcher && outstanding > 1 {
                        let legal = "1 with dispatchers";
                        return wrong("outstanding", outstanding.to_string(), legal);
                    }
                    points.push(PlanPoint {
                        design,
                        response: bytes,
                        requesters,
                        responders,
                        outstanding,
                    });
                }
            }
        }
        points.sort_unstable();
        points.dedup();
        match points.len() {
            0..=POINTS_MAX => Ok(points),
            many => wrong("points", many.to_string(), "at most 10000"),
        }
    }

    fn counts(&self) -> impl Iterator<Item = (usize, usize, u32)> {
        self.requesters.iter().flat_map(move |requesters| {
            self.responders.iter().flat_map(move |responders| {
                let all = self.outstanding.iter();
                all.map(move |outstanding| (*requesters, *responders, *outstanding))
            })
        })
    }

    /// Returns the task of a point. `is_simulated`: time is virtual, and each requester is a thread of its own.
    pub fn task(&self, point: &PlanPoint, is_simulated: bool) -> PatternTask {
        let run_ns = (self.seconds * 1e9) as u64;
        let is_private = point.design.connections == Connections::Private;
        let together = self.requesters_per_thread.unwrap_or(8);
        PatternTask {
            per_actor: match is_simulated && is_private {
                true => 1,
                false => together.min(point.requesters),
            },
            outstanding: point.outstanding,
            time_every: if is_simulated { 1 } else { 64 },
            warm_ns: run_ns / 5,
            run_ns,
            ..PatternTask::paper(
                point.design,
                point.response,
                point.requesters,
                point.responders,
            )
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PLAN: &str =
        "designs = [\"WriteWrite\", \"SendSend+dispatcher\"]\nresponses = [\"64\", \"4KiB\"]\n";

    #[test]
    fn a_plan_has_every_combination_once() {
        let text = format!("{PLAN}requesters = [1, 8, 8]\n");
        let plan = Plan::parse(&text).unwrap();
        let points = plan.points().unwrap();
        assert_eq!(points.len(), 8);
        assert_eq!(points[0].to_string(), "WriteWrite, 64 B, 1:1");
        assert_eq!((plan.seconds, plan.repeats), (1.0, 3));
        let stems: std::collections::BTreeSet<_> =
            points.iter().map(PlanPoint::file_stem).collect();
        assert_eq!(stems.len(), 8);
    }

    #[test]
    fn wrong_plans_are_refused_in_one_line_that_names_the_key() {
        for (more, says) in [
            ("colour = 3\n", "line 3: unknown field `colour`"),
            ("requesters = [0]\n", "requesters = 0: at least 1"),
            ("seconds = -1.0\n", "seconds = -1: 0.000001"),
            ("outstanding = [2]\n", "outstanding = 2: 1 with dispatchers"),
            ("repeats = \"x\"\n", "line 3: invalid type"),
        ] {
            let error = Plan::parse(&format!("{PLAN}{more}"))
                .unwrap_err()
                .to_string();
            assert!(error.contains(says), "{error}");
            assert!(!error.contains('\n'), "{error}");
        }
        let error = Plan::parse("designs = [\"ReadRead\"]\nresponses = [\"64\"]\n");
        assert!(error.unwrap_err().to_string().contains("ReadRead"));
        let error = Plan::parse("designs = [\"WriteWrite\"]\nresponses = [\"4 kB\"]\n");
        assert!(error.unwrap_err().to_string().contains("4 kB"));
    }

    #[test]
    fn bytes_are_parsed_with_their_unit() {
        for (text, bytes) in [
            ("64", Some(64)),
            ("64 B", Some(64)),
            ("4KiB", Some(4096)),
            ("1 MiB", Some(1 << 20)),
            ("", None),
            ("KiB", None),
            ("1 kB", None),
            ("99999999999999999999", None),
        ] {
            assert_eq!(parse_bytes(text), bytes, "{text}");
        }
    }
}
