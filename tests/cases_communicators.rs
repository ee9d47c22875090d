//! Communicators, groups and threads in situations that users have reported; what ends and what goes wrong.

// Helpers of tests fail by panicking.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]
// Every call here is a call of the C interface with arguments that the test keeps alive.
#![allow(clippy::undocumented_unsafe_blocks)]

mod support;

use std::ffi::c_int;
use std::ptr::null_mut;
use std::sync::Barrier;
use std::time::{Duration, Instant};
use support::api::{
    Comm, IN_PROGRESS, INT32, INVALID_ARGUMENT, INVALID_USAGE, REMOTE_ERROR, SUCCESS, SUM, TIMEOUT, UniqueId,
    api,
};
use support::cluster::{Cluster, Rank, Scenario, work};
use support::oracle::mix;
use support::snapshot::{Snapshot, cpu_seconds, memory_bytes};

const SCENARIOS: [(&str, Scenario); 25] = [
    ("several_ids", several_ids),
    ("settings_differ", settings_differ),
    ("nonblocking", nonblocking),
    ("abort_while_joining", abort_while_joining),
    ("spent_by_an_argument", spent_by_an_argument),
    ("opposite_order_threads", opposite_order_threads),
    ("opposite_order_streams", opposite_order_streams),
    ("one_thread_many_ranks", one_thread_many_ranks),
    ("twenty_communicators", twenty_communicators),
    ("failed_group", failed_group),
    ("eight_at_once", eight_at_once),
    ("used_twice", used_twice),
    ("two_hundred_lives", two_hundred_lives),
    ("sixty_four", sixty_four),
    ("rank_that_never_comes", rank_that_never_comes),
    ("same_rank_twice", same_rank_twice),
    ("numbers_differ", numbers_differ),
    ("calls_differ", calls_differ),
    ("killed", killed),
    ("aborted", aborted),
    ("footprint", footprint),
    ("legal_variety", legal_variety),
    ("send_and_leave", send_and_leave),
    ("many_counts", many_counts),
    ("splits_of_a_group", splits_of_a_group),
];

#[test]
fn worker() {
    work(&SCENARIOS);
}

fn split(api: &support::api::Api, comm: Comm, color: usize, key: usize) -> Comm {
    let mut child = null_mut();
    api.ok(unsafe { (api.ncclCommSplit)(comm, color as c_int, key as c_int, &raw mut child, null_mut()) });
    child
}

/// C16: two communicators used in opposite order, by two threads, and by one thread with two streams.
#[test]
fn c16_opposite_order() {
    Cluster::new(2, 1).ids(2).run("opposite_order_threads");
    Cluster::new(2, 1).ids(2).run("opposite_order_streams");
    Cluster::new(1, 2).ids(2).run("opposite_order_streams");
}

fn opposite_order_threads(rank: Rank) {
    let api = rank.api;
    let comms: Vec<usize> = rank.ids.iter().map(|id| api.init(2, *id, rank.rank) as usize).collect();
    let together = Barrier::new(2);
    std::thread::scope(|scope| {
        for thread in 0..2 {
            // Thread 0 of rank 0 begins with communicator 0, that of rank 1 with communicator 1.
            let comm = comms[thread ^ rank.rank] as Comm as usize;
            let together = &together;
            scope.spawn(move || {
                for round in 0..500u64 {
                    together.wait();
                    if thread == 1 {
                        std::thread::sleep(Duration::from_micros(mix(round * 2 + rank.rank as u64) % 60));
                    }
                    assert_eq!(api.sum(round as i32, comm as Comm), 2 * round as i32);
                }
            });
        }
    });
    comms.into_iter().for_each(|comm| api.destroy(comm as Comm));
}

fn opposite_order_streams(rank: Rank) {
    let api = rank.api;
    let comms: Vec<Comm> = rank.ids.iter().map(|id| api.init(2, *id, rank.rank)).collect();
    let streams = [api.stream(), api.stream()];
    for round in 0..500i32 {
        let data = [vec![round; 300], vec![-round; 5000]];
        let mut sums = [vec![0; 300], vec![0; 5000]];
        for step in 0..2 {
            let which = step ^ rank.rank;
            api.ok(api.all_reduce_on(
                &data[which],
                &mut sums[which],
                INT32,
                SUM,
                comms[which],
                streams[which],
            ));
        }
        for stream in streams {
            api.ok(unsafe { (api.acclStreamSynchronize)(stream) });
        }
        assert!(sums[0].iter().all(|sum| *sum == 2 * round) && sums[1].iter().all(|sum| *sum == -2 * round));
    }
    streams.into_iter().for_each(|stream| api.ok(unsafe { (api.acclStreamDestroy)(stream) }));
    comms.into_iter().for_each(|comm| api.destroy(comm));
}

