//! The 8-bit formats on registers of 256 bits, by way of binary16 as in `avx512`, which explains the numbers.
//!
//! # Safety
//!
//! See the module above: callers have AVX2 and F16C and valid pointers. That holds for each block below.

#![allow(unsafe_code)]

use std::arch::x86_64::*;
use std::marker::PhantomData;

use super::avx512::{E4M3_BITS, Float8};
use super::{Codec, Vector, Wide};

const NEAREST: i32 = _MM_FROUND_TO_NEAREST_INT;
const TOWARD_ZERO: i32 = _MM_FROUND_TO_ZERO;

/// The format `F` on this width.
#[derive(Debug)]
pub(super) struct Eight<F>(PhantomData<F>);

/// 16 binary16 as two vectors.
#[inline(always)]
unsafe fn widen(halves: __m256i) -> [__m256; 2] {
    // SAFETY: see the module.
    unsafe {
        [
            _mm256_cvtph_ps(_mm256_castsi256_si128(halves)),
            _mm256_cvtph_ps(_mm256_extracti128_si256::<1>(halves)),
        ]
    }
}

/// Two vectors as 16 binary16, rounded as `MODE` says.
#[inline(always)]
unsafe fn narrow<const MODE: i32>(low: __m256, high: __m256) -> __m256i {
    // SAFETY: see the module.
    unsafe { _mm256_set_m128i(_mm256_cvtps_ph::<MODE>(high), _mm256_cvtps_ph::<MODE>(low)) }
}

/// Two vectors as 16 binary16, rounded to odd.
#[inline(always)]
unsafe fn narrow_to_odd(low: __m256, high: __m256) -> __m256i {
    // SAFETY: see the module.
    unsafe {
        let halves = narrow::<TOWARD_ZERO>(low, high);
        let [low_back, high_back] = widen(halves);
        let low_inexact = _mm256_castps_si256(_mm256_cmp_ps::<_CMP_NEQ_OQ>(low, low_back));
        let high_inexact = _mm256_castps_si256(_mm256_cmp_ps::<_CMP_NEQ_OQ>(high, high_back));
        // Packing works on halves of registers; the permutation puts the quarters in order.
        let inexact =
            _mm256_permute4x64_epi64::<0b11_01_10_00>(_mm256_packs_epi32(low_inexact, high_inexact));
        _mm256_or_si256(halves, _mm256_srli_epi16::<15>(inexact))
    }
}

/// binary16 numbers of the even and of the odd elements. A NaN of E4M3 comes out as a number.
#[inline(always)]
unsafe fn split<F: Float8>(codes: __m256i) -> [__m256i; 2] {
    // SAFETY: see the module.
    unsafe {
        let even = _mm256_slli_epi16::<8>(codes);
        if F::DROPPED == 8 {
            return [even, _mm256_and_si256(codes, _mm256_set1_epi16(0xff00u16 as i16))];
        }
        let bits = _mm256_set1_epi16(E4M3_BITS);
        [
            _mm256_and_si256(_mm256_srai_epi16::<1>(even), bits),
            _mm256_and_si256(_mm256_srai_epi16::<1>(codes), bits),
        ]
    }
}

/// Makes the binary16 numbers of NaN elements NaN.
#[inline(always)]
unsafe fn mark_nan<F: Float8>(halves: __m256i) -> __m256i {
    if F::DROPPED == 8 {
        return halves;
    }
    // SAFETY: see the module.
    unsafe {
        let nan = _mm256_set1_epi16(0x3f80);
        let is_nan = _mm256_cmpeq_epi16(_mm256_and_si256(halves, nan), nan);
        _mm256_or_si256(halves, _mm256_and_si256(is_nan, _mm256_set1_epi16(0x7e00)))
    }
}

