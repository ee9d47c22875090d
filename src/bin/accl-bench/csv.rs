//! The CSV file: a head line, then one line per size and placement, each written at once.

use std::fs::File;
use std::io::Write as _;
use std::path::Path;

use crate::args::Settings;
use crate::failure::{Failure, Outcome};
use crate::json::candidates;
use crate::row::{Placement, Row};

/// The columns. Times are microseconds, bandwidths GB/s (10^9 bytes a second); empty: not applicable.
const HEAD: &str = "test,ranks,size_bytes,count_elems,type,redop,root,placement,time_us,algbw_gbps,busbw_gbps,wrong,\
                    i_min_us,i_max_us,i_p50_us,i_p95_us,i_p99_us,i_cv_pct,slowest_rank,timestamp\n";

#[derive(Debug)]
pub(crate) struct CsvFile {
    file: File,
}

impl CsvFile {
    /// As for JSON: an existing file is kept, and a number appended to the name.
    pub(crate) fn create(wanted: &Path) -> Outcome<Self> {
        for path in candidates(wanted) {
            match File::create_new(&path) {
                Ok(mut file) => {
                    let written = file.write_all(HEAD.as_bytes());
                    written.map_err(|error| {
                        Failure::usage(format!("cannot write {}: {error}", path.display()))
                    })?;
                    return Ok(Self { file });
                }
                Err(error) if error.kind() == std::io::ErrorKind::AlreadyExists => {}
                Err(error) => {
                    return Err(Failure::usage(format!("cannot write {}: {error}", path.display())));
                }
            }
        }
        Err(Failure::usage(format!("no free name beside {}", wanted.display())))
    }

    pub(crate) fn append(&mut self, settings: &Settings, ranks: usize, row: &Row) -> std::io::Result<()> {
        let mut text = String::new();
        let placements = [("out_of_place", Some(&row.out_of_place)), ("in_place", row.in_place.as_ref())];
        for (name, placement) in placements {
            if let Some(placement) = placement {
                text.push_str(&line(settings, ranks, row, name, placement));
            }
        }
        self.file.write_all(text.as_bytes())
    }
}

/// No field ever holds a comma or a quote.
fn line(settings: &Settings, ranks: usize, row: &Row, name: &str, one: &Placement) -> String {
    let number = |value: Option<f64>| value.map_or_else(String::new, |value| value.to_string());
    let spread = one.spread.as_ref();
    let summary = spread.map(|spread| spread.summary);
    let slowest = spread.and_then(|spread| spread.slowest()).map(|(rank, _)| rank.to_string());
    let fields = [
        settings.test.name().to_string(),
        ranks.to_string(),
        row.size_bytes.to_string(),
        row.count_elems.to_string(),
        row.kind.clone(),
        row.op.clone(),
        row.root.to_string(),
        name.to_string(),
        one.time_us.to_string(),
        one.algbw.to_string(),
        number(one.busbw),
        one.wrong.map_or_else(String::new, |wrong| wrong.to_string()),
        number(summary.map(|summary| summary.min)),
        number(summary.map(|summary| summary.max)),
        number(summary.map(|summary| summary.p50)),
        number(summary.map(|summary| summary.p95)),
        number(summary.map(|summary| summary.p99)),
        number(summary.map(|summary| summary.cv_pct)),
        slowest.unwrap_or_default(),
        row.timestamp.clone(),
    ];
    fields.join(",") + "\n"
}