/// C17: ranks as threads are in the sweep. Here: one thread that drives four ranks, alone and beside another
/// process, and twenty communicators of twenty threads.
#[test]
fn c17_threads() {
    Cluster::new(1, 1).run("one_thread_many_ranks");
    Cluster::new(2, 1).run("one_thread_many_ranks");
    Cluster::new(2, 1).ids(20).run("twenty_communicators");
}

fn one_thread_many_ranks(rank: Rank) {
    let (api, own) = (rank.api, 4);
    let ranks = own * rank.ranks;
    let mut comms = vec![null_mut(); own];
    api.ok(api.group(|| {
        for (index, comm) in comms.iter_mut().enumerate() {
            let number = (rank.rank * own + index) as c_int;
            api.ok(unsafe { (api.ncclCommInitRank)(comm, ranks as c_int, rank.ids[0], number) });
        }
    }));
    for count in [1usize, 1000, 300_000] {
        let inputs: Vec<Vec<i32>> =
            (0..own).map(|index| vec![(rank.rank * own + index) as i32; count]).collect();
        let mut outputs = vec![vec![-1; count]; own];
        api.ok(api.group(|| {
            for index in 0..own {
                api.ok(api.all_reduce(&inputs[index], &mut outputs[index], INT32, SUM, comms[index]));
            }
        }));
        let expected = (ranks * (ranks - 1) / 2) as i32;
        assert!(outputs.iter().flatten().all(|sum| *sum == expected), "count {count}");
        // Around the ring, all four ranks in one group.
        let mut received = vec![vec![-1; count]; own];
        api.ok(api.group(|| {
            for index in 0..own {
                let me = rank.rank * own + index;
                api.ok(api.send(&inputs[index], (me + 1) % ranks, comms[index]));
                api.ok(api.recv(&mut received[index], (me + ranks - 1) % ranks, comms[index]));
            }
        }));
        for (index, got) in received.iter().enumerate() {
            let left = (rank.rank * own + index + ranks - 1) % ranks;
            assert!(got.iter().all(|value| *value == left as i32));
        }
    }
    let mut children = vec![null_mut(); own];
    api.ok(api.group(|| {
        for (index, child) in children.iter_mut().enumerate() {
            let code =
                unsafe { (api.ncclCommSplit)(comms[index], (index % 2) as c_int, 0, child, null_mut()) };
            api.ok(code);
        }
    }));
    let mut sums = vec![[0]; own];
    api.ok(api.group(|| {
        for index in 0..own {
            api.ok(api.all_reduce(&[1], &mut sums[index], INT32, SUM, children[index]));
        }
    }));
    assert!(sums.iter().all(|sum| sum[0] as usize == ranks / 2));
    comms.into_iter().chain(children).for_each(|comm| api.destroy(comm));
    // All ranks of a communicator at once.
    let mut comms = vec![null_mut(); 3];
    api.ok(unsafe { (api.ncclCommInitAll)(comms.as_mut_ptr(), 3, std::ptr::null()) });
    let (values, mut sums) = ([[0i32], [1], [2]], [[0]; 3]);
    api.ok(api.group(|| {
        for index in 0..3 {
            api.ok(api.all_reduce(&values[index], &mut sums[index], INT32, SUM, comms[index]));
        }
    }));
    assert_eq!(sums, [[3], [3], [3]]);
    comms.into_iter().for_each(|comm| api.destroy(comm));
}

fn twenty_communicators(rank: Rank) {
    std::thread::scope(|scope| {
        for (number, id) in rank.ids.iter().enumerate() {
            scope.spawn(move || {
                let comm = rank.api.init(rank.ranks, *id, rank.rank);
                for round in 0..50 {
                    let value = (number * 1000 + round) as i32;
                    assert_eq!(rank.api.sum(value, comm), value * rank.ranks as i32);
                }
                rank.api.destroy(comm);
            });
        }
    });
}

/// C18: a failed group runs none of its calls, and leaves nothing behind.
#[test]
fn c18_failed_groups() {
    Cluster::new(3, 1).run("failed_group");
}

fn failed_group(rank: Rank) {
    let api = rank.api;
    assert_eq!(unsafe { (api.ncclGroupEnd)() }, INVALID_USAGE);
    assert!(api.error_text().contains("GroupStart"), "{}", api.error_text());
    let comm = rank.join();
    let mut sums = [[-1], [-1], [-1]];
    let code = api.group(|| {
        let [a, b, c] = &mut sums;
        api.ok(api.all_reduce(&[1], a, INT32, SUM, comm));
        api.ok(api.group(|| api.ok(api.all_reduce(&[1], b, INT32, SUM, comm))));
        assert_eq!(api.all_reduce(&[1], &mut [0], 99, SUM, comm), INVALID_ARGUMENT);
        api.ok(api.all_reduce(&[1], c, INT32, SUM, comm));
    });
    assert_eq!(code, INVALID_ARGUMENT);
    assert_eq!(sums, [[-1]; 3], "a call of a failed group ran");
    assert_eq!(api.async_error(comm), SUCCESS);
    let code = api.group(|| {
        for sum in &mut sums {
            api.ok(api.all_reduce(&[2], sum, INT32, SUM, comm));
        }
    });
    api.ok(code);
    assert_eq!(sums, [[6]; 3]);
    api.ok(api.group(|| {}));
    api.destroy(comm);
}

