//! The life of a process around the library: leaving without clean-up, loading and unloading, signals, a second copy.

// Helpers of tests fail by panicking.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]
// Every call here is a call of the C interface with arguments that the test keeps alive.
#![allow(clippy::undocumented_unsafe_blocks)]

mod support;

use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::Command;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};
use support::api::{Api, Comm, INT32, REMOTE_ERROR, SUCCESS, SUM, load};
use support::cluster::{Cluster, Ended, LIBRARY, Rank, Scenario, work};
use support::python::{self, JOIN, become_python};
use support::snapshot::Snapshot;

const SCENARIOS: [(&str, Scenario); 8] = [
    ("child_lives_on", child_lives_on),
    ("leave", leave),
    ("replaced", replaced),
    ("replaced_elsewhere", replaced_elsewhere),
    ("load_again", load_again),
    ("close_alive", close_alive),
    ("interrupted", interrupted),
    ("two_copies", two_copies),
];

#[test]
fn worker() {
    work(&SCENARIOS);
}

/// How rank 1 leaves, with the code that its process ends with.
const WAYS: [(&str, Option<i32>); 6] = [
    ("return", Some(0)),
    ("exit", Some(7)),
    ("at once", Some(9)),
    ("exception", Some(1)),
    ("abort", None),
    ("SIGTERM", None),
];

/// C41: whoever leaves without a word keeps its exit code and says nothing; the others hear who it was (C27).
#[test]
fn c41_leaving_without_clean_up() {
    for (way, code) in WAYS {
        if way == "exception" && !python::is_here() {
            continue;
        }
        for pending in ["idle", "pending"] {
            let what = format!("{way},{pending}");
            let ended = Cluster::new(3, 1).argument(&what).limit(30).run_to_end("leave");
            let codes: Vec<_> = ended.iter().map(|end| end.code).collect();
            assert_eq!(codes, [Some(0), code, Some(0)], "{what}: {:?}", texts(&ended));
            let said = &ended[1].stderr;
            if way == "exception" {
                assert!(said.trim_end().ends_with("ValueError: enough"), "{said}");
                assert!(!said.contains("ACCL") && !said.contains("panicked"), "{said}");
            } else {
                assert!(said.lines().count() <= 1, "{what}: {said}");
            }
        }
    }
}

fn texts(ended: &[Ended]) -> Vec<&str> {
    ended.iter().map(|end| end.stderr.as_str()).collect()
}

fn leave(rank: Rank) {
    let (way, pending) = rank.argument.split_once(',').unwrap();
    let pending = pending == "pending";
    if rank.rank == 1 && way == "exception" {
        let wait = "threading.Thread(target=total, daemon=True).start(); time.sleep(0.2)\n";
        become_python(&format!("{JOIN}{}raise ValueError('enough')", if pending { wait } else { "" }));
    }
    let (api, comm) = (rank.api, rank.join());
    assert_eq!(api.sum(1, comm), 3);
    if rank.rank == 1 {
        if pending {
            let comm = comm as usize;
            std::thread::spawn(move || api.all_reduce(&[1], &mut [0], INT32, SUM, comm as Comm));
            std::thread::sleep(Duration::from_millis(200));
        }
        return go(way);
    }
    // Rank 2 calls late, so that rank 1 leaves in the middle of a call.
    if rank.rank == 2 {
        std::thread::sleep(Duration::from_millis(600));
    }
    let begin = Instant::now();
    await_loss(&rank, comm);
    assert!(begin.elapsed() < Duration::from_secs(5), "{:?}", begin.elapsed());
    api.destroy(comm);
}

/// Rank 1 is gone. What it had given to a call before counts, so that this one may still succeed.
fn await_loss(rank: &Rank, comm: Comm) {
    let reduce = || rank.api.all_reduce(&[1], &mut [0], INT32, SUM, comm);
    let code = if reduce() == SUCCESS { reduce() } else { rank.api.async_error(comm) };
    assert_eq!(code, REMOTE_ERROR, "{}", rank.api.error_text());
    assert!(rank.api.error_text().contains("rank 1 (process"), "{}", rank.api.error_text());
}

fn go(way: &str) {
    unsafe {
        match way {
            "exit" => libc::exit(7),
            "at once" => libc::_exit(9),
            "abort" => libc::abort(),
            "SIGTERM" => {
                libc::raise(libc::SIGTERM);
            }
            _ => {}
        }
    }
}

/// A copy of the library in a directory of its own.
fn copy(name: &str) -> PathBuf {
    let directory =
        PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join(format!("copy-{name}-{}", std::process::id()));
    std::fs::create_dir_all(&directory).unwrap();
    let path = directory.join("libnccl.so.2");
    std::fs::copy(std::env::var(LIBRARY).unwrap(), &path).unwrap();
    path
}

fn remove(path: &std::path::Path) {
    std::fs::remove_dir_all(path.parent().unwrap()).unwrap();
}

