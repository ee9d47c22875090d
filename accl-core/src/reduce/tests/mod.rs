//! Every path against the oracle.

mod random;
mod streaming;

use super::oracle::{BF16, E4M3, E5M2, F16, Narrow, Oracle};
use super::{Form, Path, Reduction, Source, format};
use crate::types::{DataType, ReduceOp, Scalar};

const GUARD: usize = 64;
const GUARD_BYTE: u8 = 0xa5;

/// One source row of a case: bytes, where they start in their buffer, form and factor.
#[derive(Clone, Debug)]
struct Row {
    bytes: Vec<u8>,
    shift: usize,
    form: Form,
    scale: Option<[u8; 8]>,
}

#[derive(Clone, Debug)]
struct Case {
    dtype: DataType,
    op: ReduceOp,
    ranks: usize,
    path: Path,
    rows: Vec<Row>,
    count: usize,
    form: Form,
    shift: usize,
    /// The source that is the destination, too.
    alias: Option<usize>,
}

impl Case {
    fn oracle(&self) -> Oracle {
        Oracle { dtype: self.dtype, op: self.op, ranks: self.ranks }
    }

    fn expected(&self) -> Vec<u8> {
        let oracle = self.oracle();
        let mut all = Vec::new();
        for i in 0..self.count {
            let sources: Vec<_> = self
                .rows
                .iter()
                .map(|row| {
                    let bytes = oracle.bytes(row.form);
                    (&row.bytes[i * bytes..(i + 1) * bytes], row.form, row.scale)
                })
                .collect();
            all.extend(oracle.reduce(&sources, self.form));
        }
        all
    }

    /// Runs the kernel in guarded buffers and returns the destination.
    fn run(&self) -> Vec<u8> {
        let reduction = Reduction::with_path(self.dtype, self.op, self.ranks, self.path);
        let bytes = self.count * self.oracle().bytes(self.form);
        assert_eq!(reduction.element_bytes(), self.dtype.size_bytes());
        assert_eq!(reduction.accumulator_bytes(), self.oracle().accumulator_bytes());
        let mut buffers: Vec<Vec<u8>> = self
            .rows
            .iter()
            .map(|row| {
                let mut buffer = vec![GUARD_BYTE; GUARD + row.shift];
                buffer.extend(&row.bytes);
                buffer.extend([GUARD_BYTE; GUARD]);
                buffer
            })
            .collect();
        let mut own = vec![GUARD_BYTE; 2 * GUARD + self.shift + bytes];
        let starts: Vec<*mut u8> =
            buffers.iter_mut().zip(&self.rows).map(|(b, row)| b[GUARD + row.shift..].as_mut_ptr()).collect();
        let sources: Vec<Source> = starts
            .iter()
            .zip(&self.rows)
            .map(|(start, row)| Source { start: *start, form: row.form, scale: row.scale.map(Scalar) })
            .collect();
        let dst = self.alias.map_or_else(|| own[GUARD + self.shift..].as_mut_ptr(), |k| starts[k]);
        // SAFETY: each buffer has room for its row; the destination is apart, or one of the sources.
        unsafe { reduction.reduce(&sources, dst, self.form, self.count) };
        for (index, (buffer, row)) in buffers.iter().zip(&self.rows).enumerate() {
            let (before, rest) = buffer.split_at(GUARD + row.shift);
            let (inside, after) = rest.split_at(row.bytes.len());
            assert!(before.iter().chain(after).all(|&b| b == GUARD_BYTE), "guard of source {index}");
            assert!(self.alias == Some(index) || inside == row.bytes, "source {index} changed");
        }
        if let Some(k) = self.alias {
            let at = GUARD + self.rows[k].shift;
            return buffers[k][at..at + bytes].to_vec();
        }
        let (before, rest) = own.split_at(GUARD + self.shift);
        let (inside, after) = rest.split_at(bytes);
        assert!(before.iter().chain(after).all(|&b| b == GUARD_BYTE), "guard of the destination");
        inside.to_vec()
    }
}

