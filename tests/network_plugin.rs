//! Network plugins under programs: a plugin of ours in C, of each version, carries data between processes that take themselves for hosts; and what
//! becomes of those that refuse, fail, lie or hang. The plugin counts what it is asked for (`tests/c/plugins/net.c`).

// Helpers of tests fail by panicking.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod support;

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::{Duration, Instant};
use support::api::{Comm, FLOAT, SUM};
use support::cluster::{Cluster, Ended, Rank, Scenario, plain, work};

const SCENARIOS: [(&str, Scenario); 7] = [
    ("plain", plain),
    ("move", move_data),
    ("fail to join", fail_to_join),
    ("fail to reduce", fail_to_reduce),
    ("abort", abort),
    ("send and leave", send_and_leave),
    ("split", split),
];
/// Elements of the calls, and floats of the sends, of `move_data`.
const COUNTS: [usize; 6] = [1, 1000, 32_768, 250_001, 3, 1_000_000];

#[test]
fn worker() {
    work(&SCENARIOS);
}

fn reduce(rank: Rank, count: usize, comm: Comm) {
    let value = |of: usize, at: usize| (of * 3 + at % 97) as f32;
    let input: Vec<f32> = (0..count).map(|at| value(rank.rank, at)).collect();
    let mut output = vec![0f32; count];
    rank.api.ok(rank.api.all_reduce(&input, &mut output, FLOAT, SUM, comm));
    for (at, found) in output.iter().enumerate() {
        let expected: f32 = (0..rank.ranks).map(|of| value(of, at)).sum();
        assert_eq!(*found, expected, "element {at} of {count}");
    }
}

/// Reduces, and sends from each rank to the next one; every element is compared.
fn move_data(rank: Rank) {
    let comm = rank.join();
    let (next, before) = ((rank.rank + 1) % rank.ranks, (rank.rank + rank.ranks - 1) % rank.ranks);
    for count in COUNTS {
        reduce(rank, count, comm);
        let value = |of: usize, at: usize| (of * 7 + at % 89) as f32;
        let input: Vec<f32> = (0..count).map(|at| value(rank.rank, at)).collect();
        let mut output = vec![0f32; count];
        let code = rank.api.group(|| {
            rank.api.ok(rank.api.send(&input, next, comm));
            rank.api.ok(rank.api.recv(&mut output, before, comm));
        });
        rank.api.ok(code);
        assert!((0..count).all(|at| output[at] == value(before, at)), "{count} from {before}");
    }
    rank.api.destroy(comm);
}

fn fail_to_join(rank: Rank) {
    let mut comm = std::ptr::null_mut();
    // SAFETY: a place for the result.
    let code = unsafe {
        (rank.api.ncclCommInitRank)(&raw mut comm, rank.ranks as i32, rank.ids[0], rank.rank as i32)
    };
    assert_ne!(code, 0);
    let text = rank.api.error_text();
    assert!(text.contains(rank.argument), "{text}");
}

/// Reduces until that fails, whose reason must have the argument's words, at one rank at least.
fn fail_to_reduce(rank: Rank) {
    let comm = rank.join();
    let (input, mut output) = (vec![1f32; 1_000_000], vec![0f32; 1_000_000]);
    for _ in 0..1000 {
        let code = rank.api.all_reduce(&input, &mut output, FLOAT, SUM, comm);
        if code != 0 {
            let text = rank.api.error_text();
            assert!(text.contains(rank.argument), "{code}: {text}");
            eprintln!("code {code}: {text}");
            // SAFETY: a communicator of ours, which nobody uses any more.
            unsafe { (rank.api.ncclCommAbort)(comm) };
            return;
        }
    }
    panic!("nothing failed");
}