fn life(api: &Api, rank: &Rank, id: usize) {
    let comm = api.init(rank.ranks, rank.ids[id], rank.rank);
    assert_eq!(api.sum(id as i32, comm), rank.ranks as i32 * id as i32);
    api.destroy(comm);
}

/// C42: fifty times loaded, used and closed; and closed with a communicator that lives.
#[test]
fn c42_load_and_unload() {
    Cluster::new(2, 1).ids(50).run("load_again");
    Cluster::new(2, 1).run("close_alive");
}

fn load_again(rank: Rank) {
    let path = copy("again");
    let mut snapshots = Vec::new();
    for round in 0..50 {
        let (library, api) = load(&path);
        life(&api, &rank, round);
        library.close().unwrap();
        if round == 2 || round == 49 {
            std::thread::sleep(Duration::from_millis(200));
            snapshots.push(Snapshot::take());
        }
    }
    assert_eq!(snapshots[0], snapshots[1]);
    remove(&path);
}

fn close_alive(rank: Rank) {
    let path = copy("alive");
    let (library, api) = load(&path);
    let comm = rank.api.init(rank.ranks, rank.ids[0], rank.rank);
    let theirs = api.init(1, api.unique_id(), 0);
    library.close().unwrap();
    // The code is still there, and so is what it keeps.
    assert_eq!(api.sum(5, theirs), 5);
    assert_eq!(rank.api.sum(1, comm), 2);
    rank.api.destroy(comm);
    api.destroy(theirs);
    remove(&path);
}

static SIGNALS: AtomicU64 = AtomicU64::new(0);

extern "C" fn count(_: libc::c_int) {
    SIGNALS.fetch_add(1, Ordering::Relaxed);
}

/// C43: no interrupted system call is anybody's failure. What Python hears of an interrupt: `cases_python.rs`.
#[test]
fn c43_signals_during_everything() {
    Cluster::new(4, 1).ids(50).limit(100).run("interrupted");
    Cluster::new(4, 1).ids(50).limit(100).hosts(2).run("interrupted");
}

/// A thousand signals a second at every thread, without the flag that restarts system calls.
fn shower(over: &AtomicBool) {
    let mine = unsafe { libc::syscall(libc::SYS_gettid) };
    while !over.load(Ordering::Relaxed) {
        for task in std::fs::read_dir("/proc/self/task").unwrap().flatten() {
            let thread: i64 = task.file_name().to_string_lossy().parse().unwrap();
            if thread != mine {
                unsafe { libc::syscall(libc::SYS_tgkill, libc::getpid(), thread, libc::SIGALRM) };
            }
        }
        std::thread::sleep(Duration::from_millis(1));
    }
}

fn interrupted(rank: Rank) {
    let handler: extern "C" fn(libc::c_int) = count;
    unsafe {
        let mut action: libc::sigaction = std::mem::zeroed();
        action.sa_sigaction = handler as usize;
        assert_eq!(libc::sigaction(libc::SIGALRM, &raw const action, std::ptr::null_mut()), 0);
    }
    let over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| shower(&over));
        for id in rank.ids {
            let comm = rank.api.init(4, *id, rank.rank);
            for round in 0..10 {
                let count = [1, 5_000, 200_000][round as usize % 3];
                let (mine, mut sums) = (vec![round; count], vec![-1; count]);
                rank.api.ok(rank.api.all_reduce(&mine, &mut sums, INT32, SUM, comm));
                assert!(sums.iter().all(|sum| *sum == 4 * round), "round {round}");
            }
            rank.api.destroy(comm);
        }
        over.store(true, Ordering::Relaxed);
    });
    assert!(SIGNALS.load(Ordering::Relaxed) > 100, "{SIGNALS:?} signals");
}

/// C44: two copies in one process, each with a communicator of its own; whichever was loaded for all, and first.
#[test]
fn c44_two_copies() {
    for first in ["private", "global"] {
        Cluster::new(2, 1).ids(12).argument(first).run("two_copies");
    }
}

fn two_copies(rank: Rank) {
    let (first, second) = (copy("first"), copy("second"));
    if rank.argument == "global" {
        use libloading::os::unix::{Library, RTLD_GLOBAL, RTLD_NOW};
        let library = unsafe { Library::open(Some(&first), RTLD_NOW | RTLD_GLOBAL) }.unwrap();
        std::mem::forget(library);
    }
    let ((_one, a), (_two, b)) = (load(&first), load(&second));
    assert_ne!(a.ncclAllReduce as usize, b.ncclAllReduce as usize, "one copy, loaded twice");
    for id in (0..12).step_by(3) {
        let comms = [(&a, id), (&b, id + 1), (rank.api, id + 2)]
            .map(|(api, id)| (api, api.init(rank.ranks, rank.ids[id], rank.rank)));
        for (number, (api, comm)) in comms.iter().enumerate().cycle().take(30) {
            assert_eq!(api.sum(number as i32, *comm), 2 * number as i32);
        }
        for (api, comm) in comms {
            api.destroy(comm);
        }
    }
    remove(&first);
    remove(&second);
}

