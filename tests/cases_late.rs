//! Ranks that are late, stopped, or an operation behind: the others wait cheaply, and say for whom and in what.

// Helpers of tests fail by panicking.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]
// Every call here is a call of the C interface with arguments that the test keeps alive.
#![allow(clippy::undocumented_unsafe_blocks)]

mod support;

use std::ffi::c_int;
use std::ptr::null_mut;
use std::time::{Duration, Instant};
use support::api::{Comm, INT32, INVALID_USAGE, REMOTE_ERROR, SUCCESS, SUM, TIMEOUT};
use support::cluster::{Cluster, Rank, Scenario, work};
use support::snapshot::cpu_seconds;

const SCENARIOS: [(&str, Scenario); 7] = [
    ("late", late),
    ("no_split", no_split),
    ("stopped", stopped),
    ("continued", continued),
    ("skipped", skipped),
    ("many_wait", many_wait),
    ("chain", chain),
];

#[test]
fn worker() {
    work(&SCENARIOS);
}

fn warnings(text: &str) -> Vec<&str> {
    text.lines().filter(|line| line.contains("WARN")).collect()
}

/// C08: one warning for each wait, with rank and operation; results are right, and waiting costs little.
#[test]
fn c08_one_rank_is_late() {
    let texts = Cluster::new(4, 1).env("ACCL_WARN_AFTER", 1).run("late");
    for (rank, text) in texts.iter().enumerate() {
        let warnings = warnings(text);
        assert_eq!(warnings.len(), if rank == 2 { 0 } else { 3 }, "rank {rank}: {text}");
        for (warning, call) in warnings.iter().zip(["Broadcast(", "AllReduce(", "AllGather("]) {
            assert!(warning.contains("for rank 2:") && warning.contains(call), "{warning}");
        }
    }
}

fn late(rank: Rank) {
    const COUNT: usize = 5000;
    let (api, comm) = (rank.api, rank.join());
    let mine = vec![rank.rank as i32 + 1; COUNT];
    let mut theirs = vec![0i32; COUNT * 4];
    let (from, to) = (mine.as_ptr().cast_mut().cast(), theirs.as_mut_ptr().cast());
    let cpu = cpu_seconds();
    for call in 0..3 {
        if rank.rank == 2 {
            std::thread::sleep(Duration::from_secs(3));
        }
        api.ok(unsafe {
            match call {
                0 => (api.ncclBroadcast)(from, to, COUNT, INT32, 2, comm, null_mut()),
                1 => (api.ncclAllReduce)(from, to, COUNT, INT32, SUM, comm, null_mut()),
                _ => (api.ncclAllGather)(from, to, COUNT, INT32, comm, null_mut()),
            }
        });
        let expected = |index: usize| [3, 10, (index / COUNT) as i32 + 1][call];
        let length = if call == 2 { 4 * COUNT } else { COUNT };
        // SAFETY: the memory is `theirs`.
        let got = unsafe { std::slice::from_raw_parts(to.cast::<i32>(), length) };
        assert!(got.iter().enumerate().all(|(index, value)| *value == expected(index)), "call {call}");
    }
    // Nine seconds of waiting.
    let used = cpu_seconds() - cpu;
    assert!(used < 0.45, "waiting took {used} s of CPU time");
    assert_eq!(api.async_error(comm), SUCCESS);
    api.destroy(comm);
}

/// C23: a split that a rank does not make, because it makes another call, or none.
#[test]
fn c23_one_rank_does_not_split() {
    for other in ["reduces", "sleeps"] {
        Cluster::new(4, 1).env("ACCL_TIMEOUT", 2).argument(other).limit(60).run("no_split");
    }
}

fn no_split(rank: Rank) {
    let (api, comm) = (rank.api, rank.join());
    assert_eq!(api.sum(1, comm), 4);
    let begin = Instant::now();
    let mut child = null_mut();
    let split = |child: &mut Comm| unsafe { (api.ncclCommSplit)(comm, 0, 0, child, null_mut()) };
    let code = match (rank.rank, rank.argument) {
        (3, "reduces") => api.all_reduce(&[1], &mut [0], INT32, SUM, comm),
        (3, _) => {
            std::thread::sleep(Duration::from_secs(4));
            REMOTE_ERROR
        }
        _ => split(&mut child),
    };
    let text = api.error_text();
    assert!(begin.elapsed() < Duration::from_secs(15), "{:?}", begin.elapsed());
    assert_eq!(child, null_mut());
    if rank.argument == "reduces" {
        assert_eq!(code, INVALID_USAGE, "{text}");
        assert!(text.contains("rank 3") && text.contains("AllReduce(1 × int32, sum)"), "{text}");
    } else if rank.rank != 3 {
        // Whoever is first to miss it says so; the others may hear of that.
        assert_eq!(code, TIMEOUT, "{text}");
        assert!(text.contains("rank 3") && text.contains("#1"), "{text}");
    }
    api.ok(unsafe { (api.ncclCommAbort)(comm) });
}

