//! Tables of text, written as CSV and as Markdown.

/// A table of text: the points of an experiment, or a table of its report.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Grid {
    /// Heading of the table.
    pub title: String,
    /// Names of the columns, with their units, as in `size [B]`.
    pub header: Vec<String>,
    /// The rows; each has as many cells as the header.
    pub rows: Vec<Vec<String>>,
}

/// One cell of a table of points: a word, or a number with all its digits; empty if nothing was measured.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Cell(pub String);

impl From<&str> for Cell {
    fn from(text: &str) -> Self {
        Self(text.to_owned())
    }
}

impl From<f64> for Cell {
    fn from(x: f64) -> Self {
        Some(x).into()
    }
}

impl From<Option<f64>> for Cell {
    fn from(x: Option<f64>) -> Self {
        let finite = x.filter(|x| x.is_finite());
        Self(finite.map_or_else(String::new, |x| x.to_string()))
    }
}

impl Grid {
    /// Makes a table of `title`, `header` and `rows`; `None` if `rows` is empty.
    pub fn of(
        title: impl Into<String>,
        header: impl IntoIterator<Item = impl Into<String>>,
        rows: Vec<Vec<String>>,
    ) -> Option<Self> {
        (!rows.is_empty()).then(|| Self {
            title: title.into(),
            header: header.into_iter().map(Into::into).collect(),
            rows,
        })
    }

    /// Formats the table as CSV (RFC 4180, but with `\n` line ends), without its title.
    pub fn to_csv(&self) -> String {
        let quoted = |text: &String| match text.contains([',', '"', '\n', '\r']) {
            true => format!("\"{}\"", text.replace('"', "\"\"")),
            false => text.clone(),
        };
        let lines = std::iter::once(&self.header).chain(&self.rows);
        let line = |cells: &Vec<String>| {
            let cells: Vec<_> = cells.iter().map(quoted).collect();
            cells.join(",") + "\n"
        };
        lines.map(line).collect()
    }

    /// Formats the table as Markdown, under its title.
    pub fn to_markdown(&self) -> String {
        let cell = |text: &String| text.replace('|', "\\|").replace('\n', " ");
        let line = |cells: &Vec<String>| {
            let cells: Vec<_> = cells.iter().map(cell).collect();
            format!("| {} |\n", cells.join(" | "))
        };
        let rule = vec!["---".to_owned(); self.header.len()];
        let lines = [&self.header, &rule].into_iter().chain(&self.rows);
        let lines: String = lines.map(line).collect();
        format!("## {}\n\n{lines}\n", self.title)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// Parses the output of `to_csv`.
    fn parse(text: &str) -> Vec<Vec<String>> {
        let (mut rows, mut row, mut cell) = (Vec::new(), Vec::new(), String::new());
        let mut chars = text.chars().peekable();
        let mut inside = false;
        while let Some(c) = chars.next() {
            match (inside, c) {
                (true, '"') if chars.peek() == Some(&'"') => cell.extend(chars.next()),
                (_, '"') => inside = !inside,
                (false, ',') => row.push(std::mem::take(&mut cell)),
                (false, '\n') => {
                    row.push(std::mem::take(&mut cell));
                    rows.push(std::mem::take(&mut row));
                }
                (_, c) => cell.push(c),
            }
        }
        rows
    }

    #[test]
    fn units_stay_in_the_header_and_gaps_are_empty() {
        let row = [Cell::from("a|b, c"), 64.0.into(), f64::NAN.into()];
        let row = row.map(|cell| cell.0).to_vec();
        let grid = Grid::of("T", ["arm", "size [B]", "rate [1/s]"], vec![row]);
        let grid = grid.expect("a row");
        let csv = "arm,size [B],rate [1/s]\n\"a|b, c\",64,\n";
        assert_eq!(grid.to_csv(), csv);
        let markdown = "## T\n\n| arm | size [B] | rate [1/s] |\n| --- | --- | --- |\n| a\\|b, c | 64 |  |\n\n";
        assert_eq!(grid.to_markdown(), markdown);
    }

    proptest! {
        #[test]
        fn reads_back(cells in prop::collection::vec("[ -~\n\"]{0,12}", 3), x in -1e15..1e15_f64) {
            let row = [&cells[..], &[Cell::from(x).0]].concat();
            let grid = Grid { rows: vec![row], ..Grid::default() };
            let back = parse(&grid.to_csv());
            prop_assert_eq!(&back[1][..3], &cells[..]);
            prop_assert_eq!(back[1][3].parse::<f64>().unwrap(), x);
        }
    }
}
