//! The one who hears all ranks: answers shares, collects reports, notices deaths and silence, ends the run.

use std::collections::{BTreeMap, VecDeque};
use std::io::BufRead as _;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::time::{Duration, Instant};

use crate::failure::{Exit, Failure};
use crate::link::{Reader, Writer};
use crate::message::{CaseReport, Hello, Memory, Opened, ToHub, ToRank, line};
use crate::report::Report;
use crate::start::Processes;

/// Something happened.
#[allow(missing_debug_implementations, reason = "crosses a channel only")]
pub(crate) enum Event {
    Said(usize, ToHub),
    /// The rank's connection has ended.
    Gone(usize),
    /// A process of ours has ended; how, in words, and whether by itself and well.
    Exited {
        process: usize,
        how: String,
    },
}

/// After a first failure, so long is waited for the one that explains it.
const EXPLAIN: Duration = Duration::from_millis(500);
const TICK: Duration = Duration::from_millis(50);
/// On top of the time limit, before a silent process counts as stuck: the watchdog beats five times a second.
const SILENCE: Duration = Duration::from_secs(1);

static INTERRUPTED: AtomicBool = AtomicBool::new(false);

extern "C" fn interrupted(_signal: libc::c_int) {
    INTERRUPTED.store(true, Ordering::Relaxed);
}

/// From now on SIGINT and SIGTERM end the run in order.
pub(crate) fn catch_signals() {
    for signal in [libc::SIGINT, libc::SIGTERM] {
        let handler: extern "C" fn(libc::c_int) = interrupted;
        // SAFETY: The handler only stores to an atomic.
        unsafe { libc::signal(signal, handler as libc::sighandler_t) };
    }
}

#[allow(missing_debug_implementations, reason = "holds boxed writers")]
pub(crate) struct Hub {
    events: Receiver<Event>,
    writers: Vec<Writer>,
    /// Those we started; None under a launcher.
    processes: Option<Processes>,
    limit: Option<Duration>,
    report: Report,
    ranks: Vec<Rank>,
    cases: BTreeMap<usize, Vec<Option<CaseReport>>>,
    notes: Vec<String>,
    failures: Vec<Failure>,
    failed_at: Option<Instant>,
}

/// What the hub has from one rank.
#[derive(Debug)]
struct Rank {
    hello: Option<Hello>,
    opened: Option<Opened>,
    shares: VecDeque<String>,
    first_call: Option<(f64, String)>,
    memory: Option<Memory>,
    heard: Instant,
    done: bool,
    gone: bool,
}

impl Hub {
    /// `connections` by rank. `events` also carries the ends of processes.
    pub(crate) fn new(
        connections: Vec<(Reader, Writer)>,
        (events_to, events): (Sender<Event>, Receiver<Event>),
        processes: Option<Processes>,
        limit: Option<Duration>,
        report: Report,
    ) -> std::io::Result<Self> {
        let mut writers = Vec::new();
        let mut ranks = Vec::new();
        for (rank, (reader, writer)) in connections.into_iter().enumerate() {
            let events_to = events_to.clone();
            std::thread::Builder::new()
                .name("bench-hub".into())
                .spawn(move || listen(rank, reader, &events_to))?;
            writers.push(writer);
            ranks.push(Rank {
                hello: None,
                opened: None,
                shares: VecDeque::new(),
                first_call: None,
                memory: None,
                heard: Instant::now(),
                done: false,
                gone: false,
            });
        }
        Ok(Self {
            events,
            writers,
            processes,
            limit,
            report,
            ranks,
            cases: BTreeMap::new(),
            notes: Vec::new(),
            failures: Vec::new(),
            failed_at: None,
        })
    }

    /// Until all is done or something has failed; returns the exit code.
    pub(crate) fn run(mut self) -> Exit {
        loop {
            match self.events.recv_timeout(TICK) {
                Ok(event) => self.handle(event),
                Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => {
                    self.fail(Failure::new(Exit::Died, "all ranks are gone"))
                }
            }
            if INTERRUPTED.load(Ordering::Relaxed) {
                self.fail(Failure::new(Exit::Interrupted, "interrupted"));
                break;
            }
            self.check_silence();
            let explained = self.failures.iter().any(|failure| failure.code.weight() >= Exit::Died.weight());
            if self.failed_at.is_some_and(|at| explained || at.elapsed() >= EXPLAIN) {
                break;
            }
            if self.ranks.iter().all(|rank| rank.done) {
                break;
            }
        }
        self.finish()
    }

