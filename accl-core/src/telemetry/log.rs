//! The log that `NCCL_DEBUG` asks for: what is shown, and one line at a time.
//!
//! Whether a line is wanted is one word, which costs a load where nothing is. It is made of the settings when something
//! first asks, and again whenever a communicator is made.

use super::level_request::LevelRequest;
use super::line::{Shape, Writer, compose};
use super::sink::{Sink, host};
use crate::config::subsystem::{CALL, COLL, ENV, P2P};
use crate::config::{Level, Log, Settings};
use crate::os::{clock, process};
use crate::sync::prim::{AtomicU64, Ordering};
use crate::types::Face;
use parking_lot::Mutex;
use std::collections::BTreeSet;
use std::fmt;
use std::panic::Location;

/// What is shown: the subsystems of level INFO, and above them [`VERSION`], [`WARN`] and [`CALLS`].
static SHOWN: AtomicU64 = AtomicU64::new(UNKNOWN);

const VERSION: u64 = 1 << 32;
const WARN: u64 = 1 << 33;
const CALLS: u64 = 1 << 34;
/// Nobody has asked yet: everything seems to be shown, so that whoever has something to say comes and asks.
const UNKNOWN: u64 = u64::MAX;

static STATE: Mutex<Option<State>> = Mutex::new(None);

/// What a tool has asked for, which stays whatever the program sets.
static ASKED: Mutex<LevelRequest> = Mutex::new(LevelRequest::AsSet);

/// The settings as they were last read, and where lines go.
#[derive(Debug)]
struct State {
    log: Log,
    /// Lines have this library's shape.
    face: Face,
    sink: Sink,
    /// The process that opened it: a forked child has a file of its own.
    process: u32,
}

/// True if lines of level INFO about one of these subsystems are shown.
#[inline]
pub fn shows(subsystems: u32) -> bool {
    wants(u64::from(subsystems))
}

/// True if something is said of each collective, send and receive.
#[inline]
pub fn follows_calls() -> bool {
    wants(CALLS | u64::from(COLL | P2P))
}

/// True if calls are shown with their arguments.
pub fn shows_calls() -> bool {
    wants(CALLS)
}

pub(super) fn shows_warnings() -> bool {
    wants(WARN)
}

pub(super) fn shows_version() -> bool {
    wants(VERSION)
}

#[inline]
fn wants(bits: u64) -> bool {
    // Relaxed: the word says all by itself; a line more or less while it changes does no harm.
    let shown = SHOWN.load(Ordering::Relaxed);
    shown & bits != 0 && (shown != UNKNOWN || first_look() & bits != 0)
}

/// Reads the settings, as nobody has yet.
#[cold]
fn first_look() -> u64 {
    // What cannot be read now says no more when it is read for a communicator.
    apply(&Log::load().unwrap_or_default(), None);
    SHOWN.load(Ordering::Relaxed)
}

/// A line about one of these subsystems, if that is shown.
#[track_caller]
pub fn info(subsystems: u32, text: fmt::Arguments<'_>) {
    if shows(subsystems) {
        write(Shape::Info(Location::caller()), None, text);
    }
}

/// The same, once in a process for each text.
#[track_caller]
pub fn info_once(subsystems: u32, text: &str) {
    if shows(subsystems) && is_new(text) {
        write(Shape::Info(Location::caller()), None, format_args!("{text}"));
    }
}

/// True if nothing was said in these words.
fn is_new(text: &str) -> bool {
    static SAID: Mutex<BTreeSet<String>> = Mutex::new(BTreeSet::new());
    SAID.lock().insert(text.to_string())
}

/// A call with its arguments, if those are shown.
#[track_caller]
pub fn call(text: fmt::Arguments<'_>) {
    if shows_calls() {
        write(Shape::Call(Location::caller()), None, text);
    }
}

/// Writes a line, shown or not; without a face, in the shape of the latest communicator's.
pub(super) fn write(shape: Shape, face: Option<Face>, text: fmt::Arguments<'_>) {
    let (time, latest, sink) = {
        let mut state = STATE.lock();
        let Some(state) = state.as_mut() else { return };
        if state.process != process::id() {
            *state = State::of(state.log.clone(), state.face, Some(state.sink.clone()));
        }
        let format = shape.has_time(&state.log).then(|| state.log.timestamp_format.clone());
        (format, state.face, state.sink.clone())
    };
    let time = time.map_or_else(String::new, |format| clock::local_time(&format));
    let thread = rustix::thread::gettid().as_raw_nonzero().get().unsigned_abs();
    let writer = Writer { host: host(), pid: process::id(), thread };
    sink.write(&compose(shape, face.unwrap_or(latest), &time, writer, text));
}

