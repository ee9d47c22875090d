//! Communicators that give their device's memory back for a while.

use super::support::api::*;
use super::support::cluster::{Cluster, Rank, Scenario};
use super::support::device::{OnDevice, cuda, with_devices};
use std::ffi::c_int;

pub(crate) const SCENARIOS: [(&str, Scenario); 3] =
    [("suspended", suspended), ("refilled", refilled), ("replayed_meanwhile", replayed_meanwhile)];

const SUSPEND_MEM: c_int = 1;

/// What the device has left, in bytes.
fn free_bytes() -> usize {
    let (mut free, mut total) = (0, 0);
    let cuda = cuda();
    cuda.ok(unsafe { (cuda.cudaMemGetInfo)(&raw mut free, &raw mut total) });
    free
}

fn suspend(api: &Api, comm: Comm) {
    api.ok(unsafe { (api.ncclCommSuspend)(comm, SUSPEND_MEM) });
}

fn resume(api: &Api, comm: Comm) {
    api.ok(unsafe { (api.ncclCommResume)(comm) });
}

/// Device memory is there for others meanwhile; eager calls and graphs are right before and after.
fn suspended(rank: Rank) {
    let (api, cuda, ranks) = (rank.api, cuda(), rank.ranks as i32);
    cuda.choose(rank.rank);
    let comm = rank.join();
    let stream = cuda.stream();
    let (from, to) = (OnDevice::of(&[0i32; 70_000]), OnDevice::of(&[0i32; 70_000]));
    let reduce = || unsafe {
        api.ok((api.ncclAllReduce)(from.start, to.start, 70_000, INT32, SUM, comm, stream));
    };
    let gather = || unsafe {
        let count = 70_000 / rank.ranks;
        api.ok((api.ncclAllGather)(from.start, to.start, count, INT32, comm, stream));
    };
    let exchange = || unsafe {
        let (next, before) = ((rank.rank + 1) % rank.ranks, (rank.rank + rank.ranks - 1) % rank.ranks);
        let code = api.group(|| {
            api.ok((api.ncclSend)(from.start, 50, INT32, next as i32, comm, stream));
            api.ok((api.ncclRecv)(to.start, 50, INT32, before as i32, comm, stream));
        });
        api.ok(code);
    };
    let graph = cuda.capture(stream, || {
        reduce();
        exchange();
    });
    for round in 0..4 {
        from.set(&[round + rank.rank as i32; 70_000]);
        let sum = (0..ranks).map(|peer| round + peer).sum::<i32>();
        reduce();
        cuda.wait(stream);
        assert_eq!(to.get(), [sum; 70_000], "round {round}");
        gather();
        cuda.wait(stream);
        let share = 70_000 / rank.ranks;
        assert_eq!(to.get()[(rank.ranks - 1) * share], round + ranks - 1);
        graph.launch(stream);
        cuda.wait(stream);
        let before = round + (rank.rank as i32 + ranks - 1) % ranks;
        let mut expected = vec![sum; 70_000];
        expected[..50].fill(before);
        assert_eq!(to.get(), expected, "the graph in round {round}");
        let mut idle = 0;
        api.ok(unsafe { (api.ncclCommMemStats)(comm, 0, &raw mut idle) });
        // Slots in the host for sends, and in the device for the rest, where devices reach each other.
        assert!(idle >= 8 << 20, "{idle}");
        let free = free_bytes();
        suspend(api, comm);
        let given_back = free_bytes() - free;
        let windows = rank.argument == "windows";
        assert_eq!(given_back >= 8 << 20, windows, "{given_back} bytes of the device were given back");
        resume(api, comm);
    }
    suspend(api, comm);
    api.destroy(comm);
    drop(graph);
}

#[test]
fn suspended_communicators_hold_no_memory_of_the_device() {
    for (processes, threads) in [(2, 1), (1, 2), (3, 1)] {
        with_devices(Cluster::new(processes, threads), 4).argument("windows").run("suspended");
        let apart = with_devices(Cluster::new(processes, threads), 4).env("ACCL_P2P_DISABLE", 1);
        apart.argument("apart").run("suspended");
    }
}

/// A device that has been filled up meanwhile: all ranks hear of it, and may try again.
fn refilled(rank: Rank) {
    let (api, cuda) = (rank.api, cuda());
    cuda.choose(rank.rank);
    let comm = rank.join();
    let stream = cuda.stream();
    let buffer = OnDevice::of(&[1i32; 100]);
    let reduce = || unsafe { (api.ncclAllReduce)(buffer.start, buffer.start, 100, INT32, SUM, comm, stream) };
    api.ok(reduce());
    cuda.wait(stream);
    suspend(api, comm);
    let mut filling = std::ptr::null_mut();
    if rank.rank == 1 {
        let bytes = free_bytes() - (1 << 20);
        cuda.ok(unsafe { (cuda.cudaMalloc)(&raw mut filling, bytes) });
    }
    // Windows are not there any more, so that all go by the host.
    resume(api, comm);
    api.ok(reduce());
    cuda.wait(stream);
    assert_eq!(buffer.get(), [4; 100]);
    if rank.rank == 1 {
        cuda.ok(unsafe { (cuda.cudaFree)(filling) });
    }
    suspend(api, comm);
    resume(api, comm);
    api.ok(reduce());
    cuda.wait(stream);
    assert_eq!(buffer.get(), [8; 100]);
    api.destroy(comm);
}

#[test]
fn a_device_may_be_full_when_a_communicator_is_resumed() {
    with_devices(Cluster::new(2, 1), 2).env("ACCL_SIM_CAPACITY_MB", 64).run("refilled");
}

/// A replay while the communicator is suspended: its stream goes on, and the error says what to do.
fn replayed_meanwhile(rank: Rank) {
    let (api, cuda) = (rank.api, cuda());
    cuda.choose(rank.rank);
    let comm = rank.join();
    let stream = cuda.stream();
    let buffer = OnDevice::of(&[1i32; 100]);
    let graph = cuda.capture(stream, || unsafe {
        api.ok((api.ncclAllReduce)(buffer.start, buffer.start, 100, INT32, SUM, comm, stream));
    });
    suspend(api, comm);
    graph.launch(stream);
    let mut code = 0;
    while code == 0 {
        code = api.async_error(comm);
        std::thread::sleep(std::time::Duration::from_millis(1));
    }
    assert_eq!(code, INVALID_USAGE);
    assert!(api.error_text().contains("ncclCommResume"), "{}", api.error_text());
    api.ok(unsafe { (api.ncclCommAbort)(comm) });
    cuda.wait(stream);
    drop(graph);
}

#[test]
fn a_replay_while_suspended_is_an_error() {
    with_devices(Cluster::new(2, 1), 2).run("replayed_meanwhile");
}
