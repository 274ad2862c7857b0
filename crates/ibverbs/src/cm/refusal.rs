//! Texts for the connection manager's refusals: pure.

use super::REASON_PROGRAM;

/// The text for a refusal's reason, which is InfiniBand's number (specification, volume 1, table 110).
/// `is_wordless`: the refusal carried only zeros.
pub(super) fn in_words(reason: i32, is_wordless: bool) -> String {
    let words = match reason {
        1 | 3 => "the other side has no room for another connection",
        4 => "the other side gave up the connection: it timed out",
        10 => "the other side takes this for an earlier connection, which it has not closed yet",
        12 | 13 => "the other side does not know the address of the request",
        24 | 25 => "the other side redirects to another port or address",
        26 => "the other side does not support packets of this size",
        REASON_PROGRAM if is_wordless => {
            "the listener there is gone or has accepted another connection"
        }
        REASON_PROGRAM => "the program there refuses the connection",
        _ => return format!("the other side refuses the connection (reason {reason})"),
    };
    words.to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_number_is_shown_where_there_is_no_word_for_it() {
        for known in [1, 3, 4, 10, 12, 13, 24, 25, 26, REASON_PROGRAM] {
            for is_wordless in [true, false] {
                let said = in_words(known, is_wordless);
                assert!(!said.contains(|c: char| c.is_ascii_digit()), "{said}");
            }
        }
        for unknown in [-1, 0, 2, 27, 29, 200] {
            let said = in_words(unknown, true);
            assert!(said.ends_with(&format!("(reason {unknown})")), "{said}");
        }
    }

    #[test]
    fn program_and_kernel_refusals_are_worded_differently() {
        assert!(in_words(REASON_PROGRAM, false).contains("the program there refuses"));
        assert!(in_words(REASON_PROGRAM, true).contains("gone or has accepted another connection"));
    }
}
