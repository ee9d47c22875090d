//! The loops over elements, and the tables of their instances for each kernel and path.
//!
//! The loops are plain safe code over slices; inside a function that enables vector instructions the compiler turns
//! them into vector code. Slices matter: as arguments they tell the compiler that destination and sources do not
//! overlap, without which it would test for that at run time and fall back to one element at a time.
//!
//! # Safety
//!
//! Unsafe is what makes slices of the raw pointers of the caller, and calls functions that need CPU features. The
//! functions of a [`Table`] demand that their pointers are valid for the counts given, that the destination does not
//! overlap a source, and that the CPU has the features of the table's path. Elements are byte arrays, so alignment
//! is never a condition.

#![allow(unsafe_code)]

use std::marker::PhantomData;
use std::slice;

use super::Source;
use super::kernel::Kernel;
use crate::types::Scalar;

/// `destination = finish(left ∘ right)`, all elements.
type Pair = unsafe fn(destination: *mut u8, left: *const u8, right: *const u8, count: usize, ranks: usize);
/// `destination = finish(destination ∘ source)`, all elements.
type PairInPlace = unsafe fn(destination: *mut u8, source: *const u8, count: usize, ranks: usize);
/// `destination = finish(fold of sources)`, all elements without factors. A group of elements is read from every source
/// before it is written, so that the destination may be one of them.
type Streams = unsafe fn(destination: *mut u8, sources: &[Source], count: usize, ranks: usize);
type FromElements = unsafe fn(memory: *mut u8, source: *const u8, count: usize, scale: Option<Scalar>);
type FromMemory = unsafe fn(memory: *mut u8, source: *const u8, count: usize);
type Finish = unsafe fn(destination: *mut u8, memory: *const u8, count: usize, ranks: usize);
type InPlace = unsafe fn(memory: *mut u8, count: usize, ranks: usize);

/// The loops of one kernel on one path. *memory* is a row of accumulators.
#[derive(Debug)]
pub(super) struct Table {
    /// Two sources at once.
    pub(super) pair: Pair,
    /// The same where the destination is one of the two.
    pub(super) pair_in_place: PairInPlace,
    /// Many sources at once, where hand-written vector code exists.
    pub(super) streams: Option<Streams>,
    /// memory = elements
    pub(super) load: FromElements,
    /// memory = memory ∘ elements
    pub(super) fold: FromElements,
    /// memory = memory ∘ other memory
    pub(super) fold_memory: FromMemory,
    /// Removes NaN payloads.
    pub(super) settle: InPlace,
    /// elements = finish(memory)
    pub(super) finish: Finish,
    /// memory = finish(memory)
    pub(super) finish_in_place: InPlace,
    /// True where element and accumulator have the same bits.
    pub(super) same: bool,
    /// True where elements are multiplied by a factor.
    pub(super) scales: bool,
    /// Bytes of an element.
    pub(super) element_bytes: usize,
    /// Bytes of an accumulator.
    pub(super) accumulator_bytes: usize,
}

#[inline(always)]
fn pair<K: Kernel>(destination: &mut [K::Elem], left: &[K::Elem], right: &[K::Elem], ranks: usize) {
    let divisor = K::divisor(ranks);
    for ((out, &a), &b) in destination.iter_mut().zip(left).zip(right) {
        *out = K::pair(a, b, divisor);
    }
}

#[inline(always)]
fn pair_in_place<K: Kernel>(destination: &mut [K::Elem], source: &[K::Elem], ranks: usize) {
    let divisor = K::divisor(ranks);
    for (out, &b) in destination.iter_mut().zip(source) {
        *out = K::pair(*out, b, divisor);
    }
}

#[inline(always)]
fn load<K: Kernel>(memory: &mut [K::Memory], source: &[K::Elem], scale: Option<Scalar>) {
    if let Some(factor) = scale.and_then(K::factor) {
        for (acc, &elem) in memory.iter_mut().zip(source) {
            *acc = K::write(K::scaled(K::decode(elem), factor));
        }
    } else {
        for (acc, &elem) in memory.iter_mut().zip(source) {
            *acc = K::write(K::decode(elem));
        }
    }
}

#[inline(always)]
fn fold<K: Kernel>(memory: &mut [K::Memory], source: &[K::Elem], scale: Option<Scalar>) {
    if let Some(factor) = scale.and_then(K::factor) {
        for (acc, &elem) in memory.iter_mut().zip(source) {
            *acc = K::write(K::combine(K::read(*acc), K::scaled(K::decode(elem), factor)));
        }
    } else {
        for (acc, &elem) in memory.iter_mut().zip(source) {
            *acc = K::write(K::combine(K::read(*acc), K::decode(elem)));
        }
    }
}

#[inline(always)]
fn fold_memory<K: Kernel>(memory: &mut [K::Memory], source: &[K::Memory]) {
    for (acc, &other) in memory.iter_mut().zip(source) {
        *acc = K::write(K::combine(K::read(*acc), K::read(other)));
    }
}

#[inline(always)]
fn settle<K: Kernel>(memory: &mut [K::Memory]) {
    // Look first: NaN are rare, and the compiler makes a conditional store of the loop that writes, which AVX2 is slow at.
    let found = memory.iter().fold(false, |found, &acc| found | K::is_unsettled(K::read(acc)));
    if found {
        for acc in memory {
            *acc = K::write(K::settle(K::read(*acc)));
        }
    }
}

