//! Suspended communicators: `ncclCommSuspend`, `ncclCommResume`, and what `ncclCommMemStats` says of them.

// Helpers of tests fail by panicking.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]
// Every call here is a call of the C interface with arguments that the test keeps alive.
#![allow(clippy::undocumented_unsafe_blocks)]

mod support;

use std::ffi::c_int;
use support::api::{
    Api, Comm, IN_PROGRESS, INT32, INVALID_ARGUMENT, INVALID_USAGE, REMOTE_ERROR, SUM, SYSTEM_ERROR, TIMEOUT,
};
use support::cluster::{Cluster, Rank, Scenario, work};
use support::snapshot::memory_bytes;

const SCENARIOS: [(&str, Scenario); 6] = [
    ("rounds", rounds),
    ("refused", refused),
    ("grouped", grouped),
    ("missing", missing),
    ("unreceived", unreceived),
    ("given_back", given_back),
];

const SUSPEND_MEM: c_int = 1;
const IDLE: c_int = 0;
const SUSPENDED: c_int = 1;
const KEPT: c_int = 2;
const TOTAL: c_int = 3;

#[test]
fn worker() {
    work(&SCENARIOS);
}

fn suspend(api: &Api, comm: Comm) {
    api.ok(unsafe { (api.ncclCommSuspend)(comm, SUSPEND_MEM) });
}

fn resume(api: &Api, comm: Comm) {
    api.ok(unsafe { (api.ncclCommResume)(comm) });
}

fn statistic(api: &Api, comm: Comm, which: c_int) -> u64 {
    let mut value = u64::MAX;
    api.ok(unsafe { (api.ncclCommMemStats)(comm, which, &raw mut value) });
    value
}

/// An allreduce, an alltoall and messages of many sizes, with a look at each element.
fn use_it(rank: &Rank, comm: Comm, round: usize) {
    let (api, ranks) = (rank.api, rank.ranks);
    for count in [1usize, 100, 3_000, 40_000, 300_000] {
        let own: Vec<i32> = (0..count * ranks).map(|at| (at * 3 + rank.rank + round) as i32).collect();
        let mut all = vec![0; count];
        api.ok(api.all_reduce(&own[..count], &mut all, INT32, SUM, comm));
        let sum = |at: usize| (0..ranks).map(|peer| (at * 3 + peer + round) as i32).sum::<i32>();
        assert_eq!((0..count).find(|at| all[*at] != sum(*at)), None, "allreduce of {count}, round {round}");
        let mut theirs = vec![0; count * ranks];
        let (send, recv) = (own.as_ptr().cast_mut().cast(), theirs.as_mut_ptr().cast());
        let stream = std::ptr::null_mut();
        api.ok(unsafe { (api.ncclAlltoAll)(send, recv, count, INT32, comm, stream) });
        let from = |at: usize| ((rank.rank * count + at % count) * 3 + at / count + round) as i32;
        assert_eq!((0..theirs.len()).find(|at| theirs[*at] != from(*at)), None, "alltoall of {count}");
        let (next, before) = ((rank.rank + 1) % ranks, (rank.rank + ranks - 1) % ranks);
        let mut message = vec![0; count];
        let code = api.group(|| {
            api.ok(api.send(&own[..count], next, comm));
            api.ok(api.recv(&mut message, before, comm));
        });
        api.ok(code);
        let sent = |at: usize| (at * 3 + before + round) as i32;
        assert_eq!((0..count).find(|at| message[*at] != sent(*at)), None, "message of {count}");
    }
}

/// Memory goes and comes again, and all calls are right before and after.
#[test]
fn calls_are_right_between_suspensions() {
    for (processes, threads) in [(1, 1), (2, 1), (1, 3), (2, 2), (5, 1)] {
        Cluster::new(processes, threads).run("rounds");
    }
    Cluster::new(4, 1).hosts(2).run("rounds");
    // Without a look into other processes all data goes by memory that all of them have.
    Cluster::new(3, 1).env("ACCL_CROSS_MEMORY", 0).run("rounds");
}

