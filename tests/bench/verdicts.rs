//! What makes a run good or bad, and the switches that change what is measured.

use std::process::Command;

use crate::runs::*;
use crate::support;

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