/// C19: ids at once, used twice, dead, damaged.
#[test]
fn c19_ids() {
    Cluster::new(4, 1).ids(8).run("eight_at_once");
    Cluster::new(2, 1).run("used_twice");

    let mut damaged = api().unique_id();
    damaged.0[17] ^= 1;
    let mut comm = null_mut();
    assert_eq!(unsafe { (api().ncclCommInitRank)(&raw mut comm, 1, damaged, 0) }, INVALID_ARGUMENT);
    assert!(api().error_text().contains("not a valid unique id"), "{}", api().error_text());
    assert!(comm.is_null());

    // An id whose creator has ended.
    let text = Cluster::new(1, 1).argument("dead").run("used_twice").remove(0);
    let hex = text.lines().find_map(|line| line.strip_prefix("ID ")).unwrap();
    let mut dead = UniqueId([0; 128]);
    for (index, byte) in dead.0.iter_mut().enumerate() {
        *byte = u8::from_str_radix(&hex[2 * index..2 * index + 2], 16).unwrap();
    }
    assert_eq!(unsafe { (api().ncclCommInitRank)(&raw mut comm, 2, dead, 0) }, REMOTE_ERROR);
    assert!(api().error_text().contains("is gone"), "{}", api().error_text());
}

/// Several ids for one communicator, made by different ranks or not.
#[test]
fn one_communicator_by_several_ids() {
    Cluster::new(3, 1).ids(3).run("several_ids");
    // So many that they get their list from each other, on both sides.
    Cluster::new(10, 4).ids(3).run("several_ids");
}

fn several_ids(rank: Rank) {
    let api = rank.api;
    let (mut comm, ranks) = (null_mut(), rank.ranks as c_int);
    let code = unsafe {
        (api.ncclCommInitRankScalable)(
            &raw mut comm,
            ranks,
            rank.rank as c_int,
            3,
            rank.ids.as_ptr(),
            null_mut(),
        )
    };
    api.ok(code);
    assert_eq!(api.sum(rank.rank as i32, comm), ranks * (ranks - 1) / 2);
    api.destroy(comm);
    for count in [0, 4] {
        let code = unsafe {
            (api.ncclCommInitRankScalable)(&raw mut comm, 3, 0, count, rank.ids.as_ptr(), null_mut())
        };
        assert_eq!(code, INVALID_ARGUMENT);
    }
}

fn eight_at_once(rank: Rank) {
    twenty_communicators(rank);
}

fn used_twice(rank: Rank) {
    let api = rank.api;
    if rank.argument == "dead" {
        let hex: String = api.unique_id().0.iter().map(|byte| format!("{byte:02x}")).collect();
        eprintln!("ID {hex}");
        return;
    }
    let comm = rank.join();
    assert_eq!(api.sum(1, comm), 2);
    let mut second = null_mut();
    let code = unsafe { (api.ncclCommInitRank)(&raw mut second, 2, rank.ids[0], rank.rank as c_int) };
    assert_eq!(code, INVALID_USAGE);
    assert!(api.error_text().contains("already used"), "{}", api.error_text());
    assert!(second.is_null());
    assert_eq!(api.sum(1, comm), 2);
    api.destroy(comm);
}

/// C20: two hundred lives leave nothing behind.
#[test]
fn c20_two_hundred_lives() {
    Cluster::new(4, 1).ids(200).run("two_hundred_lives");
    Cluster::new(2, 2).ids(60).run("two_hundred_lives");
}

