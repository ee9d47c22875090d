//! Windows of host memory, and one-sided calls: `ncclPutSignal`, `ncclSignal`, `ncclWaitSignal`.

// Helpers of tests fail by panicking.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]
// Every call here is a call of the C interface with arguments that the test keeps alive.
#![allow(clippy::undocumented_unsafe_blocks)]

mod support;

use std::ffi::{c_int, c_void};
use std::ptr::null_mut;
use std::time::{Duration, Instant};
use support::api::{
    Allocated, Api, Comm, INT8, INVALID_ARGUMENT, INVALID_USAGE, REMOTE_ERROR, Stream, TIMEOUT, WaitSignal,
    Window,
};
use support::cluster::{Cluster, Rank, Scenario, work};
use support::oracle::mix;
use support::snapshot::{Snapshot, memory_bytes};

const SCENARIOS: [(&str, Scenario); 11] = [
    ("around", around),
    ("unattended", unattended),
    ("queued", queued),
    ("own", own),
    ("grouped", grouped),
    ("places", places),
    ("refused", refused),
    ("dead", dead),
    ("late", late),
    ("ended", ended),
    ("again", again),
];

const SYMMETRIC: c_int = 1;

#[test]
fn worker() {
    work(&SCENARIOS);
}

/// Memory that peers write to, and so never a slice.
struct Memory {
    start: *mut u8,
    bytes: usize,
    _allocated: Option<Allocated>,
    _private: Vec<u8>,
}

impl Memory {
    /// Of the library, which peers on this host can map, or of this process alone.
    fn new(api: &'static Api, bytes: usize, mapped: bool) -> Self {
        if mapped {
            let mut allocated = api.allocate(bytes);
            return Self {
                start: allocated.as_mut_ptr(),
                bytes,
                _allocated: Some(allocated),
                _private: vec![],
            };
        }
        let mut private = vec![0u8; bytes];
        Self { start: private.as_mut_ptr(), bytes, _allocated: None, _private: private }
    }

    fn at(&self, offset: usize) -> *mut u8 {
        assert!(offset <= self.bytes);
        self.start.wrapping_add(offset)
    }

    fn fill(&self, offset: usize, bytes: usize, seed: u64) {
        for index in 0..bytes {
            unsafe { self.at(offset + index).write(value(seed, index)) };
        }
    }

    #[track_caller]
    fn check(&self, offset: usize, bytes: usize, seed: u64) {
        let wrong = (0..bytes).find(|index| unsafe { self.at(offset + index).read() } != value(seed, *index));
        assert_eq!(wrong, None, "the first wrong byte of {bytes} at {offset}, seed {seed}");
    }
}

fn value(seed: u64, index: usize) -> u8 {
    (mix(seed) as usize + index * 7 + index / 251) as u8
}

fn register(api: &Api, comm: Comm, memory: &Memory, flags: c_int) -> Window {
    let mut window = null_mut();
    api.ok(unsafe {
        (api.ncclCommWindowRegister)(comm, memory.start.cast(), memory.bytes, &raw mut window, flags)
    });
    assert!(!window.is_null());
    window
}

fn deregister(api: &Api, comm: Comm, window: Window) {
    api.ok(unsafe { (api.ncclCommWindowDeregister)(comm, window) });
}

/// A put of bytes to a rank's window.
struct Put<'a> {
    from: (&'a Memory, usize),
    bytes: usize,
    to: (Window, usize),
    peer: usize,
}

impl Put<'_> {
    fn call(&self, api: &Api, comm: Comm, stream: Stream) -> c_int {
        let from = self.from.0.start.wrapping_add(self.from.1);
        let ((window, offset), peer) = (self.to, self.peer as c_int);
        unsafe {
            (api.ncclPutSignal)(from.cast(), self.bytes, INT8, peer, window, offset, 0, 0, 0, comm, stream)
        }
    }
}

