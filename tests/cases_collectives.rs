//! Collectives in situations that users have reported: odd buffers, nothing to do, one rank, numbers at the edge.

// Helpers of tests fail by panicking.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]
// Every call here is a call of the C interface with arguments that the test keeps alive.
#![allow(clippy::undocumented_unsafe_blocks)]

mod support;

use std::ffi::{c_int, c_void};
use std::ptr::null_mut;
use support::api::{AVG, FLOAT, INT32, MAX, MIN, PROD, SUM};
use support::cluster::{Cluster, Rank, Scenario, work};
use support::oracle::{self, TYPES};
use support::snapshot::{Snapshot, memory_bytes};

const SCENARIOS: [(&str, Scenario); 9] = [
    ("overlap", overlap),
    ("odd_addresses", odd_addresses),
    ("zero_counts", zero_counts),
    ("alone", alone),
    ("thousand_alone", thousand_alone),
    ("nan_placements", nan_placements),
    ("integer_extremes", integer_extremes),
    ("float8_pairs", float8_pairs),
    ("sixty_thousand", sixty_thousand),
];

#[test]
fn worker() {
    work(&SCENARIOS);
}

fn at<T>(data: &mut [T], index: usize) -> *mut c_void {
    data[index..].as_mut_ptr().cast()
}

/// C02: the in-place forms are in the sweep. Here: buffers that overlap in other ways give the result of a send
/// buffer that was copied first.
#[test]
fn c02_other_overlaps_are_defined() {
    Cluster::new(5, 1).run("overlap");
    Cluster::new(1, 5).run("overlap");
}

fn overlap(rank: Rank) {
    let (api, n, me) = (rank.api, rank.ranks, rank.rank);
    let comm = rank.join();
    for count in [1, 5, 4097] {
        let value = |rank: usize, index: usize| (rank * 100_000 + index) as i32;
        // AllGather from the beginning of the result, on every rank.
        let mut data: Vec<i32> = (0..n * count).map(|index| value(me, index)).collect();
        let start = at(&mut data, 0);
        api.ok(unsafe { (api.ncclAllGather)(start, start, count, INT32, comm, null_mut()) });
        assert!(
            (0..n * count).all(|index| data[index] == value(index / count, index % count)),
            "AllGather {count}"
        );

        // ReduceScatter into the beginning of the input.
        let mut data: Vec<i32> = (0..n * count).map(|index| value(me, index)).collect();
        let start = at(&mut data, 0);
        api.ok(unsafe { (api.ncclReduceScatter)(start, start, count, INT32, SUM, comm, null_mut()) });
        let sum = |index: usize| (0..n).map(|rank| value(rank, me * count + index)).sum::<i32>();
        assert!((0..count).all(|index| data[index] == sum(index)), "ReduceScatter {count}");

        // AlltoAll within one buffer.
        let mut data: Vec<i32> = (0..n * count).map(|index| value(me, index)).collect();
        let start = at(&mut data, 0);
        api.ok(unsafe { (api.ncclAlltoAll)(start, start, count, INT32, comm, null_mut()) });
        let from = |index: usize| value(index / count, me * count + index % count);
        assert!((0..n * count).all(|index| data[index] == from(index)), "AlltoAll {count}");

        // AllReduce to one element further on.
        let mut data: Vec<i32> = (0..=count).map(|index| value(me, index)).collect();
        let (from, to) = (at(&mut data, 0), at(&mut data, 1));
        api.ok(unsafe { (api.ncclAllReduce)(from, to, count, INT32, SUM, comm, null_mut()) });
        let sum = |index: usize| (0..n).map(|rank| value(rank, index)).sum::<i32>();
        assert!((0..count).all(|index| data[index + 1] == sum(index)), "AllReduce {count}");
        assert_eq!(data[0], value(me, 0));
    }
    api.destroy(comm);
}

/// C03: addresses and lengths that suit no vector; send and receive are misaligned differently.
#[test]
fn c03_odd_addresses() {
    Cluster::new(2, 1).run("odd_addresses");
    Cluster::new(1, 3).run("odd_addresses");
}