/// C28: a stopped rank is named as stopped when the time is up; without a limit it is waited for.
#[test]
fn c28_stopped_rank() {
    Cluster::new(4, 1).env("ACCL_TIMEOUT", 2).limit(60).run("stopped");
    let texts = Cluster::new(4, 1).env("ACCL_WARN_AFTER", 1).limit(60).run("continued");
    for rank in [0, 2, 3] {
        let warnings = warnings(&texts[rank]);
        assert_eq!(warnings.len(), 1, "{}", texts[rank]);
        assert!(
            warnings[0].contains("rank 1") && warnings[0].contains("is alive but stopped"),
            "{}",
            warnings[0]
        );
    }
}

/// The process number of rank 1, known to all.
fn pid_of_rank_1(rank: &Rank, comm: Comm) -> libc::pid_t {
    let mine = if rank.rank == 1 { std::process::id() as i32 } else { 0 };
    rank.api.sum(mine, comm)
}

fn stopped(rank: Rank) {
    let (api, comm) = (rank.api, rank.join());
    let pid = pid_of_rank_1(&rank, comm);
    if rank.rank == 1 {
        unsafe { libc::raise(libc::SIGSTOP) };
    }
    let (mine, mut sums) = (vec![1; 100_000], vec![0; 100_000]);
    let begin = Instant::now();
    let code = api.all_reduce(&mine, &mut sums, INT32, SUM, comm);
    let text = api.error_text();
    if rank.rank != 1 {
        assert_eq!(code, TIMEOUT, "{text}");
        assert!(text.contains("rank 1 (process") && text.contains("is alive but stopped"), "{text}");
        assert!(text.contains("its last was collective #1"), "{text}");
        assert!(begin.elapsed() < Duration::from_secs(10), "{:?}", begin.elapsed());
    } else {
        assert_ne!(code, SUCCESS);
    }
    api.ok(unsafe { (api.ncclCommAbort)(comm) });
    if rank.rank == 0 {
        // The others have had their time.
        std::thread::sleep(Duration::from_secs(2));
        unsafe { libc::kill(pid, libc::SIGCONT) };
    }
}

fn continued(rank: Rank) {
    let (api, comm) = (rank.api, rank.join());
    let pid = pid_of_rank_1(&rank, comm);
    let waker = (rank.rank == 0).then(|| {
        std::thread::spawn(move || unsafe {
            libc::kill(pid, libc::SIGSTOP);
            std::thread::sleep(Duration::from_secs(4));
            libc::kill(pid, libc::SIGCONT);
        })
    });
    if rank.rank == 1 {
        // Long enough to be stopped in it.
        std::thread::sleep(Duration::from_secs(1));
    }
    for round in 0..20 {
        let (mine, mut sums) = (vec![round; 50_000], vec![0; 50_000]);
        api.ok(api.all_reduce(&mine, &mut sums, INT32, SUM, comm));
        assert!(sums.iter().all(|sum| *sum == 4 * round));
    }
    assert_eq!(api.async_error(comm), SUCCESS);
    if let Some(waker) = waker {
        waker.join().unwrap();
    }
    api.destroy(comm);
}

/// C38: a rank that skips one of a thousand operations. It is found where the next ones differ; where all are alike, the end of the run
/// says who is behind, and by its number where.
#[test]
fn c38_skipped_operation() {
    for what in ["differ", "alike, waits", "alike, leaves"] {
        Cluster::new(8, 1).env("ACCL_TIMEOUT", 2).argument(what).limit(60).run("skipped");
    }
}

fn skipped(rank: Rank) {
    let (api, comm) = (rank.api, rank.join());
    let mut made = 0;
    for call in 1..=1000 {
        if rank.rank == 5 && call == 501 {
            continue;
        }
        let count = if rank.argument == "differ" { 1 + call % 2 } else { 1 };
        let mut sums = vec![0; count];
        let code = api.all_reduce(&vec![1; count], &mut sums, INT32, SUM, comm);
        if code != SUCCESS {
            let text = api.error_text();
            check_behind(&rank, code, made, &text);
            return api.ok(unsafe { (api.ncclCommAbort)(comm) });
        }
        made += 1;
        assert_eq!(sums, vec![8; count]);
    }
    assert_eq!((rank.rank, made), (5, 999), "who skips nothing notices");
    if rank.argument == "alike, waits" {
        std::thread::sleep(Duration::from_secs(4));
    }
    api.destroy(comm);
}

fn check_behind(rank: &Rank, code: c_int, made: usize, text: &str) {
    let alone = ["rank 5 ", "rank 5:", "rank 5,"].iter().any(|name| text.contains(name));
    assert!(alone, "{text}");
    if rank.argument == "differ" {
        assert_eq!((code, made), (INVALID_USAGE, 500), "{text}");
        assert!(text.contains("collective #501"), "{text}");
        for call in ["AllReduce(1 × int32, sum)", "AllReduce(2 × int32, sum)"] {
            assert!(text.contains(call), "{text}");
        }
    } else {
        let expected = if rank.argument == "alike, waits" { TIMEOUT } else { REMOTE_ERROR };
        assert_eq!((code, made), (expected, 999), "{text}");
        assert!(text.contains("collective #1000") && text.contains("#999"), "{text}");
    }
}

