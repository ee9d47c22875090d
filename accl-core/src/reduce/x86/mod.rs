//! Loops for the narrow floating types on x86-64, written with vector intrinsics.
//!
//! Two things are beyond the compiler: the conversion instructions of F16C, and decoding a whole register of narrow
//! elements into registers of `f32` whose order does not matter, since they are encoded by the reverse route. A
//! [`Codec`] is a format on a register width. The numbers are those of `format`; the tests hold both to one oracle.
//!
//! # Safety
//!
//! Unsafe are the intrinsics, which need their CPU features, and loads and stores through raw pointers. Codecs are called
//! only inside functions that enable the features of their path; `Table` functions have the conditions that `body`
//! states, and moreover read a whole group of elements before they write it, so that a destination may be a source.

#![allow(unsafe_code)]

mod avx2;
mod avx512;
mod float8_avx2;
mod fp16;

use std::marker::PhantomData;
use std::ptr;

use super::body::{self, Table};
use super::kernel::{Arithmetic, Avg, Float, Format, PreMulSum, Prod, Sum};
use super::{Path, Source, kernel};
use crate::types::{DataType, ReduceOp, Scalar};

/// A register of `f32`. All functions need the CPU features of their type.
trait Vector: Copy {
    const LANES: usize;
    unsafe fn splat(x: f32) -> Self;
    unsafe fn read(start: *const u8) -> Self;
    unsafe fn write(self, start: *mut u8);
    unsafe fn add(self, other: Self) -> Self;
    unsafe fn mul(self, other: Self) -> Self;
    unsafe fn div(self, other: Self) -> Self;
}

/// An array of vectors of one type.
trait Wide: Copy {
    type Vector: Vector;
    /// The same function on each pair of vectors.
    unsafe fn zip(self, other: Self, apply: unsafe fn(Self::Vector, Self::Vector) -> Self::Vector) -> Self;
    fn splat(vector: Self::Vector) -> Self;
    /// As many accumulators as all vectors together have lanes, in order.
    unsafe fn read(start: *const u8) -> Self;
}

impl<V: Vector, const N: usize> Wide for [V; N] {
    type Vector = V;
    #[inline(always)]
    unsafe fn zip(mut self, other: Self, apply: unsafe fn(V, V) -> V) -> Self {
        for (mine, theirs) in self.iter_mut().zip(other) {
            // SAFETY: the caller has the features that `apply` needs.
            *mine = unsafe { apply(*mine, theirs) };
        }
        self
    }
    #[inline(always)]
    fn splat(vector: V) -> Self {
        [vector; N]
    }
    #[inline(always)]
    unsafe fn read(start: *const u8) -> Self {
        // SAFETY: the caller has the features and vouches for N vectors of lanes at `start`.
        unsafe {
            let mut wide = [V::read(start); N];
            for (index, vector) in wide.iter_mut().enumerate().skip(1) {
                *vector = V::read(start.add(index * V::LANES * 4));
            }
            wide
        }
    }
}

/// A narrow format on registers of one width. All functions need the CPU features of their path; pointers must be
/// valid for [`Self::GROUP`] elements, or for one vector's lanes of them in the `row` functions.
trait Codec: 'static {
    type Format: Format<Acc = f32>;
    type Wide: Wide;
    const ELEM_BYTES: usize;
    const GROUP: usize;

    /// A group of elements, in an order that only `encode` knows.
    unsafe fn decode(start: *const u8) -> Self::Wide;
    /// The reverse, with rounding.
    unsafe fn encode(wide: Self::Wide, start: *mut u8);
    /// A group whose vectors are in order, with rounding.
    unsafe fn encode_in_order(wide: Self::Wide, start: *mut u8);
    /// As many elements as a vector has lanes, in order.
    unsafe fn decode_row(start: *const u8) -> <Self::Wide as Wide>::Vector;
    /// The reverse, with rounding.
    unsafe fn encode_row(vector: <Self::Wide as Wide>::Vector, start: *mut u8);

    /// The sum of two groups, where there is a shorter way than through `decode` and `encode`.
    #[inline(always)]
    unsafe fn sum(left: *const u8, right: *const u8, start: *mut u8) {
        // SAFETY: the caller's promise, handed on.
        unsafe {
            let sum = Self::decode(left).zip(Self::decode(right), Vector::add);
            Self::encode(sum, start);
        }
    }
}

type Lane<C> = <<C as Codec>::Wide as Wide>::Vector;

/// Room for a group that is not full.
#[repr(align(64))]
#[derive(Clone, Copy)]
struct Pad([u8; 64]);