/// Two plain sources on every path: expected bytes as the oracle has them.
fn check_pairs(dtype: DataType, op: ReduceOp, ranks: usize, left: Vec<u8>, right: Vec<u8>) {
    let count = left.len() / dtype.size_bytes();
    let rows = [left, right].map(|bytes| Row { bytes, shift: 0, form: Form::Element, scale: None }).to_vec();
    let mut case = Case {
        dtype,
        op,
        ranks,
        path: Path::Portable,
        rows,
        count,
        form: Form::Element,
        shift: 0,
        alias: None,
    };
    let expected = case.expected();
    for &path in Path::available() {
        for alias in [None, Some(0), Some(1)] {
            (case.path, case.alias) = (path, alias);
            assert_eq!(first_difference(&case.run(), &expected), None, "{dtype} {op} {path:?} {alias:?}");
        }
    }
}

fn first_difference(left: &[u8], right: &[u8]) -> Option<(usize, u8, u8)> {
    left.iter().zip(right).enumerate().find(|(_, (a, b))| a != b).map(|(i, (a, b))| (i, *a, *b))
}

#[test]
fn all_pairs_of_float8() {
    for (dtype, narrow) in [(DataType::Float8e4m3, E4M3), (DataType::Float8e5m2, E5M2)] {
        // Numbers first, so that they stand in groups of numbers alone: vector code treats groups with others apart.
        let mut pairs: Vec<u16> = (0..=0xffff).collect();
        let is_number = |code: u16| code & 0x7f <= narrow.largest();
        pairs.sort_by_key(|pair| !(is_number(pair >> 8) && is_number(pair & 0xff)));
        let left: Vec<u8> = pairs.iter().map(|pair| (pair >> 8) as u8).collect();
        let right: Vec<u8> = pairs.iter().map(|pair| *pair as u8).collect();
        for op in [ReduceOp::Sum, ReduceOp::Prod, ReduceOp::Max, ReduceOp::Min] {
            check_pairs(dtype, op, 2, left.clone(), right.clone());
        }
        for ranks in [2, 3] {
            check_pairs(dtype, ReduceOp::Avg, ranks, left.clone(), right.clone());
        }
    }
}

#[test]
fn all_values_of_16_bits_with_awkward_partners() {
    for dtype in [DataType::Float16, DataType::Bfloat16] {
        for partner in
            [0x0000u16, 0x8000, 0x0001, 0x3c01, 0x7bff, 0x7c00, 0xfc00, 0x7f7f, 0x7f80, 0xff81, 0x4123]
        {
            let left: Vec<u8> = (0..=0xffffu16).flat_map(u16::to_le_bytes).collect();
            let right: Vec<u8> = (0..=0xffffu16).flat_map(|_| partner.to_le_bytes()).collect();
            for op in [ReduceOp::Sum, ReduceOp::Max, ReduceOp::Avg] {
                check_pairs(dtype, op, 3, left.clone(), right.clone());
            }
        }
    }
}

/// Runs `act` with flush-to-zero and denormals-are-zero set.
#[cfg(target_arch = "x86_64")]
fn flushing<T>(act: impl FnOnce() -> T) -> T {
    const FLUSH: u32 = 0x8040;
    let mut before = 0u32;
    // SAFETY: only the two mode bits of this thread's control register change, and they are put back. The compiler may
    // assume them clear for float arithmetic; `act` compares integers that vector instructions have made.
    unsafe {
        std::arch::asm!("stmxcsr [{}]", in(reg) &raw mut before, options(nostack));
        let set = before | FLUSH;
        std::arch::asm!("ldmxcsr [{}]", in(reg) &raw const set, options(nostack));
        let result = act();
        std::arch::asm!("ldmxcsr [{}]", in(reg) &raw const before, options(nostack));
        result
    }
}

/// `docs/numbers.md` says so of all narrow formats but bfloat16.
#[cfg(target_arch = "x86_64")]
#[test]
fn flushing_subnormal_numbers_does_not_change_narrow_sums() {
    for dtype in [DataType::Float16, DataType::Float8e4m3, DataType::Float8e5m2] {
        let elems = |step: u32| -> Vec<u8> {
            (0..=0xffffu32).flat_map(|i| ((i * step) as u16).to_le_bytes()).collect()
        };
        // All codes of 16 bits, or pairs of all of 8; the second row has many small ones.
        let (left, right) = (elems(1), elems(0x2005));
        for path in Path::available() {
            let rows = [&left, &right].map(|bytes| Row {
                bytes: bytes.clone(),
                shift: 0,
                form: Form::Element,
                scale: None,
            });
            let case = Case {
                dtype,
                op: ReduceOp::Sum,
                ranks: 2,
                path: *path,
                rows: rows.to_vec(),
                count: left.len() / dtype.size_bytes(),
                form: Form::Element,
                shift: 0,
                alias: None,
            };
            assert_eq!(first_difference(&flushing(|| case.run()), &case.run()), None, "{dtype} {path:?}");
        }
    }
}

