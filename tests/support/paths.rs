//! Calls whose cost can be counted: two ranks in one thread, in an order in which nobody waits.
//!
//! A broadcast's root and the ranks of a reduction that are not its root go on as soon as they have posted; the other
//! rank finds everything there. What such calls execute is the same every time, to the instruction.

// Each program uses its part of this.
#![allow(dead_code, unreachable_pub)]
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use accl_sys::abi::{cudaStream_t, ncclComm_t, ncclFloat32, ncclSuccess, ncclSum};
use accl_sys::collectives::{ncclAllReduce, ncclBroadcast, ncclReduce};
use accl_sys::group::{ncclGroupEnd, ncclGroupStart};
use accl_sys::management::ncclCommInitAll;
use accl_sys::streams::{acclStreamCreate, acclStreamSynchronize};
use std::ptr::{null, null_mut};

/// Calls of each rank in a row. Fewer than a rank may be ahead of another.
pub const CALLS: usize = 6;

/// Two ranks and their buffers.
pub struct Pair {
    comms: [ncclComm_t; 2],
    send: [Vec<f32>; 2],
    recv: [Vec<f32>; 2],
}

impl Pair {
    /// Two ranks in this thread, with room for `most` elements.
    pub fn new(most: usize) -> Self {
        let mut comms = [null_mut(); 2];
        // SAFETY: the array takes both handles.
        let code = unsafe { ncclCommInitAll(comms.as_mut_ptr(), 2, null()) };
        assert_eq!(code, ncclSuccess);
        Self { comms, send: [vec![1.0; most], vec![2.0; most]], recv: [vec![0.0; most], vec![0.0; most]] }
    }

    /// Rank 0 sends `count` elements to rank 1, [`CALLS`] times.
    pub fn broadcast(&mut self, count: usize) {
        for rank in [0, 1] {
            for _ in 0..CALLS {
                let (send, recv) = (self.send[rank].as_ptr().cast(), self.recv[rank].as_mut_ptr().cast());
                // SAFETY: the buffers hold `count` elements.
                let code =
                    unsafe { ncclBroadcast(send, recv, count, ncclFloat32, 0, self.comms[rank], null_mut()) };
                assert_eq!(code, ncclSuccess);
            }
        }
        assert!(self.recv[1][..count].iter().all(|value| *value == 1.0));
    }

    /// Rank 1 gets the sum of `count` elements, [`CALLS`] times.
    pub fn reduce(&mut self, count: usize) {
        for rank in [0, 1] {
            for _ in 0..CALLS {
                let (send, recv) = (self.send[rank].as_ptr().cast(), self.recv[rank].as_mut_ptr().cast());
                // SAFETY: the buffers hold `count` elements.
                let code = unsafe {
                    ncclReduce(send, recv, count, ncclFloat32, ncclSum, 1, self.comms[rank], null_mut())
                };
                assert_eq!(code, ncclSuccess);
            }
        }
        assert!(self.recv[1][..count].iter().all(|value| *value == 3.0));
    }

    /// Two streams.
    pub fn streams() -> [cudaStream_t; 2] {
        [0, 1].map(|_| {
            let mut stream = null_mut();
            // SAFETY: a place for the handle.
            let code = unsafe { acclStreamCreate(&raw mut stream) };
            assert_eq!(code, ncclSuccess);
            stream
        })
    }

    /// Both ranks queue an AllReduce of one element `calls` times, each rank on its stream, and wait. All calls of the `first` rank lie in
    /// its queue before the other one makes any.
    pub fn all_reduce_on(&mut self, streams: [cudaStream_t; 2], first: usize, calls: usize) {
        for rank in [first, 1 - first] {
            let (send, recv) = (self.send[rank].as_ptr().cast(), self.recv[rank].as_mut_ptr().cast());
            for _ in 0..calls {
                let comm = self.comms[rank];
                // SAFETY: the buffers hold an element until the stream is done.
                let code = unsafe { ncclAllReduce(send, recv, 1, ncclFloat32, ncclSum, comm, streams[rank]) };
                assert_eq!(code, ncclSuccess);
            }
        }
        for stream in streams {
            // SAFETY: a stream of this library.
            assert_eq!(unsafe { acclStreamSynchronize(stream) }, ncclSuccess);
        }
        assert!(self.recv.iter().all(|recv| recv[0] == 3.0));
    }

    /// Both ranks' AllReduce in one group, [`CALLS`] times: the general way, with a plan beyond the one-step path.
    pub fn all_reduce(&mut self, count: usize) {
        for _ in 0..CALLS {
            // SAFETY: the buffers hold `count` elements until the group has ended.
            unsafe {
                assert_eq!(ncclGroupStart(), ncclSuccess);
                for rank in [0, 1] {
                    let (send, recv) = (self.send[rank].as_ptr().cast(), self.recv[rank].as_mut_ptr().cast());
                    let comm = self.comms[rank];
                    let code = ncclAllReduce(send, recv, count, ncclFloat32, ncclSum, comm, null_mut());
                    assert_eq!(code, ncclSuccess);
                }
                assert_eq!(ncclGroupEnd(), ncclSuccess);
            }
        }
        assert!(self.recv.iter().all(|recv| recv[..count].iter().all(|value| *value == 3.0)));
    }
}
