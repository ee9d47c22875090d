//! `accl status`, asked by tests.

// Each test file uses its part of this, and none of it from outside.
#![allow(dead_code, unreachable_pub)]
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use serde_json::Value;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::time::{Duration, Instant};

/// A new directory that only this user can look into.
pub fn scratch(name: &str) -> PathBuf {
    let path = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("recorder-{name}-{}", std::process::id()));
    std::fs::create_dir_all(&path).unwrap();
    std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o700)).unwrap();
    path
}

/// `accl` with words, of which the last may be paths.
pub fn accl(words: &[&str], paths: &[&Path]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_accl"));
    command.args(words).args(paths).env_remove("ACCL_RECORDER_DIR");
    command
}

/// The exit code and the answer.
#[track_caller]
pub fn answer(output: &Output) -> (i32, Value) {
    let value = serde_json::from_slice(&output.stdout).unwrap_or_else(|error| panic!("{error}: {output:?}"));
    (output.status.code().unwrap(), value)
}

pub fn status(directory: &Path) -> (i32, Value) {
    answer(&accl(&["status", "--json", "--patience", "0.5", "--dir"], &[directory]).output().unwrap())
}

/// Asks until the answer is as wanted.
#[track_caller]
pub fn answer_when(ask: impl Fn() -> (i32, Value), is: impl Fn(&Value) -> bool) -> (i32, Value) {
    let deadline = Instant::now() + Duration::from_secs(60);
    loop {
        let (code, found) = ask();
        if is(&found) {
            return (code, found);
        }
        assert!(Instant::now() < deadline, "{found}");
        std::thread::sleep(Duration::from_millis(50));
    }
}

/// Asks until the worst communicator is as wanted, and returns that.
#[track_caller]
pub fn status_when(directory: &Path, is: impl Fn(&Value) -> bool) -> (i32, Value) {
    let (code, found) = answer_when(|| status(directory), |found| is(&found["communicators"][0]));
    (code, found["communicators"][0].clone())
}