/// Instances of the loops below with `$features` enabled, in a module `$path`; what they lack comes from `body::$body`.
macro_rules! path {
    ($path:ident, $body:ident, $features:meta) => {
        mod $path {
            use super::*;

            #[derive(Debug)]
            pub(super) struct Tables<C, O>(PhantomData<(C, O)>);

            impl<C: Codec, O: Arithmetic> Tables<C, O> {
                pub(super) const TABLE: Table = Table {
                    pair: pair::<C, O>,
                    pair_in_place: pair_in_place::<C, O>,
                    streams: Some(streams::<C, O>),
                    load: load::<C, O>,
                    fold: fold::<C, O>,
                    finish: finish::<C, O>,
                    ..body::$body::Tables::<Float<C::Format, O>>::TABLE
                };
            }

            #[$features]
            unsafe fn pair<C: Codec, O: Arithmetic>(
                out: *mut u8,
                left: *const u8,
                right: *const u8,
                count: usize,
                ranks: usize,
            ) {
                // SAFETY: the caller's promise, and this function's features.
                unsafe { super::pair::<C, O>(out, left, right, count, ranks) }
            }

            #[$features]
            unsafe fn pair_in_place<C: Codec, O: Arithmetic>(
                out: *mut u8,
                source: *const u8,
                count: usize,
                ranks: usize,
            ) {
                // SAFETY: as above; `pair` reads each group before it writes it.
                unsafe { super::pair::<C, O>(out, out, source, count, ranks) }
            }

            #[$features]
            unsafe fn streams<C: Codec, O: Arithmetic>(
                out: *mut u8,
                sources: &[Source],
                count: usize,
                ranks: usize,
            ) {
                // SAFETY: as above.
                unsafe { super::streams::<C, O>(out, sources, count, ranks) }
            }

            #[$features]
            unsafe fn load<C: Codec, O: Arithmetic>(
                memory: *mut u8,
                source: *const u8,
                count: usize,
                scale: Option<Scalar>,
            ) {
                // SAFETY: as above.
                unsafe { super::load::<C, O, true>(memory, source, count, scale) }
            }

            #[$features]
            unsafe fn fold<C: Codec, O: Arithmetic>(
                memory: *mut u8,
                source: *const u8,
                count: usize,
                scale: Option<Scalar>,
            ) {
                // SAFETY: as above.
                unsafe { super::load::<C, O, false>(memory, source, count, scale) }
            }

            #[$features]
            unsafe fn finish<C: Codec, O: Arithmetic>(
                out: *mut u8,
                memory: *const u8,
                count: usize,
                ranks: usize,
            ) {
                // SAFETY: as above.
                unsafe { super::finish::<C, O>(out, memory, count, ranks) }
            }
        }
    };
}

path!(avx2_loops, avx2, target_feature(enable = "avx2,f16c"));
path!(avx512_loops, avx512, target_feature(enable = "avx2,f16c,avx512f,avx512bw,avx512dq,avx512vl"));
path!(
    fp16_loops,
    avx512,
    target_feature(enable = "avx2,f16c,avx512f,avx512bw,avx512dq,avx512vl,avx512vbmi,avx512bf16,gfni")
);

/// One group from two; `out` may be one of them.
#[inline(always)]
unsafe fn pair_group<C: Codec, O: Arithmetic>(out: *mut u8, left: *const u8, right: *const u8, ranks: f32) {
    // SAFETY: the caller has the features and vouches for a group at each pointer.
    unsafe {
        if !O::MULTIPLIES && !O::DIVIDES {
            C::sum(left, right, out);
        } else {
            let wide = combine::<C, O>(C::decode(left), C::decode(right));
            C::encode(divided::<C, O>(wide, ranks), out);
        }
    }
}

#[inline(always)]
unsafe fn combine<C: Codec, O: Arithmetic>(left: C::Wide, right: C::Wide) -> C::Wide {
    // SAFETY: the caller has the features.
    unsafe { if O::MULTIPLIES { left.zip(right, Vector::mul) } else { left.zip(right, Vector::add) } }
}

#[inline(always)]
unsafe fn divided<C: Codec, O: Arithmetic>(wide: C::Wide, ranks: f32) -> C::Wide {
    if !O::DIVIDES {
        return wide;
    }
    // SAFETY: the caller has the features.
    unsafe { wide.zip(C::Wide::splat(Vector::splat(ranks)), Vector::div) }
}