    fn fail(&mut self, failure: Failure) {
        self.failed_at.get_or_insert_with(Instant::now);
        if !self.failures.contains(&failure) {
            self.failures.push(failure);
        }
    }

    fn handle(&mut self, event: Event) {
        match event {
            Event::Said(rank, message) => {
                self.ranks[rank].heard = Instant::now();
                self.hear(rank, message);
            }
            Event::Gone(rank) => {
                self.ranks[rank].gone = true;
                // Of a process that we started, its end will tell more.
                if !self.ranks[rank].done && self.processes.is_none() {
                    let who = self.describe(rank);
                    self.fail(Failure::new(Exit::Died, format!("{who} is gone before its work was done")));
                }
            }
            Event::Exited { process, how } => self.exited(process, &how),
        }
    }

    fn describe(&self, rank: usize) -> String {
        match &self.ranks[rank].hello {
            Some(hello) => format!("rank {rank} (process {} on {})", hello.pid, hello.host),
            None => format!("rank {rank}"),
        }
    }

    fn exited(&mut self, process: usize, how: &str) {
        let Some(processes) = &mut self.processes else { return };
        let (pid, ranks) = processes.note_exit(process);
        if ranks.clone().all(|rank| self.ranks[rank].done) {
            return;
        }
        let names: Vec<String> = ranks.map(|rank| rank.to_string()).collect();
        let plural = if names.len() > 1 { "ranks" } else { "rank" };
        let text = format!("{plural} {} (process {pid}) {how}", names.join(", "));
        self.fail(Failure::new(Exit::Died, text));
    }

    fn hear(&mut self, rank: usize, message: ToHub) {
        match message {
            ToHub::Hello(hello) => self.ranks[rank].hello = Some(hello),
            ToHub::Opened(opened) => {
                self.ranks[rank].opened = Some(opened);
                let opened: Option<Vec<_>> = self.ranks.iter().map(|rank| rank.opened.clone()).collect();
                let hellos: Option<Vec<_>> = self.ranks.iter().map(|rank| rank.hello.clone()).collect();
                if let (Some(opened), Some(hellos)) = (opened, hellos) {
                    self.report.begin(hellos, &opened);
                }
            }
            ToHub::Share(text) => {
                self.ranks[rank].shares.push_back(text);
                self.answer_share();
            }
            ToHub::Beat => {}
            ToHub::FirstCall { us, what } => {
                self.ranks[rank].first_call = Some((us, what));
                let all: Option<Vec<_>> = self.ranks.iter().map(|rank| rank.first_call.clone()).collect();
                if let Some(all) = all {
                    let what = all[0].1.clone();
                    self.report.first_call(all.into_iter().map(|(us, _)| us).collect(), &what);
                }
            }
            ToHub::Case(report) => self.case(rank, *report),
            ToHub::Memory(memory) => {
                self.ranks[rank].memory = Some(memory);
                let all: Option<Vec<_>> = self.ranks.iter().map(|rank| rank.memory).collect();
                self.report.facts.memory = all.unwrap_or_default();
            }
            ToHub::Note(text) => {
                if !self.notes.contains(&text) {
                    eprintln!("accl-bench: {text}");
                    self.notes.push(text);
                }
            }
            ToHub::Failed(failure) => self.fail(failure),
            ToHub::Done => self.ranks[rank].done = true,
        }
    }

    fn answer_share(&mut self) {
        if self.ranks.iter().any(|rank| rank.shares.is_empty()) {
            return;
        }
        let texts = self.ranks.iter_mut().filter_map(|rank| rank.shares.pop_front()).collect();
        self.tell_all(&ToRank::Shared(texts));
    }

    /// A rank that cannot be told is gone, which its reader reports.
    fn tell_all(&mut self, message: &ToRank) {
        let bytes = line(message);
        for writer in &mut self.writers {
            let _ = writer.write_all(&bytes);
        }
    }

    fn case(&mut self, rank: usize, report: CaseReport) {
        let number = report.number;
        let ranks = self.ranks.len();
        let reports = self.cases.entry(number).or_insert_with(|| vec![None; ranks]);
        reports[rank] = Some(report);
        let all: Option<Vec<CaseReport>> = reports.iter().cloned().collect();
        if let Some(all) = all {
            self.cases.remove(&number);
            self.report.row(&all);
        }
    }

