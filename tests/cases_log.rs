//! The log of real jobs: what it says, in which shape, and where (C67), and what it says of settings (C65).

// Helpers of tests fail by panicking.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]
// Every call here is a call of the C interface with arguments that the test keeps alive.
#![allow(clippy::undocumented_unsafe_blocks)]

mod support;

use std::path::{Path, PathBuf};
use std::process::Command;
use std::ptr::null_mut;
use std::time::{Duration, Instant};
use support::api::{Comm, INT32, INVALID_ARGUMENT, SUM};
use support::cluster::{Cluster, Rank, Scenario, plain, work};

const SCENARIOS: [(&str, Scenario); 6] =
    [("job", job), ("many", many), ("wrong", wrong), ("reset", reset), ("asked", asked), ("plain", plain)];

#[test]
fn worker() {
    work(&SCENARIOS);
}

/// A communicator, one of two halves of it, a sum, a message from each rank to the next one.
fn job(rank: Rank) {
    let (api, comm) = (rank.api, rank.join());
    let mut half: Comm = null_mut();
    api.ok(unsafe { (api.ncclCommSplit)(comm, (rank.rank % 2) as i32, 0, &raw mut half, null_mut()) });
    let (mine, mut sums) = ([1i32; 3], [0i32; 3]);
    api.ok(api.all_reduce(&mine, &mut sums, INT32, SUM, comm));
    assert_eq!(sums, [rank.ranks as i32; 3]);
    let mut word = [0u8; 5];
    api.ok(api.group(|| {
        api.ok(api.send(b"hello", (rank.rank + 1) % rank.ranks, comm));
        api.ok(api.recv(&mut word, (rank.rank + rank.ranks - 1) % rank.ranks, comm));
    }));
    assert_eq!(&word, b"hello");
    api.destroy(half);
    api.destroy(comm);
}

const MANY: usize = 1000;

fn many(rank: Rank) {
    let comm = rank.join();
    for _ in 0..MANY {
        assert_eq!(rank.api.sum(1, comm), rank.ranks as i32);
    }
    rank.api.destroy(comm);
}

/// A call that fails.
fn wrong(rank: Rank) {
    let (api, comm) = (rank.api, rank.join());
    let code = unsafe { (api.ncclAllReduce)(null_mut(), null_mut(), 4, INT32, SUM, comm, null_mut()) };
    assert_eq!(code, INVALID_ARGUMENT);
    api.destroy(comm);
}

/// The log is turned on for the second of three sums.
fn reset(rank: Rank) {
    let (api, comm) = (rank.api, rank.join());
    for level in ["WARN", "INFO", "WARN"] {
        // No other thread of this process reads or writes the environment.
        unsafe { std::env::set_var("NCCL_DEBUG", level) };
        unsafe { (api.reset_debug)() };
        assert_eq!(api.sum(1, comm), rank.ranks as i32);
    }
    api.destroy(comm);
}

/// Sums, on communicators that come and go, until a file says that it is enough; then rank 0 waits for rank 1 until another one is there.
fn asked(rank: Rank) {
    let (api, comm, signals) = (rank.api, rank.join(), Path::new(rank.argument));
    loop {
        let mut copy: Comm = null_mut();
        api.ok(unsafe { (api.ncclCommSplit)(comm, 0, 0, &raw mut copy, null_mut()) });
        let stops = api.sum(i32::from(signals.join("wait").exists()), copy);
        api.destroy(copy);
        if stops > 0 {
            break;
        }
    }
    while rank.rank == 1 && !signals.join("stop").exists() {
        std::thread::sleep(Duration::from_millis(10));
    }
    assert_eq!(api.sum(1, comm), rank.ranks as i32);
    api.destroy(comm);
}

fn scratch(name: &str) -> PathBuf {
    let path = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("log-{name}-{}", std::process::id()));
    let _ = std::fs::remove_dir_all(&path);
    std::fs::create_dir_all(&path).unwrap();
    path
}

/// A line, taken apart.
#[derive(Debug)]
struct Line {
    time: String,
    host: String,
    pid: u32,
    /// INFO, WARN or CALL.
    kind: String,
    text: String,
}