fn odd_addresses(rank: Rank) {
    let (api, n) = (rank.api, rank.ranks);
    let comm = rank.join();
    for dtype in [9usize, 6, 7, 0] {
        let size = TYPES[dtype].1;
        for (step, count) in [(1, 13), (3, 1001), (5, 65_537), (7, 262_147)] {
            let input =
                |rank: usize, index: usize| oracle::encode(dtype, ((rank * 5 + index * 3) % 7) as f64);
            let mut memory = vec![0u8; (count + 64) * size + 256];
            let aligned = memory.as_ptr().align_offset(64);
            let mut result = vec![0x5au8; (n * count + 64) * size + 256];
            let result_start = result.as_ptr().align_offset(64) + size * (8 - step);
            let start = aligned + size * step;
            for index in 0..count {
                let place = start + index * size;
                memory[place..place + size].copy_from_slice(&input(rank.rank, index));
            }
            let (send, recv) = (at(&mut memory, start), at(&mut result, result_start));
            api.ok(unsafe { (api.ncclAllReduce)(send, recv, count, dtype as c_int, SUM, comm, null_mut()) });
            for index in (0..count).filter(|index| index % 41 == 0 || *index + 40 > count) {
                let inputs: Vec<_> = (0..n).map(|rank| input(rank, index)).collect();
                let place = result_start + index * size;
                let expected = oracle::reduce(dtype, 0, &inputs, &[]);
                assert_eq!(
                    &result[place..place + size],
                    &expected[..],
                    "type {dtype} count {count} index {index}"
                );
            }
            let end = result_start + count * size;
            assert!(result[..result_start].iter().chain(&result[end..]).all(|byte| *byte == 0x5a));
            api.ok(unsafe { (api.ncclAllGather)(send, recv, count, dtype as c_int, comm, null_mut()) });
            for index in (0..n * count).step_by(53) {
                let place = result_start + index * size;
                assert_eq!(&result[place..place + size], &input(index / count, index % count)[..]);
            }
        }
    }
    api.destroy(comm);
}

/// C04: nothing to do is done at once, and touches nothing.
#[test]
fn c04_zero_counts() {
    Cluster::new(4, 1).run("zero_counts");
}

fn zero_counts(rank: Rank) {
    let (api, n, me) = (rank.api, rank.ranks, rank.rank);
    let comm = rank.join();
    let (none, stream) = (null_mut(), null_mut());
    unsafe {
        api.ok((api.ncclAllReduce)(none, none, 0, FLOAT, SUM, comm, stream));
        api.ok((api.ncclReduce)(none, none, 0, FLOAT, SUM, 1, comm, stream));
        api.ok((api.ncclBroadcast)(none, none, 0, FLOAT, 2, comm, stream));
        api.ok((api.ncclBcast)(none, 0, FLOAT, 2, comm, stream));
        api.ok((api.ncclReduceScatter)(none, none, 0, FLOAT, SUM, comm, stream));
        api.ok((api.ncclAlltoAll)(none, none, 0, FLOAT, comm, stream));
        api.ok((api.ncclGather)(none, none, 0, FLOAT, 0, comm, stream));
        api.ok((api.ncclScatter)(none, none, 0, FLOAT, 0, comm, stream));
        // A rank that skips a call with nothing to do has not fallen behind.
        if me != 3 {
            api.ok((api.ncclAllGather)(none, none, 0, FLOAT, comm, stream));
        }
        // Bad arguments are still bad.
        assert_eq!((api.ncclReduce)(none, none, 0, FLOAT, SUM, n as c_int, comm, stream), 4);
        assert_eq!((api.ncclAllReduce)(none, none, 0, 12, SUM, comm, stream), 4);
        assert_eq!((api.ncclAllReduce)(none, none, 1, FLOAT, SUM, comm, stream), 4);
    }
    // An all-to-all of different lengths, in which rank 0 sends nothing to anybody and rank 2 receives nothing.
    let length = |from: usize, to: usize| if from == 0 || to == 2 { 0 } else { from * 10 + to };
    let sends: Vec<Vec<i32>> = (0..n).map(|to| vec![(me * 10 + to) as i32; length(me, to)]).collect();
    let mut recvs: Vec<Vec<i32>> = (0..n).map(|from| vec![-1; length(from, me) + 1]).collect();
    let code = api.group(|| {
        for peer in 0..n {
            api.ok(api.send(&sends[peer], peer, comm));
            let wanted = length(peer, me);
            api.ok(api.recv(&mut recvs[peer][..wanted], peer, comm));
        }
    });
    api.ok(code);
    for (from, got) in recvs.iter().enumerate() {
        let wanted = length(from, me);
        assert!(got[..wanted].iter().all(|value| *value == (from * 10 + me) as i32));
        assert_eq!(got[wanted], -1);
    }
    assert_eq!(api.sum(1, comm), n as i32);
    api.destroy(comm);
}

