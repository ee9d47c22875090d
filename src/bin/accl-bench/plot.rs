//! The picture: time and bus bandwidth over size, both axes logarithmic, as a small SVG of our own.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use crate::args::Settings;
use crate::row::{Placement, Row};
use crate::sizes::human;

const WIDTH: f64 = 960.0;
const HEIGHT: f64 = 480.0;
const PANEL_WIDTH: f64 = 370.0;
const PANEL_HEIGHT: f64 = 290.0;
const TOP: f64 = 96.0;
/// Distinguishable also without red and green.
const COLORS: [&str; 8] =
    ["#0072b2", "#d55e00", "#009e73", "#cc79a7", "#56b4e9", "#e69f00", "#444444", "#8c564b"];

/// One line: points of size and value.
#[derive(Debug)]
struct Line {
    name: String,
    dashed: bool,
    color: &'static str,
    points: Vec<(f64, f64)>,
}

/// One diagram with its own vertical axis.
#[derive(Debug)]
struct Panel {
    left: f64,
    title: &'static str,
    lines: Vec<Line>,
    show: fn(f64) -> String,
}

pub(crate) fn draw(settings: &Settings, ranks: usize, rows: &[Row]) -> String {
    let bus = ranks > 1;
    let bandwidth = move |one: &Placement| one.busbw.unwrap_or(one.algbw);
    let panels = [
        Panel { left: 80.0, title: "Time", lines: lines(rows, |one| one.time_us), show: show_time },
        Panel {
            left: 560.0,
            title: if bus { "Bus bandwidth" } else { "Algorithm bandwidth" },
            lines: lines(rows, bandwidth),
            show: show_bandwidth,
        },
    ];
    let mut svg = String::new();
    let _ = write!(
        svg,
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {WIDTH} {HEIGHT}\" width=\"{WIDTH}\" height=\"{HEIGHT}\" \
         font-family=\"Helvetica, Arial, 'DejaVu Sans', sans-serif\" font-size=\"12\" fill=\"#222\">\n\
         <rect width=\"{WIDTH}\" height=\"{HEIGHT}\" fill=\"white\"/>\n"
    );
    let plural = if ranks == 1 { "rank" } else { "ranks" };
    text(
        &mut svg,
        (80.0, 32.0),
        "font-size=\"18\" font-weight=\"bold\"",
        &format!("{}, {ranks} {plural}", settings.test.name()),
    );
    let command: Vec<String> = std::env::args().skip(1).collect();
    let mut command = format!("accl-bench {}", command.join(" "));
    if command.chars().count() > 130 {
        command = command.chars().take(129).chain(['…']).collect();
    }
    text(
        &mut svg,
        (80.0, 52.0),
        "fill=\"#666\" font-family=\"'DejaVu Sans Mono', monospace\" font-size=\"11\"",
        &command,
    );
    for panel in &panels {
        panel.draw(&mut svg);
    }
    legend(&mut svg, &panels[0].lines);
    svg.push_str("</svg>\n");
    svg
}

/// One line per type, operator and placement; later rows of the same size (roots, cycles) count as their mean.
fn lines(rows: &[Row], value: impl Fn(&Placement) -> f64) -> Vec<Line> {
    let mut sums: BTreeMap<(String, bool), BTreeMap<usize, (f64, f64)>> = BTreeMap::new();
    let mut order = Vec::new();
    for row in rows.iter().filter(|row| row.size_bytes > 0) {
        let name = if row.op == "none" { row.kind.clone() } else { format!("{} {}", row.kind, row.op) };
        if !order.contains(&name) {
            order.push(name.clone());
        }
        for (dashed, placement) in [(false, Some(&row.out_of_place)), (true, row.in_place.as_ref())] {
            let Some(value) = placement.map(&value).filter(|value| *value > 0.0) else { continue };
            let sum = sums.entry((name.clone(), dashed)).or_default().entry(row.size_bytes).or_default();
            *sum = (sum.0 + value, sum.1 + 1.0);
        }
    }
    let mut lines = Vec::new();
    for (number, name) in order.iter().enumerate() {
        for dashed in [false, true] {
            let Some(sums) = sums.get(&(name.clone(), dashed)) else { continue };
            let points = sums.iter().map(|(size, (sum, count))| (*size as f64, sum / count)).collect();
            let color = COLORS[number % COLORS.len()];
            lines.push(Line { name: name.clone(), dashed, color, points });
        }
    }
    lines
}

