//! Random cases: every type, operator and path, with forms, alignments and aliasing mixed.

use proptest::prelude::*;

use super::{Case, Row};
use crate::reduce::oracle::Oracle;
use crate::reduce::{Form, Path, division};
use crate::types::{DataType, ReduceOp};

/// Bytes of one value: often an awkward one.
fn value(dtype: DataType, bytes: usize, raw: u128, kind: u8) -> Vec<u8> {
    let bits = bytes as u32 * 8;
    let ones = u128::MAX >> (128 - bits);
    let random = raw & ones;
    let special = if dtype.is_float() {
        // Sign and exponent patterns whose lower bits are nearly all zeros or ones: infinities, NaN, zeros, subnormals.
        let top = random & (ones << (bits - 1 - 5.min(bits - 3)) & ones);
        match kind % 4 {
            0 => top,
            1 => ones << (bits / 4 * 3 - 1) & ones & (raw | ones >> 1),
            2 => random & (1 << (bits - 1)) | (raw >> 64 & 3),
            _ => random & (1 << (bits - 1)),
        }
    } else {
        match kind % 4 {
            0 => 1 << (bits - 1),
            1 => ones >> 1,
            2 => ones - (raw & 3),
            _ => raw & 3,
        }
    };
    let chosen = if kind < 96 { special } else { random };
    chosen.to_le_bytes()[..bytes].to_vec()
}

fn row(dtype: DataType, op: ReduceOp, count: usize) -> impl Strategy<Value = Row> {
    let wide = Oracle { dtype, op, ranks: 1 };
    (any::<bool>(), 0..64usize, any::<Option<[u8; 8]>>()).prop_flat_map(move |(element, shift, scale)| {
        let form = if element { Form::Element } else { Form::Accumulator };
        let bytes = wide.bytes(form);
        // An accumulator of an average is a sum of elements of 64 bits at most, not any number of 128.
        let fit = move |mut v: Vec<u8>| {
            if v.len() == 16 {
                let sign = if v[11] & 0x80 == 0 { 0 } else { 0xff };
                v[12..].fill(sign);
            } else if v.len() == 8 && !dtype.is_float() && op == ReduceOp::Avg {
                let sign = if v[6] & 0x80 == 0 { 0 } else { 0xff };
                v[7..].fill(sign);
            }
            v
        };
        prop::collection::vec((any::<u128>(), any::<u8>()), count).prop_map(move |raw| Row {
            bytes: raw.into_iter().flat_map(|(r, k)| fit(value(dtype, bytes, r, k))).collect(),
            shift,
            form,
            scale,
        })
    })
}

fn case(dtype: DataType, op: ReduceOp, path: Path) -> impl Strategy<Value = Case> {
    (1..10usize, prop_oneof![0..40usize, 0..300usize], any::<bool>()).prop_flat_map(
        move |(sources, count, elements)| {
            (
                prop::collection::vec(row(dtype, op, count), sources),
                prop_oneof![1..9usize, Just(1000)],
                any::<bool>(),
                0..64usize,
                any::<Option<prop::sample::Index>>(),
            )
                .prop_map(move |(mut rows, ranks, element, shift, alias)| {
                    let form = if element { Form::Element } else { Form::Accumulator };
                    if elements {
                        // The plain case, which has loops of its own, deserves its share.
                        let size = dtype.size_bytes();
                        for row in &mut rows {
                            row.form = Form::Element;
                            row.bytes.resize(count * size, 0x3c);
                            row.scale = None;
                        }
                    }
                    let alias = alias.map(|i| i.index(sources)).filter(|&k| rows[k].form == form);
                    Case { dtype, op, ranks, path, rows, count, form, shift, alias }
                })
        },
    )
}

#[test]
fn any_case_equals_the_oracle() {
    let mut checked = 0;
    for dtype in DataType::ALL {
        for op in ReduceOp::ALL {
            for &path in Path::available() {
                let config = ProptestConfig { cases: 40, failure_persistence: None, ..Default::default() };
                let mut runner = proptest::test_runner::TestRunner::new(config);
                runner
                    .run(&case(dtype, op, path), |case| {
                        prop_assert_eq!(case.run(), case.expected());
                        Ok(())
                    })
                    .unwrap_or_else(|failure| panic!("{dtype} {op} {path:?}: {failure}"));
                checked += 40;
            }
        }
    }
    assert!(checked >= 40 * 72);
}

proptest! {
    #[test]
    fn reciprocals_divide(sum in any::<i64>(), bits in 0..31u32, low in any::<u32>()) {
        let ranks = (1usize << bits) | (low as usize & ((1 << bits) - 1));
        for ranks in [ranks, 1, 2, 3, 1 << 31] {
            for sum in [sum, sum >> 20, sum >> 40, i64::MAX, -i64::MAX, ranks as i64 - 1, -(ranks as i64)] {
                let sum = sum.max(-i64::MAX);
                prop_assert_eq!(division::Reciprocal::new(ranks).divide(sum), sum.wrapping_div(ranks as i64));
            }
        }
    }

    #[test]
    fn inverses_divide(sum in -(1i64 << 33)..1 << 33, bits in 0..32u32, low in any::<u32>()) {
        let ranks = (1usize << bits) | (low as usize & ((1 << bits) - 1));
        for ranks in [ranks, 1, 2, 3, 1 << 31] {
            let divisor = ranks as i64;
            // On both sides of a multiple the quotient is most easily missed.
            let multiple = sum / divisor * divisor;
            for sum in [sum, multiple - 1, multiple, multiple + 1, sum >> 20, 0] {
                let quotient = division::Inverse::<f64>::new(ranks).divide(sum as f64);
                prop_assert_eq!(quotient as u32, (sum / divisor) as u32, "{} / {}", sum, divisor);
            }
        }
    }
}
