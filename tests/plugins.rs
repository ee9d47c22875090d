//! Plugins in C, as those of others are: profilers and tuners of versions 4 to 6, and those that misbehave.

// Helpers of tests fail by panicking.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod support;

use std::path::{Path, PathBuf};
use std::process::Output;
use support::Language::C;
use support::plugin;

/// Compiles `tests/c/plugins/profiler.c`.
fn profiler(version: u32, fault: u32) -> PathBuf {
    plugin("profiler", version, fault)
}

/// Runs the program with a plugin; what it printed, and what the plugin wrote.
fn profiled(program: &Path, plugin: &Path, settings: &[(&str, &str)]) -> (Output, String) {
    let told = plugin.with_extension("txt");
    let _ = std::fs::remove_file(&told);
    let mut command = support::program(program);
    command.env("NCCL_PROFILER_PLUGIN", plugin).env("PROFILED", &told).envs(settings.iter().copied());
    let output = support::run(&mut command);
    let text = std::fs::read_to_string(&told).unwrap_or_default();
    let _ = std::fs::remove_file(&told);
    (output, text)
}

/// Each event that was started has its end, after it.
fn ends(text: &str) {
    let numbers = |word: &str| -> Vec<(usize, u32)> {
        let lines = text.lines().enumerate().filter_map(|(at, line)| Some((at, line.strip_prefix(word)?)));
        lines.map(|(at, rest)| (at, rest.split(' ').next().unwrap().parse().unwrap())).collect()
    };
    let (starts, stops) = (numbers("start "), numbers("stop "));
    assert_eq!(starts.len(), stops.len(), "{text}");
    for (at, number) in starts {
        assert!(stops.iter().any(|(end, other)| *other == number && *end > at), "{number} in {text}");
    }
}

#[test]
fn profilers_are_told_of_calls() {
    let program = support::compile("profiled.c", C, "nccl");
    for version in [4, 5, 6] {
        let plugin = profiler(version, 0);
        let (output, text) = profiled(&program, &plugin, &[("NCCL_DEBUG", "INFO")]);
        ends(&text);
        let has = |words: &str| text.lines().filter(|line| line.ends_with(words)).count();
        for (words, count) in [
            ("Coll 0 AllReduce 1 ncclFloat32 root 0 DIRECT SIMPLE buffers", 2),
            ("Coll 1 Broadcast 1 ncclInt32 root 1 DIRECT SIMPLE buffers", 2),
            ("Coll 2 AllReduce 1 ncclFloat32 root 0 DIRECT SIMPLE none", 1),
            ("P2p Send 1 ncclFloat32 peer 0 buffer", 1),
            ("P2p Recv 1 ncclFloat32 peer 1 buffer", 1),
            ("finalize rank 0", 1),
            ("finalize rank 1", 1),
        ] {
            assert_eq!(has(words), count, "{version}: {words} in {text}");
        }
        // Groups came with version 5: three of the program, and the call outside of them. Each is told when it has begun, and when it ends.
        let groups = if version == 4 { [0; 4] } else { [3, 1, 4, 4] };
        let states =
            |state| text.lines().filter(|line| line.starts_with(&format!("state {state} of "))).count();
        let found =
            [has("GroupApi depth 2 captured 0"), has("GroupApi depth 1 captured 0"), states(23), states(24)];
        assert_eq!(found, groups, "{version}: {text}");
        assert!(!text.contains("arguments"), "{text}");
        // Calls themselves did, too: they descend from groups, and are the parents of what is done for them.
        let calls = if version == 4 { [0; 3] } else { [2, 1, 1] };
        let found = [
            has("CollApi AllReduce 1 ncclFloat32 root 0 captured 0") - usize::from(version != 4),
            has("P2pApi Send 1 ncclFloat32 captured 0"),
            has("P2pApi Recv 1 ncclFloat32 captured 0"),
        ];
        assert_eq!(found, calls, "{version}: {text}");
        for line in text.lines().filter(|line| line.contains(" Coll ") || line.contains(" P2p ")) {
            assert_eq!(line.contains("parent -1"), version == 4, "{line}");
        }
        for line in text.lines().filter(|line| line.contains("Api ")) {
            assert_eq!(line.contains("parent -1"), line.contains("GroupApi"), "{line}");
        }
        assert!(!text.contains("unknown"), "{text}");
        let log = String::from_utf8(output.stdout).unwrap();
        for rank in [0, 1] {
            let said = format!("NCCL INFO plugin {version}: rank {rank} of 2 on 1 host, 0.5 of nameless !");
            assert_eq!(log.matches(&said).count(), 1, "{said} in {log}");
        }
        assert_eq!(
            log.matches(&format!("NCCL WARN plugin {version} warns of 1234567890123")).count(),
            2,
            "{log}"
        );
        std::fs::remove_file(plugin).unwrap();
    }
    std::fs::remove_file(program).unwrap();
}

