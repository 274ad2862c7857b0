//! Runs `ucx_perftest`, the benchmark that comes with UCX, for comparison.

use std::net::{Ipv4Addr, TcpListener};
use std::sync::atomic::AtomicBool;
use std::time::Duration;

use crate::subprocess::{Subprocess, SubprocessError, command};

/// The best transports between two processes of one host.
pub const TRANSPORTS: &str = "posix,cma,self";
/// Time limit of one measurement.
const LIMIT: Duration = Duration::from_secs(30);
/// Maximum number of attempts to start the client until the server is up.
const TRIES: usize = 40;

/// One of the tests of `ucx_perftest`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PerftestRun {
    /// Name of the test in `ucx_perftest`.
    pub name: &'static str,
    /// Length of a message, in bytes.
    pub size: usize,
    /// Number of measured messages.
    pub count: u64,
    /// Number of warm-up messages before them.
    pub warm: u64,
}

/// Result of a test, from its final line.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct PerftestResult {
    /// Median one-way latency in microseconds; in a bandwidth test, the time between two messages.
    pub p50_us: f64,
    /// Mean over the whole test, in microseconds.
    pub mean_us: f64,
    /// Messages per second over the whole test.
    pub per_second: f64,
}

/// Returns the version of the installed UCX, or an error if it is not installed.
pub fn version(stop: &AtomicBool) -> Result<String, SubprocessError> {
    let mut info = command("ucx_info");
    let info = Subprocess::start(info.arg("-v"), None)
        .and_then(|running| running.finish(LIMIT, stop))
        .map_err(|why| SubprocessError(format!("UCX is not installed ({why})")))?;
    parse_version(&info.out).ok_or_else(|| SubprocessError("ucx_info prints no version".into()))
}

/// Runs one test between two pinned processes, the client on the first of `cpus`.
pub fn run(
    test: PerftestRun,
    cpus: [usize; 2],
    stop: &AtomicBool,
) -> Result<PerftestResult, SubprocessError> {
    let port = free_port()?.to_string();
    let perftest = |args: &[&str]| {
        let mut command = command("ucx_perftest");
        command
            .env("UCX_TLS", TRANSPORTS)
            .env("UCX_LOG_LEVEL", "error");
        command.args(["-p", &port]).args(args);
        command
    };
    let _server = Subprocess::start(&mut perftest(&[]), Some(cpus[1]))?;
    let (size, count, warm) = (
        test.size.to_string(),
        test.count.to_string(),
        test.warm.to_string(),
    );
    let args = [
        "127.0.0.1",
        "-t",
        test.name,
        "-s",
        &size,
        "-n",
        &count,
        "-w",
        &warm,
        "-f",
    ];
    let mut last = String::new();
    for _ in 0..TRIES {
        let client = Subprocess::start(&mut perftest(&args), Some(cpus[0]))?.finish(LIMIT, stop)?;
        if let Some(end) = parse_final(&client.out) {
            return Ok(end);
        }
        last = client.err + &client.out;
        // The server may not listen yet. Any other failure repeats, and is reported after the last attempt.
        std::thread::sleep(Duration::from_millis(25));
    }
    let line = last
        .lines()
        .rfind(|l| !l.trim().is_empty())
        .unwrap_or("no output");
    Err(SubprocessError(format!(
        "ucx_perftest {}: {line}",
        test.name
    )))
}

fn free_port() -> Result<u16, SubprocessError> {
    TcpListener::bind((Ipv4Addr::LOCALHOST, 0))
        .and_then(|listener| listener.local_addr())
        .map(|address| address.port())
        .map_err(|why| SubprocessError(format!("no free port: {why}")))
}

/// Finds the version in the output of `ucx_info -v`, as in `# Version 1.13.1` or `# Library version: 1.17.0`.
pub fn parse_version(text: &str) -> Option<String> {
    text.lines().find_map(|line| {
        let rest = line.trim_start_matches(['#', ' ']);
        let rest = rest
            .strip_prefix("Library version:")
            .or_else(|| rest.strip_prefix("Version"))?;
        let word = rest
            .trim_start_matches([':', ' '])
            .split_whitespace()
            .next()?;
        word.starts_with(|c: char| c.is_ascii_digit())
            .then(|| word.to_owned())
    })
}

/// Parses the last final line in the output of `ucx_perftest`: iterations, then three times in microseconds,
/// two bandwidths and two rates. The label is optional: versions differ in it, and with `-f` alone it may be
/// missing.
pub fn parse_final(text: &str) -> Option<PerftestResult> {
    text.lines().rev().find_map(|line| {
        let line = line.trim().trim_start_matches("Final:");
        let fields = line
            .split_whitespace()
            .map(|word| {
                word.parse::<f64>()
                    .ok()
                    .filter(|x| x.is_finite() && *x >= 0.0)
            })
            .collect::<Option<Vec<f64>>>()?;
        let [_iterations, p50_us, _average, mean_us, _, _, _, printed] = fields[..] else {
            return None;
        };
        if mean_us <= 0.0 {
            return None;
        }
        let per_second = if printed > 0.0 {
            printed
        } else {
            1e6 / mean_us
        };
        Some(PerftestResult {
            p50_us,
            mean_us,
            per_second,
        })
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const PRINTED: &str = "\
+--------------+--------------+----------+---------+---------+----------+----------+-----------+-----------+
|    Stage     | # iterations | 50.0%ile | average | overall |  average |  overall |  average  |  overall  |
Final:               3000000      0.170     0.166     0.166      367.80     367.80     6026022     6026022
";

    #[test]
    fn perftest_output_is_parsed() {
        let end = parse_final(PRINTED).unwrap();
        assert_eq!(
            end,
            PerftestResult {
                p50_us: 0.170,
                mean_us: 0.166,
                per_second: 6026022.0
            }
        );
        let bare = "       3000000      0.170     0.166     0.166      367.80     367.80     6026022     6026022";
        assert_eq!(parse_final(bare), Some(end));
        assert_eq!(parse_final("[1.5] UCX ERROR connect() failed"), None);
        assert_eq!(
            parse_version("# Version 1.13.1\n# Git branch"),
            Some("1.13.1".into())
        );
        assert_eq!(
            parse_version("# Library version: 1.17.0\n"),
            Some("1.17.0".into())
        );
        assert_eq!(parse_version("command not found"), None);
    }

    proptest! {
        #[test]
        fn never_panics(text in "(Final:)?[ 0-9.eE+naif\n-]{0,200}", other in ".{0,200}") {
            for text in [text, other] {
                if let Some(end) = parse_final(&text) {
                    prop_assert!(end.per_second.is_finite() && end.per_second > 0.0);
                }
                let _ = parse_version(&text);
            }
        }
    }
}