/// One rank is aborted by another thread while it waits for a plugin that never comes to an end.
fn abort(rank: Rank) {
    let comm = rank.join();
    let address = comm as usize;
    let aborting = std::thread::spawn(move || {
        std::thread::sleep(Duration::from_millis(700));
        // SAFETY: a communicator of ours; abort may come from any thread.
        unsafe { (support::api::api().ncclCommAbort)(address as Comm) };
    });
    let (input, mut output) = (vec![1f32; 1_000_000], vec![0f32; 1_000_000]);
    let begin = Instant::now();
    assert_ne!(rank.api.all_reduce(&input, &mut output, FLOAT, SUM, comm), 0);
    aborting.join().unwrap();
    assert!(begin.elapsed() < Duration::from_secs(30), "{:?}", begin.elapsed());
}

/// A rank that has sent little leaves at once; the other one comes late.
fn send_and_leave(rank: Rank) {
    let comm = rank.join();
    let count = if rank.argument == "much" { 1_500_000 } else { 10_000 };
    let data: Vec<f32> = (0..count).map(|at| at as f32).collect();
    if rank.rank == 0 {
        rank.api.ok(rank.api.send(&data, 1, comm));
    } else {
        std::thread::sleep(Duration::from_millis(800));
        let mut got = vec![0f32; data.len()];
        rank.api.ok(rank.api.recv(&mut got, 0, comm));
        assert!(got == data);
    }
    rank.api.destroy(comm);
}

/// What is made of a communicator uses the plugin, too.
fn split(rank: Rank) {
    let comm = rank.join();
    reduce(rank, 1000, comm);
    let mut child = std::ptr::null_mut();
    // SAFETY: a communicator of ours, and a place for the result.
    let code =
        unsafe { (rank.api.ncclCommSplit)(comm, 0, rank.rank as i32, &raw mut child, std::ptr::null_mut()) };
    rank.api.ok(code);
    reduce(rank, 250_000, child);
    rank.api.destroy(child);
    reduce(rank, 500, comm);
    rank.api.destroy(comm);
}

/// A plugin, and where its processes say what they were asked for.
struct Plugin {
    file: PathBuf,
    log: PathBuf,
}

impl Plugin {
    fn new(version: u32) -> Self {
        let file = support::plugin("net", version, 0);
        Self { log: file.with_extension("log"), file }
    }

    fn cluster(&self, processes: usize) -> Cluster {
        Cluster::new(processes, 1)
            .env("ACCL_SHM_DISABLE", 1)
            .env("NCCL_NET_PLUGIN", self.file.display())
            .env("NET_TEST_LOG", self.log.display())
            .env("ACCL_TIMEOUT", 60)
            .limit(200)
    }

    /// What all processes together have counted.
    fn counts(&self) -> BTreeMap<String, i64> {
        let mut counts = BTreeMap::new();
        let name = format!("{}.", self.log.file_name().unwrap().to_str().unwrap());
        for entry in std::fs::read_dir(self.log.parent().unwrap()).unwrap() {
            let path = entry.unwrap().path();
            if !path.file_name().unwrap().to_str().unwrap().starts_with(&name) {
                continue;
            }
            for line in std::fs::read_to_string(&path).unwrap().lines() {
                let (what, count) = line.split_once(' ').unwrap();
                *counts.entry(what.to_string()).or_insert(0) += count.parse::<i64>().unwrap();
            }
            *counts.entry("processes".to_string()).or_insert(0) += 1;
            std::fs::remove_file(path).unwrap();
        }
        counts
    }
}

impl Drop for Plugin {
    fn drop(&mut self) {
        self.counts();
        let _ = std::fs::remove_file(&self.file);
    }
}

/// What was opened is closed, and nothing was asked for that must not be.
#[track_caller]
fn balanced(counts: &BTreeMap<String, i64>) {
    let of = |name: &str| counts[name];
    assert_eq!(of("wrong"), 0, "{counts:?}");
    assert_eq!(of("open"), 0, "{counts:?}");
    assert_eq!(of("regMr"), of("deregMr"), "{counts:?}");
    assert_eq!(of("listen"), of("closeListen"), "{counts:?}");
    assert_eq!(of("connect"), of("closeSend"), "{counts:?}");
    assert_eq!(of("accept"), of("closeRecv"), "{counts:?}");
}

