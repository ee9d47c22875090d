//! Many calls on host streams: whatever lies between them, each sees what those before it have left.

// Helpers of tests fail by panicking.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]
// Every call here is a call of the C interface with arguments that the test keeps alive.
#![allow(clippy::undocumented_unsafe_blocks)]

mod support;

use std::ptr::null_mut;
use support::api::*;
use support::cluster::{Cluster, Rank, Scenario, work};

const SCENARIOS: [(&str, Scenario); 4] = [
    ("mixed", mixed),
    ("several_wait", several_wait),
    ("one_differs", one_differs),
    ("idle_is_quiet", idle_is_quiet),
];

#[test]
fn worker() {
    work(&SCENARIOS);
}

/// A call of the row that all ranks make: the same kind and count, but places of each rank's own choice.
struct Step {
    kind: u64,
    root: usize,
    count: usize,
    /// From where to where, by rank.
    places: Vec<(usize, usize)>,
}

const SLOTS: u64 = 6;
const SLOT_ELEMS: usize = 400;

fn steps(ranks: usize, seed: u64) -> Vec<Step> {
    let mut state = seed;
    let mut random = |below: u64| {
        state = state.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        (state >> 33) % below
    };
    let counts = [1, 2, 8, 9, 100, 400];
    let step = |_| Step {
        kind: random(3),
        root: random(ranks as u64) as usize,
        count: counts[[0, 0, 0, 1, 1, 2, 2, 3, 4, 5][random(10) as usize]],
        places: (0..ranks).map(|_| (random(SLOTS) as usize, random(SLOTS) as usize)).collect(),
    };
    (0..400).map(step).collect()
}

/// What the memory of all ranks holds after a step.
fn carry_out(step: &Step, memory: &mut [Vec<Vec<i32>>]) {
    let inputs: Vec<Vec<i32>> =
        memory.iter().zip(&step.places).map(|(slots, place)| slots[place.0][..step.count].to_vec()).collect();
    let mut sum = vec![0i32; step.count];
    for input in &inputs {
        sum.iter_mut().zip(input).for_each(|(sum, value)| *sum = sum.wrapping_add(*value));
    }
    for (rank, slots) in memory.iter_mut().enumerate() {
        let result = match step.kind {
            0 => &sum,
            1 => &inputs[step.root],
            _ if rank == step.root => &sum,
            _ => continue,
        };
        slots[step.places[rank].1][..step.count].copy_from_slice(result);
    }
}

/// Results that are inputs of later calls, in place or not, of all sizes; sometimes a group, another stream, or none.
#[test]
fn calls_see_what_those_before_them_left() {
    for (processes, threads) in [(2, 1), (1, 2), (3, 1), (2, 2)] {
        Cluster::new(processes, threads).run("mixed");
    }
}

fn mixed(rank: Rank) {
    let (api, me, ranks) = (rank.api, rank.rank, rank.ranks);
    let comm = rank.join();
    let streams = [api.stream(), api.stream()];
    for seed in 0..6u64 {
        let fresh = |rank: usize, slot: u64| -> Vec<i32> {
            (0..SLOT_ELEMS)
                .map(|at| (seed as usize * 7 + rank * 1000 + slot as usize * 31 + at) as i32)
                .collect()
        };
        let mut memory: Vec<Vec<Vec<i32>>> =
            (0..ranks).map(|rank| (0..SLOTS).map(|slot| fresh(rank, slot)).collect()).collect();
        let mut own = memory[me].clone();
        for (number, step) in steps(ranks, seed).iter().enumerate() {
            carry_out(step, &mut memory);
            let place = step.places[me];
            let (from, to) = (own[place.0].as_ptr().cast_mut().cast(), own[place.1].as_mut_ptr().cast());
            // Another stream knows nothing of this one: what it needs is waited for.
            let stream = match number % 97 {
                40 => null_mut(),
                50..70 => streams[1],
                _ => streams[0],
            };
            if matches!(number % 97, 40 | 50 | 70) {
                streams.iter().for_each(|stream| api.ok(unsafe { (api.acclStreamSynchronize)(*stream) }));
            }
            let call = || unsafe {
                let (count, root) = (step.count, step.root as i32);
                api.ok(match step.kind {
                    0 => (api.ncclAllReduce)(from, to, count, INT32, SUM, comm, stream),
                    1 => (api.ncclBroadcast)(from, to, count, INT32, root, comm, stream),
                    _ => (api.ncclReduce)(from, to, count, INT32, SUM, root, comm, stream),
                });
            };
            if number % 13 == 5 { api.ok(api.group(call)) } else { call() }
        }
        streams.iter().for_each(|stream| api.ok(unsafe { (api.acclStreamSynchronize)(*stream) }));
        assert!(own == memory[me], "rank {me}, seed {seed}");
    }
    streams.into_iter().for_each(|stream| api.ok(unsafe { (api.acclStreamDestroy)(stream) }));
    api.destroy(comm);
}