/// C07: one rank is free of charge, in every form.
#[test]
fn c07_one_rank() {
    Cluster::new(1, 1).run("alone");
    Cluster::new(4, 1).run("alone");
    Cluster::new(1, 1).run("thousand_alone");
}

fn alone(rank: Rank) {
    let api = rank.api;
    let all = (rank.ranks > 1).then(|| rank.join());
    let before = memory_bytes();
    let comms: Vec<_> = (0..8).map(|_| api.init(1, api.unique_id(), 0)).collect();
    for comm in &comms {
        let comm = *comm;
        for op in [SUM, PROD, MAX, MIN, AVG] {
            let (send, mut recv) = ([3i32, -5, 7], [0; 3]);
            api.ok(api.all_reduce(&send, &mut recv, INT32, op, comm));
            assert_eq!(recv, send);
        }
        let mut data = [1.5f32, -2.5];
        let start = at(&mut data, 0);
        unsafe {
            api.ok((api.ncclAllReduce)(start, start, 2, FLOAT, AVG, comm, null_mut()));
            api.ok((api.ncclAllGather)(start, start, 2, FLOAT, comm, null_mut()));
            api.ok((api.ncclReduceScatter)(start, start, 2, FLOAT, SUM, comm, null_mut()));
            api.ok((api.ncclBcast)(start, 2, FLOAT, 0, comm, null_mut()));
            api.ok((api.ncclGather)(start, start, 2, FLOAT, 0, comm, null_mut()));
            api.ok((api.ncclScatter)(start, start, 2, FLOAT, 0, comm, null_mut()));
            api.ok((api.ncclReduce)(start, start, 2, FLOAT, SUM, 0, comm, null_mut()));
        }
        assert_eq!(data, [1.5, -2.5]);
        // A pre-multiplied sum multiplies, also alone.
        let (mut op, mut factor, mut product) = (0, 3.0f32, [0f32; 2]);
        unsafe {
            api.ok((api.ncclRedOpCreatePreMulSum)(&raw mut op, (&raw mut factor).cast(), FLOAT, 1, comm));
        }
        api.ok(api.all_reduce(&data, &mut product, FLOAT, op, comm));
        assert_eq!(product, [4.5, -7.5]);
        let mut got = [0f32; 2];
        api.ok(api.group(|| {
            api.ok(api.send(&data, 0, comm));
            api.ok(api.recv(&mut got, 0, comm));
        }));
        assert_eq!(got, data);
        let mut child = null_mut();
        api.ok(unsafe { (api.ncclCommSplit)(comm, 0, 0, &raw mut child, null_mut()) });
        assert_eq!(api.sum(5, child), 5);
        api.destroy(child);
    }
    let grown = memory_bytes().saturating_sub(before);
    assert!(grown < 8 << 20, "eight communicators of one rank use {grown} bytes");
    comms.into_iter().for_each(|comm| api.destroy(comm));
    assert_eq!(Snapshot::take().tcp_listeners, 0);
    if let Some(all) = all {
        assert_eq!(api.sum(1, all), rank.ranks as i32);
        api.destroy(all);
    }
}

