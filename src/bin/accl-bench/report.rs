//! All output of a run: the table on stdout, the files, the last words.

use std::fs::File;
use std::io::Write as _;
use std::time::{Duration, Instant};

use crate::args::Settings;
use crate::csv::CsvFile;
use crate::failure::{Exit, Failure, Outcome};
use crate::json::{self, JsonFile};
use crate::message::{CaseReport, Hello, Memory, Opened};
use crate::row::{Placement, Row, Rule};
use crate::{machine, plot, sizes, table};

/// What is known of the run beside its rows.
#[derive(Debug, Default)]
pub(crate) struct Facts {
    pub(crate) start_time: String,
    pub(crate) end_time: Option<String>,
    /// "running", "complete", "interrupted" or "failed".
    pub(crate) status: &'static str,
    pub(crate) problem: Option<String>,
    pub(crate) hellos: Vec<Hello>,
    pub(crate) colors: Vec<i32>,
    pub(crate) opened: Option<Opened>,
    pub(crate) first_call_us: Vec<f64>,
    pub(crate) memory: Vec<Memory>,
    pub(crate) wrong: u64,
    /// None: no row, or one rank.
    pub(crate) average_busbw: Option<f64>,
    /// None: no demand, or nothing to compare with it.
    pub(crate) fast_enough: Option<bool>,
    pub(crate) copy_gbps: Option<f64>,
}

/// Files are written anew at most this often while the run goes on.
const SAVE_EVERY: Duration = Duration::from_secs(1);
/// The largest memory copy to compare with.
const COPY_BYTES: usize = 64 << 20;

#[derive(Debug)]
pub(crate) struct Report {
    settings: Settings,
    out: File,
    json: Option<JsonFile>,
    csv: Option<CsvFile>,
    pub(crate) facts: Facts,
    rows: Vec<Row>,
    saved: Instant,
}

impl Report {
    /// Creates the files first: a run whose results have no place to go does not start.
    pub(crate) fn new(settings: Settings, out: File) -> Outcome<Self> {
        let facts = Facts { start_time: machine::timestamp(), status: "running", ..Facts::default() };
        let args = &settings.args;
        let start = || json::document(&settings, &facts, &[]);
        let json = args.output_file.as_deref().map(|path| JsonFile::create(path, &start())).transpose()?;
        let csv = args.csv.as_deref().map(CsvFile::create).transpose()?;
        Ok(Self { settings, out, json, csv, facts, rows: Vec::new(), saved: Instant::now() })
    }

    fn print(&mut self, text: &str) {
        // A reader that went away (`| head`) is no reason to lose the files.
        let _ = self.out.write_all(text.as_bytes());
    }

    fn group_ranks(&self) -> usize {
        self.facts.opened.as_ref().map_or(1, |opened| opened.group_ranks)
    }

    /// All ranks are there and have the library.
    pub(crate) fn begin(&mut self, hellos: Vec<Hello>, opened: &[Opened]) {
        let Some(first) = opened.first() else { return };
        self.facts.colors = opened.iter().map(|one| one.group).collect();
        if opened.iter().any(|one| one.group_ranks != first.group_ranks) {
            eprintln!("accl-bench: groups differ in size; sizes and bandwidths are those of rank 0's group");
        }
        if opened.iter().any(|one| (one.version, &one.path) != (first.version, &first.path)) {
            eprintln!("accl-bench: ranks use different libraries; named is rank 0's");
        }
        let text = table::header(&self.settings, &hellos, first, &self.facts.colors);
        self.facts.opened = Some(first.clone());
        self.facts.hellos = hellos;
        self.print(&text);
    }

    pub(crate) fn first_call(&mut self, times_us: Vec<f64>, what: &str) {
        let slowest = times_us.iter().enumerate().max_by(|left, right| left.1.total_cmp(right.1));
        if let Some((rank, us)) = slowest {
            let text =
                format!("# first call: {us:.1} us ({what}, slowest rank {rank}; not part of the table)\n");
            self.print(&text);
        }
        self.facts.first_call_us = times_us;
    }

