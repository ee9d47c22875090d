//! The narrow formats on registers of 512 bits.
//!
//! Both 8-bit formats are read and written by way of binary16, whose conversion is one instruction. E5M2 is the upper
//! half of a binary16. E4M3 has the exponent's low four bits and the mantissa's high three bits of one: its codes,
//! shifted into place, are binary16 numbers of 1/256 of the value, *subnormal where the code is*. So no rounding here
//! knows a special case for subnormals.
//!
//! # Safety
//!
//! See the module above: callers have AVX-512 F, BW, DQ, VL and valid pointers. That holds for each block below.

#![allow(unsafe_code)]

use std::arch::x86_64::*;

use super::{Codec, Vector, Wide, kernel};

/// Rounds to nearest, ties to even, whatever the thread's rounding mode is.
const NEAREST: i32 = _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC;
const TOWARD_ZERO: i32 = _MM_FROUND_TO_ZERO | _MM_FROUND_NO_EXC;

impl Vector for __m512 {
    const LANES: usize = 16;
    #[inline(always)]
    unsafe fn splat(x: f32) -> Self {
        // SAFETY: see the module.
        unsafe { _mm512_set1_ps(x) }
    }
    #[inline(always)]
    unsafe fn read(start: *const u8) -> Self {
        // SAFETY: see the module.
        unsafe { _mm512_loadu_ps(start.cast()) }
    }
    #[inline(always)]
    unsafe fn write(self, start: *mut u8) {
        // SAFETY: see the module.
        unsafe { _mm512_storeu_ps(start.cast(), self) }
    }
    #[inline(always)]
    unsafe fn add(self, other: Self) -> Self {
        // SAFETY: see the module.
        unsafe { _mm512_add_ps(self, other) }
    }
    #[inline(always)]
    unsafe fn mul(self, other: Self) -> Self {
        // SAFETY: see the module.
        unsafe { _mm512_mul_ps(self, other) }
    }
    #[inline(always)]
    unsafe fn div(self, other: Self) -> Self {
        // SAFETY: see the module.
        unsafe { _mm512_div_ps(self, other) }
    }
}

/// binary16.
#[derive(Debug)]
pub(super) struct Float16;

impl Codec for Float16 {
    type Format = kernel::Float16;
    type Wide = [__m512; 2];
    const ELEM_BYTES: usize = 2;
    const GROUP: usize = 32;

    #[inline(always)]
    unsafe fn decode(start: *const u8) -> Self::Wide {
        // SAFETY: see the module.
        unsafe { [Self::decode_row(start), Self::decode_row(start.add(32))] }
    }
    #[inline(always)]
    unsafe fn encode(wide: Self::Wide, start: *mut u8) {
        // SAFETY: see the module.
        unsafe {
            if any_nan(wide) {
                Self::encode_row(wide[0], start);
                Self::encode_row(wide[1], start.add(32));
            } else {
                _mm256_storeu_si256(start.cast(), _mm512_cvtps_ph::<NEAREST>(wide[0]));
                _mm256_storeu_si256(start.add(32).cast(), _mm512_cvtps_ph::<NEAREST>(wide[1]));
            }
        }
    }
    #[inline(always)]
    unsafe fn encode_in_order(wide: Self::Wide, start: *mut u8) {
        // SAFETY: see the module. Decoding keeps the order, so there is only one.
        unsafe { Self::encode(wide, start) }
    }
    #[inline(always)]
    unsafe fn decode_row(start: *const u8) -> __m512 {
        // SAFETY: see the module.
        unsafe { _mm512_cvtph_ps(_mm256_loadu_si256(start.cast())) }
    }
    #[inline(always)]
    unsafe fn encode_row(vector: __m512, start: *mut u8) {
        // SAFETY: see the module.
        unsafe {
            // Lanes with a NaN are not converted but keep the canonical one.
            let number = _mm512_cmp_ps_mask::<_CMP_ORD_Q>(vector, vector);
            let codes = _mm512_mask_cvtps_ph::<NEAREST>(_mm256_set1_epi16(0x7e00), number, vector);
            _mm256_storeu_si256(start.cast(), codes);
        }
    }
}

/// True if a lane of either vector is a NaN: one comparison tells of both, and NaN are rare enough to branch.
#[inline(always)]
unsafe fn any_nan(wide: [__m512; 2]) -> bool {
    // SAFETY: see the module.
    unsafe { _mm512_cmp_ps_mask::<_CMP_UNORD_Q>(wide[0], wide[1]) != 0 }
}

