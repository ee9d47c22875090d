//! Little of everything: descriptors, threads, locked memory, addresses, cores.

// Helpers of tests fail by panicking.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]
// Every call here is a call of the C interface with arguments that the test keeps alive.
#![allow(clippy::undocumented_unsafe_blocks)]

mod support;

use std::ffi::c_int;
use std::os::fd::AsRawFd;
use std::path::PathBuf;
use std::ptr::null_mut;
use std::time::{Duration, Instant};
use support::api::{INT32, REMOTE_ERROR, SUCCESS, SUM, SYSTEM_ERROR};
use support::cluster::{Cluster, Rank, Scenario, work};
use support::limit;
use support::snapshot::{Snapshot, cpu_seconds};

const SCENARIOS: [(&str, Scenario); 6] = [
    ("grouped", grouped),
    ("without_room", without_room),
    ("split_without_descriptors", split_without_descriptors),
    ("limited", limited),
    ("crowded", crowded),
    ("spin", spin),
];

#[test]
fn worker() {
    work(&SCENARIOS);
}

/// C24: one rank runs out of descriptors in a split. All hear so, with its reason; the parent goes on.
#[test]
fn c24_split_fails_half_way() {
    Cluster::new(4, 1).env("ACCL_INIT_TIMEOUT", 5).limit(20).run("split_without_descriptors");
}

fn split_without_descriptors(rank: Rank) {
    let (api, comm) = (rank.api, rank.join());
    // What the process keeps for later is there from here on.
    let mut child = null_mut();
    api.ok(unsafe { (api.ncclCommSplit)(comm, 0, 0, &raw mut child, null_mut()) });
    api.destroy(child);
    std::thread::sleep(Duration::from_millis(200));
    let before = Snapshot::take();
    let mut failures = 0;
    for spare in 0..12 {
        if rank.rank == 2 {
            let free = std::fs::File::open("/dev/null").unwrap().as_raw_fd() as u64;
            limit(libc::RLIMIT_NOFILE, free + spare);
        }
        let mut child = null_mut();
        let code = unsafe { (api.ncclCommSplit)(comm, 0, 0, &raw mut child, null_mut()) };
        let text = api.error_text();
        limit(libc::RLIMIT_NOFILE, 1024);
        let failed = c_int::from(code != SUCCESS);
        let all = api.sum(failed, comm);
        assert!(all == 0 || all == 4, "{spare}: failed on {all} ranks: {text}");
        if failed == 1 {
            failures += 1;
            assert_eq!(child, null_mut());
            assert!(text.contains("rank 2") || rank.rank == 2, "{text}");
            assert!(text.contains("ulimit -n"), "{text}");
        } else {
            assert_eq!(api.sum(2, child), 8);
            api.destroy(child);
        }
    }
    assert!(failures > 0);
    std::thread::sleep(Duration::from_millis(200));
    let after = Snapshot::take();
    // The thread by which ranks find each other ends by itself some time.
    assert!(
        after.descriptors <= before.descriptors && after.threads <= before.threads,
        "{before:?} {after:?}"
    );
    assert_eq!(after.shared_mappings, before.shared_mappings);
    api.destroy(comm);
}

/// What all processes of a job may have, and what they say if that is too little.
fn job_within(ranks: usize, what: &str) -> Vec<String> {
    let cluster = Cluster::new(ranks, 1).env("ACCL_INIT_TIMEOUT", 5).env("ACCL_RECORDER", 0);
    cluster.argument(what).limit(60).run("limited")
}

/// True if all worked; else all failed, and every text has one of these words.
fn works_or_says(ranks: usize, what: &str, words: &str) -> bool {
    let said = job_within(ranks, what);
    let works = said.iter().filter(|text| text.contains("CODE 0")).count();
    assert!(works == 0 || works == ranks, "{what}: {said:?}");
    if works == 0 {
        for text in &said {
            let found = words.split('|').any(|word| text.contains(word));
            assert!(found && text.contains("CODE 2"), "{what}: {said:#?}");
        }
    }
    println!("{what}: {}", said[0].lines().last().unwrap_or_default());
    works > 0
}

/// C48: few descriptors are enough, or everybody hears of the limit.
#[test]
fn c48_few_descriptors() {
    for most in [8, 12, 16, 18, 20, 24, 64] {
        works_or_says(8, &format!("nofile {most}"), "ulimit -n");
    }
    assert!(works_or_says(8, "nofile 256", ""));
}

