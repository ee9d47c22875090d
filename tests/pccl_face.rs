//! The interface under the names of PCCL: what libpccl.so.2 exports, a program written against pccl.h, its log, and its settings.

// Helpers of tests fail by panicking.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod support;

use std::path::{Path, PathBuf};
use std::process::Command;

use support::Language::{C, Cpp};
use support::symbols::{Kind, exported};

/// The functions that PCCL's guide documents, without prefix.
const DOCUMENTED: &str = "
    AllGather AllReduce AlltoAll Bcast Broadcast CommAbort CommCount CommCuDevice CommDeregister CommDestroy
    CommFinalize CommGetAsyncError CommInitAll CommInitRank CommInitRankConfig CommInitRankScalable CommRegister
    CommShrink CommSplit CommUserRank CommWindowDeregister CommWindowRegister Gather GetErrorString GetLastError
    GetUniqueId GetVersion GroupEnd GroupStart MemAlloc MemFree Recv RedOpCreatePreMulSum Reduce ReduceScatter
    Scatter Send";

/// Besides: without it, operators could not be given back.
const BESIDES: &str = "RedOpDestroy";

const VARIABLES: [&str; 3] = ["nccl_c4_stats_enable", "nccl_c4_stats_mode", "nccl_coll_stats_enable"];

fn wanted() -> Vec<String> {
    DOCUMENTED.split_whitespace().chain([BESIDES]).map(|name| format!("pccl{name}")).collect()
}

#[test]
fn the_library_exports_what_is_documented() {
    assert_eq!(DOCUMENTED.split_whitespace().count(), 37);
    let symbols = exported(&support::libraries().join("libpccl.so"));
    let mut of_pccl: Vec<_> = symbols.iter().filter(|(name, _)| name.starts_with("pccl")).collect();
    of_pccl.sort();
    let mut names = wanted();
    names.sort();
    let names: Vec<_> = names.into_iter().map(|name| (name, Kind::Function)).collect();
    assert_eq!(of_pccl, names.iter().map(|(name, kind)| (name, kind)).collect::<Vec<_>>());
    let variables = symbols.iter().filter(|(_, kind)| **kind == Kind::Variable);
    assert_eq!(variables.map(|(name, _)| name.as_str()).collect::<Vec<_>>(), VARIABLES);
    // The other libraries have none of it.
    for file in ["libnccl.so", "libaccl.so"] {
        let symbols = exported(&support::libraries().join(file));
        let foreign = symbols.keys().find(|name| name.starts_with("pccl") || name.starts_with("nccl_"));
        assert_eq!(foreign, None, "{file}");
    }
}

#[test]
fn the_header_declares_what_is_exported() {
    let header = std::fs::read_to_string(support::root().join("include/pccl.h")).unwrap();
    let declared =
        |line: &&str| line.starts_with("pcclResult_t pccl") || line.starts_with("const char *pccl");
    let mut found: Vec<_> = header
        .lines()
        .filter(declared)
        .map(|line| {
            let name = line.split('(').next().unwrap();
            name.rsplit([' ', '*']).next().unwrap().to_string()
        })
        .collect();
    let mut names = wanted();
    found.sort();
    names.sort();
    assert_eq!(found, names);
}

#[test]
fn the_versions_stand_in_the_file() {
    let bytes = std::fs::read(support::libraries().join("libpccl.so")).unwrap();
    for banner in ["NCCL version 2.30.7+cuda0.0", "PCCL version 2.1.1"] {
        assert!(bytes.windows(banner.len()).any(|window| window == banner.as_bytes()), "{banner}");
    }
}

#[test]
fn a_program_of_two_ranks() {
    support::passes("pccl.c", C, "pccl");
    support::passes("pccl.c", Cpp, "pccl");
    the_log_has_the_shape_of_pccl();
    if support::has_sanitizers() {
        support::is_sane("pccl.c", "pccl");
    }
}

fn place(name: &str) -> PathBuf {
    Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("{name}-{}", std::process::id()))
}

