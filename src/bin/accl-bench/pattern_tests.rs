//! The predicted results against plain computation, in many orders, with every partial result rounded.

use super::*;

/// One step of a reduction as a library does it: two values of the type to one.
fn step(kind: DataType, op: Operator, left: u64, right: u64) -> u64 {
    if let Some(format) = kind.float() {
        let (left, right) = (format.decode(left), format.decode(right));
        let result = match op {
            Operator::Prod => left * right,
            Operator::Min => left.min(right),
            Operator::Max => left.max(right),
            _ => left + right,
        };
        return format.encode(result);
    }
    let (signed_left, signed_right) = (kind.sign_extend(left), kind.sign_extend(right));
    let result = match op {
        Operator::Prod => left.wrapping_mul(right),
        Operator::Min if kind.signed() => signed_left.min(signed_right) as u64,
        Operator::Max if kind.signed() => signed_left.max(signed_right) as u64,
        Operator::Min => left.min(right),
        Operator::Max => left.max(right),
        _ => left.wrapping_add(right),
    };
    result & kind.mask()
}

/// What a rank brings to the first step.
fn prepared(pattern: &Pattern, op: Operator, rank: usize, index: usize) -> u64 {
    let input = pattern.input(rank, index);
    match (op, pattern.kind.float()) {
        (Operator::MulSum, Some(format)) => {
            format.encode(format.decode(input) * Pattern::factor(rank) as f64)
        }
        (Operator::MulSum, None) => input.wrapping_mul(Pattern::factor(rank) as u64) & pattern.kind.mask(),
        _ => input,
    }
}

fn finished(pattern: &Pattern, op: Operator, sum: u64) -> u64 {
    match (op, pattern.kind.float()) {
        (Operator::Avg, Some(format)) => format.encode(format.decode(sum) / pattern.ranks as f64),
        (Operator::Avg, None) => sum / pattern.ranks as u64,
        _ => sum,
    }
}

/// As a chain from any start in either direction, and as a tree.
fn in_all_orders(pattern: &Pattern, op: Operator, index: usize) -> Vec<u64> {
    let ranks = pattern.ranks;
    let inputs: Vec<u64> = (0..ranks).map(|rank| prepared(pattern, op, rank, index)).collect();
    let together = |left, right| step(pattern.kind, op, left, right);
    let mut results = Vec::new();
    for first in 0..ranks {
        let up = (0..ranks).map(|next| inputs[(first + next) % ranks]);
        let down = (0..ranks).map(|next| inputs[(first + ranks - next) % ranks]);
        results.push(up.reduce(together).unwrap());
        results.push(down.reduce(together).unwrap());
    }
    let mut level = inputs;
    while level.len() > 1 {
        level = level.chunks(2).map(|pair| pair.iter().copied().reduce(together).unwrap()).collect();
    }
    results.push(level[0]);
    results.into_iter().map(|sum| finished(pattern, op, sum)).collect()
}

#[test]
fn every_order_gives_the_predicted_bits() {
    for kind in DataType::ALL {
        for op in Operator::ALL {
            for ranks in [1, 2, 3, 5, 8, 17, 40] {
                let pattern = Pattern { kind, op: Some(op), ranks, seed: 7 };
                for index in (0..TILE_ELEMS).step_by(97) {
                    let expected = pattern.reduced(index);
                    for result in in_all_orders(&pattern, op, index) {
                        let distance = if result == expected { 0 } else { kind.ulps(result, expected) };
                        assert!(
                            distance <= pattern.tolerance_ulps(),
                            "{} {} of {ranks} ranks at {index}: {} and {}",
                            kind.name(),
                            op.name(),
                            kind.show(result),
                            kind.show(expected)
                        );
                    }
                }
            }
        }
    }
}

#[test]
fn ranks_differ_and_results_vary() {
    for kind in DataType::ALL {
        for op in [None, Some(Operator::Sum), Some(Operator::Prod), Some(Operator::Max), Some(Operator::Avg)]
        {
            let pattern = Pattern { kind, op, ranks: 3, seed: 1 };
            let differ =
                (0..1000).filter(|&index| pattern.input(0, index) != pattern.input(1, index)).count();
            assert!(differ > 300, "{} {op:?}: {differ}", kind.name());
            if op.is_some() {
                let first = pattern.reduced(0);
                assert!((1..1000).any(|index| pattern.reduced(index) != first), "{} {op:?}", kind.name());
            }
        }
    }
}

#[test]
fn a_filled_buffer_passes_and_each_change_is_found() {
    for kind in DataType::ALL {
        let pattern = Pattern { kind, op: None, ranks: 2, seed: 3 };
        let count = 2 * TILE_ELEMS + 5;
        let tile = Tile::new(kind, usize::MAX, |index| pattern.input(1, index));
        let mut data = vec![0; count * kind.bytes()];
        tile.fill(&mut data, 11);
        assert_eq!(bits(&data[..kind.bytes()]), pattern.input(1, 11));
        tile.check(&data, 11, 0, |index, _, _| panic!("{index} of a good buffer"));
        for element in [0, TILE_ELEMS - 12, TILE_ELEMS - 11, count - 1] {
            let at = element * kind.bytes();
            data[at] ^= 1;
            let mut found = Vec::new();
            tile.check(&data, 11, 0, |index, expected, got| found.push((index, expected ^ got)));
            assert_eq!(found, [(element, 1)]);
            data[at] ^= 1;
        }
    }
}

#[test]
fn only_averages_of_floats_have_a_tolerance() {
    let tolerance = |kind, op| Pattern { kind, op: Some(op), ranks: 3, seed: 0 }.tolerance_ulps();
    assert_eq!(tolerance(DataType::Float16, Operator::Avg), 2);
    assert_eq!(tolerance(DataType::Int32, Operator::Avg), 0);
    assert_eq!(tolerance(DataType::Float32, Operator::Sum), 0);
}