/// Takes over the settings of a new communicator, and says, once for each, what is set and what is wrong with it. Lines have the
/// shape that programs look for which call by the names of `face`.
pub fn configure(settings: &Settings, face: Face) {
    apply(&settings.log, Some(face));
    for warning in settings.report.warnings.iter().filter(|text| is_new(text)) {
        super::warn(warning);
    }
    let report = &settings.report;
    for (name, value, origin) in report.given.iter().filter(|_| shows(ENV)) {
        info_once(ENV, &format!("{name} set by {origin} to {value}."));
    }
    for (name, value, origin) in report.without_effect.iter().filter(|_| shows(ENV)) {
        info_once(ENV, &format!("{name} set by {origin} to {value}; it has no effect here."));
    }
}

/// Forgets the settings, so that they are read anew; the file stays open if it is the same then.
pub fn reset() {
    SHOWN.store(UNKNOWN, Ordering::Relaxed);
}

/// Does what a tool has asked for.
pub(super) fn change_level(request: LevelRequest) {
    *ASKED.lock() = request;
    // What cannot be read now is said when the next communicator is made.
    apply(&Log::load().unwrap_or_default(), None);
    let said = match request {
        LevelRequest::AsSet => "as the settings have it".to_string(),
        LevelRequest::Level(level, subsystems) => format!("{level:?} with subsystems {subsystems:#x}"),
    };
    info(u32::MAX, format_args!("accl log: the level is {said} from here on"));
}

/// After a warning: whoever wants to see more from then on does.
pub(super) fn warned() {
    let state = STATE.lock();
    let log = state.as_ref().map(|state| &state.log);
    let raised = log.filter(|log| log.warning_raises && (Level::Warn..Level::Info).contains(&log.level));
    let Some(log) = raised.cloned() else { return };
    drop(state);
    *ASKED.lock() = LevelRequest::Level(Level::Info, log.subsystems);
    apply(&log, None);
}

/// Without a face, lines keep the shape that they have.
fn apply(log: &Log, face: Option<Face>) {
    let log = &ASKED.lock().applied_to(log);
    let mut state = STATE.lock();
    let face = face.or_else(|| state.as_ref().map(|state| state.face)).unwrap_or_default();
    match state.as_mut().filter(|state| state.log == *log) {
        Some(state) => state.face = face,
        None => {
            let before = state.take().map(|state| state.sink);
            *state = Some(State::of(log.clone(), face, before));
        }
    }
    SHOWN.store(word(log), Ordering::Relaxed);
}

impl State {
    fn of(log: Log, face: Face, before: Option<Sink>) -> Self {
        // The version alone is for people, on the terminal.
        let pattern = log.file.as_ref().filter(|_| log.level > Level::Version);
        let sink = pattern.map_or_else(|| Ok(Sink::output()), |pattern| Sink::of(pattern, before));
        let sink = sink.unwrap_or_else(|error| {
            // Not by `warn`, which would come back here.
            let file = log.file.as_deref().unwrap_or_default();
            let text = format!(
                "ACCL WARN cannot open NCCL_DEBUG_FILE={file}: {error}; the log goes to standard output\n"
            );
            let _ = std::io::Write::write_all(&mut std::io::stderr(), text.as_bytes());
            Sink::output()
        });
        Self { log, face, sink, process: process::id() }
    }
}

fn word(log: &Log) -> u64 {
    let info = if log.level >= Level::Info { u64::from(log.subsystems) } else { 0 };
    let calls = log.level >= Level::Trace && log.subsystems & CALL != 0;
    let bit = |is_shown: bool, bit| if is_shown { bit } else { 0 };
    info | bit(log.level >= Level::Version, VERSION) | bit(log.level >= Level::Warn, WARN) | bit(calls, CALLS)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_shown_follows_from_level_and_subsystems() {
        let shown = |level, subsystems| word(&Log { level, subsystems, ..Log::default() });
        assert_eq!(shown(Level::Silent, u32::MAX), 0);
        assert_eq!(shown(Level::Version, u32::MAX), VERSION);
        assert_eq!(shown(Level::Warn, u32::MAX), VERSION | WARN);
        assert_eq!(shown(Level::Info, CALL | ENV), VERSION | WARN | u64::from(CALL | ENV));
        assert_eq!(shown(Level::Trace, CALL) & CALLS, CALLS);
        assert_eq!(shown(Level::Trace, ENV) & CALLS, 0);
        assert_ne!(shown(Level::Trace, u32::MAX), UNKNOWN);
    }
}
