//! Streaming forms against the plain ones: the same bits, and nothing written beside the destination.

use super::{GUARD, GUARD_BYTE, first_difference};
use crate::reduce::{Form, Path, Reduction, Source, stream};
use crate::types::{DataType, ReduceOp, Scalar};

/// Bytes that look random, and hold every value.
fn noise(bytes: usize, seed: u64) -> Vec<u8> {
    let mut state = seed | 1;
    let step = |_| {
        state = state.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        (state >> 56) as u8
    };
    (0..bytes).map(step).collect()
}

/// A destination whose first byte is `shift` bytes into a page, between guards.
struct Guarded {
    memory: Vec<u8>,
    start: usize,
    bytes: usize,
}

impl Guarded {
    fn new(shift: usize, bytes: usize) -> Self {
        let memory = vec![GUARD_BYTE; 2 * stream::PAGE_BYTES + shift + bytes + GUARD];
        let start = GUARD + memory[GUARD..].as_ptr().align_offset(stream::PAGE_BYTES) + shift;
        Self { memory, start, bytes }
    }

    fn as_mut_ptr(&mut self) -> *mut u8 {
        self.memory[self.start..].as_mut_ptr()
    }

    fn into_inside(self) -> Vec<u8> {
        let (before, rest) = self.memory.split_at(self.start);
        let (inside, after) = rest.split_at(self.bytes);
        assert!(before.iter().chain(after).all(|&b| b == GUARD_BYTE), "guards of the destination");
        inside.to_vec()
    }
}

/// From nothing to more than a window of pages, on both sides of a line, a run and a page.
fn lengths_elems(element_bytes: usize) -> Vec<usize> {
    let bytes = [0, 1, 63, 64, 65, 511, 512, 513, 1000, 4095, 4096, 4097, 16_384, 16_383, 20_000, 50_003];
    bytes.map(|bytes: usize| bytes.div_ceil(element_bytes)).to_vec()
}

fn check(reduction: &Reduction, sources: &[Source], form: Form, shift: usize, count: usize) {
    let bytes = count * reduction.bytes(form);
    let (mut plain, mut streamed) = (Guarded::new(shift, bytes), Guarded::new(shift, bytes));
    // SAFETY: the callers' rows have `count` values, and so have both destinations.
    unsafe {
        reduction.reduce(sources, plain.as_mut_ptr(), form, count);
        reduction.reduce_streaming(sources, streamed.as_mut_ptr(), form, count);
    }
    let difference = first_difference(&streamed.into_inside(), &plain.into_inside());
    assert_eq!(difference, None, "{reduction:?} {form:?} {shift} {count}");
}

#[test]
fn streaming_reductions_have_the_bits_of_plain_ones() {
    const MOST_BYTES: usize = 50_003 + 64;
    let rows: Vec<Vec<u8>> = (0..17).map(|seed| noise(16 * MOST_BYTES, seed)).collect();
    for dtype in DataType::ALL {
        for op in [ReduceOp::Sum, ReduceOp::Avg, ReduceOp::PreMulSum, ReduceOp::Max] {
            for &path in Path::available() {
                let reduction = Reduction::with_path(dtype, op, 3, path);
                let scale = Some(Scalar([0x41; 8]));
                for (turn, count) in lengths_elems(dtype.size_bytes()).into_iter().enumerate() {
                    // Shifts that are multiples of no element, of an element, and of a line, in turns.
                    let shift = [0, 1, 8, 16, 24, 63, 64, 4088][turn % 8];
                    let sources: Vec<Source> = (0..[2, 3, 1, 17][turn % 4])
                        .map(|k| Source { start: rows[k][k * turn..].as_ptr(), form: Form::Element, scale })
                        .collect();
                    check(&reduction, &sources, Form::Element, shift, count);
                    check(&reduction, &sources, Form::Accumulator, 16 * turn, count);
                    let partial = Source { start: rows[3].as_ptr(), form: Form::Accumulator, scale: None };
                    if op != ReduceOp::Avg || dtype.is_float() {
                        check(&reduction, &[partial, sources[0]], Form::Element, shift, count);
                    }
                }
            }
        }
    }
}

#[test]
fn a_destination_may_be_a_source_of_a_streaming_reduction() {
    for &path in Path::available() {
        let reduction = Reduction::with_path(DataType::Int32, ReduceOp::Sum, 2, path);
        let (mut row, other) = (noise(40_000, 1), noise(40_000, 2));
        let expected: Vec<u8> = row
            .chunks(4)
            .zip(other.chunks(4))
            .flat_map(|(a, b)| {
                let number = |bytes: &[u8]| i32::from_le_bytes(bytes.try_into().unwrap());
                number(a).wrapping_add(number(b)).to_le_bytes()
            })
            .collect();
        let dst = row.as_mut_ptr();
        let sources = [dst.cast_const(), other.as_ptr()].map(|start| Source {
            start,
            form: Form::Element,
            scale: None,
        });
        // SAFETY: the destination is exactly the first source.
        unsafe { reduction.reduce_streaming(&sources, dst, Form::Element, 10_000) };
        assert_eq!(first_difference(&row, &expected), None, "{path:?}");
    }
}

#[test]
fn streaming_copies_are_copies() {
    let source = noise(70_000, 9);
    for &path in Path::available() {
        for bytes in (0..200).chain(lengths_elems(1)).chain([16_384 + 63, 32_768 + 130, 65_000]) {
            for (to, from) in [(0, 0), (1, 0), (0, 3), (63, 17), (64, 1), (4000, 4095)] {
                let mut destination = Guarded::new(to, bytes);
                // SAFETY: both have room for `bytes`.
                unsafe { stream::copy(path, destination.as_mut_ptr(), source[from..].as_ptr(), bytes) };
                let difference = first_difference(&destination.into_inside(), &source[from..from + bytes]);
                assert_eq!(difference, None, "{path:?} {bytes} {to} {from}");
            }
        }
    }
}
