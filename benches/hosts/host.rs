//! One of the two processes.

use accl_sys::abi::{ncclComm_t, ncclFloat32, ncclMax, ncclSuccess, ncclSum, ncclUniqueId};
use accl_sys::collectives::{ncclAllGather, ncclAllReduce, ncclReduceScatter};
use accl_sys::management::{ncclCommInitRank, ncclGetUniqueId};
use std::ffi::c_void;
use std::io::{ErrorKind, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::ptr::null_mut;
use std::time::Duration;

const PLACE: &str = "10.9.0.1:7000";

fn check(code: u32) {
    assert_eq!(code, ncclSuccess);
}

/// One process.
pub(crate) struct Host {
    comm: ncclComm_t,
    stream: TcpStream,
    pub(crate) rank: usize,
}

impl Host {
    /// The id travels on the plain connection.
    pub(crate) fn join(rank: usize) -> Self {
        let mut id = ncclUniqueId { internal: [0; 128] };
        let bytes: *mut [u8; 128] = (&raw mut id.internal).cast();
        let stream = if rank == 0 {
            let listener = TcpListener::bind(PLACE).unwrap();
            let (mut stream, _) = listener.accept().unwrap();
            // SAFETY: a place for the id, which is 128 bytes.
            unsafe {
                check(ncclGetUniqueId(&raw mut id));
                stream.write_all(&*bytes).unwrap();
            }
            stream
        } else {
            let mut stream = loop {
                match TcpStream::connect(PLACE) {
                    Ok(stream) => break stream,
                    Err(_) => std::thread::sleep(Duration::from_millis(10)),
                }
            };
            // SAFETY: the id is 128 bytes.
            stream.read_exact(unsafe { &mut *bytes }).unwrap();
            stream
        };
        stream.set_nodelay(true).unwrap();
        stream.set_nonblocking(true).unwrap();
        let mut comm = null_mut();
        // SAFETY: a place for the handle.
        check(unsafe { ncclCommInitRank(&raw mut comm, 2, id, rank as i32) });
        Self { comm, stream, rank }
    }

    pub(crate) fn meet(&self) {
        let (one, mut two) = (1.0f32, 0.0f32);
        // SAFETY: one element each.
        check(unsafe {
            ncclAllReduce(place(&one), room(&mut two), 1, ncclFloat32, ncclSum, self.comm, null_mut())
        });
        assert_eq!(two, 2.0);
    }

    /// All of `send` goes out and as much comes in; sleeps only when neither can move.
    pub(crate) fn exchange(&mut self, send: &[u8], recv: &mut [u8]) {
        let (mut sent, mut received) = (0, 0);
        let tried = |result: std::io::Result<usize>| match result {
            Ok(count) => count,
            Err(error) if error.kind() == ErrorKind::WouldBlock => 0,
            Err(error) => panic!("{error}"),
        };
        while sent < send.len() || received < recv.len() {
            if sent < send.len() {
                sent += tried(self.stream.write(&send[sent..]));
            }
            if received < recv.len() {
                received += tried(self.stream.read(&mut recv[received..]));
            }
        }
    }

    pub(crate) fn operate(&self, operation: &str, bytes: usize, send: &[f32], recv: &mut [f32]) {
        let (count, comm) = (bytes / 4, self.comm);
        let (from, to) = (send.as_ptr().cast(), recv.as_mut_ptr().cast());
        let reduces = if operation == "allreduce" { ncclAllReduce } else { ncclReduceScatter };
        // SAFETY: both buffers hold twice as many elements.
        check(unsafe {
            if operation == "allgather" {
                ncclAllGather(from, to, count, ncclFloat32, comm, null_mut())
            } else {
                reduces(from, to, count, ncclFloat32, ncclSum, comm, null_mut())
            }
        });
        assert_eq!(recv[count - 1], if operation == "allgather" { 1.0 } else { 2.0 });
    }

    /// The larger of what both hosts say.
    pub(crate) fn slowest(&self, time: f64) -> f64 {
        let (mine, mut both) = (time as f32, 0.0f32);
        // SAFETY: one element each.
        check(unsafe {
            ncclAllReduce(place(&mine), room(&mut both), 1, ncclFloat32, ncclMax, self.comm, null_mut())
        });
        both.into()
    }
}

fn place(value: &f32) -> *const c_void {
    std::ptr::from_ref(value).cast()
}

fn room(value: &mut f32) -> *mut c_void {
    std::ptr::from_mut(value).cast()
}