/// The program goes on without them, and somebody hears of it.
#[test]
fn profilers_that_misbehave_are_left_alone() {
    let program = support::compile("profiled.c", C, "accl");
    for (fault, told, said) in [
        (1, "refused\nrefused\n", "the profiler plugin has refused a communicator with code 5"),
        (3, "", "the profiler plugin has no complete ncclProfiler_v6, _v5 or _v4"),
    ] {
        let plugin = profiler(6, fault);
        let (output, text) = profiled(&program, &plugin, &[]);
        let stderr = String::from_utf8(output.stderr).unwrap();
        assert!(text == told && stderr.contains(said), "{fault}: {text}{stderr}");
        std::fs::remove_file(plugin).unwrap();
    }
    // One that refuses events is asked again each time, and told of no end but its own.
    let plugin = profiler(5, 2);
    let (_, text) = profiled(&program, &plugin, &[]);
    assert_eq!((text.matches("start refused").count(), text.matches("stop").count()), (18, 0), "{text}");
    assert_eq!(text.matches("finalize").count(), 2, "{text}");
    std::fs::remove_file(plugin).unwrap();
    // None, one that is not there, and one that is no plugin.
    let (output, _) = profiled(&program, Path::new("none"), &[]);
    assert_eq!(String::from_utf8_lossy(&output.stderr), "");
    let (output, _) = profiled(&program, Path::new("nowhere"), &[]);
    let stderr = String::from_utf8(output.stderr).unwrap();
    assert!(stderr.contains("NCCL_PROFILER_PLUGIN=nowhere is not loaded"), "{stderr}");
    assert!(stderr.contains("libnccl-profiler-nowhere.so"), "{stderr}");
    let (output, _) = profiled(&program, &support::libraries().join("libaccl.so"), &[]);
    assert!(String::from_utf8(output.stderr).unwrap().contains("no complete ncclProfiler_v6"));
    std::fs::remove_file(program).unwrap();
}

/// Runs the program with a tuner; what it printed and what it said on standard error, and what the plugin wrote.
fn tuned(program: &Path, plugin: &Path, settings: &[(&str, &str)]) -> (String, String, String) {
    let told = plugin.with_extension("txt");
    let _ = std::fs::remove_file(&told);
    let mut command = support::program(program);
    command.env("NCCL_TUNER_PLUGIN", plugin).env("TUNED", &told).envs(settings.iter().copied());
    let output = support::run(&mut command);
    let text = std::fs::read_to_string(&told).unwrap_or_default();
    let _ = std::fs::remove_file(&told);
    let words = |bytes| String::from_utf8(bytes).unwrap();
    (words(output.stdout), words(output.stderr), text)
}