/// Rounds 16 binary16 numbers to a format, and leaves the code's magnitude at the place of binary16's, without sign.
#[inline(always)]
unsafe fn round_magnitude<F: Float8>(halves: __m256i) -> __m256i {
    // SAFETY: see the module.
    unsafe {
        let shifted =
            if F::DROPPED == 7 { _mm256_srli_epi16::<7>(halves) } else { _mm256_srli_epi16::<8>(halves) };
        let odd = _mm256_and_si256(shifted, _mm256_set1_epi16(1));
        let magnitude = _mm256_and_si256(halves, _mm256_set1_epi16(0x7fff));
        let below_half = _mm256_set1_epi16((1 << (F::DROPPED - 1)) - 1);
        let rounded = _mm256_add_epi16(_mm256_add_epi16(magnitude, below_half), odd);
        let largest = (i16::from(F::FIRST_SPECIAL) << F::DROPPED) - 1;
        _mm256_min_epu16(rounded, _mm256_set1_epi16(largest))
    }
}

/// The same for numbers that may be infinite or NaN.
#[inline(always)]
unsafe fn round_special<F: Float8>(halves: __m256i) -> __m256i {
    // SAFETY: see the module.
    unsafe {
        let magnitude = _mm256_and_si256(halves, _mm256_set1_epi16(0x7fff));
        let infinity = _mm256_set1_epi16(0x7c00);
        let codes = round_magnitude::<F>(halves);
        let infinite = _mm256_set1_epi16(F::INFINITY << F::DROPPED);
        let codes = _mm256_blendv_epi8(codes, infinite, _mm256_cmpeq_epi16(magnitude, infinity));
        let canonical = _mm256_set1_epi16(canonical_nan::<F>() << F::DROPPED);
        _mm256_blendv_epi8(codes, canonical, _mm256_cmpgt_epi16(magnitude, infinity))
    }
}

const fn canonical_nan<F: Float8>() -> i16 {
    if F::DROPPED == 7 { 0x7f } else { 0x7e }
}

/// Bytes of the even and the odd magnitudes, with the signs of the binary16 numbers they came from.
#[inline(always)]
unsafe fn join<F: Float8>(magnitudes: [__m256i; 2], signs: [__m256i; 2]) -> __m256i {
    // SAFETY: see the module.
    unsafe {
        let odd_bytes = _mm256_set1_epi16(0xff00u16 as i16);
        let [even, odd] = magnitudes;
        let (even, odd) = if F::DROPPED == 7 {
            (_mm256_srli_epi16::<7>(even), _mm256_add_epi16(odd, odd))
        } else {
            (_mm256_srli_epi16::<8>(even), odd)
        };
        let codes = _mm256_blendv_epi8(even, odd, odd_bytes);
        let signs = _mm256_blendv_epi8(_mm256_srli_epi16::<8>(signs[0]), signs[1], odd_bytes);
        _mm256_or_si256(codes, _mm256_and_si256(signs, _mm256_set1_epi8(i8::MIN)))
    }
}

/// The canonical NaN is positive.
#[inline(always)]
unsafe fn without_signs_of_nan<F: Float8>(codes: __m256i) -> __m256i {
    // SAFETY: see the module.
    unsafe {
        let canonical = _mm256_set1_epi8(canonical_nan::<F>() as i8);
        let magnitudes = _mm256_and_si256(codes, _mm256_set1_epi8(0x7f));
        _mm256_blendv_epi8(codes, canonical, _mm256_cmpeq_epi8(magnitudes, canonical))
    }
}

/// Codes of 16 binary16 numbers, in order.
#[inline(always)]
unsafe fn codes_in_order<F: Float8>(halves: __m256i) -> __m128i {
    // SAFETY: see the module.
    unsafe {
        let magnitudes = round_special::<F>(halves);
        let codes = without_signs_of_nan::<F>(join::<F>([magnitudes; 2], [halves; 2]));
        // Both bytes of each 16 bits are the code; one is kept.
        let codes = _mm256_srli_epi16::<8>(codes);
        _mm_packus_epi16(_mm256_castsi256_si128(codes), _mm256_extracti128_si256::<1>(codes))
    }
}

impl<F: Float8> Codec for Eight<F> {
    type Format = <F as Float8>::Format;
    /// Even elements of both halves, then odd ones.
    type Wide = [__m256; 4];
    const ELEM_BYTES: usize = 1;
    const GROUP: usize = 32;

