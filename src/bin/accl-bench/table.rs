//! The text that people read: nccl-tests' header, table and footer.

use std::fmt::Write as _;

use crate::args::Settings;
use crate::library::HEADERS;
use crate::message::{Hello, Opened};
use crate::row::{Placement, Row};
use crate::sizes::Step;

/// Everything above the first row.
pub(crate) fn header(settings: &Settings, hellos: &[Hello], opened: &Opened, colors: &[i32]) -> String {
    let args = &settings.args;
    let name = settings.test.name();
    let mut text = String::new();
    let mut line = |words: String| {
        text.push_str(&words);
        text.push('\n');
    };
    let version = env!("CARGO_PKG_VERSION");
    line(format!(
        "# accl-bench version {version} nccl-headers={HEADERS} nccl-library={} ({})",
        opened.version, opened.path
    ));
    line(format!("# Collective test starting: {name}_perf"));
    let step = match settings.step {
        Step::Factor(factor) => format!("{factor}(factor)"),
        Step::Bytes(bytes) => format!("{bytes}(bytes)"),
    };
    line(format!(
        "# nThread {} nGpus {} minBytes {} maxBytes {} step: {step} warmup iters: {} iters: {} agg iters: {} \
         validation: {} graph: 0",
        args.nthreads,
        args.ngpus,
        args.minbytes,
        args.maxbytes,
        args.warmup_iters,
        args.iters,
        args.agg_iters,
        args.check
    ));
    line(format!(
        "# Memory: {}, stream: {}",
        if args.mem_alloc { "ncclMemAlloc" } else { "host" },
        opened.stream
    ));
    line("#".into());
    line("# Using devices".into());
    for (hello, color) in hellos.iter().zip(colors) {
        line(format!(
            "#  Rank {:2} Group {color:2} Pid {:6} on {:>10} device {:2} [host] {}",
            hello.rank, hello.pid, hello.host, hello.device, hello.processor
        ));
    }
    if opened.group_ranks == 1 {
        line(
            "# One rank in a group: nothing crosses between ranks, so bus bandwidth is not applicable (N/A)."
                .into(),
        );
    }
    line("#".into());
    text.push_str(&columns(settings));
    text
}

fn columns(settings: &Settings) -> String {
    let time = if settings.args.report_cputime != 0 { "cputime" } else { "time" };
    let iterations = settings.per_iteration();
    let mut text = String::new();
    let wide = 30 + if iterations { 44 } else { 0 };
    // Writing to a String cannot fail.
    let head = format!("#{:54}{:^wide$}  {:^wide$}", "", "out-of-place", "in-place");
    let _ = writeln!(text, "{}", head.trim_end());
    let _ = write!(text, "#{:>11}  {:>12}  {:>8}  {:>6}  {:>6}", "size", "count", "type", "redop", "root");
    for _ in 0..2 {
        let _ = write!(text, "  {time:>7}  {:>6}  {:>6}  {:>6}", "algbw", "busbw", "#wrong");
        if iterations {
            let _ = write!(
                text,
                "  {:>7}  {:>7}  {:>7}  {:>6}  {:>7}",
                "i_min", "i_max", "i_p99", "i_cv%", "i_p50"
            );
        }
    }
    if settings.args.report_timestamps != 0 {
        let _ = write!(text, "  {:>19}", "timestamp");
    }
    let _ = write!(text, "\n#{:>11}  {:>12}  {:>8}  {:>6}  {:>6}", "(B)", "(elements)", "", "", "");
    for _ in 0..2 {
        let _ = write!(text, "  {:>7}  {:>6}  {:>6}  {:>6}", "(us)", "(GB/s)", "(GB/s)", "");
        if iterations {
            let _ = write!(text, "  {:>7}  {:>7}  {:>7}  {:>6}  {:>7}", "(us)", "(us)", "(us)", "", "(us)");
        }
    }
    text.truncate(text.trim_end().len());
    text.push('\n');
    text
}

pub(crate) fn row(settings: &Settings, row: &Row) -> String {
    let mut text = format!(
        "{:12}  {:12}  {:>8}  {:>6}  {:>6}",
        row.size_bytes, row.count_elems, row.kind, row.op, row.root
    );
    for placement in [Some(&row.out_of_place), row.in_place.as_ref()] {
        text.push_str(&quadruple(settings, placement));
    }
    if settings.args.report_timestamps != 0 {
        let _ = write!(text, "  {}", row.timestamp);
    }
    text.push('\n');
    text
}

