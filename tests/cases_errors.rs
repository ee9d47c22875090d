//! Ten failures, and what users are told of each (C66): with no log asked for, one line of at most 400 bytes that says what
//! happened to what, what there was and what was needed, what to do, and the code's name.

// Helpers of tests fail by panicking.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]
// Every call here is a call of the C interface with arguments that the test keeps alive.
#![allow(clippy::undocumented_unsafe_blocks)]

mod support;

use accl_core::config::Network;
use accl_core::{ErrorKind, bootstrap};
use std::ffi::c_int;
use std::net::TcpListener;
use std::os::fd::AsRawFd;
use std::ptr::null_mut;
use support::api::{
    Comm, INT32, INVALID_ARGUMENT, INVALID_USAGE, REMOTE_ERROR, SUCCESS, SUM, SYSTEM_ERROR, TIMEOUT, UniqueId,
};
use support::cluster::{Cluster, Rank, Scenario, work};
use support::limit;

const SCENARIOS: [(&str, Scenario); 9] = [
    ("memory_full", memory_full),
    ("not_permitted", not_permitted),
    ("few_descriptors", few_descriptors),
    ("no_id", no_id),
    ("make_id", make_id),
    ("given_id", given_id),
    ("init_of_two", init_of_two),
    ("killed", killed),
    ("bad_root", bad_root),
];

#[test]
fn worker() {
    work(&SCENARIOS);
}

/// Tells the test what a call has led to.
fn tell(rank: &Rank, code: c_int) {
    eprintln!("told {code} {}", rank.api.error_text());
}

/// What a process has told: of how many failures, each with its code.
fn told(stderr: &str) -> Vec<(c_int, String)> {
    let lines = stderr.lines().filter_map(|line| line.strip_prefix("told "));
    lines
        .map(|line| {
            let (code, text) = line.split_once(' ').unwrap();
            (code.parse().unwrap(), text.to_string())
        })
        .collect()
}

/// The text of the only failure, which has this code, holds all `words`, and says all that it must.
#[track_caller]
fn check(stderr: &str, code: c_int, words: &[&str]) -> String {
    let all = told(stderr);
    assert_eq!(all.len(), 1, "{stderr}");
    let (found, text) = &all[0];
    println!("{text}");
    let names = [
        "",
        "",
        "ncclSystemError",
        "",
        "ncclInvalidArgument",
        "ncclInvalidUsage",
        "ncclRemoteError",
        "",
        "ncclTimeout",
    ];
    assert_eq!(*found, code, "{text}");
    assert!(text.len() < 400, "{} bytes: {text}", text.len());
    assert!(text.ends_with(&format!(" ({})", names[code as usize])), "{text}");
    for word in words {
        assert!(text.contains(word), "{word} in {text}");
    }
    text.clone()
}

fn init(rank: &Rank, id: UniqueId) -> (c_int, Comm) {
    let mut comm = null_mut();
    let ranks = rank.ranks as c_int;
    let code = unsafe { (rank.api.ncclCommInitRank)(&raw mut comm, ranks, id, rank.rank as c_int) };
    (code, comm)
}

#[test]
fn shared_memory_is_full() {
    for stderr in Cluster::new(2, 1).run("memory_full") {
        let words = ["rank 0", "memory file to ", " bytes", "File too large", "ulimit -f", "container"];
        check(&stderr, SYSTEM_ERROR, &words);
    }
}

/// Rank 0's process makes the memory of its host.
fn memory_full(rank: Rank) {
    if rank.rank == 0 {
        // The kernel asks a process to end that writes too much, and tells it if it does not want to.
        unsafe { libc::signal(libc::SIGXFSZ, libc::SIG_IGN) };
        limit(libc::RLIMIT_FSIZE, 1 << 16);
    }
    tell(&rank, init(&rank, rank.ids[0]).0);
}

