//! Runs that end early: bounded, with their code, and with what was complete.

use std::path::Path;
use std::time::Duration;

use crate::runs::*;

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
