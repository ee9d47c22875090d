//! `accl log`: another log level for processes that run.

use std::collections::BTreeMap;
use std::path::Path;

use accl_core::config::{LEVELS, Level, subsystems_of};
use accl_core::telemetry::LevelRequest;
use accl_core::telemetry::records::{self, Process, Witness};

use crate::status::{Read, say};

/// Asks all live processes of this user, or those named, and says which, and which files it could not write to. The exit code: 0, 1 if there
/// are such files, or 3 if no process was found.
pub(crate) fn change(
    level: &str,
    subsystems: &str,
    pids: &[u32],
    directory: Option<&Path>,
) -> Result<u8, String> {
    let request = request_of(level, subsystems)?;
    let read = Read::all(directory)?;
    let wanted = read.witnesses.iter().filter(|witness| is_asked(witness, pids));
    let answer = ask(wanted, |witness| match records::request_level(witness, request) {
        // Its communicator has ended meanwhile.
        Err(_) if !witness.path.exists() => Ok(false),
        done => done.map(|()| true),
    });
    for (pid, communicators) in &answer.asked {
        say(&format!("pid {pid}: asked by {communicators} communicators"));
    }
    let is_unknown = |pid: &&u32| !answer.asked.contains_key(pid) && !answer.refused.contains_key(pid);
    let missing: Vec<_> = pids.iter().filter(is_unknown).map(ToString::to_string).collect();
    // Whose a file is that cannot be read is not known: it may be of those that are missing, or of anybody.
    let unread = if pids.is_empty() || !missing.is_empty() { &read.errors[..] } else { &[] };
    for (pid, error) in
        answer.refused.iter().flat_map(|(pid, errors)| errors.iter().map(move |one| (pid, one)))
    {
        eprintln!("accl: pid {pid} was not asked: {error}; do it as the user whose file that is");
    }
    unread.iter().for_each(|error| eprintln!("accl: not asked: {error}"));
    if !missing.is_empty() {
        return Err(format!(
            "no communicators of pid {}: see accl status for those that there are; the others were asked",
            missing.join(", ")
        ));
    }
    if !answer.refused.is_empty() || !unread.is_empty() {
        return Ok(1);
    }
    if answer.asked.is_empty() {
        eprintln!("accl: no process of this user on this host has communicators");
        return Ok(3);
    }
    Ok(0)
}

/// What came of asking.
#[derive(Default)]
struct Answer {
    /// How many communicators of a process were asked.
    asked: BTreeMap<u32, usize>,
    /// Why others could not be.
    refused: BTreeMap<u32, Vec<String>>,
}

/// Asks all of them, whatever becomes of one; `write` says whether it was still there.
fn ask<'a>(
    witnesses: impl Iterator<Item = &'a Witness>,
    write: impl Fn(&Witness) -> accl_core::Result<bool>,
) -> Answer {
    let mut answer = Answer::default();
    for witness in witnesses {
        let pid = witness.record.head.pid;
        match write(witness) {
            Ok(true) => *answer.asked.entry(pid).or_default() += 1,
            Ok(false) => {}
            Err(error) => answer.refused.entry(pid).or_default().push(error.text().to_string()),
        }
    }
    answer
}

fn request_of(level: &str, subsystems: &str) -> Result<LevelRequest, String> {
    if level.eq_ignore_ascii_case("settings") {
        return Ok(LevelRequest::AsSet);
    }
    let Some(level) = Level::of_name(level) else {
        let names = LEVELS.map(|(name, _)| name).join(", ");
        return Err(format!("level \"{level}\" is unknown; there are {names}, settings"));
    };
    let subsystems = subsystems_of(subsystems).map_err(|error| format!("--subsys: {error}"))?;
    Ok(LevelRequest::Level(level, subsystems))
}

fn is_asked(witness: &Witness, pids: &[u32]) -> bool {
    let lives = matches!(witness.process, Process::Running | Process::Stopped | Process::Elsewhere);
    lives && !witness.ended && (pids.is_empty() || pids.contains(&witness.record.head.pid))
}
