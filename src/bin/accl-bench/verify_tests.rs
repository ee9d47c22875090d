//! Verification against operations that a plain program carries out, right and wrong.

use super::*;
use crate::datatype::Operator;

const ELEMS: usize = 64;

struct Rank {
    send: Buffer,
    recv: Buffer,
}

/// Carries out the test over all ranks' buffers, byte for byte as its definition says.
fn carry_out(test: Test, pattern: &Pattern, shapes: &[Shape<'_>], ranks: &mut [Rank], in_place: bool) {
    let size = pattern.kind.bytes();
    let inputs: Vec<Vec<u8>> = shapes
        .iter()
        .zip(ranks.iter_mut())
        .map(|(shape, rank)| {
            let at = if in_place { shape.in_place().send_elem * size } else { 0 };
            let buffer = if in_place { &mut rank.recv } else { &mut rank.send };
            buffer.data(at, shape.counts.send_elems * size).to_vec()
        })
        .collect();
    let n = shapes.len();
    for (me, (shape, rank)) in shapes.iter().zip(ranks.iter_mut()).enumerate() {
        let count = shape.counts.param_elems;
        let part = |from: usize, start: usize| inputs[from][start * size..(start + count) * size].to_vec();
        let reduced = |start: usize| -> Vec<u8> {
            (start..start + count)
                .flat_map(|index| pattern.reduced(index).to_le_bytes()[..size].to_vec())
                .collect()
        };
        let root = shape.root.max(0) as usize;
        let matrix = shape.matrix;
        let result: Vec<u8> = match test {
            Test::AllReduce => reduced(0),
            Test::Reduce if me == root => reduced(0),
            Test::ReduceScatter => reduced(me * count),
            Test::Broadcast => part(root, 0),
            Test::Scatter => part(root, me * count),
            Test::AllGather | Test::Hypercube => inputs.concat(),
            Test::Gather if me == root => inputs.concat(),
            Test::AlltoAll => (0..n).flat_map(|from| part(from, me * count)).collect(),
            Test::SendRecv => part((me + n - 1) % n, 0),
            Test::AlltoAllv => (0..n)
                .flat_map(|from| {
                    let start = matrix.unwrap().send_offset(from, me) * size;
                    inputs[from][start..start + matrix.unwrap().elems(from, me) * size].to_vec()
                })
                .collect(),
            Test::Reduce | Test::Gather => continue,
        };
        let at = if in_place { shape.in_place().recv_elem * size } else { 0 };
        rank.recv.data(at, result.len()).copy_from_slice(&result);
    }
}

fn all_checks(mut each: impl FnMut(&[Check<'_>], &mut [Rank])) {
    for test in Test::ALL {
        for kind in [DataType::Int8, DataType::Float16, DataType::Float64] {
            for n in [1, 2, 4] {
                let counts = test.counts(ELEMS * n * 8, kind, n);
                let matrix = Matrix::new(counts.param_elems, kind, n, 0.5);
                let root = if test.rooted() { n as i32 - 1 } else { -1 };
                let shape = |rank| Shape { test, kind, rank, ranks: n, root, counts, matrix: Some(&matrix) };
                let shapes: Vec<Shape<'_>> = (0..n).map(shape).collect();
                let op = test.reduces().then_some(Operator::Sum);
                let pattern = Pattern { kind, op, ranks: n, seed: 5 };
                for in_place in [false, true] {
                    if in_place && !test.in_place() {
                        continue;
                    }
                    let bytes = counts.send_elems.max(counts.recv_elems) * kind.bytes();
                    let buffer = || Buffer::new(bytes, 0, None).unwrap();
                    let mut ranks: Vec<Rank> =
                        (0..n).map(|_| Rank { send: buffer(), recv: buffer() }).collect();
                    let checks: Vec<Check<'_>> =
                        shapes.iter().map(|shape| Check { shape, pattern, in_place }).collect();
                    for (check, rank) in checks.iter().zip(&mut ranks) {
                        check.prepare(&mut rank.send, &mut rank.recv);
                    }
                    carry_out(test, &pattern, &shapes, &mut ranks, in_place);
                    each(&checks, &mut ranks);
                }
            }
        }
    }
}

#[test]
fn right_results_pass() {
    all_checks(|checks, ranks| {
        for (check, rank) in checks.iter().zip(ranks) {
            let finding = check.compare(&mut rank.send, &mut rank.recv);
            assert_eq!(finding, Finding::default(), "{:?} in place {}", check.shape, check.in_place);
        }
    });
}

#[test]
fn a_changed_element_a_stray_byte_and_a_changed_input_are_found() {
    all_checks(|checks, ranks| {
        for (check, rank) in checks.iter().zip(ranks) {
            let Some(segment) = check.shape.segments().pop() else { continue };
            let base = if check.in_place { check.shape.in_place().recv_elem } else { 0 };
            let at = (base + segment.first_elem + segment.count_elems - 1) * check.shape.kind.bytes();
            rank.recv.data(at, 1)[0] ^= 0x10;
            let finding = check.compare(&mut rank.send, &mut rank.recv);
            assert_eq!((finding.wrong_elems, finding.total()), (1, 1), "{:?}", check.shape);
            assert_eq!(finding.first[0].index, segment.first_elem + segment.count_elems - 1);
            if !check.in_place {
                rank.send.data(0, 1)[0] ^= 1;
                assert_eq!(check.compare(&mut rank.send, &mut rank.recv).changed_inputs, 1);
            }
        }
    });
}

#[test]
fn a_library_that_does_nothing_fails() {
    let counts = Test::AllReduce.counts(64, DataType::Float32, 2);
    let shape = Shape {
        test: Test::AllReduce,
        kind: DataType::Float32,
        rank: 1,
        ranks: 2,
        root: -1,
        counts,
        matrix: None,
    };
    let pattern = Pattern { kind: DataType::Float32, op: Some(Operator::Sum), ranks: 2, seed: 0 };
    let check = Check { shape: &shape, pattern, in_place: false };
    let mut send = Buffer::new(64, 0, None).unwrap();
    let mut recv = Buffer::new(64, 0, None).unwrap();
    check.prepare(&mut send, &mut recv);
    let finding = check.compare(&mut send, &mut recv);
    assert_eq!(finding.wrong_elems, 16);
    let lines = finding.describe(1, DataType::Float32, "all_reduce");
    assert!(lines[0].starts_with("rank 1, index 0: expected "), "{}", lines[0]);
    assert_eq!(lines.len(), SHOWN + 1);
}
