//! What a program is told when the driver, a device, or an argument that is about devices is at fault: the code, and the text.

use super::failures::{UNHANDLED_DEVICE_ERROR, failure};
use super::support::api::*;
use super::support::cluster::{Cluster, Rank, Scenario};
use super::support::device::{OnDevice, cuda, with_devices};
use std::ffi::{c_int, c_void};
use std::ptr::null_mut;

pub(crate) const SCENARIOS: [(&str, Scenario); 7] = [
    ("no_driver", no_driver),
    ("no_memory", no_memory),
    ("refused_at_init", refused_at_init),
    ("driver_fails", driver_fails),
    ("elsewhere", elsewhere),
    ("unchecked", unchecked),
    ("wrong_streams", wrong_streams),
];

/// The call fails with `code`, and its text has all these words.
#[track_caller]
fn fails(api: &Api, result: c_int, code: c_int, words: &[&str]) {
    let text = api.error_text();
    assert_eq!(result, code, "{text}");
    has_words(&text, words);
}

#[track_caller]
fn has_words(text: &str, words: &[&str]) {
    assert!(words.iter().all(|word| text.contains(word)), "{words:?} in: {text}");
}

/// The communicator is as good as ever.
#[track_caller]
fn works(rank: &Rank, comm: Comm) {
    let (api, cuda) = (rank.api, cuda());
    let stream = cuda.stream();
    let buffer = OnDevice::of(&[1i32; 100]);
    assert_eq!(api.async_error(comm), SUCCESS, "{}", api.error_text());
    api.ok(unsafe { (api.ncclAllReduce)(buffer.start, buffer.start, 100, INT32, SUM, comm, stream) });
    cuda.wait(stream);
    assert_eq!(buffer.get(), [rank.ranks as i32; 100]);
}

fn no_driver(rank: Rank) {
    let (api, mut comm) = (rank.api, null_mut());
    let words: Vec<&str> = rank.argument.split('|').collect();
    let code = unsafe { (api.ncclCommInitRank)(&raw mut comm, 1, rank.ids[0], 0) };
    fails(api, code, UNHANDLED_DEVICE_ERROR, &words);
    let mut memory = null_mut();
    fails(api, unsafe { (api.ncclMemAlloc)(&raw mut memory, 100) }, UNHANDLED_DEVICE_ERROR, &words);
}

#[test]
fn a_driver_that_cannot_be_used_is_named() {
    let with = |library, words| {
        let cluster = with_devices(Cluster::new(1, 1), 1).env("ACCL_DRIVER_LIB", library);
        cluster.argument(words).run("no_driver");
    };
    with("libcuda-of-nobody.so", "libcuda-of-nobody.so|ACCL_DRIVER_LIB|cannot be loaded|unset");
    // A library without the functions.
    with("libm.so.6", "has no function cuCtxGetCurrent|need a driver of CUDA 11.3");
}

fn no_memory(rank: Rank) {
    let (api, cuda) = (rank.api, cuda());
    cuda.choose(rank.rank);
    let comm = rank.join();
    let mut memory = null_mut();
    let code = unsafe { (api.ncclMemAlloc)(&raw mut memory, 64 << 20) };
    fails(api, code, UNHANDLED_DEVICE_ERROR, &["OUT_OF_MEMORY (2)", "free memory"]);
    works(&rank, comm);
    api.destroy(comm);
}

#[test]
fn memory_that_a_device_has_not_is_told_and_calls_do_without_windows() {
    // Of 48 MiB a window takes 8; in the second run nothing is left for it.
    with_devices(Cluster::new(2, 1), 2).env("ACCL_SIM_CAPACITY_MB", 48).run("no_memory");
    with_devices(Cluster::new(2, 1), 2).env("ACCL_SIM_CAPACITY_MB", 4).run("no_memory");
}

fn refused_at_init(rank: Rank) {
    let (api, cuda, mut comm) = (rank.api, cuda(), null_mut());
    cuda.choose(rank.rank);
    let code = unsafe {
        (api.ncclCommInitRank)(&raw mut comm, rank.ranks as c_int, rank.ids[0], rank.rank as c_int)
    };
    let words = ["rank 0", "could not be set up", "cuMemHostAlloc", "OUT_OF_MEMORY (2)"];
    fails(api, code, UNHANDLED_DEVICE_ERROR, &words);
    // Nobody has to end for the others to hear of it.
    std::thread::sleep(std::time::Duration::from_millis(500));
}

#[test]
fn what_the_driver_refuses_while_ranks_join_fails_all_of_them() {
    let cluster = with_devices(Cluster::new(2, 1), 2).limit(30);
    cluster.env_of(0, "ACCL_SIM_FAIL", "cuMemHostAlloc:1:2").run("refused_at_init");
}

