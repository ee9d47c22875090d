//! What calls in the memory of a device cost: the processor's time to put one on a stream, and the bandwidth of calls between ranks of
//! one device against the device's own copies.
//!
//! `cargo bench --bench device` uses the driver that ACCL_DRIVER_LIB names, or libcuda.so.1; without one it says so and ends. On the
//! simulated device (`cargo build -p accl-sim --release`, `ACCL_DRIVER_LIB=target/release/libaccl_sim.so`) it shows that it runs, and the
//! library's own part of an enqueue: that of the driver's functions is measured apart, by calling the same ones. Bandwidths there are
//! those of an interpreter.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]
// Every call here is a call of a C interface with arguments that the bench keeps alive.
#![allow(clippy::undocumented_unsafe_blocks)]

use accl_sys::abi::{cudaStream_t, ncclComm_t, ncclFloat32, ncclSuccess, ncclSum, ncclUniqueId};
use accl_sys::collectives::{ncclAllGather, ncclAllReduce, ncclBroadcast};
use accl_sys::group::{ncclGroupEnd, ncclGroupStart};
use accl_sys::management::{ncclCommDestroy, ncclCommInitRank, ncclGetUniqueId};
use accl_sys::point_to_point::{ncclRecv, ncclSend};
use std::ffi::{c_int, c_uint, c_void};
use std::hint::black_box;
use std::ptr::null_mut;
use std::time::{Duration, Instant};

type Ptr = *mut c_void;

macro_rules! functions {
    ($($field:ident: $name:literal ($($arg:ty),*);)*) => {
        /// Functions of the driver; each returns a code.
        struct Cuda {
            $($field: unsafe extern "C" fn($($arg),*) -> c_int,)*
            _library: libloading::Library,
        }

        impl Cuda {
            fn open(name: &str) -> Result<Self, libloading::Error> {
                unsafe {
                    let library = libloading::Library::new(name)?;
                    Ok(Self { $($field: *library.get($name)?,)* _library: library })
                }
            }
        }
    };
}

functions! {
    init: b"cuInit" (c_uint);
    retain: b"cuDevicePrimaryCtxRetain" (*mut Ptr, c_int);
    set_current: b"cuCtxSetCurrent" (Ptr);
    push: b"cuCtxPushCurrent_v2" (Ptr);
    pop: b"cuCtxPopCurrent_v2" (*mut Ptr);
    allocate: b"cuMemAlloc_v2" (*mut u64, usize);
    free: b"cuMemFree_v2" (u64);
    create_stream: b"cuStreamCreate" (*mut Ptr, c_uint);
    synchronize: b"cuStreamSynchronize" (Ptr);
    capture_info: b"cuStreamGetCaptureInfo_v2" (Ptr, *mut c_int, *mut u64, *mut Ptr, *mut Ptr, *mut usize);
    write: b"cuStreamWriteValue32_v2" (Ptr, u64, c_uint, c_uint);
    wait: b"cuStreamWaitValue32_v2" (Ptr, u64, c_uint, c_uint);
    copy: b"cuMemcpyAsync" (u64, u64, usize, Ptr);
}

fn ok(code: c_int) {
    assert_eq!(code, 0, "code of the driver");
}

fn check(code: c_uint) {
    assert_eq!(code, ncclSuccess);
}

impl Cuda {
    fn stream(&self) -> Ptr {
        let mut stream = null_mut();
        ok(unsafe { (self.create_stream)(&raw mut stream, 1) });
        stream
    }

    fn memory(&self, bytes: usize) -> u64 {
        let mut address = 0;
        ok(unsafe { (self.allocate)(&raw mut address, bytes) });
        address
    }

    fn wait_all(&self, ranks: &[Rank]) {
        ranks.iter().for_each(|rank| ok(unsafe { (self.synchronize)(rank.stream) }));
    }
}

/// One rank; all are of one device and one process.
struct Rank {
    comm: ncclComm_t,
    stream: Ptr,
    send: u64,
    recv: u64,
}