    /// One row, from the reports of all ranks.
    pub(crate) fn row(&mut self, reports: &[CaseReport]) {
        let rule = Rule {
            test: self.settings.test,
            ranks: self.group_ranks(),
            average: self.settings.args.average,
            skip: self.settings.args.per_iter_skip,
        };
        let Some(row) = rule.row(reports, machine::timestamp()) else { return };
        let other = reports.iter().position(|report| match (&report.explained, &row.explained) {
            (Some(theirs), Some(ours)) => !theirs.agrees(ours),
            (theirs, ours) => theirs.is_some() != ours.is_some(),
        });
        if let Some(rank) = other {
            eprintln!("accl-bench: {} B: rank {rank} explains it in another way than rank 0", row.size_bytes);
        }
        let text = table::row(&self.settings, &row) + &table::explanation(&row);
        self.print(&text);
        let ranks = self.group_ranks();
        if let Some(csv) = &mut self.csv
            && let Err(error) = csv.append(&self.settings, ranks, &row)
        {
            eprintln!("accl-bench: cannot write CSV: {error}");
        }
        let placements = [Some(&row.out_of_place), row.in_place.as_ref()];
        self.facts.wrong += placements.into_iter().flatten().filter_map(|one| one.wrong).sum::<u64>();
        self.rows.push(row);
        self.facts.average_busbw = self.average();
        if self.saved.elapsed() >= SAVE_EVERY {
            self.save();
        }
    }

    fn placements(&self) -> impl Iterator<Item = (&Row, &Placement)> {
        self.rows.iter().flat_map(|row| {
            [Some(&row.out_of_place), row.in_place.as_ref()].into_iter().flatten().map(move |one| (row, one))
        })
    }

    fn average(&self) -> Option<f64> {
        let all: Vec<f64> = self.placements().filter_map(|(_, one)| one.busbw).collect();
        (!all.is_empty()).then(|| all.iter().sum::<f64>() / all.len() as f64)
    }

    fn save(&mut self) {
        self.saved = Instant::now();
        let document = self.json.is_some().then(|| json::document(&self.settings, &self.facts, &self.rows));
        if let (Some(json), Some(document)) = (&self.json, document)
            && let Err(error) = json.replace(&document)
        {
            eprintln!("accl-bench: cannot write JSON: {error}");
        }
    }

    /// The end, good or bad: footer, files, verdict. Whatever is complete is kept.
    pub(crate) fn end(&mut self, failure: Option<&Failure>) -> Exit {
        self.facts.end_time = Some(machine::timestamp());
        self.facts.problem = failure.map(|failure| failure.text.clone());
        self.facts.status = match failure {
            None => "complete",
            Some(failure) if failure.code == Exit::Interrupted => "interrupted",
            Some(_) => "failed",
        };
        let demand = self.settings.environment.min_bandwidth;
        // nccl-tests' margin.
        self.facts.fast_enough =
            demand.zip(self.facts.average_busbw).map(|(demand, average)| average >= 0.9 * demand);
        if !self.rows.is_empty() {
            self.footer();
        }
        if let Some(failure) = failure {
            eprintln!("accl-bench: {failure}");
            let text = format!("# Ended early after {} rows: {failure}\n", self.rows.len());
            if self.facts.opened.is_some() {
                self.print(&text);
            }
        } else {
            let name = self.settings.test.name();
            self.print(&format!("#\n# Collective test concluded: {name}_perf\n"));
            self.compare_with_copy();
        }
        self.save();
        self.draw();
        let good = self.facts.wrong == 0 && self.facts.fast_enough != Some(false);
        failure.map_or(if good { Exit::Good } else { Exit::Verdict }, |failure| failure.code)
    }