fn signal(api: &Api, peer: usize, comm: Comm, stream: Stream) -> c_int {
    unsafe { (api.ncclSignal)(peer as c_int, 0, 0, 0, comm, stream) }
}

fn wait(api: &Api, signals: &[(usize, c_int)], comm: Comm, stream: Stream) -> c_int {
    let descriptor = |(peer, count): &(usize, c_int)| WaitSignal {
        count: *count,
        peer: *peer as c_int,
        index: 0,
        context: 0,
    };
    let mut signals: Vec<WaitSignal> = signals.iter().map(descriptor).collect();
    unsafe { (api.ncclWaitSignal)(signals.len() as c_int, signals.as_mut_ptr(), comm, stream) }
}

/// How ranks can be laid out: processes, threads of each, hosts.
const LAYOUTS: [(usize, usize, usize); 5] = [(2, 1, 1), (1, 3, 1), (3, 1, 1), (2, 1, 2), (4, 1, 2)];

/// Each rank writes to the next one: sizes on both sides of every limit, several puts for one wait, and no round begins before the
/// last one was looked at.
#[test]
fn puts_are_there_when_their_signals_are() {
    for (processes, threads, hosts) in LAYOUTS {
        for kind in ["mapped", "private"] {
            Cluster::new(processes, threads).hosts(hosts).argument(kind).run("around");
        }
    }
}

fn around(rank: Rank) {
    let (api, me, ranks) = (rank.api, rank.rank, rank.ranks);
    let comm = rank.join();
    let most = 3 << 20;
    let [source, target] = [(); 2].map(|()| Memory::new(api, most, rank.argument == "mapped"));
    let sources = register(api, comm, &source, SYMMETRIC);
    let targets = register(api, comm, &target, SYMMETRIC);
    let (next, before) = ((me + 1) % ranks, (me + ranks - 1) % ranks);
    for (round, bytes) in [0, 1, 7, 4096, 70_001, 1 << 20, 3 << 20, 5].into_iter().enumerate() {
        let parts = 1 + round % 3;
        let part = bytes / parts;
        let seed = |rank: usize| (round * 100 + rank) as u64;
        source.fill(0, part * parts, seed(me));
        for index in (0..parts).rev() {
            let at = index * part;
            let put = Put { from: (&source, at), bytes: part, to: (targets, at), peer: next };
            api.ok(put.call(api, comm, null_mut()));
        }
        api.ok(wait(api, &[(before, parts as c_int)], comm, null_mut()));
        target.check(0, part * parts, seed(before));
        // The one before may write again; so may this one when the next says so.
        api.ok(signal(api, before, comm, null_mut()));
        api.ok(wait(api, &[(next, 1)], comm, null_mut()));
        // Other calls go on beside it.
        assert_eq!(api.sum(1, comm), ranks as i32);
    }
    deregister(api, comm, targets);
    deregister(api, comm, sources);
    api.destroy(comm);
}

/// What is put arrives while its receiver does other things: it meets the sender in another call before it waits.
#[test]
fn puts_need_no_call_of_the_receiver() {
    for (processes, threads, hosts) in LAYOUTS {
        for kind in ["mapped", "private"] {
            Cluster::new(processes, threads).hosts(hosts).argument(kind).run("unattended");
        }
    }
}

fn unattended(rank: Rank) {
    let (api, me, ranks) = (rank.api, rank.rank, rank.ranks);
    let comm = rank.join();
    let bytes = 16 << 20;
    let memory = Memory::new(api, bytes, rank.argument == "mapped");
    let window = register(api, comm, &memory, SYMMETRIC);
    if me == 0 {
        memory.fill(0, bytes, 5);
        for peer in 1..ranks {
            let put = Put { from: (&memory, 0), bytes, to: (window, 0), peer };
            api.ok(put.call(api, comm, null_mut()));
        }
    }
    assert_eq!(api.sum(1, comm), ranks as i32);
    if me > 0 {
        api.ok(wait(api, &[(0, 1)], comm, null_mut()));
        memory.check(0, bytes, 5);
    }
    // Nobody leaves before all have what is theirs.
    assert_eq!(api.sum(1, comm), ranks as i32);
    api.destroy(comm);
}

