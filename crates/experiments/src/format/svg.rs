//! Line charts as SVG.

use plotters::coord::combinators::BindKeyPoints;
use plotters::coord::ranged1d::{AsRangedCoord, Ranged, ValueFormatter};
use plotters::prelude::*;

use super::human;

/// Width and height of a chart, and the part of the width that the legend takes, in pixels.
const SIZE: (u32, u32) = (1000, 560);
const LEGEND: u32 = 230;

/// One chart.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Figure {
    /// File name, with `.svg`.
    pub file: String,
    /// Title of the chart.
    pub title: String,
    /// The horizontal axis.
    pub x: Axis,
    /// The vertical axis.
    pub y: Axis,
    /// Lines of the chart.
    pub series: Vec<Series>,
}

/// One axis of a chart.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Axis {
    /// Title of the axis, with the unit.
    pub title: String,
    /// Whether the axis is logarithmic; it then omits values that are not positive.
    pub log: bool,
}

/// One line of a chart.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Series {
    /// Name in the legend.
    pub name: String,
    /// Points of the line, from left to right.
    pub points: Vec<(f64, f64)>,
}

impl Axis {
    /// Makes a linear axis.
    pub fn linear(title: &str) -> Self {
        let (title, log) = (title.to_owned(), false);
        Self { title, log }
    }

    /// Makes a logarithmic axis.
    pub fn log(title: &str) -> Self {
        let (title, log) = (title.to_owned(), true);
        Self { title, log }
    }

    fn shows(&self, value: f64) -> bool {
        value.is_finite() && (!self.log || value > 0.0)
    }

    /// Returns a range from the lowest to the highest of `values`, with a margin. A linear axis begins at
    /// zero or below.
    fn range(&self, values: impl Iterator<Item = f64>) -> (f64, f64) {
        let (low, high) = values.fold((f64::INFINITY, f64::NEG_INFINITY), |(low, high), v| {
            (low.min(v), high.max(v))
        });
        match (low <= high, self.log) {
            (false, _) => (1.0, 10.0),
            (true, true) => (low / 1.3, high * 1.3),
            (true, false) => (low.min(0.0), if high > 0.0 { high * 1.08 } else { 1.0 }),
        }
    }
}

impl Figure {
    /// Draws the chart as SVG text.
    pub fn to_svg(&self) -> Result<String, String> {
        let shown: Vec<Series> = self.series.iter().map(|s| self.visible(s)).collect();
        let points = || shown.iter().flat_map(|s| s.points.iter());
        let (x0, x1) = self.x.range(points().map(|p| p.0));
        let (y0, y1) = self.y.range(points().map(|p| p.1));
        let log_x = || (x0..x1).log_scale().with_key_points(marks(&shown));
        let log_y = || (y0..y1).log_scale();
        match (self.x.log, self.y.log) {
            (false, false) => self.draw(&shown, x0..x1, y0..y1),
            (true, false) => self.draw(&shown, log_x(), y0..y1),
            (false, true) => self.draw(&shown, x0..x1, log_y()),
            (true, true) => self.draw(&shown, log_x(), log_y()),
        }
        .map_err(|why| why.to_string())
    }

    fn visible(&self, series: &Series) -> Series {
        let keep = |p: &&(f64, f64)| self.x.shows(p.0) && self.y.shows(p.1);
        let points = series.points.iter().filter(keep).copied().collect();
        Series {
            name: series.name.clone(),
            points,
        }
    }

    fn draw<X, Y>(&self, shown: &[Series], x: X, y: Y) -> Result<String, Box<dyn std::error::Error>>
    where
        X: AsRangedCoord<Value = f64>,
        Y: AsRangedCoord<Value = f64>,
        X::CoordDescType: Ranged<ValueType = f64> + ValueFormatter<f64>,
        Y::CoordDescType: Ranged<ValueType = f64> + ValueFormatter<f64>,
    {
        let mut svg = String::new();
        {
            let root = SVGBackend::with_string(&mut svg, SIZE).into_drawing_area();
            root.fill(&WHITE)?;
            let (plot, legend) = root.split_horizontally(SIZE.0 - LEGEND);
            let mut chart = ChartBuilder::on(&plot)
                .caption(&self.title, ("sans-serif", 18))
                .margin(12)
                .x_label_area_size(44)
                .y_label_area_size(72)
                .build_cartesian_2d(x, y)?;
            chart
                .configure_mesh()
                .x_desc(&self.x.title)
                .y_desc(&self.y.title)
                .x_label_formatter(&|v| tick(*v))
                .y_label_formatter(&|v| tick(*v))
                .light_line_style(WHITE)
                .axis_desc_style(("sans-serif", 15))
                .label_style(("sans-serif", 12))
                .draw()?;
            for (index, series) in shown.iter().enumerate() {
                let style = colour(index).stroke_width(2);
                chart.draw_series(LineSeries::new(series.points.iter().copied(), style))?;
                for &point in &series.points {
                    let dot = EmptyElement::at(point) + marker(index, (0, 0));
                    chart.plotting_area().draw(&dot)?;
                }
                let row = 60 + 22 * index as i32;
                legend.draw(&PathElement::new(vec![(6, row), (34, row)], style))?;
                legend.draw(&marker(index, (20, row)))?;
                legend.draw(&Text::new(
                    series.name.clone(),
                    (42, row - 6),
                    ("sans-serif", 13),
                ))?;
            }
            root.present()?;
        }
        Ok(svg)
    }
}

