//! `headworks doctor`: looks for problems of RDMA devices and of the software device, and names the command that fixes
//! each.
//!
//! | module | purpose |
//! |---|---|
//! | `system_info` | reads `/proc` and `/sys`, and asks the libraries which devices can be used, and how |
//! | `environment` | reads what the software device depends on: the registry's place, namespaces, control groups, sandboxes |
//! | `soft_device` | opens the software device and moves a message |
//! | `bundle` | writes what a bug report needs to an archive |
//! | `advice` | derives the findings from these facts alone; `advice::rdma_device` for one RDMA device, `advice::rdma_port` for the tables and counters of its port, `advice::environment` for the software device |

mod advice;
mod bundle;
mod environment;
mod soft_device;
mod system_info;

use std::path::Path;

use headworks::verbs::{DeviceName, OpenError};
use headworks::{devices, rdma};
use serde_json::{Value, json};

use crate::args::Doctor;
use crate::exit_status::{Exit, FAILED, bad_input, print};
use advice::{Finding, Verdict};
use system_info::{RdmaLibraries, SystemInfo};

/// Checks this machine, or one device if it is named, and prints the findings or writes a bundle with them. Unless it
/// writes a bundle, fails if something keeps a device from working.
pub(crate) fn run(command: &Doctor) -> anyhow::Result<()> {
    let device = command.device.as_ref();
    if let Some(file) = &command.bundle {
        bundle::check(file)?;
    }
    let root = Path::new("/");
    if let Some(device) = device {
        check(device, &system_info::devices(root))?;
    }
    let only = device.and_then(DeviceName::name);
    let libraries = RdmaLibraries {
        devices: devices::libibverbs_devices(),
        manager: devices::connection_manager(),
        choice: &|name| match device {
            Some(device) if only == Some(name) => devices::choice(device),
            _ => devices::choice(&format!("{}:{name}", rdma::KIND).parse()?),
        },
    };
    let mut facts = SystemInfo::read(root, libraries, device);
    if device.is_none() {
        facts.soft = Some(soft_device::check());
    }
    let findings = advice::advise(&facts);
    if let Some(file) = &command.bundle {
        let findings = format!("{:#}\n", in_json(&findings));
        return bundle::write(file, findings, command.with_addresses);
    }
    let text = match command.json {
        true => format!("{:#}\n", in_json(&findings)),
        false => findings.iter().map(in_text).collect(),
    };
    print(&text)?;
    let broken = findings
        .iter()
        .filter(|f| f.verdict == Verdict::Broken)
        .count();
    if broken == 0 {
        return Ok(());
    }
    let code = FAILED;
    let line = format!(
        "{broken} of {} checks found a problem that keeps a device from working",
        findings.len()
    );
    Err(Exit { code, line }.into())
}

/// Refuses a name that no RDMA device of the kernel has, and options that no device takes.
fn check(device: &DeviceName, there: &[String]) -> anyhow::Result<()> {
    if device.kind() != rdma::KIND {
        return Err(bad_input(format_args!(
            "{device} is no RDMA device: doctor examines RDMA devices, as in ibv:mlx5_0, or without a name this machine"
        )));
    }
    if device.name().is_none() && device.options().next().is_some() {
        return Err(bad_input(format_args!(
            "{device}: options need the name of a device, as in ibv:mlx5_0,port=2"
        )));
    }
    let is_there = |name| there.iter().any(|there| there == name);
    if there.is_empty() || !device.name().is_none_or(is_there) {
        let hint = match there {
            [] => "there is no RDMA device on this machine: `headworks doctor` names ways to one"
                .to_owned(),
            there => format!("there is ibv:{}", there.join(", ibv:")),
        };
        let name = device.to_string();
        return Err(OpenError::NotFound { name, hint }.into());
    }
    match devices::choice(device) {
        Err(OpenError::NotFound { .. }) => Ok(()),
        Err(error) if devices::is_bad_input(&error) => Err(error.into()),
        // Any other error is among what the checks look for.
        _ => Ok(()),
    }
}

fn in_text(finding: &Finding) -> String {
    let mark = match finding.verdict {
        Verdict::Good => "ok     ",
        Verdict::Improvable => "better ",
        Verdict::Broken => "BROKEN ",
    };
    let mut text = format!("{mark}{:<16}{}\n", finding.check, finding.found);
    if let Some(why) = &finding.why {
        text.push_str(&format!("                       {why}\n"));
    }
    for detail in &finding.details {
        text.push_str(&format!("                       {detail}\n"));
    }
    if let Some(mend) = &finding.mend {
        text.push_str(&format!("                       $ {mend}\n"));
    }
    text
}

fn in_json(findings: &[Finding]) -> Value {
    let verdict = |verdict| match verdict {
        Verdict::Good => "ok",
        Verdict::Improvable => "better",
        Verdict::Broken => "broken",
    };
    let list = findings.iter().map(|finding| {
        json!({
            "check": finding.check,
            "verdict": verdict(finding.verdict),
            "found": finding.found,
            "why": finding.why,
            "details": finding.details,
            "mend": finding.mend,
        })
    });
    Value::Array(list.collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_is_one_of_the_kernels_devices() {
        let there = ["mlx5_0", "mlx5_1"].map(str::to_owned);
        let refused = |device: &str, there: &[String]| {
            let error = check(&device.parse().unwrap(), there).unwrap_err();
            let said = error.to_string();
            assert!(said.contains(device) && said.lines().count() == 1, "{said}");
            said
        };
        assert!(check(&"ibv:mlx5_1".parse().unwrap(), &there).is_ok());
        let said = refused("ibv:rxe0", &there);
        assert!(said.contains("ibv:mlx5_0, ibv:mlx5_1"), "{said}");
        for none in ["ibv:rxe0", "ibv"] {
            let said = refused(none, &[]);
            assert!(said.contains("no RDMA device on this machine"), "{said}");
        }
        refused("soft:h1", &there);
        let said = check(&"ibv:mlx5_0,frob=1".parse().unwrap(), &there).unwrap_err();
        assert!(said.to_string().contains("frob=1"), "{said}");
    }
}
