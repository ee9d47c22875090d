//! Speed of two-source sums, per type and path, and of copies and sums with streaming stores, after a check of the answers.
//!
//! `cargo bench -p accl-core --bench reduce`. The throughput is bytes of *result* per second: 64 KiB rows stay in the
//! second-level cache, 16 MiB rows come from the last one or from memory, and 64 MiB rows mostly from memory.

#![allow(unsafe_code)]

use std::hint::black_box;
use std::time::Duration;

use accl_core::reduce::{Form, Path, Reduction, Source, copy_streaming};
use accl_core::types::{DataType, ReduceOp};
use criterion::{BenchmarkId, Criterion, Throughput};

const SIZES: [usize; 2] = [64 << 10, 16 << 20];
const LARGE_BYTES: usize = 64 << 20;

fn main() {
    let mut criterion = Criterion::default()
        .warm_up_time(Duration::from_millis(200))
        .measurement_time(Duration::from_millis(500))
        .sample_size(10)
        .without_plots()
        .configure_from_args();
    for dtype in DataType::ALL {
        check(dtype);
        for bytes in SIZES {
            sum(&mut criterion, dtype, bytes);
        }
    }
    copy_large(&mut criterion);
    for dtype in [DataType::Float32, DataType::Bfloat16] {
        sum_large(&mut criterion, dtype);
    }
    criterion.final_summary();
}

fn sum(criterion: &mut Criterion, dtype: DataType, bytes: usize) {
    let mut group = criterion.benchmark_group(format!("sum/{dtype}"));
    group.throughput(Throughput::Bytes(bytes as u64));
    let (left, right) = (ones(dtype, bytes), ones(dtype, bytes));
    let mut result = vec![0; bytes];
    for &path in Path::available() {
        let reduction = Reduction::with_path(dtype, ReduceOp::Sum, 2, path);
        group.bench_function(BenchmarkId::new(format!("{path:?}"), bytes), |bencher| {
            bencher.iter(|| reduce(&reduction, black_box(&left), black_box(&right), black_box(&mut result)));
        });
    }
    group.finish();
}

/// Rows that no cache should hold, written with ordinary and with streaming stores.
fn copy_large(criterion: &mut Criterion) {
    let source = ones(DataType::Int8, LARGE_BYTES);
    let mut result = vec![0u8; LARGE_BYTES];
    let mut group = criterion.benchmark_group("large/copy");
    group.throughput(Throughput::Bytes(LARGE_BYTES as u64));
    group.bench_function("plain", |bencher| {
        bencher.iter(|| black_box(&mut result).copy_from_slice(black_box(&source)));
    });
    group.bench_function("streaming", |bencher| {
        bencher.iter(|| {
            let (result, source) = (black_box(&mut result), black_box(&source));
            // SAFETY: two rows of the same length, apart.
            unsafe { copy_streaming(result.as_mut_ptr(), source.as_ptr(), LARGE_BYTES) };
        });
    });
    group.finish();
}

fn sum_large(criterion: &mut Criterion, dtype: DataType) {
    let (left, right) = (ones(dtype, LARGE_BYTES), ones(dtype, LARGE_BYTES));
    let mut result = vec![0; LARGE_BYTES];
    let reduction = Reduction::new(dtype, ReduceOp::Sum, 2);
    let mut group = criterion.benchmark_group(format!("large/sum/{dtype}"));
    group.throughput(Throughput::Bytes(LARGE_BYTES as u64));
    group.bench_function("plain", |bencher| {
        bencher.iter(|| reduce(&reduction, black_box(&left), black_box(&right), black_box(&mut result)));
    });
    group.bench_function("streaming", |bencher| {
        bencher.iter(|| {
            reduce_streaming(&reduction, black_box(&left), black_box(&right), black_box(&mut result))
        });
    });
    group.finish();
}

fn sources(left: &[u8], right: &[u8], result: &[u8]) -> [Source; 2] {
    assert!(left.len() == result.len() && right.len() == result.len());
    [left, right].map(|row| Source { start: row.as_ptr(), form: Form::Element, scale: None })
}

fn reduce(reduction: &Reduction, left: &[u8], right: &[u8], result: &mut [u8]) {
    let sources = sources(left, right, result);
    let count_elems = result.len() / reduction.element_bytes();
    // SAFETY: all three rows have the same length, and a `&mut` is apart from a `&`.
    unsafe { reduction.reduce(&sources, result.as_mut_ptr(), Form::Element, count_elems) };
}

fn reduce_streaming(reduction: &Reduction, left: &[u8], right: &[u8], result: &mut [u8]) {
    let sources = sources(left, right, result);
    let count_elems = result.len() / reduction.element_bytes();
    // SAFETY: as in `reduce`.
    unsafe { reduction.reduce_streaming(&sources, result.as_mut_ptr(), Form::Element, count_elems) };
}

/// The code of 1 and of 2.
fn one_and_two(dtype: DataType) -> (u64, u64) {
    match dtype {
        DataType::Float16 => (0x3c00, 0x4000),
        DataType::Bfloat16 => (0x3f80, 0x4000),
        DataType::Float32 => (0x3f80_0000, 0x4000_0000),
        DataType::Float64 => (0x3ff0_0000_0000_0000, 0x4000_0000_0000_0000),
        DataType::Float8e4m3 => (0x38, 0x40),
        DataType::Float8e5m2 => (0x3c, 0x40),
        _ => (1, 2),
    }
}

fn row(dtype: DataType, code: u64, bytes: usize) -> Vec<u8> {
    code.to_le_bytes()[..dtype.size_bytes()].repeat(bytes / dtype.size_bytes())
}

fn ones(dtype: DataType, bytes: usize) -> Vec<u8> {
    row(dtype, one_and_two(dtype).0, bytes)
}

/// One and one is two, on every path, in rows that are no multiple of a vector.
fn check(dtype: DataType) {
    let bytes = 1000 * dtype.size_bytes() + 56;
    for &path in Path::available() {
        let reduction = Reduction::with_path(dtype, ReduceOp::Sum, 2, path);
        let mut result = vec![0; bytes];
        reduce(&reduction, &ones(dtype, bytes), &ones(dtype, bytes), &mut result);
        assert_eq!(result, row(dtype, one_and_two(dtype).1, bytes), "{dtype} on {path:?}");
        let mut result = vec![0; bytes];
        reduce_streaming(&reduction, &ones(dtype, bytes), &ones(dtype, bytes), &mut result);
        assert_eq!(result, row(dtype, one_and_two(dtype).1, bytes), "{dtype} on {path:?}, streaming");
    }
}
