//! What putting a call on a stream of a device must not do: allocate.

// A test ends by panicking; what it calls gets pointers that it keeps alive.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]
// Every call here is a call of a C interface with arguments that the test keeps alive.
#![allow(clippy::undocumented_unsafe_blocks)]

#[path = "support/counting.rs"]
mod counting;
#[path = "support/mod.rs"]
mod support;

use accl_sys::abi::{ncclComm_t, ncclFloat32, ncclSuccess, ncclSum};
use accl_sys::collectives::{ncclAllReduce, ncclBroadcast};
use accl_sys::management::ncclCommInitAll;
use std::ffi::c_void;
use std::process::Command;
use std::ptr::null_mut;
use support::device::{OnDevice, SIMULATOR, cuda, simulator};

#[global_allocator]
static COUNTING: counting::Counting = counting::Counting;

const CHILD: &str = "ENQUEUE_CHILD";
/// Elements of small calls and of such as take several pieces.
const COUNTS: [usize; 2] = [2, 600_000];

type Stream = *mut c_void;

/// Every kind of lone call, on the streams of both ranks in turn.
fn calls(comms: &[ncclComm_t; 2], buffers: &[OnDevice<f32>; 2], streams: &[Stream; 2]) {
    for count in COUNTS {
        for _ in 0..3 {
            for rank in [0, 1] {
                let (at, comm, stream) = (buffers[rank].start, comms[rank], streams[rank].cast());
                let code = unsafe { ncclAllReduce(at, at, count, ncclFloat32, ncclSum, comm, stream) };
                assert_eq!(code, ncclSuccess);
                let code = unsafe { ncclBroadcast(at, at, count, ncclFloat32, 1, comm, stream) };
                assert_eq!(code, ncclSuccess);
            }
        }
    }
}

#[test]
fn child() {
    if std::env::var_os(CHILD).is_none() {
        return;
    }
    let (cuda, mut comms) = (cuda(), [null_mut(); 2]);
    cuda.choose(0);
    assert_eq!(unsafe { ncclCommInitAll(comms.as_mut_ptr(), 2, [0, 1].as_ptr()) }, ncclSuccess);
    let own = |rank| {
        cuda.choose(rank);
        (OnDevice::of(&vec![0f32; COUNTS[1]]), cuda.stream())
    };
    let ((first, one), (second, other)) = (own(0), own(1));
    let (buffers, streams) = ([first, second], [one, other]);
    let wait = || streams.iter().for_each(|stream| cuda.wait(*stream));
    calls(&comms, &buffers, &streams);
    wait();
    let before = counting::allocations();
    calls(&comms, &buffers, &streams);
    assert_eq!(counting::allocations(), before);
    wait();
    drop(std::hint::black_box(vec![0u8; 100]));
    assert_eq!(counting::allocations(), before + 1, "the count counts");
}

#[test]
fn calls_on_streams_of_devices_allocate_nothing() {
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args(["--exact", "child", "--nocapture"]).env(CHILD, "1");
    command.env(SIMULATOR, simulator()).env("ACCL_DRIVER_LIB", simulator());
    let output = command.output().unwrap();
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success() && text.contains("1 passed"), "{output:?}");
}
