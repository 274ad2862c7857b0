//! Rules about file names and documentation.

/// Largest number of lines of the README, which must be readable in five minutes.
const README_LINES_MAX: usize = 120;

/// Words that no file name may contain, and the standard term to use instead.
const BANNED: &[(&str, &str)] = &[
    ("agenda", "event_queue"),
    ("around", "interpose"),
    ("arrows", "layering"),
    ("attendant", "background"),
    ("bell", "event_count"),
    ("casualties", "kills"),
    ("cast", "actors"),
    ("census", "inspect, or object_counts"),
    ("desk", "context"),
    ("director", "coordinator"),
    ("dying", "draining"),
    ("fabric", "registry"),
    ("guests", "hostile_clients"),
    ("hear", "receive"),
    ("inlet", "ingress"),
    ("outlet", "egress"),
    ("plays", "scenarios"),
    ("puppet", "executor"),
    ("purse", "token_bucket"),
    ("rota", "drr"),
    ("seat", "what the member is"),
    ("seldom", "log_ratelimit"),
    ("stage", "runtime, or net"),
    ("surroundings", "environment"),
    ("troupe", "child"),
    ("unruly", "what the device or the test does"),
];

/// First words of a comment that names nothing itself.
const PRONOUNS: &[&str] = &[
    "All", "Both", "He", "His", "How", "It", "Its", "None", "Nothing", "Ours", "So", "That", "The",
    "Theirs", "Them", "These", "Those", "What", "When", "Where", "Which", "Who", "Why",
];

/// Words that add no information after a pronoun.
const FILLERS: &[&str] = &[
    "and", "are", "is", "it", "its", "long", "many", "much", "of", "one", "ones", "other",
    "other's", "others", "same", "so", "them", "there", "they",
];

/// Passes each line that breaks a rule to `find`, with what is wrong. Line 0 stands for the whole file.
pub(super) fn check(file: &str, text: &str, find: &mut impl FnMut(usize, String)) {
    if file == "README.md" && text.lines().count() > README_LINES_MAX {
        let what = format!("more than {README_LINES_MAX} lines: details go to docs/");
        find(0, what);
    }
    for (word, instead) in banned(file) {
        find(0, format!("no file name may contain {word}: use {instead}"));
    }
    if !file.ends_with(".rs") {
        return;
    }
    let mut is_continued = false;
    for (at, line) in text.lines().enumerate() {
        let line = line.trim_start();
        let doc = line
            .strip_prefix("///")
            .or_else(|| line.strip_prefix("//!"));
        if let Some(doc) = doc.filter(|_| !is_continued)
            && is_pronoun_only(doc)
        {
            let what = format!("{line:?} is only a pronoun: say what the item holds or does");
            find(at + 1, what);
        }
        is_continued = doc.is_some_and(|doc| !doc.trim().is_empty());
    }
}

/// The banned words in the last two components of a path.
fn banned(file: &str) -> impl Iterator<Item = (&'static str, &'static str)> {
    let is_ours = file.ends_with(".rs") && !file.contains("/corpus/");
    let names = file.rsplit('/').take(2).filter(move |_| is_ours);
    let words = names.flat_map(|name| name.trim_end_matches(".rs").split(['_', '-']));
    let words: Vec<_> = words.collect();
    BANNED
        .iter()
        .copied()
        .filter(move |(word, _)| words.contains(word))
}

/// Whether a comment consists of a pronoun and filler words, as in `Which one.`.
fn is_pronoun_only(doc: &str) -> bool {
    let Some(sentence) = doc.trim().strip_suffix('.') else {
        return false;
    };
    let mut words = sentence.split([' ', ',']).filter(|word| !word.is_empty());
    let first = words.next().unwrap_or_default();
    let rest: Vec<_> = words.collect();
    let is_article = first == "The" && rest.is_empty();
    PRONOUNS.contains(&first) && !is_article && rest.iter().all(|word| FILLERS.contains(word))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn comments_of_pronouns_alone_are_found() {
        for doc in [
            "Which.",
            "How many there are.",
            "The other's.",
            "All of them.",
            "The same.",
        ] {
            assert!(is_pronoun_only(doc), "{doc}");
        }
        for doc in [
            "Which link.",
            "The port.",
            "How many receives are posted.",
            "READ.",
            "All",
        ] {
            assert!(!is_pronoun_only(doc), "{doc}");
        }
    }

    #[test]
    fn only_the_whole_comment_counts() {
        let mut found = Vec::new();
        let text = "/// Sends what is\n/// there.\nfn f() {}\n\n/// Why.\nfn g() {}\n";
        check("crates/x/src/y.rs", text, &mut |line, _| found.push(line));
        assert_eq!(found, [5]);
    }

    #[test]
    fn metaphors_name_no_file() {
        let words = |file| banned(file).map(|(word, _)| word).collect::<Vec<_>>();
        assert_eq!(words("crates/pacing/src/purse.rs"), ["purse"]);
        assert_eq!(words("crates/shm/src/fabric/record.rs"), ["fabric"]);
        assert_eq!(words("crates/shm/src/registry/fabrics.rs"), [""; 0]);
        assert_eq!(words("fuzz/corpus/census/1"), [""; 0]);
    }

    #[test]
    fn a_long_readme_is_found() {
        let mut found = 0;
        let text = "\n".repeat(README_LINES_MAX + 1);
        check("README.md", &text, &mut |_, _| found += 1);
        check("docs/long.md", &text, &mut |_, _| found += 1);
        assert_eq!(found, 1);
    }
}
