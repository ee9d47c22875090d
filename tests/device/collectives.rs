//! Every collective, sends and receives, and groups of them, in the order of streams.

use super::support::api::*;
use super::support::cluster::{Cluster, Rank, Scenario};
use super::support::device::{OnDevice, cuda, with_devices};
use std::ffi::c_int;

pub(crate) const SCENARIOS: [(&str, Scenario); 7] = [
    ("all_kinds", all_kinds),
    ("transfers", transfers),
    ("many_streams", many_streams),
    ("full_queues", full_queues),
    ("alone", alone),
    ("in_host_memory", in_host_memory),
    ("launched", launched),
];

/// A value that tells where it comes from.
fn value(rank: usize, index: usize) -> i32 {
    (rank as i32 + 1).wrapping_mul(1_000_003).wrapping_add(index as i32 * 7)
}

fn values(rank: usize, count: usize) -> Vec<i32> {
    (0..count).map(|index| value(rank, index)).collect()
}

fn sum_of_all(ranks: usize, index: usize) -> i32 {
    (0..ranks).fold(0i32, |sum, rank| sum.wrapping_add(value(rank, index)))
}

/// One more than what a call's slots hold for some, a few more pieces for others, and small ones.
const COUNTS: [usize; 5] = [1, 100, 5000, (1 << 19) + 17, (9 << 17) + 1];

fn all_kinds(rank: Rank) {
    let (api, cuda) = (rank.api, cuda());
    cuda.choose(rank.rank);
    let comm = rank.join();
    let mut device = -1;
    api.ok(unsafe { (cuda.cudaSetDevice)(0) });
    cuda.choose(rank.rank);
    let stream = cuda.stream();
    for count in COUNTS {
        for root in [0, rank.ranks - 1] {
            each_kind(&rank, comm, stream, count, root);
        }
    }
    api.ok(unsafe { (api.ncclCommCuDevice)(comm, &raw mut device) });
    assert_eq!(device, rank.rank as c_int);
    let mut bytes = 0;
    api.ok(unsafe { (api.ncclCommMemStats)(comm, 3, &raw mut bytes) });
    assert!(bytes >= 8 << 20, "staging memory counts: {bytes}");
    api.destroy(comm);
}

fn each_kind(rank: &Rank, comm: Comm, stream: Stream, count: usize, root: usize) {
    let (api, cuda, ranks, own) = (rank.api, cuda(), rank.ranks, rank.rank);
    let root_number = root as c_int;
    let one = OnDevice::of(&values(own, count));
    let all = OnDevice::of(&values(own, count * ranks));
    let (small, large) = (OnDevice::of(&vec![0; count]), OnDevice::of(&vec![0; count * ranks]));
    let check = |call: &str, code: c_int, expected: &dyn Fn(usize) -> i32, result: &OnDevice<i32>| {
        api.ok(code);
        cuda.wait(stream);
        let wrong = result.get().into_iter().enumerate().find(|(index, value)| *value != expected(*index));
        assert_eq!(
            wrong.map(|(index, value)| (index, value, expected(index))),
            None,
            "{call} of {count} at rank {own}"
        );
    };
    let (of_all, from_all) = (|index| sum_of_all(ranks, index), |index| value(index / count, index % count));
    unsafe {
        let code = (api.ncclAllReduce)(one.start, small.start, count, INT32, SUM, comm, stream);
        check("AllReduce", code, &of_all, &small);
        let code = (api.ncclAllGather)(one.start, large.start, count, INT32, comm, stream);
        check("AllGather", code, &from_all, &large);
        let code = (api.ncclReduceScatter)(all.start, small.start, count, INT32, SUM, comm, stream);
        check("ReduceScatter", code, &|index| of_all(own * count + index), &small);
        let code = (api.ncclBroadcast)(one.start, small.start, count, INT32, root_number, comm, stream);
        check("Broadcast", code, &|index| value(root, index), &small);
        let code = (api.ncclAlltoAll)(all.start, large.start, count, INT32, comm, stream);
        check("AlltoAll", code, &|index| value(index / count, own * count + index % count), &large);
        small.set(&vec![-1; count]);
        let code = (api.ncclReduce)(one.start, small.start, count, INT32, SUM, root_number, comm, stream);
        check("Reduce", code, &|index| if own == root { of_all(index) } else { -1 }, &small);
        large.set(&vec![-1; count * ranks]);
        let code = (api.ncclGather)(one.start, large.start, count, INT32, root_number, comm, stream);
        check("Gather", code, &|index| if own == root { from_all(index) } else { -1 }, &large);
        let code = (api.ncclScatter)(all.start, small.start, count, INT32, root_number, comm, stream);
        check("Scatter", code, &|index| value(root, own * count + index), &small);
        // In place.
        small.set(&values(own, count));
        let code = (api.ncclAllReduce)(small.start, small.start, count, INT32, SUM, comm, stream);
        check("AllReduce in place", code, &of_all, &small);
        let mut placed = vec![0; count * ranks];
        placed[own * count..][..count].copy_from_slice(&values(own, count));
        large.set(&placed);
        let code = (api.ncclAllGather)(large.at(own * count), large.start, count, INT32, comm, stream);
        check("AllGather in place", code, &from_all, &large);
    }
}

