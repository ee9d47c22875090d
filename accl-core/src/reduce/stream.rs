//! Stores that go past the caches.
//!
//! An ordinary store first reads its line. In rows that are larger than the last cache that is a third (of a sum) or a
//! half (of a copy) more traffic than needed; a *streaming* store of a whole line writes it without reading. What is
//! read next to such stores comes fastest from several pages in turn: each page is a stream of its own to the
//! prefetchers, which stop at its end, and is another bank of the memory.
//!
//! # Safety
//!
//! Unsafe are loads and stores through raw pointers, and instructions that need CPU features. The functions that other files
//! call have the conditions of [`std::ptr::copy_nonoverlapping`]; a [`Path`] is handed in only where the CPU has it.

#![allow(unsafe_code)]

use std::ptr;

use super::Path;

/// Bytes of a cache line, the unit of a streaming store.
pub(super) const LINE_BYTES: usize = 64;
/// Bytes of a page.
pub(super) const PAGE_BYTES: usize = 4096;
/// Pages that are read in turn.
pub(super) const PAGES: usize = 4;

/// Copies `bytes` past the caches, as far as `path` can, and returns when the stores are ordered before later ones.
///
/// # Safety
///
/// As for [`std::ptr::copy_nonoverlapping`], and the CPU has `path`.
pub(super) unsafe fn copy(path: Path, dst: *mut u8, src: *const u8, bytes: usize) {
    let head = dst.align_offset(LINE_BYTES).min(bytes);
    let lines = (bytes - head) / LINE_BYTES * LINE_BYTES;
    // SAFETY: head, lines and the rest together are `bytes`, for which the caller vouches. `dst + head` is aligned to a
    // line.
    unsafe {
        ptr::copy_nonoverlapping(src, dst, head);
        copy_lines(path, dst.add(head), src.add(head), lines);
        let done = head + lines;
        ptr::copy_nonoverlapping(src.add(done), dst.add(done), bytes - done);
    }
    fence();
}

/// Copies whole lines to a line's start, without a fence.
///
/// # Safety
///
/// As for [`copy`]; `dst` and `bytes` are multiples of [`LINE_BYTES`].
pub(super) unsafe fn copy_lines(path: Path, dst: *mut u8, src: *const u8, bytes: usize) {
    // SAFETY: the caller's promise, handed on.
    unsafe {
        match path {
            #[cfg(target_arch = "x86_64")]
            Path::Portable => x86::sse2(dst, src, bytes),
            #[cfg(target_arch = "x86_64")]
            Path::Avx2 => x86::avx2(dst, src, bytes),
            #[cfg(target_arch = "x86_64")]
            Path::Avx512 | Path::Avx512Fp16 => x86::avx512(dst, src, bytes),
            #[cfg(not(target_arch = "x86_64"))]
            Path::Portable => ptr::copy_nonoverlapping(src, dst, bytes),
        }
    }
}

/// Asks for `bytes` from `start` on, of which nothing need exist.
pub(super) fn prefetch(start: *const u8, bytes: usize) {
    #[cfg(target_arch = "x86_64")]
    for line in (0..bytes).step_by(LINE_BYTES) {
        // SAFETY: every x86-64 has SSE, and a prefetch never faults.
        unsafe {
            std::arch::x86_64::_mm_prefetch::<{ std::arch::x86_64::_MM_HINT_T0 }>(
                start.wrapping_add(line).cast(),
            )
        };
    }
}

/// Orders all earlier streaming stores of this thread before all its later stores, as ordinary ones always are.
pub(super) fn fence() {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: every x86-64 has SSE.
    unsafe {
        std::arch::x86_64::_mm_sfence();
    }
}

#[cfg(target_arch = "x86_64")]
mod x86 {
    use std::arch::x86_64::*;

    use super::{LINE_BYTES, PAGE_BYTES, PAGES};

