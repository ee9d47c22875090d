//! `accl env`, and what jobs make of settings from several places (C65).

// Helpers of tests fail by panicking.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]
// Every call here is a call of the C interface with arguments that the test keeps alive.
#![allow(clippy::undocumented_unsafe_blocks)]

mod support;

use accl_core::config::SETTINGS;
use serde_json::{Value, json};
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::ptr::null_mut;
use support::api::{INT32, INVALID_ARGUMENT, SUM, api};
use support::cluster::{Cluster, Rank, Scenario, plain, work};

const SCENARIOS: [(&str, Scenario); 4] =
    [("plain", plain), ("refused", refused), ("changing", changing), ("warned", warned)];

#[test]
fn worker() {
    work(&SCENARIOS);
}

/// The communicator cannot be made; what was said must hold all words of the argument.
fn refused(rank: Rank) {
    let mut comm = null_mut();
    let code = unsafe { (api().ncclCommInitRank)(&raw mut comm, 1, rank.ids[0], 0) };
    let text = rank.api.error_text();
    assert!(code == INVALID_ARGUMENT && comm.is_null(), "{code}: {text}");
    for word in rank.argument.split('|') {
        assert!(text.contains(word), "{word} in {text}");
    }
}

/// A program that changes its environment between communicators.
fn changing(rank: Rank) {
    let name = "NCCL_SEGMENT_BYTES";
    for (id, (value, works)) in [("64K", true), ("many", false), ("1M", true)].into_iter().enumerate() {
        // SAFETY: no other thread of this process reads or writes the environment meanwhile.
        unsafe { std::env::set_var(name, value) };
        let mut comm = null_mut();
        let code = unsafe { (api().ncclCommInitRank)(&raw mut comm, 1, rank.ids[id], 0) };
        assert_eq!(code == 0, works, "{value}: {}", rank.api.error_text());
        if works {
            rank.api.destroy(comm);
        }
    }
}

/// A call that fails.
fn warned(rank: Rank) {
    let comm = rank.join();
    let code = unsafe { (rank.api.ncclAllReduce)(null_mut(), null_mut(), 4, INT32, SUM, comm, null_mut()) };
    assert_eq!(code, INVALID_ARGUMENT);
    rank.api.destroy(comm);
}

/// The first warning has everything told that comes after it.
#[test]
fn a_warning_can_raise_the_level() {
    for (raises, lines) in [("1", 1), ("0", 0)] {
        let log =
            Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("raised-{raises}-{}", std::process::id()));
        let cluster = Cluster::new(1, 1).env("NCCL_DEBUG", "WARN").env("NCCL_DEBUG_FILE", log.display());
        cluster.env("NCCL_WARN_ENABLE_DEBUG_INFO", raises).run("warned");
        let text = std::fs::read_to_string(&log).unwrap();
        assert_eq!(text.matches("NCCL WARN ncclAllReduce").count(), 1, "{text}");
        assert_eq!(text.matches("NCCL INFO").count(), lines, "{text}");
        assert_eq!(text.matches("- Destroy COMPLETE").count(), lines, "{text}");
        std::fs::remove_file(log).unwrap();
    }
}

/// Whatever NCCL_NO_CACHE says, nothing is cached.
#[test]
fn jobs_read_the_environment_for_each_communicator() {
    Cluster::new(1, 1).ids(3).run("changing");
    for names in ["ALL", "NCCL_SEGMENT_BYTES", ""] {
        Cluster::new(1, 1).ids(3).env("NCCL_NO_CACHE", names).run("changing");
    }
}