#[test]
fn tuners_choose_algorithms() {
    let program = support::compile("tuned.c", C, "accl");
    let (usual, ..) = tuned(&program, Path::new("none"), &[]);
    let own = |operation: &str| usual.lines().find(|line| line.starts_with(operation)).unwrap().to_string();
    for version in [4, 5, 6] {
        let plugin = plugin("tuner", version, 0);
        let settings = [("NCCL_DEBUG", "INFO"), ("NCCL_DEBUG_SUBSYS", "TUNING")];
        let (output, stderr, text) = tuned(&program, &plugin, &settings);
        assert_eq!(stderr, "", "{version}");
        // An AllGather has no tree, and an AlltoAll is not asked for.
        for line in [own("allreduce 1 "), "allreduce 4096 tree".into(), own("allgather"), own("alltoall")] {
            assert!(output.lines().any(|other| other == line), "{version}: {line} in {output}");
        }
        for (line, count) in [
            (format!("init {version} ranks 2 nodes 1"), 2),
            ("ask 4 4 tree 1 ring 1 nvls 1".to_string(), 3),
            ("ask 4 16384 tree 1 ring 1 nvls 1".to_string(), 3),
            ("ask 2 32768 tree 0 ring 1 nvls 1".to_string(), 1),
            ("end 1".to_string(), 2),
        ] {
            assert_eq!(
                text.lines().filter(|other| **other == line).count(),
                count,
                "{version}: {line} in {text}"
            );
        }
        assert!(!text.contains("ask 8"), "{text}");
        let said = "NCCL INFO AllReduce: 16384 Bytes -> Algo tree by the tuner plugin";
        assert_eq!(output.matches(said).count(), 3, "{output}");
        assert_eq!(output.matches(&format!("NCCL INFO tuner {version}")).count(), 2, "{output}");
        // What settings forbid cannot be chosen.
        let (output, stderr, _) = tuned(&program, &plugin, &[("ACCL_ALGO", "direct,ring")]);
        assert!(output.contains(&own("allreduce 4096")) && stderr.is_empty(), "{output}{stderr}");
        std::fs::remove_file(plugin).unwrap();
    }
    std::fs::remove_file(program).unwrap();
}

/// The library chooses itself then, and somebody hears of it.
#[test]
fn tuners_that_misbehave_change_nothing() {
    let program = support::compile("tuned.c", C, "accl");
    let (usual, stderr, _) = tuned(&program, Path::new("none"), &[]);
    assert_eq!(stderr, "");
    for (fault, said, lines) in [
        (1, "the tuner plugin has refused a communicator with code 5", 2),
        (2, "the tuner plugin has returned code 3 for AllReduce of 4 bytes", 2),
        (3, "the tuner plugin has written the cost -7 for ring for AllReduce", 2),
        (4, "the tuner plugin has chosen nvls, which cannot serve, for AllReduce", 2),
        (5, "the tuner plugin has no complete ncclTunerPlugin_v6, _v5 or _v4", 1),
    ] {
        let plugin = plugin("tuner", 5, fault);
        let (output, stderr, _) = tuned(&program, &plugin, &[]);
        assert_eq!(output, usual, "{fault}");
        assert_eq!(stderr.matches(said).count(), lines, "{fault}: {stderr}");
        std::fs::remove_file(plugin).unwrap();
    }
    let (output, stderr, _) = tuned(&program, Path::new("nowhere"), &[]);
    assert!(output == usual && stderr.contains("NCCL_TUNER_PLUGIN=nowhere is not loaded"), "{stderr}");
    // The library of a network plugin may have a tuner, too.
    let plugin = plugin("tuner", 6, 0);
    let mut command = support::program(&program);
    let told = plugin.with_extension("txt");
    command.env("NCCL_NET_PLUGIN", &plugin).env("TUNED", &told).env_remove("NCCL_TUNER_PLUGIN");
    let output = String::from_utf8(support::run(&mut command).stdout).unwrap();
    assert!(output.contains("allreduce 4096 tree"), "{output}");
    for file in [plugin, told, program] {
        std::fs::remove_file(file).unwrap();
    }
}
