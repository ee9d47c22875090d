//! Sends and receives in situations that users have reported.

// Helpers of tests fail by panicking.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod support;

use std::time::{Duration, Instant};
use support::api::{INVALID_USAGE, SUCCESS, TIMEOUT};
use support::cluster::{Cluster, Rank, Scenario, work};
use support::oracle::mix;

const SCENARIOS: [(&str, Scenario); 7] = [
    ("both_send_first", both_send_first),
    ("skip_connections", skip_connections),
    ("skip_connections_cut", skip_connections_cut),
    ("long_ring", long_ring),
    ("sizes_differ", sizes_differ),
    ("fan_in", fan_in),
    ("many_to_self", many_to_self),
];

#[test]
fn worker() {
    work(&SCENARIOS);
}

/// C11: up to the eager limit a send does not wait; above it the circle is shown.
#[test]
fn c11_both_send_first() {
    for (processes, threads) in [(2, 1), (1, 2)] {
        for bytes in [8, 64 << 10] {
            Cluster::new(processes, threads).env("ACCL_TIMEOUT", 5).argument(bytes).run("both_send_first");
        }
        Cluster::new(processes, threads).env("ACCL_TIMEOUT", 1).argument(64 << 20).run("both_send_first");
    }
}

fn both_send_first(rank: Rank) {
    let (api, peer) = (rank.api, 1 - rank.rank);
    let comm = rank.join();
    let bytes: usize = rank.argument.parse().unwrap();
    let data = vec![rank.rank as u8 + 1; bytes];
    let sent = api.send(&data, peer, comm);
    if bytes <= 64 << 10 {
        api.ok(sent);
        let mut got = vec![0u8; bytes];
        api.ok(api.recv(&mut got, peer, comm));
        assert!(got.iter().all(|byte| *byte == peer as u8 + 1));
        api.destroy(comm);
    } else {
        assert_eq!(sent, TIMEOUT);
        let text = api.error_text();
        assert!(text.contains("cycle") && text.contains("waits for 1 in send #1"), "{text}");
        assert_eq!(api.async_error(comm), TIMEOUT);
    }
}

/// C12: legal orders work; an illegal one gets a report, not silence.
#[test]
fn c12_skip_connections() {
    Cluster::new(4, 1).run("skip_connections");
    Cluster::new(4, 1).env("ACCL_TIMEOUT", 1).run("skip_connections_cut");
}

fn skip_connections(rank: Rank) {
    let (api, n, me) = (rank.api, rank.ranks, rank.rank);
    let comm = rank.join();
    for round in 0..100 {
        let bytes = 1 + mix(round) as usize % 200_000;
        let fill = |from: usize, to: usize| (from * 16 + to) as u8;
        let sends: Vec<Vec<u8>> = [1, 2].iter().map(|step| vec![fill(me, (me + step) % n); bytes]).collect();
        let (mut one, mut two) = (vec![0u8; bytes], vec![0u8; bytes]);
        let (left, left_of_left) = ((me + n - 1) % n, (me + n - 2) % n);
        // Both sends and the nearer receive in one group, the farther receive in the next.
        api.ok(api.group(|| {
            api.ok(api.send(&sends[0], (me + 1) % n, comm));
            api.ok(api.recv(&mut one, left, comm));
        }));
        api.ok(api.group(|| {
            api.ok(api.recv(&mut two, left_of_left, comm));
            api.ok(api.send(&sends[1], (me + 2) % n, comm));
        }));
        assert!(one.iter().all(|byte| *byte == fill(left, me)), "round {round}");
        assert!(two.iter().all(|byte| *byte == fill(left_of_left, me)), "round {round}");
    }
    api.destroy(comm);
}

fn skip_connections_cut(rank: Rank) {
    let (api, n, me) = (rank.api, rank.ranks, rank.rank);
    let comm = rank.join();
    let data = vec![0u8; 1 << 20];
    // Every rank sends around the ring before anybody receives, above the eager limit.
    let code = api.send(&data, (me + 1) % n, comm);
    assert_eq!(code, TIMEOUT);
    let text = api.error_text();
    assert!(text.contains("cycle: ") && text.matches("waits for").count() == n, "{text}");
}

/// C13: a ring of 16 ranks, long.
#[test]
fn c13_long_ring() {
    Cluster::new(16, 1).limit(60).run("long_ring");
}

fn long_ring(rank: Rank) {
    let (api, n, me) = (rank.api, rank.ranks, rank.rank);
    let comm = rank.join();
    for round in 0..2000u64 {
        let bytes = 1 + ((mix(round) as usize % (64 << 10)) >> (round % 12));
        let (send, mut recv) = (vec![(me as u64 + round) as u8; bytes], vec![0u8; bytes]);
        let left = (me + n - 1) % n;
        api.ok(api.group(|| {
            api.ok(api.send(&send, (me + 1) % n, comm));
            api.ok(api.recv(&mut recv, left, comm));
        }));
        assert!(recv.iter().all(|byte| *byte == (left as u64 + round) as u8), "round {round}");
    }
    api.destroy(comm);
}