#[test]
fn every_version_carries_all_data_between_hosts() {
    for version in 8..=12 {
        let plugin = Plugin::new(version);
        let cluster =
            plugin.cluster(2).env("NCCL_NET", "tEST").env("NET_TEST_NULL", 3).env("NCCL_DEBUG", "INFO");
        let output = plugin.file.with_extension("out");
        std::fs::create_dir_all(&output).unwrap();
        let said = cluster.env("NCCL_DEBUG_SUBSYS", "INIT,NET").output(&output).run("move").join("");
        let counts = plugin.counts();
        balanced(&counts);
        // Two lanes of two directions; what crosses are both halves of each reduction at least, and each send.
        assert_eq!((counts["listen"], counts["connect"], counts["regMr"]), (4, 4, 8), "{counts:?}");
        let sent = COUNTS.iter().sum::<usize>() * 4;
        assert!(counts["bytes"] as usize > 3 * sent, "{counts:?}");
        assert!(counts["connect_again"] >= 12 && counts["accept_again"] >= 12, "{counts:?}");
        assert!(counts["refused"] > 100, "{counts:?}");
        assert_eq!((counts["group"], counts["iflush"], counts["init"]), (0, 0, 2), "{counts:?}");
        assert_eq!(counts["finalize"], if version >= 11 { 2 } else { 0 }, "{counts:?}");
        let mut log = said;
        for process in 0..2 {
            log += &std::fs::read_to_string(output.join(process.to_string())).unwrap();
        }
        for words in [
            format!("NET/Plugin: Loaded net plugin Test (v{version})"),
            format!("the test plugin of version {version} begins"),
            "NET/Plugin: rank 1 uses device test0 of 2".to_string(),
            "NET/Plugin: Test carries data between rank 0 and rank 1".to_string(),
            "Using network Test".to_string(),
        ] {
            assert!(log.contains(&words), "{words}: {log}");
        }
        std::fs::remove_dir_all(output).unwrap();
    }
}

#[test]
fn requests_of_several_receives_flushes_and_late_ends() {
    for (version, receives, flush) in [(12, 8, 1), (9, 4, 1), (11, 2, 0), (8, 8, 0)] {
        let plugin = Plugin::new(version);
        let cluster = plugin.cluster(3).env("NCCL_NET", "Test").env("NET_TEST_RECEIVES", receives);
        cluster.env("NET_TEST_FLUSH", flush).env("NET_TEST_LATE", 5).env("NET_TEST_NULL", 5).run("move");
        let counts = plugin.counts();
        balanced(&counts);
        assert!(counts["group"] > 0, "{counts:?}");
        assert_eq!(counts["iflush"] > 0, flush > 0, "{counts:?}");
    }
}

/// Ranks of a host take its devices in turn; those that share memory do not use it.
#[test]
fn ranks_of_a_host_use_its_devices_in_turn() {
    let plugin = Plugin::new(12);
    let cluster = Cluster::new(4, 1).hosts(2).env("NCCL_NET_PLUGIN", plugin.file.display());
    cluster.env("NET_TEST_LOG", plugin.log.display()).env("NCCL_NET", "Test").run("move");
    let counts = plugin.counts();
    balanced(&counts);
    assert!(counts["device1"] > 0 && counts["device1"] < counts["listen"], "{counts:?}");
    let plugin = Plugin::new(12);
    let together = Cluster::new(2, 1).env("NCCL_NET_PLUGIN", plugin.file.display());
    together.env("NET_TEST_LOG", plugin.log.display()).run("move");
    let counts = plugin.counts();
    balanced(&counts);
    assert_eq!((counts["listen"], counts["init"], counts["finalize"]), (0, 2, 2), "{counts:?}");
}

#[test]
fn what_is_made_of_a_communicator_uses_it_too() {
    for version in [10, 12] {
        let plugin = Plugin::new(version);
        plugin.cluster(2).env("NCCL_NET", "Test").run("split");
        let counts = plugin.counts();
        balanced(&counts);
        assert_eq!((counts["listen"], counts["init"]), (4, if version == 12 { 4 } else { 2 }), "{counts:?}");
    }
}

