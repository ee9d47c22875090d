//! Communicators that lose ranks and get new ones: revoke, shrink, grow, over and over, without a restart.

// Helpers of tests fail by panicking.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]
// Every call here is a call of the C interface with arguments that the test keeps alive.
#![allow(clippy::undocumented_unsafe_blocks)]

mod support;

use std::ffi::c_int;
use std::path::PathBuf;
use std::ptr::{null, null_mut};
use std::time::{Duration, Instant};
use support::api::{Api, Comm, INT32, INVALID_ARGUMENT, INVALID_USAGE, REMOTE_ERROR, SUCCESS, SUM, UniqueId};
use support::cluster::{Cluster, Rank, Scenario, work};
use support::snapshot::{Snapshot, memory_bytes};

const DEFAULT: c_int = 0;
const ABORT: c_int = 1;

const SCENARIOS: [(&str, Scenario); 6] = [
    ("shrink_in_peace", shrink_in_peace),
    ("shrink_after_a_kill", shrink_after_a_kill),
    ("replace", replace),
    ("revoke", revoke),
    ("grow_from_one", grow_from_one),
    ("abort_a_shrink", abort_a_shrink),
];

#[test]
fn worker() {
    work(&SCENARIOS);
}

/// Large and small sums, all of them right.
fn check_sums(api: &Api, comm: Comm, rank: usize, ranks: usize) {
    for count in [1, 5000, 200_000] {
        let (send, mut recv) = (vec![rank as i32 + 1; count], vec![0; count]);
        api.ok(api.all_reduce(&send, &mut recv, INT32, SUM, comm));
        let sum: i32 = (1..=ranks as i32).sum();
        assert!(recv.iter().all(|got| *got == sum), "rank {rank} of {ranks}: {}, not {sum}", recv[0]);
    }
}

fn place_of(api: &Api, comm: Comm) -> (usize, usize) {
    let (mut rank, mut ranks) = (-1, -1);
    api.ok(unsafe { (api.ncclCommUserRank)(comm, &raw mut rank) });
    api.ok(unsafe { (api.ncclCommCount)(comm, &raw mut ranks) });
    (rank as usize, ranks as usize)
}

/// A communicator without some ranks; the list as it is afterwards.
fn shrink(api: &Api, comm: Comm, excluded: &[c_int], flags: c_int) -> (c_int, Comm, Vec<c_int>) {
    let mut child = null_mut();
    let mut list = excluded.to_vec();
    let code = unsafe {
        (api.ncclCommShrink)(comm, list.as_mut_ptr(), list.len() as c_int, &raw mut child, null_mut(), flags)
    };
    (code, child, list)
}

#[test]
fn ranks_are_left_out_of_a_communicator_that_goes_on() {
    for hosts in 1..=2 {
        Cluster::new(5, 1).hosts(hosts).limit(60).run("shrink_in_peace");
    }
    Cluster::new(1, 5).limit(60).run("shrink_in_peace");
    Cluster::new(5, 1).env("ACCL_SHM_DISABLE", 1).limit(60).run("shrink_in_peace");
}

fn shrink_in_peace(rank: Rank) {
    let api = rank.api;
    let comm = rank.join();
    check_sums(api, comm, rank.rank, 5);
    if rank.rank != 1 && rank.rank != 3 {
        assert_eq!(shrink(api, comm, &[3, 1], 2).0, INVALID_ARGUMENT);
        assert_eq!(shrink(api, comm, &[3, 5], DEFAULT).0, INVALID_ARGUMENT);
        let (code, child, list) = shrink(api, comm, &[3, 1], DEFAULT);
        api.ok(code);
        assert_eq!(list, [1, 3], "sorted, as NCCL does");
        assert_eq!(place_of(api, child), (rank.rank / 2, 3));
        check_sums(api, child, rank.rank / 2, 3);
        // And once more, of the child.
        if rank.rank != 0 {
            let (code, grandchild, _) = shrink(api, child, &[0], DEFAULT);
            api.ok(code);
            check_sums(api, grandchild, rank.rank / 2 - 1, 2);
            api.destroy(grandchild);
        }
        api.destroy(child);
    }
    check_sums(api, comm, rank.rank, 5);
    api.destroy(comm);
}

