//! `accl status` and `accl explain`: what the flight recorder's files say.
//!
//! These read files and ask the library for nothing: they work where it is not installed, and when the job is gone.

use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use accl_core::config::Recorder;
use accl_core::telemetry::diagnosis::{Condition, Finding, diagnose, doing};
use accl_core::telemetry::records::{self, Here, Process, Witness};
use accl_core::telemetry::{Paths, Traffic, calls};
use accl_core::topo::Place;
use accl_core::types::named_ranks;
use serde_json::{Value, json};

/// What was read.
pub(crate) struct Read {
    pub(crate) witnesses: Vec<Witness>,
    pub(crate) errors: Vec<String>,
}

/// How status was asked.
pub(crate) struct Options {
    pub(crate) directory: Option<PathBuf>,
    pub(crate) watch: bool,
    pub(crate) json: bool,
    pub(crate) patience: Duration,
}

/// All communicators of this user on this host. The exit code: 0 healthy, 1 something stands still, 2 a rank is dead or an operation
/// has failed, 3 nothing was found.
pub(crate) fn status(options: &Options) -> Result<u8, String> {
    loop {
        let read = Read::all(options.directory.as_deref())?;
        let findings = diagnose(&read.witnesses, options.patience, now_ns());
        let text = if options.json {
            print_json(&findings, &read.errors)
        } else {
            print_text(&findings, &read.errors)
        };
        if !options.watch {
            say(&text);
            return Ok(code(&findings));
        }
        // Clears the screen, for people; programs get one object a line.
        say(&if options.json { text } else { format!("\x1b[H\x1b[2J{text}") });
        std::thread::sleep(Duration::from_secs(1));
    }
}

/// Who is at fault, by records from one or many hosts. The exit code is as that of status.
pub(crate) fn explain(paths: &[PathBuf], pids: &[u32], as_json: bool) -> Result<u8, String> {
    let mut read = Read { witnesses: Vec::new(), errors: Vec::new() };
    for path in paths {
        if path.is_dir() { read.directory(path)? } else { read.file(path)? }
    }
    if paths.is_empty() {
        read = Read::all(None)?;
        read.witnesses.retain(|witness| pids.is_empty() || pids.contains(&witness.record.head.pid));
    }
    let findings = diagnose(&read.witnesses, Duration::from_secs(1), now_ns());
    if as_json {
        say(&print_json(&findings, &read.errors));
        return Ok(code(&findings));
    }
    let mut text = findings.iter().map(verdict).collect::<Vec<_>>().join("\n");
    if findings.is_empty() {
        text = "no records: nothing to explain".to_string();
    }
    if !findings.is_empty() {
        let _ = write!(text, "\n\n{}", print_text(&findings, &[]));
    }
    for error in &read.errors {
        let _ = write!(text, "\nnot used: {error}");
    }
    say(&text);
    Ok(code(&findings))
}

/// Three lines: who, since when and in what, and what to do.
fn verdict(finding: &Finding<'_>) -> String {
    let head = &finding.witnesses[0].record.head;
    let operation = match &finding.operation {
        Some(made) if !made.transfer => {
            format!("collective #{} {}", made.number, calls::describe(made.what, made.count))
        }
        Some(made) => format!("message #{} {}", made.number, calls::describe(made.what, made.count)),
        None => "no operation".to_string(),
    };
    let culprits = finding.witnesses.iter().filter(|one| finding.culprits.contains(&one.record.head.rank));
    let places: Vec<_> =
        culprits.map(|one| format!("pid {} on {}", one.record.head.pid, one.record.head.host)).collect();
    let remedy = match (finding.condition, places.is_empty()) {
        (Condition::Healthy, _) => "nothing to do".to_string(),
        (_, true) => "see what the ranks below did last".to_string(),
        (_, false) => format!("look at {}", places.join(", ")),
    };
    format!(
        "communicator {:016x} of {} ranks: {}\n  waited for: {operation}; still for {:.1} s; {} of {} ranks have records\n  {remedy}",
        finding.communicator,
        head.ranks,
        finding.verdict,
        finding.still_ns as f64 / 1e9,
        finding.witnesses.len(),
        head.ranks,
    )
}