/// Several threads wait for one stream, and all of them hear of its end.
#[test]
fn several_threads_wait_for_a_stream() {
    Cluster::new(2, 1).limit(30).run("several_wait");
}

fn several_wait(rank: Rank) {
    let api = rank.api;
    let (comm, stream) = (rank.join(), api.stream());
    let shared = stream as usize;
    for round in 0..200 {
        let (data, mut sums) = ([round], [0; 50]);
        for sum in sums.chunks_mut(1) {
            api.ok(api.all_reduce_on(&data, sum, INT32, SUM, comm, stream));
        }
        std::thread::scope(|scope| {
            for _ in 0..3 {
                scope.spawn(|| api.ok(unsafe { (api.acclStreamSynchronize)(shared as Stream) }));
            }
        });
        assert!(sums.iter().all(|sum| *sum == 2 * round), "round {round}");
    }
    api.ok(unsafe { (api.acclStreamDestroy)(stream) });
    api.destroy(comm);
}

/// One of many queued calls differs: what was before is done, and the stream says what happened.
#[test]
fn a_call_that_differs_fails_what_is_behind_it() {
    Cluster::new(2, 1).limit(30).run("one_differs");
}

fn one_differs(rank: Rank) {
    let api = rank.api;
    let (comm, stream) = (rank.join(), api.stream());
    let (data, mut sums) = ([3, 4], vec![[0; 2]; 100]);
    for (number, sum) in sums.iter_mut().enumerate() {
        let count = if (number, rank.rank) == (40, 1) { 1 } else { 2 };
        // Once the failure is known, calls say so themselves.
        let code = api.all_reduce_on(&data[..count], sum, INT32, SUM, comm, stream);
        assert!(code == SUCCESS || number > 40, "call {number}: {code}");
    }
    assert_eq!(unsafe { (api.acclStreamSynchronize)(stream) }, INVALID_USAGE);
    assert!(api.error_text().contains("collective #41"), "{}", api.error_text());
    assert!(sums[..40].iter().all(|sum| *sum == [6, 8]));
    assert!(sums[40..].iter().all(|sum| *sum == [0, 0]));
    // The failure was told; the stream serves others.
    assert_eq!(unsafe { (api.acclStreamSynchronize)(stream) }, SUCCESS);
    api.ok(unsafe { (api.ncclCommAbort)(comm) });
}

/// Calls whose peer is late cost no CPU time, however many are queued.
#[test]
fn waiting_streams_are_quiet() {
    Cluster::new(2, 1).limit(30).run("idle_is_quiet");
}

fn idle_is_quiet(rank: Rank) {
    let api = rank.api;
    let (comm, stream) = (rank.join(), api.stream());
    assert_eq!(api.sum(1, comm), 2);
    let (data, mut sums) = ([5], vec![[0]; 2000]);
    if rank.rank == 1 {
        std::thread::sleep(std::time::Duration::from_millis(1500));
    }
    let before = support::snapshot::cpu_seconds();
    for sum in &mut sums {
        api.ok(api.all_reduce_on(&data, sum, INT32, SUM, comm, stream));
    }
    api.ok(unsafe { (api.acclStreamSynchronize)(stream) });
    let took = support::snapshot::cpu_seconds() - before;
    assert!(sums.iter().all(|sum| *sum == [10]));
    assert!(took < 0.3, "waiting took {took} s of CPU time");
    api.ok(unsafe { (api.acclStreamDestroy)(stream) });
    api.destroy(comm);
}