/// One row is both sources, and the destination as well.
#[test]
fn a_row_may_be_all_operands_at_once() {
    for dtype in DataType::ALL {
        for op in ReduceOp::ALL {
            for &path in Path::available() {
                for sources in 2..5 {
                    let oracle = Oracle { dtype, op, ranks: 3 };
                    let size = dtype.size_bytes();
                    let before: Vec<u8> = (0..200 * size).map(|i| (i * 37 + i / 251) as u8).collect();
                    let expected: Vec<u8> = before
                        .chunks(size)
                        .flat_map(|elem| {
                            oracle.reduce(&vec![(elem, Form::Element, None); sources], Form::Element)
                        })
                        .collect();
                    let mut row = before.clone();
                    let dst = row.as_mut_ptr();
                    let source = Source { start: dst, form: Form::Element, scale: None };
                    let reduction = Reduction::with_path(dtype, op, 3, path);
                    // SAFETY: the destination is exactly each of the sources.
                    unsafe { reduction.reduce(&vec![source; sources], dst, Form::Element, 200) };
                    assert_eq!(first_difference(&row, &expected), None, "{dtype} {op} {path:?} {sources}");
                }
            }
        }
    }
}

/// What the kernels' codecs are called, next to the format's description.
type Codec = (Narrow, fn(u16) -> f32, fn(f32) -> u16);

const CODECS: [Codec; 4] = [
    (F16, format::f16_decode, format::f16_encode),
    (BF16, format::bf16_decode, format::bf16_encode),
    (E4M3, |code| format::e4m3_decode(code as u8), |x| u16::from(format::e4m3_encode(x))),
    (E5M2, |code| format::e5m2_decode(code as u8), |x| u16::from(format::e5m2_encode(x))),
];

#[test]
fn every_code_decodes_and_comes_back() {
    for (narrow, decode, encode) in CODECS {
        for code in 0..=(narrow.sign_bit() - 1) * 2 + 1 {
            let (exact, got) = (narrow.decode(code), decode(code));
            if exact.is_nan() {
                assert!(got.is_nan(), "{code:#x}");
                assert_eq!(encode(got), narrow.nan);
            } else {
                assert_eq!(f64::from(got).to_bits(), exact.to_bits(), "{code:#x}");
                assert_eq!(encode(got), code);
            }
        }
    }
}

/// A third opinion on binary16 and bfloat16.
#[test]
fn codecs_agree_with_the_half_crate() {
    for code in 0..=u16::MAX {
        let (f, b) = (half::f16::from_bits(code), half::bf16::from_bits(code));
        assert!(f.is_nan() || f.to_f32().to_bits() == format::f16_decode(code).to_bits());
        assert!(b.is_nan() || b.to_f32().to_bits() == format::bf16_decode(code).to_bits());
    }
    for i in 0..=u32::MAX / 997 {
        let x = f32::from_bits(i * 997);
        assert!(x.is_nan() || half::f16::from_f32(x).to_bits() == format::f16_encode(x), "{x:e}");
        assert!(x.is_nan() || half::bf16::from_f32(x).to_bits() == format::bf16_encode(x), "{x:e}");
    }
}

/// All codes, all points halfway between two, and the numbers on both sides of each; also beyond the largest.
fn awkward(narrow: Narrow) -> Vec<f32> {
    let mut all = vec![f32::MAX, f32::MIN_POSITIVE, f32::INFINITY, f32::NAN, f32::from_bits(1), 0.0];
    for code in 0..=narrow.largest() {
        let here = narrow.decode(code);
        let next = if code == narrow.largest() {
            here + (here - narrow.decode(code - 1))
        } else {
            narrow.decode(code + 1)
        };
        // A halfway point of bfloat16's subnormals or at the end of its range is no f32: rounding makes it a neighbour.
        for point in [here as f32, ((here + next) / 2.0) as f32, next as f32] {
            let bits = point.to_bits();
            all.extend([-2i32, -1, 0, 1, 2].map(|step| f32::from_bits(bits.saturating_add_signed(step))));
        }
    }
    let negative: Vec<f32> = all.iter().map(|x| -x).collect();
    all.extend(negative);
    all
}