/// Takes a line apart, if it has one of the shapes with a prefix.
fn parse(line: &str) -> Option<Line> {
    let (time, rest) = match line.strip_prefix('[') {
        Some(rest) => rest.split_once("] ")?,
        None => ("", line),
    };
    let (head, rest) = rest.split_once(" NCCL ")?;
    let (kind, text) = rest.split_once(' ')?;
    let mut words = head.split(' ');
    let writer: Vec<&str> = words.next()?.split(':').collect();
    let [host, pid, thread] = writer[..] else { return None };
    let after: Vec<&str> = words.collect();
    let sound = match kind {
        "INFO" => after == ["[0]"],
        "CALL" => after.is_empty(),
        "WARN" => after.len() == 2 && after[0] == "[0]" && after[1].contains(".rs:"),
        _ => false,
    };
    thread.parse::<u32>().ok().filter(|_| sound)?;
    Some(Line {
        time: time.into(),
        host: host.into(),
        pid: pid.parse().ok()?,
        kind: kind.into(),
        text: text.into(),
    })
}

/// All lines of a file; each of them has a shape.
#[track_caller]
fn lines(path: &Path) -> Vec<Line> {
    let text = std::fs::read_to_string(path).unwrap();
    let lines = text.lines().filter(|line| !line.is_empty() && !line.contains("NCCL version "));
    lines.map(|line| parse(line).unwrap_or_else(|| panic!("{path:?}: {line:?}"))).collect()
}

/// What a job has written into the files of a directory, by name.
fn logs(directory: &Path) -> Vec<(String, Vec<Line>)> {
    let mut names: Vec<_> = std::fs::read_dir(directory)
        .unwrap()
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .filter(|name| name.starts_with("log."))
        .collect();
    names.sort();
    names.into_iter().map(|name| (name.clone(), lines(&directory.join(&name)))).collect()
}

/// The texts of one kind that begin so.
fn texts<'a>(lines: &'a [Line], kind: &str, start: &str) -> Vec<&'a str> {
    let all = lines.iter().filter(|line| line.kind == kind && line.text.starts_with(start));
    all.map(|line| line.text.as_str()).collect()
}

/// The only one.
#[track_caller]
fn only<'a>(lines: &'a [Line], kind: &str, start: &str) -> &'a str {
    let found = texts(lines, kind, start);
    assert_eq!(found.len(), 1, "{kind} {start}: {found:?} in {lines:#?}");
    found[0]
}

/// The word behind a name.
#[track_caller]
fn word<'a>(text: &'a str, name: &str) -> &'a str {
    let mut words = text.split(' ');
    words.find(|word| *word == name).unwrap_or_else(|| panic!("{name} in {text}"));
    words.next().unwrap()
}

/// Where the lines that a program's own standard output has not are: the test's frame is no part of them.
fn of_library(output: &Path) -> Vec<String> {
    let text = std::fs::read_to_string(output).unwrap();
    // The frame says "test worker ... " without an end before the worker begins.
    let text = text.replace("test worker ... ", "");
    let frame = ["running 1 test", "ok", "test result: ok"];
    let own = text.lines().filter(|line| !line.is_empty() && !frame.iter().any(|one| line.starts_with(one)));
    own.map(str::to_string).collect()
}

/// C67: a file for each process, with times, each line whole and of its process, nothing on standard output.
#[test]
fn each_process_has_a_file() {
    let directory = scratch("files");
    let cluster = Cluster::new(8, 1).output(&directory).env("NCCL_DEBUG", "TRACE");
    let cluster = cluster.env("NCCL_DEBUG_SUBSYS", "ALL").env("NCCL_DEBUG_TIMESTAMP_LEVELS", "ALL");
    let stderr = cluster.env("NCCL_DEBUG_FILE", directory.join("log.%h.%p").display()).run("job");
    assert!(stderr.iter().all(|text| !text.contains("NCCL ")), "{stderr:?}");
    for process in 0..8 {
        assert_eq!(of_library(&directory.join(process.to_string())), Vec::<String>::new());
    }
    let logs = logs(&directory);
    assert_eq!(logs.len(), 8);
    let mut numbers = Vec::new();
    for (name, lines) in &logs {
        for line in lines {
            assert_eq!(*name, format!("log.{}.{}", line.host, line.pid));
            let time: Vec<&str> = line.time.split(['-', ' ', ':']).collect();
            assert!(time.len() == 6 && time.iter().all(|part| part.parse::<u32>().is_ok()), "{line:?}");
        }
        numbers.push(tells_the_job(lines));
    }
    numbers.sort();
    let ids: Vec<_> = numbers.iter().map(|(_, id)| id).collect();
    assert!(ids.iter().all(|id| *id == ids[0]), "{ids:?}");
    assert_eq!(numbers.iter().map(|(rank, _)| *rank).collect::<Vec<_>>(), (0..8).collect::<Vec<_>>());
    std::fs::remove_dir_all(directory).unwrap();
}