#[test]
fn who_sends_and_leaves_loses_nothing() {
    for required in ["", "Test"] {
        let plugin = Plugin::new(11);
        let cluster = plugin.cluster(2);
        let cluster = if required.is_empty() { cluster } else { cluster.env("NCCL_NET", required) };
        cluster.run("send and leave");
        // More than there are receives for, of which a plugin may take a part.
        cluster.argument("much").run("send and leave");
    }
}

/// Everything works without it, and the log says why it is not used.
#[test]
fn plugins_that_cannot_be_used_are_passed_over() {
    let plugin = Plugin::new(12);
    let incomplete = support::plugin("net", 12, 1);
    let output = plugin.file.with_extension("out");
    std::fs::create_dir_all(&output).unwrap();
    let cases = [
        ("NET_TEST_DEVICES", "0", "it has no devices"),
        (
            "NET_TEST_FAIL",
            "init",
            "init() of the network plugin Test (v12) failed with code 2 (ncclSystemError)",
        ),
        ("NET_TEST_FAIL", "devices", "devices() of the network plugin Test (v12) failed with code 2"),
        (
            "NET_TEST_FAIL",
            "getProperties",
            "getProperties() of the network plugin Test (v12) failed on device 0",
        ),
        ("NET_TEST_POINTERS", "2", "its device test0 does not reach host memory"),
        ("NET_TEST_KIND", "1", "its device test0 needs code on an accelerator"),
        ("NCCL_NET", "Socket", ""),
        ("NCCL_NET_PLUGIN", "none", ""),
        ("NCCL_NET_PLUGIN", "nowhere,none", "the network plugin nowhere is not loaded"),
        ("NCCL_NET_PLUGIN", "STATIC_PLUGIN", "STATIC_PLUGIN has no complete ncclNetPlugin_v12"),
        ("NCCL_NET_PLUGIN", incomplete.to_str().unwrap(), "has no complete ncclNetPlugin_v12, _v11"),
    ];
    for (name, value, why) in cases {
        let cluster = plugin.cluster(2).env("NCCL_DEBUG", "INFO").env("NCCL_DEBUG_SUBSYS", "INIT,NET");
        cluster.env(name, value).output(&output).run("plain");
        let counts = plugin.counts();
        assert_eq!(counts.get("listen").copied().unwrap_or(0), 0, "{name}={value}: {counts:?}");
        let log = std::fs::read_to_string(output.join("0")).unwrap();
        assert!(log.contains(why) && log.contains("via NET/Socket"), "{name}={value}: {log}");
    }
    std::fs::remove_dir_all(output).unwrap();
    std::fs::remove_file(incomplete).unwrap();
    // Of several, the first that can be used.
    let cluster = plugin.cluster(2).env("NCCL_NET_PLUGIN", format!("nowhere,{}", plugin.file.display()));
    cluster.run("move");
    assert!(plugin.counts()["bytes"] > 0);
}

/// Both ends go by TCP where one of them cannot set the plugin up, and say so; where it is required, all fail.
#[test]
fn ends_that_fail_to_connect_go_by_tcp_together() {
    for function in ["listen", "connect", "accept", "regMr"] {
        let plugin = Plugin::new(12);
        let said = plugin.cluster(2).env_of(1, "NET_TEST_FAIL", function).run("move");
        let counts = plugin.counts();
        balanced(&counts);
        assert_eq!(counts["bytes"], 0, "{function}: {counts:?}");
        let failed =
            format!("{function}() of the network plugin Test (v12) failed on device test0 with code 2");
        for (rank, text) in said.iter().enumerate() {
            // The other end's own attempt may have failed of it before it has heard why.
            let says_why =
                text.contains(&failed) || rank == 0 && text.contains("connect() of the network plugin");
            assert!(says_why && text.contains("so TCP is used"), "{function} at {rank}: {text}");
        }
        let plugin = Plugin::new(12);
        let cluster = plugin.cluster(2).env("NCCL_NET", "Test").env_of(1, "NET_TEST_FAIL", function);
        cluster.argument("the network plugin Test is required").run("fail to reduce");
        balanced(&plugin.counts());
    }
}

