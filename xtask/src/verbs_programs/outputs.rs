//! Reads what the programs print.

/// A message that says that received bytes are wrong. The pingpongs print it and succeed.
const WRONG_DATA: &str = "invalid data";

/// Whether a line is a line of measurements of perftest: the size of the messages, and at least two other numbers.
pub(super) fn is_report(line: &str) -> bool {
    let words: Vec<_> = line.split_whitespace().collect();
    words.len() >= 3
        && words[0].parse::<u64>().is_ok()
        && words.iter().all(|word| word.parse::<f64>().is_ok())
}

/// Whether qperf has printed results, `bw  =  24 GB/sec`, none of which is zero.
pub(super) fn are_results<'t>(lines: impl Iterator<Item = &'t str>) -> bool {
    let value = |line: &'t str| Some(line.split_once(" = ")?.1.trim());
    let mut values = lines.filter_map(value).peekable();
    values.peek().is_some() && values.all(|value| !value.starts_with("0 "))
}

/// The line that tells best why a program did not work: a line with wrong data or an error, or else the last line.
pub(super) fn reason<'t>(lines: impl Iterator<Item = &'t str> + Clone) -> Option<&'t str> {
    const WORDS: [&str; 6] = [
        WRONG_DATA,
        "error",
        "fail",
        "not support",
        "unsupported",
        "couldn't",
    ];
    let lines = lines.map(str::trim).filter(|line| has_letters(line));
    let tells = |line: &&str| {
        let line = line.to_lowercase();
        WORDS.iter().any(|word| line.contains(word))
    };
    lines.clone().find(tells).or_else(|| lines.last())
}

/// Whether a program that succeeded has printed that it received wrong bytes.
pub(super) fn has_wrong_data<'t>(mut lines: impl Iterator<Item = &'t str>) -> bool {
    lines.any(|line| line.contains(WRONG_DATA))
}

fn has_letters(line: &str) -> bool {
    line.chars().any(char::is_alphabetic)
}

/// How one test of pyverbs ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct PythonTest {
    /// Its full name, `tests.test_cq.CQTest.test_resize_cq`.
    pub(super) name: String,
    pub(super) outcome: Outcome,
}

/// An outcome, with the reason unless the test passed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Outcome {
    Passed,
    Skipped(String),
    Failed(String),
}

/// The outcomes of a run of the tests of pyverbs.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct PythonTests {
    pub(super) tests: Vec<PythonTest>,
    /// Version of the kernel that they ran on.
    pub(super) kernel: String,
    /// Whether all tests have run.
    pub(super) has_ended: bool,
}