    /// With a time limit: a process without a sign of life is stopped, or its machine is.
    fn check_silence(&mut self) {
        let Some(limit) = self.limit.filter(|_| self.failed_at.is_none()) else { return };
        let limit = limit + SILENCE;
        // Before the first beat, the library is being opened and ranks are meeting.
        let silent: Vec<usize> = (0..self.ranks.len())
            .filter(|&rank| self.ranks[rank].hello.is_some() && !self.ranks[rank].done)
            .filter(|&rank| self.ranks[rank].heard.elapsed() > limit)
            .collect();
        if !silent.is_empty() {
            let who: Vec<String> = silent.into_iter().map(|rank| self.describe(rank)).collect();
            let text = format!("no sign of life for {:.1} s from {}", limit.as_secs_f64(), who.join(", "));
            self.fail(Failure::new(Exit::Timeout, text));
        }
    }

    /// All failures that share the strongest reason, as one; those it explains are told in passing.
    fn verdict(&mut self) -> Option<Failure> {
        let weight = self.failures.iter().map(|failure| failure.code.weight()).max()?;
        let (reasons, echoes): (Vec<Failure>, Vec<Failure>) =
            std::mem::take(&mut self.failures).into_iter().partition(|one| one.code.weight() == weight);
        for echo in echoes {
            eprintln!("accl-bench: {echo}");
        }
        let code = reasons.first()?.code;
        let mut texts: Vec<String> = Vec::new();
        for reason in reasons {
            // Every rank says the same of its command line or library.
            let text = reason.text.split_once(": ").map_or(reason.text.as_str(), |(_, rest)| rest);
            if !texts.iter().any(|known| known.ends_with(text)) {
                texts.push(reason.text);
            }
        }
        // With a time limit: who was silent is the likely cause.
        let quiet: Vec<String> = (0..self.ranks.len())
            .filter(|&rank| code == Exit::Timeout && self.ranks[rank].heard.elapsed() > SILENCE)
            .map(|rank| self.describe(rank))
            .collect();
        if !quiet.is_empty() && !texts.iter().any(|text| text.contains("no sign of life")) {
            texts.push(format!("no sign of life from {}", quiet.join(", ")));
        }
        Some(Failure::new(code, texts.join("; ")))
    }

    fn finish(mut self) -> Exit {
        let failure = self.verdict();
        if failure.is_some()
            && let Some(processes) = &mut self.processes
        {
            // Before anything is written: they would only make it slower.
            processes.ask_to_end();
        }
        let exit = self.report.end(failure.as_ref());
        self.tell_all(&ToRank::Stop { code: exit as i32 });
        let deadline = Instant::now() + Duration::from_secs(2);
        while Instant::now() < deadline && !self.all_left() {
            if let Ok(event) = self.events.recv_timeout(TICK) {
                match event {
                    Event::Gone(rank) => self.ranks[rank].gone = true,
                    Event::Exited { process, .. } => {
                        if let Some(processes) = &mut self.processes {
                            processes.note_exit(process);
                        }
                    }
                    Event::Said(..) => {}
                }
            }
        }
        if let Some(processes) = self.processes {
            processes.end();
        }
        exit
    }

    fn all_left(&self) -> bool {
        match &self.processes {
            Some(processes) => processes.all_ended(),
            // Rank 0's own links, in this process, stay open; the others leave when told.
            None => {
                let own = std::process::id();
                let here = |rank: &Rank| rank.hello.as_ref().is_some_and(|hello| hello.pid == own);
                self.ranks.iter().all(|rank| rank.gone || here(rank))
            }
        }
    }
}

fn listen(rank: usize, mut reader: Reader, events: &Sender<Event>) {
    let mut text = String::new();
    loop {
        text.clear();
        let message = match reader.read_line(&mut text) {
            Ok(bytes) if bytes > 0 => serde_json::from_str(&text).ok(),
            _ => None,
        };
        let event = message.map_or(Event::Gone(rank), |message| Event::Said(rank, message));
        let last = matches!(event, Event::Gone(_));
        if events.send(event).is_err() || last {
            return;
        }
    }
}

/// The channel that feeds a hub.
pub(crate) fn events() -> (Sender<Event>, Receiver<Event>) {
    channel()
}
