//! Limits, one-sided permissions, and ends in awkward moments: every rank must come out of them, with a reason.

// Helpers of tests fail by panicking.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]
// Every call here is a call of the C interface with arguments that the test keeps alive.
#![allow(clippy::undocumented_unsafe_blocks)]

mod support;

use std::ffi::c_int;
use std::os::fd::AsRawFd;
use std::ptr::null_mut;
use std::time::{Duration, Instant};
use support::api::{Comm, IN_PROGRESS, INT32, INVALID_USAGE, REMOTE_ERROR, SUCCESS, SUM, SYSTEM_ERROR};
use support::cluster::{Cluster, Rank, Scenario, work};
use support::limit;

const SCENARIOS: [(&str, Scenario); 9] = [
    ("read_one_way", read_one_way),
    ("abort_behind_another", abort_behind_another),
    ("few_descriptors", few_descriptors),
    ("few_threads", few_threads),
    ("ended_in_its_own_group", ended_in_its_own_group),
    ("lost_before_the_first", lost_before_the_first),
    ("crossed_roots", crossed_roots),
    ("leave_at_once", leave_at_once),
    ("abort_in_a_call", abort_in_a_call),
];

#[test]
fn worker() {
    work(&SCENARIOS);
}

/// The kernel may let one process read another and not the other way round.
#[test]
fn memory_that_is_read_one_way_only() {
    for blind in 0..2 {
        Cluster::new(2, 1).argument(blind).env("ACCL_TIMEOUT", 20).run("read_one_way");
    }
}

fn read_one_way(rank: Rank) {
    let api = rank.api;
    if rank.argument == rank.rank.to_string() {
        unsafe { std::env::set_var("ACCL_CROSS_MEMORY", "0") };
    }
    let comm = rank.join();
    for count in [20_000, 300_000] {
        let mine = vec![rank.rank as i32 + 1; count];
        let mut sums = vec![0; count];
        api.ok(api.all_reduce_on(&mine, &mut sums, INT32, SUM, comm, null_mut()));
        assert!(sums.iter().all(|sum| *sum == 3));
        let mut theirs = vec![0; count];
        let peer = 1 - rank.rank as c_int;
        api.ok(api.group(|| unsafe {
            api.ok((api.ncclSend)(mine.as_ptr().cast_mut().cast(), count, INT32, peer, comm, null_mut()));
            api.ok((api.ncclRecv)(theirs.as_mut_ptr().cast(), count, INT32, peer, comm, null_mut()));
        }));
        assert!(theirs.iter().all(|value| *value == peer + 1));
    }
    api.destroy(comm);
}

/// An abort waits for what is queued on its communicator, and not for what another one's peers do not send.
#[test]
fn abort_of_what_waits_behind_another_communicator() {
    Cluster::new(1, 1).limit(20).run("abort_behind_another");
}

fn abort_behind_another(rank: Rank) {
    let api = rank.api;
    let make = || {
        let mut comms = [null_mut(); 2];
        api.ok(unsafe { (api.ncclCommInitAll)(comms.as_mut_ptr(), 2, std::ptr::null()) });
        comms
    };
    let (first, second, third): ([Comm; 2], [Comm; 2], [Comm; 2]) = (make(), make(), make());
    let (stream, other) = (api.stream(), api.stream());
    let data = vec![1; 100];
    let mut sums = vec![vec![0; 100]; 4];
    // The peers of the first communicator never call.
    let queued = [(first[0], stream), (second[0], stream), (third[0], stream), (second[0], other)];
    for ((comm, stream), sums) in queued.into_iter().zip(&mut sums) {
        api.ok(api.all_reduce_on(&data, sums, INT32, SUM, comm, stream));
    }
    let start = Instant::now();
    api.ok(unsafe { (api.ncclCommAbort)(second[0]) });
    assert!(start.elapsed() < Duration::from_secs(2), "{:?}", start.elapsed());
    assert_eq!(unsafe { (api.acclStreamSynchronize)(other) }, INVALID_USAGE);
    api.ok(unsafe { (api.ncclCommAbort)(first[0]) });
    // What was queued behind both goes on.
    let mut last = vec![0; 100];
    api.ok(api.all_reduce_on(&data, &mut last, INT32, SUM, third[1], null_mut()));
    assert_eq!(unsafe { (api.acclStreamSynchronize)(stream) }, INVALID_USAGE);
    assert!(last.iter().chain(&sums[2]).all(|sum| *sum == 2));
    for comm in [first[1], second[1], third[0], third[1]] {
        api.ok(unsafe { (api.ncclCommAbort)(comm) });
    }
}

