//! The library of this build, measured and verified by the bench.

use std::process::Command;

use crate::runs::*;
use crate::support;

/// The bench on the library of this build.
pub(crate) fn on_library(words: &str) -> Command {
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
