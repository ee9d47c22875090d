//! `accl-bench` from outside, mostly against a shim library whose every operation takes a known time.

// Helpers of tests fail by panicking.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod support;

use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::sync::OnceLock;
use std::time::{Duration, Instant};

use serde_json::Value;

/// The shim, built once.
fn shim() -> &'static Path {
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

const TESTS: [&str; 11] = [
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
fn scratch(name: &str) -> PathBuf {
    let directory =
        Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("bench-{name}-{}", std::process::id()));
    std::fs::create_dir_all(&directory).unwrap();
    directory
}

/// The bench with these words, and no variables that could change what it does.
fn bench(words: &str) -> Command {
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
fn on_shim(words: &str) -> Command {
    let mut command = bench(words);
    command.arg("--lib").arg(shim()).args(["-c", "0"]);
    command
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

fn code(output: &Output) -> i32 {
    output.status.code().expect("an exit code, not a signal")
}

fn json(path: &Path) -> Value {
    let content = std::fs::read(path).unwrap();
    serde_json::from_slice(&content).unwrap_or_else(|error| panic!("{error}: {}", text(&content)))
}

/// Rows of the table: lines that are no comment.
fn rows(stdout: &[u8]) -> Vec<Vec<String>> {
    text(stdout)
        .lines()
        .filter(|line| !line.starts_with('#'))
        .map(|line| line.split_whitespace().map(String::from).collect())
        .collect()
}

/// Waits for the end, but not for ever.
fn within(limit: Duration, mut child: Child) -> (Output, Duration) {
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

fn spawn(command: &mut Command) -> Child {
    command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap()
}

fn signal(pid: u32, signal: &str) {
    support::run(Command::new("kill").arg(signal).arg(pid.to_string()));
}

/// Process ids of the ranks, once the first row is in the file.
fn ranks_of_running(path: &Path) -> Vec<u32> {
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

// ---- The arithmetic (C79) ---------------------------------------------------------------------------------

/// S over count, and the bus factor, as nccl-tests publishes them.
fn published(test: &str, n: f64) -> (f64, f64) {
    match test {
        "all_reduce" => (1.0, 2.0 * (n - 1.0) / n),
        "reduce_scatter" | "all_gather" | "alltoall" | "alltoallv" | "gather" | "scatter" => {
            (n, (n - 1.0) / n)
        }
        "hypercube" => (n - 1.0, 1.0),
        _ => (1.0, 1.0),
    }
}

/// Time of one operation of the shim in groups, of which a hypercube needs several: own part, then each step.
fn groups(test: &str, ranks: u32, in_place: bool) -> f64 {
    match test {
        "hypercube" => f64::from(ranks.ilog2()) + if in_place { 0.0 } else { 1.0 },
        _ => 1.0,
    }
}

/// Checks one result; the answer is how far the times are from those of the shim, as a share.
fn arithmetic(test: &str, ranks: u32, result: &Value) -> f64 {
    let (size, count) = (result["size"].as_f64().unwrap(), result["count"].as_f64().unwrap());
    let (parts, factor) = published(test, f64::from(ranks));
    assert_eq!(size, count * 4.0 * parts, "{test} of {ranks}");
    let mut worst: f64 = 0.0;
    for (place, in_place) in [("out_of_place", false), ("in_place", true)] {
        let one = &result[place];
        if one.is_null() {
            assert!(["alltoall", "alltoallv", "sendrecv"].contains(&test));
            continue;
        }
        let number = |name: &str| one[name].as_f64().unwrap();
        let same = |got: f64, expected: f64| {
            assert!((got / expected - 1.0).abs() < 1e-9, "{test} of {ranks} {place}: {got}, not {expected}");
        };
        same(number("alg_bw"), size / number("time") / 1e3);
        same(number("bus_bw"), number("alg_bw") * factor);
        let expected_us = 10_000.0 * groups(test, ranks, in_place);
        worst = worst.max((number("time") / expected_us - 1.0).abs());
    }
    worst
}

#[test]
fn time_and_bandwidth_are_as_published() {
    let directory = scratch("arithmetic");
    for ranks in [2, 3, 5, 8] {
        for test in TESTS {
            if test == "hypercube" && ![2, 8].contains(&ranks) {
                continue;
            }
            // Threads, which are cheaper than processes; where it goes, shared out among two, to have both.
            let (processes, threads) = if ranks % 2 == 0 { (2, ranks / 2) } else { (1, ranks) };
            let words = format!("{test} -b 64K -e 64K -g {processes} -t {threads} -n 3 -w 0 -q -a 2");
            // On a busy machine calls take longer than the shim says; then another try tells.
            let close = (0..20).any(|attempt| {
                let file = directory.join(format!("{test}-{ranks}-{attempt}.json"));
                support::run(on_shim(&words).arg("-J").arg(&file));
                arithmetic(test, ranks, &json(&file)["results"][0]) < 0.01
            });
            assert!(close, "{test} of {ranks}: the time is never within 1%");
        }
    }
}

#[test]
fn help_explains_every_column_and_code() {
    let help = text(&support::run(&mut bench("--help")).stdout);
    for word in [
        "size (B)",
        "count (elements)",
        "time (us)",
        "algbw (GB/s)",
        "busbw (GB/s)",
        "#wrong",
        "i_p99",
        "10^9 bytes",
        "2(n-1)/n",
        "EXIT CODES",
        "130",
        "ENVIRONMENT",
        "NCCL_TESTS_MIN_BW",
        "-y defaults to 1",
        "--minbytes",
    ] {
        assert!(help.contains(word), "no \"{word}\" in the help");
    }
    let list = text(&support::run(&mut bench("--list")).stdout);
    assert!(list.contains("hypercube") && list.contains("f8e5m2") && list.contains("mulsum"));
}

// ---- Tails and skew (C80) ---------------------------------------------------------------------------------

#[test]
fn tails_show_and_the_slow_rank_is_named() {
    let file = scratch("tails").join("out.json");
    let mut command = on_shim("broadcast -b 1K -e 1K -g 3 -n 200 -I -q");
    command.envs([("SHIM_SLOW_RANK", "1"), ("SHIM_CALL_US", "2000"), ("SHIM_SLOW_US", "20000")]);
    let output = support::run(command.arg("-J").arg(&file));
    let stdout = text(&output.stdout);
    assert!(stdout.contains("i_p99") && stdout.contains("# first call: "), "{stdout}");
    assert!(stdout.contains("# Slowest rank: 1 "), "{stdout}");
    let document = json(&file);
    let one = &document["results"][0]["out_of_place"];
    let number = |name: &str| one[name].as_f64().unwrap();
    assert!(number("p99") > 20_000.0 && number("max") > 20_000.0, "{one}");
    assert!(number("p50") < 5_000.0, "{one}");
    assert_eq!(one["times_us"].as_array().unwrap().len(), 200);
    assert_eq!(one["slowest_rank"], 1);
    assert!(document["accl_bench"]["first_call_us"].as_array().unwrap().len() == 3);
}

// ---- For machines (C77) -----------------------------------------------------------------------------------

#[test]
fn files_hold_what_the_table_shows() {
    let directory = scratch("machines");
    let (first, csv) = (directory.join("out.json"), directory.join("out.csv"));
    let mut command = on_shim("reduce -b 4 -e 64 -f 4 -d all -o all -r all -g 2 -n 2 -S");
    command.envs([("SHIM_CALL_US", "50"), ("SHIM_PRINT", "1"), ("NCCL_DEBUG", "INFO")]);
    let output = support::run(command.arg("-J").arg(&first).arg("--csv").arg(&csv));
    let rows = rows(&output.stdout);
    let document = json(&first);
    let results = document["results"].as_array().unwrap();
    // 4, 16, 64 bytes; 12 types; 6 operators; 2 roots.
    assert_eq!((rows.len(), results.len()), (3 * 12 * 6 * 2, 3 * 12 * 6 * 2));
    let lines = std::fs::read_to_string(&csv).unwrap();
    let lines: Vec<Vec<&str>> = lines.lines().map(|line| line.split(',').collect()).collect();
    assert_eq!(lines.len(), 1 + 2 * results.len());
    for ((row, result), line) in rows.iter().zip(results).zip(lines[1..].chunks(2)) {
        assert!(lines.iter().all(|line| line.len() == lines[0].len()));
        assert_eq!(row[0], result["size"].to_string());
        assert_eq!(row[1], result["count"].to_string());
        assert_eq!(
            [&row[2], &row[3], &row[4]].map(String::as_str),
            [
                result["type"].as_str().unwrap(),
                result["redop"].as_str().unwrap(),
                result["root"].as_str().unwrap()
            ]
        );
        assert_eq!(line[0][2], row[0]);
        let time = result["out_of_place"]["time"].as_f64().unwrap();
        assert!((row[5].parse::<f64>().unwrap() - time).abs() <= 0.051, "{row:?} {time}");
        assert!((line[0][8].parse::<f64>().unwrap() - time).abs() < 1e-6);
        assert!(result["out_of_place"]["nwrong"].is_null() && row[8] == "N/A");
    }
    assert_eq!(document["version"], 3);
    assert_eq!(document["nccl_version"], 23007);
    assert_eq!(document["accl_bench"]["status"], "complete");
    assert!(document["accl_bench"]["library_path"].as_str().unwrap().ends_with("libshim.so"));
    assert!(document["args"].as_array().unwrap().len() > 5 && document["end_time"].is_string());
    assert!(document["env"].as_array().unwrap().contains(&Value::from("NCCL_DEBUG=INFO")));
    // What the library printed is not in the table.
    assert!(
        text(&output.stderr).contains("shim: operation") && !text(&output.stdout).contains("shim: operation")
    );
    // A second run takes another name.
    support::run(on_shim("reduce -b 4 -e 4 -n 1").arg("-J").arg(&first).arg("--csv").arg(&csv));
    assert_eq!(json(&directory.join("out.json.1"))["results"].as_array().unwrap().len(), 1);
    assert!(directory.join("out.csv.1").is_file());
    assert_eq!(json(&first), document);
}

#[test]
fn interrupted_half_way_all_is_kept_and_parses_at_any_point() {
    let directory = scratch("interrupted");
    let (file, csv) = (directory.join("out.json"), directory.join("out.csv"));
    let mut command = on_shim("all_reduce -b 4 -e 64 -i 4 -g 2 -n 5 -N 0");
    let child = spawn(command.arg("-J").arg(&file).arg("--csv").arg(&csv));
    // Parses each time, or is not there.
    assert_eq!(ranks_of_running(&file).len(), 2);
    signal(child.id(), "-INT");
    let (output, took) = within(Duration::from_secs(20), child);
    assert_eq!(code(&output), 130, "{}", text(&output.stderr));
    assert!(took < Duration::from_secs(5));
    let document = json(&file);
    assert_eq!(document["accl_bench"]["status"], "interrupted");
    let results = document["results"].as_array().unwrap().len();
    assert!(results > 0 && rows(&output.stdout).len() == results);
    assert_eq!(std::fs::read_to_string(&csv).unwrap().lines().count(), 1 + 2 * results);
    assert_eq!(std::fs::read_dir(&directory).unwrap().count(), 2, "temporary files are left");
}

#[test]
fn a_picture_is_drawn() {
    let file = scratch("picture").join("out.svg");
    let mut command = on_shim("all_reduce -b 1K -e 1M -f 4 -g 2 -n 2 -d float,half");
    support::run(command.env("SHIM_CALL_US", "100").arg("--plot").arg(&file));
    let picture = std::fs::read_to_string(&file).unwrap();
    assert!(picture.starts_with("<svg ") && picture.ends_with("</svg>\n"));
    assert_eq!(picture.matches("<polyline").count(), 8);
    for word in ["all_reduce, 2 ranks", "Bus bandwidth", "KiB", "MB/s", "µs", "half sum, in place"] {
        assert!(picture.contains(word), "no {word} in the picture");
    }
}

// ---- One rank, or copies of a launcher (C78) --------------------------------------------------------------

#[test]
fn one_rank_has_no_bus_bandwidth() {
    let file = scratch("one").join("out.json");
    let output = support::run(on_shim("all_reduce -b 1K -e 1K -n 2").arg("-J").arg(&file));
    let row = &rows(&output.stdout)[0];
    assert_eq!((row[7].as_str(), row[11].as_str()), ("N/A", "N/A"));
    assert!(text(&output.stdout).contains("# Avg bus bandwidth    : N/A (one rank"));
    assert!(json(&file)["average_bus_bandwidth"]["bandwidth"].is_null());
}

#[test]
fn copies_that_a_launcher_starts_join() {
    let torch = [("MASTER_ADDR", "127.0.0.1"), ("MASTER_PORT", "47311"), ("TORCHELASTIC_RUN_ID", "test")];
    let launchers: [(&str, &str, &[(&str, &str)]); 4] = [
        ("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", &[]),
        ("PMI_RANK", "PMI_SIZE", &[]),
        ("SLURM_PROCID", "SLURM_STEP_NUM_TASKS", &[]),
        ("RANK", "WORLD_SIZE", &torch),
    ];
    for (rank_name, size_name, more) in launchers {
        let children: Vec<Child> = (0..8)
            .rev()
            .map(|rank: usize| {
                let mut command = on_shim("all_gather -b 1K -e 4K -f 2 -n 2");
                command.env(rank_name, rank.to_string()).env(size_name, "8").envs(more.iter().copied());
                spawn(command.env("SHIM_CALL_US", "500"))
            })
            .collect();
        let outputs: Vec<Output> =
            children.into_iter().map(|child| within(Duration::from_secs(60), child).0).collect();
        for output in &outputs {
            assert_eq!(code(output), 0, "{rank_name}: {}", text(&output.stderr));
        }
        // The last to start is rank 0, and the only one with something to say.
        let (rank_0, others) = outputs.split_last().unwrap();
        assert_eq!(rows(&rank_0.stdout).len(), 3, "{}", text(&rank_0.stdout));
        assert!(text(&rank_0.stdout).contains("#  Rank  7 "));
        assert!(others.iter().all(|output| output.stdout.is_empty()));
    }
}

#[test]
fn copies_that_cannot_join_run_once_with_a_warning() {
    let children: Vec<Child> = (0..3)
        .map(|_| spawn(on_shim("all_reduce -b 1K -e 1K -n 20").env("OMPI_COMM_WORLD_SIZE", "8")))
        .collect();
    let outputs: Vec<Output> =
        children.into_iter().map(|child| within(Duration::from_secs(60), child).0).collect();
    assert!(
        outputs
            .iter()
            .all(|output| code(output) == 0 && text(&output.stderr).contains("OMPI_COMM_WORLD_SIZE=8"))
    );
    assert_eq!(outputs.iter().filter(|output| !rows(&output.stdout).is_empty()).count(), 1);
}

// ---- Ends well (C81) --------------------------------------------------------------------------------------

#[test]
fn a_killed_rank_is_named_and_what_is_complete_is_kept() {
    let file = scratch("killed").join("out.json");
    let mut command = on_shim("all_reduce -b 4 -e 64 -i 4 -g 3 -n 5 -N 0");
    let child = spawn(command.arg("-J").arg(&file));
    let victim = ranks_of_running(&file)[1];
    signal(victim, "-KILL");
    let (output, took) = within(Duration::from_secs(20), child);
    let stderr = text(&output.stderr);
    assert_eq!(code(&output), 5, "{stderr}");
    assert!(
        stderr.contains(&format!("rank 1 (process {victim}) was killed by signal 9 (SIGKILL)")),
        "{stderr}"
    );
    assert!(took < Duration::from_secs(5), "{took:?}");
    assert!(!json(&file)["results"].as_array().unwrap().is_empty());
    assert_eq!(json(&file)["accl_bench"]["status"], "failed");
}

#[test]
fn a_stopped_rank_runs_into_the_time_limit() {
    let file = scratch("stopped").join("out.json");
    let mut command = on_shim("all_reduce -b 4 -e 64 -i 4 -g 2 -n 5 -N 0 -T 2");
    let child = spawn(command.arg("-J").arg(&file));
    let victim = ranks_of_running(&file)[1];
    signal(victim, "-STOP");
    let (output, took) = within(Duration::from_secs(20), child);
    let stderr = text(&output.stderr);
    assert_eq!(code(&output), 6, "{stderr}");
    assert!(stderr.contains(&format!("rank 1 (process {victim}")), "{stderr}");
    assert!(took < Duration::from_secs(8), "{took:?}");
    assert!(!json(&file)["results"].as_array().unwrap().is_empty());
    // The stopped process is gone, too.
    assert!(!Path::new(&format!("/proc/{victim}")).exists());
}

#[test]
fn a_call_that_hangs_is_aborted() {
    let mut command = on_shim("all_reduce -b 4 -e 64 -i 4 -g 2 -n 5 -T 1");
    command.envs([("SHIM_HANG_RANK", "1"), ("SHIM_HANG_AFTER", "30")]);
    let (output, took) = within(Duration::from_secs(20), spawn(&mut command));
    let stderr = text(&output.stderr);
    assert_eq!(code(&output), 6, "{stderr}");
    assert!(stderr.contains("rank 1: a call has not returned for 1.0 s"), "{stderr}");
    assert!(took < Duration::from_secs(8) && !rows(&output.stdout).is_empty());
}

#[test]
fn a_failing_call_and_a_missing_library_have_their_codes() {
    let output = on_shim("all_reduce -b 4 -e 4 -g 2").env("SHIM_FAIL_AFTER", "5").output().unwrap();
    let stderr = text(&output.stderr);
    assert_eq!(code(&output), 4, "{stderr}");
    assert!(
        stderr.contains("ncclAllReduce failed with code 2") && stderr.contains("told to fail"),
        "{stderr}"
    );
    let output = bench("all_reduce --lib /nowhere/libnccl.so.2 -g 2").output().unwrap();
    assert_eq!(code(&output), 3);
    assert!(text(&output.stderr).contains("/nowhere/libnccl.so.2"));
    // The shim has no windows.
    let output = on_shim("all_reduce -b 4 -e 4 -R 2").output().unwrap();
    assert_eq!(code(&output), 3);
    assert!(text(&output.stderr).contains("ncclCommWindowRegister"), "{}", text(&output.stderr));
}

#[test]
fn wrong_arguments_are_refused_at_once() {
    for words in [
        "all_reduce -b 8X",
        "all_reduce --nonsense",
        "all_reduce -G 1",
        "all_reduce -D 2",
        "nothing",
        "",
        "all_reduce -g 0",
        "broadcast -r 5 -g 2",
        "hypercube -g 3",
        "all_reduce -d xyz",
        "all_reduce -J /nowhere/x",
    ] {
        let output = on_shim(words).output().unwrap();
        assert_eq!(code(&output), 2, "{words}: {}", text(&output.stderr));
        assert!(!output.stderr.is_empty() && rows(&output.stdout).is_empty(), "{words}");
    }
    let output = on_shim("all_reduce").env("NCCL_TESTS_SPLIT", "XOR 3").output().unwrap();
    assert_eq!(code(&output), 2);
    let output = on_shim("alltoallv").env("NCCL_TESTS_ALLTOALLV_MATRIX_FILE", "x").output().unwrap();
    assert_eq!(code(&output), 2);
}

#[test]
fn a_size_larger_than_memory_is_refused() {
    for words in ["all_reduce -b 8 -e 1000T -f 2 -g 2", "all_gather -b 100T -e 100T -t 2"] {
        let output = on_shim(words).output().unwrap();
        assert_eq!(code(&output), 2, "{words}");
        assert!(text(&output.stderr).contains("are available"), "{}", text(&output.stderr));
    }
}

// ---- Verdicts ---------------------------------------------------------------------------------------------

#[test]
fn wrong_data_is_shown_and_fails_the_run() {
    let mut command = bench("all_reduce -b 64 -e 64 -g 2 -n 1");
    let output = command.arg("--lib").arg(shim()).output().unwrap();
    assert_eq!(code(&output), 7);
    assert!(text(&output.stderr).contains("rank 1, index 0: expected "), "{}", text(&output.stderr));
    assert!(text(&output.stdout).contains("# Out of bounds values : 64 FAILED"), "{}", text(&output.stdout));
}

#[test]
fn too_little_bandwidth_fails_the_run() {
    for (wanted, expected) in [("100", 7), ("0.000001", 0)] {
        let mut command = on_shim("all_reduce -b 1K -e 1K -g 2 -n 1");
        let output = command.env("NCCL_TESTS_MIN_BW", wanted).output().unwrap();
        assert_eq!(code(&output), expected, "{}", text(&output.stdout));
    }
}

#[test]
fn other_switches_are_carried_out() {
    // 100 us per group of ten.
    let mut command = on_shim("all_reduce -b 1K -e 1K -g 2 -n 20 -m 10 -z 1 -u 1 -C -M -x 2 -p 1 -a 3");
    let output = support::run(command.env("SHIM_CALL_US", "1000"));
    let stdout = text(&output.stdout);
    assert!(stdout.contains("cputime") && stdout.contains("# Resident memory (MiB)"), "{stdout}");
    let mut command = on_shim("all_reduce -b 1K -e 1K -g 2 -n 20 -m 10");
    let output = support::run(command.env("SHIM_CALL_US", "5000"));
    let time: f64 = rows(&output.stdout)[0][5].parse().unwrap();
    assert!((500.0..700.0).contains(&time), "{time}");
    // Called by a test's name, the program is that test.
    let link = scratch("name").join("reduce_scatter_perf");
    let _ = std::os::unix::fs::symlink(env!("CARGO_BIN_EXE_accl-bench"), &link);
    let mut command = Command::new(&link);
    command.args(["-b", "1K", "-e", "1K", "-g", "2", "-n", "1", "-c", "0", "--lib"]).arg(shim());
    assert!(
        text(&support::run(&mut command).stdout).contains("# Collective test starting: reduce_scatter_perf")
    );
}

#[test]
fn an_older_library_is_used_as_it_is() {
    let mut command = on_shim("alltoall -b 1K -e 1K -g 2 -n 1 -d all");
    let output = support::run(command.env("SHIM_VERSION", "22005").env("SHIM_CALL_US", "100"));
    assert_eq!(rows(&output.stdout).len(), 10);
    assert!(text(&output.stderr).contains("f8e4m3 is left out"));
}

// ---- The real library -------------------------------------------------------------------------------------

/// The bench on the library of this build.
fn on_library(words: &str) -> Command {
    let mut command = bench(words);
    command.arg("--lib").arg(support::libraries().join("libnccl.so.2"));
    command
}

#[test]
fn the_library_passes_all_tests() {
    for test in TESTS {
        for place in ["-g 2", "-t 2", "-g 3", "-g 2 -t 2"] {
            if test == "hypercube" && place == "-g 3" {
                continue;
            }
            let words = format!("{test} -b 16 -e 4K -f 16 -d all -o all -r all -n 1 -w 0 {place}");
            let output = on_library(&words).env("NCCL_TESTS_ALLTOALLV_SPREAD", "0.5").output().unwrap();
            let stdout = text(&output.stdout);
            assert_eq!(code(&output), 0, "{words}:\n{stdout}{}", text(&output.stderr));
            assert!(
                stdout.contains("# Out of bounds values : 0 OK") && rows(&output.stdout).len() >= 24,
                "{stdout}"
            );
        }
    }
}

#[test]
fn the_library_with_streams_groups_and_registered_memory() {
    for words in [
        "all_reduce -b 8 -e 1M -f 16 -g 2 -y 0",
        "all_reduce -b 8 -e 1M -f 16 -g 2 -m 4 -c 2",
        "all_gather -b 8 -e 1M -f 16 -g 2 -R 1 --mem-alloc",
        "all_reduce -b 8 -e 1M -f 16 -g 2 -R 2 -u 3",
    ] {
        let output = on_library(words).output().unwrap();
        assert_eq!(code(&output), 0, "{words}:\n{}{}", text(&output.stdout), text(&output.stderr));
    }
    let mut command = on_library("all_reduce -b 8 -e 64K -f 16 -g 4");
    let output = command.env("NCCL_TESTS_SPLIT", "MOD 2").output().unwrap();
    let stdout = text(&output.stdout);
    assert_eq!(code(&output), 0, "{stdout}{}", text(&output.stderr));
    assert!(stdout.contains("#  Rank  3 Group  1"), "{stdout}");
}
