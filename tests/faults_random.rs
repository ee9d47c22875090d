//! Faults at random points: ranks that are killed, stopped, leave, abort, skip a call or make another one. Every other rank must come
//! out of it, with the right rank named, and no wrong result is taken for a good one.
//!
//! `ACCL_FAULTS` sets how many there are, `ACCL_SWEEP_SEED` the seed, which is printed. `ACCL_FAULT` is the number of one fault, as failures print
//! it first, which is then injected `ACCL_FAULTS` times.

// Helpers of tests fail by panicking.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]
// Every call here is a call of the C interface with arguments that the test keeps alive.
#![allow(clippy::undocumented_unsafe_blocks)]

mod support;

use std::ffi::c_int;
use std::ptr::null_mut;
use std::time::{Duration, Instant};
use support::api::{Api, Comm, INT32, INVALID_USAGE, REMOTE_ERROR, SUCCESS, SUM, TIMEOUT};
use support::cluster::{Cluster, Rank, Scenario, work};
use support::oracle::mix;

const SCENARIOS: [(&str, Scenario); 1] = [("fault", fault)];
const RANKS: usize = 4;
const CALLS: u64 = 30;
/// Seconds of ACCL_TIMEOUT: who is stopped, or does not call, is missed after that.
const PATIENCE_S: u64 = 2;
/// How long a rank may take to come out of it.
const BOUND: Duration = Duration::from_secs(20);

#[test]
fn worker() {
    work(&SCENARIOS);
}

/// What one rank does.
const FAULTS: [&str; 7] = ["kill", "stop", "exit", "abort", "skip", "count", "kind"];
/// Where the ranks are.
const LAYOUTS: [&str; 4] = ["memory", "tcp", "hosts", "threads"];

fn number(name: &str) -> Option<u64> {
    std::env::var(name).ok().and_then(|text| text.parse().ok())
}

#[test]
fn every_rank_comes_out_of_it_and_names_the_right_one() {
    let seed = number("ACCL_SWEEP_SEED").unwrap_or_else(|| {
        u64::from(std::process::id()) ^ std::time::UNIX_EPOCH.elapsed().unwrap().as_nanos() as u64
    });
    println!("ACCL_SWEEP_SEED={seed}");
    let faults = number("ACCL_FAULTS").unwrap_or(64);
    let one = number("ACCL_FAULT");
    let next = std::sync::atomic::AtomicU64::new(0);
    std::thread::scope(|scope| {
        // Most of the time is waiting.
        for _ in 0..4 {
            scope.spawn(|| {
                loop {
                    let number = next.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
                    if number >= faults {
                        return;
                    }
                    inject(one.unwrap_or_else(|| mix(seed ^ number << 20)));
                }
            });
        }
    });
}

/// One job, one fault.
fn inject(random: u64) {
    let layout = LAYOUTS[(random >> 8) as usize % LAYOUTS.len()];
    let mut fault = FAULTS[(random >> 16) as usize % FAULTS.len()];
    if layout == "threads" && matches!(fault, "kill" | "stop" | "exit") {
        // Those would hit all ranks.
        fault = "abort";
    }
    let victim = (random >> 24) as usize % RANKS;
    let cluster = match layout {
        "threads" => Cluster::new(1, RANKS),
        "tcp" => Cluster::new(RANKS, 1).env("ACCL_SHM_DISABLE", 1),
        "hosts" => Cluster::new(RANKS, 1).hosts(2),
        _ => Cluster::new(RANKS, 1),
    };
    let what = format!("{random},{victim},{fault}");
    let cluster = cluster.env("ACCL_TIMEOUT", PATIENCE_S).env("ACCL_WARN_AFTER", 0).argument(&what).limit(60);
    let ended = cluster.run_to_end("fault");
    for (process, end) in ended.iter().enumerate() {
        let gone = layout != "threads" && process == victim && matches!(fault, "kill" | "stop");
        let expected = if gone { None } else { Some(0) };
        assert_eq!(end.code, expected, "{layout} {what}: process {process}\n{}", end.stderr);
    }
}

