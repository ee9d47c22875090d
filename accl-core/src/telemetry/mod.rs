//! What the library says on its own: warnings on standard error, nothing on standard output.

pub mod calls;
pub mod diagnosis;
mod record_format;
mod recorder;
pub mod records;

pub use record_format::{End, Head, Operation, Record, Wait};
pub use recorder::{Recorder, TIMED_BYTES, Waiting};

use crate::sync::prim::{AtomicBool, Ordering};
use std::io::Write;

static FAILURES_SHOWN: AtomicBool = AtomicBool::new(false);

/// Whether the version is to be said (once a process), and the text of each failed call.
pub fn set_level(version: bool, failures: bool) {
    static VERSION_SAID: AtomicBool = AtomicBool::new(false);
    FAILURES_SHOWN.store(failures, Ordering::Relaxed);
    if version && !VERSION_SAID.swap(true, Ordering::Relaxed) {
        let code = crate::VERSION_CODE;
        let (major, minor, patch) = (code / 10_000, code / 100 % 100, code % 100);
        say(&format!("NCCL version {major}.{minor}.{patch} (ACCL-P {})", env!("CARGO_PKG_VERSION")));
    }
}

/// A warning that matters whatever the level.
pub fn warn(text: &str) {
    say(&format!("ACCL WARN [{}] {text}", std::process::id()));
}

/// The text of a failed call, for those who asked to see them.
pub fn failed_call(text: &str) {
    if FAILURES_SHOWN.load(Ordering::Relaxed) {
        say(&format!("NCCL WARN [{}] {text}", std::process::id()));
    }
}

/// What may be worth knowing, for those who asked to hear of failures.
pub fn mention(text: &str) {
    if FAILURES_SHOWN.load(Ordering::Relaxed) {
        say(&format!("NCCL INFO [{}] {text}", std::process::id()));
    }
}

/// One line, in one piece.
fn say(text: &str) {
    let _ = std::io::stderr().write_all(format!("{text}\n").as_bytes());
}
