//! Running the bench on the shim, and reading what it wrote.

use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::sync::OnceLock;
use std::time::{Duration, Instant};

use serde_json::Value;

use crate::support;

/// The shim, built once.
pub(crate) fn shim() -> &'static Path {
    static SHIM: OnceLock<PathBuf> = OnceLock::new();
    SHIM.get_or_init(|| {
        let output = scratch("shim").join("libshim.so");
        let mut command = Command::new(std::env::var_os("CC").unwrap_or_else(|| "cc".into()));
        command.args(["-std=c11", "-O1", "-Wall", "-Wextra", "-Werror", "-shared", "-fPIC", "-pthread"]);
        command.arg("-I").arg(support::root().join("include"));
        support::run(command.arg(support::root().join("tests/c/shim.c")).arg("-o").arg(&output));
        output
    })
}

pub(crate) const TESTS: [&str; 11] = [
    "all_reduce",
    "all_gather",
    "broadcast",
    "reduce_scatter",
    "reduce",
    "alltoall",
    "alltoallv",
    "scatter",
    "gather",
    "sendrecv",
    "hypercube",
];

/// A directory for one test's files.
pub(crate) fn scratch(name: &str) -> PathBuf {
    let directory =
        Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("bench-{name}-{}", std::process::id()));
    std::fs::create_dir_all(&directory).unwrap();
    directory
}

/// The bench with these words, and no variables that could change what it does.
pub(crate) fn bench(words: &str) -> Command {
    let mut command = support::program(Path::new(env!("CARGO_BIN_EXE_accl-bench")));
    for (name, _) in std::env::vars_os() {
        let name = name.to_string_lossy().into_owned();
        let launcher = ["OMPI_", "PMI", "SLURM_", "MASTER_", "TORCHELASTIC_"];
        if launcher.iter().any(|prefix| name.starts_with(prefix)) || name == "RANK" || name == "WORLD_SIZE" {
            command.env_remove(name);
        }
    }
    command.args(words.split_whitespace());
    command
}

/// The bench on the shim, without verification: the shim moves nothing.
pub(crate) fn on_shim(words: &str) -> Command {
    let mut command = bench(words);
    command.arg("--lib").arg(shim()).args(["-c", "0"]);
    command
}

pub(crate) fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

pub(crate) fn code(output: &Output) -> i32 {
    output.status.code().expect("an exit code, not a signal")
}

pub(crate) fn json(path: &Path) -> Value {
    let content = std::fs::read(path).unwrap();
    serde_json::from_slice(&content).unwrap_or_else(|error| panic!("{error}: {}", text(&content)))
}

/// Rows of the table: lines that are no comment.
pub(crate) fn rows(stdout: &[u8]) -> Vec<Vec<String>> {
    text(stdout)
        .lines()
        .filter(|line| !line.starts_with('#'))
        .map(|line| line.split_whitespace().map(String::from).collect())
        .collect()
}

/// Waits for the end, but not for ever.
pub(crate) fn within(limit: Duration, mut child: Child) -> (Output, Duration) {
    let begin = Instant::now();
    while child.try_wait().unwrap().is_none() {
        if begin.elapsed() > limit {
            let _ = child.kill();
            panic!("still running after {limit:?}");
        }
        std::thread::sleep(Duration::from_millis(20));
    }
    (child.wait_with_output().unwrap(), begin.elapsed())
}

pub(crate) fn spawn(command: &mut Command) -> Child {
    command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap()
}

pub(crate) fn signal(pid: u32, signal: &str) {
    support::run(Command::new("kill").arg(signal).arg(pid.to_string()));
}

/// Process ids of the ranks, once the first row is in the file.
pub(crate) fn ranks_of_running(path: &Path) -> Vec<u32> {
    for _ in 0..400 {
        std::thread::sleep(Duration::from_millis(25));
        if !path.exists() {
            continue;
        }
        let document = json(path);
        if document["results"].as_array().is_some_and(|results| !results.is_empty()) {
            let devices = document["config"]["devices"].as_array().unwrap().clone();
            return devices.iter().map(|device| device["pid"].as_u64().unwrap() as u32).collect();
        }
    }
    panic!("no row after 10 s");
}