/// A logarithmic axis from one end to the other.
#[derive(Clone, Copy, Debug)]
struct Axis {
    low: f64,
    high: f64,
    from: f64,
    to: f64,
}

impl Axis {
    fn place(&self, value: f64) -> f64 {
        let share = (value / self.low).ln() / (self.high / self.low).ln();
        self.from + share * (self.to - self.from)
    }
}

impl Panel {
    fn draw(&self, svg: &mut String) {
        let points = || self.lines.iter().flat_map(|line| &line.points);
        let range = |coordinate: fn(&(f64, f64)) -> f64| {
            let values = points().map(coordinate);
            values.fold((f64::INFINITY, 0.0), |(low, high): (f64, f64), value| {
                (low.min(value), high.max(value))
            })
        };
        let (size_low, size_high) = range(|point| point.0);
        let (low, high) = range(|point| point.1);
        if high == 0.0 {
            return;
        }
        let bottom = TOP + PANEL_HEIGHT;
        // A single size still gets an axis; values get round ends.
        let (size_low, size_high) =
            if size_low == size_high { (size_low / 2.0, size_high * 2.0) } else { (size_low, size_high) };
        let x = Axis { low: size_low, high: size_high, from: self.left, to: self.left + PANEL_WIDTH };
        let (low, high) = (round_down(low * 0.95), round_up(high * 1.05));
        let y = Axis { low, high, from: bottom, to: TOP };
        text(svg, (self.left, TOP - 14.0), "font-size=\"14\" font-weight=\"bold\"", self.title);
        self.grid(svg, x, y);
        for line in &self.lines {
            let dash = if line.dashed { " stroke-dasharray=\"5 4\"" } else { "" };
            let path: Vec<String> = line
                .points
                .iter()
                .map(|point| format!("{:.1},{:.1}", x.place(point.0), y.place(point.1)))
                .collect();
            let _ = writeln!(
                svg,
                "<polyline points=\"{}\" fill=\"none\" stroke=\"{}\" stroke-width=\"2\" stroke-linejoin=\"round\"{dash}/>",
                path.join(" "),
                line.color
            );
            for point in &line.points {
                let fill = if line.dashed { "white" } else { line.color };
                let _ = writeln!(
                    svg,
                    "<circle cx=\"{:.1}\" cy=\"{:.1}\" r=\"2.6\" fill=\"{fill}\" stroke=\"{}\"/>",
                    x.place(point.0),
                    y.place(point.1),
                    line.color
                );
            }
        }
    }

    fn grid(&self, svg: &mut String, x: Axis, y: Axis) {
        let bottom = TOP + PANEL_HEIGHT;
        let right = self.left + PANEL_WIDTH;
        for (value, labelled) in decimal_ticks(y.low, y.high) {
            let at = y.place(value);
            let shade = if labelled { "#ccc" } else { "#eee" };
            let _ = writeln!(svg, "<path d=\"M{:.1} {at:.1}H{right:.1}\" stroke=\"{shade}\"/>", self.left);
            if labelled {
                text(svg, (self.left - 8.0, at + 4.0), "text-anchor=\"end\"", &(self.show)(value));
            }
        }
        for value in size_ticks(x.low, x.high) {
            let at = x.place(value);
            let _ = writeln!(svg, "<path d=\"M{at:.1} {TOP:.1}V{bottom:.1}\" stroke=\"#ddd\"/>");
            text(svg, (at, bottom + 18.0), "text-anchor=\"middle\"", &human(value as usize));
        }
        let _ = writeln!(
            svg,
            "<rect x=\"{:.1}\" y=\"{TOP:.1}\" width=\"{PANEL_WIDTH}\" height=\"{PANEL_HEIGHT}\" fill=\"none\" stroke=\"#888\"/>",
            self.left
        );
        text(svg, ((self.left + right) / 2.0, bottom + 38.0), "text-anchor=\"middle\" fill=\"#666\"", "Size");
    }
}

/// 1, 2, 5, 10, 20, …; whether each gets a label: over many decades, only powers of ten do.
fn decimal_ticks(low: f64, high: f64) -> Vec<(f64, bool)> {
    let decades = (high / low).log10();
    let mut ticks = Vec::new();
    let first = low.log10().floor() as i32;
    for exponent in first..=high.log10().ceil() as i32 {
        for step in 1..10 {
            let value = f64::from(step) * 10f64.powi(exponent);
            if value < low * 0.999 || value > high * 1.001 {
                continue;
            }
            let labelled = step == 1 || (decades <= 2.5 && matches!(step, 2 | 5));
            ticks.push((value, labelled));
        }
    }
    ticks
}