/// On host streams and in groups: hundreds of puts between collectives, in the order of the stream.
#[test]
fn streams_and_groups_carry_one_sided_calls() {
    for (processes, threads, hosts) in [(2, 1, 1), (1, 2, 1), (2, 1, 2)] {
        Cluster::new(processes, threads).hosts(hosts).run("queued");
    }
}

fn queued(rank: Rank) {
    let (api, me) = (rank.api, rank.rank);
    let comm = rank.join();
    let (rounds, bytes) = (200, 1000);
    let [source, target] = [(); 2].map(|()| Memory::new(api, rounds * bytes, false));
    source.fill(0, rounds * bytes, me as u64);
    let _sources = register(api, comm, &source, SYMMETRIC);
    let targets = register(api, comm, &target, SYMMETRIC);
    let (peer, stream) = (1 - me, api.stream());
    let (one, mut sums) = ([1i32], vec![[0i32]; rounds]);
    for (round, sum) in sums.iter_mut().enumerate() {
        let at = round * bytes;
        let put = Put { from: (&source, at), bytes, to: (targets, at), peer };
        api.ok(put.call(api, comm, stream));
        api.ok(api.all_reduce_on(&one, sum, support::api::INT32, support::api::SUM, comm, stream));
        api.ok(wait(api, &[(peer, 1)], comm, stream));
    }
    api.ok(unsafe { (api.acclStreamSynchronize)(stream) });
    assert!(sums.iter().all(|sum| *sum == [2]));
    target.check(0, rounds * bytes, peer as u64);
    assert_eq!(api.sum(1, comm), 2);
    // In a group a wait may stand before the call that it waits for.
    source.fill(0, bytes, 77 + me as u64);
    for stream in [null_mut(), stream] {
        api.ok(api.group(|| {
            api.ok(wait(api, &[(peer, 2), (me, 1)], comm, stream));
            let put = Put { from: (&source, 0), bytes, to: (targets, 0), peer };
            api.ok(put.call(api, comm, stream));
            api.ok(signal(api, peer, comm, stream));
            api.ok(signal(api, me, comm, stream));
        }));
        if !stream.is_null() {
            api.ok(unsafe { (api.acclStreamSynchronize)(stream) });
        }
        target.check(0, bytes, 77 + peer as u64);
        assert_eq!(api.sum(1, comm), 2);
    }
    api.ok(unsafe { (api.acclStreamDestroy)(stream) });
    assert_eq!(api.sum(1, comm), 2);
    api.destroy(comm);
}

/// A rank may write to itself, also alone.
#[test]
fn a_rank_can_write_to_itself() {
    for ranks in [1, 2] {
        Cluster::new(1, ranks).run("own");
    }
}

fn own(rank: Rank) {
    let (api, me) = (rank.api, rank.rank);
    let comm = rank.join();
    let memory = Memory::new(api, 8192, false);
    let window = register(api, comm, &memory, SYMMETRIC);
    memory.fill(0, 4096, 3);
    let put = Put { from: (&memory, 0), bytes: 4096, to: (window, 4096), peer: me };
    api.ok(put.call(api, comm, null_mut()));
    api.ok(signal(api, me, comm, null_mut()));
    api.ok(wait(api, &[(me, 1), (me, 1)], comm, null_mut()));
    memory.check(4096, 4096, 3);
    let stream = api.stream();
    api.ok(signal(api, me, comm, stream));
    api.ok(wait(api, &[(me, 1)], comm, stream));
    api.ok(unsafe { (api.acclStreamSynchronize)(stream) });
    api.ok(unsafe { (api.acclStreamDestroy)(stream) });
    api.destroy(comm);
}

