//! `points.csv`: one row per measured point, units in the header.

/// A table of measured points.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Table {
    columns: Vec<String>,
    rows: Vec<Vec<Cell>>,
}

/// One value of a table.
#[derive(Clone, Debug, PartialEq)]
pub enum Cell {
    /// A word.
    Text(String),
    /// A number.
    Number(f64),
    /// Nothing was measured here.
    Empty,
}

impl From<&str> for Cell {
    fn from(text: &str) -> Self {
        Self::Text(text.to_owned())
    }
}

impl From<f64> for Cell {
    fn from(x: f64) -> Self {
        if x.is_finite() {
            Self::Number(x)
        } else {
            Self::Empty
        }
    }
}

impl From<Option<f64>> for Cell {
    fn from(x: Option<f64>) -> Self {
        x.map_or(Self::Empty, Self::from)
    }
}

impl Table {
    /// An empty table; a column is a name with its unit, as in `size [B]`.
    pub fn new(columns: &[&str]) -> Self {
        Self {
            columns: columns.iter().map(|&c| c.to_owned()).collect(),
            rows: Vec::new(),
        }
    }

    /// Adds a row; it is cut or filled up to the width of the header.
    pub fn push(&mut self, mut row: Vec<Cell>) {
        row.resize(self.columns.len(), Cell::Empty);
        self.rows.push(row);
    }

    /// How many rows there are.
    pub fn len(&self) -> usize {
        self.rows.len()
    }

    /// Whether there is no row.
    pub fn is_empty(&self) -> bool {
        self.rows.is_empty()
    }

    /// The table as RFC 4180 has it, with `\n`.
    pub fn to_csv(&self) -> String {
        let mut text = String::new();
        line(&mut text, self.columns.iter().map(|c| quoted(c)));
        for row in &self.rows {
            line(
                &mut text,
                row.iter().map(|cell| match cell {
                    Cell::Text(t) => quoted(t),
                    Cell::Number(x) => x.to_string(),
                    Cell::Empty => String::new(),
                }),
            );
        }
        text
    }
}

fn line(text: &mut String, cells: impl Iterator<Item = String>) {
    text.push_str(&cells.collect::<Vec<_>>().join(","));
    text.push('\n');
}

fn quoted(text: &str) -> String {
    if text.contains([',', '"', '\n', '\r']) {
        format!("\"{}\"", text.replace('"', "\"\""))
    } else {
        text.to_owned()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// Parses what `to_csv` writes.
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
        let mut table = Table::new(&["arm", "size [B]", "rate [msg/s]"]);
        table.push(vec!["tcp, spinning".into(), 64.0.into(), None.into()]);
        assert_eq!(
            table.to_csv(),
            "arm,size [B],rate [msg/s]\n\"tcp, spinning\",64,\n"
        );
    }

    proptest! {
        #[test]
        fn reads_back(cells in prop::collection::vec("[ -~\n\"]{0,12}", 3), x in -1e15..1e15_f64) {
            let mut table = Table::new(&["a", "b", "c", "d"]);
            let mut row: Vec<Cell> = cells.iter().map(|c| c.as_str().into()).collect();
            row.push(Cell::from(x));
            table.push(row);
            let back = parse(&table.to_csv());
            prop_assert_eq!(&back[1][..3], &cells[..]);
            prop_assert_eq!(back[1][3].parse::<f64>().unwrap(), x);
        }
    }
}