/// C49: no locked memory, no threads, few addresses.
#[test]
fn c49_memory_threads_addresses() {
    assert!(works_or_says(4, "memlock 0", ""));
    assert!(works_or_says(4, "memlock 65536", ""));
    works_or_says(4, "as 1073741824", "ulimit -v");
    works_or_says(4, "as 268435456", "ulimit -v");
    if unsafe { libc::geteuid() } == 0 {
        works_or_says(4, "nproc 1", "ulimit -u");
    } else {
        eprintln!("SKIPPED: the limit of processes is none for this user's tests: run as root");
    }
}

/// C49: more scratch memory than addresses for it is an error on all ranks, with the rank, the bytes and the limit; the process lives on.
#[test]
fn c49_no_room_to_work_in() {
    Cluster::new(3, 1).limit(30).run("without_room");
}

fn without_room(rank: Rank) {
    const COUNT: usize = 32 << 20;
    let (api, comm) = (rank.api, rank.join());
    assert_eq!(api.sum(1, comm), 3);
    let mut buffer = vec![1i32; COUNT + 1];
    if rank.rank == 1 {
        limit(libc::RLIMIT_AS, address_bytes() + (32 << 20));
    }
    // The result overlaps the input, which is put aside therefore.
    let from = buffer.as_mut_ptr();
    let code =
        unsafe { (api.ncclAllReduce)(from.cast(), from.add(1).cast(), COUNT, INT32, SUM, comm, null_mut()) };
    let text = api.error_text();
    assert_eq!(code, SYSTEM_ERROR, "{text}");
    for words in ["rank 1 (process ", "134217728 bytes", "ulimit -v"] {
        assert!(text.contains(words), "{text}");
    }
    limit(libc::RLIMIT_AS, libc::RLIM_INFINITY);
    api.destroy(comm);
    api.destroy(api.init(1, api.unique_id(), 0));
}

/// Addresses that this process has.
fn address_bytes() -> u64 {
    let text = std::fs::read_to_string("/proc/self/statm").unwrap();
    4096 * text.split_whitespace().next().unwrap().parse::<u64>().unwrap()
}

/// C49: a control group with 256 MiB for all ranks. What fits works; where a rank takes more than there is, the kernel ends it, and
/// the others hear who it was.
#[test]
fn c49_memory_control_group() {
    let Some(group) = MemoryGroup::new(256 << 20) else { return };
    for what in ["fits", "too much"] {
        let argument = format!("{what},{}", group.directory.display());
        let ended = Cluster::new(4, 1).argument(argument).limit(60).run_to_end("grouped");
        // Rank 1 takes too much; the kernel may end a second process before the first one's memory is back.
        let killed: Vec<_> = (0..4).filter(|rank| ended[*rank].code.is_none()).collect();
        let expected = if what == "fits" { 0..=0 } else { 1..=2 };
        assert!(expected.contains(&killed.len()), "{what}: {ended:?}");
        assert!(what == "fits" || killed.contains(&1), "{what}: {ended:?}");
        for end in ended.iter().filter(|end| end.code.is_some()) {
            assert_eq!(end.code, Some(0), "{what}: {ended:?}");
            let named = |rank: &usize| end.stderr.contains(&format!("rank {rank} (process "));
            assert!(what == "fits" || killed.iter().any(named), "{what}: {ended:?}");
        }
    }
}

fn grouped(rank: Rank) {
    let (what, directory) = rank.argument.split_once(',').unwrap();
    std::fs::write(format!("{directory}/cgroup.procs"), std::process::id().to_string()).unwrap();
    let (api, comm) = (rank.api, rank.join());
    for count in [1, 1000, 40_000, 2 << 20] {
        let (mine, mut sums) = (vec![rank.rank as i32; count], vec![0; count]);
        api.ok(api.all_reduce(&mine, &mut sums, INT32, SUM, comm));
        assert!(sums.iter().all(|sum| *sum == 6), "{count}");
    }
    if what == "too much" && rank.rank == 1 {
        // Whose memory it is that is too much, the kernel only guesses.
        std::fs::write("/proc/self/oom_score_adj", "1000").unwrap();
    }
    if what == "too much" {
        if rank.rank == 1 {
            let taken = vec![1u8; 300 << 20];
            panic!("there were {} bytes", std::hint::black_box(taken).len());
        }
        let code = api.all_reduce(&[1], &mut [0], INT32, SUM, comm);
        assert_eq!(code, REMOTE_ERROR, "{}", api.error_text());
        eprintln!("{}", api.error_text());
    }
    api.destroy(comm);
}

/// A control group of either kind; gone when this is dropped.
struct MemoryGroup {
    directory: PathBuf,
}

