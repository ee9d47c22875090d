//! How near an allreduce of two ranks comes to what the machine allows.
//!
//! `cargo bench --bench floor` prints, per size, the floor and the time over it. The floor: a word from core to core; and
//! each core adds one half of the rows and copies the other half's result, at the speeds measured just before, for rows that
//! lie where these do. That lines have to change cores is not in it. Ranks are threads of one process.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use accl_core::comm::{CommConfig, Communicator, Operator, Stream};
use accl_core::memory::UserPointer;
use accl_core::topo::Machine;
use accl_core::types::{DataType, ReduceOp};
use std::hint::black_box;
use std::sync::Barrier;
use std::time::Instant;

/// Calls of one rank, for one size.
struct Rank {
    comm: Communicator,
    send: Vec<f32>,
    recv: Vec<f32>,
}

impl Rank {
    fn call(&mut self) {
        // SAFETY: both vectors outlive the call.
        let (send, recv) = unsafe {
            (UserPointer::new(self.send.as_ptr().cast()), UserPointer::new(self.recv.as_ptr().cast()))
        };
        let (sum, count) = (Operator::plain(ReduceOp::Sum), self.send.len());
        self.comm.all_reduce(send, recv, count, DataType::Float32, sum, Stream::None).expect("the operation");
    }
}

/// The best of several bursts of calls, in nanoseconds a call.
fn measure(comms: &[Communicator], count: usize) -> f64 {
    let burst = (4_000_000 / (count * 4)).clamp(2, 500);
    let barrier = Barrier::new(2);
    std::thread::scope(|scope| {
        let threads: Vec<_> = comms
            .iter()
            .map(|comm| {
                let barrier = &barrier;
                scope.spawn(move || {
                    let mut rank =
                        Rank { comm: comm.clone(), send: vec![1.0; count], recv: vec![0.0; count] };
                    let mut best = f64::INFINITY;
                    for _ in 0..12 {
                        barrier.wait();
                        let start = Instant::now();
                        (0..burst).for_each(|_| rank.call());
                        best = best.min(start.elapsed().as_nanos() as f64 / burst as f64);
                    }
                    assert!(black_box(&rank.recv).iter().all(|value| *value == 2.0));
                    best
                })
            })
            .collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).fold(0.0, f64::max)
    })
}

/// Nanoseconds for each KiB that the machine takes: to add, and to copy, rows of `bytes` each.
fn rates(machine: &Machine, bytes: usize) -> (f64, f64) {
    let figures = |add_ps: u32, copy_ps: u32| (f64::from(add_ps) / 1000.0, f64::from(copy_ps) / 1000.0);
    // One input and the result of this rank, and the input of the other.
    let rows_kib = 3 * bytes / 1024;
    if rows_kib <= machine.l2_kib as usize {
        figures(machine.add_l2_ps_per_kib, machine.copy_l2_ps_per_kib)
    } else if 2 * rows_kib <= machine.l3_kib as usize {
        figures(machine.add_l3_ps_per_kib, machine.copy_l3_ps_per_kib)
    } else {
        figures(
            machine.add_memory_ps_per_kib.min(machine.add_streaming_ps_per_kib),
            machine.copy_memory_ps_per_kib.min(machine.copy_streaming_ps_per_kib),
        )
    }
}

fn main() {
    let machine = accl_core::tune::measure().expect("figures of this machine");
    let handover_ns = f64::from(machine.handover_ps) / 1000.0;
    println!("# hand-over {handover_ns:.0} ns; allreduce of two threads, float, sum");
    println!("{:>10} {:>12} {:>12} {:>8}", "bytes", "floor us", "time us", "ratio");
    let comms = Communicator::init_all(2, None, &CommConfig::default()).expect("two ranks");
    for shift in (3..=26).step_by(2).chain([26]) {
        let bytes = 1usize << shift;
        let (add, copy) = rates(&machine, bytes);
        let floor = handover_ns + bytes as f64 / 2048.0 * (add + copy);
        let time = measure(&comms, bytes / 4);
        println!("{bytes:>10} {:>12.2} {:>12.2} {:>8.2}", floor / 1000.0, time / 1000.0, time / floor);
    }
}
