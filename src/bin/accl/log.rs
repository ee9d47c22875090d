//! `accl log`: another log level for processes that run.

use std::collections::BTreeMap;
use std::path::Path;

use accl_core::config::{LEVELS, Level, subsystems_of};
use accl_core::telemetry::LevelRequest;
use accl_core::telemetry::records::{self, Process, Witness};

use crate::status::{Read, say};

/// Asks all live processes of this user, or those named, and says which. The exit code: 0, or 3 if there are none.
pub(crate) fn change(
    level: &str,
    subsystems: &str,
    pids: &[u32],
    directory: Option<&Path>,
) -> Result<u8, String> {
    let request = request_of(level, subsystems)?;
    let read = Read::all(directory)?;
    let mut asked: BTreeMap<u32, usize> = BTreeMap::new();
    for witness in read.witnesses.iter().filter(|witness| is_asked(witness, pids)) {
        match records::request_level(witness, request) {
            Ok(()) => *asked.entry(witness.record.head.pid).or_default() += 1,
            // Its communicator has ended meanwhile.
            Err(_) if !witness.path.exists() => {}
            Err(error) => return Err(error.to_string()),
        }
    }
    for (pid, communicators) in &asked {
        say(&format!("pid {pid}: asked by {communicators} communicators"));
    }
    let missing: Vec<_> =
        pids.iter().filter(|pid| !asked.contains_key(pid)).map(ToString::to_string).collect();
    if !missing.is_empty() {
        return Err(format!(
            "no communicators of pid {}: see accl status for those that there are; the others were asked",
            missing.join(", ")
        ));
    }
    if asked.is_empty() {
        eprintln!("accl: no process of this user on this host has communicators");
        return Ok(3);
    }
    Ok(0)
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