fn rounds(rank: Rank) {
    let api = rank.api;
    let comm = rank.join();
    for round in 0..4 {
        use_it(&rank, comm, round);
        assert_eq!(api.sum(1, comm), rank.ranks as i32, "all are through");
        let (idle, kept) = (statistic(api, comm, IDLE), statistic(api, comm, KEPT));
        // Ranks that look later still touch what is shared, so that figures of two moments cannot be added up.
        assert!(statistic(api, comm, TOTAL) >= kept && kept > 0, "{idle} idle, {kept} kept");
        assert_eq!(statistic(api, comm, SUSPENDED), 0);
        suspend(api, comm);
        assert_eq!(statistic(api, comm, SUSPENDED), 1);
        // A peer may not have read yet what the ranks have told each other.
        let left = statistic(api, comm, IDLE);
        assert!(left <= 64 << 10, "{left} bytes, {idle} before");
        assert!(rank.ranks == 1 || idle > 0, "nothing to be given back");
        resume(api, comm);
        assert_eq!(statistic(api, comm, SUSPENDED), 0);
    }
    use_it(&rank, comm, 4);
    suspend(api, comm);
    api.destroy(comm);
}

/// The system gets what is given back.
#[test]
fn memory_goes_back_to_the_system() {
    let said = Cluster::new(2, 1).env("ACCL_CROSS_MEMORY", 0).run("given_back");
    for text in &said {
        let line = text.lines().find_map(|line| line.strip_prefix("bytes: ")).unwrap();
        let figures: Vec<usize> = line.split_whitespace().map(|word| word.parse().unwrap()).collect();
        let [idle, before, after, again] = figures[..] else { panic!("{text}") };
        assert!(idle > 256 << 10, "{text}");
        // Half of what two processes share counts as each one's.
        assert!(before - after > idle * 9 / 10, "given back: {text}");
        assert!(again > after + idle / 2, "taken again: {text}");
    }
}

fn given_back(rank: Rank) {
    let api = rank.api;
    let comm = rank.join();
    let data = vec![1i32; 1 << 20];
    let mut all = vec![0i32; 1 << 20];
    // Everybody has made the same steps when memory is looked at.
    let look = || {
        std::thread::sleep(std::time::Duration::from_millis(100));
        memory_bytes()
    };
    api.ok(api.all_reduce(&data, &mut all, INT32, SUM, comm));
    let (idle, before) = (statistic(api, comm, IDLE), look());
    suspend(api, comm);
    let after = look();
    resume(api, comm);
    api.ok(api.all_reduce(&data, &mut all, INT32, SUM, comm));
    assert!(all.iter().all(|element| *element == 2));
    eprintln!("bytes: {idle} {before} {after} {}", look());
    api.destroy(comm);
}

/// What may not be said of a suspended communicator, and of one that is none.
#[test]
fn what_cannot_be_is_refused() {
    Cluster::new(2, 1).run("refused");
    Cluster::new(1, 2).run("refused");
}

fn refused(rank: Rank) {
    let api = rank.api;
    let comm = rank.join();
    for flags in [0, 2, 3, -1] {
        assert_eq!(unsafe { (api.ncclCommSuspend)(comm, flags) }, INVALID_ARGUMENT, "{flags}");
    }
    assert_eq!(unsafe { (api.ncclCommResume)(comm) }, INVALID_USAGE);
    assert!(api.error_text().contains("not suspended"), "{}", api.error_text());
    suspend(api, comm);
    assert_eq!(unsafe { (api.ncclCommSuspend)(comm, SUSPEND_MEM) }, INVALID_USAGE);
    let mut sum = [0i32];
    assert_eq!(api.all_reduce(&[1], &mut sum, INT32, SUM, comm), INVALID_USAGE);
    assert!(api.error_text().contains("call ncclCommResume on every rank"), "{}", api.error_text());
    assert_eq!(sum, [0]);
    assert_eq!(api.send(&[1i32], 1 - rank.rank, comm), INVALID_USAGE);
    let code = api.group(|| assert_eq!(api.all_reduce(&[1], &mut sum, INT32, SUM, comm), INVALID_USAGE));
    assert_eq!(code, INVALID_USAGE);
    assert_eq!(api.async_error(comm), 0, "what is refused is no failure");
    resume(api, comm);
    assert_eq!(api.sum(1, comm), 2);
    // After an abort nothing comes of it, and nobody waits.
    suspend(api, comm);
    api.ok(unsafe { (api.ncclCommAbort)(comm) });
}