/// C14: a receive of another size is an error on both sides, and writes nothing.
#[test]
fn c14_sizes_differ() {
    for (processes, threads) in [(2, 1), (1, 2)] {
        for (sent, received) in [(1000, 999), (1000, 1001), (1000, 500), (1000, 4000), (1_000_000, 999_999)] {
            let cluster = Cluster::new(processes, threads).ids(2).env("ACCL_TIMEOUT", 5);
            cluster.argument(format!("{sent},{received}")).run("sizes_differ");
        }
    }
}

fn sizes_differ(rank: Rank) {
    let api = rank.api;
    let comm = rank.join();
    let sizes: Vec<usize> = rank.argument.split(',').map(|number| number.parse().unwrap()).collect();
    let started = Instant::now();
    let code = if rank.rank == 0 {
        api.send(&vec![7i32; sizes[0]], 1, comm)
    } else {
        let mut got = vec![-1i32; sizes[1]];
        let code = api.recv(&mut got, 0, comm);
        assert!(got.iter().all(|value| *value == -1), "a receive of the wrong size wrote something");
        code
    };
    // A send within the eager limit has returned before anybody could object; then its communicator says so.
    while api.async_error(comm) == SUCCESS && started.elapsed() < Duration::from_secs(10) {
        std::thread::sleep(Duration::from_millis(1));
    }
    assert_eq!(api.async_error(comm), INVALID_USAGE);
    // What is longer than the link's ring cannot have been sent before the receiver came.
    if rank.rank == 1 || sizes[0] > 500_000 {
        assert_eq!(code, INVALID_USAGE);
        let text = api.error_text();
        let (a, b) = (format!("{} bytes", 4 * sizes[0]), format!("{} bytes", 4 * sizes[1]));
        assert!(text.contains(&a) && text.contains(&b), "{text}");
    }
    // A fresh communicator is not affected.
    let fresh = api.init(rank.ranks, rank.ids[1], rank.rank);
    if rank.rank == 0 {
        api.ok(api.send(&[1i32, 2, 3], 1, fresh));
    } else {
        let mut got = [0i32; 3];
        api.ok(api.recv(&mut got, 0, fresh));
        assert_eq!(got, [1, 2, 3]);
    }
    api.destroy(fresh);
    api.destroy(comm);
}

/// C15: early messages wait at the sender, not in memory without bound.
#[test]
fn c15_fan_in() {
    Cluster::new(7, 1).run("fan_in");
}

fn fan_in(rank: Rank) {
    let api = rank.api;
    let comm = rank.join();
    let size = |from: usize, index: u64| (mix(from as u64 * 1000 + index) as usize % 100_000) >> (index % 5);
    let byte = |from: usize, index: u64| (from as u64 * 31 + index) as u8;
    if rank.rank > 0 {
        for index in 0..200 {
            api.ok(api.send(&vec![byte(rank.rank, index); size(rank.rank, index)], 0, comm));
        }
    } else {
        std::thread::sleep(Duration::from_millis(500));
        let before = support::snapshot::memory_bytes();
        for peer in (1..rank.ranks).rev() {
            for index in 0..200 {
                let mut got = vec![0u8; size(peer, index)];
                api.ok(api.recv(&mut got, peer, comm));
                assert!(got.iter().all(|value| *value == byte(peer, index)), "message {index} from {peer}");
            }
        }
        let grown = support::snapshot::memory_bytes().saturating_sub(before);
        assert!(grown < 16 << 20, "early messages took {grown} bytes");
    }
    assert_eq!(api.sum(1, comm), rank.ranks as i32);
    api.destroy(comm);
}

/// Messages to oneself pair in order, and need their receive in the same group.
#[test]
fn self_sends() {
    Cluster::new(2, 1).run("many_to_self");
}

fn many_to_self(rank: Rank) {
    let (api, me) = (rank.api, rank.rank);
    let comm = rank.join();
    assert_eq!(api.send(&[1u8], me, comm), INVALID_USAGE);
    assert!(api.error_text().contains("send to self"), "{}", api.error_text());
    let sends = [vec![1u8; 10], vec![2; 100_000], vec![3; 1]];
    let mut recvs = [vec![0u8; 10], vec![0; 100_000], vec![0; 1]];
    let (peer, to_peer, mut from_peer) = (1 - me, [me as u8, 9], [0u8; 2]);
    api.ok(api.group(|| {
        for data in &sends {
            api.ok(api.send(data, me, comm));
        }
        api.ok(api.send(&to_peer, peer, comm));
        for data in &mut recvs {
            api.ok(api.recv(data, me, comm));
        }
        api.ok(api.recv(&mut from_peer, peer, comm));
    }));
    assert_eq!(recvs, sends);
    assert_eq!(from_peer, [peer as u8, 9]);
    assert_eq!(
        api.group(|| {
            api.ok(api.send(&[0u8; 4], me, comm));
            api.ok(api.recv(&mut [0u8; 5], me, comm));
        }),
        INVALID_USAGE
    );
    assert_eq!(api.async_error(comm), SUCCESS, "an error of one call does not spoil a blocking communicator");
    assert_eq!(api.sum(1, comm), 2);
    api.destroy(comm);
}