/// A rank that runs out of descriptors while a communicator is made: then nobody has it, and everybody hears so.
#[test]
fn descriptors_run_out_for_all_or_for_none() {
    const ROUNDS: usize = 13;
    let cluster = Cluster::new(6, 1).ids(1 + ROUNDS).env("ACCL_INIT_TIMEOUT", 3).limit(60);
    let outcomes = cluster.run("few_descriptors");
    let codes = |text: &str| -> Vec<i32> {
        let line = text.lines().find_map(|line| line.strip_prefix("codes ")).expect("codes");
        line.split(' ').map(|code| code.parse().unwrap()).collect()
    };
    let codes: Vec<Vec<i32>> = outcomes.iter().map(|text| codes(text)).collect();
    for round in 0..ROUNDS {
        let made = codes.iter().filter(|codes| codes[round] == SUCCESS).count();
        assert!(made == 0 || made == 6, "round {round}: {codes:?}");
    }
    assert!(codes[1].iter().all(|code| [SUCCESS, SYSTEM_ERROR].contains(code)), "{codes:?}");
    assert!(codes[0].contains(&SUCCESS) && codes[0].contains(&SYSTEM_ERROR), "{codes:?}");
}

fn few_descriptors(rank: Rank) {
    let api = rank.api;
    let mut codes = Vec::new();
    let together = rank.join();
    for (spare, id) in rank.ids[1..].iter().enumerate() {
        // Who fails at once must not wait for the others in the next round.
        assert_eq!(api.sum(1, together), 6);
        if rank.rank == 1 {
            // Those that are in use may lie anywhere: the limit is the number that comes after as many as are spared.
            let spared: Vec<_> = (0..=spare).map(|_| std::fs::File::open("/dev/null").unwrap()).collect();
            limit(libc::RLIMIT_NOFILE, spared[spare].as_raw_fd() as u64);
        }
        let mut comm = null_mut();
        let code = unsafe { (api.ncclCommInitRank)(&raw mut comm, 6, *id, rank.rank as c_int) };
        limit(libc::RLIMIT_NOFILE, 1024);
        codes.push(code.to_string());
        if code == SUCCESS {
            assert_eq!(api.sum(1, comm), 6);
            assert_eq!(watched(), 2 * 5, "a peer whose death this rank would not see");
            api.destroy(comm);
        }
    }
    api.destroy(together);
    eprintln!("codes {}", codes.join(" "));
}

/// A communicator whose life ends in the very group that makes or splits it: the group fails, and nobody waits.
#[test]
fn groups_that_end_what_they_begin() {
    Cluster::new(1, 1).limit(20).run("ended_in_its_own_group");
}

