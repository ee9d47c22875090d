//! Stores that go past the caches.
//!
//! An ordinary store first reads its line. In rows that no cache holds that is a third (of a sum of two) or a half (of a
//! copy) more traffic than needed; a *streaming* store of a whole line writes it without reading. If the destination is
//! in a cache after all, it is the slower way. What is read next to such stores comes fastest from several pages in
//! turn: each page is a stream of its own to the prefetchers, which stop at its end.
//!
//! # Safety
//!
//! Unsafe are loads and stores through raw pointers, and instructions that need CPU features. The functions that other files
//! call have the conditions of [`std::ptr::copy_nonoverlapping`]; a [`Path`] is handed in only where the CPU has it.

#![allow(unsafe_code)]

use std::mem::MaybeUninit;
use std::ptr;

use super::{Block, Form, Path, Reduction, STREAMS, Source};

/// Bytes of a cache line, the unit of a streaming store.
pub(super) const LINE_BYTES: usize = 64;
/// Bytes of a page.
pub(super) const PAGE_BYTES: usize = 4096;
/// Pages that are read in turn.
pub(super) const PAGES: usize = 4;

/// Bytes of the destination that are reduced at once before they are streamed out: measured, as the number of pages is.
const RUN_BYTES: usize = 512;

/// Copies `bytes` to memory that no cache holds: it is written without being read, where the CPU can do that. When this
/// returns, what was written is ordered before later stores of this thread.
///
/// # Safety
///
/// As for [`ptr::copy_nonoverlapping`].
pub unsafe fn copy_streaming(dst: *mut u8, src: *const u8, bytes: usize) {
    // SAFETY: the same conditions, and this CPU has its best path.
    unsafe { copy(Path::best(), dst, src, bytes) };
}

/// Up to [`STREAMS`] sources, seen from an element on.
struct Few {
    given: [Source; STREAMS],
    moved: [Source; STREAMS],
    count: usize,
}

impl Few {
    fn new(sources: &[Source]) -> Option<Self> {
        let mut given = [Source { start: ptr::null(), form: Form::Element, scale: None }; STREAMS];
        given.get_mut(..sources.len())?.copy_from_slice(sources);
        Some(Self { given, moved: given, count: sources.len() })
    }

    /// The sources without their first `at` elements or accumulators.
    fn from(&mut self, reduction: &Reduction, at: usize) -> &[Source] {
        let moved = &mut self.moved[..self.count];
        for (source, given) in moved.iter_mut().zip(&self.given) {
            source.start = given.start.wrapping_add(at * reduction.bytes(given.form));
        }
        moved
    }
}

impl Reduction {
    /// The same results as [`Self::reduce`], for rows that no cache holds: the destination is written without being read,
    /// where the CPU can do that. When this returns, the destination is ordered before later stores of this thread.
    ///
    /// # Safety
    ///
    /// As for [`Self::reduce`].
    pub unsafe fn reduce_streaming(
        &self,
        sources: &[Source],
        dst: *mut u8,
        dst_form: Form,
        count_elems: usize,
    ) {
        let bytes = self.bytes(dst_form);
        let in_place = sources.iter().any(|source| ptr::eq(source.start, dst));
        // A destination that is read anyway gains nothing, and one whose elements straddle lines has no whole lines.
        if !cfg!(target_arch = "x86_64")
            || sources.is_empty()
            || in_place
            || !dst.addr().is_multiple_of(bytes)
        {
            // SAFETY: the same conditions.
            return unsafe { self.reduce(sources, dst, dst_form, count_elems) };
        }
        if let [source] = sources
            && self.is_copy(source.form, source.scale.is_some(), dst_form)
        {
            // SAFETY: the conditions of `reduce`; the destination is apart, as it is not the source.
            return unsafe { copy(self.path, dst, source.start, count_elems * bytes) };
        }
        let Some(few) = Few::new(sources) else {
            // So many sources make the destination a small part of the traffic.
            // SAFETY: the same conditions.
            return unsafe { self.reduce(sources, dst, dst_form, count_elems) };
        };
        let head = (dst.align_offset(LINE_BYTES) / bytes).min(count_elems);
        // SAFETY: the conditions of `reduce`; `dst + head` is aligned to a line, or nothing comes after it.
        unsafe {
            self.reduce(sources, dst, dst_form, head);
            self.stream_lines(few, head, dst, dst_form, count_elems);
        }
        fence();
    }

    /// The elements from `at` on, where `dst` is aligned to a line: each run of lines is reduced into a block that stays
    /// in the first-level cache, and stored from there. Runs of several pages take turns, as the head of this file says.
    ///
    /// # Safety
    ///
    /// As for [`Self::reduce`]; the destination is none of the sources.
    unsafe fn stream_lines(&self, mut few: Few, mut at: usize, dst: *mut u8, dst_form: Form, count: usize) {
        let bytes = self.bytes(dst_form);
        let (run, page) = (RUN_BYTES / bytes, PAGE_BYTES / bytes);
        let mut block = MaybeUninit::<Block>::uninit();
        let block = block.as_mut_ptr().cast::<u8>();
        // Reduces `n` elements from `here` on, and asks for what will be reduced in this page's next turn, from `next` on.
        let mut reduce_run = |here: usize, n: usize, next: usize| {
            // SAFETY: `here + n <= count`, within which the caller vouches for all rows; the block holds a run.
            unsafe {
                for source in few.from(self, next) {
                    prefetch(source.start, run * self.bytes(source.form));
                }
                self.reduce(few.from(self, here), block, dst_form, n);
                let lines = n * bytes / LINE_BYTES * LINE_BYTES;
                let out = dst.add(here * bytes);
                copy_lines(self.path, out, block, lines);
                ptr::copy_nonoverlapping(block.add(lines), out.add(lines), n * bytes - lines);
            }
        };
        while count - at >= PAGES * page {
            for turn in (0..page).step_by(run) {
                // After a page's last run comes the first one of the page that takes its place.
                let step = if turn + run < page { run } else { run + (PAGES - 1) * page };
                for here in (at + turn..).step_by(page).take(PAGES) {
                    reduce_run(here, run, here + step);
                }
            }
            at += PAGES * page;
        }
        while at < count {
            let n = run.min(count - at);
            reduce_run(at, n, at + n);
            at += n;
        }
    }
}

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
#[cfg_attr(not(target_arch = "x86_64"), expect(unused_variables, reason = "nothing is asked for"))]
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