/// Windows that are registered in one group are made in the order of the calls, on every rank.
#[test]
fn windows_of_a_group_are_told_apart() {
    for (processes, threads, hosts) in [(3, 1, 1), (1, 3, 1), (2, 1, 2)] {
        Cluster::new(processes, threads).hosts(hosts).run("grouped");
    }
}

fn grouped(rank: Rank) {
    let (api, me, ranks) = (rank.api, rank.rank, rank.ranks);
    let comm = rank.join();
    let peer = (me + 1) % ranks;
    for round in 0..10 {
        let memories = [64usize, 128, 192, 256].map(|bytes| Memory::new(api, bytes, round % 2 == 0));
        let mut windows = [null_mut(); 4];
        api.ok(api.group(|| {
            for (memory, window) in memories.iter().zip(&mut windows) {
                api.ok(unsafe {
                    (api.ncclCommWindowRegister)(comm, memory.start.cast(), memory.bytes, window, SYMMETRIC)
                });
                assert!(window.is_null(), "it is made when the group ends");
            }
        }));
        for (index, (memory, window)) in memories.iter().zip(windows).enumerate() {
            memory.fill(0, 16, (10 * me + index) as u64);
            let to = (window, memory.bytes - 16);
            api.ok(Put { from: (memory, 0), bytes: 16, to, peer }.call(api, comm, null_mut()));
        }
        let before = (me + ranks - 1) % ranks;
        api.ok(wait(api, &[(before, 4)], comm, null_mut()));
        for (index, (memory, window)) in memories.iter().zip(windows).enumerate() {
            memory.check(memory.bytes - 16, 16, (10 * before + index) as u64);
            assert_eq!(api.sum(1, comm), ranks as i32);
            deregister(api, comm, window);
        }
    }
    api.destroy(comm);
}

/// Peers of this host are reached by addresses, where their memory can be mapped; others are not.
#[test]
fn peers_memory_has_an_address_within_a_host() {
    for (processes, threads, hosts) in LAYOUTS {
        for kind in ["mapped", "private"] {
            Cluster::new(processes, threads)
                .hosts(hosts)
                .argument(format!("{kind} {hosts} {threads}"))
                .run("places");
        }
    }
}

fn places(rank: Rank) {
    let (api, me, ranks) = (rank.api, rank.rank, rank.ranks);
    let comm = rank.join();
    let words: Vec<&str> = rank.argument.split(' ').collect();
    let (kind, hosts, threads) = (words[0], words[1].parse().unwrap(), words[2]);
    // Ranks go to hosts in turn.
    let local: Vec<usize> = (me % hosts..ranks).step_by(hosts).collect();
    let memory = Memory::new(api, 8192, kind == "mapped");
    let window = register(api, comm, &memory, SYMMETRIC);
    let mut pointer: *mut c_void = null_mut();
    api.ok(unsafe { (api.ncclWinGetUserPtr)(comm, window, &raw mut pointer) });
    assert_eq!(pointer.cast(), memory.start);
    api.ok(unsafe { (api.ncclGetPeerDevicePointer)(window, 100, me as c_int, &raw mut pointer) });
    assert_eq!(pointer.cast(), memory.at(100));
    api.ok(unsafe { (api.ncclGetLsaMultimemDevicePointer)(window, 0, &raw mut pointer) });
    assert!(pointer.is_null());
    memory.fill(0, 4096, me as u64);
    assert_eq!(api.sum(1, comm), ranks as i32);
    for peer in 0..ranks {
        api.ok(unsafe { (api.ncclGetPeerDevicePointer)(window, 1000, peer as c_int, &raw mut pointer) });
        // Threads of a process share all they have.
        let reached = local.contains(&peer) && (kind == "mapped" || peer == me || threads != "1");
        assert_eq!(!pointer.is_null(), reached, "rank {me}: {peer} ({})", rank.argument);
        if !reached {
            continue;
        }
        for index in 0..1000 {
            assert_eq!(unsafe { pointer.cast::<u8>().add(index).read() }, value(peer as u64, 1000 + index));
        }
        unsafe { pointer.cast::<u8>().add(4000 + me).write(200 + me as u8) };
        let mut same = null_mut();
        let index = local.iter().position(|rank| *rank == peer).unwrap() as c_int;
        api.ok(unsafe { (api.ncclGetLsaDevicePointer)(window, 1000, index, &raw mut same) });
        assert_eq!(same, pointer);
    }
    assert_eq!(api.sum(1, comm), ranks as i32);
    assert_eq!(unsafe { memory.at(5000 + me).read() }, 200 + me as u8);
    if kind == "mapped" {
        for peer in local.iter().copied() {
            assert_eq!(unsafe { memory.at(5000 + peer).read() }, 200 + peer as u8);
        }
    }
    for (offset, peer) in [(8193, me as c_int), (0, -1), (0, ranks as c_int)] {
        let code = unsafe { (api.ncclGetPeerDevicePointer)(window, offset, peer, &raw mut pointer) };
        assert_eq!(code, INVALID_ARGUMENT);
    }
    let code = unsafe { (api.ncclGetLsaDevicePointer)(window, 0, local.len() as c_int, &raw mut pointer) };
    assert_eq!(code, INVALID_ARGUMENT);
    deregister(api, comm, window);
    let code = unsafe { (api.ncclGetPeerDevicePointer)(window, 0, 0, &raw mut pointer) };
    assert_eq!(code, INVALID_ARGUMENT);
    assert_eq!(unsafe { (api.ncclCommWindowDeregister)(comm, window) }, INVALID_USAGE);
    api.destroy(comm);
}