/// C25.
#[test]
fn survivors_of_a_kill_go_on_without_the_dead() {
    for hosts in 1..=2 {
        for how in ["kill", "leave"] {
            let cluster = Cluster::new(5, 1).hosts(hosts).argument(how).limit(60);
            let ended = cluster.run_to_end("shrink_after_a_kill");
            for (rank, end) in ended.iter().enumerate() {
                let killed = rank == 3 && how == "kill";
                assert_eq!(
                    end.code,
                    if killed { None } else { Some(0) },
                    "{how}, rank {rank}:\n{}",
                    end.stderr
                );
            }
        }
    }
}

fn shrink_after_a_kill(rank: Rank) {
    let api = rank.api;
    let comm = rank.join();
    check_sums(api, comm, rank.rank, 5);
    if rank.rank == 3 {
        if rank.argument == "kill" {
            unsafe { libc::raise(libc::SIGKILL) };
        }
        return;
    }
    let (send, mut recv) = (vec![1; 100_000], vec![0; 100_000]);
    let code = api.all_reduce(&send, &mut recv, INT32, SUM, comm);
    assert_eq!(code, REMOTE_ERROR, "{}", api.error_text());
    assert!(api.error_text().contains("rank 3"), "{}", api.error_text());
    let (code, child, _) = shrink(api, comm, &[3], DEFAULT);
    assert_eq!((code, child), (INVALID_USAGE, null_mut()));
    assert!(api.error_text().contains("NCCL_SHRINK_ABORT"), "{}", api.error_text());
    // A split of what is broken needs all of it.
    let mut half = null_mut();
    assert_eq!(unsafe { (api.ncclCommSplit)(comm, 0, 0, &raw mut half, null_mut()) }, REMOTE_ERROR);
    let begin = Instant::now();
    let (code, child, _) = shrink(api, comm, &[3], ABORT);
    api.ok(code);
    assert!(begin.elapsed() < Duration::from_secs(10));
    let own = rank.rank - usize::from(rank.rank > 3);
    assert_eq!(place_of(api, child), (own, 4));
    check_sums(api, child, own, 4);
    api.ok(unsafe { (api.ncclCommAbort)(comm) });
    check_sums(api, child, own, 4);
    api.destroy(child);
}

const ROUNDS: usize = 20;
const SEATS: usize = 4;

/// C26, in place: the communicator shrinks to the survivors, and grows by a new process.
#[test]
fn the_dead_are_replaced_twenty_times() {
    let folder = std::env::temp_dir().join(format!("accl-replace-{}", std::process::id()));
    std::fs::create_dir_all(&folder).unwrap();
    let cluster = Cluster::new(SEATS + ROUNDS, 1).argument(folder.display()).limit(100);
    let ended = cluster.run_to_end("replace");
    let _ = std::fs::remove_dir_all(&folder);
    let killed = ended.iter().filter(|end| end.code.is_none()).count();
    assert_eq!(killed, ROUNDS);
    for (process, end) in ended.iter().enumerate() {
        assert!(matches!(end.code, None | Some(0)), "process {process}:\n{}", end.stderr);
    }
}