impl Rank {
    fn all(cuda: &Cuda, ranks: usize, bytes: usize) -> Vec<Self> {
        // Not by ncclCommInitAll, which wants a device for each rank.
        let (mut comms, mut id) = (vec![null_mut(); ranks], ncclUniqueId { internal: [0; 128] });
        unsafe {
            check(ncclGetUniqueId(&raw mut id));
            check(ncclGroupStart());
            for (rank, comm) in comms.iter_mut().enumerate() {
                check(ncclCommInitRank(comm, ranks as c_int, id, rank as c_int));
            }
            check(ncclGroupEnd());
        }
        let rank = |comm| Self {
            comm,
            stream: cuda.stream(),
            send: cuda.memory(bytes),
            recv: cuda.memory(bytes * ranks),
        };
        comms.into_iter().map(rank).collect()
    }

    fn end(cuda: &Cuda, ranks: Vec<Self>) {
        for rank in ranks {
            check(unsafe { ncclCommDestroy(rank.comm) });
            ok(unsafe { (cuda.free)(rank.send) });
            ok(unsafe { (cuda.free)(rank.recv) });
        }
    }

    fn call(&self, what: What, bytes: usize, peer: c_int) {
        let (send, recv) = (self.send as *const c_void, self.recv as Ptr);
        let (count, comm, stream): (usize, ncclComm_t, cudaStream_t) =
            (bytes / 4, self.comm, self.stream.cast());
        unsafe {
            match what {
                What::AllReduce => {
                    check(ncclAllReduce(send, recv, count, ncclFloat32, ncclSum, comm, stream))
                }
                What::AllGather => check(ncclAllGather(send, recv, count, ncclFloat32, comm, stream)),
                What::Broadcast => check(ncclBroadcast(send, recv, count, ncclFloat32, 0, comm, stream)),
                What::SendRecv => {
                    check(ncclGroupStart());
                    check(ncclSend(send, count, ncclFloat32, peer, comm, stream));
                    check(ncclRecv(recv, count, ncclFloat32, peer, comm, stream));
                    check(ncclGroupEnd());
                }
            }
        }
    }
}

#[derive(Clone, Copy, Debug)]
enum What {
    AllReduce,
    AllGather,
    Broadcast,
    SendRecv,
}

/// The time that this thread has been on a processor.
fn cpu_time() -> Duration {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    assert_eq!(unsafe { libc::clock_gettime(libc::CLOCK_THREAD_CPUTIME_ID, &raw mut time) }, 0);
    Duration::new(time.tv_sec as u64, time.tv_nsec as u32)
}

fn median(mut times: Vec<f64>) -> f64 {
    times.sort_by(f64::total_cmp);
    times[times.len() / 2]
}

/// Microseconds of this thread for one of `calls` calls of `body`; the median of several rounds, `after` each of which is not counted.
fn each_us(calls: usize, mut body: impl FnMut(), mut after: impl FnMut()) -> f64 {
    let mut round = || {
        let begin = cpu_time();
        (0..calls).for_each(|_| body());
        let time = cpu_time() - begin;
        after();
        time.as_secs_f64() * 1e6 / calls as f64
    };
    round();
    median((0..15).map(|_| round()).collect())
}

/// Calls that are queued before anybody waits: fewer than a stream's queue holds.
const QUEUED: usize = 100;

fn enqueues(cuda: &Cuda, context: Ptr) {
    let driver = driver_part(cuda, context);
    println!(
        "# processor time of an enqueue, 2 ranks of one device, {QUEUED} queued at once, medians of 15 rounds"
    );
    println!("# the driver's own functions of a lone call, called by themselves: {driver:.2} us");
    println!("# call                      us   less the driver's");
    for (what, bytes) in [
        (What::AllReduce, 8),
        (What::AllReduce, 1 << 20),
        (What::Broadcast, 8),
        (What::Broadcast, 1 << 20),
        (What::SendRecv, 8),
    ] {
        let ranks = Rank::all(cuda, 2, bytes);
        // The engine works meanwhile; only this thread's time counts. A pair of calls is one of each rank.
        let calls = if bytes > 8 { 10 } else { QUEUED };
        let pair = each_us(
            calls,
            || (0..2).for_each(|rank: usize| ranks[rank].call(what, bytes, 1 - rank as c_int)),
            || cuda.wait_all(&ranks),
        );
        println!("{:10} {bytes:8} B {:8.2} {:8.2}", format!("{what:?}"), pair / 2.0, pair / 2.0 - driver);
        Rank::end(cuda, ranks);
    }
}

