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
    for header in ["include/nccl.h", "include/pccl.h", "include/accl.h"] {
        let installed = std::fs::read(prefix.join(header)).unwrap();
        assert_eq!(installed, std::fs::read(support::root().join(header)).unwrap(), "{header}");
    }
    assert_eq!(std::fs::read_dir(prefix.join("lib")).unwrap().count(), 5);
    std::fs::remove_dir_all(prefix).unwrap();
}

/// A program that has no NCCL of its own finds ours, and so do its children; what was preloaded stays.
#[test]
fn run_puts_the_library_in_place_for_a_process_tree() {
    let probe = "import ctypes, os; print(hasattr(ctypes.CDLL(None), 'acclStreamCreate'), os.environ['VLLM_NCCL_SO_PATH'])";
    let mut command = accl();
    command.args(["run", "--lib"]).arg(library()).args([
        "--",
        "sh",
        "-c",
        &format!("exec python3 -c \"{probe}\""),
    ]);
    let output = support::run(&mut command);
    let path = library().canonicalize().unwrap();
    assert_eq!(String::from_utf8_lossy(&output.stdout), format!("True {}\n", path.display()));
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(said.contains("in the place of libnccl.so.2 for sh") && said.contains("2.30.7"), "{said}");
    let output =
        accl().args(["run", "-q", "--lib"]).arg(library()).args(["--", "/nowhere/program"]).output().unwrap();
    assert_eq!(output.status.code(), Some(1));
    assert!(String::from_utf8_lossy(&output.stderr).contains("/nowhere/program"));
}

/// An environment with a file in the place of nvidia-nccl's; afterwards it is as it was.
#[test]
fn the_library_of_an_environment_is_replaced_and_put_back() {
    let directory = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("venv-{}", std::process::id()));
    support::run(Command::new("python3").args(["-m", "venv", "--without-pip"]).arg(&directory));
    let python = directory.join("bin/python3");
    let refused =
        accl().args(["install", "--torch"]).arg(&python).arg("--lib").arg(library()).output().unwrap();
    assert!(String::from_utf8_lossy(&refused.stderr).contains("has no nvidia-nccl package"), "{refused:?}");
    let packages = std::fs::read_dir(directory.join("lib")).unwrap().next().unwrap().unwrap().path();
    let place = packages.join("site-packages/nvidia/nccl/lib");
    std::fs::create_dir_all(&place).unwrap();
    let (file, kept) = (place.join("libnccl.so.2"), place.join("libnccl.so.2.before-accl"));
    // Somebody else's library: ours is not, as it lacks the extensions.
    let source = directory.join("other.c");
    std::fs::write(&source, "int ncclGetVersion(int *version) { *version = 22000; return 0; }").unwrap();
    support::run(Command::new("cc").args(["-shared", "-fPIC", "-o"]).arg(&file).arg(&source));
    let before = std::fs::read(&file).unwrap();
    support::run(accl().args(["install", "--torch"]).arg(&python).arg("--lib").arg(library()));
    assert_eq!(std::fs::read(&file).unwrap(), std::fs::read(library()).unwrap());
    assert_eq!(std::fs::read(&kept).unwrap(), before);
    let again =
        accl().args(["install", "--torch"]).arg(&python).arg("--lib").arg(library()).output().unwrap();
    assert!(
        !again.status.success() && String::from_utf8_lossy(&again.stderr).contains("--undo"),
        "{again:?}"
    );
    support::run(accl().args(["install", "--torch"]).arg(&python).arg("--undo"));
    assert_eq!(std::fs::read(&file).unwrap(), before);
    assert!(!kept.exists());
    std::fs::remove_dir_all(directory).unwrap();
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

/// The JSON that a command prints.
fn json(command: &mut Command) -> (Option<i32>, serde_json::Value) {
    for (name, _) in std::env::vars() {
        if ["ACCL_", "PCCL_", "NCCL_"].iter().any(|prefix| name.starts_with(prefix)) {
            command.env_remove(name);
        }
    }
    let output = command.output().unwrap();
    let value = serde_json::from_slice(&output.stdout);
    (output.status.code(), value.unwrap_or_else(|error| panic!("{error}: {output:?}")))
}

fn library() -> std::path::PathBuf {
    support::libraries().join("libnccl.so")
}

fn found<'a>(findings: &'a serde_json::Value, name: &str) -> &'a serde_json::Value {
    let checks = findings["checks"].as_array().unwrap();
    checks.iter().find(|check| check["name"] == name).unwrap_or_else(|| panic!("{name} in {findings}"))
}

