//! What the library says on its own: the log, where `NCCL_DEBUG` asks for one, and warnings.
//!
//! Whoever turns the log on gets all of it in one place: standard output, as NCCL has it, or a file. Without it nothing is
//! written but warnings that nobody asked for, on standard error.

pub mod calls;
pub mod diagnosis;
mod level_request;
pub mod line;
pub mod log;
mod record_format;
#[cfg(test)]
mod record_format_tests;
mod recorder;
pub mod records;
mod sink;

pub use level_request::LevelRequest;
pub use record_format::{End, Head, Operation, Paths, Record, Traffic, Wait};
pub use recorder::{Recorder, TIMED_BYTES, Waiting};

use crate::sync::prim::{AtomicBool, Ordering};
use crate::types::Face;
use line::Shape;
use std::io::Write;
use std::panic::Location;

/// The version, once in a process, if the log's level is at least that.
pub fn version(face: Face) {
    static SAID: AtomicBool = AtomicBool::new(false);
    if log::shows_version() && !SAID.swap(true, Ordering::Relaxed) {
        let ours = env!("CARGO_PKG_VERSION");
        log::write(Shape::Version, Some(face), format_args!("{} (ACCL-P {ours})", face.version_text()));
    }
}

/// A warning that matters whatever the level: in the log if that has warnings, else on standard error.
#[track_caller]
pub fn warn(text: &str) {
    if log::shows_warnings() {
        log::write(Shape::Warn(Location::caller()), None, format_args!("{text}"));
        log::warned();
    } else {
        let line = format!("ACCL WARN [{}] {text}\n", std::process::id());
        let _ = std::io::stderr().write_all(line.as_bytes());
    }
}

/// The text of a failed call, for those who asked to see them.
pub fn failed_call(function: &str, error: &crate::Error) {
    if log::shows_warnings() {
        let text = format_args!("{function}: {}", error.text());
        log::write(Shape::Warn(error.place()), Some(Face::of_function(function)), text);
        log::warned();
    }
}