/// What one rank's log says of `job`; its rank, and the communicator's number.
fn tells_the_job(lines: &[Line]) -> (usize, String) {
    let start = lines.iter().find(|line| line.text.contains("ncclCommInitRank comm")).unwrap();
    let (comm, rank) = (word(&start.text, "comm"), word(&start.text, "rank"));
    let tail = format!("comm {comm} rank {rank} nranks 8 cudaDev -1");
    let id = word(&start.text, "commId");
    let device = "nvmlDev -1 busId 0";
    assert_eq!(
        start.text,
        format!("[Rank {rank}] ncclCommInitRank {tail} {device} commId {id} - Init START")
    );
    let complete = only(lines, "INFO", "ncclCommInitRank comm");
    assert_eq!(complete, format!("ncclCommInitRank {tail} {device} commId {id} - Init COMPLETE"));
    let timings = only(lines, "INFO", "Init timings - ncclCommInitRank:");
    assert!(timings.contains(&format!(": rank {rank} nranks 8 total ")), "{timings}");
    let split = only(lines, "INFO", "ncclCommSplit comm");
    let number: usize = rank.parse().unwrap();
    let parent = format!("parent {comm} childCount 1 color {} key 0 - Init COMPLETE", number % 2);
    assert!(split.ends_with(&parent) && split.contains("nranks 4"), "{split}");
    // To seven ranks in the one, and three in the other.
    let channels = texts(lines, "INFO", "Channel 00/0 : ");
    assert_eq!(channels.len(), 7 + 3, "{channels:?}");
    let ways = ["P2P/CMA", "SHM/direct/direct"];
    for channel in channels {
        assert!(ways.contains(&channel.split(" via ").nth(1).unwrap()), "{channel}");
    }
    assert_eq!(texts(lines, "INFO", "Connected all rings").len(), 2);
    assert_eq!(texts(lines, "INFO", "Connected all trees").len(), 2);
    assert_eq!(texts(lines, "INFO", "Using network"), Vec::<&str>::new());
    let bootstrap = only(lines, "INFO", "Bootstrap: Using ");
    let interface = bootstrap["Bootstrap: Using ".len()..].split(':').next().unwrap();
    assert!(Path::new("/sys/class/net").join(interface).exists(), "{bootstrap}");
    assert!(bootstrap.ends_with('>') && bootstrap.contains('<'), "{bootstrap}");
    tells_the_calls(lines, comm, number);
    only(lines, "INFO", &format!("{tail} busId 0 - Destroy COMPLETE"));
    (number, id.to_string())
}

fn tells_the_calls(lines: &[Line], comm: &str, rank: usize) {
    let sum = only(lines, "INFO", "AllReduce: ");
    let (send, recv) = (word(sum, "sendbuff"), word(sum, "recvbuff"));
    assert_ne!(send, recv);
    let number = word(sum, "opCount");
    let rest = format!("count 3 datatype 2 op 0 root 0 comm {comm} [nranks=8] stream 0x0");
    assert_eq!(sum, format!("AllReduce: opCount {number} sendbuff {send} recvbuff {recv} {rest}"));
    assert_eq!(
        only(lines, "CALL", "ncclAllReduce"),
        format!("ncclAllReduce({send},{recv},3,2,0,0,{comm},0x0)")
    );
    let message = only(lines, "INFO", "Send: ");
    let peer = (rank + 1) % 8;
    assert!(message.contains(&format!(" count 5 datatype 0 op 0 root {peer} comm {comm} ")), "{message}");
    only(lines, "INFO", "Recv: ");
    assert_eq!(texts(lines, "CALL", "").len(), 3);
    // The sum came between.
    let count = |text| u64::from_str_radix(word(text, "opCount"), 16).unwrap();
    assert_eq!(count(message), count(sum) + 1);
}

/// C67: eight processes append to one file, and no line is torn or lost.
#[test]
fn one_file_for_all_has_whole_lines() {
    let directory = scratch("one");
    let path = directory.join("log.all");
    let cluster = Cluster::new(8, 1).env("NCCL_DEBUG", "INFO").env("NCCL_DEBUG_SUBSYS", "COLL");
    cluster.env("NCCL_DEBUG_FILE", path.display()).run("many");
    let lines = lines(&path);
    assert_eq!(texts(&lines, "INFO", "AllReduce: ").len(), 8 * MANY);
    assert_eq!(lines.len(), 8 * MANY, "of one subsystem alone");
    std::fs::remove_dir_all(directory).unwrap();
}