fn ended_in_its_own_group(rank: Rank) {
    let api = rank.api;
    let start = Instant::now();
    for (end, code) in [(api.ncclCommDestroy, INVALID_USAGE), (api.ncclCommAbort, SUCCESS)] {
        let (mut comms, id) = ([null_mut(); 2], api.unique_id());
        let ended = api.group(|| unsafe {
            for (rank, comm) in comms.iter_mut().enumerate() {
                api.ok((api.ncclCommInitRank)(comm, 2, id, rank as c_int));
            }
            assert_eq!(end(comms[0]), code);
        });
        assert_eq!(ended, INVALID_USAGE, "{}", api.error_text());
        // The other rank may have had its communicator before it heard.
        assert_eq!(comms[0], null_mut());
        api.ok(unsafe { (api.ncclCommAbort)(comms[1]) });
        let (mut parents, mut child) = ([null_mut(); 1], null_mut());
        api.ok(unsafe { (api.ncclCommInitAll)(parents.as_mut_ptr(), 1, std::ptr::null()) });
        let ended = api.group(|| unsafe {
            let code = (api.ncclCommSplit)(parents[0], 0, 0, &raw mut child, null_mut());
            assert!(code == SUCCESS || code == IN_PROGRESS, "{code}");
            end(parents[0]);
        });
        assert!(ended == SUCCESS || ended == INVALID_USAGE, "{}", api.error_text());
        api.ok(unsafe { (api.ncclCommDestroy)(child) });
    }
    assert!(start.elapsed() < Duration::from_secs(10), "{:?}", start.elapsed());
}

/// How many processes this one watches.
fn watched() -> usize {
    let links = std::fs::read_dir("/proc/self/fd").unwrap().flatten();
    links
        .filter(|link| std::fs::read_link(link.path()).is_ok_and(|to| to.ends_with("anon_inode:[pidfd]")))
        .count()
}

/// Ranks of a process for which there are not enough threads: none of them waits for the others.
#[test]
fn threads_run_out() {
    Cluster::new(1, 1).limit(20).run("few_threads");
}

fn few_threads(rank: Rank) {
    let api = rank.api;
    let mut comms = vec![null_mut(); 64];
    // The tables of the library are there from here on.
    api.ok(unsafe { (api.ncclCommInitAll)(comms.as_mut_ptr(), 2, std::ptr::null()) });
    let pages: usize =
        std::fs::read_to_string("/proc/self/statm").unwrap().split(' ').next().unwrap().parse().unwrap();
    limit(libc::RLIMIT_AS, (pages * 4096 + (60 << 20)) as u64);
    let start = Instant::now();
    let code = unsafe { (api.ncclCommInitAll)(comms.as_mut_ptr(), 64, std::ptr::null()) };
    assert_eq!(code, SYSTEM_ERROR, "{}", api.error_text());
    assert!(api.error_text().contains("ulimit"), "{}", api.error_text());
    assert!(start.elapsed() < Duration::from_secs(10), "{:?}", start.elapsed());
}

/// Operations with a root in this order: broadcast, scatter, reduce, gather.
const ROOTED: usize = 4;
const ROOTED_COUNT: usize = 50_000;

fn rooted(rank: &Rank, kind: usize, root: c_int, comm: Comm) -> c_int {
    let (mut send, mut recv) = (vec![1; ROOTED_COUNT * rank.ranks], vec![0; ROOTED_COUNT * rank.ranks]);
    let (send, recv) = (send.as_mut_ptr().cast(), recv.as_mut_ptr().cast());
    let (api, count, stream) = (rank.api, ROOTED_COUNT, null_mut());
    unsafe {
        match kind {
            0 => (api.ncclBroadcast)(send, recv, count, INT32, root, comm, stream),
            1 => (api.ncclScatter)(send, recv, count, INT32, root, comm, stream),
            2 => (api.ncclReduce)(send, recv, count, INT32, SUM, root, comm, stream),
            _ => (api.ncclGather)(send, recv, count, INT32, root, comm, stream),
        }
    }
}

/// The first operation that reads peers' memory needs everybody: whoever is lost before it is named.
#[test]
fn ranks_lost_before_the_first_operation_that_reads() {
    for kind in 0..ROOTED {
        Cluster::new(3, 1).argument(kind).env("ACCL_PASS_BYTES", "1G").limit(20).run("lost_before_the_first");
    }
}

fn lost_before_the_first(rank: Rank) {
    let comm = rank.join();
    if rank.rank < 2 {
        assert_eq!(rooted(&rank, rank.argument.parse().unwrap(), 0, comm), REMOTE_ERROR);
        assert!(rank.api.error_text().contains("rank 2"), "{}", rank.api.error_text());
    }
    rank.api.ok(unsafe { (rank.api.ncclCommAbort)(comm) });
}