fn two_hundred_lives(rank: Rank) {
    let (api, n) = (rank.api, rank.ranks);
    let mut snapshots = Vec::new();
    let mut memory = Vec::new();
    for (cycle, id) in rank.ids.iter().enumerate() {
        let comm = api.init(n, *id, rank.rank);
        let (send, mut recv) = (vec![1i32; 3000], vec![0i32; 3000 * n]);
        let (from, to) = (send.as_ptr().cast_mut().cast(), recv.as_mut_ptr().cast());
        unsafe {
            api.ok((api.ncclAllReduce)(from, to, 3000, INT32, SUM, comm, null_mut()));
            api.ok((api.ncclAllGather)(from, to, 3000, INT32, comm, null_mut()));
            api.ok((api.ncclReduceScatter)(from, to, 3000 / n, INT32, SUM, comm, null_mut()));
            api.ok((api.ncclBroadcast)(from, to, 3000, INT32, cycle as c_int % n as c_int, comm, null_mut()));
            api.ok((api.ncclAlltoAll)(from, to, 3000 / n, INT32, comm, null_mut()));
        }
        let child = split(api, comm, rank.rank % 2, 0);
        assert_eq!(api.sum(1, child), (n / 2) as i32);
        api.destroy(child);
        // With several ranks a process, the last of them has let go when all have.
        assert_eq!(api.sum(1, comm), n as i32);
        api.destroy(comm);
        if cycle == 20 || cycle + 1 == rank.ids.len() {
            std::thread::sleep(Duration::from_millis(200));
            snapshots.push(Snapshot::take());
            memory.push(memory_bytes());
        }
    }
    if std::env::var("TEST_SHAPE").unwrap().ends_with(",1") {
        assert_eq!(snapshots[0], snapshots[1]);
        assert_eq!(snapshots[1].shared_mappings, 0);
    }
    assert!(memory[1] < memory[0] + (2 << 20), "memory grew from {} to {}", memory[0], memory[1]);
}

/// C21: sixty-four communicators in a row, thirty times.
#[test]
fn c21_sixty_four_communicators() {
    let mut longest: f64 = 0.0;
    for start in 0..30 {
        let texts = Cluster::new(4, 1).argument(start).run("sixty_four");
        let seconds = texts[0].lines().find_map(|line| line.strip_prefix("SECONDS ")).unwrap();
        longest = longest.max(seconds.parse().unwrap());
    }
    println!("at most {:.2} ms a communicator", longest * 1000.0 / 64.0);
}

fn sixty_four(rank: Rank) {
    let (api, n, me) = (rank.api, rank.ranks, rank.rank);
    let world = rank.join();
    let started = Instant::now();
    // Over all, pairs, halves and singles; each is known with its size.
    let comms: Vec<(Comm, i32)> = (0..64)
        .map(|index| match index % 4 {
            0 => (split(api, world, 0, me), n as i32),
            1 => (split(api, world, (me + index / 4) % n / 2, me), (n / 2) as i32),
            2 => (split(api, world, me % 2, n - me), (n / 2) as i32),
            _ => (split(api, world, me, 0), 1),
        })
        .collect();
    eprintln!("SECONDS {}", started.elapsed().as_secs_f64());
    let start: u64 = rank.argument.parse().unwrap();
    let mut order: Vec<usize> = (0..64).collect();
    order.sort_by_key(|index| mix(start << 8 | *index as u64));
    for index in order {
        assert_eq!(api.sum(1, comms[index].0), comms[index].1, "communicator {index}");
    }
    comms.into_iter().for_each(|(comm, _)| api.destroy(comm));
    // Without a colour there is nothing to get.
    let mut child = 1 as Comm;
    let color = if me == 0 { -1 } else { 7 };
    api.ok(unsafe { (api.ncclCommSplit)(world, color, 0, &raw mut child, null_mut()) });
    assert_eq!(child.is_null(), me == 0);
    if me > 0 {
        assert_eq!(api.sum(1, child), n as i32 - 1);
        api.destroy(child);
    }
    api.destroy(world);
}

/// A rank that never comes is named when the time is up, to all who came, also to one who comes later.
#[test]
fn ranks_that_never_come_are_named() {
    let started = Instant::now();
    Cluster::new(3, 1).env("ACCL_INIT_TIMEOUT", 1).run("rank_that_never_comes");
    assert!(started.elapsed() < Duration::from_secs(15));
}

fn rank_that_never_comes(rank: Rank) {
    let api = rank.api;
    if rank.rank == 2 {
        std::thread::sleep(Duration::from_secs(3));
    }
    let mut comm = null_mut();
    let number = [0, 3, 1][rank.rank];
    let code = unsafe { (api.ncclCommInitRank)(&raw mut comm, 6, rank.ids[0], number) };
    assert_eq!(code, TIMEOUT);
    assert!(api.error_text().contains("ranks 1-2,4-5 of 6 did not come"), "{}", api.error_text());
    assert!(comm.is_null());
}

#[test]
fn wrong_numbers_are_everybodys_error() {
    Cluster::new(2, 1).run("same_rank_twice");
    Cluster::new(2, 1).run("numbers_differ");
}

fn same_rank_twice(rank: Rank) {
    let mut comm = null_mut();
    let code = unsafe { (rank.api.ncclCommInitRank)(&raw mut comm, 3, rank.ids[0], 1) };
    assert_eq!(code, INVALID_USAGE);
    assert!(
        rank.api.error_text().contains("rank 1 was claimed twice, by process"),
        "{}",
        rank.api.error_text()
    );
}

