//! The flight recorder's files, and what `accl status` and `accl explain` read in them.

// Helpers of tests fail by panicking.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]
// Every call here is a call of the C interface with arguments that the test keeps alive.
#![allow(clippy::undocumented_unsafe_blocks)]

#[path = "support/status.rs"]
mod asked;
mod support;

use asked::{scratch, status, status_when};
use std::path::Path;
use std::process::Command;
use std::time::Duration;
use support::api::{INT32, SUM};
use support::cluster::{Cluster, Rank, Scenario, work};

const SCENARIOS: [(&str, Scenario); 2] = [("late", late), ("well", well)];

#[test]
fn worker() {
    work(&SCENARIOS);
}

/// Ranks 2, 3 and 5 never make the 640th call; once told, one of them is stopped within the last one it made.
fn late(rank: Rank) {
    let api = rank.api;
    let (first, second) = (rank.join(), api.init(rank.ranks, rank.ids[1], rank.rank));
    assert_eq!(api.sum(1, second), 8);
    for _ in 1..640 {
        assert_eq!(api.sum(1, first), 8);
    }
    if [2, 3, 5].contains(&rank.rank) {
        std::thread::sleep(Duration::from_secs(300));
    }
    let (mine, mut sums) = (vec![1; 100_000], vec![0; 100_000]);
    api.all_reduce_on(&mine, &mut sums, INT32, SUM, first, std::ptr::null_mut());
}

/// C68: who is late is named, who is stopped is named, and both are still there after the job.
#[test]
fn status_names_the_late() {
    let directory = scratch("late");
    let cluster = Cluster::new(8, 1).ids(2).limit(120).env("ACCL_RECORDER_DIR", directory.display());
    let running = std::thread::spawn(move || cluster.run_to_end("late"));
    let (code, found) =
        status_when(&directory, |found| found["culprits"].as_array().is_some_and(|all| all.len() == 3));
    assert_eq!((code, &found["condition"]), (1, &"still".into()), "{found}");
    assert_eq!(found["culprits"], serde_json::json!([2, 3, 5]), "{found}");
    assert_eq!(found["operation"]["number"], 640);
    assert_eq!(found["operation"]["call"], "AllReduce(100000 × int32, sum)");
    let verdict = found["verdict"].as_str().unwrap();
    assert!(
        verdict.starts_with("ranks 2-3,5 have not called AllReduce(100000 × int32, sum) (collective #640)"),
        "{verdict}"
    );
    let pids: Vec<i32> =
        found["ranks"].as_array().unwrap().iter().map(|rank| rank["pid"].as_i64().unwrap() as i32).collect();
    assert_eq!(pids.len(), 8);
    unsafe { libc::kill(pids[3], libc::SIGSTOP) };
    let (code, found) = status_when(&directory, |found| {
        found["ranks"][3]["process"] == "stopped" && found["operation"]["number"] == 640
    });
    assert_eq!((code, &found["condition"]), (1, &"still".into()), "{found}");
    assert_eq!((&found["culprits"], &found["operation"]["number"]), (&serde_json::json!([3]), &640.into()));
    for pid in pids {
        unsafe { libc::kill(pid, libc::SIGKILL) };
    }
    running.join().unwrap();
    // The last state says the same as the living did.
    let mut command = Command::new(env!("CARGO_BIN_EXE_accl"));
    let explained = command.arg("explain").arg(&directory).output().unwrap();
    let text = String::from_utf8_lossy(&explained.stdout).into_owned();
    assert_eq!(explained.status.code(), Some(2), "{text}");
    assert!(
        text.contains("ranks 2-3,5 have not called AllReduce(100000 × int32, sum) (collective #640)"),
        "{text}"
    );
    // What is no record is said, and the others are used.
    std::fs::write(directory.join("garbage.rec"), b"garbage").unwrap();
    let record = std::fs::read_dir(&directory).unwrap().flatten().map(|entry| entry.path());
    let record = record.into_iter().find(|path| !path.ends_with("garbage.rec")).unwrap();
    let bytes = std::fs::read(record).unwrap();
    std::fs::write(directory.join("cut.rec"), &bytes[..9000]).unwrap();
    let (code, found) = status(&directory);
    let errors = found["errors"].to_string();
    assert_eq!((code, found["communicators"].as_array().unwrap().len()), (2, 2), "{found}");
    assert!(errors.contains("garbage.rec: it is no record") && errors.contains("it is cut off"), "{errors}");
    std::fs::remove_dir_all(directory).unwrap();
}

fn well(rank: Rank) {
    let api = rank.api;
    let comm = rank.join();
    assert_eq!(api.sum(1, comm), rank.ranks as i32);
    if !rank.argument.is_empty() {
        let (code, found) = status(Path::new(rank.argument));
        assert_eq!((code, found["communicators"][0]["condition"].as_str()), (0, Some("healthy")), "{found}");
    }
    assert_eq!(api.sum(1, comm), rank.ranks as i32);
    api.destroy(comm);
}

#[test]
fn nothing_is_left_of_a_job_that_ends_well() {
    let directory = scratch("well");
    let cluster = Cluster::new(2, 2).env("ACCL_RECORDER_DIR", directory.display());
    cluster.argument(directory.display()).run("well");
    assert_eq!(std::fs::read_dir(&directory).unwrap().count(), 0);
    assert_eq!(status(&directory).0, 3);
    std::fs::remove_dir(directory).unwrap();
}

/// C47: where no directory can be used, the library works without, and says so to those who ask.
#[test]
fn a_directory_that_cannot_be_used_does_not_matter() {
    let directory = scratch("open");
    std::fs::set_permissions(&directory, std::os::unix::fs::PermissionsExt::from_mode(0o755)).unwrap();
    let cluster = Cluster::new(2, 1).env("ACCL_RECORDER_DIR", directory.display()).env("NCCL_DEBUG", "INFO");
    let cluster = cluster.env("NCCL_DEBUG_FILE", "/dev/stderr");
    for text in cluster.run("well") {
        assert_eq!(text.matches("no flight recorder").count(), 1, "{text}");
        assert!(text.contains("mode 0755"), "{text}");
    }
    assert_eq!(std::fs::read_dir(&directory).unwrap().count(), 0);
    std::fs::remove_dir(directory).unwrap();
}
