//! What this machine's figures are: measured, kept in a file for as long as the machine runs, and read again.
//!
//! Measuring takes half a second and is done when somebody asks for it, never by the way. The file is the cache of this
//! boot (after another one, the machine may be another one), or one that the setting `TUNE` names.

mod measure;
mod pair;

pub use measure::measure;

use crate::algo::{Choices, Forced, Pull, Shape};
use crate::config;
use crate::error::{Error, Result};
use crate::os::random;
use crate::telemetry;
use crate::topo::{Machine, boot_identity};
use crate::types::Collective;
use std::fmt::Write as _;
use std::fs::{DirBuilder, OpenOptions};
use std::io::{ErrorKind, Read, Write};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

/// A longer file is none of ours.
const MOST_FILE_BYTES: u64 = 64 << 10;

/// The figures that a value of the setting `TUNE` stands for: a file's; `off`: the defaults; empty: those of this boot's
/// cache, else the defaults; `measure`: those of the cache, else measured now and written there.
///
/// An error (InvalidArgument) if a file that the setting names cannot be read or understood. A cache that cannot be is
/// warned about, and does without.
pub fn machine(setting: &str) -> Result<Machine> {
    match setting {
        "off" => Ok(Machine::default()),
        "" => Ok(cached().unwrap_or_default()),
        "measure" => match cached() {
            Some(machine) => Ok(machine),
            None => measured_now(),
        },
        path => read(Path::new(path)).map_err(|error| error.within(format!("setting TUNE={path}"))),
    }
}

fn measured_now() -> Result<Machine> {
    let machine = measure()?;
    if let Err(error) = cache_file().and_then(|path| write(&path, &report(&machine))) {
        telemetry::warn(&format!("what was measured of this machine is not kept: {error}"));
    }
    Ok(machine)
}

/// The figures of this boot's cache, if there is one that can be understood.
fn cached() -> Option<Machine> {
    let path = cache_file().ok()?;
    if !path.exists() {
        return None;
    }
    read(&path)
        .inspect_err(|error| {
            telemetry::warn(&format!("{error}; going on without it, \"accl-bench tune\" writes it anew"));
        })
        .ok()
}

/// Where the figures of this boot are kept. An error (System) if there is no place, or the boot cannot be told.
pub fn cache_file() -> Result<PathBuf> {
    let directory = config::cache_directory()
        .ok_or_else(|| Error::system("no place for a cache", "need XDG_CACHE_HOME or HOME to be set"))?;
    Ok(directory.join("accl").join(format!("tune-{:016x}", boot_identity()?)))
}

/// Reads a file of figures.
pub fn read(path: &Path) -> Result<Machine> {
    let unreadable = |error: std::io::Error| {
        Error::argument(format!(
            "cannot read {}: {error}; make it with accl-bench tune, or set ACCL_TUNE to another file",
            path.display()
        ))
    };
    // Without waiting: what stands there may be a pipe.
    let file = OpenOptions::new().read(true).custom_flags(libc::O_NONBLOCK).open(path).map_err(unreadable)?;
    let mut text = String::new();
    let bytes = file.take(MOST_FILE_BYTES + 1).read_to_string(&mut text).map_err(unreadable)?;
    if bytes as u64 > MOST_FILE_BYTES {
        let text =
            format!("{} is longer than {MOST_FILE_BYTES} bytes; a file of figures is not", path.display());
        return Err(Error::argument(text));
    }
    Machine::parse(&text).map_err(|error| error.within(path.display()))
}

/// Writes a file as a whole: whoever reads it sees the old text or the new one. Directories are made as needed, for this
/// user alone; so is the file.
pub fn write(path: &Path, text: &str) -> Result<()> {
    let failed = |error: std::io::Error| Error::system(format!("cannot write {}", path.display()), error);
    if let Some(directory) = path.parent().filter(|directory| !directory.as_os_str().is_empty()) {
        DirBuilder::new().recursive(true).mode(0o700).create(directory).map_err(failed)?;
    }
    let mut name = path.as_os_str().to_owned();
    name.push(format!(".{:016x}.new", u64::from_ne_bytes(random::bytes()?)));
    let new = PathBuf::from(name);
    let written = OpenOptions::new()
        .write(true)
        .create_new(true)
        .mode(0o600)
        .open(&new)
        .and_then(|mut file| file.write_all(text.as_bytes()))
        .and_then(|()| std::fs::rename(&new, path));
    written.map_err(|error| {
        if error.kind() != ErrorKind::AlreadyExists {
            let _ = std::fs::remove_file(&new);
        }
        failed(error)
    })
}