/// bfloat16.
#[derive(Debug)]
pub(super) struct Bfloat16;

impl Bfloat16 {
    /// The code in the upper half of each lane, above garbage. Not for NaN.
    #[inline(always)]
    unsafe fn round(vector: __m512) -> __m512i {
        // SAFETY: see the module.
        unsafe {
            let bits = _mm512_castps_si512(vector);
            let odd = _mm512_test_epi32_mask(bits, _mm512_set1_epi32(0x1_0000));
            let rounded = _mm512_add_epi32(bits, _mm512_set1_epi32(0x7fff));
            _mm512_mask_add_epi32(rounded, odd, rounded, _mm512_set1_epi32(1))
        }
    }

    /// The canonical NaN for every NaN; it is even, so that rounding leaves its upper half as it is.
    #[inline(always)]
    unsafe fn settled(vector: __m512) -> __m512 {
        // SAFETY: see the module.
        unsafe {
            let nan = _mm512_cmp_ps_mask::<_CMP_UNORD_Q>(vector, vector);
            let canonical = _mm512_castsi512_ps(_mm512_set1_epi32(0x7fc0_0000));
            _mm512_mask_mov_ps(vector, nan, canonical)
        }
    }
}

impl Codec for Bfloat16 {
    type Format = kernel::Bfloat16;
    /// Even elements, odd elements: so each code is in the right place of its 32 bits.
    type Wide = [__m512; 2];
    const ELEM_BYTES: usize = 2;
    const GROUP: usize = 32;

    #[inline(always)]
    unsafe fn decode(start: *const u8) -> Self::Wide {
        // SAFETY: see the module.
        unsafe {
            let bits = _mm512_loadu_si512(start.cast());
            let odd = _mm512_and_si512(bits, _mm512_set1_epi32(0xffff_0000u32 as i32));
            [_mm512_castsi512_ps(_mm512_slli_epi32::<16>(bits)), _mm512_castsi512_ps(odd)]
        }
    }
    #[inline(always)]
    unsafe fn encode(wide: Self::Wide, start: *mut u8) {
        // SAFETY: see the module.
        unsafe {
            let wide = if any_nan(wide) { [Self::settled(wide[0]), Self::settled(wide[1])] } else { wide };
            let even = _mm512_srli_epi32::<16>(Self::round(wide[0]));
            // The upper half of the odd ones, the lower of the even ones.
            let codes = _mm512_mask_blend_epi16(0xaaaa_aaaa, even, Self::round(wide[1]));
            _mm512_storeu_si512(start.cast(), codes);
        }
    }
    #[inline(always)]
    unsafe fn encode_in_order(wide: Self::Wide, start: *mut u8) {
        // SAFETY: see the module.
        unsafe {
            Self::encode_row(wide[0], start);
            Self::encode_row(wide[1], start.add(32));
        }
    }
    #[inline(always)]
    unsafe fn decode_row(start: *const u8) -> __m512 {
        // SAFETY: see the module.
        unsafe {
            let codes = _mm512_cvtepu16_epi32(_mm256_loadu_si256(start.cast()));
            _mm512_castsi512_ps(_mm512_slli_epi32::<16>(codes))
        }
    }
    #[inline(always)]
    unsafe fn encode_row(vector: __m512, start: *mut u8) {
        // SAFETY: see the module.
        unsafe {
            let codes = _mm512_cvtepi32_epi16(_mm512_srli_epi32::<16>(Self::round(Self::settled(vector))));
            _mm256_storeu_si256(start.cast(), codes);
        }
    }
}

/// 32 binary16 as two vectors.
#[inline(always)]
unsafe fn widen(halves: __m512i) -> [__m512; 2] {
    // SAFETY: see the module.
    unsafe {
        [
            _mm512_cvtph_ps(_mm512_castsi512_si256(halves)),
            _mm512_cvtph_ps(_mm512_extracti64x4_epi64::<1>(halves)),
        ]
    }
}

/// Two vectors as 32 binary16, rounded as `MODE` says.
#[inline(always)]
unsafe fn narrow<const MODE: i32>(low: __m512, high: __m512) -> __m512i {
    // SAFETY: see the module.
    unsafe {
        let low = _mm512_castsi256_si512(_mm512_cvtps_ph::<MODE>(low));
        _mm512_inserti64x4::<1>(low, _mm512_cvtps_ph::<MODE>(high))
    }
}