/// A process that becomes another program has left its communicators; and a child that lives on is nobody's rank.
#[test]
fn children_and_successors_are_no_ranks() {
    for (hosts, what, code) in
        [(1, "child", None), (3, "child", None), (1, "exec", Some(0)), (3, "exec", Some(0))]
    {
        let cluster = Cluster::new(3, 1).hosts(hosts).argument(what).limit(40);
        let ended = cluster.run_to_end("child_lives_on");
        let codes: Vec<_> = ended.iter().map(|end| end.code).collect();
        assert_eq!(codes, [Some(0), code, Some(0)], "{what}, {hosts} hosts: {:?}", texts(&ended));
    }
}

/// For how long what is left of rank 1 lives; the others do not wait for its end.
const SECONDS: u32 = 8;
const SOON: Duration = Duration::from_secs(SECONDS as u64 - 3);

fn child_lives_on(rank: Rank) {
    let (api, comm) = (rank.api, rank.join());
    assert_eq!(api.sum(1, comm), 3);
    if rank.rank == 1 {
        if rank.argument == "exec" {
            sleep_as_another();
        }
        unsafe {
            if libc::fork() == 0 {
                // Whoever waits for the end of the standard error does not wait for this one.
                libc::close(2);
                libc::sleep(SECONDS);
                libc::_exit(0);
            }
            libc::raise(libc::SIGKILL);
        }
    }
    let begin = Instant::now();
    await_loss(&rank, comm);
    assert!(begin.elapsed() < SOON, "{:?}", begin.elapsed());
    api.destroy(comm);
}

/// Becomes another program, which lives on for a while.
fn sleep_as_another() -> ! {
    let error = Command::new("sleep").arg(SECONDS.to_string()).exec();
    panic!("sleep: {error}");
}

/// On one host, peers see at once that a rank has become another program: in a call, whether that rank was in it or not, and when they
/// only ask.
#[test]
fn a_successor_is_noticed_before_it_ends() {
    for threads in [1, 2] {
        for when in ["absent", "in it", "idle"] {
            let said = Cluster::new(3, threads).argument(when).limit(40).run("replaced");
            println!("{threads} ranks of a process, {when}: {}", said[0].lines().last().unwrap_or_default());
        }
    }
}

/// Its leader tells other hosts, of a process that leads nobody, too.
#[test]
fn a_successor_is_noticed_on_other_hosts() {
    let said = Cluster::new(4, 1).hosts(2).limit(40).run("replaced_elsewhere");
    println!("{}", said[0].lines().last().unwrap_or_default());
}

fn replaced_elsewhere(rank: Rank) {
    let (api, comm) = (rank.api, rank.join());
    assert_eq!(api.sum(1, comm), 4);
    if rank.rank == 3 {
        sleep_as_another();
    }
    let begin = Instant::now();
    while api.async_error(comm) == SUCCESS && begin.elapsed() < SOON {
        std::thread::sleep(Duration::from_millis(10));
    }
    let text = api.error_text();
    eprintln!("after {:.2} s: {text}", begin.elapsed().as_secs_f64());
    assert!(text.contains("rank 3 (process") && text.contains("another program (exec)"), "{text}");
    api.destroy(comm);
}

fn replaced(rank: Rank) {
    let (api, comm) = (rank.api, rank.join());
    let all = rank.ranks as i32;
    assert_eq!(api.sum(1, comm), all);
    // The process of rank 1 has rank 4, too, if it has two.
    if rank.rank % 3 == 1 {
        let in_call = comm as usize;
        if rank.argument == "in it" {
            std::thread::spawn(move || {
                api.all_reduce(&[1; 100_000], &mut [0; 100_000], INT32, SUM, in_call as Comm)
            });
        }
        std::thread::sleep(Duration::from_millis(300));
        if rank.rank == 1 {
            sleep_as_another();
        }
        loop {
            std::thread::park();
        }
    }
    let begin = Instant::now();
    if rank.argument == "idle" {
        while api.async_error(comm) == SUCCESS && begin.elapsed() < SOON {
            std::thread::sleep(Duration::from_millis(10));
        }
    } else {
        if rank.rank == 2 && rank.argument == "in it" {
            std::thread::sleep(Duration::from_millis(600));
        }
        let code = api.all_reduce(&[1; 100_000], &mut [0; 100_000], INT32, SUM, comm);
        assert!(code == REMOTE_ERROR || rank.argument == "in it", "{}", api.error_text());
        if code == SUCCESS {
            // What it had given before counts.
            assert_eq!(api.all_reduce(&[1], &mut [0], INT32, SUM, comm), REMOTE_ERROR);
        }
    }
    let text = api.error_text();
    eprintln!("after {:.2} s: {text}", begin.elapsed().as_secs_f64());
    assert_eq!(api.async_error(comm), REMOTE_ERROR);
    assert!(begin.elapsed() < SOON, "{:?}", begin.elapsed());
    let named = ["rank 1 (process", "rank 4 (process"].iter().any(|name| text.contains(name));
    assert!(named && text.contains("another program (exec)"), "{text}");
    api.destroy(comm);
}