#[inline(always)]
fn finish<K: Kernel>(destination: &mut [K::Elem], memory: &[K::Memory], ranks: usize) {
    let divisor = K::divisor(ranks);
    for (out, &acc) in destination.iter_mut().zip(memory) {
        *out = K::encode(K::settle(K::finish(K::read(acc), divisor)));
    }
}

#[inline(always)]
fn finish_in_place<K: Kernel>(memory: &mut [K::Memory], ranks: usize) {
    if !K::DIVIDES {
        return settle::<K>(memory);
    }
    let divisor = K::divisor(ranks);
    for acc in memory {
        *acc = K::write(K::settle(K::finish(K::read(*acc), divisor)));
    }
}

/// Instances of the loops with `$features` enabled, in a module `$path`.
macro_rules! path {
    ($path:ident, $(#[$features:meta])?) => {
        pub(super) mod $path {
            use super::*;

            /// Holder of one kernel's table.
            #[derive(Debug)]
            pub(in crate::reduce) struct Tables<K>(PhantomData<K>);

            impl<K: Kernel> Tables<K> {
                pub(in crate::reduce) const TABLE: Table = Table {
                    pair: pair::<K>,
                    pair_in_place: pair_in_place::<K>,
                    streams: None,
                    load: load::<K>,
                    fold: fold::<K>,
                    fold_memory: fold_memory::<K>,
                    settle: settle::<K>,
                    finish: finish::<K>,
                    finish_in_place: finish_in_place::<K>,
                    same: K::SAME,
                    scales: K::SCALES,
                    element_bytes: size_of::<K::Elem>(),
                    accumulator_bytes: size_of::<K::Memory>(),
                };
            }

            $(#[$features])?
            unsafe fn pair<K: Kernel>(out: *mut u8, left: *const u8, right: *const u8, count: usize, ranks: usize) {
                // SAFETY: the caller vouches for `count` elements at each pointer and for `out` being apart.
                let (out, left, right) = unsafe { (rows_mut(out, count), rows(left, count), rows(right, count)) };
                super::pair::<K>(out, left, right, ranks);
            }

            $(#[$features])?
            unsafe fn pair_in_place<K: Kernel>(out: *mut u8, source: *const u8, count: usize, ranks: usize) {
                // SAFETY: as in `pair`.
                let (out, source) = unsafe { (rows_mut(out, count), rows(source, count)) };
                super::pair_in_place::<K>(out, source, ranks);
            }

            $(#[$features])?
            unsafe fn load<K: Kernel>(memory: *mut u8, source: *const u8, count: usize, scale: Option<Scalar>) {
                // SAFETY: as in `pair`, of accumulators at `memory`.
                let (memory, source) = unsafe { (rows_mut(memory, count), rows(source, count)) };
                super::load::<K>(memory, source, scale);
            }

            $(#[$features])?
            unsafe fn fold<K: Kernel>(memory: *mut u8, source: *const u8, count: usize, scale: Option<Scalar>) {
                // SAFETY: as in `load`.
                let (memory, source) = unsafe { (rows_mut(memory, count), rows(source, count)) };
                super::fold::<K>(memory, source, scale);
            }

            $(#[$features])?
            unsafe fn fold_memory<K: Kernel>(memory: *mut u8, source: *const u8, count: usize) {
                // SAFETY: as in `pair`, of accumulators on both sides.
                let (memory, source) = unsafe { (rows_mut(memory, count), rows(source, count)) };
                super::fold_memory::<K>(memory, source);
            }

            $(#[$features])?
            unsafe fn settle<K: Kernel>(memory: *mut u8, count: usize, _ranks: usize) {
                // SAFETY: the caller vouches for `count` accumulators.
                super::settle::<K>(unsafe { rows_mut(memory, count) });
            }

            $(#[$features])?
            unsafe fn finish<K: Kernel>(out: *mut u8, memory: *const u8, count: usize, ranks: usize) {
                // SAFETY: as in `pair`, of accumulators at `memory`.
                let (out, memory) = unsafe { (rows_mut(out, count), rows(memory, count)) };
                super::finish::<K>(out, memory, ranks);
            }

            $(#[$features])?
            unsafe fn finish_in_place<K: Kernel>(memory: *mut u8, count: usize, ranks: usize) {
                // SAFETY: the caller vouches for `count` accumulators.
                super::finish_in_place::<K>(unsafe { rows_mut(memory, count) }, ranks);
            }
        }
    };
}

path!(portable,);
#[cfg(target_arch = "x86_64")]
path!(avx2, #[target_feature(enable = "avx2,f16c")]);
#[cfg(target_arch = "x86_64")]
path!(avx512, #[target_feature(enable = "avx2,f16c,avx512f,avx512bw,avx512dq,avx512vl")]);

/// `count` values of the byte-array type `T`.
///
/// # Safety
///
/// They are readable and nobody writes them meanwhile.
#[inline(always)]
unsafe fn rows<'a, T>(start: *const u8, count: usize) -> &'a [T] {
    const { assert!(align_of::<T>() == 1) };
    // SAFETY: the caller's promise; alignment is 1.
    unsafe { slice::from_raw_parts(start.cast(), count) }
}

/// `count` values of the byte-array type `T`, to be written.
///
/// # Safety
///
/// They are readable and writable, and nobody else touches them meanwhile.
#[inline(always)]
unsafe fn rows_mut<'a, T>(start: *mut u8, count: usize) -> &'a mut [T] {
    const { assert!(align_of::<T>() == 1) };
    // SAFETY: the caller's promise; alignment is 1.
    unsafe { slice::from_raw_parts_mut(start.cast(), count) }
}