/// C67: what each level lets through, on standard output.
#[test]
fn levels_let_through_what_they_say() {
    let written = |level: Option<&str>, scenario: &str| {
        let directory = scratch(&format!("{scenario}-{}", level.unwrap_or("unset")));
        let mut cluster = Cluster::new(2, 1).output(&directory);
        if let Some(level) = level {
            cluster = cluster.env("NCCL_DEBUG", level);
        }
        let stderr = cluster.run(scenario);
        let output: Vec<String> =
            (0..2).flat_map(|process| of_library(&directory.join(process.to_string()))).collect();
        std::fs::remove_dir_all(directory).unwrap();
        (output, stderr.concat())
    };
    for (level, scenario) in [(None, "wrong"), (Some("NONE"), "wrong"), (Some("WARN"), "plain")] {
        let (output, stderr) = written(level, scenario);
        let versions = output.iter().filter(|line| line.starts_with("NCCL version ")).count();
        assert_eq!(
            (output.len(), versions),
            if level == Some("WARN") { (1, 1) } else { (0, 0) },
            "{output:?}"
        );
        assert_eq!(stderr, "", "{level:?}");
    }
    let (output, _) = written(Some("VERSION"), "wrong");
    assert_eq!(output.len(), 1, "{output:?}");
    assert!(output[0].starts_with("NCCL version 2.") && output[0].contains("+cuda"), "{output:?}");
    let (output, _) = written(Some("WARN"), "wrong");
    let warnings: Vec<Line> = output.iter().filter_map(|line| parse(line)).collect();
    assert_eq!((warnings.len(), output.len()), (2, 3), "{output:?}");
    for warning in warnings {
        assert!(warning.kind == "WARN" && !warning.time.is_empty(), "{warning:?}");
        let text = "ncclAllReduce: AllReduce: sendbuff is NULL, need 4 elements there";
        assert_eq!(warning.text, text);
    }
    let (output, _) = written(Some("INFO"), "plain");
    let lines: Vec<Line> = output.iter().filter_map(|line| parse(line)).collect();
    assert_eq!(
        texts(&lines, "INFO", "AllReduce").len(),
        0,
        "COLL is not among the subsystems of the default"
    );
    assert_eq!(texts(&lines, "INFO", "ncclCommInitRank").len(), 2);
}

/// C67: the level changes while a job runs.
#[test]
fn the_level_changes_while_a_job_runs() {
    let directory = scratch("reset");
    let cluster = Cluster::new(2, 1).env("NCCL_DEBUG_SUBSYS", "COLL");
    cluster.env("NCCL_DEBUG_FILE", directory.join("log.%p").display()).run("reset");
    let logs = logs(&directory);
    assert_eq!(logs.len(), 2);
    for (_, lines) in &logs {
        assert!(only(lines, "INFO", "AllReduce: ").contains("opCount 1 "), "{lines:?}");
    }
    std::fs::remove_dir_all(directory).unwrap();
}

/// What `accl log` says, with these words and the records of a directory.
fn ask_for_level(words: &[&str], records: &Path) -> std::process::Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_accl"));
    command.arg("log").args(words).arg("--dir").arg(records).output().unwrap()
}