/// One thread has several ranks, as programs with several devices do; and communicators that do not block.
#[test]
fn groups_suspend_many() {
    Cluster::new(1, 1).run("grouped");
}

fn grouped(rank: Rank) {
    let api = rank.api;
    let mut comms = [std::ptr::null_mut(); 3];
    api.ok(unsafe { (api.ncclCommInitAll)(comms.as_mut_ptr(), 3, std::ptr::null()) });
    let reduce = || {
        let mut sums = [[0i32]; 3];
        let code = api.group(|| {
            for (comm, sum) in comms.iter().zip(&mut sums) {
                api.ok(api.all_reduce(&[2i32], sum, INT32, SUM, *comm));
            }
        });
        api.ok(code);
        assert_eq!(sums, [[6]; 3]);
    };
    for _ in 0..3 {
        reduce();
        let code = api.group(|| comms.iter().for_each(|comm| suspend(api, *comm)));
        api.ok(code);
        assert!(comms.iter().all(|comm| statistic(api, *comm, SUSPENDED) == 1));
        let code = api.group(|| comms.iter().for_each(|comm| resume(api, *comm)));
        api.ok(code);
    }
    reduce();
    // Both in one group follow each other; a second suspension does not.
    let code = api.group(|| {
        comms.iter().for_each(|comm| suspend(api, *comm));
        comms.iter().for_each(|comm| resume(api, *comm));
    });
    api.ok(code);
    reduce();
    let code = api.group(|| {
        for comm in comms.iter().chain(&comms) {
            let code = unsafe { (api.ncclCommSuspend)(*comm, SUSPEND_MEM) };
            assert!([0, IN_PROGRESS].contains(&code), "{code}");
        }
    });
    assert_eq!(code, INVALID_USAGE, "suspended twice");
    for comm in comms {
        api.ok(unsafe { (api.ncclCommAbort)(comm) });
    }
}

/// A rank that does not come, or is gone, is named.
#[test]
fn who_does_not_come_is_named() {
    Cluster::new(3, 1).env("ACCL_TIMEOUT", 1).argument("late").run("missing");
    let ended = Cluster::new(3, 1).argument("dead").run_to_end("missing");
    assert!(ended.iter().enumerate().all(|(rank, one)| (one.code == Some(0)) == (rank != 1)), "{ended:?}");
}

fn missing(rank: Rank) {
    let api = rank.api;
    let comm = rank.join();
    assert_eq!(api.sum(1, comm), 3);
    if rank.rank == 1 {
        if rank.argument == "dead" {
            std::process::abort();
        }
        std::thread::sleep(std::time::Duration::from_millis(2500));
    } else {
        let code = unsafe { (api.ncclCommSuspend)(comm, SUSPEND_MEM) };
        let expected = if rank.argument == "dead" { REMOTE_ERROR } else { TIMEOUT };
        assert!([expected, REMOTE_ERROR, SYSTEM_ERROR].contains(&code), "{code}: {}", api.error_text());
        assert!(api.error_text().contains("rank 1"), "{}", api.error_text());
    }
    api.ok(unsafe { (api.ncclCommAbort)(comm) });
}

/// What was sent and has not been received outlasts a suspension.
#[test]
fn messages_that_nobody_has_received_stay() {
    Cluster::new(2, 1).run("unreceived");
}

fn unreceived(rank: Rank) {
    let api = rank.api;
    let comm = rank.join();
    let words: Vec<i32> = (0..2000).collect();
    if rank.rank == 0 {
        api.ok(api.send(&words, 1, comm));
    }
    suspend(api, comm);
    resume(api, comm);
    if rank.rank == 1 {
        let mut heard = vec![0; words.len()];
        api.ok(api.recv(&mut heard, 0, comm));
        assert_eq!(heard, words);
    }
    assert_eq!(api.sum(1, comm), 2);
    api.destroy(comm);
}