fn numbers_differ(rank: Rank) {
    let mut comm = null_mut();
    let (ranks, number) = (3 + rank.rank as c_int, rank.rank as c_int);
    let code = unsafe { (rank.api.ncclCommInitRank)(&raw mut comm, ranks, rank.ids[0], number) };
    assert_eq!(code, INVALID_USAGE);
    assert!(rank.api.error_text().contains("disagree on their number"), "{}", rank.api.error_text());
}

/// Calls that differ are an error on every rank, with both calls and who made them; no memory is written.
#[test]
fn calls_that_differ_are_everybodys_error() {
    for what in ["count", "type", "op", "kind", "root", "large"] {
        Cluster::new(3, 1).argument(what).run("calls_differ");
    }
}

fn calls_differ(rank: Rank) {
    let api = rank.api;
    let comm = rank.join();
    assert_eq!(api.sum(1, comm), 3);
    let odd = rank.rank == 1;
    let (send, mut recv) = (vec![1i32; 400_000], vec![-1i32; 400_000]);
    let (from, to) = (send.as_ptr().cast_mut().cast(), recv.as_mut_ptr().cast());
    let large = if rank.argument == "large" { 100_000 } else { 100 };
    let (count, dtype, op, root) = match rank.argument {
        "count" | "large" => (large + usize::from(odd), INT32, SUM, 0),
        "type" => (100, if odd { 3 } else { INT32 }, SUM, 0),
        "op" => (100, INT32, c_int::from(odd), 0),
        "root" => (100, INT32, SUM, c_int::from(odd)),
        _ => (100, INT32, SUM, 0),
    };
    let code = unsafe {
        match rank.argument {
            "root" => (api.ncclReduce)(from, to, count, dtype, op, root, comm, null_mut()),
            "kind" if odd => (api.ncclAllGather)(from, to, count, dtype, comm, null_mut()),
            _ => (api.ncclAllReduce)(from, to, count, dtype, op, comm, null_mut()),
        }
    };
    // A rank that gives to a root and waits for nobody hears of it later.
    let started = Instant::now();
    while api.async_error(comm) == SUCCESS && started.elapsed() < Duration::from_secs(10) {
        std::thread::sleep(Duration::from_millis(1));
    }
    assert_eq!(api.async_error(comm), INVALID_USAGE);
    if rank.argument != "root" {
        assert_eq!(code, INVALID_USAGE);
        let text = api.error_text();
        assert!(text.contains("rank 1: ") && text.contains("collective #2"), "{text}");
        assert!(recv.iter().all(|value| *value == -1));
    }
    api.destroy(comm);
}

/// Settings that decide how an operation is carried out are compared with the call.
#[test]
fn settings_that_differ_are_everybodys_error() {
    for setting in [
        "ACCL_ALGO=ring",
        "ACCL_EXCHANGE_BYTES=0",
        "ACCL_SEGMENT_BYTES=4K",
        "ACCL_FLAT_BYTES=1G",
        "ACCL_PASS_BYTES=100",
        "ACCL_STAGE_BYTES=100",
    ] {
        println!("{setting}");
        // What the others do must not depend on the machine.
        let others = [("ACCL_STAGE_BYTES", "1G"), ("ACCL_PASS_BYTES", "1G"), ("ACCL_FLAT_BYTES", "0")];
        let cluster = Cluster::new(3, 1).argument(setting);
        others.iter().fold(cluster, |cluster, (name, value)| cluster.env(name, value)).run("settings_differ");
    }
}

fn settings_differ(rank: Rank) {
    let api = rank.api;
    let (name, value) = rank.argument.split_once('=').unwrap();
    if rank.rank == 2 {
        // SAFETY: this process has one thread that looks at its environment.
        unsafe { std::env::set_var(name, value) };
    }
    let comm = rank.join();
    // Small enough for the one-step path, or large enough for what the others decide.
    let count = if ["ACCL_ALGO", "ACCL_EXCHANGE_BYTES"].contains(&name) { 100 } else { 100_000 };
    let (send, mut recv) = (vec![1i32; count], vec![-1i32; count]);
    assert_eq!(api.all_reduce(&send, &mut recv, INT32, SUM, comm), INVALID_USAGE);
    assert!(api.error_text().contains("settings differ"), "{}", api.error_text());
    assert!(recv.iter().all(|value| *value == -1));
    api.destroy(comm);
}

/// A rank that is killed is an error at the others within a second or so, by name; then everything can be ended.
#[test]
fn a_killed_rank_is_named() {
    for threads in [1, 2] {
        let ended = Cluster::new(3, threads).run_to_end("killed");
        for (process, end) in ended.iter().enumerate() {
            let expected = if process == 1 { None } else { Some(0) };
            assert_eq!(end.code, expected, "process {process}:\n{}", end.stderr);
        }
    }
}