/// Communicators of this face are logged in PCCL's shape, by the names of its functions.
fn the_log_has_the_shape_of_pccl() {
    let (program, log) = (support::compile("pccl.c", C, "pccl"), place("pccl.log"));
    let mut command = support::program(&program);
    command.env("PCCL_DEBUG", "TRACE").env("PCCL_DEBUG_SUBSYS", "ALL").env("PCCL_DEBUG_FILE", &log);
    let output = support::run(&mut command);
    assert_eq!(String::from_utf8_lossy(&output.stdout), "");
    let text = std::fs::read_to_string(&log).unwrap();
    // But for what was called by the name of the other face.
    let lines: Vec<_> =
        text.lines().filter(|line| !line.contains("ncclAllReduce:") && !line.is_empty()).collect();
    let mut levels = [0; 3];
    for line in &lines {
        if line.starts_with("PCCL version 2.1.1") {
            continue;
        }
        let (head, said) = line.split_once(" PCCL ").unwrap_or_else(|| panic!("{line}"));
        // Warnings begin with the time.
        let start = if said.starts_with("WARN") { "[2026-12-31 23:59:59] ".len() } else { 0 };
        let parts: Vec<_> = head[start..].trim_matches(['[', ']']).split("][").collect();
        let [_host, process, "0", file] = parts[..] else { panic!("{line}") };
        let (pid, thread) = process.split_once(':').unwrap();
        assert!(pid.parse::<u32>().is_ok() && thread.parse::<u32>().is_ok(), "{line}");
        let (file, number) = file.split_once(".rs:").unwrap();
        assert!(!file.contains('/') && number.parse::<u32>().is_ok(), "{line}");
        let level = ["INFO", "CALL", "WARN"].iter().position(|level| said.split(' ').next() == Some(level));
        levels[level.unwrap_or_else(|| panic!("{line}"))] += 1;
    }
    assert!(levels.iter().all(|count| *count > 0), "{levels:?}");
    let said = |words: &str| lines.iter().any(|line| line.contains(words));
    for words in
        ["pcclCommInitRank comm", "pcclCommSplit comm", "CALL pcclAllReduce(", "WARN pcclGetVersion: "]
    {
        assert!(said(words), "{words} in {text}");
    }
    assert!(!said(" ncclComm") && !said("CALL nccl"), "{text}");
    std::fs::remove_file(log).unwrap();
    std::fs::remove_file(program).unwrap();
}

fn env(arguments: &[&str], settings: &[(&str, &Path)]) -> serde_json::Value {
    let mut command = Command::new(env!("CARGO_BIN_EXE_accl"));
    for (name, _) in std::env::vars() {
        if ["ACCL_", "PCCL_", "NCCL_"].iter().any(|prefix| name.starts_with(prefix)) {
            command.env_remove(name);
        }
    }
    command.args(["env", "--json"]).args(arguments).envs(settings.iter().copied());
    serde_json::from_slice(&support::run(&mut command).stdout).unwrap()
}

/// `~/.pccl.conf` is read beside `~/.nccl.conf`; PCCL_CONF_FILE takes the place of both.
#[test]
fn settings_come_from_the_files_of_pccl() {
    let home = place("pccl-home");
    std::fs::create_dir_all(&home).unwrap();
    let named = home.join("named.conf");
    std::fs::write(home.join(".nccl.conf"), "NCCL_TIMEOUT=5\nNCCL_WARN_AFTER=6\nNCCL_ALGO=ring\n").unwrap();
    std::fs::write(home.join(".pccl.conf"), "# of PCCL\nPCCL_TIMEOUT=7\nNCCL_ALGO=tree\n").unwrap();
    std::fs::write(&named, "PCCL_TIMEOUT=8\n").unwrap();
    let found = |settings: &serde_json::Value, name: &str| {
        let all = settings["settings"].as_array().unwrap();
        let one = all.iter().find(|setting| setting["name"] == name).unwrap();
        let file = Path::new(one["origin"]["file"].as_str().unwrap_or_default());
        let file = file.file_name().unwrap_or_default().to_string_lossy().into_owned();
        (one["value"].as_str().unwrap().to_string(), file, one["origin"]["line"].as_u64())
    };
    let of_home = env(&[], &[("HOME", &home)]);
    for (name, value, file, line) in [
        ("TIMEOUT", "7", ".pccl.conf", Some(2)),
        ("WARN_AFTER", "6", ".nccl.conf", Some(2)),
        ("ALGO", "tree", ".pccl.conf", Some(3)),
    ] {
        assert_eq!(found(&of_home, name), (value.to_string(), file.to_string(), line), "{name}");
    }
    let of_file = env(&[], &[("HOME", &home), ("PCCL_CONF_FILE", &named)]);
    assert_eq!(found(&of_file, "TIMEOUT"), ("8".to_string(), "named.conf".to_string(), Some(1)));
    assert_eq!(found(&of_file, "WARN_AFTER"), ("10".to_string(), String::new(), None));
    std::fs::remove_dir_all(home).unwrap();
}