/// Returns the labelled positions of a logarithmic horizontal axis: those of the points.
fn marks(shown: &[Series]) -> Vec<f64> {
    let mut marks: Vec<f64> = shown
        .iter()
        .flat_map(|s| s.points.iter().map(|p| p.0))
        .collect();
    marks.sort_by(f64::total_cmp);
    marks.dedup();
    marks
}

/// Formats the label of a tick: sizes with all digits, other numbers without trailing zeros.
fn tick(x: f64) -> String {
    if x.fract() == 0.0 && x.abs() < 1e4 {
        return x.to_string();
    }
    match x {
        _ if x.fract() == 0.0 && x < 2e6 && x % 1024.0 == 0.0 => x.to_string(),
        _ if x < 1.0 => x.to_string(),
        _ => human(x).replace(".00M", "M").replace(".0k", "k"),
    }
}

/// Returns a line's colour: eight distinguishable colours after Okabe and Ito. The markers tell more than
/// eight lines apart.
fn colour(index: usize) -> RGBColor {
    const COLOURS: [RGBColor; 8] = [
        RGBColor(0, 114, 178),
        RGBColor(213, 94, 0),
        RGBColor(0, 158, 115),
        RGBColor(204, 121, 167),
        RGBColor(86, 180, 233),
        RGBColor(230, 159, 0),
        RGBColor(0, 0, 0),
        RGBColor(128, 128, 128),
    ];
    COLOURS[index % COLOURS.len()]
}

fn marker(index: usize, at: (i32, i32)) -> Circle<(i32, i32), i32> {
    let style = colour(index);
    match index / 8 {
        0 => Circle::new(at, 4, style.filled()),
        1 => Circle::new(at, 4, style.stroke_width(1)),
        _ => Circle::new(at, 7, style.stroke_width(1)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn figure() -> Figure {
        Figure {
            file: "f.svg".into(),
            title: "Rate <over> size".into(),
            x: Axis::log("size [B]"),
            y: Axis::log("rate [msg/s]"),
            series: (0..18)
                .map(|i| Series {
                    name: format!("arm-{i}"),
                    points: vec![(8.0, 1e6 * f64::from(i)), (64.0, 1e5), (4096.0, f64::NAN)],
                })
                .collect(),
        }
    }

    #[test]
    fn has_titles_units_and_every_name() {
        let svg = figure().to_svg().unwrap();
        assert!(svg.starts_with("<svg") && svg.trim_end().ends_with("</svg>"));
        let names = ["arm-0", "arm-17", "Rate &lt;over&gt; size"];
        for wanted in names.into_iter().chain(["size [B]", "rate [msg/s]"]) {
            assert!(svg.contains(wanted), "{wanted}");
        }
        // Every element that is opened is closed.
        assert_eq!(svg.matches("<text").count(), svg.matches("</text>").count());
        assert!(!svg.contains("NaN"));
    }

    #[test]
    fn ticks_read_well() {
        let read = [64.0, 1048576.0, 1e7, 1e5, 10.0, 0.1].map(tick);
        assert_eq!(read, ["64", "1048576", "10M", "100k", "10", "0.1"]);
    }

    #[test]
    fn draws_without_points_and_on_linear_axes() {
        let mut drawn = figure();
        drawn.series.clear();
        for x in ["size [B]", "load [%]"] {
            assert!(drawn.to_svg().unwrap().contains(x));
            (drawn.x, drawn.y) = (Axis::linear("load [%]"), Axis::linear("t [ns]"));
            drawn.series = figure().series;
        }
    }
}