impl Read {
    /// The records of a directory, or of all that this user has on this host.
    pub(crate) fn all(named: Option<&Path>) -> Result<Self, String> {
        let mut read = Self { witnesses: Vec::new(), errors: Vec::new() };
        directories(named)?.iter().try_for_each(|directory| read.directory(directory))?;
        Ok(read)
    }

    fn directory(&mut self, path: &Path) -> Result<(), String> {
        let (witnesses, errors) =
            records::read_directory(path, here()?).map_err(|error| error.to_string())?;
        self.witnesses.extend(witnesses);
        self.errors.extend(errors.iter().map(ToString::to_string));
        Ok(())
    }

    fn file(&mut self, path: &Path) -> Result<(), String> {
        match records::read(path, here()?) {
            Ok(witness) => self.witnesses.push(witness),
            Err(error) => self.errors.push(error.to_string()),
        }
        Ok(())
    }
}

fn here() -> Result<Here, String> {
    let place = Place::here().map_err(|error| error.to_string())?;
    Ok(Here { boot: place.kernel, pid_namespace: place.pid_namespace })
}

/// Those that there are.
fn directories(named: Option<&Path>) -> Result<Vec<PathBuf>, String> {
    if let Some(named) = named {
        return Ok(vec![named.to_path_buf()]);
    }
    let all = Recorder::load().map_err(|error| error.to_string())?.directories();
    Ok(all.into_iter().filter(|directory| directory.is_dir()).collect())
}

