//! RDMA under programs: paths that go and come while ranks reduce, peers that are killed, and what is said of what is not there.
//!
//! Needs a device: `ci/rdma` runs it in a guest with soft RoCE, whose interfaces it takes down and up.

// Helpers of tests fail by panicking.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod support;

use std::process::Command;
use std::time::{Duration, Instant};
use support::api::{FLOAT, SUM};
use support::cluster::{Cluster, Rank, Scenario, plain, work};

const SCENARIOS: [(&str, Scenario); 6] = [
    ("plain", plain),
    ("reduce for a while", reduce_for_a_while),
    ("exchange for a while", exchange_for_a_while),
    ("die", die),
    ("fail to join", fail_to_join),
    ("fail to reduce", fail_to_reduce),
];

#[test]
fn worker() {
    work(&SCENARIOS);
}

/// Reduces for as many seconds as the argument says, and compares every element.
fn reduce_for_a_while(rank: Rank) {
    let comm = rank.join();
    let end = Instant::now() + Duration::from_secs(rank.argument.parse().unwrap());
    let mut calls = 0u64;
    loop {
        let count = [3, 1000, 40_000, 250_000][calls as usize % 4];
        let value = |of: usize, at: usize| (of * 3 + at % 97) as f32 + (calls % 7) as f32;
        let input: Vec<f32> = (0..count).map(|at| value(rank.rank, at)).collect();
        let mut output = vec![0f32; count];
        rank.api.ok(rank.api.all_reduce(&input, &mut output, FLOAT, SUM, comm));
        for (at, found) in output.iter().enumerate() {
            let expected: f32 = (0..rank.ranks).map(|of| value(of, at)).sum();
            assert_eq!(*found, expected, "call {calls}, element {at}");
        }
        calls += 1;
        // All end together.
        if rank.api.sum(i32::from(Instant::now() > end), comm) > 0 {
            break;
        }
    }
    rank.api.destroy(comm);
    println!("calls {calls}");
}

/// Each rank sends to the one after it and waits for the one before it, which waits for a third: as many seconds as the argument says.
fn exchange_for_a_while(rank: Rank) {
    let comm = rank.join();
    let end = Instant::now() + Duration::from_secs(rank.argument.parse().unwrap());
    let (next, before) = ((rank.rank + 1) % rank.ranks, (rank.rank + rank.ranks - 1) % rank.ranks);
    let mut calls = 0u64;
    loop {
        let count = [5, 2_000, 16_000, 70_000][calls as usize % 4];
        let value = |of: usize, at: usize| (of * 5 + at % 89) as f32 + (calls % 11) as f32;
        let input: Vec<f32> = (0..count).map(|at| value(rank.rank, at)).collect();
        let mut output = vec![0f32; count];
        // One after the other, so that nobody looks after what has been sent.
        if rank.rank == 0 {
            rank.api.ok(rank.api.send(&input, next, comm));
            rank.api.ok(rank.api.recv(&mut output, before, comm));
        } else {
            rank.api.ok(rank.api.recv(&mut output, before, comm));
            rank.api.ok(rank.api.send(&input, next, comm));
        }
        for (at, found) in output.iter().enumerate() {
            assert_eq!(*found, value(before, at), "call {calls}, element {at}");
        }
        calls += 1;
        if calls.is_multiple_of(8) && rank.api.sum(i32::from(Instant::now() > end), comm) > 0 {
            break;
        }
    }
    rank.api.destroy(comm);
    println!("calls {calls}");
}

fn rdma(processes: usize) -> Cluster {
    // A packet is sent again after 67 ms, so that a path that is down is seen after half a second.
    Cluster::new(processes, 1)
        .env("ACCL_SHM_DISABLE", 1)
        .env("NCCL_IB_TIMEOUT", 14)
        .env("NCCL_DEBUG", "INFO")
        .env("NCCL_DEBUG_SUBSYS", "NET")
}

fn link(interface: &str, state: &str) {
    let done = Command::new("ip").args(["link", "set", interface, state]).status().unwrap();
    assert!(done.success(), "ip link set {interface} {state}");
}