#[test]
fn the_doctor_finds_a_broken_limit_and_says_what_to_do() {
    let mut command = Command::new("sh");
    command.args(["-c", "ulimit -n 48; exec \"$0\" doctor --json --lib \"$1\"", env!("CARGO_BIN_EXE_accl")]);
    let (code, findings) = json(command.arg(library()));
    assert_eq!((code, &findings["state"]), (Some(1), &"fail".into()));
    let files = found(&findings, "open files");
    assert_eq!((&files["state"], &files["found"]), (&"fail".into(), &"48 (at most 48)".into()));
    assert!(files["remedy"].as_str().unwrap().contains("ulimit -n 65536"), "{files}");
    for name in ["library", "TCP port", "shared memory", "kernel"] {
        assert_eq!(found(&findings, name)["state"], "ok", "{findings}");
    }
}

#[test]
fn the_doctor_says_which_interfaces_are_not_told_and_which_settings_are_wrong() {
    let doctor = |name: &str, value: &str| {
        let mut command = Command::new("env");
        command.arg(format!("{name}={value}")).arg(env!("CARGO_BIN_EXE_accl"));
        json(command.args(["doctor", "--json", "--lib"]).arg(library())).1
    };
    let findings = doctor("NCCL_SOCKET_IFNAME", "=nothing");
    assert_eq!(found(&findings, "interfaces that others are told")["state"], "warn");
    let others = found(&findings, "other interfaces")["found"].as_str().unwrap();
    assert!(others.contains("lo: NCCL_SOCKET_IFNAME==nothing excludes it"), "{others}");
    let findings = doctor("ACCL_PORT_RANGE", "7-5");
    assert_eq!(found(&findings, "library")["state"], "fail");
    assert!(
        found(&findings, "library")["found"].as_str().unwrap().contains("ACCL_PORT_RANGE=7-5"),
        "{findings}"
    );
}

#[test]
fn the_topology_of_processes_is_shown_with_reasons() {
    let topo = |arguments: &[&str], setting: &str| {
        let mut command = Command::new("env");
        command.arg(setting).arg(env!("CARGO_BIN_EXE_accl")).arg("topo").args(arguments).arg("--lib");
        command.arg(library());
        command
    };
    let (code, map) = json(&mut topo(&["-g", "3", "--json"], "ACCL_CROSS_MEMORY=0"));
    assert_eq!((code, &map["ranks"]), (Some(0), &3.into()));
    assert_eq!(map["hosts"].as_array().unwrap().len(), 1);
    assert_eq!(map["hosts"][0]["ranks"].as_array().unwrap().len(), 3);
    let pairs = map["pairs"].as_array().unwrap();
    assert_eq!(pairs.len(), 6);
    for pair in pairs {
        assert_eq!(pair["transport"], "shared-memory-rings");
        assert_eq!(pair["reason"], "ACCL_CROSS_MEMORY=0");
    }
    let (_, map) = json(&mut topo(&["-g", "2", "--json"], "ACCL_SHM_DISABLE=1"));
    assert_eq!(map["hosts"].as_array().unwrap().len(), 2);
    assert_eq!(map["pairs"][0]["transport"], "tcp");
    assert!(map["pairs"][0]["address"].is_string() && map["pairs"][0]["interface"].is_string(), "{map}");
    let output = support::run(&mut topo(&["-g", "2"], "A=1"));
    let text = String::from_utf8(output.stdout).unwrap();
    assert!(text.starts_with("2 ranks on 1 hosts\n├─ host ") && text.contains("0→1 1→0"), "{text}");
}

#[test]
fn the_ranks_of_a_launcher_are_joined() {
    // None of those that the system gives to whoever asks for any port, as other tests do meanwhile.
    let first = 20_000 + (std::process::id() % 10_000) as u16;
    let port = (first..).find(|port| std::net::TcpListener::bind(("127.0.0.1", *port)).is_ok()).unwrap();
    let rank = |rank: &str| {
        let mut command = accl();
        command.args(["topo", "--json", "--lib"]).arg(library());
        command.env("ACCL_RANK", rank).env("ACCL_WORLD", "2").env("ACCL_ROOT", format!("127.0.0.1:{port}"));
        command
    };
    let other = rank("1").stdout(std::process::Stdio::piped()).spawn().unwrap();
    let output = support::run(&mut rank("0"));
    let map: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!((&map["ranks"], map["pairs"].as_array().unwrap().len()), (&2.into(), 2));
    let other = other.wait_with_output().unwrap();
    assert!(other.status.success() && other.stdout.is_empty(), "rank 0 alone prints");
}
