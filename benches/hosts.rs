//! How near operations between two hosts come to what their bytes take on a plain connection.
//!
//! `cargo bench --bench hosts` makes two network namespaces on one cable and a process in each (needs root), and
//! measures in turn: a two-way stream of as many bytes as an operation has to send each way, and the operation. Prints
//! microseconds for both (medians) and stream / operation: 1 is the speed of the stream.
//!
//! With HOSTS_CABLES=2 there is another cable, which the stream does not use; with HOSTS_RATE=1gbit (as `tc` reads it) each end
//! of each cable sends no faster.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

// Made for tests, which need more of it.
#[allow(dead_code)]
#[path = "../tests/net/namespaces.rs"]
mod namespaces;

use accl_sys::abi::{ncclComm_t, ncclFloat32, ncclSuccess, ncclSum, ncclUniqueId};
use accl_sys::collectives::{ncclAllGather, ncclAllReduce, ncclReduceScatter};
use accl_sys::management::{ncclCommInitRank, ncclGetUniqueId};
use namespaces::Net;
use std::ffi::c_void;
use std::io::{ErrorKind, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::ptr::null_mut;
use std::time::{Duration, Instant};

const RANK: &str = "HOSTS_RANK";
const PLACE: &str = "10.9.0.1:7000";
/// Bytes each way.
const SIZES: [usize; 8] = [8, 512, 4 << 10, 32 << 10, 256 << 10, 2 << 20, 16 << 20, 64 << 20];
const OPERATIONS: [&str; 3] = ["allreduce", "allgather", "reducescatter"];

fn check(code: u32) {
    assert_eq!(code, ncclSuccess);
}

/// One process.
struct Host {
    comm: ncclComm_t,
    stream: TcpStream,
    rank: usize,
}

impl Host {
    /// The id travels on the plain connection.
    fn join(rank: usize) -> Self {
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

    fn meet(&self) {
        let (one, mut two) = (1.0f32, 0.0f32);
        // SAFETY: one element each.
        check(unsafe {
            ncclAllReduce(place(&one), room(&mut two), 1, ncclFloat32, ncclSum, self.comm, null_mut())
        });
        assert_eq!(two, 2.0);
    }

    /// All of `send` goes out and as much comes in; sleeps only when neither can move.
    fn exchange(&mut self, send: &[u8], recv: &mut [u8]) {
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

    fn operate(&self, operation: &str, bytes: usize, send: &[f32], recv: &mut [f32]) {
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

    fn measure(&mut self) {
        for operation in OPERATIONS {
            for bytes in SIZES {
                let repeats = (8 << 20) / bytes.clamp(8 << 10, 8 << 20);
                let rounds = if bytes > 1 << 20 { 7 } else { 21 };
                let (send, mut recv) = (vec![1.0f32; bytes / 2], vec![0.0f32; bytes / 2]);
                let (out, mut back) = (vec![1u8; bytes], vec![0u8; bytes]);
                let (mut plain, mut ours) = (Vec::new(), Vec::new());
                for _ in 0..rounds {
                    self.meet();
                    let begin = Instant::now();
                    (0..repeats).for_each(|_| self.exchange(&out, &mut back));
                    plain.push(begin.elapsed().as_secs_f64() * 1e6 / repeats as f64);
                    self.meet();
                    let begin = Instant::now();
                    (0..repeats).for_each(|_| self.operate(operation, bytes, &send, &mut recv));
                    ours.push(begin.elapsed().as_secs_f64() * 1e6 / repeats as f64);
                }
                if self.rank == 0 {
                    let median = |times: &mut Vec<f64>| {
                        times.sort_by(f64::total_cmp);
                        times[times.len() / 2]
                    };
                    let (plain, ours) = (median(&mut plain), median(&mut ours));
                    println!("{operation:14}{bytes:>10}{plain:>12.1}{ours:>12.1}{:>8.2}", plain / ours);
                }
            }
        }
    }
}

fn place(value: &f32) -> *const c_void {
    std::ptr::from_ref(value).cast()
}

fn room(value: &mut f32) -> *mut c_void {
    std::ptr::from_mut(value).cast()
}

fn main() {
    if let Ok(rank) = std::env::var(RANK) {
        return Host::join(rank.parse().unwrap()).measure();
    }
    let Some(net) = Net::two() else { return };
    let cables: usize = std::env::var("HOSTS_CABLES").map_or(1, |cables| cables.parse().unwrap());
    for cable in 1..cables {
        let (one, other) = (format!("10.{}.0.1/24", 9 + cable), format!("10.{}.0.2/24", 9 + cable));
        let name = format!("eth{cable}");
        net.cable((0, &name, &[&one]), (1, &name, &[&other]));
    }
    if let Ok(rate) = std::env::var("HOSTS_RATE") {
        for (host, cable) in (0..2).flat_map(|host| (0..cables).map(move |cable| (host, cable))) {
            let shape = format!("qdisc add dev eth{cable} root tbf rate {rate} burst 256kb latency 20ms");
            net.tool(host, "tc", &shape);
        }
    }
    println!(
        "# two hosts on {cables} cable(s); bytes each way, µs of the stream, µs of the operation, stream / operation"
    );
    let start = |host: usize| {
        let mut command = net.command(host);
        command.arg(std::env::current_exe().unwrap()).env(RANK, host.to_string());
        command.spawn().unwrap()
    };
    let mut hosts = [start(0), start(1)];
    for host in &mut hosts {
        assert!(host.wait().unwrap().success());
    }
}