/// Two vectors as 32 binary16, rounded to odd: toward zero, and what was inexact gets an odd last digit. Rounding that
/// again to fewer digits is the same as rounding once.
#[inline(always)]
unsafe fn narrow_to_odd(low: __m512, high: __m512) -> __m512i {
    // SAFETY: see the module.
    unsafe {
        let halves = narrow::<TOWARD_ZERO>(low, high);
        let [low_back, high_back] = widen(halves);
        let low_inexact = u32::from(_mm512_cmp_ps_mask::<_CMP_NEQ_OQ>(low, low_back));
        let high_inexact = u32::from(_mm512_cmp_ps_mask::<_CMP_NEQ_OQ>(high, high_back));
        let inexact = low_inexact | high_inexact << 16;
        let odd = _mm512_or_si512(halves, _mm512_set1_epi16(1));
        _mm512_mask_blend_epi16(inexact, halves, odd)
    }
}

/// What the two 8-bit formats differ in, in binary16 codes.
pub(super) trait Float8: 'static {
    type Format: super::Format<Acc = f32>;
    /// Bits of binary16's mantissa that the format lacks.
    const DROPPED: u32;
    /// A code's magnitude from here on is no number.
    const FIRST_SPECIAL: i8;
    /// The factor between a value and the binary16 number that stands for it.
    const SCALE: f32;
    /// Where the magnitude of binary16 is infinite, the code's magnitude in its 16 bits.
    const INFINITY: i16;

    /// binary16 numbers of the even and of the odd elements. A NaN of the format may come out as a number.
    unsafe fn split(codes: __m512i) -> [__m512i; 2];
    /// binary16 numbers of 16 elements, NaN included.
    unsafe fn in_order(codes: __m256i) -> __m256i;
    /// Makes the binary16 numbers of NaN elements NaN.
    unsafe fn mark_nan(halves: __m512i) -> __m512i;
}

/// Rounds 32 binary16 numbers to a format, and leaves the code's magnitude at the place of binary16's, without sign.
/// Numbers that are too large become the largest.
#[inline(always)]
unsafe fn round_magnitude<F: Float8>(halves: __m512i) -> __m512i {
    // SAFETY: see the module.
    unsafe {
        let unit = 1i16 << F::DROPPED;
        let odd = _mm512_test_epi16_mask(halves, _mm512_set1_epi16(unit));
        let magnitude = _mm512_and_si512(halves, _mm512_set1_epi16(0x7fff));
        let rounded = _mm512_add_epi16(magnitude, _mm512_set1_epi16(unit / 2 - 1));
        let rounded = _mm512_mask_add_epi16(rounded, odd, rounded, _mm512_set1_epi16(1));
        let largest = (i16::from(F::FIRST_SPECIAL) << F::DROPPED) - 1;
        _mm512_min_epu16(rounded, _mm512_set1_epi16(largest))
    }
}

/// The same for numbers that may be infinite or NaN.
#[inline(always)]
unsafe fn round_special<F: Float8>(halves: __m512i) -> __m512i {
    // SAFETY: see the module.
    unsafe {
        let magnitude = _mm512_and_si512(halves, _mm512_set1_epi16(0x7fff));
        let infinity = _mm512_set1_epi16(0x7c00);
        let infinite = _mm512_cmpeq_epi16_mask(magnitude, infinity);
        let nan = _mm512_cmpgt_epi16_mask(magnitude, infinity);
        let codes = round_magnitude::<F>(halves);
        let codes = _mm512_mask_mov_epi16(codes, infinite, _mm512_set1_epi16(F::INFINITY << F::DROPPED));
        // Both formats' canonical NaN is the last even or the last code of all: 0x7e or 0x7f.
        let canonical = if F::DROPPED == 7 { 0x7f } else { 0x7e };
        _mm512_mask_mov_epi16(codes, nan, _mm512_set1_epi16(canonical << F::DROPPED))
    }
}

/// Bytes of the even and the odd magnitudes, with the signs of the binary16 numbers they came from.
#[inline(always)]
unsafe fn join<F: Float8>(magnitudes: [__m512i; 2], signs: [__m512i; 2]) -> __m512i {
    // SAFETY: see the module.
    unsafe {
        let even = if F::DROPPED == 7 {
            _mm512_srli_epi16::<7>(magnitudes[0])
        } else {
            _mm512_srli_epi16::<8>(magnitudes[0])
        };
        let odd = if F::DROPPED == 7 { _mm512_slli_epi16::<1>(magnitudes[1]) } else { magnitudes[1] };
        let odd_bytes = 0xaaaa_aaaa_aaaa_aaaa;
        let codes = _mm512_mask_blend_epi8(odd_bytes, even, odd);
        let signs = _mm512_mask_blend_epi8(odd_bytes, _mm512_srli_epi16::<8>(signs[0]), signs[1]);
        // Where the first operand has a one, the second; else the third.
        _mm512_ternarylogic_epi32::<0xca>(_mm512_set1_epi8(i8::MIN), signs, codes)
    }
}