#[inline(always)]
unsafe fn pair<C: Codec, O: Arithmetic>(
    out: *mut u8,
    left: *const u8,
    right: *const u8,
    count: usize,
    ranks: usize,
) {
    let bytes = count * C::ELEM_BYTES;
    let group = C::GROUP * C::ELEM_BYTES;
    let ranks = ranks as f32;
    let mut at = 0;
    // SAFETY: `at + group <= bytes` in the loop; the tail copies the `rest` bytes that are left into and out of room
    // for a group. The caller vouches for the rows and the features.
    unsafe {
        while at + group <= bytes {
            pair_group::<C, O>(out.add(at), left.add(at), right.add(at), ranks);
            at += group;
        }
        let rest = bytes - at;
        if rest > 0 {
            let mut pads = [Pad([0; 64]); 2];
            ptr::copy_nonoverlapping(left.add(at), pads[0].0.as_mut_ptr(), rest);
            ptr::copy_nonoverlapping(right.add(at), pads[1].0.as_mut_ptr(), rest);
            let mut result = Pad([0; 64]);
            pair_group::<C, O>(result.0.as_mut_ptr(), pads[0].0.as_ptr(), pads[1].0.as_ptr(), ranks);
            ptr::copy_nonoverlapping(result.0.as_ptr(), out.add(at), rest);
        }
    }
}

#[inline(always)]
unsafe fn streams<C: Codec, O: Arithmetic>(out: *mut u8, sources: &[Source], count: usize, ranks: usize) {
    let [first, others @ ..] = sources else { return };
    let bytes = count * C::ELEM_BYTES;
    let group = C::GROUP * C::ELEM_BYTES;
    let ranks = ranks as f32;
    let mut at = 0;
    // SAFETY: as in `pair`.
    unsafe {
        while at + group <= bytes {
            let mut wide = C::decode(first.start.add(at));
            for source in others {
                wide = combine::<C, O>(wide, C::decode(source.start.add(at)));
            }
            C::encode(divided::<C, O>(wide, ranks), out.add(at));
            at += group;
        }
        let rest = bytes - at;
        if rest > 0 {
            let mut pad = Pad([0; 64]);
            ptr::copy_nonoverlapping(first.start.add(at), pad.0.as_mut_ptr(), rest);
            let mut wide = C::decode(pad.0.as_ptr());
            for source in others {
                ptr::copy_nonoverlapping(source.start.add(at), pad.0.as_mut_ptr(), rest);
                wide = combine::<C, O>(wide, C::decode(pad.0.as_ptr()));
            }
            C::encode(divided::<C, O>(wide, ranks), pad.0.as_mut_ptr());
            ptr::copy_nonoverlapping(pad.0.as_ptr(), out.add(at), rest);
        }
    }
}

/// One vector's lanes of `load`. A function and not a closure: closures do not inherit the features of their caller when
/// they are compiled on their own, and then each intrinsic becomes a call.
#[inline(always)]
unsafe fn load_row<C: Codec, O: Arithmetic, const FIRST: bool>(
    memory: *mut u8,
    source: *const u8,
    factor: Option<f32>,
) {
    // SAFETY: the caller has the features and vouches for one vector's lanes on both sides.
    unsafe {
        let mut vector = C::decode_row(source);
        if let Some(factor) = factor {
            vector = vector.mul(Vector::splat(factor));
        }
        if !FIRST {
            let old = Lane::<C>::read(memory);
            vector = if O::MULTIPLIES { old.mul(vector) } else { old.add(vector) };
        }
        vector.write(memory);
    }
}

/// One vector's lanes of `finish`.
#[inline(always)]
unsafe fn finish_row<C: Codec, O: Arithmetic>(out: *mut u8, memory: *const u8, ranks: f32) {
    // SAFETY: as in `load_row`.
    unsafe {
        let mut vector = Lane::<C>::read(memory);
        if O::DIVIDES {
            vector = vector.div(Vector::splat(ranks));
        }
        C::encode_row(vector, out);
    }
}

/// memory = elements if `FIRST`, else memory ∘ elements.
#[inline(always)]
unsafe fn load<C: Codec, O: Arithmetic, const FIRST: bool>(
    memory: *mut u8,
    source: *const u8,
    count: usize,
    scale: Option<Scalar>,
) {
    let lanes = Lane::<C>::LANES;
    let factor = scale.filter(|_| O::SCALES).map(|scale| C::Format::decode(C::Format::first(scale)));
    let mut at = 0;
    // SAFETY: `at + lanes <= count` in the loop, the tail works on copies. The caller vouches for both rows.
    unsafe {
        while at + lanes <= count {
            load_row::<C, O, FIRST>(memory.add(at * 4), source.add(at * C::ELEM_BYTES), factor);
            at += lanes;
        }
        let rest = count - at;
        if rest > 0 {
            let (mut elems, mut accs) = (Pad([0; 64]), Pad([0; 64]));
            ptr::copy_nonoverlapping(
                source.add(at * C::ELEM_BYTES),
                elems.0.as_mut_ptr(),
                rest * C::ELEM_BYTES,
            );
            ptr::copy_nonoverlapping(memory.add(at * 4), accs.0.as_mut_ptr(), rest * 4);
            load_row::<C, O, FIRST>(accs.0.as_mut_ptr(), elems.0.as_ptr(), factor);
            ptr::copy_nonoverlapping(accs.0.as_ptr(), memory.add(at * 4), rest * 4);
        }
    }
}

