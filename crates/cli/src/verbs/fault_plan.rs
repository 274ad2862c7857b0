//! The faults of `headworks verbs`: `--fault`, `--fault-plan` and `--seed`.

use std::path::{Path, PathBuf};

use headworks::testing::plan::{FaultSpec, KINDS, rules_of};
use serde::Deserialize;

use crate::exit_status::bad_input;

/// Options that inject faults.
#[derive(clap::Args)]
pub(crate) struct FaultArgs {
    /// Injects a fault into the devices of the program: KIND[=RATE][@FILTER,…], as in rnr=1% or wr_flush@qp=3,after=1000. May be
    /// given several times; of several that would occur at one point of a request, the first does. The kinds, rates and filters are listed below.
    #[arg(long = "fault", value_name = "FAULT")]
    faults: Vec<FaultSpec>,
    /// Reads faults, and the seed, from a file in TOML. The faults of --fault come after those of the file.
    #[arg(long, value_name = "FILE")]
    fault_plan: Option<PathBuf>,
    /// Seed of what chance decides about faults. The same seed and the same requests have the same faults. 1 by default.
    #[arg(long, value_name = "N")]
    seed: Option<u64>,
}

/// A file of faults.
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
struct PlanFile {
    seed: Option<u64>,
    #[serde(default)]
    fault: Vec<PlanEntry>,
}

/// A fault in a file: the parts of the text form.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct PlanEntry {
    kind: String,
    rate: Option<String>,
    qp: Option<u64>,
    op: Option<String>,
    after: Option<u64>,
    until: Option<u64>,
    every: Option<u64>,
    bytes: Option<u64>,
    us: Option<u64>,
}

impl PlanEntry {
    /// Reads the fault by way of its text form, so that both forms mean the same.
    fn read(&self) -> Result<FaultSpec, String> {
        if let Some(text) = [Some(&self.kind), self.rate.as_ref(), self.op.as_ref()]
            .into_iter()
            .flatten()
            .find(|text| text.contains(['@', ',', '=']))
        {
            return Err(format!("{text:?} has a character of the text form"));
        }
        let mut text = self.kind.clone();
        if let Some(rate) = &self.rate {
            text.push_str(&format!("={rate}"));
        }
        let numbers = [
            ("qp", self.qp),
            ("after", self.after),
            ("until", self.until),
            ("every", self.every),
            ("bytes", self.bytes),
            ("us", self.us),
        ];
        let numbers = numbers
            .iter()
            .filter_map(|(key, value)| value.map(|value| format!("{key}={value}")));
        let op = self.op.iter().map(|op| format!("op={op}"));
        let filters: Vec<_> = op.chain(numbers).collect();
        if !filters.is_empty() {
            text.push_str(&format!("@{}", filters.join(",")));
        }
        text.parse()
            .map_err(|error: <FaultSpec as std::str::FromStr>::Err| error.to_string())
    }
}

/// The faults and the seed, as `headworks verbs` passes them to the library.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct FaultPlan {
    /// The faults, separated by semicolons.
    pub(super) faults: String,
    pub(super) seed: u64,
}

impl FaultArgs {
    /// Returns the plan of all options; `None` without faults.
    pub(super) fn plan(&self) -> anyhow::Result<Option<FaultPlan>> {
        let (file, mut faults) = match &self.fault_plan {
            Some(path) => read(path)?,
            None => (PlanFile::default(), Vec::new()),
        };
        faults.extend(self.faults.iter().cloned());
        if faults.is_empty() && self.fault_plan.is_none() {
            return match self.seed {
                Some(_) => Err(bad_input(
                    "--seed selects faults: give --fault or --fault-plan too",
                )),
                None => Ok(None),
            };
        }
        let seed = self.seed.or(file.seed).unwrap_or(1);
        rules_of(&faults, seed).map_err(bad_input)?;
        let faults: Vec<_> = faults.iter().map(FaultSpec::to_string).collect();
        Ok(Some(FaultPlan {
            faults: faults.join(";"),
            seed,
        }))
    }
}

/// Largest file of faults.
const PLAN_BYTES_MAX: u64 = 1 << 20;

/// Reads a file of faults.
fn read(path: &Path) -> anyhow::Result<(PlanFile, Vec<FaultSpec>)> {
    let shown = path.display();
    let cannot = |error| bad_input(format_args!("cannot read the fault plan {shown}: {error}"));
    let about = std::fs::metadata(path).map_err(cannot)?;
    if !about.is_file() || about.len() > PLAN_BYTES_MAX {
        return Err(bad_input(format_args!(
            "the fault plan {shown} must be a file of at most {PLAN_BYTES_MAX} bytes"
        )));
    }
    let text = std::fs::read_to_string(path).map_err(cannot)?;
    parse(&text).map_err(|line| bad_input(format_args!("{shown}: {line}")))
}