#[test]
fn every_collective_between_devices() {
    for (processes, threads) in [(2, 1), (3, 1), (2, 2)] {
        with_devices(Cluster::new(processes, threads), 4).run("all_kinds");
    }
}

/// Whether devices read each other's memory, by what the driver was asked: where they can, unless a rank does not want it.
#[test]
fn devices_read_each_other_where_they_can() {
    let directory = std::env::temp_dir().join(format!("accl-windows-{}", std::process::id()));
    std::fs::create_dir_all(&directory).unwrap();
    let opened = |processes: usize, cluster: Cluster| -> usize {
        let file = |process: usize| directory.join(process.to_string());
        let cluster = (0..processes).fold(cluster, |cluster, process| {
            cluster.env_of(process, "ACCL_SIM_COUNTS", file(process).display())
        });
        with_devices(cluster, 4).run("many_streams");
        let count = |process| {
            let counts = std::fs::read_to_string(file(process)).unwrap();
            std::fs::remove_file(file(process)).unwrap();
            let line = counts.lines().find(|line| line.contains("cuIpcOpenMemHandle")).map(str::to_string);
            line.map_or(0, |line| line.split_whitespace().find_map(|word| word.parse().ok()).unwrap())
        };
        (0..processes).map(count).sum()
    };
    assert_eq!(opened(2, Cluster::new(2, 1)), 2, "each opens the other's");
    // Two ranks in each process: theirs is one address space.
    assert_eq!(opened(2, Cluster::new(2, 2)), 8);
    assert_eq!(opened(2, Cluster::new(2, 1).env_of(1, "NCCL_P2P_DISABLE", 1)), 0);
    assert_eq!(opened(2, Cluster::new(2, 1).env("ACCL_SIM_NO_PEER", 1)), 2, "tried, and refused");
    assert_eq!(opened(2, Cluster::new(2, 1).hosts(2)), 0);
    std::fs::remove_dir_all(directory).unwrap();
}

#[test]
fn every_collective_between_hosts() {
    with_devices(Cluster::new(3, 1).hosts(2), 4).run("all_kinds");
}

/// Everybody sends to everybody, itself among them, in one group with a collective; sizes differ.
fn transfers(rank: Rank) {
    let (api, cuda, ranks, own) = (rank.api, cuda(), rank.ranks, rank.rank);
    cuda.choose(own);
    let comm = rank.join();
    let stream = cuda.stream();
    for base in [1, 1000, 300_000] {
        let count = |from: usize, to: usize| base * (1 + (from * 3 + to) % 4);
        let sent: Vec<_> =
            (0..ranks).map(|peer| OnDevice::of(&values(own * 100 + peer, count(own, peer)))).collect();
        let received: Vec<_> = (0..ranks).map(|peer| OnDevice::of(&vec![0; count(peer, own)])).collect();
        let (one, sum) = (OnDevice::of(&values(own, 10)), OnDevice::of(&[0; 10]));
        let code = api.group(|| unsafe {
            for peer in 0..ranks {
                let code =
                    (api.ncclSend)(sent[peer].start, count(own, peer), INT32, peer as c_int, comm, stream);
                api.ok(code);
                let code = (api.ncclRecv)(
                    received[peer].start,
                    count(peer, own),
                    INT32,
                    peer as c_int,
                    comm,
                    stream,
                );
                api.ok(code);
            }
            api.ok((api.ncclAllReduce)(one.start, sum.start, 10, INT32, SUM, comm, stream));
        });
        api.ok(code);
        cuda.wait(stream);
        for (peer, received) in received.iter().enumerate() {
            assert_eq!(received.get(), values(peer * 100 + own, count(peer, own)), "from {peer} to {own}");
        }
        assert_eq!(sum.get(), (0..10).map(|index| sum_of_all(ranks, index)).collect::<Vec<_>>());
    }
    api.destroy(comm);
}

#[test]
fn everybody_sends_to_everybody() {
    with_devices(Cluster::new(3, 1), 4).run("transfers");
    with_devices(Cluster::new(2, 2), 4).run("transfers");
}