#[inline(always)]
unsafe fn finish<C: Codec, O: Arithmetic>(out: *mut u8, memory: *const u8, count: usize, ranks: usize) {
    let lanes = Lane::<C>::LANES;
    let ranks = ranks as f32;
    let mut at = 0;
    // SAFETY: as in `load`.
    unsafe {
        while at + C::GROUP <= count {
            let wide = divided::<C, O>(C::Wide::read(memory.add(at * 4)), ranks);
            C::encode_in_order(wide, out.add(at * C::ELEM_BYTES));
            at += C::GROUP;
        }
        while at + lanes <= count {
            finish_row::<C, O>(out.add(at * C::ELEM_BYTES), memory.add(at * 4), ranks);
            at += lanes;
        }
        let rest = count - at;
        if rest > 0 {
            let (mut elems, mut accs) = (Pad([0; 64]), Pad([0; 64]));
            ptr::copy_nonoverlapping(memory.add(at * 4), accs.0.as_mut_ptr(), rest * 4);
            finish_row::<C, O>(elems.0.as_mut_ptr(), accs.0.as_ptr(), ranks);
            ptr::copy_nonoverlapping(elems.0.as_ptr(), out.add(at * C::ELEM_BYTES), rest * C::ELEM_BYTES);
        }
    }
}

/// The table of a narrow floating type on an x86 path; nothing for all else.
pub(super) fn table(dtype: DataType, op: ReduceOp, path: Path) -> Option<&'static Table> {
    match path {
        Path::Portable => None,
        Path::Avx2 => match dtype {
            DataType::Float16 => on_avx2::<avx2::Float16>(op),
            DataType::Bfloat16 => on_avx2::<avx2::Bfloat16>(op),
            DataType::Float8e4m3 => on_avx2::<float8_avx2::Eight<avx512::Float8e4m3>>(op),
            DataType::Float8e5m2 => on_avx2::<float8_avx2::Eight<avx512::Float8e5m2>>(op),
            _ => None,
        },
        Path::Avx512 => match dtype {
            DataType::Float16 => on_avx512::<avx512::Float16>(op),
            DataType::Bfloat16 => on_avx512::<avx512::Bfloat16>(op),
            DataType::Float8e4m3 => on_avx512::<avx512::Float8e4m3>(op),
            DataType::Float8e5m2 => on_avx512::<avx512::Float8e5m2>(op),
            _ => None,
        },
        Path::Avx512Fp16 => match dtype {
            DataType::Float16 => on_fp16::<avx512::Float16>(op),
            DataType::Bfloat16 => on_fp16::<avx512::Bfloat16>(op),
            DataType::Float8e4m3 => on_fp16::<avx512::Float8e4m3>(op),
            DataType::Float8e5m2 => on_fp16::<avx512::Float8e5m2>(op),
            _ => None,
        },
    }
}

fn on_avx2<C: Codec>(op: ReduceOp) -> Option<&'static Table> {
    Some(match op {
        ReduceOp::Sum => &avx2_loops::Tables::<C, Sum>::TABLE,
        ReduceOp::Prod => &avx2_loops::Tables::<C, Prod>::TABLE,
        ReduceOp::Avg => &avx2_loops::Tables::<C, Avg>::TABLE,
        ReduceOp::PreMulSum => &avx2_loops::Tables::<C, PreMulSum>::TABLE,
        ReduceOp::Max | ReduceOp::Min => return None,
    })
}

fn on_avx512<C: Codec>(op: ReduceOp) -> Option<&'static Table> {
    Some(match op {
        ReduceOp::Sum => &avx512_loops::Tables::<C, Sum>::TABLE,
        ReduceOp::Prod => &avx512_loops::Tables::<C, Prod>::TABLE,
        ReduceOp::Avg => &avx512_loops::Tables::<C, Avg>::TABLE,
        ReduceOp::PreMulSum => &avx512_loops::Tables::<C, PreMulSum>::TABLE,
        ReduceOp::Max | ReduceOp::Min => return None,
    })
}

fn on_fp16<C: fp16::FastSum>(op: ReduceOp) -> Option<&'static Table> {
    match op {
        ReduceOp::Sum => Some(&fp16_loops::Tables::<fp16::Fast<C>, Sum>::TABLE),
        _ => on_avx512::<C>(op),
    }
}
