//! Runs programs of `perftest`, the benchmark of RDMA devices, on the software RNIC (`headworks verbs`) and on an RDMA device of this
//! machine.

use std::net::{Ipv4Addr, TcpListener};
use std::path::Path;
use std::process::Command;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

use crate::subprocess::{Subprocess, SubprocessError, command, this_program};

/// Where the kernel lists RDMA devices.
const DEVICES: &str = "/sys/class/infiniband";
/// Maximum number of attempts to start the client until the server is up.
const TRIES: usize = 80;

/// The device of a run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PerftestDevice {
    /// The software RNIC, by the drop-in libibverbs.
    Software,
    /// Devices of this machine, of the server and of the client; and the GID index of both.
    Installed([String; 2], u32),
}

/// A program of perftest and its message size.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PerftestProgram {
    /// Name of the program.
    pub name: &'static str,
    /// Bytes of a message.
    pub size: usize,
    /// Number of messages, or of round trips.
    pub count: u64,
}

/// Result of a program, from the last line of its table.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum PerftestFigures {
    /// Messages per second, of a program whose name ends with `_bw`.
    Rate(f64),
    /// Typical (median) and 99th percentile of the latency in microseconds, of a program whose name ends with `_lat`.
    Latency {
        /// Median.
        typical: f64,
        /// 99th percentile.
        p99: f64,
    },
}

/// Returns perftest's version, or an error if it is not installed.
pub fn version(stop: &AtomicBool) -> Result<String, SubprocessError> {
    let mut perftest = command("ib_write_bw");
    let ended = Subprocess::start(perftest.arg("--version"), None)
        .and_then(|running| running.finish(Duration::from_secs(10), stop))
        .map_err(|why| SubprocessError(format!("perftest is not installed ({why})")))?;
    let text = ended.out + &ended.err;
    let word = text
        .split_whitespace()
        .find(|word| word.starts_with(|c: char| c.is_ascii_digit()));
    Ok(word.unwrap_or("of unknown version").to_owned())
}

/// Finds the RDMA devices of this machine: the first two, or the only one twice.
///
/// # Errors
///
/// One line on why there are none.
pub fn installed() -> Result<PerftestDevice, SubprocessError> {
    let none = || {
        SubprocessError(format!(
            "no RDMA device of this machine: {DEVICES} has none"
        ))
    };
    let entries = std::fs::read_dir(DEVICES).map_err(|_| none())?;
    let mut names: Vec<_> = entries
        .flatten()
        .map(|entry| entry.file_name().to_string_lossy().into_owned())
        .collect();
    names.sort_unstable();
    let first = names.first().ok_or_else(none)?.clone();
    let second = names.get(1).unwrap_or(&first).clone();
    let index = gid_index(&Path::new(DEVICES).join(&first));
    Ok(PerftestDevice::Installed([first, second], index))
}

/// The index of the first GID that is an IPv4 address of RoCE version 2; else 0.
fn gid_index(device: &Path) -> u32 {
    let read = |kind: &str, index: u32| {
        let path = device.join(format!("ports/1/{kind}/{index}"));
        std::fs::read_to_string(path).unwrap_or_default()
    };
    let is_ipv4 = |index: &u32| {
        read("gids", *index).starts_with("0000:0000:0000:0000:0000:ffff:")
            && read("gid_attrs/types", *index).starts_with("RoCE v2")
    };
    (0..16).find(is_ipv4).unwrap_or(0)
}

/// Runs a program between two pinned processes, the client on the first of `cpus`.
pub fn run(
    program: PerftestProgram,
    device: &PerftestDevice,
    cpus: [usize; 2],
    limit: Duration,
    stop: &AtomicBool,
) -> Result<PerftestFigures, SubprocessError> {
    let port = free_port()?.to_string();
    let (size, count) = (program.size.to_string(), program.count.to_string());
    let end = |which: usize| -> Result<Command, SubprocessError> {
        let (mut perftest, index) = match device {
            PerftestDevice::Software => {
                let own = this_program()?;
                let mut verbs = command(&own.to_string_lossy());
                verbs.args(["verbs", "--", program.name]);
                (verbs, 1)
            }
            PerftestDevice::Installed(names, index) => {
                let mut direct = command(program.name);
                direct.args(["-d", &names[which]]);
                (direct, *index)
            }
        };
        perftest.args(["-F", "-x", &index.to_string()]);
        perftest.args(["-p", &port, "-s", &size, "-n", &count]);
        Ok(perftest)
    };
    let mut server = Subprocess::start(&mut end(0)?, Some(cpus[1]))?;
    let mut last = String::new();
    for _ in 0..TRIES {
        let mut client = end(1)?;
        client.arg("127.0.0.1");
        let client = Subprocess::start(&mut client, Some(cpus[0]))?.finish(limit, stop)?;
        if let Some(figures) = parse(program, &client.out) {
            return Ok(figures);
        }
        last = client.err + &client.out;
        if server.has_ended() {
            // For a reason of its own: it says which.
            let server = server.finish(limit, stop)?;
            last = server.err + &server.out;
            break;
        }
        // The server may not listen yet. Any other failure repeats, and is reported after the last attempt.
        std::thread::sleep(Duration::from_millis(25));
    }
    let line = last.lines().rfind(|line| !line.trim().is_empty());
    let line = line.unwrap_or("no output").trim();
    Err(SubprocessError(format!("{}: {line}", program.name)))
}

