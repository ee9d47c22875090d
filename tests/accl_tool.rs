//! `accl` from outside.

// Helpers of tests fail by panicking.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod support;

use std::path::Path;
use std::process::Command;

fn accl() -> Command {
    Command::new(env!("CARGO_BIN_EXE_accl"))
}

#[test]
fn install_lays_out_what_programs_look_for() {
    let prefix = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("install-{}", std::process::id()));
    // Twice: an installation is replaced in place.
    for _ in 0..2 {
        let mut command = accl();
        command.args(["install", "--prefix"]).arg(&prefix).arg("--from").arg(support::libraries());
        support::run(&mut command);
    }
    for face in ["nccl", "pccl"] {
        let link = std::fs::read_link(prefix.join(format!("lib/lib{face}.so"))).unwrap();
        assert_eq!(link, Path::new(&format!("lib{face}.so.2")));
        assert!(prefix.join("lib").join(link).symlink_metadata().unwrap().is_file());
    }
    let header = std::fs::read(prefix.join("include/nccl.h")).unwrap();
    assert_eq!(header, std::fs::read(support::root().join("include/nccl.h")).unwrap());
    assert_eq!(std::fs::read_dir(prefix.join("lib")).unwrap().count(), 5);
    std::fs::remove_dir_all(prefix).unwrap();
}

#[test]
fn a_directory_without_libraries_is_named() {
    let prefix = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("nothing-{}", std::process::id()));
    let mut command = accl();
    let output = command.args(["install", "--from", "/nowhere", "--prefix"]).arg(&prefix).output().unwrap();
    assert!(
        !output.status.success() && String::from_utf8_lossy(&output.stderr).contains("/nowhere/libaccl.so")
    );
    assert!(!prefix.exists());
}

#[test]
fn the_version_is_told() {
    let output = accl().args(["version"]).output().unwrap();
    assert_eq!(output.stdout, format!("accl {}\n", env!("CARGO_PKG_VERSION")).as_bytes());
}