#[test]
fn every_halfway_point_rounds_to_even_on_every_path() {
    for (dtype, (narrow, _, encode)) in
        [DataType::Float16, DataType::Bfloat16, DataType::Float8e4m3, DataType::Float8e5m2]
            .into_iter()
            .zip(CODECS)
    {
        let points = awkward(narrow);
        for &x in &points {
            assert_eq!(encode(x), narrow.encode(f64::from(x)), "{dtype} {x:e}");
        }
        let bytes: Vec<u8> = points.iter().flat_map(|x| x.to_le_bytes()).collect();
        let row = Row { bytes, shift: 1, form: Form::Accumulator, scale: None };
        for &path in Path::available() {
            let case = Case {
                dtype,
                op: ReduceOp::Sum,
                ranks: 1,
                path,
                rows: vec![row.clone()],
                count: points.len(),
                form: Form::Element,
                shift: 3,
                alias: None,
            };
            let expected: Vec<u8> = points
                .iter()
                .flat_map(|&x| narrow.encode(f64::from(x)).to_le_bytes()[..dtype.size_bytes()].to_vec())
                .collect();
            assert_eq!(first_difference(&case.run(), &expected), None, "{dtype} {path:?}");
        }
    }
}

/// Reduces one element given as little-endian numbers, on every path, many times in a row so that vector code runs.
fn single(dtype: DataType, op: ReduceOp, ranks: usize, values: &[u128]) -> u128 {
    const COUNT: usize = 133;
    let size = dtype.size_bytes();
    let rows: Vec<Row> = values
        .iter()
        .map(|v| Row {
            bytes: v.to_le_bytes()[..size].repeat(COUNT),
            shift: 0,
            form: Form::Element,
            scale: None,
        })
        .collect();
    let mut results: Vec<u128> = Vec::new();
    for &path in Path::available() {
        let case = Case {
            dtype,
            op,
            ranks,
            path,
            rows: rows.clone(),
            count: COUNT,
            form: Form::Element,
            shift: 0,
            alias: None,
        };
        results.extend(case.run().chunks(size).map(|bytes| {
            let mut all = [0; 16];
            all[..size].copy_from_slice(bytes);
            u128::from_le_bytes(all)
        }));
    }
    assert!(results.iter().all(|r| *r == results[0]), "{dtype} {op}: paths differ");
    results[0]
}

#[test]
fn nan_wins_wherever_it_stands() {
    // A NaN with a payload and a sign, a number, the canonical NaN.
    let floats: [(DataType, u128, u128, u128); 6] = [
        (DataType::Float16, 0xfd55, 0x3c00, 0x7e00),
        (DataType::Bfloat16, 0xff91, 0x3f80, 0x7fc0),
        (DataType::Float32, 0xff81_2345, 0x3f80_0000, 0x7fc0_0000),
        (DataType::Float64, 0xfff1_2345_6789_abcd, 0x3ff0_0000_0000_0000, 0x7ff8_0000_0000_0000),
        (DataType::Float8e4m3, 0xff, 0x38, 0x7f),
        (DataType::Float8e5m2, 0xfd, 0x3c, 0x7e),
    ];
    for (dtype, nan, one, canonical) in floats {
        for op in ReduceOp::ALL {
            for sources in 2..6 {
                for at in 0..sources {
                    let mut values = vec![one; sources];
                    values[at] = nan;
                    assert_eq!(
                        single(dtype, op, sources, &values),
                        canonical,
                        "{dtype} {op} {at} of {sources}"
                    );
                }
                assert_eq!(single(dtype, op, sources, &vec![nan; sources]), canonical);
            }
        }
    }
}