/// The processes after the first four each wait for a round in which they take the place of who was killed.
fn replace(rank: Rank) {
    let api = rank.api;
    let file = |round: usize| PathBuf::from(rank.argument).join(round.to_string());
    let (mut comm, begin) = if rank.rank < SEATS {
        (api.init(SEATS, rank.ids[0], rank.rank), 0)
    } else {
        let round = rank.rank - SEATS;
        let deadline = Instant::now() + Duration::from_secs(90);
        let id = loop {
            if let Ok(bytes) = std::fs::read(file(round)) {
                break UniqueId(bytes.try_into().unwrap());
            }
            assert!(Instant::now() < deadline, "nobody needs process {}", rank.rank);
            std::thread::sleep(Duration::from_millis(2));
        };
        let mut comm = null_mut();
        let last = SEATS as c_int - 1;
        api.ok(unsafe {
            (api.ncclCommGrow)(null_mut(), SEATS as c_int, &raw const id, last, &raw mut comm, null_mut())
        });
        (comm, round + 1)
    };
    let mut seen = None;
    for round in begin..ROUNDS {
        let (own, ranks) = place_of(api, comm);
        assert_eq!(ranks, SEATS);
        check_sums(api, comm, own, SEATS);
        // Anybody's turn, the first one's, too; before a call, or in the middle of many.
        let victim = (round * 7 + round / 4) % SEATS;
        if own == victim {
            let (send, mut recv) = (vec![1; 1 << (round % 17)], vec![0; 1 << (round % 17)]);
            for _ in 0..round {
                api.ok(api.all_reduce(&send, &mut recv, INT32, SUM, comm));
            }
            unsafe { libc::raise(libc::SIGKILL) };
        }
        let (send, mut recv) = (vec![1; 1 << (round % 17)], vec![0; 1 << (round % 17)]);
        let code = loop {
            let code = api.all_reduce(&send, &mut recv, INT32, SUM, comm);
            if code != SUCCESS {
                break code;
            }
            assert!(recv.iter().all(|sum| *sum == SEATS as i32));
        };
        assert_eq!(code, REMOTE_ERROR, "{}", api.error_text());
        assert!(api.error_text().contains(&format!("rank {victim} ")), "{}", api.error_text());
        let (code, rest, _) = shrink(api, comm, &[victim as c_int], ABORT);
        api.ok(code);
        api.destroy(comm);
        let (own, ranks) = place_of(api, rest);
        check_sums(api, rest, own, ranks);
        if own == round % ranks {
            let mut id = UniqueId([0; 128]);
            api.ok(unsafe { (api.ncclCommGetUniqueId)(rest, &raw mut id) });
            let new = file(round).with_extension("new");
            std::fs::write(&new, id.0).unwrap();
            std::fs::rename(new, file(round)).unwrap();
        }
        comm = null_mut();
        api.ok(unsafe { (api.ncclCommGrow)(rest, SEATS as c_int, null(), -1, &raw mut comm, null_mut()) });
        api.destroy(rest);
        check_growth(&mut seen, round - begin);
    }
    check_sums(api, comm, place_of(api, comm).0, SEATS);
    api.destroy(comm);
}

/// After a few rounds nothing grows any more.
fn check_growth(seen: &mut Option<(Snapshot, usize)>, round: usize) {
    match seen {
        None if round == 3 => *seen = Some((Snapshot::take(), memory_bytes())),
        Some((snapshot, bytes)) if round > 8 => {
            let now = (Snapshot::take(), memory_bytes());
            assert!(now.0.descriptors <= snapshot.descriptors + 2, "{now:?}, {snapshot:?}");
            assert!(now.0.threads <= snapshot.threads + 1, "{now:?}, {snapshot:?}");
            assert!(now.0.shared_mappings <= snapshot.shared_mappings, "{now:?}, {snapshot:?}");
            assert!(now.1 < *bytes + (4 << 20), "{now:?}, {bytes}");
        }
        _ => {}
    }
}

#[test]
fn a_revoked_communicator_ends_its_calls_and_can_be_split_and_shrunk() {
    for hosts in 1..=2 {
        Cluster::new(3, 1).hosts(hosts).limit(60).run("revoke");
    }
    Cluster::new(1, 3).limit(60).run("revoke");
}

fn revoke(rank: Rank) {
    let api = rank.api;
    let comm = rank.join();
    check_sums(api, comm, rank.rank, 3);
    if rank.rank == 0 {
        // A call that nobody else makes.
        let address = comm as usize;
        let waiting = std::thread::spawn(move || {
            let (send, mut recv) = (vec![1; 1000], vec![0; 1000]);
            let code = api.all_reduce(&send, &mut recv, INT32, SUM, address as Comm);
            (code, api.error_text())
        });
        std::thread::sleep(Duration::from_millis(200));
        api.ok(unsafe { (api.ncclCommRevoke)(comm, 0) });
        let (code, text) = waiting.join().unwrap();
        assert_eq!(code, INVALID_USAGE, "{text}");
    } else {
        std::thread::sleep(Duration::from_millis(300));
        // Its peers hear of it; theirs may be broken by then, and is revoked all the same.
        api.ok(unsafe { (api.ncclCommRevoke)(comm, 0) });
    }
    assert_eq!(unsafe { (api.ncclCommRevoke)(comm, 0) }, INVALID_ARGUMENT);
    let (send, mut recv) = (vec![1; 10], vec![0; 10]);
    assert_eq!(api.all_reduce(&send, &mut recv, INT32, SUM, comm), INVALID_USAGE);
    assert!(api.error_text().contains("revoked"), "{}", api.error_text());
    assert_eq!(unsafe { (api.ncclCommFinalize)(comm) }, INVALID_USAGE);
    assert_eq!(api.async_error(comm), SUCCESS, "{}", api.error_text());

    let mut reversed = null_mut();
    api.ok(unsafe { (api.ncclCommSplit)(comm, 0, -(rank.rank as c_int), &raw mut reversed, null_mut()) });
    assert_eq!(place_of(api, reversed), (2 - rank.rank, 3));
    check_sums(api, reversed, 2 - rank.rank, 3);
    if rank.rank != 1 {
        let (code, child, _) = shrink(api, comm, &[1], DEFAULT);
        api.ok(code);
        check_sums(api, child, rank.rank / 2, 2);
        api.destroy(child);
    }
    api.destroy(reversed);
    api.destroy(comm);
}