/// Names of NCCL and PCCL that have no effect here are said to have none, by whatever prefix and wherever they are set.
#[test]
fn what_has_no_effect_is_said() {
    let path = file("accepted", "PCCL_STATE_MONITOR_LEVEL=2\n");
    let file = path.to_str().unwrap();
    let settings = [
        ("NCCL_CONF_FILE", file),
        ("NCCL_NVLS_ENABLE", "0"),
        ("NCCL_NO_CACHE", "ALL"),
        ("ACCL_C4_STATS_MODE", "CONN"),
        ("NCCL_SOMETHING_ELSE", "1"),
    ];
    let output = env(&["--json"], &settings);
    let all: Value = serde_json::from_slice(&output.stdout).unwrap();
    let by_environment = |name: &str, value: &str| json!({"name": name, "value": value, "origin": {"kind": "environment", "variable": name}});
    let expected = json!([
        by_environment("ACCL_C4_STATS_MODE", "CONN"),
        by_environment("NCCL_NO_CACHE", "ALL"),
        by_environment("NCCL_NVLS_ENABLE", "0"),
        {"name": "PCCL_STATE_MONITOR_LEVEL", "value": "2",
            "origin": {"kind": "file", "variable": "PCCL_STATE_MONITOR_LEVEL", "file": file, "line": 1}},
    ]);
    assert_eq!(
        (&all["without_effect"], &all["warnings"], &all["errors"]),
        (&expected, &json!([]), &json!([]))
    );
    let text = String::from_utf8(env(&[], &settings).stdout).unwrap();
    let line = text.lines().find(|line| line.starts_with("NCCL_NVLS_ENABLE ")).unwrap();
    let words = line.split_whitespace().collect::<Vec<_>>().join(" ");
    assert_eq!(words, "NCCL_NVLS_ENABLE 0 NCCL_NVLS_ENABLE in the environment (accepted, no effect here)");
    assert_eq!(text.matches("(accepted, no effect here)").count(), 4, "{text}");
    std::fs::remove_file(path).unwrap();
}

/// A file of settings.
fn file(name: &str, text: &str) -> PathBuf {
    let path = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("env-{name}-{}", std::process::id()));
    std::fs::write(&path, text).unwrap();
    path
}

fn env(arguments: &[&str], settings: &[(&str, &str)]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_accl"));
    for (name, _) in std::env::vars() {
        if ["ACCL_", "PCCL_", "NCCL_"].iter().any(|prefix| name.starts_with(prefix)) {
            command.env_remove(name);
        }
    }
    // No file of the user who runs the tests counts.
    command.env("HOME", "/nowhere").envs(settings.iter().copied());
    command.arg("env").args(arguments).output().unwrap()
}

fn setting<'a>(all: &'a Value, name: &str) -> &'a Value {
    let settings = all["settings"].as_array().unwrap();
    settings.iter().find(|setting| setting["name"] == name).unwrap()
}

#[test]
fn each_setting_has_a_value_and_an_origin() {
    let path = file("origins", "# ours\nNCCL_ALGO=ring\nNCCL_TIMEOUT=5\nACCL_SEGMENT_BYTES=1M\n");
    let file = path.to_str().unwrap();
    let settings = [
        ("NCCL_CONF_FILE", file),
        ("NCCL_TIMEOUT", "7"),
        ("NCCL_SEGMENT_BYTES", "64K"),
        ("PCCL_WARN_AFTER", "3"),
        ("NCCL_WARN_AFTER", "4"),
    ];
    let output = env(&["--json"], &settings);
    assert_eq!(output.status.code(), Some(0), "{output:?}");
    let all: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(all["settings"].as_array().unwrap().len(), SETTINGS.len());
    assert_eq!((&all["errors"], &all["warnings"]), (&json!([]), &json!([])));
    for (name, value, origin) in [
        ("ALGO", "ring", json!({"kind": "file", "variable": "NCCL_ALGO", "file": file, "line": 2})),
        // The environment beats the file, for one name; our name beats NCCL's, wherever it stands.
        ("TIMEOUT", "7", json!({"kind": "environment", "variable": "NCCL_TIMEOUT"})),
        (
            "SEGMENT_BYTES",
            "1M",
            json!({"kind": "file", "variable": "ACCL_SEGMENT_BYTES", "file": file, "line": 4}),
        ),
        ("WARN_AFTER", "3", json!({"kind": "environment", "variable": "PCCL_WARN_AFTER"})),
        ("INIT_TIMEOUT", "300", json!({"kind": "default"})),
    ] {
        let found = setting(&all, name);
        assert_eq!((&found["value"], &found["origin"]), (&json!(value), &origin), "{name}");
    }
    assert_eq!(setting(&all, "TIMEOUT")["default"], "0");
    let output = env(&[], &settings);
    let text = String::from_utf8(output.stdout).unwrap();
    let words = |name: &str| {
        let line = text.lines().find(|line| line.split(' ').next() == Some(name)).unwrap();
        line.split_whitespace().collect::<Vec<_>>().join(" ")
    };
    assert_eq!(words("ALGO"), format!("ALGO ring NCCL_ALGO in {file}:2"));
    assert_eq!(words("TIMEOUT"), "TIMEOUT 7 NCCL_TIMEOUT in the environment");
    assert_eq!(words("HOSTID"), "HOSTID unset default");
    std::fs::remove_file(path).unwrap();
}