#[test]
fn zeros_are_ordered_and_infinities_cancel_to_nan() {
    for dtype in DataType::ALL.into_iter().filter(|dtype| dtype.is_float()) {
        let minus = 1u128 << (dtype.size_bytes() * 8 - 1);
        for zeros in [[0, minus], [minus, 0]] {
            assert_eq!(single(dtype, ReduceOp::Max, 2, &zeros), 0, "{dtype}");
            assert_eq!(single(dtype, ReduceOp::Min, 2, &zeros), minus, "{dtype}");
            assert_eq!(single(dtype, ReduceOp::Sum, 2, &zeros), 0, "{dtype}");
        }
        assert_eq!(single(dtype, ReduceOp::Sum, 2, &[minus, minus]), minus, "{dtype}");
    }
    assert_eq!(single(DataType::Float32, ReduceOp::Sum, 2, &[0x7f80_0000, 0xff80_0000]), 0x7fc0_0000);
    assert_eq!(single(DataType::Float8e5m2, ReduceOp::Sum, 2, &[0x7c, 0xfc]), 0x7e);
    assert_eq!(single(DataType::Float8e5m2, ReduceOp::Sum, 2, &[0x7c, 0x7b]), 0x7c);
    assert_eq!(single(DataType::Float8e5m2, ReduceOp::Sum, 2, &[0x7b, 0x7b]), 0x7b);
    assert_eq!(single(DataType::Float8e4m3, ReduceOp::Sum, 2, &[0xfe, 0xfe]), 0xfe);
    assert_eq!(single(DataType::Float16, ReduceOp::Sum, 2, &[0x7bff, 0x7bff]), 0x7c00);
}

#[test]
fn a_large_average_of_float16_stays_in_range() {
    let sixty_thousand = u128::from(half::f16::from_f32(60000.0).to_bits());
    for ranks in [2, 3, 7, 64] {
        assert_eq!(
            single(DataType::Float16, ReduceOp::Avg, ranks, &vec![sixty_thousand; ranks]),
            sixty_thousand
        );
    }
}

#[test]
fn integer_averages_are_exact_and_truncate_toward_zero() {
    let bits = |x: i128, dtype: DataType| (x as u128) & (u128::MAX >> (128 - 8 * dtype.size_bytes()));
    for (dtype, low, high) in [
        (DataType::Int8, i128::from(i8::MIN), i128::from(i8::MAX)),
        (DataType::Uint8, 0, i128::from(u8::MAX)),
        (DataType::Int32, i128::from(i32::MIN), i128::from(i32::MAX)),
        (DataType::Uint32, 0, i128::from(u32::MAX)),
        (DataType::Int64, i128::from(i64::MIN), i128::from(i64::MAX)),
        (DataType::Uint64, 0, i128::from(u64::MAX)),
    ] {
        for values in [
            vec![low; 5],
            vec![high; 5],
            vec![high, high - 1],
            vec![low, high],
            vec![low, low + 1],
            vec![high, 0, 1],
        ] {
            let mean = values.iter().sum::<i128>() / values.len() as i128;
            let raw: Vec<u128> = values.iter().map(|v| bits(*v, dtype)).collect();
            assert_eq!(
                single(dtype, ReduceOp::Avg, values.len(), &raw),
                bits(mean, dtype),
                "{dtype} {values:?}"
            );
        }
        if low < 0 {
            let raw: Vec<u128> = [-1, -2, 0, 0].iter().map(|v| bits(*v, dtype)).collect();
            assert_eq!(single(dtype, ReduceOp::Avg, 4, &raw), 0, "{dtype}");
            assert_eq!(single(dtype, ReduceOp::Avg, 2, &raw[..2]), bits(-1, dtype), "{dtype}");
        }
    }
}

#[test]
fn averages_of_all_pairs_of_bytes() {
    let left: Vec<u8> = (0..=0xffffu16).map(|pair| (pair >> 8) as u8).collect();
    let right: Vec<u8> = (0..=0xffffu16).map(|pair| pair as u8).collect();
    for dtype in [DataType::Int8, DataType::Uint8] {
        for ranks in [1, 2, 3, 7, 10, 127, 255, 256, 257, 509, 510, 511, (1 << 24) + 1, 1 << 31] {
            check_pairs(dtype, ReduceOp::Avg, ranks, left.clone(), right.clone());
        }
    }
}

#[test]
fn many_sources_and_no_elements() {
    assert_eq!(single(DataType::Int32, ReduceOp::Sum, 3000, &vec![1; 3000]), 3000);
    // 3000 in steps of one, rounded once: in float16 itself the sum would stop at 2048.
    let one = u128::from(half::f16::from_f32(1.0).to_bits());
    assert_eq!(
        single(DataType::Float16, ReduceOp::Sum, 3000, &vec![one; 3000]),
        u128::from(half::f16::from_f32(3000.0).to_bits())
    );
    let reduction = Reduction::new(DataType::Float32, ReduceOp::Sum, 2);
    let source = Source { start: std::ptr::dangling(), form: Form::Element, scale: None };
    // SAFETY: no element is touched.
    unsafe { reduction.reduce(&[source, source], std::ptr::dangling_mut(), Form::Element, 0) };
}