/// What has ended counts only while nothing lives: a job of yesterday says nothing of that of today.
fn code(findings: &[Finding<'_>]) -> u8 {
    let lives = findings.iter().any(|finding| !finding.over);
    let counted = findings.iter().filter(|finding| !lives || !finding.over);
    match counted.map(|finding| finding.condition).max() {
        None => 3,
        Some(Condition::Healthy) => 0,
        Some(Condition::Still) => 1,
        Some(Condition::Broken) => 2,
    }
}

fn print_text(findings: &[Finding<'_>], errors: &[String]) -> String {
    let mut text = String::new();
    for finding in findings {
        let head = &finding.witnesses[0].record.head;
        let _ = write!(text, "communicator {:016x}", finding.communicator);
        if !head.name.is_empty() {
            let _ = write!(text, " \"{}\"", head.name);
        }
        let _ = writeln!(text, ", {} ranks: {}", head.ranks, finding.verdict);
        if head.parent != 0 {
            let _ = writeln!(text, "  made of communicator {:016x}", head.parent);
        }
        for witness in &finding.witnesses {
            let _ = writeln!(text, "  {}", line(witness));
        }
        if !finding.unseen.is_empty() {
            let _ = writeln!(text, "  {}: no record here", named_ranks(&finding.unseen));
        }
    }
    if findings.is_empty() {
        text.push_str("no communicators of this user on this host\n");
    }
    for error in errors {
        let _ = writeln!(text, "not used: {error}");
    }
    text.truncate(text.trim_end().len());
    text
}

fn line(witness: &Witness) -> String {
    let record = &witness.record;
    let head = &record.head;
    let mut text = format!(
        "rank {} pid {} on {} ({}): {}/{} collectives, {}/{} messages done; {}",
        head.rank,
        head.pid,
        head.host,
        state_of(witness),
        record.collectives_done,
        record.collectives_begun,
        record.transfers_done,
        record.transfers_begun,
        doing(record)
    );
    if record.launches_queued > record.launches_done {
        let _ =
            write!(text, "; {} launches queued on streams", record.launches_queued - record.launches_done);
    }
    if let Some(wait) = &record.wait {
        let seconds = wait.looked_ns.saturating_sub(wait.since_ns) as f64 / 1e9;
        let _ = write!(text, "; has waited {seconds:.1} s");
        if !wait.runs.is_empty() {
            let _ = write!(text, " for {}", accl_core::types::named_runs(&wait.runs));
        }
        if !wait.text.is_empty() {
            let _ = write!(text, ": {}", wait.text);
        }
    }
    if let Some(failure) = &record.failure {
        let _ = write!(text, "; {failure}");
    }
    let moved = |bytes: fn(&Traffic) -> u64| record.traffic.iter().map(bytes).sum::<u64>() as f64 / 1e6;
    if !record.traffic.is_empty() {
        let (sent, received) = (moved(|peer| peer.sent_bytes), moved(|peer| peer.received_bytes));
        let _ = write!(text, "; messages: {sent:.1} MB sent, {received:.1} MB received");
    }
    let Paths { came_up, failed, segments_again } = record.paths;
    if came_up > 0 {
        let up = came_up - failed.min(came_up);
        let _ = write!(text, "; RDMA: {up} paths up, {failed} failed, {segments_again} segments went again");
    }
    text
}

fn state_of(witness: &Witness) -> &'static str {
    match witness.process {
        _ if witness.ended => "ended",
        Process::Running => "running",
        Process::Stopped => "stopped",
        Process::Dead => "dead",
        Process::Elsewhere => "alive in another PID namespace",
        Process::Unknown => "of another host",
    }
}

fn print_json(findings: &[Finding<'_>], errors: &[String]) -> String {
    let communicators: Vec<Value> = findings.iter().map(json_of).collect();
    json!({ "code": code(findings), "communicators": communicators, "errors": errors }).to_string()
}

fn json_of(finding: &Finding<'_>) -> Value {
    let head = &finding.witnesses[0].record.head;
    let condition = match finding.condition {
        Condition::Healthy => "healthy",
        Condition::Still => "still",
        Condition::Broken => "broken",
    };
    let operation = finding.operation.as_ref().map(|made| {
        json!({
            "number": made.number,
            "message": made.transfer,
            "call": calls::describe(made.what, made.count),
            "fingerprint": format!("{:016x}-{:x}", calls::without_how(made.what), made.count),
            "bytes": calls::bytes(made.what, made.count),
        })
    });
    let ranks: Vec<Value> = finding.witnesses.iter().map(|witness| rank_json(witness)).collect();
    json!({
        "communicator": format!("{:016x}", finding.communicator),
        "parent": (head.parent != 0).then(|| format!("{:016x}", head.parent)),
        "name": head.name,
        "size": head.ranks,
        "condition": condition,
        "over": finding.over,
        "verdict": finding.verdict,
        "culprits": finding.culprits,
        "still_s": finding.still_ns as f64 / 1e9,
        "operation": operation,
        "unseen": finding.unseen,
        "ranks": ranks,
    })
}

fn rank_json(witness: &Witness) -> Value {
    let record = &witness.record;
    let wait = record.wait.as_ref().map(|wait| {
        json!({
            "since_ns": wait.since_ns,
            "looked_ns": wait.looked_ns,
            "for": wait.runs,
            "why": wait.text,
        })
    });
    let traffic = record.traffic.iter().map(|traffic| {
        let Traffic { peer, sent_bytes, received_bytes } = traffic;
        json!({ "peer": peer, "sent_bytes": sent_bytes, "received_bytes": received_bytes })
    });
    let traffic: Vec<Value> = traffic.collect();
    json!({
        "rank": record.head.rank,
        "pid": record.head.pid,
        "host": record.head.host,
        "process": state_of(witness),
        "collectives": { "launched": record.collectives_begun, "completed": record.collectives_done },
        "messages": { "launched": record.transfers_begun, "completed": record.transfers_done },
        "stream_launches": { "launched": record.launches_queued, "completed": record.launches_done },
        "doing": doing(record),
        "waits": wait,
        "traffic": traffic,
        "rdma": {
            "came_up": record.paths.came_up,
            "failed": record.paths.failed,
            "segments_again": record.paths.segments_again,
        },
        "failure": record.failure,
        "file": witness.path.display().to_string(),
    })
}

/// Whoever reads may have gone: that is no failure.
pub(crate) fn say(text: &str) {
    use std::io::Write as _;
    let _ = writeln!(std::io::stdout(), "{text}");
}

fn now_ns() -> u64 {
    let since = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since.as_nanos()).unwrap_or(u64::MAX)
}