fn thousand_alone(rank: Rank) {
    let mut snapshots = Vec::new();
    for cycle in 0..1000 {
        let comm = rank.api.init(1, rank.api.unique_id(), 0);
        assert_eq!(rank.api.sum(cycle, comm), cycle);
        rank.api.destroy(comm);
        if cycle == 100 || cycle == 999 {
            // The service closes its end of the connection a moment after the verdict has arrived.
            std::thread::sleep(std::time::Duration::from_millis(200));
            snapshots.push(Snapshot::take());
        }
    }
    assert_eq!(snapshots[0], snapshots[1]);
}

/// C73: NaN, infinities and signed zeros, wherever they stand.
#[test]
fn c73_nan_infinity_zero() {
    Cluster::new(4, 1).run("nan_placements");
    for algorithm in ["direct", "ring", "tree,ring", "rd"] {
        Cluster::new(1, 4).env("ACCL_ALGO", algorithm).env("ACCL_EXCHANGE_BYTES", 0).run("nan_placements");
    }
}

fn nan_placements(rank: Rank) {
    let api = rank.api;
    let comm = rank.join();
    let sets: [[f64; 4]; 5] = [
        [1.0, f64::NAN, 3.0, 4.0],
        [f64::INFINITY, 1.0, f64::NEG_INFINITY, 0.0],
        [f64::INFINITY, 1.0, 2.0, f64::INFINITY],
        [-0.0, 0.0, -0.0, 0.0],
        [-0.0, -0.0, -0.0, -0.0],
    ];
    for dtype in [6usize, 7, 8, 9] {
        let size = TYPES[dtype].1;
        for set in sets {
            // All 24 placements at once, one an element.
            let placements = permutations();
            let element = |rank: usize, index: usize| oracle::encode(dtype, set[placements[index][rank]]);
            let send: Vec<u8> = (0..24).flat_map(|index| element(rank.rank, index)).collect();
            for op in [SUM, PROD, MAX, MIN] {
                let mut recv = vec![0u8; send.len()];
                let code = unsafe {
                    let (from, to) = (send.as_ptr().cast_mut().cast(), recv.as_mut_ptr().cast());
                    (api.ncclAllReduce)(from, to, 24, dtype as c_int, op, comm, null_mut())
                };
                api.ok(code);
                for index in 0..24 {
                    let got = &recv[index * size..(index + 1) * size];
                    let inputs: Vec<_> = (0..4).map(|rank| element(rank, index)).collect();
                    let expected = oracle::reduce(dtype, op as usize, &inputs, &[]);
                    let (a, b) = (oracle::decode(dtype, got), oracle::decode(dtype, &expected));
                    let same = if b.is_nan() { a.is_nan() } else { got == &expected[..] };
                    assert!(same, "type {dtype} op {op} {set:?} placement {index}: {a} where {b} is right");
                }
            }
        }
    }
    api.destroy(comm);
}

fn permutations() -> Vec<[usize; 4]> {
    let mut all = Vec::new();
    for code in 0..256 {
        let one = [code % 4, code / 4 % 4, code / 16 % 4, code / 64];
        if (0..4).all(|value| one.contains(&value)) {
            all.push(one);
        }
    }
    assert_eq!(all.len(), 24);
    all
}

/// C74: integers wrap; averages do not, and are the same whatever the algorithm.
#[test]
fn c74_integers_at_their_limits() {
    Cluster::new(3, 1).run("integer_extremes");
    Cluster::new(1, 8).run("integer_extremes");
    for algorithm in ["direct", "ring", "tree,ring", "rd"] {
        Cluster::new(1, 3).env("ACCL_ALGO", algorithm).env("ACCL_EXCHANGE_BYTES", 0).run("integer_extremes");
    }
}