impl<F: Float8> Codec for F {
    type Format = <F as Float8>::Format;
    /// Even elements of both halves, then odd ones.
    type Wide = [__m512; 4];
    const ELEM_BYTES: usize = 1;
    const GROUP: usize = 64;

    #[inline(always)]
    unsafe fn decode(start: *const u8) -> Self::Wide {
        // SAFETY: see the module.
        unsafe {
            let [even, odd] = F::split(_mm512_loadu_si512(start.cast()));
            let [a, b] = widen(F::mark_nan(even));
            let [c, d] = widen(F::mark_nan(odd));
            let wide = [a, b, c, d];
            if F::SCALE == 1.0 { wide } else { wide.zip([_mm512_set1_ps(F::SCALE); 4], Vector::mul) }
        }
    }

    #[inline(always)]
    unsafe fn encode(wide: Self::Wide, start: *mut u8) {
        // SAFETY: see the module.
        unsafe {
            // A power of two: exact, but for numbers so small that they round to zero either way.
            let wide = if F::SCALE == 1.0 {
                wide
            } else {
                wide.zip([_mm512_set1_ps(1.0 / F::SCALE); 4], Vector::mul)
            };
            let even = narrow_to_odd(wide[0], wide[1]);
            let odd = narrow_to_odd(wide[2], wide[3]);
            let magnitudes = [round_special::<F>(even), round_special::<F>(odd)];
            let codes = join::<F>(magnitudes, [even, odd]);
            _mm512_storeu_si512(start.cast(), without_signs_of_nan::<F>(codes));
        }
    }

    #[inline(always)]
    unsafe fn encode_in_order(wide: Self::Wide, start: *mut u8) {
        // SAFETY: see the module.
        unsafe {
            let wide = wide.zip([_mm512_set1_ps(1.0 / F::SCALE); 4], Vector::mul);
            for (index, halves) in
                [narrow_to_odd(wide[0], wide[1]), narrow_to_odd(wide[2], wide[3])].into_iter().enumerate()
            {
                _mm256_storeu_si256(start.add(index * 32).cast(), codes_in_order::<F>(halves));
            }
        }
    }

    #[inline(always)]
    unsafe fn decode_row(start: *const u8) -> __m512 {
        // SAFETY: see the module.
        unsafe {
            let codes = _mm256_cvtepu8_epi16(_mm_loadu_si128(start.cast()));
            let halves = _mm512_castsi256_si512(F::in_order(codes));
            let marked = _mm512_castsi512_si256(F::mark_nan(halves));
            _mm512_mul_ps(_mm512_cvtph_ps(marked), _mm512_set1_ps(F::SCALE))
        }
    }

    #[inline(always)]
    unsafe fn encode_row(vector: __m512, start: *mut u8) {
        // SAFETY: see the module.
        unsafe {
            let scaled = _mm512_mul_ps(vector, _mm512_set1_ps(1.0 / F::SCALE));
            let halves = narrow_to_odd(scaled, scaled);
            _mm_storeu_si128(start.cast(), _mm256_castsi256_si128(codes_in_order::<F>(halves)));
        }
    }

    /// Numbers only: binary16 has more than twice the digits of the format, so that rounding to it first does not change
    /// how the sum of *two* elements rounds in the end (the test of all pairs shows it). That saves finding out what was
    /// inexact. Groups with anything but numbers, which are rare, go the long way.
    #[inline(always)]
    unsafe fn sum(left: *const u8, right: *const u8, start: *mut u8) {
        // SAFETY: see the module.
        unsafe {
            let (a, b) = (_mm512_loadu_si512(left.cast()), _mm512_loadu_si512(right.cast()));
            let magnitude = _mm512_set1_epi8(0x7f);
            let larger = _mm512_max_epu8(_mm512_and_si512(a, magnitude), _mm512_and_si512(b, magnitude));
            if _mm512_cmpge_epu8_mask(larger, _mm512_set1_epi8(F::FIRST_SPECIAL)) != 0 {
                let wide = F::decode(left).zip(F::decode(right), Vector::add);
                return F::encode(wide, start);
            }
            let ([a_even, a_odd], [b_even, b_odd]) = (F::split(a), F::split(b));
            let even = widen(a_even).zip(widen(b_even), Vector::add);
            let odd = widen(a_odd).zip(widen(b_odd), Vector::add);
            let even = narrow::<NEAREST>(even[0], even[1]);
            let odd = narrow::<NEAREST>(odd[0], odd[1]);
            let magnitudes = [round_magnitude::<F>(even), round_magnitude::<F>(odd)];
            _mm512_storeu_si512(start.cast(), join::<F>(magnitudes, [even, odd]));
        }
    }
}