    #[inline(always)]
    unsafe fn decode(start: *const u8) -> Self::Wide {
        // SAFETY: see the module.
        unsafe {
            let [even, odd] = split::<F>(_mm256_loadu_si256(start.cast()));
            let [a, b] = widen(mark_nan::<F>(even));
            let [c, d] = widen(mark_nan::<F>(odd));
            let wide = [a, b, c, d];
            if F::SCALE == 1.0 { wide } else { wide.zip([_mm256_set1_ps(F::SCALE); 4], Vector::mul) }
        }
    }

    #[inline(always)]
    unsafe fn encode(wide: Self::Wide, start: *mut u8) {
        // SAFETY: see the module.
        unsafe {
            let wide = wide.zip([_mm256_set1_ps(1.0 / F::SCALE); 4], Vector::mul);
            let even = narrow_to_odd(wide[0], wide[1]);
            let odd = narrow_to_odd(wide[2], wide[3]);
            let magnitudes = [round_special::<F>(even), round_special::<F>(odd)];
            let codes = without_signs_of_nan::<F>(join::<F>(magnitudes, [even, odd]));
            _mm256_storeu_si256(start.cast(), codes);
        }
    }

    #[inline(always)]
    unsafe fn encode_in_order(wide: Self::Wide, start: *mut u8) {
        // SAFETY: see the module.
        unsafe {
            let wide = wide.zip([_mm256_set1_ps(1.0 / F::SCALE); 4], Vector::mul);
            let halves = [narrow_to_odd(wide[0], wide[1]), narrow_to_odd(wide[2], wide[3])];
            _mm_storeu_si128(start.cast(), codes_in_order::<F>(halves[0]));
            _mm_storeu_si128(start.add(16).cast(), codes_in_order::<F>(halves[1]));
        }
    }

    #[inline(always)]
    unsafe fn decode_row(start: *const u8) -> __m256 {
        // SAFETY: see the module.
        unsafe {
            let codes = _mm256_castsi128_si256(_mm_cvtepu8_epi16(_mm_loadl_epi64(start.cast())));
            let halves = mark_nan::<F>(split::<F>(codes)[0]);
            let wide = _mm256_cvtph_ps(_mm256_castsi256_si128(halves));
            _mm256_mul_ps(wide, _mm256_set1_ps(F::SCALE))
        }
    }

    #[inline(always)]
    unsafe fn encode_row(vector: __m256, start: *mut u8) {
        // SAFETY: see the module.
        unsafe {
            let scaled = _mm256_mul_ps(vector, _mm256_set1_ps(1.0 / F::SCALE));
            _mm_storel_epi64(start.cast(), codes_in_order::<F>(narrow_to_odd(scaled, scaled)));
        }
    }

    /// As in `avx512`: numbers only go the short way.
    #[inline(always)]
    unsafe fn sum(left: *const u8, right: *const u8, start: *mut u8) {
        // SAFETY: see the module.
        unsafe {
            let (a, b) = (_mm256_loadu_si256(left.cast()), _mm256_loadu_si256(right.cast()));
            // Twice a code has no sign.
            let larger = _mm256_max_epu8(_mm256_add_epi8(a, a), _mm256_add_epi8(b, b));
            let special = _mm256_set1_epi8((F::FIRST_SPECIAL as u8 * 2) as i8);
            if _mm256_movemask_epi8(_mm256_cmpeq_epi8(_mm256_max_epu8(larger, special), larger)) != 0 {
                let wide = Self::decode(left).zip(Self::decode(right), Vector::add);
                return Self::encode(wide, start);
            }
            let ([a_even, a_odd], [b_even, b_odd]) = (split::<F>(a), split::<F>(b));
            let even = widen(a_even).zip(widen(b_even), Vector::add);
            let odd = widen(a_odd).zip(widen(b_odd), Vector::add);
            let even = narrow::<NEAREST>(even[0], even[1]);
            let odd = narrow::<NEAREST>(odd[0], odd[1]);
            let magnitudes = [round_magnitude::<F>(even), round_magnitude::<F>(odd)];
            _mm256_storeu_si256(start.cast(), join::<F>(magnitudes, [even, odd]));
        }
    }
}