/// Powers of two, about six of them.
fn size_ticks(low: f64, high: f64) -> Vec<f64> {
    let (first, last) = (low.log2().ceil() as i32, high.log2().floor() as i32);
    let step = ((last - first) / 6 + 1).max(1) as usize;
    (first..=last).step_by(step).map(|exponent| 2f64.powi(exponent)).collect()
}

fn round_down(value: f64) -> f64 {
    round_to(value, |step| step <= 1.0).unwrap_or(value)
}

fn round_up(value: f64) -> f64 {
    let decade = 10f64.powf(value.log10().floor());
    [1.0, 2.0, 5.0, 10.0].into_iter().map(|step| step * decade).find(|&end| end >= value).unwrap_or(value)
}

/// The largest of 1, 2, 5 times a power of ten for which the relation to the value holds.
fn round_to(value: f64, holds: fn(f64) -> bool) -> Option<f64> {
    let decade = 10f64.powf(value.log10().floor());
    [5.0, 2.0, 1.0].into_iter().map(|step| step * decade).find(|&end| holds(end / value))
}

fn show_time(us: f64) -> String {
    match us {
        us if us >= 1e6 => format!("{} s", us / 1e6),
        us if us >= 1e3 => format!("{} ms", us / 1e3),
        us if us >= 0.999 => format!("{us:.0} µs"),
        us => format!("{us:.2} µs"),
    }
}

fn show_bandwidth(gbps: f64) -> String {
    match gbps {
        gbps if gbps >= 0.999 => format!("{gbps:.0} GB/s"),
        gbps if gbps >= 0.999e-3 => format!("{:.0} MB/s", gbps * 1e3),
        gbps if gbps >= 0.999e-6 => format!("{:.0} kB/s", gbps * 1e6),
        gbps => format!("{:.0} B/s", gbps * 1e9),
    }
}

/// Below the panels: one entry per line, in columns.
fn legend(svg: &mut String, lines: &[Line]) {
    const MOST: usize = 8;
    for (number, line) in lines.iter().take(MOST).enumerate() {
        let left = 80.0 + 215.0 * (number % 4) as f64;
        let top = HEIGHT - 36.0 + 18.0 * (number / 4) as f64;
        let dash = if line.dashed { " stroke-dasharray=\"5 4\"" } else { "" };
        let _ = writeln!(
            svg,
            "<path d=\"M{left:.1} {:.1}h28\" stroke=\"{}\" stroke-width=\"2\"{dash}/>",
            top - 4.0,
            line.color
        );
        let place = if line.dashed { "in place" } else { "out of place" };
        let more = if number + 1 == MOST && lines.len() > MOST { ", …" } else { "" };
        text(svg, (left + 36.0, top), "", &format!("{}, {place}{more}", line.name));
    }
}

fn text(svg: &mut String, (x, y): (f64, f64), attributes: &str, words: &str) {
    let words = words.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;");
    let _ = writeln!(svg, "<text x=\"{x:.1}\" y=\"{y:.1}\" {attributes}>{words}</text>");
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ends_are_round_and_outside() {
        assert_eq!((round_down(37.0), round_up(37.0)), (20.0, 50.0));
        assert_eq!((round_down(1.0), round_up(1.0)), (1.0, 1.0));
        assert!(round_up(7e-4) >= 7e-4 && round_down(7e-4) <= 7e-4);
    }

    #[test]
    fn ticks_lie_between_the_ends() {
        assert_eq!(size_ticks(8.0, 64.0), [8.0, 16.0, 32.0, 64.0]);
        assert!(size_ticks(8.0, 128e6).len() <= 7);
        let ticks = decimal_ticks(1.0, 50.0);
        assert!(
            ticks.contains(&(1.0, true)) && ticks.contains(&(20.0, true)) && ticks.contains(&(30.0, false))
        );
    }

    #[test]
    fn labels_have_units() {
        assert_eq!((show_time(2500.0), show_time(20.0)), ("2.5 ms".into(), "20 µs".into()));
        assert_eq!((show_bandwidth(0.05), show_bandwidth(10.0)), ("50 MB/s".into(), "10 GB/s".into()));
    }
}