#[test]
fn one_rank_grows_to_several() {
    for hosts in 1..=2 {
        let folder = std::env::temp_dir().join(format!("accl-grow-{}-{hosts}", std::process::id()));
        std::fs::create_dir_all(&folder).unwrap();
        Cluster::new(4, 1).hosts(hosts).argument(folder.display()).limit(60).run("grow_from_one");
        let _ = std::fs::remove_dir_all(&folder);
    }
}

fn grow_from_one(rank: Rank) {
    let api = rank.api;
    let file = PathBuf::from(rank.argument).join("id");
    let mut comm = null_mut();
    if rank.rank == 0 {
        let mut id = UniqueId([0; 128]);
        api.ok(unsafe { (api.ncclGetUniqueId)(&raw mut id) });
        let alone = api.init(1, id, 0);
        // Nobody knows an id.
        assert_eq!(
            unsafe { (api.ncclCommGrow)(alone, 4, null(), -1, &raw mut comm, null_mut()) },
            INVALID_USAGE
        );
        api.ok(unsafe { (api.ncclCommGetUniqueId)(alone, &raw mut id) });
        std::fs::write(file.with_extension("new"), id.0).unwrap();
        std::fs::rename(file.with_extension("new"), file).unwrap();
        api.ok(unsafe { (api.ncclCommGrow)(alone, 4, &raw const id, -1, &raw mut comm, null_mut()) });
        check_sums(api, alone, 0, 1);
        api.destroy(alone);
    } else {
        let deadline = Instant::now() + Duration::from_secs(30);
        let id = loop {
            if let Ok(bytes) = std::fs::read(&file) {
                break UniqueId(bytes.try_into().unwrap());
            }
            assert!(Instant::now() < deadline);
            std::thread::sleep(Duration::from_millis(2));
        };
        let own = rank.rank as c_int;
        api.ok(unsafe { (api.ncclCommGrow)(null_mut(), 4, &raw const id, own, &raw mut comm, null_mut()) });
    }
    assert_eq!(place_of(api, comm), (rank.rank, 4));
    check_sums(api, comm, rank.rank, 4);
    api.destroy(comm);
}

/// Who waits for others in a shrink can give up, and hears of who has died meanwhile.
#[test]
fn a_shrink_that_waits_is_ended() {
    for how in ["abort", "kill"] {
        let ended = Cluster::new(3, 1).argument(how).limit(60).run_to_end("abort_a_shrink");
        assert_eq!(ended[0].code, Some(0), "{how}: {}", ended[0].stderr);
    }
}

fn abort_a_shrink(rank: Rank) {
    let api = rank.api;
    let comm = rank.join();
    check_sums(api, comm, rank.rank, 3);
    if rank.rank != 0 {
        std::thread::sleep(Duration::from_millis(500));
        if rank.argument == "kill" && rank.rank == 1 {
            unsafe { libc::raise(libc::SIGKILL) };
        }
        std::thread::sleep(Duration::from_secs(3));
        return;
    }
    let address = comm as usize;
    let waiting = std::thread::spawn(move || {
        let (code, child, _) = shrink(api, address as Comm, &[2], DEFAULT);
        assert!(child.is_null());
        (code, api.error_text())
    });
    if rank.argument == "abort" {
        std::thread::sleep(Duration::from_millis(300));
        api.ok(unsafe { (api.ncclCommAbort)(comm) });
    }
    let begin = Instant::now();
    let (code, text) = waiting.join().unwrap();
    assert!(begin.elapsed() < Duration::from_secs(2), "{:?}", begin.elapsed());
    if rank.argument == "kill" {
        assert_eq!(code, REMOTE_ERROR, "{text}");
        assert!(text.contains("rank 1 (process"), "{text}");
        api.destroy(comm);
    } else {
        assert_eq!(code, INVALID_USAGE, "{text}");
    }
}
