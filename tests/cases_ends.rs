//! Ends of communicators and of processes: in any order, at any moment, by any hand.

// Helpers of tests fail by panicking.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]
// Every call here is a call of the C interface with arguments that the test keeps alive.
#![allow(clippy::undocumented_unsafe_blocks)]

mod support;

use std::ffi::c_int;
use std::ptr::null_mut;
use std::time::{Duration, Instant};
use support::api::{
    Comm, INT32, INVALID_ARGUMENT, INVALID_USAGE, REMOTE_ERROR, SUCCESS, SUM, SYSTEM_ERROR, TIMEOUT,
};
use support::cluster::{Cluster, Rank, Scenario, work};
use support::oracle::mix;
use support::snapshot::Snapshot;

const SCENARIOS: [(&str, Scenario); 6] = [
    ("two_aborted", two_aborted),
    ("others_gone", others_gone),
    ("only_one_destroys", only_one_destroys),
    ("wrong_handles", wrong_handles),
    ("killed_early", killed_early),
    ("blame", blame),
];

#[test]
fn worker() {
    work(&SCENARIOS);
}

/// What there is when nothing more goes on.
fn settled() -> Snapshot {
    std::thread::sleep(Duration::from_millis(200));
    Snapshot::take()
}

/// C30: operations pending on two communicators, which each rank aborts in an order of its own, or one of them only.
#[test]
fn c30_aborts_in_any_order() {
    for order in ["01,10,01", "01,10,0", "1,0,10", "0,0,1"] {
        Cluster::new(3, 1).ids(2).argument(order).limit(40).run("two_aborted");
    }
}

fn two_aborted(rank: Rank) {
    let api = rank.api;
    let comms = [0, 1].map(|id| rank.api.init(rank.ranks, rank.ids[id], rank.rank) as usize);
    // Rank 0 calls on the second one only, rank 1 on the first one only: what is pending never ends by itself.
    let mut pending = Vec::new();
    for (which, comm) in comms.into_iter().enumerate() {
        if rank.rank != which {
            pending.push(std::thread::spawn(move || {
                let (mine, mut sums) = (vec![1; 100_000], vec![0; 100_000]);
                api.all_reduce(&mine, &mut sums, INT32, SUM, comm as Comm)
            }));
        }
    }
    std::thread::sleep(Duration::from_millis(300));
    let begin = Instant::now();
    let order = rank.argument.split(',').nth(rank.rank).unwrap();
    for which in order.bytes().map(|digit| usize::from(digit - b'0')) {
        api.ok(unsafe { (api.ncclCommAbort)(comms[which] as Comm) });
    }
    // By its own abort, or since others have aborted.
    for call in pending {
        assert_ne!(call.join().unwrap(), SUCCESS);
    }
    assert!(begin.elapsed() < Duration::from_secs(5), "{:?}", begin.elapsed());
    for (which, comm) in comms.into_iter().enumerate() {
        if !order.contains(&which.to_string()) {
            api.destroy(comm as Comm);
        }
    }
}

/// C31: the others have gone, one way or another, and nobody is left to destroy with.
#[test]
fn c31_destroy_when_the_others_are_gone() {
    for after in ["idle", "error"] {
        let ended = Cluster::new(4, 1).argument(after).limit(40).run_to_end("others_gone");
        let codes: Vec<_> = ended.iter().map(|end| end.code).collect();
        let texts: Vec<_> = ended.iter().map(|end| &end.stderr).collect();
        assert_eq!(codes, [Some(0), Some(7), None, Some(0)], "{after}: {texts:?}");
    }
    Cluster::new(3, 1).limit(40).run("only_one_destroys");
}

fn others_gone(rank: Rank) {
    let api = rank.api;
    api.destroy(api.init(1, api.unique_id(), 0));
    let before = settled();
    let comm = rank.join();
    assert_eq!(api.sum(1, comm), 4);
    match rank.rank {
        0 => return,
        1 => std::process::exit(7),
        2 => {
            unsafe { libc::raise(libc::SIGKILL) };
        }
        _ => {}
    }
    if rank.argument == "error" {
        assert_eq!(api.all_reduce(&[1], &mut [0], INT32, SUM, comm), REMOTE_ERROR);
        assert_eq!(api.async_error(comm), REMOTE_ERROR);
    } else {
        std::thread::sleep(Duration::from_millis(300));
    }
    let begin = Instant::now();
    let finalized = unsafe { (api.ncclCommFinalize)(comm) };
    assert!([SUCCESS, REMOTE_ERROR].contains(&finalized), "{}", api.error_text());
    let destroyed = unsafe { (api.ncclCommDestroy)(comm) };
    assert!([SUCCESS, REMOTE_ERROR].contains(&destroyed), "{}", api.error_text());
    assert!(begin.elapsed() < Duration::from_secs(4), "{:?}", begin.elapsed());
    assert_eq!(settled(), before);
}