/// What a job has written, while links went down and up.
fn with_links_that_go(cluster: &Cluster, links: &[&str], paths: usize, seconds: u64) -> (usize, String) {
    let folder = std::env::temp_dir().join(format!("accl-rdma-{}", std::process::id()));
    std::fs::create_dir_all(&folder).unwrap();
    let cluster = cluster.clone().argument(seconds).limit(seconds + 120).output(&folder);
    let mut faults = 0;
    std::thread::scope(|scope| {
        let job = scope.spawn(|| cluster.run("reduce for a while"));
        // Ports that are down when ranks join are not used.
        let text = || {
            let files = std::fs::read_dir(&folder).unwrap();
            files.map(|file| std::fs::read_to_string(file.unwrap().path()).unwrap()).collect::<String>()
        };
        while text().matches(" is up").count() < 2 * paths && !job.is_finished() {
            std::thread::sleep(Duration::from_millis(100));
        }
        while !job.is_finished() {
            let interface = links[faults % links.len()];
            link(interface, "down");
            std::thread::sleep(Duration::from_millis(700 + faults as u64 * 137 % 600));
            link(interface, "up");
            faults += 1;
            std::thread::sleep(Duration::from_millis(800 + faults as u64 * 211 % 700));
        }
        job.join().unwrap();
    });
    let texts = std::fs::read_dir(&folder).unwrap();
    let text = texts.map(|file| std::fs::read_to_string(file.unwrap().path()).unwrap()).collect();
    std::fs::remove_dir_all(&folder).unwrap();
    (faults, text)
}

fn seconds() -> u64 {
    std::env::var("TEST_RDMA_SECONDS").ok().and_then(|text| text.parse().ok()).unwrap_or(12)
}

#[test]
fn a_link_that_goes_and_comes_disturbs_nobody() {
    if !support::has_rdma() {
        return;
    }
    let several = std::path::Path::new("/sys/class/infiniband/rxe1").exists();
    // With two devices one of them goes, and the job goes on by the other; with one it goes on by TCP over the loopback interface.
    let links: &[&str] = if several { &["rdma1"] } else { &["rdma0"] };
    let cluster = rdma(2).env("NCCL_SOCKET_IFNAME", if several { "rdma0" } else { "lo" });
    let cluster = if several { cluster.env("ACCL_REQUIRE_PATH", "rdma") } else { cluster };
    let (faults, text) = with_links_that_go(&cluster, links, 1 + usize::from(several), seconds());
    let (down, again) = (text.matches(" was down: ").count(), text.matches(" is up again").count());
    println!("{faults} faults, {down} paths down, {again} up again");
    assert!(faults > 0 && down > 0 && again > 0, "{text}");
}

/// What the ranks of a job have written while their queue pairs broke.
fn with_pairs_that_break(cluster: &Cluster, scenario: &str, every: u32) -> usize {
    let folder = std::env::temp_dir().join(format!("accl-rdma-break-{}", std::process::id()));
    std::fs::create_dir_all(&folder).unwrap();
    let cluster = cluster.clone().env("ACCL_IB_BREAK_EVERY", every).argument(seconds());
    cluster.limit(seconds() + 120).output(&folder).run(scenario);
    let files = std::fs::read_dir(&folder).unwrap();
    let text: String = files.map(|file| std::fs::read_to_string(file.unwrap().path()).unwrap()).collect();
    std::fs::remove_dir_all(&folder).unwrap();
    let (broken, again) = (text.matches("is put into error").count(), text.matches(" is up again").count());
    println!("{scenario}: {broken} queue pairs put into error, {again} path ends up again");
    assert!(broken > 2 && again > 2, "{text}");
    broken
}

#[test]
fn queue_pairs_that_break_at_random_disturb_nobody() {
    if !support::has_rdma() {
        return;
    }
    let mut broken = 0;
    for (ranks, scenario) in
        [(2, "reduce for a while"), (4, "reduce for a while"), (3, "exchange for a while")]
    {
        let cluster = rdma(ranks).env("NCCL_IB_QPS_PER_CONNECTION", 2);
        broken += with_pairs_that_break(&cluster, scenario, 40);
    }
    println!("{broken} queue pairs in all");
}

/// The first of two ranks is killed.
fn die(rank: Rank) {
    let comm = rank.join();
    assert_eq!(rank.api.sum(1, comm), rank.ranks as i32);
    if rank.rank == 0 {
        std::process::abort();
    }
    let (input, mut output) = (vec![1f32; 1 << 20], vec![0f32; 1 << 20]);
    let begin = Instant::now();
    let code = rank.api.all_reduce(&input, &mut output, FLOAT, SUM, comm);
    let text = rank.api.error_text();
    assert_eq!(code, 6, "{text}");
    assert!(text.contains("rank 0"), "{text}");
    eprintln!("seen after {:?}", begin.elapsed());
}

