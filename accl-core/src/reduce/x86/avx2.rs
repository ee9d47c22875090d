//! The 16-bit formats on registers of 256 bits.
//!
//! # Safety
//!
//! See the module above: callers have AVX2 and F16C and valid pointers. That holds for each block below.

#![allow(unsafe_code)]

use std::arch::x86_64::*;

use super::{Codec, Vector, kernel};

impl Vector for __m256 {
    const LANES: usize = 8;
    #[inline(always)]
    unsafe fn splat(x: f32) -> Self {
        // SAFETY: see the module.
        unsafe { _mm256_set1_ps(x) }
    }
    #[inline(always)]
    unsafe fn read(start: *const u8) -> Self {
        // SAFETY: see the module.
        unsafe { _mm256_loadu_ps(start.cast()) }
    }
    #[inline(always)]
    unsafe fn write(self, start: *mut u8) {
        // SAFETY: see the module.
        unsafe { _mm256_storeu_ps(start.cast(), self) }
    }
    #[inline(always)]
    unsafe fn add(self, other: Self) -> Self {
        // SAFETY: see the module.
        unsafe { _mm256_add_ps(self, other) }
    }
    #[inline(always)]
    unsafe fn mul(self, other: Self) -> Self {
        // SAFETY: see the module.
        unsafe { _mm256_mul_ps(self, other) }
    }
    #[inline(always)]
    unsafe fn div(self, other: Self) -> Self {
        // SAFETY: see the module.
        unsafe { _mm256_div_ps(self, other) }
    }
}

/// `vector` with every NaN replaced by the canonical one.
#[inline(always)]
unsafe fn settled(vector: __m256) -> __m256 {
    // SAFETY: see the module.
    unsafe {
        let nan = _mm256_cmp_ps::<_CMP_UNORD_Q>(vector, vector);
        let canonical = _mm256_castsi256_ps(_mm256_set1_epi32(0x7fc0_0000));
        _mm256_blendv_ps(vector, canonical, nan)
    }
}

/// True if a lane of either vector is a NaN: one comparison tells of both, and NaN are rare enough to branch.
#[inline(always)]
unsafe fn any_nan(wide: [__m256; 2]) -> bool {
    // SAFETY: see the module.
    unsafe { _mm256_movemask_ps(_mm256_cmp_ps::<_CMP_UNORD_Q>(wide[0], wide[1])) != 0 }
}

/// binary16.
#[derive(Debug)]
pub(super) struct Float16;

impl Codec for Float16 {
    type Format = kernel::Float16;
    type Wide = [__m256; 2];
    const ELEM_BYTES: usize = 2;
    const GROUP: usize = 16;

    #[inline(always)]
    unsafe fn decode(start: *const u8) -> Self::Wide {
        // SAFETY: see the module.
        unsafe { [Self::decode_row(start), Self::decode_row(start.add(16))] }
    }
    #[inline(always)]
    unsafe fn encode(wide: Self::Wide, start: *mut u8) {
        // SAFETY: see the module.
        unsafe {
            let wide = if any_nan(wide) { [settled(wide[0]), settled(wide[1])] } else { wide };
            for (index, vector) in wide.into_iter().enumerate() {
                let codes = _mm256_cvtps_ph::<_MM_FROUND_TO_NEAREST_INT>(vector);
                _mm_storeu_si128(start.add(index * 16).cast(), codes);
            }
        }
    }
    #[inline(always)]
    unsafe fn encode_in_order(wide: Self::Wide, start: *mut u8) {
        // SAFETY: see the module. Decoding keeps the order, so there is only one.
        unsafe { Self::encode(wide, start) }
    }
    #[inline(always)]
    unsafe fn decode_row(start: *const u8) -> __m256 {
        // SAFETY: see the module.
        unsafe { _mm256_cvtph_ps(_mm_loadu_si128(start.cast())) }
    }
    #[inline(always)]
    unsafe fn encode_row(vector: __m256, start: *mut u8) {
        // SAFETY: see the module.
        unsafe {
            let codes = _mm256_cvtps_ph::<_MM_FROUND_TO_NEAREST_INT>(settled(vector));
            _mm_storeu_si128(start.cast(), codes);
        }
    }
}

/// bfloat16.
#[derive(Debug)]
pub(super) struct Bfloat16;

impl Bfloat16 {
    /// The code in the upper half of each lane, above garbage. Not for NaN but the canonical one, which is even: rounding
    /// leaves its upper half as it is.
    #[inline(always)]
    unsafe fn round(vector: __m256) -> __m256i {
        // SAFETY: see the module.
        unsafe {
            let bits = _mm256_castps_si256(vector);
            let odd = _mm256_and_si256(_mm256_srli_epi32::<16>(bits), _mm256_set1_epi32(1));
            _mm256_add_epi32(bits, _mm256_add_epi32(odd, _mm256_set1_epi32(0x7fff)))
        }
    }
}

impl Codec for Bfloat16 {
    type Format = kernel::Bfloat16;
    /// Even elements, odd elements: so each code is in the right place of its 32 bits.
    type Wide = [__m256; 2];
    const ELEM_BYTES: usize = 2;
    const GROUP: usize = 16;

    #[inline(always)]
    unsafe fn decode(start: *const u8) -> Self::Wide {
        // SAFETY: see the module.
        unsafe {
            let bits = _mm256_loadu_si256(start.cast());
            let odd = _mm256_and_si256(bits, _mm256_set1_epi32(0xffff_0000u32 as i32));
            [_mm256_castsi256_ps(_mm256_slli_epi32::<16>(bits)), _mm256_castsi256_ps(odd)]
        }
    }
    #[inline(always)]
    unsafe fn encode(wide: Self::Wide, start: *mut u8) {
        // SAFETY: see the module.
        unsafe {
            let wide = if any_nan(wide) { [settled(wide[0]), settled(wide[1])] } else { wide };
            let even = _mm256_srli_epi32::<16>(Self::round(wide[0]));
            let codes = _mm256_blend_epi16::<0xaa>(even, Self::round(wide[1]));
            _mm256_storeu_si256(start.cast(), codes);
        }
    }
    #[inline(always)]
    unsafe fn encode_in_order(wide: Self::Wide, start: *mut u8) {
        // SAFETY: see the module.
        unsafe {
            Self::encode_row(wide[0], start);
            Self::encode_row(wide[1], start.add(16));
        }
    }
    #[inline(always)]
    unsafe fn decode_row(start: *const u8) -> __m256 {
        // SAFETY: see the module.
        unsafe {
            let codes = _mm256_cvtepu16_epi32(_mm_loadu_si128(start.cast()));
            _mm256_castsi256_ps(_mm256_slli_epi32::<16>(codes))
        }
    }
    #[inline(always)]
    unsafe fn encode_row(vector: __m256, start: *mut u8) {
        // SAFETY: see the module.
        unsafe {
            let codes = _mm256_srli_epi32::<16>(Self::round(settled(vector)));
            let packed = _mm256_permute4x64_epi64::<0b1000>(_mm256_packus_epi32(codes, codes));
            _mm_storeu_si128(start.cast(), _mm256_castsi256_si128(packed));
        }
    }
}