fn fault(rank: Rank) {
    let words: Vec<&str> = rank.argument.split(',').collect();
    let (random, victim): (u64, usize) = (words[0].parse().unwrap(), words[1].parse().unwrap());
    let at = (random >> 32) % CALLS;
    let comm = rank.join();
    for call in 0..CALLS {
        let is_faulty = rank.rank == victim && call == at;
        if is_faulty && !strike(rank.api, comm, words[2]) {
            return;
        }
        if is_faulty && words[2] == "skip" {
            continue;
        }
        let begin = Instant::now();
        let twist = if is_faulty { words[2] } else { "" };
        let code = make_call(&rank, comm, random, call, twist);
        if code != SUCCESS {
            assert!(begin.elapsed() < BOUND, "{:?}", begin.elapsed());
            let late = if words[2] == "skip" && at == CALLS - 1 { "abort" } else { words[2] };
            return check_failure(&rank, comm, (late, victim), code);
        }
    }
    // Who skipped the last call has missed nobody; all others have missed it.
    assert!(rank.rank == victim, "rank {} noticed nothing", rank.rank);
    rank.api.ok(unsafe { (rank.api.ncclCommAbort)(comm) });
}

/// What becomes of a rank; false if it makes no more calls.
fn strike(api: &Api, comm: Comm, fault: &str) -> bool {
    match fault {
        "kill" => unsafe { libc::raise(libc::SIGKILL) },
        "stop" => unsafe {
            // Nobody continues it: it ends when all others must be through.
            let stopped = libc::getpid();
            if libc::fork() == 0 {
                libc::sleep(PATIENCE_S as u32 + 6);
                libc::kill(stopped, libc::SIGKILL);
                libc::_exit(0);
            }
            libc::raise(libc::SIGSTOP)
        },
        "exit" => unsafe { libc::_exit(0) },
        "abort" => {
            api.ok(unsafe { (api.ncclCommAbort)(comm) });
            return false;
        }
        _ => return true,
    };
    true
}

/// Call number `call`, the same for all ranks but one that twists it; the results of those that succeed are right.
fn make_call(rank: &Rank, comm: Comm, random: u64, call: u64, twist: &str) -> c_int {
    let api = rank.api;
    let random = mix(random ^ call << 7);
    // No two calls in a row are alike.
    let mut count = [1, 300, 20_000, 150_000][(random >> 3) as usize % 4] + call as usize;
    let mut kind = (random % 4) as usize;
    match twist {
        "count" => count += 1,
        "kind" => kind = (kind + 1) % 4,
        _ => {}
    }
    let value = |rank: usize| (rank * 1000 + call as usize) as i32;
    let sum: i32 = (0..RANKS).map(value).sum();
    let send = vec![value(rank.rank); count * RANKS];
    let mut recv = vec![-1; count * RANKS];
    let (from, to) = (send.as_ptr().cast_mut().cast(), recv.as_mut_ptr().cast());
    let (code, blocks, expected): (c_int, usize, Box<dyn Fn(usize) -> i32>) = unsafe {
        match kind {
            0 => ((api.ncclAllReduce)(from, to, count, INT32, SUM, comm, null_mut()), 1, Box::new(|_| sum)),
            1 => ((api.ncclAllGather)(from, to, count, INT32, comm, null_mut()), RANKS, Box::new(value)),
            2 => {
                ((api.ncclReduceScatter)(from, to, count, INT32, SUM, comm, null_mut()), 1, Box::new(|_| sum))
            }
            _ => ((api.ncclAlltoAll)(from, to, count, INT32, comm, null_mut()), RANKS, Box::new(value)),
        }
    };
    if code == SUCCESS {
        for (index, got) in recv[..blocks * count].iter().enumerate() {
            assert_eq!(*got, expected(index / count), "call {call}, kind {kind}, element {index} of {count}");
        }
    }
    code
}

fn check_failure(rank: &Rank, comm: Comm, (fault, victim): (&str, usize), code: c_int) {
    let api = rank.api;
    let text = api.error_text();
    let expected: &[c_int] = match fault {
        "kill" | "exit" | "abort" => &[REMOTE_ERROR],
        "stop" => &[TIMEOUT],
        // Who is one behind is found out when the kinds differ, which is at once.
        _ => &[INVALID_USAGE],
    };
    assert!(expected.contains(&code), "{fault} of rank {victim}: code {code}: {text}");
    let names = [format!("rank {victim} "), format!("rank {victim}:"), format!("rank {victim},")];
    assert!(names.iter().any(|name| text.contains(name)), "{fault} of rank {victim}: {text}");
    let begin = Instant::now();
    assert_eq!(api.async_error(comm), code, "{text}");
    api.ok(unsafe { (api.ncclCommAbort)(comm) });
    assert!(begin.elapsed() < Duration::from_secs(5), "{:?}", begin.elapsed());
}