    /// Lines of one page that are read before the next page's: two, which the hardware fetches as a pair.
    const RUN_BYTES: usize = 2 * LINE_BYTES;
    /// How far ahead of its reads each page is asked for.
    const AHEAD_BYTES: usize = 4 * LINE_BYTES;

    /// A line in registers. All functions need the CPU features of their type.
    trait Line: Copy {
        unsafe fn load(start: *const u8) -> Self;
        /// `start` is aligned to a line.
        unsafe fn stream(self, start: *mut u8);
    }

    macro_rules! line {
        ($vector:ty, $count:literal, $load:ident, $stream:ident) => {
            impl Line for [$vector; $count] {
                #[inline(always)]
                unsafe fn load(start: *const u8) -> Self {
                    const { assert!(size_of::<Self>() == LINE_BYTES) };
                    // SAFETY: the caller has the features and vouches for a line at `start`.
                    unsafe {
                        let mut line = [$load(start.cast()); $count];
                        for (index, part) in line.iter_mut().enumerate().skip(1) {
                            *part = $load(start.cast::<$vector>().add(index));
                        }
                        line
                    }
                }
                #[inline(always)]
                unsafe fn stream(self, start: *mut u8) {
                    for (index, part) in self.into_iter().enumerate() {
                        // SAFETY: as in `load`; a part of an aligned line is aligned.
                        unsafe { $stream(start.cast::<$vector>().add(index), part) };
                    }
                }
            }
        };
    }

    line!(__m128i, 4, _mm_loadu_si128, _mm_stream_si128);
    line!(__m256i, 2, _mm256_loadu_si256, _mm256_stream_si256);
    line!(__m512i, 1, _mm512_loadu_si512, _mm512_stream_si512);

    /// # Safety
    ///
    /// As for [`super::copy_lines`].
    pub(super) unsafe fn sse2(dst: *mut u8, src: *const u8, bytes: usize) {
        // SAFETY: the caller's promise; every x86-64 has SSE2.
        unsafe { lines::<[__m128i; 4]>(dst, src, bytes) }
    }

    /// # Safety
    ///
    /// As for [`super::copy_lines`].
    #[target_feature(enable = "avx2")]
    pub(super) unsafe fn avx2(dst: *mut u8, src: *const u8, bytes: usize) {
        // SAFETY: the caller's promise.
        unsafe { lines::<[__m256i; 2]>(dst, src, bytes) }
    }

    /// # Safety
    ///
    /// As for [`super::copy_lines`].
    #[target_feature(enable = "avx512f")]
    pub(super) unsafe fn avx512(dst: *mut u8, src: *const u8, bytes: usize) {
        // SAFETY: the caller's promise.
        unsafe { lines::<[__m512i; 1]>(dst, src, bytes) }
    }

    #[inline(always)]
    unsafe fn lines<L: Line>(dst: *mut u8, src: *const u8, bytes: usize) {
        let mut at = 0;
        // SAFETY: all offsets are below `bytes`, for which the caller vouches, and multiples of a line; prefetching
        // beyond is harmless.
        unsafe {
            while at + PAGES * PAGE_BYTES <= bytes {
                for run in (0..PAGE_BYTES).step_by(RUN_BYTES) {
                    for page in 0..PAGES {
                        let at = at + page * PAGE_BYTES + run;
                        for line in [at, at + LINE_BYTES] {
                            _mm_prefetch::<_MM_HINT_T0>(src.wrapping_add(line + AHEAD_BYTES).cast());
                        }
                        let (first, second) = (L::load(src.add(at)), L::load(src.add(at + LINE_BYTES)));
                        first.stream(dst.add(at));
                        second.stream(dst.add(at + LINE_BYTES));
                    }
                }
                at += PAGES * PAGE_BYTES;
            }
            while at < bytes {
                L::load(src.add(at)).stream(dst.add(at));
                at += LINE_BYTES;
            }
        }
    }
}
