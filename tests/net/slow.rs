//! A slow network is not a lost one: nothing is given up while bytes move, and a look from outside sees that they do (C60).

// Every call here is a call of the C interface with arguments that the test keeps alive.
#![allow(clippy::undocumented_unsafe_blocks)]

use super::job::{Job, Rank, Scenario, assert_success, end_all};
use super::namespaces::Net;
use super::support::api::{INT32, SUM};
use serde_json::Value;
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

pub(crate) const SCENARIOS: &[(&str, Scenario)] = &[("crawl", crawl)];

/// A sum of so many elements as the argument says.
fn crawl(rank: Rank) {
    let count = rank.argument().parse().unwrap();
    let comm = rank.join(rank.id());
    rank.ready();
    rank.wait_go();
    let (send, mut recv) = (vec![rank.rank as i32 + 1; count], vec![0; count]);
    rank.api.ok(rank.api.all_reduce(&send, &mut recv, INT32, SUM, comm));
    assert!(recv.iter().all(|sum| *sum == 3));
    rank.api.destroy(comm);
}

fn shape(net: &Net, rate: &str) {
    for host in 0..2 {
        net.tool(host, "tc", &format!("qdisc add dev eth0 root tbf {rate}"));
    }
}

#[test]
fn slow_is_not_lost() {
    let Some(net) = Net::two() else { return };
    let job = Job::new(&net, "crawl", &[0, 1]).argument("12000");
    let job = job.env("ACCL_PEER_TIMEOUT", "2").env("ACCL_TIMEOUT", "20");
    let processes = job.start_all();
    shape(&net, "rate 100kbit burst 2000 limit 30000");
    job.go();
    assert_success(&end_all(processes));
}

/// What a rank has received of its peer, in bytes, as `accl status` says.
fn received(directory: &Path) -> Option<u64> {
    let mut command = Command::new(env!("CARGO_BIN_EXE_accl"));
    let output = command.args(["status", "--json", "--dir"]).arg(directory).output().unwrap();
    let found: Value = serde_json::from_slice(&output.stdout).unwrap();
    let rank = &found["communicators"][0]["ranks"][0];
    assert!(rank["failure"].is_null(), "{rank}");
    rank["traffic"][0]["received_bytes"].as_u64()
}

/// 20 Mbit/s: 64 MiB at night, 8 MiB for every change, so that it takes longer than ranks may stand still.
#[test]
fn progress_is_seen_from_outside() {
    let Some(net) = Net::two() else { return };
    let (mib, limit) = if std::env::var_os("ACCL_LARGE").is_some() { (64, "10") } else { (8, "2") };
    let directory = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("slow-{}", std::process::id()));
    std::fs::create_dir_all(&directory).unwrap();
    std::fs::set_permissions(&directory, std::os::unix::fs::PermissionsExt::from_mode(0o700)).unwrap();
    let job = Job::new(&net, "crawl", &[0, 1]).argument(&(mib << 18).to_string());
    let job = job.env("ACCL_TIMEOUT", limit).env("ACCL_RECORDER_DIR", directory.to_str().unwrap());
    let processes = job.start_all();
    shape(&net, "rate 20mbit burst 20000 limit 100000");
    job.go();
    let (deadline, mut steps) = (Instant::now() + Duration::from_secs(60), Vec::new());
    while steps.len() < 5 {
        let last = steps.last().copied().unwrap_or(0);
        steps.extend(received(&directory).filter(|bytes| *bytes > last));
        assert!(Instant::now() < deadline, "no progress is seen: {steps:?}");
        std::thread::sleep(Duration::from_millis(20));
    }
    assert!(steps[4] <= mib << 20, "{steps:?}");
    assert_success(&end_all(processes));
    assert_eq!(std::fs::read_dir(&directory).unwrap().count(), 0, "files of a job that ended well");
    std::fs::remove_dir(&directory).unwrap();
}