#[test]
fn ranks_of_which_one_has_none_go_by_tcp_or_fail_where_it_is_required() {
    let plugin = Plugin::new(10);
    let said = plugin.cluster(3).env_of(1, "NCCL_NET_PLUGIN", "none").run("move");
    let counts = plugin.counts();
    balanced(&counts);
    assert!(counts["bytes"] > 0 && counts["processes"] == 2, "{counts:?}");
    assert!(
        said[0].contains("rank 1 (") && said[0].contains("does not use the network plugin"),
        "{}",
        said[0]
    );
    for name in ["NCCL_NET", "ACCL_REQUIRE_PATH"] {
        let plugin = Plugin::new(10);
        let cluster = plugin.cluster(2).env(name, "test").env_of(1, "NCCL_NET_PLUGIN", "none");
        cluster.argument("the network plugin test is required").run("fail to join");
    }
    // Encryption leaves no room for it.
    let key = plugin.file.with_extension("key");
    std::fs::write(&key, "a key that these ranks have in common").unwrap();
    let free = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let sealed = |cluster: Cluster| {
        let here = std::iter::once(std::process::Command::new("env"));
        cluster.places(here, &free.to_string()).env("ACCL_ENCRYPTION_KEY_FILE", key.display())
    };
    sealed(plugin.cluster(2)).run("plain");
    assert_eq!(plugin.counts().get("init").copied().unwrap_or(0), 0);
    let cluster = sealed(plugin.cluster(2)).env("NCCL_NET", "Test");
    cluster.argument("over TCP alone").run("fail to join");
    std::fs::remove_file(key).unwrap();
}

/// An error of the plugin's is every rank's, and says which function, which device and which code.
#[test]
fn what_fails_while_data_moves_fails_the_communicator() {
    for (function, after, code, name) in [
        ("isend", 30, 2, "ncclSystemError"),
        ("irecv", 60, 3, "ncclInternalError"),
        ("test", 5000, 6, "ncclRemoteError"),
        ("iflush", 10, 2, "ncclSystemError"),
    ] {
        let plugin = Plugin::new(12);
        let cluster = plugin.cluster(2).env("NCCL_NET", "Test").env_of(0, "NET_TEST_FAIL", function);
        let cluster = cluster.env("NET_TEST_FLUSH", 1).env_of(0, "NET_TEST_FAIL_AFTER", after);
        let text = format!(
            "{function}() of the network plugin Test (v12) failed on device test0 with code {code} ({name})"
        );
        let said = cluster.env_of(0, "NET_TEST_CODE", code).run_to_end("fail to reduce");
        assert!(said.iter().all(|end| end.code == Some(0)), "{function}: {said:?}");
        assert!(said[0].stderr.contains(&text), "{function}: {said:?}");
        let expected = if code == 6 { "code 6:" } else { "code 2:" };
        assert!(said[0].stderr.contains(expected), "{function}: {said:?}");
    }
    let plugin = Plugin::new(12);
    let cluster = plugin.cluster(2).env("NCCL_NET", "Test").env_of(1, "NET_TEST_SIZE", 1);
    let said = cluster.run("fail to reduce").join("");
    assert!(said.contains("131073 bytes have come by device test0"), "{said}");
}

fn all_well(ended: &[Ended]) {
    assert!(ended.iter().all(|end| end.code == Some(0)), "{ended:?}");
}

/// Requests that never end are seen by the time limit, which names a rank; and an abort ends the wait.
#[test]
fn a_plugin_that_hangs_is_no_reason_to_stand_still() {
    let plugin = Plugin::new(12);
    let hanging = || plugin.cluster(2).env("NCCL_NET", "Test").env("NET_TEST_HANG", 40);
    let ended = hanging().env("ACCL_TIMEOUT", 3).run_to_end("fail to reduce");
    all_well(&ended);
    let said: String = ended.iter().map(|end| end.stderr.as_str()).collect();
    assert!(said.contains("rank 0") || said.contains("rank 1"), "{said}");
    all_well(&hanging().env("NET_TEST_HANG", 3).run_to_end("abort"));
}