/// C50, the first half: who waits for half a minute hardly runs. The shorter time here has the same share.
#[test]
fn c50_waiting_is_cheap() {
    Cluster::new(4, 1).env("ACCL_WARN_AFTER", 0).run("many_wait");
}

fn many_wait(rank: Rank) {
    const SECONDS: u64 = 6;
    let (api, comm) = (rank.api, rank.join());
    assert_eq!(api.sum(1, comm), 4);
    for count in [1, 200_000] {
        let cpu = cpu_seconds();
        if rank.rank == 3 {
            std::thread::sleep(Duration::from_secs(SECONDS));
        }
        let (mine, mut sums) = (vec![1; count], vec![0; count]);
        api.ok(api.all_reduce(&mine, &mut sums, INT32, SUM, comm));
        assert!(sums.iter().all(|sum| *sum == 4));
        let used = cpu_seconds() - cpu;
        assert!(used < 0.05 * SECONDS as f64, "{count}: {used} s of CPU time in {SECONDS} s");
    }
    api.destroy(comm);
}

/// Between hosts nobody sees for whom others wait: ranks that wait for ranks that wait must name the one that does not, and all the same.
/// One rank is stopped, or sleeps; there is a rank on each host, or two, of which the first speaks for both.
#[test]
fn who_is_late_is_named_between_hosts_by_all() {
    const ROUNDS: usize = 24;
    let next = std::sync::atomic::AtomicUsize::new(0);
    std::thread::scope(|scope| {
        // Most of the time is waiting.
        for _ in 0..4 {
            scope.spawn(|| {
                loop {
                    let round = next.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
                    if round >= ROUNDS {
                        return;
                    }
                    chain_round(round);
                }
            });
        }
    });
}

fn chain_round(round: usize) {
    let (how, pairs) = (["stops", "sleeps"][round % 2], round / 2 % 3 == 2);
    let ranks = if pairs { 6 } else { 4 };
    let victim = round / 2 % ranks;
    let cluster = Cluster::new(ranks, 1).argument(format!("{victim},{how}"));
    let cluster = if pairs { cluster.hosts(3) } else { cluster.env("ACCL_SHM_DISABLE", 1) };
    let ended = cluster.env("ACCL_TIMEOUT", 1).env("ACCL_WARN_AFTER", 0).limit(60).run_to_end("chain");
    println!("round {round}: rank {victim} {how}, pairs: {pairs}");
    for (rank, end) in ended.iter().enumerate().filter(|(rank, _)| *rank != victim) {
        assert_eq!(end.code, Some(0), "round {round}, rank {rank}: {}", end.stderr);
        let text = end.stderr.lines().find(|line| line.starts_with("late: ")).unwrap_or_default();
        println!("  rank {rank}: {text}");
        // A stopped leader cannot tell of the other rank on its host, which waits; then both are named.
        let speaks = pairs && how == "stops" && victim < 3;
        let (named, speaker) = (format!(": rank {victim} ("), format!("Nor does rank {victim} ("));
        let right = text.contains(&named) || speaks && text.contains(&speaker);
        assert!(right, "round {round}, rank {rank}, rank {victim} {how}: {text}");
    }
}

/// Calls in which ranks wait for each other in turn, and one that does not come to the last.
fn chain(rank: Rank) {
    const COUNT: usize = 20_024;
    let (api, comm) = (rank.api, rank.join());
    let (victim, how) = rank.argument.split_once(',').unwrap();
    let is_late = rank.rank == victim.parse::<usize>().unwrap();
    let send = vec![1; COUNT * rank.ranks];
    let mut recv = vec![0; COUNT * rank.ranks];
    let (from, to) = (send.as_ptr().cast_mut().cast(), recv.as_mut_ptr().cast());
    for call in 0..4 {
        if is_late && call == 3 {
            if how == "sleeps" {
                std::thread::sleep(Duration::from_secs(4));
                return api.ok(unsafe { (api.ncclCommAbort)(comm) });
            }
            let stopped = std::process::id() as libc::pid_t;
            unsafe {
                // Ends it when all others must be through.
                if libc::fork() == 0 {
                    libc::sleep(6);
                    libc::kill(stopped, libc::SIGKILL);
                    libc::_exit(0);
                }
                libc::raise(libc::SIGSTOP);
            }
        }
        let code = unsafe { (api.ncclAlltoAll)(from, to, COUNT, INT32, comm, null_mut()) };
        if call == 3 {
            let text = api.error_text();
            assert_eq!(code, TIMEOUT, "{text}");
            eprintln!("late: {}", text.lines().next().unwrap());
        } else {
            api.ok(code);
        }
    }
    api.ok(unsafe { (api.ncclCommAbort)(comm) });
}