fn free_port() -> Result<u16, SubprocessError> {
    TcpListener::bind((Ipv4Addr::LOCALHOST, 0))
        .and_then(|listener| listener.local_addr())
        .map(|address| address.port())
        .map_err(|why| SubprocessError(format!("no free port: {why}")))
}

/// Reads the line of the program's size in its table. Columns of bandwidth: bytes, iterations, peak and average in MiB/s, millions of messages per
/// second. Of latency: bytes, iterations, then least, most, typical and average, deviation, and the percentiles 99 and 99.9, in µs.
fn parse(program: PerftestProgram, text: &str) -> Option<PerftestFigures> {
    text.lines().rev().find_map(|line| {
        let numbers = line
            .split_whitespace()
            .map(|word| word.parse::<f64>().ok().filter(|number| number.is_finite()))
            .collect::<Option<Vec<f64>>>()?;
        if *numbers.first()? != program.size as f64 {
            return None;
        }
        match (program.name.ends_with("_lat"), &numbers[..]) {
            (true, [_, _, _, _, typical, _, _, p99, ..]) if *typical > 0.0 => {
                Some(PerftestFigures::Latency {
                    typical: *typical,
                    p99: *p99,
                })
            }
            // Few decimals are printed, so the average in MiB/s says more about long messages.
            (false, [size, _, _, average, millions]) if *average > 0.0 => {
                let of_bytes = average * f64::from(1 << 20) / size;
                let of_messages = millions * 1e6;
                Some(PerftestFigures::Rate(match *size < 1024.0 {
                    true => of_messages,
                    false => of_bytes,
                }))
            }
            _ => None,
        }
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const fn program(name: &'static str, size: usize) -> PerftestProgram {
        PerftestProgram {
            name,
            size,
            count: 1,
        }
    }

    #[test]
    fn tables_of_perftest_are_read() {
        let bandwidth = "\
 #bytes     #iterations    BW peak[MB/sec]    BW average[MB/sec]   MsgRate[Mpps]
Conflicting CPU frequency values detected
 65536      50000            81543.42            80001.00\t\t   1.280016
";
        let found = parse(program("ib_write_bw", 65536), bandwidth);
        let expected = 80001.0 * 1048576.0 / 65536.0;
        assert_eq!(found, Some(PerftestFigures::Rate(expected)));
        let rate = " 64         2000000          0.00               701.90    \t\t   11.500000\n";
        let found = parse(program("ib_send_bw", 64), rate);
        assert_eq!(found, Some(PerftestFigures::Rate(11.5e6)));
        let latency = "\
 #bytes #iterations    t_min[usec]    t_max[usec]  t_typical[usec]    t_avg[usec]    t_stdev[usec]   99% percentile[usec]   99.9% percentile[usec] 
 64      1000          0.06           9.21         0.07                0.08             0.10            0.11                    2.50   
---------------------------------------------------------------------------------------
";
        let found = parse(program("ib_write_lat", 64), latency);
        let expected = PerftestFigures::Latency {
            typical: 0.07,
            p99: 0.11,
        };
        assert_eq!(found, Some(expected));
        assert_eq!(parse(program("ib_write_lat", 32), latency), None);
        assert_eq!(parse(program("ib_write_bw", 64), latency), None);
        assert_eq!(
            parse(
                program("ib_write_bw", 64),
                "Couldn't connect to 127.0.0.1:18515"
            ),
            None
        );
    }

    #[test]
    fn the_gid_of_an_ipv4_address_is_taken() {
        let folder = tempfile::tempdir().unwrap();
        let device = folder.path();
        assert_eq!(gid_index(device), 0);
        let ipv4 = "0000:0000:0000:0000:0000:ffff:c000:0201\n";
        for (index, gid, kind) in [
            (0, "fe80:0000:0000:0000:0000:00ff:fe00:0001\n", "RoCE v2\n"),
            (1, ipv4, "IB/RoCE v1\n"),
            (2, ipv4, "RoCE v2\n"),
        ] {
            for (folder, text) in [("gids", gid), ("gid_attrs/types", kind)] {
                let folder = device.join("ports/1").join(folder);
                std::fs::create_dir_all(&folder).unwrap();
                std::fs::write(folder.join(index.to_string()), text).unwrap();
            }
        }
        assert_eq!(gid_index(device), 2);
    }

    proptest! {
        #[test]
        fn no_output_panics(text in "[ 0-9.eE+naif\n-]{0,200}|.{0,200}") {
            for name in ["ib_write_bw", "ib_write_lat"] {
                let _ = parse(program(name, 64), &text);
            }
        }
    }
}