/// What the driver's functions for a lone call cost, without this library, on a stream that waits, as it does in a call.
fn driver_part(cuda: &Cuda, context: Ptr) -> f64 {
    let (stream, other, gate) = (cuda.stream(), cuda.stream(), cuda.memory(8));
    let (mut status, mut id, mut graph, mut popped) = (0, 0, null_mut(), null_mut());
    let word = gate + 4;
    let round = std::cell::Cell::new(1);
    let stop = || ok(unsafe { (cuda.wait)(stream, gate, round.get(), 1) });
    let lone = || unsafe {
        ok((cuda.push)(context));
        let (id, graph) = (&raw mut id, &raw mut graph);
        ok((cuda.capture_info)(stream, &raw mut status, id, graph, null_mut(), null_mut()));
        ok((cuda.write)(stream, word, 1, 0));
        ok((cuda.wait)(stream, word, 1, 0));
        ok((cuda.pop)(&raw mut popped));
    };
    stop();
    let time = each_us(QUEUED, lone, || {
        ok(unsafe { (cuda.write)(other, gate, round.get(), 0) });
        ok(unsafe { (cuda.synchronize)(stream) });
        round.set(round.get() + 1);
        stop();
    });
    ok(unsafe { (cuda.write)(other, gate, round.get(), 0) });
    ok(unsafe { (cuda.synchronize)(stream) });
    ok(unsafe { (cuda.free)(gate) });
    time
}

/// The best of several runs of `body`, in seconds.
fn best(mut body: impl FnMut()) -> f64 {
    let mut run = || {
        let begin = Instant::now();
        body();
        begin.elapsed().as_secs_f64()
    };
    run();
    (0..5).map(|_| run()).fold(f64::INFINITY, f64::min)
}

fn bandwidths(cuda: &Cuda, bytes: usize) {
    let (stream, from, to) = (cuda.stream(), cuda.memory(bytes), cuda.memory(bytes));
    let copy = best(|| unsafe {
        ok((cuda.copy)(to, from, bytes, stream));
        ok((cuda.synchronize)(stream));
    });
    black_box((from, to));
    let gbs = |time: f64| bytes as f64 / time / 1e9;
    println!(
        "# {bytes} B a rank, ranks of one device; a copy of as many bytes takes {:.0} us: {:.2} GB/s",
        copy * 1e6,
        gbs(copy)
    );
    println!("# call       ranks       us     GB/s  times a copy");
    for what in [What::AllReduce, What::AllGather, What::Broadcast] {
        for count in [2, 4, 8] {
            let ranks = Rank::all(cuda, count, bytes);
            let time = best(|| {
                ranks.iter().for_each(|rank| rank.call(what, bytes, 0));
                cuda.wait_all(&ranks);
            });
            let name = format!("{what:?}");
            println!("{name:10} {count:6} {:10.0} {:8.2} {:8.1}", time * 1e6, gbs(time), time / copy);
            Rank::end(cuda, ranks);
        }
    }
    [from, to].into_iter().for_each(|address| ok(unsafe { (cuda.free)(address) }));
}

fn main() {
    let named = std::env::var("ACCL_DRIVER_LIB").unwrap_or_else(|_| "libcuda.so.1".to_string());
    let cuda = match Cuda::open(&named) {
        Ok(cuda) => cuda,
        Err(error) => {
            println!(
                "there is no device driver ({named}: {error}); need libcuda.so.1, or one with the same functions, or the simulated device, \
                 in ACCL_DRIVER_LIB"
            );
            return;
        }
    };
    let mut context = null_mut();
    if unsafe { (cuda.init)(0) } != 0 || unsafe { (cuda.retain)(&raw mut context, 0) } != 0 {
        println!("{named} has no device; need one");
        return;
    }
    ok(unsafe { (cuda.set_current)(context) });
    enqueues(&cuda, context);
    let bytes = std::env::var("DEVICE_BYTES").ok().and_then(|text| text.parse().ok());
    bandwidths(&cuda, bytes.unwrap_or(64 << 20));
}