fn parse(text: &str) -> Result<(PlanFile, Vec<FaultSpec>), String> {
    let file: PlanFile = toml::from_str(text).map_err(|error| {
        let line = error.span().map_or(1, |span| {
            let before = text.as_bytes().get(..span.start).unwrap_or_default();
            before.iter().filter(|byte| **byte == b'\n').count() + 1
        });
        let message = error.message().replace('\n', "; ");
        format!("line {line}: {message}")
    })?;
    let faults = file.fault.iter().zip(1..).map(|(entry, number)| {
        let fault = entry.read();
        fault.map_err(|error| format!("fault {number}: {error}"))
    });
    let faults = faults.collect::<Result<_, _>>()?;
    Ok((file, faults))
}

/// The part of the help text on faults.
pub(crate) fn help() -> String {
    let mut text = "Faults, for --fault and as `kind` in a fault plan:\n".to_owned();
    for kind in KINDS {
        text.push_str(&format!("  {:<15}{}\n", kind.name, kind.about));
    }
    text.push_str(
        "A request that fails takes its queue pair to the error state, and on a reliable connection the peer's too.

RATE is P% or 1/N; without it, a fault always occurs where the filters match. Filters:
  qp=N           only the N-th queue pair that the program makes on its device, from 1
  op=OP          only send, write, read, cas (compare-and-swap) or faa (fetch-and-add)
  after=N        spares the first N requests of a queue pair
  until=N        spares those after its N-th request
  every=N        of those that are left, only each N-th
  bytes=N        only requests of at least N bytes
  us=N           how long a slow request waits, in microseconds, 1 to 10000

A fault plan:
  seed = 7
  [[fault]]
  kind = \"wr_flush\"
  qp = 3
  after = 1000
  [[fault]]
  kind = \"rnr\"
  rate = \"1%\"",
    );
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    fn faults(text: &str) -> Result<Vec<String>, String> {
        let (_, faults) = parse(text)?;
        Ok(faults.iter().map(FaultSpec::to_string).collect())
    }

    #[test]
    fn a_file_means_what_its_text_forms_mean() {
        let example = help();
        let plan = example.split_once("A fault plan:\n").expect("an example").1;
        let (file, _) = parse(plan).expect("reads");
        assert_eq!(file.seed, Some(7));
        let texts = faults(plan).expect("reads");
        assert_eq!(texts, ["wr_flush@qp=3,after=1000", "rnr=1%"]);
        assert_eq!(faults("").expect("reads"), [""; 0]);
        let all =
            "[[fault]]\nkind='slow'\nrate='1/3000'\nop='send'\nuntil=9\nevery=2\nbytes=8\nus=5";
        let text = "slow=1/3000@op=send,until=9,every=2,bytes=8,us=5";
        assert_eq!(faults(all).expect("reads"), [text]);
    }

    #[test]
    fn a_wrong_file_is_one_line() {
        for (text, says) in [
            ("seed = -1", "line 1"),
            ("\n[[fault]]\nkind = 'rnr'\nwhat = 1", "line 4"),
            ("[[fault]]\nrate = '1%'", "kind"),
            ("[[fault]]\nkind = 'rnr'\nrate = '0%'", "fault 1: \"0%\""),
            ("[[fault]]\nkind = 'rnr@qp=1'", "fault 1"),
            ("fault", "line 1"),
        ] {
            let error = faults(text).expect_err(text);
            assert!(error.contains(says) && !error.contains('\n'), "{error}");
        }
    }

    #[test]
    fn the_options_add_to_the_file() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("plan.toml");
        std::fs::write(&path, "seed = 7\n[[fault]]\nkind = \"rnr\"\n").expect("writes");
        let args = |faults: &[&str], plan: bool, seed| FaultArgs {
            faults: faults
                .iter()
                .map(|text| text.parse().expect(text))
                .collect(),
            fault_plan: plan.then(|| path.clone()),
            seed,
        };
        let plan = |args: FaultArgs| args.plan().map_err(|error| error.to_string());
        let both = plan(args(&["loss=1%"], true, None))
            .expect("a plan")
            .expect("faults");
        assert_eq!((&*both.faults, both.seed), ("rnr;loss=1%", 7));
        let other = plan(args(&[], true, Some(9)))
            .expect("a plan")
            .expect("faults");
        assert_eq!(other.seed, 9);
        assert_eq!(plan(args(&[], false, None)), Ok(None));
        assert!(
            plan(args(&[], false, Some(1)))
                .expect_err("no faults")
                .contains("--fault")
        );
        assert!(
            plan(args(&["what"], false, None))
                .expect_err("no such")
                .contains("there are")
        );
    }
}