fn only_one_destroys(rank: Rank) {
    let (api, comm) = (rank.api, rank.join());
    assert_eq!(api.sum(1, comm), 3);
    if rank.rank == 0 {
        let begin = Instant::now();
        api.destroy(comm);
        assert!(begin.elapsed() < Duration::from_secs(4), "{:?}", begin.elapsed());
        return;
    }
    // The others live on, and hear of it in the next call.
    std::thread::sleep(Duration::from_millis(500));
    assert_eq!(api.all_reduce(&[1], &mut [0], INT32, SUM, comm), REMOTE_ERROR);
    assert!(api.error_text().contains("rank 0 (process"), "{}", api.error_text());
    api.destroy(comm);
}

/// C32: handles and arguments used wrongly, one by one and in random sequences.
#[test]
fn c32_handles_used_wrongly() {
    Cluster::new(2, 1).ids(3).limit(100).run("wrong_handles");
}

fn wrong_handles(rank: Rank) {
    let api = rank.api;
    let (destroyed, aborted) = (rank.join(), api.init(2, rank.ids[1], rank.rank));
    let alive = api.init(2, rank.ids[2], rank.rank);
    api.destroy(destroyed);
    api.ok(unsafe { (api.ncclCommAbort)(aborted) });
    let garbage = &raw const rank as Comm;
    let says = |code: c_int, expected: c_int, words: &str| {
        assert_eq!(code, expected, "{words}: {}", api.error_text());
        assert!(api.error_text().contains(words), "{words}: {}", api.error_text());
    };
    let reduce = |comm| api.all_reduce(&[1], &mut [0], INT32, SUM, comm);
    for (comm, words) in
        [(destroyed, "been destroyed"), (aborted, "was aborted"), (garbage, "communicator"), (null_mut(), "")]
    {
        says(reduce(comm), INVALID_ARGUMENT, words);
        if !comm.is_null() {
            for end in [api.ncclCommDestroy, api.ncclCommAbort, api.ncclCommFinalize] {
                says(unsafe { end(comm) }, INVALID_ARGUMENT, words);
            }
        }
    }
    let (mut from, mut to) = ([1i32], [0i32]);
    let (from, to) = (from.as_mut_ptr().cast(), to.as_mut_ptr().cast());
    unsafe {
        says((api.ncclAllReduce)(from, to, 1, 99, SUM, alive, null_mut()), INVALID_ARGUMENT, "99");
        says((api.ncclAllReduce)(from, to, 1, INT32, 99, alive, null_mut()), INVALID_ARGUMENT, "99");
        says((api.ncclBroadcast)(from, to, 1, INT32, 2, alive, null_mut()), INVALID_ARGUMENT, "2");
        says((api.ncclBroadcast)(from, to, 1, INT32, -1, alive, null_mut()), INVALID_ARGUMENT, "-1");
        says((api.ncclSend)(from, 1, INT32, -1, alive, null_mut()), INVALID_ARGUMENT, "-1");
        says((api.ncclRecv)(to, 1, INT32, 2, alive, null_mut()), INVALID_ARGUMENT, "2");
    }
    // None of that was anybody's but the caller's: the communicator goes on, also between a thousand more.
    let ended = [destroyed, aborted, garbage, null_mut()];
    for step in 0..1000u64 {
        let random = mix(step ^ (rank.rank as u64) << 32);
        let comm = ended[random as usize % 4];
        let mut number = 0;
        let code = unsafe {
            match random >> 8 & 7 {
                0 => (api.ncclCommDestroy)(comm),
                1 => (api.ncclCommAbort)(comm),
                2 => (api.ncclCommFinalize)(comm),
                3 => (api.ncclCommCount)(comm, &raw mut number),
                4 => (api.ncclCommGetAsyncError)(comm, &raw mut number),
                5 => (api.ncclSend)(from, 1, INT32, 0, comm, null_mut()),
                6 => (api.ncclCommRevoke)(comm, 0),
                _ => reduce(comm),
            }
        };
        let nothing_to_do = comm.is_null() && matches!(random >> 8 & 7, 0 | 1 | 2 | 6);
        assert_eq!(code, if nothing_to_do { SUCCESS } else { INVALID_ARGUMENT }, "step {step}");
        if step % 100 == 0 {
            assert_eq!(api.sum(1, alive), 2);
        }
    }
    api.destroy(alive);
}

