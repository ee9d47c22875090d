//! Plugins in C, as those of others are: profilers of versions 4 to 6, and those that misbehave.

// Helpers of tests fail by panicking.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod support;

use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use support::Language::C;

/// Compiles `tests/c/plugins/profiler.c`.
fn profiler(version: u32, fault: u32) -> PathBuf {
    let file = Path::new(env!("CARGO_TARGET_TMPDIR"))
        .join(format!("libprofiler-{version}-{fault}-{}.so", std::process::id()));
    let mut compile = Command::new(std::env::var_os("CC").unwrap_or_else(|| "cc".into()));
    compile.args(["-std=c11", "-Wall", "-Wextra", "-Werror", "-g", "-shared", "-fPIC"]);
    compile.args([format!("-DVERSION={version}"), format!("-DFAULT={fault}")]);
    support::run(compile.arg(support::root().join("tests/c/plugins/profiler.c")).arg("-o").arg(&file));
    file
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
        // Calls themselves came with version 5, and are the parents of what is done for them.
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
    assert_eq!((text.matches("start refused").count(), text.matches("stop").count()), (14, 0), "{text}");
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