impl MemoryGroup {
    /// None, and a line that says so, where none can be made.
    fn new(bytes: u64) -> Option<Self> {
        let name = format!("accl-test-{}", std::process::id());
        let kinds = [("/sys/fs/cgroup/memory", "memory.limit_in_bytes"), ("/sys/fs/cgroup", "memory.max")];
        for (parent, limit) in kinds {
            if !PathBuf::from(parent).join("cgroup.procs").exists() {
                eprintln!("{parent} is no control group");
                continue;
            }
            // Of the second kind: groups inside have limits only if the one around them says so.
            let _ = std::fs::write(format!("{parent}/cgroup.subtree_control"), "+memory");
            let group = Self { directory: PathBuf::from(parent).join(&name) };
            let made = std::fs::create_dir(&group.directory)
                .and_then(|()| std::fs::write(group.directory.join(limit), bytes.to_string()));
            let _ = std::fs::write(group.directory.join("memory.swap.max"), "0");
            match made {
                Ok(()) => return Some(group),
                Err(error) => eprintln!("{}: {error}", group.directory.display()),
            }
        }
        eprintln!(
            "SKIPPED: a memory control group cannot be made here: run as root, with one that can be written to"
        );
        None
    }
}

impl Drop for MemoryGroup {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir(&self.directory);
    }
}

fn limited(rank: Rank) {
    let (what, most) = rank.argument.split_once(' ').unwrap();
    let most: u64 = most.parse().unwrap();
    match what {
        "nofile" => limit(libc::RLIMIT_NOFILE, most),
        "memlock" => limit(libc::RLIMIT_MEMLOCK, most),
        "as" => limit(libc::RLIMIT_AS, most),
        _ => {
            limit(libc::RLIMIT_NPROC, most);
            // The limit is none for root.
            assert_eq!(unsafe { libc::setuid(65533) }, 0);
        }
    }
    let mut comm = null_mut();
    let ranks = rank.ranks as c_int;
    let mut code =
        unsafe { (rank.api.ncclCommInitRank)(&raw mut comm, ranks, rank.ids[0], rank.rank as c_int) };
    for count in [1, 5_000, 1 << 20] {
        if code == SUCCESS {
            let (mine, mut sums) = (vec![rank.rank as i32; count], vec![0; count]);
            code = rank.api.all_reduce(&mine, &mut sums, INT32, SUM, comm);
            assert!(code != SUCCESS || sums.iter().all(|sum| *sum == ranks * (ranks - 1) / 2));
        }
    }
    eprintln!("CODE {code}: {}", if code == SUCCESS { String::new() } else { rank.api.error_text() });
    assert!(code == SUCCESS || code == SYSTEM_ERROR || code == 6 || code == 8, "{code}");
    unsafe { (rank.api.ncclCommAbort)(comm) };
}

/// C50, the other half: many more ranks than cores, beside a process that computes.
#[test]
fn c50_more_ranks_than_cores() {
    let median_us = |ranks: usize| -> f64 {
        let said = Cluster::new(ranks, 1).limit(100).run("crowded");
        let line = said[0].lines().find_map(|line| line.strip_prefix("MEDIAN ")).expect("a median");
        line.parse().unwrap()
    };
    let outsider = std::thread::spawn(|| Cluster::new(1, 1).limit(110).run("spin"));
    let (eight, sixteen) = (median_us(8), median_us(16));
    // Ranks that have a core to themselves for a while need no kernel: such a median says nothing of the other one.
    println!("median of 8 ranks {eight:.0} µs, of 16 ranks {sixteen:.0} µs");
    let said = outsider.join().unwrap();
    println!("{}", said[0]);
    // A livelock ends the clusters by their limit; how long calls take is for people.
}

fn crowded(rank: Rank) {
    const COUNT: usize = 1024;
    let (api, comm) = (rank.api, rank.join());
    let (mine, mut sums) = (vec![1; COUNT], vec![0; COUNT]);
    let mut times: Vec<u128> = (0..300)
        .map(|_| {
            let begin = Instant::now();
            api.ok(api.all_reduce(&mine, &mut sums, INT32, SUM, comm));
            assert_eq!(sums, vec![rank.ranks as i32; COUNT]);
            begin.elapsed().as_micros()
        })
        .collect();
    times.sort_unstable();
    eprintln!("MEDIAN {}", times[150]);
    api.destroy(comm);
}

/// Computes for a while, and must get its share.
fn spin(_: Rank) {
    let begin = Instant::now();
    while begin.elapsed() < Duration::from_secs(3) {
        std::hint::spin_loop();
    }
    let (used, passed) = (cpu_seconds(), begin.elapsed().as_secs_f64());
    eprintln!("the outsider had {used:.1} of {passed:.1} s");
    assert!(used > 0.05 * passed, "{used} of {passed} s");
}