fn killed(rank: Rank) {
    let api = rank.api;
    let comm = rank.join();
    assert_eq!(api.sum(1, comm), rank.ranks as i32);
    if rank.rank == 1 {
        std::thread::sleep(Duration::from_millis(200));
        unsafe { libc::kill(libc::getpid(), libc::SIGKILL) };
    }
    let started = Instant::now();
    let (send, mut recv) = (vec![1i32; 1000], vec![0i32; 1000]);
    let code = api.all_reduce(&send, &mut recv, INT32, SUM, comm);
    if rank.rank == 4 {
        // A thread of the killed process does not get here.
        return;
    }
    assert_eq!(code, REMOTE_ERROR);
    assert!(started.elapsed() < Duration::from_secs(3), "{:?}", started.elapsed());
    let text = api.error_text();
    assert!(text.contains("rank 1 (process ") || text.contains("rank 4 (process "), "{text}");
    assert_eq!(api.async_error(comm), REMOTE_ERROR);
    assert_eq!(api.all_reduce(&send, &mut recv, INT32, SUM, comm), REMOTE_ERROR);
    let started = Instant::now();
    api.destroy(comm);
    assert!(started.elapsed() < Duration::from_secs(2));
}

/// An abort from another thread ends a blocked call, and needs nobody.
#[test]
fn abort_ends_a_blocked_call() {
    Cluster::new(2, 1).run("aborted");
}

fn aborted(rank: Rank) {
    let api = rank.api;
    let comm = rank.join() as usize;
    if rank.rank == 1 {
        // Never makes the call that rank 0 waits in, and hears of its end.
        std::thread::sleep(Duration::from_millis(700));
        let code = api.all_reduce(&vec![1i32; 100_000], &mut vec![0; 100_000], INT32, SUM, comm as Comm);
        assert_eq!(code, REMOTE_ERROR, "{}", api.error_text());
        assert!(api.error_text().contains("rank 0"), "{}", api.error_text());
        api.destroy(comm as Comm);
        return;
    }
    for streamed in [false, true] {
        let blocked = std::thread::spawn(move || {
            let (data, mut sum) = (vec![1i32; 100_000], vec![0i32; 100_000]);
            let stream = if streamed { api.stream() } else { null_mut() };
            let code = api.all_reduce_on(&data, &mut sum, INT32, SUM, comm as Comm, stream);
            if streamed { unsafe { (api.acclStreamSynchronize)(stream) } } else { code }
        });
        if streamed {
            // The handle is gone after the first abort.
            assert_eq!(blocked.join().unwrap(), SUCCESS);
            assert!(api.error_text().contains("was aborted"), "{}", api.error_text());
        } else {
            std::thread::sleep(Duration::from_millis(200));
            let started = Instant::now();
            api.ok(unsafe { (api.ncclCommAbort)(comm as Comm) });
            assert!(started.elapsed() < Duration::from_secs(1));
            assert_ne!(blocked.join().unwrap(), SUCCESS);
        }
    }
}

/// What two ranks cost: memory after init, after use, and CPU time of one that waits.
#[test]
fn footprint_is_small() {
    let texts = Cluster::new(2, 1).run("footprint");
    println!(
        "{}",
        texts.concat().lines().filter(|line| line.starts_with("FOOT")).collect::<Vec<_>>().join("\n")
    );
}

fn footprint(rank: Rank) {
    let api = rank.api;
    // The library's own pages count once, before.
    api.destroy(api.init(1, api.unique_id(), 0));
    let before = memory_bytes();
    let comm = rank.join();
    let after_init = memory_bytes().saturating_sub(before);
    let (send, mut recv) = (vec![1i32; 1 << 20], vec![0i32; 1 << 20]);
    let with_buffers = memory_bytes();
    for count in [1, 1000, 1 << 20] {
        api.ok(api.all_reduce(&send[..count], &mut recv[..count], INT32, SUM, comm));
    }
    let after_use = memory_bytes().saturating_sub(with_buffers);
    assert!(after_init < 4 << 20, "{after_init} bytes after init");
    let cpu = cpu_seconds();
    if rank.rank == 0 {
        std::thread::sleep(Duration::from_secs(2));
    }
    assert_eq!(api.sum(1, comm), 2);
    let waited = cpu_seconds() - cpu;
    assert!(waited < 0.2, "waiting two seconds took {waited} s of CPU time");
    eprintln!(
        "FOOTPRINT rank {}: {after_init} bytes after init, {after_use} more after use, {waited:.3} CPU s",
        rank.rank
    );
    api.destroy(comm);
}

/// C39: what may differ between ranks does.
#[test]
fn c39_legal_variety() {
    for text in Cluster::new(4, 1).env("ACCL_WARN_AFTER", 5).run("legal_variety") {
        assert!(!text.contains("WARN"), "{text}");
    }
}