/// The text of a file, with the choices that follow from the figures as comments behind them.
pub fn report(machine: &Machine) -> String {
    let mut text = machine.to_text();
    // Writing to a String cannot fail.
    let _ = writeln!(text, "#\n# What follows for float data, in bytes of the call's count:");
    let _ = writeln!(
        text,
        "# {:13}  {:>5}  {:>8}  ways, each with the size from which on it is taken",
        "operation", "ranks", "pull"
    );
    let kinds = [
        Collective::AllReduce,
        Collective::Reduce,
        Collective::ReduceScatter,
        Collective::Broadcast,
        Collective::AllGather,
        Collective::AllToAll,
    ];
    let shown = |kind, shape| {
        let choices = Choices::of(kind, shape, machine, &Forced::default());
        let mut ways: Vec<_> =
            choices.ways().iter().map(|(least, way)| format!("{least} {}", way.name())).collect();
        if choices.streaming_least_bytes < usize::MAX {
            ways.push(format!("{} streaming", choices.streaming_least_bytes));
        }
        ways.join(", ")
    };
    for kind in kinds {
        for ranks in [2, 4, 8] {
            for (pull, name) in [(Pull::InPlace, "in-place"), (Pull::Kernel, "kernel")] {
                let shape = Shape { ranks, cpus: ranks, pull };
                let _ =
                    writeln!(text, "# {:13}  {ranks:5}  {name:>8}  {}", kind.to_string(), shown(kind, shape));
            }
        }
    }
    text
}

/// Where what was measured goes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Target<'a> {
    /// This boot's cache.
    Cache,
    /// Nowhere.
    Nowhere,
    /// This file.
    File(&'a Path),
}

/// Measures, writes, and tells what was found, and where it went in a last line.
pub fn tune(target: Target<'_>) -> Result<String> {
    let path = match target {
        Target::Cache => Some(cache_file()?),
        Target::Nowhere => None,
        Target::File(path) => Some(path.to_path_buf()),
    };
    let mut text = report(&measure()?);
    let _ = match &path {
        Some(path) => {
            write(path, &text)?;
            writeln!(text, "# written to {}", path.display())
        }
        None => writeln!(text, "# not written"),
    };
    Ok(text)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt;

    fn scratch(name: &str) -> PathBuf {
        std::env::temp_dir().join(format!("accl-tune-{name}-{}", std::process::id()))
    }

    #[test]
    fn a_file_comes_back_and_is_the_users_own() {
        let directory = scratch("round-trip");
        let path = directory.join("deep/figures");
        let machine = Machine { handover_ps: 4_567, ..Machine::default() };
        for _ in 0..2 {
            write(&path, &report(&machine)).unwrap();
        }
        assert_eq!(read(&path).unwrap(), machine);
        assert_eq!(super::machine(path.to_str().unwrap()).unwrap(), machine);
        assert_eq!(path.metadata().unwrap().permissions().mode() & 0o777, 0o600);
        assert_eq!(
            std::fs::read_dir(path.parent().unwrap()).unwrap().count(),
            1,
            "nothing is left beside it"
        );
        std::fs::remove_dir_all(directory).unwrap();
    }

    #[test]
    fn a_file_that_is_asked_for_and_cannot_be_used_is_an_error() {
        let error = machine("/nowhere/figures").unwrap_err();
        assert_eq!(error.kind(), crate::ErrorKind::InvalidArgument);
        assert!(error.text().contains("setting TUNE=/nowhere/figures: cannot read"), "{error}");
        let path = scratch("malformed");
        std::fs::write(&path, "accl-tune 1\nhandover = -3 ns\n").unwrap();
        let error = machine(path.to_str().unwrap()).unwrap_err();
        std::fs::remove_file(&path).unwrap();
        assert!(error.text().contains("line 2: handover is \"-3 ns\", need a number from 1"), "{error}");
        assert!(machine("/").is_err() && machine("/dev/null").is_err());
        assert!(machine("/dev/zero").unwrap_err().text().contains("is longer than 65536 bytes"));
        assert_eq!(machine("off").unwrap(), Machine::default());
    }

    #[test]
    fn what_cannot_be_written_is_an_error_that_names_the_file() {
        let error = write(Path::new("/proc/nothing/figures"), "x").unwrap_err();
        assert_eq!(error.kind(), crate::ErrorKind::System);
        assert!(error.text().contains("cannot write /proc/nothing/figures"), "{error}");
    }

    #[test]
    fn the_report_is_a_file_with_choices_behind_the_figures() {
        let text = report(&Machine::default());
        assert_eq!(Machine::parse(&text).unwrap(), Machine::default());
        let rows: Vec<_> = text.lines().filter(|line| line.starts_with("# AllReduce ")).collect();
        assert_eq!(rows.len(), 6, "{text}");
        assert!(rows[1].starts_with("# AllReduce          2    kernel  0 copied, "), "{rows:?}");
        assert!(rows.iter().all(|row| row.contains("lent") && row.contains("streaming")), "{rows:?}");
    }

    /// What is measured is the machine's business; that it is measured, and can be true, is ours.
    #[test]
    fn what_is_measured_can_be_true() {
        let machine = measure().unwrap();
        println!("{}", report(&machine));
        assert_eq!(Machine::from_words(machine.words()), Some(machine));
        assert_ne!(machine, Machine::default());
    }
}
