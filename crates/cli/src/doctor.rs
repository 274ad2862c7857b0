//! `headworks doctor`: looks at what tends to be wrong around RDMA, and names the command that mends it.
//!
//! | module | what |
//! |---|---|
//! | `facts` | reads what the machine says of itself, from `/proc` and `/sys`; which devices can be used, and how, say those who open them |
//! | `advice` | what follows from that: decided without looking at anything else; `advice::nic` of a device |

mod advice;
mod facts;

use std::path::Path;

use headworks::devices;
use serde_json::{Value, json};

use crate::fail::{Exit, FAILED, print};
use advice::{Finding, Verdict};
use facts::{Facts, Libraries};

/// Looks, and prints what it found. Fails if something keeps a device from working.
pub(crate) fn run(as_json: bool) -> anyhow::Result<()> {
    let libraries = Libraries {
        devices: devices::known_to_libibverbs(),
        manager: devices::connection_manager(),
        choice: &devices::choice,
    };
    let facts = Facts::read(Path::new("/"), libraries);
    let findings = advice::advise(&facts);
    let text = match as_json {
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
        "{broken} of {} checks found what keeps a device from working",
        findings.len()
    );
    Err(Exit { code, line }.into())
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
            "mend": finding.mend,
        })
    });
    Value::Array(list.collect())
}