#[test]
fn something_is_not_permitted() {
    for stderr in Cluster::new(2, 1).run("not_permitted") {
        check(&stderr, SYSTEM_ERROR, &["rank 0", "memfd_create", "Operation not permitted", "seccomp"]);
    }
}

fn not_permitted(rank: Rank) {
    if rank.rank == 0 {
        forbid(libc::SYS_memfd_create);
    }
    tell(&rank, init(&rank, rank.ids[0]).0);
}

/// Has the kernel refuse a system call to this thread, as a container's profile does.
fn forbid(call: libc::c_long) {
    let statement = |code: u32, jt, jf, k| libc::sock_filter { code: code as u16, jt, jf, k };
    let mut filter = [
        // The number of the call comes first in what is looked at.
        statement(libc::BPF_LD | libc::BPF_W | libc::BPF_ABS, 0, 0, 0),
        statement(libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K, 0, 1, call as u32),
        statement(libc::BPF_RET | libc::BPF_K, 0, 0, libc::SECCOMP_RET_ERRNO | libc::EPERM as u32),
        statement(libc::BPF_RET | libc::BPF_K, 0, 0, libc::SECCOMP_RET_ALLOW),
    ];
    let program = libc::sock_fprog { len: 4, filter: filter.as_mut_ptr() };
    assert_eq!(unsafe { libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) }, 0);
    let set = unsafe { libc::prctl(libc::PR_SET_SECCOMP, libc::SECCOMP_MODE_FILTER, &raw const program) };
    assert_eq!(set, 0, "{}", std::io::Error::last_os_error());
}

#[test]
fn descriptors_run_out() {
    let stderr = Cluster::new(1, 1).run("few_descriptors");
    check(&stderr[0], SYSTEM_ERROR, &["Too many open files", "ulimit -n"]);
}

fn few_descriptors(rank: Rank) {
    // Descriptors that the worker inherited may lie anywhere: count from the lowest free one.
    let free = std::fs::File::open("/dev/null").unwrap().as_raw_fd() as usize;
    limit(libc::RLIMIT_NOFILE, free as u64 + 1);
    let mut id = UniqueId([0; 128]);
    let code = unsafe { (rank.api.ncclGetUniqueId)(&raw mut id) };
    limit(libc::RLIMIT_NOFILE, 1024);
    tell(&rank, code);
}

#[test]
fn the_port_is_in_use() {
    let taken = TcpListener::bind("0.0.0.0:0").unwrap();
    let port = taken.local_addr().unwrap().port();
    let cluster = Cluster::new(1, 1).env("ACCL_PORT_RANGE", format!("{port}-{port}"));
    let words = [&format!("ACCL_PORT_RANGE={port}-{port}"), "in use on host", "needs one", "widen the range"];
    check(&cluster.run("no_id")[0], SYSTEM_ERROR, &words);
}

fn no_id(rank: Rank) {
    let mut id = UniqueId([0; 128]);
    tell(&rank, unsafe { (rank.api.ncclGetUniqueId)(&raw mut id) });
}

#[test]
fn a_connection_is_refused() {
    let path =
        std::path::Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("errors-{}", std::process::id()));
    // The process that made the id has ended.
    Cluster::new(1, 1).argument(path.display()).run("make_id");
    let stderr = Cluster::new(1, 1).argument(path.display()).run("given_id");
    std::fs::remove_file(&path).unwrap();
    let words = ["creator of the unique id (process ", "Connection refused", "keep that process alive"];
    check(&stderr[0], REMOTE_ERROR, &words);
}

fn make_id(rank: Rank) {
    std::fs::write(rank.argument, rank.api.unique_id().0).unwrap();
}

fn given_id(rank: Rank) {
    let id = UniqueId(std::fs::read(rank.argument).unwrap().try_into().unwrap());
    tell(&rank, init(&rank, id).0);
}

