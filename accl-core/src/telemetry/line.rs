//! The shapes of log lines (`abi/clients.md` §4), which other programs read:
//!
//! ```text
//! NCCL version …
//! host:pid:tid [device] NCCL INFO text
//! <an empty line>
//! [2026-12-01 23:59:59] host:pid:tid [device] file.rs:line NCCL WARN text
//! host:pid:tid NCCL CALL ncclX(arguments)
//! ```
//!
//! PCCL's lines all have one shape (`abi/accl-pccl.md` §1.4):
//!
//! ```text
//! [host][pid:tid][device][file.rs:line] PCCL LEVEL text
//! ```

use crate::config::{Level, Log};
use crate::types::Face;
use std::fmt::{self, Write};
use std::panic::Location;

/// How long a line may be, with its end.
pub const LINE_BYTES: usize = 1024;

/// What kind of line it is.
#[derive(Clone, Copy, Debug)]
pub enum Shape {
    /// The text alone.
    Version,
    /// With the place in the sources.
    Warn(&'static Location<'static>),
    /// What goes on, and the same.
    Info(&'static Location<'static>),
    /// A call with its arguments, and the same.
    Call(&'static Location<'static>),
}

impl Shape {
    fn level(self) -> Level {
        match self {
            Self::Version => Level::Version,
            Self::Warn(_) => Level::Warn,
            Self::Info(_) => Level::Info,
            Self::Call(_) => Level::Trace,
        }
    }

    /// True if the settings want lines of this shape to begin with a time.
    pub(super) fn has_time(self, log: &Log) -> bool {
        log.timestamp_levels & (1 << self.level() as u32) != 0
    }
}

/// Who writes.
#[derive(Clone, Copy, Debug)]
pub(super) struct Writer<'a> {
    pub(super) host: &'a str,
    pub(super) pid: u32,
    pub(super) thread: u32,
}

/// One line, with its end, and for a warning an empty one before it. There is no device in host memory: 0 stands in its
/// place, as in NCCL without one.
pub(super) fn compose(
    shape: Shape,
    face: Face,
    time: &str,
    writer: Writer<'_>,
    text: fmt::Arguments<'_>,
) -> String {
    let Writer { host, pid, thread } = writer;
    let mut line = String::with_capacity(256);
    if matches!((shape, face), (Shape::Warn(_), Face::Nccl)) {
        line.push('\n');
    }
    let start = line.len();
    line.push_str(time);
    let at = |place: &Location<'_>| {
        format!("{}:{}", place.file().rsplit('/').next().unwrap_or_default(), place.line())
    };
    let pccl = |line: &mut String, level: &str, place| {
        write!(line, "[{host}][{pid}:{thread}][0][{}] PCCL {level} ", at(place))
    };
    let _ = match (face, shape) {
        (_, Shape::Version) => Ok(()),
        (Face::Nccl, Shape::Warn(place)) => {
            write!(line, "{host}:{pid}:{thread} [0] {} NCCL WARN ", at(place))
        }
        (Face::Nccl, Shape::Info(_)) => write!(line, "{host}:{pid}:{thread} [0] NCCL INFO "),
        (Face::Nccl, Shape::Call(_)) => write!(line, "{host}:{pid}:{thread} NCCL CALL "),
        (Face::Pccl, Shape::Warn(place)) => pccl(&mut line, "WARN", place),
        (Face::Pccl, Shape::Info(place)) => pccl(&mut line, "INFO", place),
        (Face::Pccl, Shape::Call(place)) => pccl(&mut line, "CALL", place),
    };
    let _ = line.write_fmt(text);
    line.truncate(line.floor_char_boundary(LINE_BYTES - 1));
    // A line stays one line, whatever its text.
    let rest = line.split_off(start);
    line.extend(rest.chars().map(|letter| if letter == '\n' { ' ' } else { letter }));
    line.push('\n');
    line
}

#[cfg(test)]
mod tests {
    use super::*;

    const WRITER: Writer<'_> = Writer { host: "node1", pid: 12, thread: 34 };

    #[test]
    fn lines_have_the_shapes_that_are_looked_for() {
        let text = format_args!("a\nb");
        let place = Location::caller();
        let line = |shape, time| compose(shape, Face::Nccl, time, WRITER, text);
        assert_eq!(line(Shape::Info(place), ""), "node1:12:34 [0] NCCL INFO a b\n");
        assert_eq!(line(Shape::Call(place), ""), "node1:12:34 NCCL CALL a b\n");
        assert_eq!(line(Shape::Version, ""), "a b\n");
        let expected = format!("\n[now] node1:12:34 [0] line.rs:{} NCCL WARN a b\n", place.line());
        assert_eq!(line(Shape::Warn(place), "[now] "), expected);
    }

    #[test]
    fn those_of_pccl_have_one() {
        let place = Location::caller();
        for (shape, level) in
            [(Shape::Info(place), "INFO"), (Shape::Call(place), "CALL"), (Shape::Warn(place), "WARN")]
        {
            let expected = format!("[now] [node1][12:34][0][line.rs:{}] PCCL {level} a b\n", place.line());
            assert_eq!(compose(shape, Face::Pccl, "[now] ", WRITER, format_args!("a\nb")), expected);
        }
    }

    #[test]
    fn long_lines_are_cut() {
        let long = "ä".repeat(2000);
        let line = compose(Shape::Info(Location::caller()), Face::Nccl, "", WRITER, format_args!("{long}"));
        assert!((1020..=1024).contains(&line.len()) && line.ends_with("ä\n"), "{}", line.len());
    }

    #[test]
    fn times_are_for_the_levels_that_are_named() {
        let log = Log { timestamp_levels: 1 << Level::Info as u32, ..Log::default() };
        assert!(Shape::Info(Location::caller()).has_time(&log) && !Shape::Version.has_time(&log));
    }
}