/// Waits until the logs of so many ranks have a text.
#[track_caller]
fn wait_for_text(directory: &Path, text: &str, ranks: usize) {
    let deadline = Instant::now() + Duration::from_secs(60);
    let has = |(_, lines): &(String, Vec<Line>)| lines.iter().any(|line| line.text.starts_with(text));
    while logs(directory).iter().filter(|log| has(log)).count() < ranks {
        assert!(Instant::now() < deadline, "no {text}");
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// C67: a tool changes the level of a job that runs, and of a rank that waits; new communicators and the environment change nothing.
#[test]
fn a_tool_changes_the_level_of_a_job() {
    let directory = scratch("asked");
    let records = directory.join("records");
    let cluster =
        Cluster::new(2, 1).argument(directory.display()).env("ACCL_RECORDER_DIR", records.display());
    let cluster =
        cluster.env("NCCL_DEBUG", "WARN").env("NCCL_DEBUG_FILE", directory.join("log.%p").display());
    let job = std::thread::spawn(move || cluster.run("asked"));
    let ask = |words: &[&str]| {
        let deadline = Instant::now() + Duration::from_secs(60);
        loop {
            let output = ask_for_level(words, &records);
            let text = String::from_utf8(output.stdout).unwrap();
            if output.status.success() && text.lines().count() == 2 {
                return assert!(text.lines().all(|line| line.starts_with("pid ")), "{text}");
            }
            assert!(Instant::now() < deadline, "{text}");
            std::thread::sleep(Duration::from_millis(20));
        }
    };
    ask(&["info", "--subsys", "COLL"]);
    wait_for_text(&directory, "AllReduce: ", 2);
    ask(&["INFO", "--subsys", "NET"]);
    wait_for_text(&directory, "accl log: the level is Info with subsystems 0x10 ", 2);
    std::fs::write(directory.join("wait"), "").unwrap();
    std::thread::sleep(Duration::from_millis(300));
    ask(&["TRACE", "--subsys", "CALL"]);
    wait_for_text(&directory, "accl log: the level is Trace", 1);
    std::fs::write(directory.join("stop"), "").unwrap();
    job.join().unwrap();
    for (_, lines) in logs(&directory) {
        let first = |text: &str| lines.iter().position(|line| line.text.starts_with(text)).unwrap();
        let (coll, net) = (
            first("accl log: the level is Info with subsystems 0x2 "),
            first("accl log: the level is Info with subsystems 0x10 "),
        );
        let sums: Vec<_> = (0..lines.len()).filter(|at| lines[*at].text.starts_with("AllReduce: ")).collect();
        assert!(!sums.is_empty() && sums.iter().all(|at| (coll..net).contains(at)), "{lines:#?}");
        assert_eq!(texts(&lines, "INFO", "ncclComm"), [""; 0], "of no other subsystem");
    }
    let gone = ask_for_level(&["INFO"], &records);
    assert_eq!(gone.status.code(), Some(3), "{gone:?}");
    let wrong = ask_for_level(&["LOUD"], &records);
    let text = String::from_utf8_lossy(&wrong.stderr).into_owned();
    assert_eq!(wrong.status.code(), Some(1), "{text}");
    assert!(text.contains("level \"LOUD\" is unknown; there are VERSION, WARN"), "{text}");
    std::fs::remove_dir_all(directory).unwrap();
}

/// C67: a file that cannot be written to keeps the tool from no other; it says which, and why, and that something is wrong.
#[test]
fn a_tool_goes_on_after_a_file_that_it_cannot_write_to() {
    use std::os::unix::fs::PermissionsExt;
    use std::os::unix::process::CommandExt;
    let directory = scratch("refused");
    let records = directory.join("records");
    // Nothing is refused to root: then it is asked as another user, whom files of mode 666 let write.
    let other = if unsafe { libc::geteuid() } == 0 { Some(65534) } else { None };
    let ask_in = |records: &Path, words: &[&str]| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_accl"));
        command.arg("log").args(words).arg("--dir").arg(records).current_dir("/");
        if let Some(other) = other {
            command.uid(other);
        }
        command.output()
    };
    let ask = |words: &[&str]| ask_in(&records, words);
    if !matches!(ask_in(&directory, &["INFO"]), Ok(output) if output.status.code() == Some(3)) {
        eprintln!(
            "NOT TESTED: a_tool_goes_on_after_a_file_that_it_cannot_write_to: no other user can start accl"
        );
        return;
    }
    let cluster =
        Cluster::new(3, 1).argument(directory.display()).env("ACCL_RECORDER_DIR", records.display());
    let cluster =
        cluster.env("NCCL_DEBUG", "WARN").env("NCCL_DEBUG_FILE", directory.join("log.%p").display());
    std::fs::write(directory.join("wait"), "").unwrap();
    let job = std::thread::spawn(move || cluster.run("asked"));
    let files = || -> Vec<PathBuf> {
        let files = std::fs::read_dir(&records).into_iter().flatten().map(|entry| entry.unwrap().path());
        let mut files: Vec<_> =
            files.filter(|path| path.extension().is_some_and(|end| end == "rec")).collect();
        files.sort();
        files
    };
    // Those of the communicator that stays.
    let deadline = Instant::now() + Duration::from_secs(60);
    let mut same_since = (Instant::now(), files());
    while same_since.1.len() != 3 || same_since.0.elapsed() < Duration::from_secs(1) {
        assert!(Instant::now() < deadline, "{same_since:?}");
        std::thread::sleep(Duration::from_millis(20));
        let now = files();
        if now != same_since.1 {
            same_since = (Instant::now(), now);
        }
    }
    let files = same_since.1;
    std::fs::set_permissions(&records, PermissionsExt::from_mode(0o755)).unwrap();
    for (file, mode) in files.iter().zip([0o444, 0o666, 0o666]) {
        std::fs::set_permissions(file, PermissionsExt::from_mode(mode)).unwrap();
    }
    let output = ask(&["INFO", "--subsys", "NET"]).unwrap();
    let (said, errors) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert_eq!(output.status.code(), Some(1), "{said}\n{errors}");
    assert_eq!(said.lines().filter(|line| line.starts_with("pid ")).count(), 2, "{said}\n{errors}");
    let named = files[0].display().to_string();
    assert!(errors.contains(&named) && errors.contains("cannot open it for writing"), "{errors}");
    assert_eq!(errors.lines().count(), 1, "{errors}");
    // The others have heard of it; a process whose one file is refused is not missing, but refused.
    wait_for_text(&directory, "accl log: the level is Info with subsystems 0x10 ", 1);
    let refused: String = errors.split(' ').skip_while(|word| *word != "pid").nth(1).unwrap().to_string();
    let output = ask(&["INFO", "--pids", &refused]).unwrap();
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.code() == Some(1) && errors.contains(&named), "{errors}");
    std::fs::write(directory.join("stop"), "").unwrap();
    job.join().unwrap();
    std::fs::remove_dir_all(directory).unwrap();
}