/// Codes of 32 binary16 numbers, in order.
#[inline(always)]
unsafe fn codes_in_order<F: Float8>(halves: __m512i) -> __m256i {
    // SAFETY: see the module.
    unsafe {
        let magnitudes = round_special::<F>(halves);
        let codes = without_signs_of_nan::<F>(join::<F>([magnitudes; 2], [halves; 2]));
        // Both bytes of each 16 bits are the code; one is kept.
        _mm512_cvtepi16_epi8(codes)
    }
}

/// The canonical NaN is positive.
#[inline(always)]
unsafe fn without_signs_of_nan<F: Float8>(codes: __m512i) -> __m512i {
    // SAFETY: see the module.
    unsafe {
        let canonical = _mm512_set1_epi8(if F::DROPPED == 7 { 0x7f } else { 0x7e });
        let magnitudes = _mm512_and_si512(codes, _mm512_set1_epi8(0x7f));
        _mm512_mask_mov_epi8(codes, _mm512_cmpeq_epi8_mask(magnitudes, canonical), canonical)
    }
}

/// FP8 E4M3.
#[derive(Debug)]
pub(super) struct Float8e4m3;

/// Sign, and the seven bits below the top bit of the exponent.
pub(super) const E4M3_BITS: i16 = 0xbf80u16 as i16;

impl Float8 for Float8e4m3 {
    type Format = kernel::Float8e4m3;
    const DROPPED: u32 = 7;
    const FIRST_SPECIAL: i8 = 0x7f;
    const SCALE: f32 = 256.0;
    const INFINITY: i16 = 0x7e;

    #[inline(always)]
    unsafe fn split(codes: __m512i) -> [__m512i; 2] {
        // SAFETY: see the module.
        unsafe {
            // The arithmetic shift repeats the sign; the mask takes the copy away.
            let bits = _mm512_set1_epi16(E4M3_BITS);
            let even = _mm512_srai_epi16::<1>(_mm512_slli_epi16::<8>(codes));
            let odd = _mm512_srai_epi16::<1>(codes);
            [_mm512_and_si512(even, bits), _mm512_and_si512(odd, bits)]
        }
    }
    #[inline(always)]
    unsafe fn in_order(codes: __m256i) -> __m256i {
        // SAFETY: see the module.
        unsafe {
            let shifted = _mm256_srai_epi16::<1>(_mm256_slli_epi16::<8>(codes));
            _mm256_and_si256(shifted, _mm256_set1_epi16(E4M3_BITS))
        }
    }
    #[inline(always)]
    unsafe fn mark_nan(halves: __m512i) -> __m512i {
        // SAFETY: see the module.
        unsafe {
            let nan = _mm512_set1_epi16(0x3f80);
            let is_nan = _mm512_cmpeq_epi16_mask(_mm512_and_si512(halves, nan), nan);
            _mm512_mask_mov_epi16(halves, is_nan, _mm512_set1_epi16(0x7e00))
        }
    }
}

/// FP8 E5M2.
#[derive(Debug)]
pub(super) struct Float8e5m2;

impl Float8 for Float8e5m2 {
    type Format = kernel::Float8e5m2;
    const DROPPED: u32 = 8;
    const FIRST_SPECIAL: i8 = 0x7c;
    const SCALE: f32 = 1.0;
    const INFINITY: i16 = 0x7c;

    #[inline(always)]
    unsafe fn split(codes: __m512i) -> [__m512i; 2] {
        // SAFETY: see the module.
        unsafe {
            let odd = _mm512_and_si512(codes, _mm512_set1_epi16(0xff00u16 as i16));
            [_mm512_slli_epi16::<8>(codes), odd]
        }
    }
    #[inline(always)]
    unsafe fn in_order(codes: __m256i) -> __m256i {
        // SAFETY: see the module.
        unsafe { _mm256_slli_epi16::<8>(codes) }
    }
    #[inline(always)]
    unsafe fn mark_nan(halves: __m512i) -> __m512i {
        halves
    }
}