fn integer_extremes(rank: Rank) {
    let api = rank.api;
    let comm = rank.join();
    for (dtype, (_, size)) in TYPES.into_iter().enumerate().take(6) {
        let bits = 8 * size as u32;
        let signed = dtype % 2 == 0;
        let (low, high): (i128, i128) =
            if signed { (-(1 << (bits - 1)), (1 << (bits - 1)) - 1) } else { (0, (1 << bits) - 1) };
        let edges = [low, low + 1, high, high - 1, 0, 1, -1, 2, -7, 7, high / 2, high / 3];
        let count = 200;
        let element = |rank: usize, index: usize| {
            let random = oracle::mix((rank * 1000 + index) as u64) as usize;
            oracle::wrap(dtype, edges[random % edges.len()])
        };
        let send: Vec<u8> = (0..count).flat_map(|index| element(rank.rank, index)).collect();
        for op in [SUM, PROD, MAX, MIN, AVG] {
            let mut recv = vec![0u8; send.len()];
            let (from, to) = (send.as_ptr().cast_mut().cast(), recv.as_mut_ptr().cast());
            api.ok(unsafe { (api.ncclAllReduce)(from, to, count, dtype as c_int, op, comm, null_mut()) });
            for index in 0..count {
                let inputs: Vec<_> = (0..rank.ranks).map(|rank| element(rank, index)).collect();
                let expected = oracle::reduce(dtype, op as usize, &inputs, &[]);
                let got = &recv[index * size..(index + 1) * size];
                assert_eq!(got, &expected[..], "type {dtype} op {op}: {inputs:?}");
            }
        }
    }
    api.destroy(comm);
}

/// C75: all pairs of both 8-bit float formats.
#[test]
fn c75_float8_exhaustively() {
    Cluster::new(2, 1).run("float8_pairs");
    Cluster::new(2, 1).env("ACCL_ALGO", "ring").run("float8_pairs");
}

fn float8_pairs(rank: Rank) {
    let api = rank.api;
    let comm = rank.join();
    // 65,536 pairs and a tail that fits no vector.
    let count = 65_536 + 11;
    let element = |rank: usize, index: usize| if rank == 0 { index as u8 } else { (index >> 8) as u8 };
    let send: Vec<u8> = (0..count).map(|index| element(rank.rank, index)).collect();
    for dtype in [10usize, 11] {
        for op in [SUM, PROD, MAX, MIN] {
            let mut recv = vec![0u8; count];
            api.ok(api.all_reduce(&send, &mut recv, dtype as c_int, op, comm));
            for (index, got) in recv.iter().copied().enumerate() {
                let inputs = [vec![element(0, index)], vec![element(1, index)]];
                let expected = oracle::reduce(dtype, op as usize, &inputs, &[])[0];
                let nan = oracle::decode(dtype, &[expected]).is_nan();
                let same = if nan { oracle::decode(dtype, &[got]).is_nan() } else { got == expected };
                assert!(same, "type {dtype} op {op} {inputs:?}: {} where {expected} is right", got);
            }
        }
    }
    api.destroy(comm);
}

/// Low precision: averaged without overflow on the way, and a sum rounded once, whatever the algorithm.
#[test]
fn low_precision_is_rounded_once() {
    for algorithm in ["direct", "ring", "tree,ring", "rd"] {
        for exchange in ["0", "16K"] {
            Cluster::new(2, 3)
                .env("ACCL_ALGO", algorithm)
                .env("ACCL_EXCHANGE_BYTES", exchange)
                .run("sixty_thousand");
        }
    }
}

fn sixty_thousand(rank: Rank) {
    let api = rank.api;
    let comm = rank.join();
    let half = |value: f64| u16::from_le_bytes(oracle::encode(6, value).try_into().unwrap());
    let mut recv = [0u16; 3];
    api.ok(api.all_reduce(&[half(60_000.0); 3], &mut recv, 6, AVG, comm));
    assert_eq!(recv, [half(60_000.0); 3]);
    // 1 + 6 · 2⁻¹²: each 2⁻¹² alone would be rounded away in bfloat16 (and 2⁻⁹ in steps).
    let value = if rank.rank == 0 { 1.0 } else { 2f64.powi(-9) };
    let code = |value: f64| u16::from_le_bytes(oracle::encode(9, value).try_into().unwrap());
    api.ok(api.all_reduce(&[code(value); 3], &mut recv, 9, SUM, comm));
    assert_eq!(recv, [code(1.0 + 5.0 * 2f64.powi(-9)); 3]);
    api.destroy(comm);
}
