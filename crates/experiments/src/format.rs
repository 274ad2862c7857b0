//! Output formats: CSV and Markdown tables, SVG charts, and numbers for people to read.

pub mod grid;
pub mod svg;

/// Formats a number for people to read, with about three significant digits.
pub fn human(x: f64) -> String {
    match x.abs() {
        a if !a.is_finite() => x.to_string(),
        0.0 => "0".to_owned(),
        a if a >= 1e9 => format!("{:.3}e9", x / 1e9),
        a if a >= 1e6 => format!("{:.2}M", x / 1e6),
        a if a >= 1e4 => format!("{:.1}k", x / 1e3),
        a if a >= 100.0 => format!("{x:.0}"),
        a if a >= 10.0 => format!("{x:.1}"),
        a if a >= 0.01 => format!("{x:.3}"),
        _ => format!("{x:.2e}"),
    }
}