#[test]
fn a_rank_does_not_come() {
    let stderr = Cluster::new(1, 1).env("ACCL_INIT_TIMEOUT", 1).run("init_of_two");
    let words = [
        "rank 1 of 2",
        "did not come in time",
        "ACCL_INIT_TIMEOUT",
        "have not called ncclCommInitRank",
        "start",
    ];
    check(&stderr[0], TIMEOUT, &words);
}

/// Rank 0 of two, or the one that the argument names; the other one does not come.
fn init_of_two(rank: Rank) {
    let own = rank.argument.parse().unwrap_or(0);
    tell(&rank, init(&Rank { ranks: 2, rank: own, ..rank }, rank.ids[0]).0);
}

#[test]
fn a_name_is_not_found() {
    let cluster = Cluster::new(1, 1).env("ACCL_INIT_TIMEOUT", 1).argument(1);
    // Names that end so are in no name service (RFC 2606).
    let stderr = cluster.env("NCCL_COMM_ID", "no-such-host.invalid:4711").run("init_of_two");
    check(&stderr[0], SYSTEM_ERROR, &["no-such-host.invalid", "NCCL_COMM_ID", "IP address"]);
}

#[test]
fn a_peer_is_killed() {
    let ended = Cluster::new(2, 1).run_to_end("killed");
    assert_eq!((ended[0].code, ended[1].code), (Some(0), None));
    check(
        &ended[0].stderr,
        REMOTE_ERROR,
        &["rank 1 (process ", "ended", "AllReduce(1 × int32, sum) (collective #2)", "shrink or abort"],
    );
}

fn killed(rank: Rank) {
    let comm = rank.join();
    assert_eq!(rank.api.sum(1, comm), 2);
    if rank.rank == 1 {
        unsafe { libc::kill(libc::getpid(), libc::SIGKILL) };
    }
    let mut sum = [0];
    tell(&rank, rank.api.all_reduce(&[1], &mut sum, INT32, SUM, comm));
    rank.api.ok(unsafe { (rank.api.ncclCommAbort)(comm) });
}

#[test]
fn an_argument_is_bad() {
    let stderr = Cluster::new(1, 2).run("bad_root");
    let mut texts = told(&stderr[0]);
    texts.dedup();
    assert_eq!(texts.len(), 1, "{texts:?}");
    let words = ["ncclBroadcast", "root 5", "2 ranks", "pass 0 to 1"];
    check(&format!("told {} {}", texts[0].0, texts[0].1), INVALID_ARGUMENT, &words);
}

fn bad_root(rank: Rank) {
    let comm = rank.join();
    let mut word = [0u8; 4];
    let word = word.as_mut_ptr().cast();
    tell(&rank, unsafe { (rank.api.ncclBroadcast)(word, word, 1, INT32, 5, comm, null_mut()) });
    rank.api.destroy(comm);
}

/// Rank 0 is this test, of another version; rank 1 is a job's.
#[test]
fn versions_do_not_match() {
    let id = support::api::api().unique_id();
    let path =
        std::path::Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("version-{}", std::process::id()));
    std::fs::write(&path, id.0).unwrap();
    let other = std::thread::spawn(move || {
        let (network, give_up) = (Network::default(), || Ok(()));
        let patience = Some(std::time::Duration::from_secs(60));
        let request = bootstrap::Request {
            plugin: 0,
            ranks: 2,
            rank: 0,
            version: 23_100,
            patience,
            on_device: false,
            has_verbs: false,
            network: &network,
        };
        bootstrap::join(&[bootstrap::UniqueId(id.0)], request, &give_up).map(drop).unwrap_err()
    });
    let stderr = Cluster::new(1, 2).argument(path.display()).run("given_id");
    let here = other.join().unwrap();
    std::fs::remove_file(&path).unwrap();
    assert_eq!(here.kind(), ErrorKind::InvalidUsage);
    let (code, text) = told(&stderr[0]).remove(0);
    assert_ne!(code, SUCCESS);
    check(
        &format!("told {code} {text}"),
        INVALID_USAGE,
        &["versions differ: rank ", "23100", "23007", "install the same library"],
    );
}