fn legal_variety(rank: Rank) {
    let (api, me) = (rank.api, rank.rank);
    let comm = rank.join();
    let stream = api.stream();
    for round in 0..200i32 {
        let count = [3, 900, 50_000][round as usize % 3];
        let mut memory = vec![round + me as i32; count + 8];
        let data = &mut memory[me..me + count];
        let mut other = vec![0; count];
        let in_place = (round as usize + me).is_multiple_of(2);
        let start = data.as_mut_ptr();
        let to = if in_place { start } else { other.as_mut_ptr() };
        let on = if (round as usize / 2 + me).is_multiple_of(3) { stream } else { null_mut() };
        let call = || unsafe { (api.ncclAllReduce)(start.cast(), to.cast(), count, INT32, SUM, comm, on) };
        if (round as usize + me).is_multiple_of(5) {
            api.ok(api.group(|| api.ok(call())));
        } else {
            api.ok(call());
        }
        api.ok(unsafe { (api.acclStreamSynchronize)(stream) });
        let got = if in_place { &memory[me..me + count] } else { &other[..] };
        assert!(got.iter().all(|value| *value == 4 * round + 6), "round {round}");
    }
    api.ok(unsafe { (api.acclStreamDestroy)(stream) });
    api.destroy(comm);
}

/// A rank that sends, or gives to a root, and leaves at once loses no data.
#[test]
fn what_was_sent_outlives_its_sender() {
    Cluster::new(2, 1).run("send_and_leave");
}

fn send_and_leave(rank: Rank) {
    let api = rank.api;
    let comm = rank.join();
    if rank.rank == 0 {
        api.ok(api.send(&[5u8; 50_000], 1, comm));
        let mut value = [77i32];
        let start = value.as_mut_ptr().cast();
        api.ok(unsafe { (api.ncclBcast)(start, 1, INT32, 0, comm, null_mut()) });
        api.destroy(comm);
        return;
    }
    std::thread::sleep(Duration::from_millis(800));
    let mut got = [0u8; 50_000];
    api.ok(api.recv(&mut got, 0, comm));
    assert_eq!(got, [5; 50_000]);
    let mut value = [0i32];
    let start = value.as_mut_ptr().cast();
    api.ok(unsafe { (api.ncclBcast)(start, 1, INT32, 0, comm, null_mut()) });
    assert_eq!(value, [77]);
    api.destroy(comm);
}

/// The configuration of the oldest release that had one, for a communicator that does not block.
#[repr(C)]
struct OldConfig {
    size: usize,
    magic: u32,
    version: u32,
    blocking: c_int,
}

fn join_without_blocking(rank: &Rank, ranks: usize) -> Comm {
    let mut config = OldConfig { size: 24, magic: 0xcafe_beef, version: 21403, blocking: 0 };
    let mut comm = null_mut();
    let code = unsafe {
        let config = (&raw mut config).cast();
        (rank.api.ncclCommInitRankConfig)(
            &raw mut comm,
            ranks as c_int,
            rank.ids[0],
            rank.rank as c_int,
            config,
        )
    };
    assert!(code == SUCCESS || code == IN_PROGRESS, "{code}");
    assert!(!comm.is_null());
    comm
}

fn settled(rank: &Rank, comm: Comm) -> c_int {
    let started = Instant::now();
    while rank.api.async_error(comm) == IN_PROGRESS && started.elapsed() < Duration::from_secs(10) {
        std::thread::sleep(Duration::from_millis(1));
    }
    rank.api.async_error(comm)
}

/// Communicators that do not block: joining, splitting and ending in the background.
#[test]
fn communicators_that_do_not_block() {
    Cluster::new(3, 1).run("nonblocking");
    Cluster::new(1, 3).run("nonblocking");
    Cluster::new(1, 1).run("abort_while_joining");
    Cluster::new(2, 1).run("spent_by_an_argument");
}

fn nonblocking(rank: Rank) {
    let api = rank.api;
    if rank.rank == 1 {
        std::thread::sleep(Duration::from_millis(300));
    }
    let comm = join_without_blocking(&rank, rank.ranks);
    if rank.rank == 0 {
        assert_eq!(api.async_error(comm), IN_PROGRESS);
        let code = api.all_reduce(&[1], &mut [0], INT32, SUM, comm);
        assert_eq!(code, INVALID_ARGUMENT, "a call before the ranks have joined");
    }
    // The failed call has spoiled rank 0's communicator, as with NCCL: it can only be aborted.
    if rank.rank == 0 {
        assert_eq!(settled(&rank, comm), INVALID_ARGUMENT);
        api.ok(unsafe { (api.ncclCommAbort)(comm) });
        return;
    }
    assert_eq!(settled(&rank, comm), REMOTE_ERROR);
    let code = api.all_reduce(&[1], &mut [0], INT32, SUM, comm);
    assert_eq!(code, REMOTE_ERROR);
    assert!(api.error_text().contains("rank 0 (process "), "{}", api.error_text());
    api.destroy(comm);
}

