//! What fails while streams wait: the error is there to be asked for, streams stay where they are until the communicator is aborted,
//! so that nobody takes unfinished data for a result, and go on then.

use super::support::api::*;
use super::support::cluster::{Cluster, Rank, Scenario};
use super::support::device::{OnDevice, cuda, with_devices};
use std::ffi::c_int;
use std::time::{Duration, Instant};

pub(crate) const SCENARIOS: [(&str, Scenario); 7] = [
    ("dies", dies),
    ("disagree", disagree),
    ("never_calls", never_calls),
    ("refused", refused),
    ("aborts", aborts),
    ("leaves", leaves),
    ("begins_anew", begins_anew),
];

const NOT_READY: c_int = 600;
pub(crate) const UNHANDLED_DEVICE_ERROR: c_int = 1;

/// Asks until the communicator has failed.
pub(crate) fn failure(api: &Api, comm: Comm) -> c_int {
    let begin = Instant::now();
    loop {
        match api.async_error(comm) {
            SUCCESS | IN_PROGRESS => assert!(begin.elapsed() < Duration::from_secs(60), "no failure"),
            code => return code,
        }
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// The communicator fails with `code`, the stream stays, and goes on after the abort.
fn fails_and_goes_on(rank: &Rank, comm: Comm, stream: Stream, code: c_int) -> String {
    let (api, cuda) = (rank.api, cuda());
    assert_eq!(failure(api, comm), code, "{}", api.error_text());
    let text = api.error_text();
    // What is launched on it now is refused; what has been waits.
    let buffer = OnDevice::of(&[1i32]);
    assert_eq!(unsafe { (api.ncclAllReduce)(buffer.start, buffer.start, 1, INT32, SUM, comm, stream) }, code);
    std::thread::sleep(Duration::from_millis(20));
    assert_eq!(unsafe { (cuda.cudaStreamQuery)(stream) }, NOT_READY);
    api.ok(unsafe { (api.ncclCommAbort)(comm) });
    cuda.wait(stream);
    text
}

fn dies(rank: Rank) {
    let (api, cuda) = (rank.api, cuda());
    cuda.choose(rank.rank);
    let comm = rank.join();
    let stream = cuda.stream();
    let buffer = OnDevice::of(&vec![1i32; 3 << 20]);
    let reduce =
        || unsafe { (api.ncclAllReduce)(buffer.start, buffer.start, 3 << 20, INT32, SUM, comm, stream) };
    api.ok(reduce());
    cuda.wait(stream);
    if rank.rank == 1 {
        // The others have launched theirs by then: who hears of a death before is refused.
        std::thread::sleep(Duration::from_millis(500));
        api.ok(reduce());
        unsafe { libc::kill(libc::getpid(), libc::SIGKILL) };
    }
    (0..5).for_each(|_| api.ok(reduce()));
    let text = fails_and_goes_on(&rank, comm, stream, REMOTE_ERROR);
    assert!(text.contains("rank 1"), "{text}");
}

#[test]
fn a_death_is_told_and_streams_wait_for_the_abort() {
    let ended = with_devices(Cluster::new(3, 1), 3).run_to_end("dies");
    for (process, end) in ended.iter().enumerate().filter(|(process, _)| *process != 1) {
        assert_eq!(end.code, Some(0), "process {process}: {}", end.stderr);
    }
}

/// Both counts take several pieces: the first one already shows the difference.
fn disagree(rank: Rank) {
    let (api, cuda) = (rank.api, cuda());
    cuda.choose(rank.rank);
    let comm = rank.join();
    let stream = cuda.stream();
    let count = (3 << 20) + rank.rank;
    let buffer = OnDevice::of(&vec![rank.rank as i32; count]);
    api.ok(unsafe { (api.ncclAllReduce)(buffer.start, buffer.start, count, INT32, SUM, comm, stream) });
    let text = fails_and_goes_on(&rank, comm, stream, INVALID_USAGE);
    assert!(text.contains("3145728 × int32") && text.contains("3145729 × int32"), "{text}");
    assert_eq!(buffer.get(), vec![rank.rank as i32; count]);
}

#[test]
fn ranks_that_disagree_are_told_with_the_counts_of_their_calls() {
    with_devices(Cluster::new(2, 1), 2).run("disagree");
}

fn never_calls(rank: Rank) {
    let (api, cuda) = (rank.api, cuda());
    cuda.choose(rank.rank);
    let comm = rank.join();
    let stream = cuda.stream();
    let buffer = OnDevice::of(&[1i32]);
    if rank.rank == 0 {
        api.ok(unsafe { (api.ncclAllReduce)(buffer.start, buffer.start, 1, INT32, SUM, comm, stream) });
        let text = fails_and_goes_on(&rank, comm, stream, TIMEOUT);
        assert!(text.contains("rank 1"), "{text}");
    } else {
        assert_eq!(failure(api, comm), TIMEOUT);
        api.ok(unsafe { (api.ncclCommAbort)(comm) });
    }
}

#[test]
fn a_rank_that_never_calls_is_named_in_time() {
    with_devices(Cluster::new(2, 1), 2).env("ACCL_TIMEOUT", 1).run("never_calls");
}

/// The driver refuses a copy of the engine's at rank 0.
fn refused(rank: Rank) {
    let (api, cuda) = (rank.api, cuda());
    cuda.choose(rank.rank);
    let comm = rank.join();
    let stream = cuda.stream();
    let buffer = OnDevice::of(&vec![1i32; 100]);
    let others = rank.api.init(rank.ranks, rank.ids[1], rank.rank);
    for call in 0..20 {
        let code = unsafe { (api.ncclAllReduce)(buffer.start, buffer.start, 100, INT32, MAX, comm, stream) };
        if code != SUCCESS {
            assert!(call > 0, "{code}");
            break;
        }
    }
    let text = fails_and_goes_on(&rank, comm, stream, UNHANDLED_DEVICE_ERROR);
    assert!(text.contains("cuMemcpyAsync") && text.contains("700"), "{text}");
    // Only that communicator has failed.
    assert_eq!(api.async_error(others), SUCCESS);
    api.ok(unsafe { (api.ncclAllReduce)(buffer.start, buffer.start, 100, INT32, SUM, others, stream) });
    cuda.wait(stream);
    assert_eq!(buffer.get(), vec![rank.ranks as i32; 100]);
    api.destroy(others);
}

#[test]
fn a_call_that_the_driver_refuses_fails_its_communicator_on_all_ranks() {
    let cluster = with_devices(Cluster::new(2, 1), 2).ids(2);
    cluster.env_of(0, "ACCL_SIM_FAIL", "cuMemcpyAsync:5:700").run("refused");
}

/// From another thread, while this one waits for a stream that waits for a rank that never comes.
fn aborts(rank: Rank) {
    let (api, cuda) = (rank.api, cuda());
    cuda.choose(rank.rank);
    let comm = rank.join();
    if rank.rank == 1 {
        std::thread::sleep(Duration::from_millis(800));
        api.ok(unsafe { (api.ncclCommAbort)(comm) });
        return;
    }
    let stream = cuda.stream();
    let buffer = OnDevice::of(&[1i32]);
    (0..3).for_each(|_| {
        api.ok(unsafe { (api.ncclAllReduce)(buffer.start, buffer.start, 1, INT32, SUM, comm, stream) })
    });
    let place = comm as usize;
    let aborter = std::thread::spawn(move || {
        std::thread::sleep(Duration::from_millis(200));
        super::support::api::api().ok(unsafe { (api.ncclCommAbort)(place as Comm) });
    });
    cuda.wait(stream);
    aborter.join().unwrap();
}

#[test]
fn an_abort_lets_streams_go_on() {
    with_devices(Cluster::new(2, 1), 2).run("aborts");
}

/// Destroying waits for what has been launched.
fn leaves(rank: Rank) {
    let (api, cuda) = (rank.api, cuda());
    cuda.choose(rank.rank);
    for id in rank.ids {
        let comm = api.init(rank.ranks, *id, rank.rank);
        let stream = cuda.stream();
        let buffer = OnDevice::of(&vec![1i32; 200_000]);
        for _ in 0..10 {
            api.ok(unsafe {
                (api.ncclAllReduce)(buffer.start, buffer.start, 200_000, INT32, SUM, comm, stream)
            });
        }
        api.destroy(comm);
        cuda.wait(stream);
        assert_eq!(buffer.get(), vec![1i32 << 10; 200_000]);
    }
}

#[test]
fn destroying_waits_for_what_has_been_launched() {
    with_devices(Cluster::new(2, 1), 2).ids(5).run("leaves");
}

/// Aborts while calls are queued behind work that ends later, then works with new communicators on the same device: what old streams
/// still come to is nobody's.
fn begins_anew(rank: Rank) {
    static GATE: std::sync::atomic::AtomicBool = std::sync::atomic::AtomicBool::new(false);
    extern "C" fn wait_for_gate(_: *mut std::ffi::c_void) {
        while !GATE.load(std::sync::atomic::Ordering::Acquire) {
            std::thread::sleep(Duration::from_millis(1));
        }
    }
    let (api, cuda) = (rank.api, cuda());
    cuda.choose(rank.rank);
    let (old, new) = (cuda.stream(), cuda.stream());
    let buffers = [OnDevice::of(&[1i32; 100]), OnDevice::of(&[1i32; 100])];
    let reduce = |comm, buffer: &OnDevice<i32>, stream| {
        api.ok(unsafe { (api.ncclAllReduce)(buffer.start, buffer.start, 100, INT32, SUM, comm, stream) });
    };
    let comm = api.init(rank.ranks, rank.ids[0], rank.rank);
    cuda.ok(unsafe { (cuda.cudaLaunchHostFunc)(old, wait_for_gate, std::ptr::null_mut()) });
    (0..5).for_each(|_| reduce(comm, &buffers[0], old));
    api.ok(unsafe { (api.ncclCommAbort)(comm) });
    for (round, id) in rank.ids[1..].iter().enumerate() {
        let comm = api.init(rank.ranks, *id, rank.rank);
        if round == 1 {
            GATE.store(true, std::sync::atomic::Ordering::Release);
        }
        buffers[1].set(&[1; 100]);
        (0..20).for_each(|_| reduce(comm, &buffers[1], new));
        cuda.wait(new);
        assert_eq!(buffers[1].get(), [(rank.ranks as i32).wrapping_pow(20); 100]);
        api.destroy(comm);
    }
    cuda.wait(old);
}

#[test]
fn after_an_abort_with_calls_outstanding_others_begin_anew() {
    with_devices(Cluster::new(2, 1), 2).ids(4).run("begins_anew");
}