/// Hundreds of calls, each of which needs the result of the one before, on streams in turn: what is queued on one stream of a
/// communicator comes after what was queued on another.
fn many_streams(rank: Rank) {
    let (api, cuda) = (rank.api, cuda());
    cuda.choose(rank.rank);
    let comm = rank.join();
    let streams = [cuda.stream(), cuda.stream(), std::ptr::null_mut()];
    let buffers = [OnDevice::of(&[rank.rank as i32 + 1; 33]), OnDevice::of(&[0; 33])];
    let mut expected = (1..=rank.ranks as i32).sum::<i32>();
    for call in 0..300 {
        let (from, to) = (&buffers[call % 2], &buffers[(call + 1) % 2]);
        let stream = streams[call / 7 % 3];
        api.ok(unsafe { (api.ncclAllReduce)(from.start, to.start, 33, INT32, SUM, comm, stream) });
        if call > 0 {
            expected = expected.wrapping_mul(rank.ranks as i32);
        }
    }
    streams.into_iter().for_each(|stream| cuda.wait(stream));
    assert_eq!(buffers[0].get(), [expected; 33]);
    // In one group, on several streams: what comes after on either sees all of it.
    let code = api.group(|| unsafe {
        for (buffer, stream) in buffers.iter().zip(streams) {
            api.ok((api.ncclBroadcast)(buffer.start, buffer.start, 33, INT32, 0, comm, stream));
        }
    });
    api.ok(code);
    cuda.wait(streams[1]);
    assert_eq!(buffers[0].get(), [expected; 33]);
    api.destroy(comm);
}

#[test]
fn calls_of_one_communicator_on_several_streams_keep_their_order() {
    for (processes, threads) in [(2, 1), (1, 2), (2, 2)] {
        with_devices(Cluster::new(processes, threads), 4).run("many_streams");
    }
}

/// Thousands of calls with no wait for any of them, on streams whose queues hold few: whoever launches waits for room, which the engine
/// has to make meanwhile. Two communicators, so that a full queue of one must not keep the other's engine from the driver.
fn full_queues(rank: Rank) {
    let (api, cuda) = (rank.api, cuda());
    cuda.choose(rank.rank);
    let comms = [rank.join(), api.init(rank.ranks, rank.ids[1], rank.rank)];
    let launch = |comm: Comm| {
        let streams = [cuda.stream(), cuda.stream()];
        let buffer = OnDevice::of(&[1i32; 10]);
        for call in 0..4000 {
            let stream = streams[call / 500 % 2];
            api.ok(unsafe { (api.ncclAllReduce)(buffer.start, buffer.start, 10, INT32, MAX, comm, stream) });
        }
        api.ok(unsafe { (api.ncclAllReduce)(buffer.start, buffer.start, 10, INT32, SUM, comm, streams[0]) });
        cuda.wait(streams[0]);
        assert_eq!(buffer.get(), [rank.ranks as i32; 10]);
    };
    let [first, second] = comms.map(|comm| comm as usize);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            cuda.choose(rank.rank);
            launch(second as Comm);
        });
        launch(first as Comm);
    });
    comms.into_iter().for_each(|comm| api.destroy(comm));
}

#[test]
fn thousands_of_calls_may_be_queued_however_few_a_stream_holds() {
    for queue in [1024, 4] {
        with_devices(Cluster::new(2, 1), 2).ids(2).env("ACCL_SIM_QUEUE", queue).run("full_queues");
    }
}

/// One rank: copies on the stream, but for a factor.
fn alone(rank: Rank) {
    let (api, cuda) = (rank.api, cuda());
    cuda.choose(1);
    let comm = rank.join();
    let stream = cuda.stream();
    let (from, to) = (OnDevice::of(&[1.5f32, -2.0, 3.0]), OnDevice::of(&[0f32; 3]));
    let factor = OnDevice::of(&[4f32]);
    let mut op = 0;
    // 0: the factor lies in device memory, and is read in the order of the stream.
    api.ok(unsafe { (api.ncclRedOpCreatePreMulSum)(&raw mut op, factor.start, FLOAT, 0, comm) });
    for (operator, expected) in [(SUM, [1.5, -2.0, 3.0]), (AVG, [1.5, -2.0, 3.0]), (op, [6.0, -8.0, 12.0])] {
        api.ok(unsafe { (api.ncclAllReduce)(from.start, to.start, 3, FLOAT, operator, comm, stream) });
        cuda.wait(stream);
        assert_eq!(to.get(), expected);
        to.set(&[0.0; 3]);
    }
    let code = api.group(|| unsafe {
        api.ok((api.ncclSend)(from.start, 3, FLOAT, 0, comm, stream));
        api.ok((api.ncclRecv)(to.start, 3, FLOAT, 0, comm, stream));
    });
    api.ok(code);
    cuda.wait(stream);
    assert_eq!(to.get(), [1.5, -2.0, 3.0]);
    api.ok(unsafe { (api.ncclRedOpDestroy)(op, comm) });
    api.destroy(comm);
}