/// C35: somebody is killed at any moment of the way into a communicator; the others come out of it, always, and hold nothing.
#[test]
fn c35_killed_while_joining() {
    let seed = u64::from(std::process::id());
    println!("seed {seed}");
    for round in 0..50 {
        let random = mix(seed ^ round << 32);
        let (victim, after_us) = (random % 4, (random >> 8) % [2_000, 20_000, 100_000][round as usize % 3]);
        let cluster = Cluster::new(4, 1).env("ACCL_INIT_TIMEOUT", 2).limit(30);
        let ended = cluster.argument(format!("{victim},{after_us}")).run_to_end("killed_early");
        for (rank, end) in ended.iter().enumerate() {
            let expected = if rank as u64 == victim { None } else { Some(0) };
            assert_eq!(end.code, expected, "round {round}: rank {rank}: {}", end.stderr);
        }
    }
}

fn killed_early(rank: Rank) {
    let api = rank.api;
    let (victim, after_us) = rank.argument.split_once(',').unwrap();
    // The library's own tables count once, before.
    api.destroy(api.init(1, api.unique_id(), 0));
    let before = settled();
    if victim == rank.rank.to_string() {
        let after = Duration::from_micros(after_us.parse().unwrap());
        std::thread::spawn(move || {
            std::thread::sleep(after);
            unsafe { libc::kill(libc::getpid(), libc::SIGKILL) };
        });
    }
    let mut comm = null_mut();
    let code = unsafe { (api.ncclCommInitRank)(&raw mut comm, 4, rank.ids[0], rank.rank as c_int) };
    if code == SUCCESS {
        // Until it happens.
        let code = loop {
            let code = api.all_reduce(&[1], &mut [0], INT32, SUM, comm);
            if code != SUCCESS {
                break code;
            }
        };
        assert_eq!(code, REMOTE_ERROR, "{}", api.error_text());
        api.destroy(comm);
    } else {
        assert!([REMOTE_ERROR, TIMEOUT, SYSTEM_ERROR].contains(&code), "{code}: {}", api.error_text());
        assert!(comm.is_null());
    }
    assert_eq!(settled(), before);
}

/// C36: neighbours that abort in reaction to a death disturb others, which still name the dead.
#[test]
fn c36_the_right_one_is_blamed() {
    for (hosts, shared) in [(1, "1"), (1, "0"), (3, "1")] {
        let cluster = Cluster::new(6, 1).env("ACCL_TIMEOUT", 20).limit(60);
        let cluster = if shared == "0" { cluster.env("ACCL_SHM_DISABLE", 1) } else { cluster.hosts(hosts) };
        for (rank, end) in cluster.run_to_end("blame").iter().enumerate() {
            assert_eq!(
                end.code,
                if rank == 3 { None } else { Some(0) },
                "{hosts}: rank {rank}: {}",
                end.stderr
            );
        }
    }
}

fn blame(rank: Rank) {
    let (api, comm) = (rank.api, rank.join());
    let (mine, mut theirs) = (vec![1; 50_000], vec![0; 50_000]);
    let (next, before) = ((rank.rank + 1) % 6, (rank.rank + 5) % 6);
    for round in 0.. {
        if rank.rank == 3 && round == 20 {
            unsafe { libc::raise(libc::SIGKILL) };
        }
        let code = api.group(|| {
            // The first of the two may hear of the end already.
            let sent = api.send(&mine, next, comm);
            let received = api.recv(&mut theirs, before, comm);
            assert!([sent, received].iter().all(|code| [SUCCESS, REMOTE_ERROR].contains(code)));
        });
        if code == SUCCESS {
            assert_eq!(theirs, mine);
            continue;
        }
        let text = api.error_text();
        assert!(code == REMOTE_ERROR || code == INVALID_USAGE, "{text}");
        assert_eq!(code, REMOTE_ERROR, "{text}");
        assert!(text.contains("rank 3 (process"), "rank {}: {text}", rank.rank);
        for other in [0, 1, 2, 4, 5] {
            assert!(!text.contains(&format!("rank {other} (process")), "rank {}: {text}", rank.rank);
        }
        return api.ok(unsafe { (api.ncclCommAbort)(comm) });
    }
}
