//! How many small calls a second two processes get through on host streams.
//!
//! `cargo bench --bench streams` queues rounds of AllReduces of 8 bytes on one stream of each of two processes, a rank each,
//! then waits; prints the nanoseconds a call takes to queue, and until all are done. Calls with buffers of their own, and
//! calls that each work in place on the result of the one before, which no rank can begin before its peer.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use accl_sys::abi::{cudaStream_t, ncclComm_t, ncclFloat32, ncclSuccess, ncclSum, ncclUniqueId};
use accl_sys::collectives::ncclAllReduce;
use accl_sys::management::{ncclCommInitRank, ncclGetUniqueId};
use accl_sys::streams::{acclStreamCreate, acclStreamSynchronize};
use std::io::{Read, Write};
use std::process::{Command, Stdio};
use std::ptr::null_mut;
use std::time::Instant;

/// Calls in a round.
const CALLS: usize = 1000;
const ROUNDS: usize = 300;
/// Rounds before those that count.
const WARM_UP: usize = 20;
/// Set for the second process, which reads the unique id from its standard input.
const PARTNER: &str = "STREAMS_PARTNER";

fn check(code: u32) {
    assert_eq!(code, ncclSuccess);
}

/// One rank.
struct Rank {
    comm: ncclComm_t,
    stream: cudaStream_t,
    rank: usize,
}

impl Rank {
    fn join(id: ncclUniqueId, rank: usize) -> Self {
        let (mut comm, mut stream) = (null_mut(), null_mut());
        // SAFETY: places for both handles.
        unsafe {
            check(ncclCommInitRank(&raw mut comm, 2, id, rank as i32));
            check(acclStreamCreate(&raw mut stream));
        }
        Self { comm, stream, rank }
    }

    fn all_reduce(&self, send: *const [f32; 2], recv: *mut [f32; 2], stream: cudaStream_t) {
        // SAFETY: both places hold two elements, until the stream is done.
        check(unsafe { ncclAllReduce(send.cast(), recv.cast(), 2, ncclFloat32, ncclSum, self.comm, stream) });
    }

    /// One round: nanoseconds a call to queue it, and until all are done.
    fn round(&self, in_place: bool) -> (f64, f64) {
        let send: Vec<_> = (0..CALLS).map(|call| [call as f32, self.rank as f32]).collect();
        let mut recv = vec![[0.0f32; 2]; CALLS];
        // Ranks begin together.
        self.all_reduce(&[0.0; 2], &mut [0.0; 2], null_mut());
        let results = recv.as_mut_ptr();
        let begin = Instant::now();
        for (call, send) in send.iter().enumerate() {
            if in_place {
                self.all_reduce(results, results, self.stream);
            } else {
                self.all_reduce(send, results.wrapping_add(call), self.stream);
            }
        }
        let queued = begin.elapsed();
        // SAFETY: a stream of this library.
        check(unsafe { acclStreamSynchronize(self.stream) });
        let done = begin.elapsed();
        if !in_place {
            assert!(recv.iter().enumerate().all(|(call, sum)| *sum == [2.0 * call as f32, 1.0]));
        }
        let each = |time: std::time::Duration| time.as_nanos() as f64 / CALLS as f64;
        (each(queued), each(done))
    }

    fn measure(&self) {
        for (in_place, what) in [(false, "buffers of their own"), (true, "in place, each on the last")] {
            let rounds: Vec<_> = (0..WARM_UP + ROUNDS).map(|_| self.round(in_place)).collect();
            if self.rank == 0 {
                let median = |mut times: Vec<f64>| {
                    times.sort_by(f64::total_cmp);
                    times[ROUNDS / 2]
                };
                let queued = median(rounds[WARM_UP..].iter().map(|round| round.0).collect());
                let done = median(rounds[WARM_UP..].iter().map(|round| round.1).collect());
                println!(
                    "{what:28} {queued:6.0} ns to queue, {done:6.0} ns in all: {:.2} M/s",
                    1000.0 / done
                );
            }
        }
    }
}

fn main() {
    let mut id = ncclUniqueId { internal: [0; 128] };
    let bytes: *mut [u8; 128] = (&raw mut id.internal).cast();
    if std::env::var_os(PARTNER).is_some() {
        // SAFETY: the id is 128 bytes.
        std::io::stdin().read_exact(unsafe { &mut *bytes }).expect("the id");
        return Rank::join(id, 1).measure();
    }
    // SAFETY: a place for the id.
    check(unsafe { ncclGetUniqueId(&raw mut id) });
    let mut command = Command::new(std::env::current_exe().expect("this program"));
    let mut partner = command.env(PARTNER, "1").stdin(Stdio::piped()).spawn().expect("the second process");
    // SAFETY: the id is 128 bytes.
    partner.stdin.take().expect("its input").write_all(unsafe { &*bytes }).expect("the id is sent");
    println!("# allreduce of 8 bytes, {CALLS} queued a round, 2 processes, medians of {ROUNDS} rounds");
    Rank::join(id, 0).measure();
    assert!(partner.wait().expect("the second process").success());
}