/// Bad arguments have their codes, and leave the communicator as it was.
#[test]
fn bad_puts_are_refused() {
    Cluster::new(2, 1).ids(2).run("refused");
    Cluster::new(2, 1).ids(2).hosts(2).run("refused");
}

fn refused(rank: Rank) {
    let (api, me) = (rank.api, rank.rank);
    let comm = rank.join();
    let other = api.init(2, rank.ids[1], me);
    let peer = 1 - me;
    // Nothing brings signals before there is a window.
    assert_eq!(signal(api, peer, comm, null_mut()), INVALID_USAGE);
    assert!(api.error_text().contains("ncclCommWindowRegister"), "{}", api.error_text());
    let [memory, lone, foreign, outside] = [4096, 4096, 4096, 64].map(|bytes| Memory::new(api, bytes, false));
    // The ranks' windows differ in size.
    let memory = Memory { bytes: 4096 - 1024 * me, ..memory };
    let window = register(api, comm, &memory, SYMMETRIC);
    let alone = register(api, comm, &lone, 0);
    let elsewhere = register(api, other, &foreign, SYMMETRIC);
    let peers_bytes = 4096 - 1024 * peer;
    let put =
        |from: (&Memory, usize), bytes, to, peer| Put { from, bytes, to, peer }.call(api, comm, null_mut());
    let local = |offset| (&memory, offset);
    for (code, of) in [
        (put(local(0), 1, (null_mut(), 0), peer), "peerWin is NULL"),
        (put(local(0), 1, (window, peers_bytes), peer), "smaller count or offset"),
        (put(local(0), 1, (window, usize::MAX), peer), "smaller count or offset"),
        (put(local(0), usize::MAX, (window, 0), peer), "smaller count or offset"),
        (put((&outside, 0), 8, (window, 0), peer), "no symmetric window"),
        (put((&lone, 0), 8, (window, 0), peer), "no symmetric window"),
        (put(local(memory.bytes - 4), 8, (window, 0), peer), "no symmetric window"),
        (put(local(0), 8, (alone, 0), peer), "not symmetric"),
        (put(local(0), 8, (window, 0), 2), "not a rank"),
    ] {
        // The text is the last call's alone.
        assert_eq!(code, INVALID_ARGUMENT, "{of}");
    }
    assert_eq!(put(local(0), 1, (window, peers_bytes), peer), INVALID_ARGUMENT);
    assert!(api.error_text().contains(&format!("which has {peers_bytes} bytes")), "{}", api.error_text());
    assert_eq!(put(local(0), 8, (elsewhere, 0), peer), INVALID_USAGE);
    for (index, context, flags) in [(1, 0, 0), (0, 1, 0), (0, 0, 1)] {
        let code = unsafe { (api.ncclSignal)(peer as c_int, index, context, flags, comm, null_mut()) };
        assert_eq!(code, INVALID_ARGUMENT);
    }
    for signals in [&[(peer, 0)][..], &[(peer, -1)], &[(2, 1)], &[]] {
        assert_eq!(wait(api, signals, comm, null_mut()), INVALID_ARGUMENT, "{signals:?}");
    }
    assert_eq!(unsafe { (api.ncclWaitSignal)(1, null_mut(), comm, null_mut()) }, INVALID_ARGUMENT);
    // All the peer can take still goes there.
    memory.fill(0, 1024, me as u64);
    assert_eq!(api.sum(1, comm), 2);
    api.ok(put(local(0), 1024, (window, peers_bytes - 1024), peer));
    api.ok(wait(api, &[(peer, 1)], comm, null_mut()));
    memory.check(memory.bytes - 1024, 1024, peer as u64);
    assert_eq!(api.sum(1, comm), 2);
    api.destroy(other);
    api.destroy(comm);
}

