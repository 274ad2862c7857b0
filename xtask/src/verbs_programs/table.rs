//! The table of what works: as Markdown, and compared with the one in the documentation.

use std::fmt::Write as _;

/// A row of the table: a program.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Row {
    pub(super) title: String,
    pub(super) package: String,
    /// `None` if the program is not installed.
    pub(super) count: Option<Count>,
}

/// How many sets of options were run and worked.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Count {
    pub(super) run: usize,
    pub(super) worked: usize,
    /// What did not work, with the reason.
    pub(super) notes: Vec<String>,
}

/// A row as the documentation has it.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Documented {
    title: String,
    run: usize,
    worked: usize,
}

/// Lines between which a generated part of the document lies.
#[derive(Clone, Copy, Debug)]
pub(super) struct Section {
    begin: &'static str,
    end: &'static str,
}

/// The table of programs.
pub(super) const PROGRAMS: Section = Section {
    begin: "<!-- programs: written by cargo xtask verbs-programs --write -->",
    end: "<!-- end of programs -->",
};
/// The comparison with the kernel's device.
pub(super) const RXE: Section = Section {
    begin: "<!-- rxe: written by cargo xtask verbs-programs --rxe --write -->",
    end: "<!-- end of rxe -->",
};

impl Section {
    /// What the document has in this section.
    pub(super) fn of<'t>(&self, document: &'t str) -> Result<&'t str, String> {
        let (_, rest) = self.split(document)?;
        Ok(rest.0)
    }

    /// The document with another text in this section.
    pub(super) fn replaced(&self, document: &str, text: &str) -> Result<String, String> {
        let (before, (_, after)) = self.split(document)?;
        Ok(format!(
            "{before}{}\n\n{}\n\n{}{after}",
            self.begin,
            text.trim(),
            self.end
        ))
    }

    /// What is before this section, in it, and after it.
    fn split<'t>(&self, document: &'t str) -> Result<(&'t str, (&'t str, &'t str)), String> {
        let parts = || {
            let (before, rest) = document.split_once(self.begin)?;
            Some((before, rest.split_once(self.end)?))
        };
        parts().ok_or_else(|| format!("no lines {} and {}", self.begin, self.end))
    }
}

/// The table as Markdown.
pub(super) fn markdown(rows: &[Row]) -> String {
    let mut text =
        "| program | package | option sets run | work | do not work |\n|---|---|---|---|---|\n"
            .to_owned();
    for Row {
        title,
        package,
        count,
    } in rows
    {
        let _ = match count {
            None => writeln!(text, "| {title} | {package} | 0 | 0 | not installed |"),
            Some(Count { run, worked, notes }) => writeln!(
                text,
                "| {title} | {package} | {run} | {worked} | {} |",
                notes.join("; ")
            ),
        };
    }
    text
}

/// Reads the table of the documentation.
fn read(section: &str) -> Vec<Documented> {
    let row = |line: &str| {
        let cells: Vec<_> = line.split('|').map(str::trim).collect();
        let [_, title, _, run, worked, ..] = cells[..] else {
            return None;
        };
        Some(Documented {
            title: title.to_owned(),
            run: run.parse().ok()?,
            worked: worked.parse().ok()?,
        })
    };
    section.lines().filter_map(row).collect()
}

/// Compares the rows with a section of the documentation, and returns what is wrong. A program that is not installed, or that works with
/// more option sets than documented, is no error.
pub(super) fn differences(rows: &[Row], section: &str) -> Vec<String> {
    let documented = read(section);
    let mut wrong = Vec::new();
    for Row { title, count, .. } in rows {
        let Some(count) = count else { continue };
        let Some(before) = documented.iter().find(|row| row.title == *title) else {
            wrong.push(format!("{title} is not in the table"));
            continue;
        };
        let of = |worked: usize, run: usize| format!("{worked} of {run} option sets");
        let fewer = count.worked < before.worked;
        if fewer || count.run != before.run {
            let what = match fewer {
                true => "no longer works as the table says",
                false => "has other option sets than in the table",
            };
            wrong.push(format!(
                "{title} {what}: {} work, {} in the table: {}",
                of(count.worked, count.run),
                of(before.worked, before.run),
                count.notes.join("; ")
            ));
        }
    }
    let is_run = |title: &str| rows.iter().any(|row| row.title == title);
    let gone = documented.iter().filter(|row| !is_run(&row.title));
    wrong.extend(gone.map(|row| format!("{} is only in the table", row.title)));
    wrong
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row(title: &str, run: usize, worked: usize) -> Row {
        Row {
            title: title.to_owned(),
            package: "perftest".to_owned(),
            count: Some(Count {
                run,
                worked,
                notes: vec!["`-R`: no".to_owned(); run - worked],
            }),
        }
    }

    #[test]
    fn rows_are_read_as_they_were_written() {
        let mut rows = vec![row("ib_write_bw", 3, 1), row("ib_read_bw", 2, 2)];
        let text = markdown(&rows);
        assert!(
            text.contains("| ib_write_bw | perftest | 3 | 1 | `-R`: no; `-R`: no |\n"),
            "{text}"
        );
        assert_eq!(differences(&rows, &text), [""; 0]);
        // It is in the table, but cannot run here.
        rows[1].count = None;
        assert!(markdown(&rows).contains("| ib_read_bw | perftest | 0 | 0 | not installed |"));
        assert_eq!(differences(&rows, &text), [""; 0]);
    }

    #[test]
    fn a_program_that_works_less_than_documented_is_a_difference() {
        let documented = markdown(&[row("ib_write_bw", 3, 3), row("gone", 1, 1)]);
        let rows = [row("ib_write_bw", 3, 2), row("new", 1, 1)];
        let wrong = differences(&rows, &documented);
        assert_eq!(
            wrong,
            [
                "ib_write_bw no longer works as the table says: 2 of 3 option sets work, 3 of 3 option sets in the table: `-R`: no",
                "new is not in the table",
                "gone is only in the table",
            ]
        );
        let of_two = markdown(&[row("ib_write_bw", 3, 2)]);
        assert_eq!(differences(&[row("ib_write_bw", 3, 3)], &of_two), [""; 0]);
        let other = differences(&[row("ib_write_bw", 4, 3)], &of_two);
        assert!(other[0].contains("other option sets"), "{other:?}");
    }

    #[test]
    fn a_section_of_a_document_is_replaced() {
        let document = format!("# A\n\n{}\nold\n{}\n\nrest\n", PROGRAMS.begin, PROGRAMS.end);
        let new = PROGRAMS.replaced(&document, "new\n").unwrap();
        assert_eq!(PROGRAMS.of(&new).unwrap().trim(), "new");
        assert!(new.starts_with("# A\n\n<!--") && new.ends_with("-->\n\nrest\n"));
        assert_eq!(PROGRAMS.replaced(&new, "new").unwrap(), new);
        assert!(RXE.of(&document).unwrap_err().contains("rxe"));
    }
}