/// Something of the driver fails in one process, whose other communicator, of another device, goes on. The argument says what
/// all ranks hear of it.
fn driver_fails(rank: Rank) {
    let (api, cuda) = (rank.api, cuda());
    cuda.choose(2 + rank.rank);
    let others = api.init(rank.ranks, rank.ids[1], rank.rank);
    cuda.choose(rank.rank);
    let comm = rank.join();
    let streams = [cuda.stream(), cuda.stream()];
    let buffer = OnDevice::of(&vec![1i32; 100]);
    // Groups of two streams need events; collectives alone need words.
    for round in 0..200 {
        let reduce = |stream| unsafe {
            (api.ncclAllReduce)(buffer.start, buffer.start, 100, INT32, MAX, comm, stream)
        };
        let code = match round % 4 {
            0 => api.group(|| streams.into_iter().for_each(|stream| _ = reduce(stream))),
            _ => reduce(streams[round % 2]),
        };
        if code != SUCCESS {
            break;
        }
    }
    assert_eq!(failure(api, comm), UNHANDLED_DEVICE_ERROR);
    let words: Vec<&str> = rank.argument.split('|').collect();
    has_words(&api.error_text(), &words);
    has_words(&api.error_text(), &["rank 0 (process "]);
    api.ok(unsafe { (api.ncclCommAbort)(comm) });
    // A lost device says so; all others let their streams go on.
    let is_lost = rank.argument.contains("ECC") && rank.rank == 0;
    for stream in streams {
        assert_eq!(unsafe { (cuda.cudaStreamSynchronize)(stream) }, if is_lost { 214 } else { 0 });
    }
    cuda.choose(2 + rank.rank);
    works(&rank, others);
    api.destroy(others);
}

#[test]
fn what_the_driver_refuses_fails_one_communicator_and_its_peers_hear_of_it() {
    let cluster = || with_devices(Cluster::new(2, 1), 4).ids(2).limit(60);
    for function in [
        "cuStreamWriteValue32_v2",
        "cuStreamWaitValue32_v2",
        "cuStreamGetCaptureInfo_v2",
        "cuEventCreate",
        "cuEventRecord",
        "cuEventQuery",
        "cuMemcpyAsync",
        "cuLaunchKernel",
    ] {
        let cluster = cluster().env_of(0, "ACCL_SIM_FAIL", format!("{function}:40:999"));
        cluster.argument(format!("{}|UNKNOWN (999)", function.trim_end_matches("_v2"))).run("driver_fails");
    }
}

#[test]
fn a_lost_device_fails_its_communicator_and_peers_hear_of_it() {
    for direct in ["0", "1"] {
        let cluster = with_devices(Cluster::new(2, 1), 4).ids(2).limit(60).env("NCCL_P2P_DISABLE", direct);
        let cluster = cluster.env_of(0, "ACCL_SIM_FAIL", "copy:40:214");
        cluster.argument("ECC_UNCORRECTABLE (214)|the device's context is lost").run("driver_fails");
    }
}

/// Memory of this kind, with ones in it.
fn memory(kind: &str) -> *mut c_void {
    let (cuda, mut memory, bytes) = (cuda(), null_mut(), 400);
    match kind {
        "pinned" => cuda.ok(unsafe { (cuda.cudaHostAlloc)(&raw mut memory, bytes, 0) }),
        "managed" => cuda.ok(unsafe { (cuda.cudaMallocManaged)(&raw mut memory, bytes, 1) }),
        _ => memory = vec![0i32; 100].leak().as_mut_ptr().cast(),
    }
    let ones = vec![1i32; 100];
    cuda.ok(unsafe { (cuda.cudaMemcpy)(memory, ones.as_ptr().cast_mut().cast(), bytes, 4) });
    memory
}

/// Buffers that lie elsewhere are refused, if that is wanted, and the communicator goes on.
fn elsewhere(rank: Rank) {
    let (api, cuda, own) = (rank.api, cuda(), rank.rank);
    cuda.choose(1 - own);
    let foreign = OnDevice::of(&[1i32; 100]);
    cuda.choose(own);
    let comm = rank.join();
    let stream = cuda.stream();
    let good = OnDevice::of(&[1i32; 100]);
    let reduce = |from, to| unsafe { (api.ncclAllReduce)(from, to, 100, INT32, SUM, comm, stream) };
    let address = format!("{:#x}", foreign.start as usize);
    let (there, here) = (format!("lies in device {}", 1 - own), format!("communicator's device {own}"));
    let words = |name| [name, address.as_str(), &there, &here];
    fails(api, reduce(foreign.start, good.start), INVALID_ARGUMENT, &words("AllReduce: sendbuff "));
    fails(api, reduce(good.start, foreign.start), INVALID_ARGUMENT, &words("AllReduce: recvbuff "));
    let code = unsafe { (api.ncclSend)(foreign.start, 100, INT32, 0, comm, stream) };
    fails(api, code, INVALID_ARGUMENT, &words("Send: sendbuff "));
    let code = unsafe { (api.ncclRecv)(foreign.start, 100, INT32, 0, comm, stream) };
    fails(api, code, INVALID_ARGUMENT, &words("Recv: recvbuff "));
    let ordinary = memory("ordinary");
    let address = format!("{:#x}", ordinary as usize);
    let words = ["recvbuff ", &address, "does not know", "need memory"];
    fails(api, reduce(good.start, ordinary), INVALID_ARGUMENT, &words);
    fails(api, reduce(good.start, null_mut()), INVALID_ARGUMENT, &["recvbuff is NULL"]);
    // What a rank has no use for may be anything.
    let unused = if own == 0 { good.start } else { foreign.start };
    api.ok(unsafe { (api.ncclBroadcast)(unused, good.start, 100, INT32, 0, comm, stream) });
    for kind in ["pinned", "managed"] {
        api.ok(reduce(memory(kind), good.start));
        cuda.wait(stream);
        assert_eq!(good.get(), [2; 100], "{kind}");
    }
    works(&rank, comm);
    api.destroy(comm);
}