fn abort_while_joining(rank: Rank) {
    let comm = join_without_blocking(&rank, 4);
    std::thread::sleep(Duration::from_millis(50));
    assert_eq!(rank.api.async_error(comm), IN_PROGRESS);
    let started = Instant::now();
    rank.api.ok(unsafe { (rank.api.ncclCommAbort)(comm) });
    assert!(started.elapsed() < Duration::from_secs(2));
}

fn spent_by_an_argument(rank: Rank) {
    let api = rank.api;
    let comm = join_without_blocking(&rank, rank.ranks);
    assert_eq!(settled(&rank, comm), SUCCESS);
    assert_eq!(api.sum(1, comm), 2);
    let mut child = null_mut();
    let code = unsafe { (api.ncclCommSplit)(comm, 0, 0, &raw mut child, null_mut()) };
    assert!(code == SUCCESS || code == IN_PROGRESS);
    assert_eq!(settled(&rank, comm), SUCCESS);
    assert!(!child.is_null());
    assert_eq!(settled(&rank, child), SUCCESS);
    assert_eq!(api.sum(2, child), 4);
    assert!(matches!(unsafe { (api.ncclCommFinalize)(child) }, SUCCESS | IN_PROGRESS));
    assert_eq!(settled(&rank, child), SUCCESS);
    api.destroy(child);
    assert_eq!(api.all_reduce(&[1], &mut [0], 77, SUM, comm), INVALID_ARGUMENT);
    assert_eq!(api.async_error(comm), INVALID_ARGUMENT);
    assert_eq!(api.all_reduce(&[1], &mut [0], INT32, SUM, comm), INVALID_ARGUMENT);
    api.ok(unsafe { (api.ncclCommAbort)(comm) });
}

/// Counts beyond 2³¹ elements and 2³² bytes. Needs 9 GiB of memory: with `ACCL_LARGE=1`, in the nightly set.
#[test]
fn counts_beyond_32_bits() {
    if std::env::var("ACCL_LARGE").is_ok() {
        Cluster::new(1, 2).limit(600).run("many_counts");
    } else {
        println!("SKIPPED: set ACCL_LARGE=1 to run it (9 GiB of memory)");
    }
}

fn many_counts(rank: Rank) {
    let api = rank.api;
    let comm = rank.join();
    let count = (1usize << 32) + 3;
    let mut data = vec![rank.rank as u8 + 1; count];
    for index in [0, (1 << 31) - 1, 1 << 31, (1 << 32) - 1, 1 << 32, count - 1] {
        data[index] = 40 + rank.rank as u8;
    }
    let start = data.as_mut_ptr().cast();
    api.ok(unsafe { (api.ncclAllReduce)(start, start, count, 1, SUM, comm, null_mut()) });
    let marked =
        |index: usize| [0, (1 << 31) - 1, 1 << 31, (1 << 32) - 1, 1 << 32, count - 1].contains(&index);
    let wrong = (0..count).find(|index| data[*index] != if marked(*index) { 81 } else { 3 });
    assert_eq!(wrong, None);
    // Overflowing counts are refused, not wrapped.
    let code = unsafe { (api.ncclAllReduce)(start, start, usize::MAX / 4, 7, SUM, comm, null_mut()) };
    assert_eq!(code, INVALID_ARGUMENT);
    if rank.rank == 0 {
        api.ok(api.send(&data, 1, comm));
    } else {
        data.fill(0);
        api.ok(api.recv(&mut data, 0, comm));
        assert_eq!((data[0], data[1], data[count - 1], data[count - 2]), (81, 3, 81, 3));
    }
    api.destroy(comm);
}

/// Splits of one communicator in one group follow each other in the order of the calls, on every rank.
#[test]
fn splits_of_one_group_are_told_apart() {
    Cluster::new(4, 1).run("splits_of_a_group");
    Cluster::new(1, 4).run("splits_of_a_group");
    Cluster::new(4, 1).hosts(2).run("splits_of_a_group");
}

fn splits_of_a_group(rank: Rank) {
    let (api, me) = (rank.api, rank.rank);
    let world = rank.join();
    for _ in 0..10 {
        let mut children = [null_mut(); 3];
        api.ok(api.group(|| {
            for (child, color) in children.iter_mut().zip([me % 2, 0, me / 3]) {
                api.ok(unsafe { (api.ncclCommSplit)(world, color as c_int, me as c_int, child, null_mut()) });
            }
        }));
        let sizes = [2, 4, if me < 3 { 3 } else { 1 }];
        for (child, size) in children.into_iter().zip(sizes) {
            assert_eq!(api.sum(1, child), size);
            api.destroy(child);
        }
    }
    api.destroy(world);
}