/// The death of a rank whose signal is waited for is an error at once.
#[test]
fn a_dead_signaller_is_named() {
    for hosts in [1, 2] {
        let ended = Cluster::new(2, 1).hosts(hosts).run_to_end("dead");
        assert_eq!(ended[0].code, Some(0), "{}", ended[0].stderr);
        assert_eq!(ended[1].code, None, "{}", ended[1].stderr);
    }
}

fn dead(rank: Rank) {
    let (api, me) = (rank.api, rank.rank);
    let comm = rank.join();
    let memory = Memory::new(api, 4096, false);
    register(api, comm, &memory, SYMMETRIC);
    if me == 1 {
        std::thread::sleep(Duration::from_millis(300));
        unsafe { libc::raise(libc::SIGKILL) };
    }
    let start = Instant::now();
    assert_eq!(wait(api, &[(1, 1)], comm, null_mut()), REMOTE_ERROR);
    assert!(start.elapsed() < Duration::from_secs(5), "{:?}", start.elapsed());
    assert!(api.error_text().contains("rank 1"), "{}", api.error_text());
    assert_eq!(api.async_error(comm), REMOTE_ERROR);
    assert_eq!(signal(api, 1, comm, null_mut()), REMOTE_ERROR);
    api.ok(unsafe { (api.ncclCommAbort)(comm) });
}

/// A wait ends at the communicator's time limit, on streams, too, and says whose signals are missing.
#[test]
fn a_late_signal_is_named() {
    for kind in ["waits", "queues"] {
        Cluster::new(2, 1).env("ACCL_TIMEOUT", 1).argument(kind).run("late");
        Cluster::new(2, 1).hosts(2).env("ACCL_TIMEOUT", 1).argument(kind).run("late");
    }
}

fn late(rank: Rank) {
    let (api, me) = (rank.api, rank.rank);
    let comm = rank.join();
    let memory = Memory::new(api, 4096, false);
    register(api, comm, &memory, SYMMETRIC);
    if me == 0 {
        let code = if rank.argument == "waits" {
            wait(api, &[(1, 2)], comm, null_mut())
        } else {
            let stream = api.stream();
            api.ok(wait(api, &[(1, 2)], comm, stream));
            unsafe { (api.acclStreamSynchronize)(stream) }
        };
        assert_eq!(code, TIMEOUT, "{}", api.error_text());
        let text = api.error_text();
        assert!(
            text.contains("WaitSignal (has 1 of 2 signals of rank 1)") && text.contains("rank 1"),
            "{text}"
        );
        assert_eq!(api.async_error(comm), TIMEOUT);
    } else {
        api.ok(signal(api, 0, comm, null_mut()));
        std::thread::sleep(Duration::from_millis(2500));
    }
    api.ok(unsafe { (api.ncclCommAbort)(comm) });
}