#[test]
fn a_peer_that_is_killed_is_named() {
    if !support::has_rdma() {
        return;
    }
    let ended = rdma(2).env("NCCL_IB_TIMEOUT", 18).env("ACCL_REQUIRE_PATH", "rdma").run_to_end("die");
    assert_eq!(ended[1].code, Some(0), "{}", ended[1].stderr);
    assert!(ended[1].stderr.contains("seen after"), "{}", ended[1].stderr);
}

/// What is required is not there: every rank hears which, and why.
fn fail_to_join(rank: Rank) {
    let mut comm = std::ptr::null_mut();
    // SAFETY: the arguments live through the call.
    let code = unsafe {
        (rank.api.ncclCommInitRank)(&raw mut comm, rank.ranks as i32, rank.ids[0], rank.rank as i32)
    };
    let text = rank.api.error_text();
    assert!(code == 2 || code == 6, "{code}: {text}");
    assert!(text.contains("ACCL_REQUIRE_PATH=rdma, but") && text.contains("unset it"), "{text}");
    assert!(text.contains(rank.argument), "{text}");
}

#[test]
fn what_is_required_and_not_there_is_an_error_of_all_ranks() {
    // On a machine without RDMA as well as on one with: a device of this name there is nowhere.
    let cluster = Cluster::new(2, 1).env("ACCL_SHM_DISABLE", 1).env("ACCL_REQUIRE_PATH", "rdma");
    let reason = if support::has_rdma() { "NCCL_IB_HCA" } else { "libibverbs" };
    cluster.env("NCCL_IB_HCA", "=none").argument(reason).run("fail to join");
}

/// Ranks join, and then there is no path, which every rank hears of with the reason.
fn fail_to_reduce(rank: Rank) {
    let comm = rank.join();
    let (input, mut output) = (vec![1f32; 1 << 20], vec![0f32; 1 << 20]);
    let code = rank.api.all_reduce(&input, &mut output, FLOAT, SUM, comm);
    let text = rank.api.error_text();
    assert!(code == 2 || code == 6, "{code}: {text}");
    assert!(
        text.contains("ACCL_REQUIRE_PATH=rdma, but no path leads to rank") && text.contains("unset it"),
        "{text}"
    );
    assert!(text.contains(rank.argument), "{text}");
}

#[test]
fn what_a_port_does_not_have_is_an_error_that_names_it() {
    if !support::has_rdma() {
        return;
    }
    let required = || rdma(2).env("ACCL_REQUIRE_PATH", "rdma").env("NCCL_IB_HCA", "=rxe0");
    let gid = "port rxe0:1 has no GID of index 99 (NCCL_IB_GID_INDEX)";
    required().env("NCCL_IB_GID_INDEX", 99).argument(gid).run("fail to join");
    link("rdma0", "down");
    let outcome = std::panic::catch_unwind(|| {
        required().env("NCCL_SOCKET_IFNAME", "lo").argument("port rxe0:1 is down").run("fail to join");
    });
    link("rdma0", "up");
    assert!(outcome.is_ok());
}

/// Two devices of one guest are active and cannot reach each other.
#[test]
fn a_network_that_lets_nothing_through_leaves_tcp() {
    if !support::has_rdma() || !std::path::Path::new("/sys/class/infiniband/rxe1").exists() {
        return;
    }
    let folder = std::env::temp_dir().join(format!("accl-rdma-silent-{}", std::process::id()));
    std::fs::create_dir_all(&folder).unwrap();
    let apart = rdma(2).env_of(0, "NCCL_IB_HCA", "=rxe0").env_of(1, "NCCL_IB_HCA", "=rxe1");
    apart.clone().argument(8).limit(120).output(&folder).run("reduce for a while");
    let files = std::fs::read_dir(&folder).unwrap();
    let text: String = files.map(|file| std::fs::read_to_string(file.unwrap().path()).unwrap()).collect();
    std::fs::remove_dir_all(&folder).unwrap();
    // The port's own error comes before or after this end's patience.
    let reasons = ["no answer to a packet of 4096 bytes", "transport retry counter exceeded"];
    assert!(reasons.iter().any(|reason| text.contains(&format!("so TCP is used: {reason}"))), "{text}");
    assert_eq!(text.matches("so TCP is used").count(), 2, "said once by each rank: {text}");
    assert!(!text.contains(" is up"), "{text}");
    apart.env("ACCL_REQUIRE_PATH", "rdma").argument("no path leads to rank").run("fail to reduce");
}