    fn footer(&mut self) {
        let wrong = self.facts.wrong;
        let mut text =
            format!("# Out of bounds values : {wrong} {}\n", if wrong == 0 { "OK" } else { "FAILED" });
        match self.facts.average_busbw {
            Some(average) => text += &format!("# Avg bus bandwidth    : {average:.6} \n"),
            None => text += "# Avg bus bandwidth    : N/A (one rank: nothing crosses between ranks)\n",
        }
        if let (Some(demand), okay) = (self.settings.environment.min_bandwidth, self.facts.fast_enough) {
            let verdict = match okay {
                Some(true) => "OK",
                Some(false) => "FAILED",
                None => "unchecked",
            };
            text += &format!(
                "# Wanted bus bandwidth : {demand} (NCCL_TESTS_MIN_BW, 10% off is allowed) {verdict}\n"
            );
        }
        text += &self.ranks_compared();
        text += &self.memory_used();
        self.print(&text);
    }

    /// With -I: each rank at the size where one stands out most.
    fn ranks_compared(&self) -> String {
        let skew = |one: &Placement| one.spread.as_ref()?.slowest();
        let worst = self
            .placements()
            .filter_map(|(row, one)| Some((row, one, skew(one)?)))
            .max_by(|left, right| left.2.1.total_cmp(&right.2.1));
        let Some((row, one, (rank, ratio))) = worst else { return String::new() };
        let mut text =
            format!("#\n# Ranks compared, where they differ most: {} bytes {}\n", row.size_bytes, row.kind);
        for (rank, own) in one.spread.iter().flat_map(|spread| spread.ranks.iter().enumerate()) {
            text += &format!(
                "#  Rank {rank:2}  p50 {:9.2} us  p99 {:9.2} us  max {:9.2} us\n",
                own.p50, own.p99, own.max
            );
        }
        if one.ranks_us.len() > 1 {
            text +=
                &format!("# Slowest rank: {rank} (its p99 is {ratio:.2} times that of the typical rank)\n");
        }
        text
    }

    fn memory_used(&self) -> String {
        if self.facts.memory.is_empty() {
            return String::new();
        }
        let mut text = "#\n# Resident memory (MiB), of each rank's process\n".to_string();
        let mib = |bytes: u64| bytes as f64 / (1 << 20) as f64;
        for (rank, memory) in self.facts.memory.iter().enumerate() {
            text += &format!(
                "#  Rank {rank:2}  before init {:9.1}  after init {:9.1}  after run {:9.1}\n",
                mib(memory.before),
                mib(memory.after_init),
                mib(memory.after_run)
            );
        }
        text
    }

    /// The verdict: the largest result against what one core copies on this machine, now that it is idle.
    fn compare_with_copy(&mut self) {
        // Out of place comes first of its size.
        let largest = self
            .placements()
            .reduce(|best, next| if next.0.size_bytes > best.0.size_bytes { next } else { best });
        let Some((row, one)) = largest.filter(|(row, _)| row.size_bytes > 0 && !self.settings.args.quiet)
        else {
            return;
        };
        let time = if one.time_us >= 1e3 {
            format!("{:.1} ms", one.time_us / 1e3)
        } else {
            format!("{:.1} us", one.time_us)
        };
        let (rate, name) = one.busbw.map_or((one.algbw, "algorithm"), |busbw| (busbw, "bus"));
        let size = sizes::human(row.size_bytes);
        let copy = machine::copy_bytes_per_second(row.size_bytes.clamp(4096, COPY_BYTES)) / 1e9;
        self.facts.copy_gbps = Some(copy);
        let ratio = rate / copy;
        self.print(&format!(
            "# Largest: {size} in {time}, {rate:.2} GB/s {name}; one core copies {copy:.2} GB/s here: {ratio:.2} of a copy\n"
        ));
    }

    fn draw(&self) {
        let Some(path) = self.settings.args.plot.as_deref().filter(|_| !self.rows.is_empty()) else { return };
        let picture = plot::draw(&self.settings, self.group_ranks(), &self.rows);
        if let Err(error) = std::fs::write(path, picture) {
            eprintln!("accl-bench: cannot write {}: {error}", path.display());
        }
    }
}