/// With --explain: the choice behind a row, and what was predicted of it against what was measured out of place.
pub(crate) fn explanation(row: &Row) -> String {
    let Some(explained) = &row.explained else { return String::new() };
    let (predicted, measured) = (explained.predicted_us, row.out_of_place.time_us);
    let ratio = if predicted > 0.0 { number(measured / predicted, 6) } else { "N/A".into() };
    format!(
        "#   {} B: {}, predicted {} us, measured {} us, ratio {ratio}\n",
        row.size_bytes,
        explained.way,
        number(predicted, 7),
        number(measured, 7)
    )
}

fn quadruple(settings: &Settings, placement: Option<&Placement>) -> String {
    const NONE: &str = "N/A";
    let Some(placement) = placement else {
        let mut text = format!("  {NONE:>7}  {NONE:>6}  {NONE:>6}  {NONE:>6}");
        if settings.per_iteration() {
            let _ = write!(text, "  {NONE:>7}  {NONE:>7}  {NONE:>7}  {NONE:>6}  {NONE:>7}");
        }
        return text;
    };
    let busbw = placement.busbw.map_or_else(|| NONE.into(), |busbw| number(busbw, 6));
    let wrong = placement.wrong.map_or_else(|| NONE.into(), |wrong| wrong.to_string());
    let mut text = format!(
        "  {:>7}  {:>6}  {busbw:>6}  {wrong:>6}",
        number(placement.time_us, 7),
        number(placement.algbw, 6)
    );
    if settings.per_iteration() {
        let summary = placement.spread.as_ref().map(|spread| spread.summary);
        let show = |value: fn(&crate::stats::Summary) -> f64, width| {
            summary.as_ref().map_or_else(|| NONE.into(), |summary| number(value(summary), width))
        };
        let _ = write!(
            text,
            "  {:>7}  {:>7}  {:>7}  {:>6}  {:>7}",
            show(|summary| summary.min, 7),
            show(|summary| summary.max, 7),
            show(|summary| summary.p99, 7),
            show(|summary| summary.cv_pct, 6),
            show(|summary| summary.p50, 7)
        );
    }
    text
}

/// As many decimals as fit, two at most.
fn number(value: f64, width: usize) -> String {
    (0..=2)
        .rev()
        .map(|decimals| format!("{value:.decimals$}"))
        .find(|text| text.len() <= width)
        .unwrap_or_else(|| format!("{value:.0}"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::Parser as _;

    fn settings(line: &str) -> Settings {
        let args = crate::args::Arguments::try_parse_from(line.split_whitespace()).unwrap();
        Settings::new(args, "accl-bench").unwrap()
    }

    fn placement() -> Placement {
        Placement {
            time_us: 12345.678,
            algbw: 1.5,
            busbw: Some(0.125),
            wrong: Some(0),
            ranks_us: vec![],
            spread: None,
        }
    }

    #[test]
    fn numbers_fit_their_columns() {
        assert_eq!(number(1.234, 7), "1.23");
        assert_eq!(number(12345.678, 7), "12345.7");
        assert_eq!(number(1234567.8, 7), "1234568");
        assert_eq!(number(123.456, 6), "123.46");
    }

    #[test]
    fn a_row_has_the_published_widths() {
        let settings = settings("accl-bench alltoall");
        let case = Row {
            size_bytes: 1024,
            count_elems: 256,
            kind: "float".into(),
            op: "none".into(),
            root: -1,
            out_of_place: placement(),
            in_place: None,
            explained: None,
            timestamp: String::new(),
        };
        assert_eq!(
            row(&settings, &case),
            "        1024           256     float    none      -1  12345.7    1.50    0.12       0      N/A     N/A     N/A     N/A\n"
        );
        assert_eq!(explanation(&case), "");
        let explained = Some(crate::message::Explained { way: "copied".into(), predicted_us: 10_000.0 });
        assert_eq!(
            explanation(&Row { explained, ..case.clone() }),
            "#   1024 B: copied, predicted 10000.0 us, measured 12345.7 us, ratio 1.23\n"
        );
        let width = row(&settings, &case).trim_end().len();
        assert!(columns(&settings).lines().skip(1).all(|line| line.len() <= width && line.starts_with('#')));
    }
}