#[test]
fn buffers_elsewhere_are_refused_where_that_is_asked_for() {
    with_devices(Cluster::new(2, 1), 2).env("NCCL_CHECK_POINTERS", 1).run("elsewhere");
    with_devices(Cluster::new(2, 1), 2).env("NCCL_CHECK_MODE", "DEBUG_LOCAL").run("elsewhere");
}

/// NULL is refused anyway; all else that the driver can copy from and to is served.
fn unchecked(rank: Rank) {
    let (api, cuda) = (rank.api, cuda());
    cuda.choose(1 - rank.rank);
    let foreign = OnDevice::of(&[1i32; 100]);
    cuda.choose(rank.rank);
    let comm = rank.join();
    let stream = cuda.stream();
    let reduce = |from, to| unsafe { (api.ncclAllReduce)(from, to, 100, INT32, SUM, comm, stream) };
    fails(api, reduce(null_mut(), foreign.start), INVALID_ARGUMENT, &["AllReduce: sendbuff is NULL"]);
    let code = unsafe { (api.ncclSend)(null_mut(), 100, INT32, 0, comm, stream) };
    fails(api, code, INVALID_ARGUMENT, &["Send: the buffer is NULL", "400 bytes"]);
    for from in [memory("ordinary"), memory("pinned"), memory("managed"), foreign.start] {
        let to = OnDevice::of(&[0i32; 100]);
        api.ok(reduce(from, to.start));
        cuda.wait(stream);
        assert_eq!(to.get(), [2; 100]);
    }
    let ordinary = memory("ordinary");
    api.ok(reduce(foreign.start, ordinary));
    cuda.wait(stream);
    // The stream is through, and nobody else knows of the memory.
    assert_eq!(unsafe { std::slice::from_raw_parts(ordinary.cast::<i32>(), 100) }, [2; 100]);
    api.destroy(comm);
}

#[test]
fn unchecked_buffers_may_lie_wherever_the_driver_copies() {
    with_devices(Cluster::new(2, 1), 2).run("unchecked");
}

/// Streams of other devices, and groups whose streams are not all in one capture: the call fails, and nothing else.
fn wrong_streams(rank: Rank) {
    let (api, cuda, own) = (rank.api, cuda(), rank.rank);
    cuda.choose(1 - own);
    let foreign = cuda.stream();
    cuda.choose(own);
    let comm = rank.join();
    let (stream, captured) = (cuda.stream(), cuda.stream());
    let buffer = OnDevice::of(&[1i32; 100]);
    let reduce =
        |stream| unsafe { (api.ncclAllReduce)(buffer.start, buffer.start, 100, INT32, SUM, comm, stream) };
    let (there, here) =
        (format!("the stream is of device {}", 1 - own), format!("communicator's device {own}"));
    fails(api, reduce(foreign), INVALID_ARGUMENT, &[&there, &here]);
    works(&rank, comm);
    let graph = cuda.capture(captured, || {
        let code = api.group(|| [captured, stream].into_iter().for_each(|stream| api.ok(reduce(stream))));
        fails(
            api,
            code,
            INVALID_USAGE,
            &["not all captured in the same graph", "need all of them to be, or none"],
        );
    });
    works(&rank, comm);
    graph.launch(stream);
    cuda.wait(stream);
    // Waiting for a stream that is captured ends the capture.
    cuda.ok(unsafe { (cuda.cudaStreamBeginCapture)(captured, 1) });
    assert_ne!(unsafe { (cuda.cudaStreamSynchronize)(captured) }, 0);
    fails(api, reduce(captured), INVALID_USAGE, &["capture has been invalidated", "end it"]);
    let mut graph = null_mut();
    assert_ne!(unsafe { (cuda.cudaStreamEndCapture)(captured, &raw mut graph) }, 0);
    works(&rank, comm);
    api.destroy(comm);
}

#[test]
fn streams_that_cannot_be_used_fail_their_call_alone() {
    with_devices(Cluster::new(2, 1), 2).run("wrong_streams");
}