impl PythonTests {
    /// Reads what `python_tests.py` prints. Other lines are those of the tests themselves, or of the machine's console.
    pub(super) fn read<'t>(lines: impl Iterator<Item = &'t str>) -> Self {
        let mut read = Self::default();
        for line in lines {
            let Some(line) = line.trim_end().strip_prefix("pyverbs: ") else {
                continue;
            };
            let (what, rest) = line.split_once(' ').unwrap_or((line, ""));
            let (name, reason) = rest.split_once(": ").unwrap_or((rest, ""));
            let outcome = match what {
                "passed" => Outcome::Passed,
                "skipped" => Outcome::Skipped(reason.to_owned()),
                "failed" => Outcome::Failed(reason.to_owned()),
                "kernel" => {
                    read.kernel = rest.to_owned();
                    continue;
                }
                "end" => {
                    read.has_ended = true;
                    continue;
                }
                _ => continue,
            };
            read.tests.push(PythonTest {
                name: name.to_owned(),
                outcome,
            });
        }
        read
    }

    /// Number of tests that passed.
    pub(super) fn passed(&self) -> usize {
        let passed = |test: &&PythonTest| test.outcome == Outcome::Passed;
        self.tests.iter().filter(passed).count()
    }

    /// Number of tests that were skipped.
    pub(super) fn skipped(&self) -> usize {
        let skipped = |test: &&PythonTest| matches!(test.outcome, Outcome::Skipped(_));
        self.tests.iter().filter(skipped).count()
    }

    /// The tests that failed, with the reason.
    pub(super) fn failed(&self) -> impl Iterator<Item = (&str, &str)> {
        self.tests.iter().filter_map(|test| match &test.outcome {
            Outcome::Failed(reason) => Some((test.name.as_str(), reason.as_str())),
            _ => None,
        })
    }

    /// The tests that pass in `other` and not here, with their outcome here.
    pub(super) fn passed_only_in<'s>(&'s self, other: &Self) -> Vec<&'s PythonTest> {
        let passes = |test: &PythonTest| {
            let there = other.tests.iter().find(|there| there.name == test.name);
            there.is_some_and(|there| there.outcome == Outcome::Passed)
        };
        self.tests
            .iter()
            .filter(|test| test.outcome != Outcome::Passed && passes(test))
            .collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_of_numbers_is_a_report() {
        for line in [
            " 65536      50               63124.61            61843.02\t\t   0.989488",
            " 2       50          0.37           2.31         0.41",
        ] {
            assert!(is_report(line), "{line}");
        }
        for line in [
            " #bytes     #iterations    BW peak[MB/sec]    BW average[MB/sec]   MsgRate[Mpps]",
            " local address: LID 0000 QPN 0x0001 PSN 0x3a2d81",
            "---------------------------------------------------------------------------------------",
            " 128",
            "",
        ] {
            assert!(!is_report(line), "{line}");
        }
    }

    #[test]
    fn the_reason_is_the_first_line_that_names_an_error() {
        let reason = |text: &str| reason(text.lines()).unwrap_or_default().to_owned();
        assert_eq!(
            reason("---\n Send BW Test\n Couldn't create QP\n Failed to bring up\n---"),
            "Couldn't create QP"
        );
        assert_eq!(reason("one\ntwo\n----\n"), "two");
        assert_eq!(reason(""), "");
    }

    #[test]
    fn a_result_of_zero_is_none() {
        let are = |text: &str| are_results(text.lines());
        assert!(are(
            "rc_bw:\n    bw  =  24 GB/sec\n    msg_rate =  0.5 K/sec\n"
        ));
        assert!(!are(
            "uc_bi_bw:\n    send_bw  =  606 GB/sec\n    recv_bw  =  0 bytes/sec\n"
        ));
        assert!(!are("rc_bw:\n"));
    }

    #[test]
    fn wrong_data_is_noticed() {
        let said = "8192000 bytes in 0.01 seconds\ninvalid data in page 1\n";
        assert!(has_wrong_data(said.lines()));
        assert!(!has_wrong_data("8192000 bytes in 0.01 seconds".lines()));
    }

    const SAID: &str = "\npyverbs: kernel 6.1.0\nwarning\n\
        pyverbs: passed tests.test_pd.PDTest.test_alloc_pd\r\n\n\
        pyverbs: skipped tests.test_mr.MWTest.test_mw_type1: Create MW: is not supported\n\
        pyverbs: failed tests.test_cq.CQTest.test_resize_cq: Errno: 95\n";

    #[test]
    fn outcomes_of_the_python_tests_are_read() {
        let read = PythonTests::read(SAID.lines());
        assert_eq!((read.passed(), read.skipped(), read.tests.len()), (1, 1, 3));
        let failed: Vec<_> = read.failed().collect();
        assert_eq!(
            failed,
            [("tests.test_cq.CQTest.test_resize_cq", "Errno: 95")]
        );
        assert_eq!(
            read.tests[1].outcome,
            Outcome::Skipped("Create MW: is not supported".to_owned())
        );
        assert_eq!(read.kernel, "6.1.0");
        assert!(!read.has_ended);
        let ended = format!("{SAID}pyverbs: end\n");
        assert!(PythonTests::read(ended.lines()).has_ended);
    }

    #[test]
    fn tests_that_only_the_other_passes_are_found() {
        let here = PythonTests::read(SAID.lines());
        let there = SAID
            .replace("skipped", "passed")
            .replace(": Create MW: is not supported", "");
        let there = PythonTests::read(there.lines());
        let names: Vec<_> = here.passed_only_in(&there);
        assert_eq!(names.len(), 1);
        assert_eq!(names[0].name, "tests.test_mr.MWTest.test_mw_type1");
        assert!(there.passed_only_in(&here).is_empty());
    }
}