#[test]
fn all_mistakes_are_said() {
    let path = file("mistakes", "NCCL_COMM_BLOCKING=maybe\nNCCL_SOCKET_INFAME=eth0\n");
    let file = path.to_str().unwrap();
    let settings = [("ACCL_CONF_FILE", file), ("ACCL_TIMEOT", "5"), ("NCCL_PORT_RANGE", "0-70000")];
    let output = env(&["--json"], &settings);
    assert_eq!(output.status.code(), Some(1), "{output:?}");
    let all: Value = serde_json::from_slice(&output.stdout).unwrap();
    let refused = [
        format!("setting NCCL_COMM_BLOCKING=maybe ({file}:1) is not understood: need 0 or 1"),
        "setting NCCL_PORT_RANGE=0-70000 is not understood: need two ports, first-last, from 1 to 65535"
            .into(),
    ];
    assert_eq!(all["errors"], json!(refused));
    let hints = [("ACCL_TIMEOT", "ACCL_TIMEOUT"), ("NCCL_SOCKET_INFAME", "NCCL_SOCKET_IFNAME")];
    let hints =
        hints.map(|(name, near)| format!("{name} is no setting and has no effect; did you mean {near}?"));
    assert_eq!(all["warnings"], json!(hints));
    let text = String::from_utf8(env(&[], &settings).stdout).unwrap();
    for line in refused
        .iter()
        .map(|text| format!("error: {text}"))
        .chain(hints.map(|text| format!("warning: {text}")))
    {
        assert!(text.lines().any(|one| one == line), "{line} in {text}");
    }
    std::fs::remove_file(path).unwrap();
}

/// C65: a job warns of typos, once in each process, with no log asked for; and goes on.
#[test]
fn jobs_warn_of_typos() {
    let cluster =
        Cluster::new(2, 2).env("ACCL_TIMEOT", 5).env("NCCL_SOCKET_INFAME", "eth0").env("HOME", "/nowhere");
    for stderr in cluster.run("plain") {
        assert_eq!(stderr.lines().count(), 2, "{stderr}");
        assert!(
            stderr.contains("ACCL_TIMEOT is no setting and has no effect; did you mean ACCL_TIMEOUT?"),
            "{stderr}"
        );
        assert!(stderr.contains("did you mean NCCL_SOCKET_IFNAME?"), "{stderr}");
    }
}

/// C65: a value that is bad or out of range is refused, with where it stands.
#[test]
fn jobs_refuse_what_they_cannot_understand() {
    let path = file("refused", "#\nNCCL_SEGMENT_BYTES=many\n");
    let shown = path.display().to_string();
    for (name, value, words) in [
        ("ACCL_TIMEOUT", "soon", "ACCL_TIMEOUT=soon|number of seconds"),
        ("NCCL_COMM_BLOCKING", "2", "NCCL_COMM_BLOCKING=2|need 0 or 1"),
        ("ACCL_INIT_TIMEOUT", "1e10", "ACCL_INIT_TIMEOUT=1e10|up to 10^9"),
        (
            "NCCL_CONF_FILE",
            &shown,
            &format!("NCCL_SEGMENT_BYTES=many ({shown}:2)|number of bytes, such as 16K"),
        ),
    ] {
        Cluster::new(1, 1).env(name, value).argument(words).run("refused");
    }
    std::fs::remove_file(path).unwrap();
}

/// C65: the summary of init says each value that was set, and by whom; the environment beats the file.
#[test]
fn jobs_tell_values_and_origins() {
    let path = file("told", "NCCL_ALGO=ring\nNCCL_WARN_AFTER=5\n");
    let log = path.with_extension("log");
    let cluster = Cluster::new(1, 2).env("NCCL_CONF_FILE", path.display()).env("NCCL_WARN_AFTER", 7);
    cluster.env("NCCL_DEBUG", "INFO").env("NCCL_DEBUG_FILE", log.display()).run("plain");
    let text = std::fs::read_to_string(&log).unwrap();
    let told = |line: &str| text.lines().filter(|one| one.ends_with(&format!(" NCCL INFO {line}"))).count();
    assert_eq!(told(&format!("NCCL_ALGO set by {}:1 to ring.", path.display())), 1, "{text}");
    assert_eq!(told("NCCL_WARN_AFTER set by environment to 7."), 1, "{text}");
    assert_eq!(text.matches("NCCL_WARN_AFTER").count(), 1, "{text}");
    std::fs::remove_file(path).unwrap();
    std::fs::remove_file(log).unwrap();
}