#[test]
fn a_rank_alone_copies() {
    with_devices(Cluster::new(1, 1), 4).run("alone");
}

/// A communicator of host memory beside one of devices, in the same processes.
fn in_host_memory(rank: Rank) {
    let (api, cuda) = (rank.api, cuda());
    cuda.choose(rank.rank);
    let of_devices = rank.join();
    let (mut comm, mut device) = (std::ptr::null_mut(), 0);
    let (ranks, own, id) = (rank.ranks as c_int, rank.rank as c_int, rank.ids[1]);
    api.ok(unsafe { (api.acclCommInitRankHost)(&raw mut comm, ranks, id, own, std::ptr::null_mut(), 0) });
    api.ok(unsafe { (api.ncclCommCuDevice)(comm, &raw mut device) });
    assert_eq!(device, -1);
    assert_eq!(api.sum(rank.rank as i32 + 1, comm), ranks * (ranks + 1) / 2);
    let stream = cuda.stream();
    let (from, to) = (OnDevice::of(&[own + 1; 1000]), OnDevice::of(&[0; 1000]));
    api.ok(unsafe { (api.ncclAllReduce)(from.start, to.start, 1000, INT32, SUM, of_devices, stream) });
    cuda.wait(stream);
    assert_eq!(to.get(), [ranks * (ranks + 1) / 2; 1000]);
    api.destroy(comm);
    api.destroy(of_devices);
}

#[test]
fn host_memory_has_communicators_beside_devices() {
    with_devices(Cluster::new(3, 1).ids(2), 4).run("in_host_memory");
}

/// `ncclCollConfig_t`, as its initializer has it but for the event.
#[repr(C)]
struct CallConfig {
    size: usize,
    magic: u32,
    version: u32,
    ext: usize,
    groups: [c_int; 4],
    algorithms: usize,
    is_forced: c_int,
    policy: c_int,
    tag: u64,
    event: Stream,
}

/// The event of a call is over when its stream has come to the call, whoever is still to come.
fn launched(rank: Rank) {
    let (api, cuda) = (rank.api, cuda());
    cuda.choose(rank.rank);
    let comm = rank.join();
    let mut host = std::ptr::null_mut();
    let (ranks, own, id) = (rank.ranks as c_int, rank.rank as c_int, rank.ids[1]);
    api.ok(unsafe { (api.acclCommInitRankHost)(&raw mut host, ranks, id, own, std::ptr::null_mut(), 0) });
    let (stream, mut event) = (cuda.stream(), std::ptr::null_mut());
    assert_eq!(unsafe { (cuda.cudaEventCreateWithFlags)(&raw mut event, 2) }, 0);
    let (from, to) = (OnDevice::of(&[own + 1; 1000]), OnDevice::of(&[0; 1000]));
    let undefined = [c_int::MIN; 4];
    let mut config = CallConfig {
        size: 72,
        magic: 0xcafe_beef,
        version: 23203,
        ext: 0,
        groups: undefined,
        algorithms: 0,
        is_forced: 1,
        policy: c_int::MIN,
        tag: 0,
        event,
    };
    let mut call = |comm, stream| {
        let config = (&raw mut config).cast();
        unsafe { (api.ncclAllReduceConfig)(from.start, to.start, 1000, INT32, SUM, comm, stream, config) }
    };
    if own == 0 {
        api.ok(call(comm, stream));
        while unsafe { (cuda.cudaEventQuery)(event) } != 0 {
            std::thread::yield_now();
        }
        assert_ne!(unsafe { (cuda.cudaStreamQuery)(stream) }, 0, "rank 1 has not called");
    }
    assert_eq!(api.sum(1, host), ranks);
    if own != 0 {
        api.ok(call(comm, stream));
    }
    cuda.wait(stream);
    assert_eq!(to.get(), [ranks * (ranks + 1) / 2; 1000]);
    // There are no events in host memory.
    assert_eq!(call(host, std::ptr::null_mut()), INVALID_USAGE);
    assert_eq!(unsafe { (cuda.cudaEventDestroy)(event) }, 0);
    api.destroy(host);
    api.destroy(comm);
}

#[test]
fn an_event_tells_that_a_call_has_been_launched() {
    with_devices(Cluster::new(2, 1).ids(2), 4).run("launched");
}