/// Ranks that mean each other's roots disagree, though each of them has nothing to read.
#[test]
fn roots_that_differ_are_noticed_by_ranks_that_read() {
    for kind in 0..ROOTED {
        for (processes, threads) in [(2, 1), (1, 2)] {
            let cluster = Cluster::new(processes, threads).argument(kind).env("ACCL_PASS_BYTES", "1G");
            cluster.limit(20).run("crossed_roots");
        }
    }
}

fn crossed_roots(rank: Rank) {
    let (comm, kind) = (rank.join(), rank.argument.parse().unwrap());
    rank.api.ok(rooted(&rank, kind, 0, comm));
    // Whoever receives takes the other one for the root, or whoever sends takes itself for it.
    let root = if kind < 2 { rank.rank } else { 1 - rank.rank };
    assert_eq!(rooted(&rank, kind, root as c_int, comm), INVALID_USAGE);
    assert!(rank.api.error_text().contains("ranks disagree"), "{}", rank.api.error_text());
    rank.api.ok(unsafe { (rank.api.ncclCommAbort)(comm) });
}

/// What a rank has sent before it left reaches those on other hosts, also where it is the first that they get from it.
#[test]
fn who_leaves_after_its_last_call_is_heard() {
    for (processes, hosts) in [(3, 2), (3, 3), (5, 5)] {
        Cluster::new(processes, 1).hosts(hosts).ids(25).run("leave_at_once");
    }
}

fn leave_at_once(rank: Rank) {
    for (round, id) in rank.ids.iter().enumerate() {
        let comm = rank.api.init(rank.ranks, *id, rank.rank);
        let count = [100, 5_000, 200_000][round % 3];
        let root = (round % rank.ranks) as c_int;
        let (mut send, mut recv) = (vec![round as i32 + 1; count], vec![0i32; count * rank.ranks]);
        let (from, to) = (send.as_mut_ptr().cast(), recv.as_mut_ptr().cast());
        if round % 2 == 0 {
            let code = unsafe { (rank.api.ncclBroadcast)(from, to, count, INT32, root, comm, null_mut()) };
            rank.api.ok(code);
            assert!(recv[..count].iter().all(|value| *value == round as i32 + 1), "round {round}");
        } else {
            let code = unsafe { (rank.api.ncclGather)(from, to, count, INT32, root, comm, null_mut()) };
            rank.api.ok(code);
            let got = recv.iter().filter(|value| **value == round as i32 + 1).count();
            assert_eq!(got, if rank.rank as c_int == root { recv.len() } else { 0 }, "round {round}");
        }
        rank.api.destroy(comm);
    }
}

/// An abort in the middle of a call is the aborting rank's, also for ranks of other hosts.
#[test]
fn who_aborts_is_named_on_other_hosts() {
    for count in ["10", "500000"] {
        let cluster = Cluster::new(3, 1).hosts(3).argument(count).env("ACCL_TIMEOUT", 20);
        cluster.run("abort_in_a_call");
    }
}

fn abort_in_a_call(rank: Rank) {
    let (api, comm) = (rank.api, rank.join());
    let count: usize = rank.argument.parse().unwrap();
    let (send, mut recv) = (vec![1i32; count], vec![0i32; count]);
    if rank.rank == 2 {
        let handle = comm as usize;
        std::thread::spawn(move || {
            std::thread::sleep(Duration::from_millis(100));
            unsafe { (api.ncclCommAbort)(handle as Comm) };
        });
    }
    let code = loop {
        let code = api.all_reduce(&send, &mut recv, INT32, SUM, comm);
        if code != SUCCESS {
            break code;
        }
    };
    if rank.rank != 2 {
        assert_eq!(code, REMOTE_ERROR, "{}", api.error_text());
        let text = api.error_text();
        assert!(text.contains("rank 2 (process") && text.contains("aborted the communicator"), "{text}");
        unsafe { (api.ncclCommAbort)(comm) };
    } else {
        std::thread::sleep(Duration::from_millis(300));
    }
}
