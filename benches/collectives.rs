//! How long operations between two ranks of one process take, and that they are right.
//!
//! Ranks are threads here, so that the figures are those of engine, board, links and kernels. For processes, and
//! for other libraries, there is `accl-bench`.

// A bench that cannot go on fails by panicking.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use accl_core::comm::{CommConfig, Communicator, Operator, Stream};
use accl_core::memory::UserPointer;
use accl_core::types::{DataType, ReduceOp};
use criterion::{BenchmarkId, Criterion, Throughput, criterion_group, criterion_main};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread::JoinHandle;
use std::time::Instant;

fn pointer(data: &[f32]) -> UserPointer {
    // SAFETY: the vectors of this bench outlive the calls that use them.
    unsafe { UserPointer::new(data.as_ptr().cast()) }
}

/// One call of one rank.
#[derive(Clone, Copy, Debug)]
enum Operation {
    AllReduce,
    AllGather,
}

fn call(operation: Operation, comm: &Communicator, send: &[f32], recv: &[f32]) {
    let (from, to) = (pointer(send), pointer(recv));
    let sum = Operator::plain(ReduceOp::Sum);
    match operation {
        Operation::AllReduce => comm.all_reduce(from, to, send.len(), DataType::Float32, sum, Stream::None),
        Operation::AllGather => comm.all_gather(from, to, send.len(), DataType::Float32, Stream::None),
    }
    .expect("the operation");
}

/// The second rank: makes as many calls as it is told to.
fn partner(
    operation: Operation,
    comm: Communicator,
    count: usize,
    calls: Arc<AtomicUsize>,
) -> JoinHandle<()> {
    std::thread::spawn(move || {
        let (send, recv) = (vec![2.0f32; count], vec![0.0f32; 2 * count]);
        loop {
            match calls.swap(0, Ordering::AcqRel) {
                usize::MAX => return,
                0 => std::hint::spin_loop(),
                calls => (0..calls).for_each(|_| call(operation, &comm, &send, &recv)),
            }
        }
    })
}

fn bench(criterion: &mut Criterion) {
    for operation in [Operation::AllReduce, Operation::AllGather] {
        let mut group = criterion.benchmark_group(format!("{operation:?}, 2 threads"));
        for count in [2usize, 1024, 16_384, 262_144, 4_194_304] {
            let mut comms = Communicator::init_all(2, None, &CommConfig::default()).expect("two ranks");
            let calls = Arc::new(AtomicUsize::new(0));
            let other = partner(operation, comms.pop().unwrap(), count, calls.clone());
            let (send, recv) = (vec![1.0f32; count], vec![0.0f32; 2 * count]);
            calls.store(1, Ordering::Release);
            call(operation, &comms[0], &send, &recv);
            let right = match operation {
                Operation::AllReduce => recv[..count].iter().all(|value| *value == 3.0),
                Operation::AllGather => {
                    recv[..count].iter().all(|value| *value == 1.0)
                        && recv[count..].iter().all(|value| *value == 2.0)
                }
            };
            assert!(right, "{operation:?} of {count} elements is wrong");
            group.throughput(Throughput::Bytes(4 * count as u64));
            group.bench_with_input(BenchmarkId::from_parameter(4 * count), &count, |bencher, _| {
                bencher.iter_custom(|iterations| {
                    calls.store(iterations as usize, Ordering::Release);
                    let start = Instant::now();
                    (0..iterations).for_each(|_| call(operation, &comms[0], &send, &recv));
                    start.elapsed()
                });
            });
            calls.store(usize::MAX, Ordering::Release);
            other.join().expect("the other rank");
        }
        group.finish();
    }
}

criterion_group! {
    name = benches;
    config = Criterion::default()
        .sample_size(20)
        .warm_up_time(std::time::Duration::from_millis(300))
        .measurement_time(std::time::Duration::from_secs(1));
    targets = bench
}
criterion_main!(benches);