/// C67: beside a log in a file, the bench's table has standard output for itself.
#[test]
fn the_bench_keeps_its_output() {
    let directory = scratch("bench");
    let mut command = Command::new(env!("CARGO_BIN_EXE_accl-bench"));
    command.args(["all_reduce", "-g", "2", "-b", "8", "-e", "64", "-n", "2", "--lib"]);
    command.arg(support::libraries().join("libnccl.so"));
    command.env("NCCL_DEBUG", "INFO").env("NCCL_DEBUG_SUBSYS", "ALL");
    command.env("NCCL_DEBUG_FILE", directory.join("log.%p"));
    let output = String::from_utf8(support::run(&mut command).stdout).unwrap();
    assert!(!output.contains("NCCL INFO") && output.contains("# "), "{output}");
    let logs = logs(&directory);
    assert_eq!(logs.iter().filter(|(_, lines)| !texts(lines, "INFO", "AllReduce: ").is_empty()).count(), 2);
    std::fs::remove_dir_all(directory).unwrap();
}

/// Ranks of two hosts: the network, and each connection when it is made.
#[test]
fn networks_and_connections_are_told() {
    let directory = scratch("hosts");
    let cluster = Cluster::new(2, 1).hosts(2).env("NCCL_DEBUG", "INFO");
    cluster.env("NCCL_DEBUG_FILE", directory.join("log.%p").display()).run("job");
    let logs = logs(&directory);
    assert_eq!(logs.len(), 2);
    let mut named = Vec::new();
    for (_, lines) in &logs {
        let networks = texts(lines, "INFO", "Using network ");
        assert!(networks.iter().all(|text| *text == "Using network Socket"), "{networks:?}");
        assert_eq!(networks.len(), 1);
        let sockets = only(lines, "INFO", "NET/Socket : Using [0]");
        let bootstrap = only(lines, "INFO", "Bootstrap: Using ");
        let best = bootstrap.split(' ').nth(2).unwrap();
        assert!(sockets.contains(&format!("[0]{best}")), "{sockets}, {bootstrap}");
        let channels = texts(lines, "INFO", "Channel 00/");
        assert!(channels.iter().all(|text| text.contains(" [send] via NET/Socket")), "{channels:?}");
        let path = |text: &str| text[..text.find(" [send]").unwrap()].to_string();
        named.extend(channels.into_iter().map(path));
        assert_eq!(
            texts(lines, "INFO", "Connected all").len(),
            0,
            "connections are made when they are needed"
        );
    }
    named.sort();
    let ends = ["0[0] -> 1[0]", "1[0] -> 0[0]"];
    let all = [0, 1].map(|lane| ends.map(|ends| format!("Channel 00/{lane} : {ends}"))).concat();
    assert_eq!(named, all);
    std::fs::remove_dir_all(directory).unwrap();
}
