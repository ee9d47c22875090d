//! Where records lie: one directory of this user, in which each rank of each communicator has a file.
//!
//! A file's name says whose it is: `COMMUNICATOR-RANK-PID-START-NAMESPACE-BOOT-NUMBER.rec`, so that nobody needs to look into it
//! to find out whether its process lives; while it is made, it ends in `new` and is no record. It goes when its communicator ends in good order; if not, it is kept as `.end`.
//! Files of processes that are gone are kept, too, until there are more than [`KEPT`] that nobody keeps up any more: then the
//! oldest go when somebody makes a new one. Those of a live process never do.

use super::level_request::LevelRequest;
use super::record_format::{Head, MOST_BYTES, Record, live};
use super::recorder::Recorder;
use crate::config;
use crate::config::subsystem;
use crate::error::{Error, Result};
use crate::os::files::PrivateDirectory;
use crate::os::mapping::is_written_by_nobody;
use crate::os::process::{self, Sight};
use crate::sync::prim::{AtomicBool, AtomicU64, Ordering};
use std::collections::HashMap;
use std::fs::File;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::time::SystemTime;

/// Files of the dead that are kept: a job of 64 ranks with two communicators, twice that if it is the only one.
pub const KEPT: usize = 128;

/// Where a file is.
#[derive(Debug)]
pub(super) struct Place {
    directory: PathBuf,
    opened: PrivateDirectory,
    name: String,
}

impl Place {
    pub(super) fn create(&self, content: &[u8]) -> Result<OwnedFd> {
        self.opened.create(&self.name, content)
    }

    pub(super) fn path(&self) -> PathBuf {
        self.directory.join(&self.name)
    }

    /// Removes the file.
    pub(super) fn remove(&self) {
        self.opened.remove(&self.name);
    }

    /// The file stays, and nobody keeps it up any more.
    pub(super) fn keep(&self) {
        self.opened.rename(&self.name, &Path::new(&self.name).with_extension("end").to_string_lossy());
    }
}

/// The recorder of a new communicator: with a file, if the settings want one and there is a place for it; else without.
pub fn start(settings: &config::Recorder, head: &Head) -> Result<Recorder> {
    static TOLD: AtomicBool = AtomicBool::new(false);
    if !settings.on {
        return Recorder::without_file();
    }
    let mut refusals = Vec::new();
    for directory in settings.directories() {
        // Storing into a file that is mapped may wait for its disk, which is for the user to choose.
        let chosen = settings.directory.is_some();
        match PrivateDirectory::open(&directory, true) {
            Ok(opened) if chosen || opened.is_in_memory() => {
                let place = Place { name: name_of(head), directory, opened };
                sweep(&place, head);
                match Recorder::at(place, head) {
                    Ok(recorder) => return Ok(recorder),
                    Err(error) => refusals.push(error.text().to_string()),
                }
            }
            Ok(_) => refusals.push(format!("{} is not in memory", directory.display())),
            Err(error) => refusals.push(error.text().to_string()),
        }
    }
    if !TOLD.swap(true, Ordering::Relaxed) {
        super::log::info(
            subsystem::INIT,
            format_args!(
                "no flight recorder, so that accl status shows nothing of this process: {}; ACCL_RECORDER_DIR names another directory",
                refusals.join("; ")
            ),
        );
    }
    Recorder::without_file()
}

fn name_of(head: &Head) -> String {
    static NUMBER: AtomicU64 = AtomicU64::new(0);
    let number = NUMBER.fetch_add(1, Ordering::Relaxed);
    let Head { communicator, rank, pid, start, pid_namespace, boot, .. } = head;
    format!("{communicator:016x}-{rank}-{pid}-{start}-{pid_namespace}-{boot:016x}-{number}.rec")
}

/// What a name says of the process.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Owner {
    pid: u32,
    start: u64,
    pid_namespace: u64,
    boot: u64,
    /// Its communicator has ended, and the file is kept.
    ended: bool,
}

fn owner_of(name: &str) -> Option<Owner> {
    let (words, kind) = name.rsplit_once('.')?;
    let ended = match kind {
        "rec" | "new" => false,
        "end" => true,
        _ => return None,
    };
    let mut words = words.split('-').skip(2);
    let mut word = || words.next();
    let owner = Owner {
        pid: word()?.parse().ok()?,
        start: word()?.parse().ok()?,
        pid_namespace: word()?.parse().ok()?,
        boot: u64::from_str_radix(word()?, 16).ok()?,
        ended,
    };
    (words.count() == 1).then_some(owner)
}

/// Removes the oldest files that nobody keeps up, as far as there are more than are kept.
fn sweep(place: &Place, here: &Head) {
    let Ok(entries) = std::fs::read_dir(&place.directory) else { return };
    let names = entries.flatten().filter_map(|entry| entry.file_name().into_string().ok());
    let owned: Vec<_> = names.filter_map(|name| Some((owner_of(&name)?, name))).collect();
    // Without /proc, nobody could be told to be gone.
    if owned.len() <= KEPT || here.start == 0 {
        return;
    }
    let mut seen: HashMap<u32, Option<Sight>> = HashMap::new();
    let mut look = |pid| *seen.entry(pid).or_insert_with(|| process::look_at(pid));
    let mut is_over = |owner: &Owner, name: &str| {
        if owner.ended || owner.boot != here.boot {
            return true;
        }
        if owner.pid_namespace == here.pid_namespace {
            return look(owner.pid).is_none_or(|sight| sight.start != owner.start);
        }
        // Its number means nothing here, but the kernel knows whether it has the file.
        place.opened.read(name).is_ok_and(|file| is_written_by_nobody(file.as_fd()))
    };
    let mut over: Vec<_> =
        owned.into_iter().filter(|(owner, name)| is_over(owner, name)).map(|(_, name)| name).collect();
    if over.len() <= KEPT {
        return;
    }
    let made = |name: &String| place.directory.join(name).metadata().and_then(|data| data.modified()).ok();
    over.sort_by_cached_key(|name| std::cmp::Reverse(made(name).unwrap_or(SystemTime::UNIX_EPOCH)));
    over.iter().skip(KEPT).for_each(|name| place.opened.remove(name));
}