/// An abort from another thread ends a wait; so does a revocation.
#[test]
fn a_wait_ends_with_its_communicator() {
    for how in ["abort", "revoke"] {
        for hosts in [1, 2] {
            Cluster::new(2, 1).hosts(hosts).argument(how).run("ended");
        }
    }
}

fn ended(rank: Rank) {
    let api = rank.api;
    let comm = rank.join();
    let memory = Memory::new(api, 4096, false);
    register(api, comm, &memory, SYMMETRIC);
    let address = comm as usize;
    let waiting = std::thread::spawn(move || {
        let code = wait(api, &[(1 - rank.rank, 1)], address as Comm, null_mut());
        (code, api.error_text())
    });
    std::thread::sleep(Duration::from_millis(300));
    if rank.argument == "abort" {
        api.ok(unsafe { (api.ncclCommAbort)(comm) });
    } else {
        api.ok(unsafe { (api.ncclCommRevoke)(comm, 0) });
    }
    let (code, text) = waiting.join().unwrap();
    // The other rank may have been the first.
    assert!([INVALID_USAGE, REMOTE_ERROR].contains(&code), "{code}: {text}");
    if rank.argument == "revoke" {
        api.destroy(comm);
    }
}

/// Communicators and windows come and go, and nothing stays; a window that was not taken back ends with its communicator.
#[test]
fn windows_leave_nothing() {
    Cluster::new(2, 1).ids(12).env("ACCL_INIT_TIMEOUT", 10).run("again");
    Cluster::new(2, 1).hosts(2).ids(12).run("again");
}

fn again(rank: Rank) {
    let (api, me) = (rank.api, rank.rank);
    let peer = 1 - me;
    let memory = Memory::new(api, 1 << 20, true);
    let mut early = None;
    for (round, id) in rank.ids.iter().enumerate() {
        let comm = api.init(2, *id, me);
        let mut last = null_mut();
        for _ in 0..20 {
            let window = register(api, comm, &memory, SYMMETRIC);
            let put = Put { from: (&memory, 0), bytes: 1000, to: (window, 1 << 19), peer };
            api.ok(put.call(api, comm, null_mut()));
            api.ok(wait(api, &[(peer, 1)], comm, null_mut()));
            assert_eq!(api.sum(1, comm), 2);
            deregister(api, comm, window);
            last = register(api, comm, &memory, SYMMETRIC);
            if round % 2 == 0 {
                deregister(api, comm, last);
                last = null_mut();
            }
        }
        assert_eq!(api.sum(1, comm), 2);
        api.destroy(comm);
        let mut pointer = null_mut();
        if !last.is_null() {
            let code = unsafe { (api.ncclGetPeerDevicePointer)(last, 0, 0, &raw mut pointer) };
            assert_eq!(code, INVALID_ARGUMENT, "a window of a communicator that has ended");
        }
        // The thread for messages lets go of what has ended when it looks the next time.
        match &early {
            None if round == 3 => {
                std::thread::sleep(Duration::from_millis(500));
                early = Some((Snapshot::take(), memory_bytes()));
            }
            Some((seen, bytes)) if round > 3 => {
                let start = Instant::now();
                while Snapshot::take() != *seen && start.elapsed() < Duration::from_secs(3) {
                    std::thread::sleep(Duration::from_millis(10));
                }
                assert_eq!(&Snapshot::take(), seen, "round {round}");
                let now = memory_bytes();
                assert!(now < bytes + (2 << 20), "round {round}: {now} bytes, before {bytes}");
            }
            _ => {}
        }
    }
}