/// What is known of a record's process now.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Process {
    /// It runs, or sleeps.
    Running,
    /// It is stopped, by SIGSTOP say.
    Stopped,
    /// It has ended.
    Dead,
    /// It is of another PID namespace, and lives.
    Elsewhere,
    /// It is of another host or boot: nothing is known.
    Unknown,
}

/// A record that was found, and what is known of its process.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Witness {
    /// The record.
    pub record: Record,
    /// Its process.
    pub process: Process,
    /// The file.
    pub path: PathBuf,
    /// Its communicator has ended, and the file is kept to be read.
    pub ended: bool,
}

/// Where the reader is: its boot and its PID namespace.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Here {
    /// The running kernel.
    pub boot: u64,
    /// The PID namespace.
    pub pid_namespace: u64,
}

/// All records in a directory, and what is wrong with those that cannot be read. A file that goes meanwhile is none.
pub fn read_directory(path: &Path, here: Here) -> Result<(Vec<Witness>, Vec<Error>)> {
    let shown = path.display();
    let entries =
        std::fs::read_dir(path).map_err(|error| Error::system(format!("cannot read {shown}"), error))?;
    let mut paths: Vec<_> =
        entries.flatten().map(|entry| entry.path()).filter(|path| is_record(path)).collect();
    paths.sort();
    let (mut witnesses, mut errors) = (Vec::new(), Vec::new());
    for path in paths {
        match read(&path, here) {
            Ok(witness) => witnesses.push(witness),
            Err(_) if !path.exists() => {}
            Err(error) => errors.push(error),
        }
    }
    Ok((witnesses, errors))
}

/// Leaves a request for another log level in the record of a process that runs; it is seen when that begins its next operation, or
/// looks around in a wait. An error (System) names the file.
pub fn request_level(witness: &Witness, request: LevelRequest) -> Result<()> {
    let place = (live::LEVEL_REQUEST * size_of::<u64>()) as u64;
    crate::os::files::overwrite(&witness.path, place, &request.encode().to_le_bytes())
        .map_err(|error| error.within(witness.path.display()))
}

fn is_record(path: &Path) -> bool {
    path.extension().is_some_and(|extension| extension == "rec" || extension == "end")
}

/// Reads one record; an error (InvalidArgument or System) names the file and says what is wrong with it. Never waits.
///
/// Its writer may be at work. So it is read twice: what is the same both times, and was not being changed, is believed; of
/// what changes all the time the later word counts, since each word is one store.
pub fn read(path: &Path, here: Here) -> Result<Witness> {
    let named = |error: Error| error.within(path.display());
    let name = path.file_name().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default();
    let file = crate::os::files::open_for_reading(path).map_err(named)?;
    let (first, second) = (content(&file).map_err(named)?, content(&file).map_err(named)?);
    let before = Record::decode(&first).map_err(named)?;
    let mut record = Record::decode(&second).map_err(named)?;
    record.operations.retain(|operation| {
        let known = before.operations.binary_search_by_key(&operation.place, |known| known.place);
        // What has come in between is complete: its last word was stored behind the others.
        known.is_err() || known.is_ok_and(|known| before.operations[known].what == operation.what)
    });
    let ended = name.ends_with(".end");
    let process = process_of(&record.head, &file, here);
    Ok(Witness { record, process, path: path.to_path_buf(), ended })
}

fn content(file: &File) -> Result<Vec<u8>> {
    let mut bytes = Vec::new();
    let mut room = [0; 32 << 10];
    let refused = |error| Error::system("cannot read it", error);
    while bytes.len() <= MOST_BYTES {
        let count = file.read_at(&mut room, bytes.len() as u64).map_err(refused)?;
        if count == 0 {
            return Ok(bytes);
        }
        bytes.extend_from_slice(&room[..count]);
    }
    Err(Error::argument(format!(
        "it has more than {MOST_BYTES} bytes: it is no record of ACCL-P; remove it, or name another directory"
    )))
}

fn process_of(head: &Head, file: &File, here: Here) -> Process {
    if head.boot != here.boot {
        return Process::Unknown;
    }
    if head.pid_namespace != here.pid_namespace {
        return if is_written_by_nobody(file.as_fd()) { Process::Dead } else { Process::Elsewhere };
    }
    match process::look_at(head.pid) {
        Some(sight) if sight.start != head.start || matches!(sight.state, 'Z' | 'X') => Process::Dead,
        Some(sight) if sight.is_stopped() => Process::Stopped,
        Some(_) => Process::Running,
        None => Process::Dead,
    }
}

#[cfg(test)]
#[path = "records_tests.rs"]
mod tests;
