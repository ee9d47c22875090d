//! Sums of two narrow elements with the instructions that came with AVX512-FP16.
//!
//! Only what is faster than the loops of `avx512` is here; all else is theirs, and so is every group with something rare in
//! it (a NaN, an infinity, a subnormal result of bfloat16). The arithmetic of binary16 rounds the exact sum once, and keeps
//! subnormal numbers whatever mode the thread is in. That is how a sum of float16 is defined, as binary32 has more than
//! twice the digits. For the 8-bit formats the argument is that of `avx512`: see its `sum`.
//!
//! The instructions are written by name: compilers before 1.94 have no functions for them.
//!
//! # Safety
//!
//! See the module above: callers have the features of `fp16_loops` and valid pointers. That holds for each block below.

#![allow(unsafe_code)]

use std::arch::asm;
use std::arch::x86_64::*;
use std::marker::PhantomData;

use super::avx512::{self, Bfloat16, Float8, Float8e4m3, Float8e5m2, Float16};
use super::{Codec, Wide};

/// A format that has a faster way to sum two groups.
pub(super) trait FastSum: Codec {
    unsafe fn fast_sum(left: *const u8, right: *const u8, start: *mut u8);
}

/// The codec `C`, summing the faster way.
#[derive(Debug)]
pub(super) struct Fast<C>(PhantomData<C>);

impl<C: FastSum> Codec for Fast<C> {
    type Format = C::Format;
    type Wide = C::Wide;
    const ELEM_BYTES: usize = C::ELEM_BYTES;
    const GROUP: usize = C::GROUP;

    #[inline(always)]
    unsafe fn decode(start: *const u8) -> Self::Wide {
        // SAFETY: see the module.
        unsafe { C::decode(start) }
    }
    #[inline(always)]
    unsafe fn encode(wide: Self::Wide, start: *mut u8) {
        // SAFETY: see the module.
        unsafe { C::encode(wide, start) }
    }
    #[inline(always)]
    unsafe fn encode_in_order(wide: Self::Wide, start: *mut u8) {
        // SAFETY: see the module.
        unsafe { C::encode_in_order(wide, start) }
    }
    #[inline(always)]
    unsafe fn decode_row(start: *const u8) -> <Self::Wide as Wide>::Vector {
        // SAFETY: see the module.
        unsafe { C::decode_row(start) }
    }
    #[inline(always)]
    unsafe fn encode_row(vector: <Self::Wide as Wide>::Vector, start: *mut u8) {
        // SAFETY: see the module.
        unsafe { C::encode_row(vector, start) }
    }
    #[inline(always)]
    unsafe fn sum(left: *const u8, right: *const u8, start: *mut u8) {
        // SAFETY: see the module.
        unsafe { C::fast_sum(left, right, start) }
    }
}

/// The long way, out of the loop.
#[cold]
#[inline(never)]
#[target_feature(enable = "avx2,f16c,avx512f,avx512bw,avx512dq,avx512vl")]
unsafe fn rare_sum<C: Codec>(left: *const u8, right: *const u8, start: *mut u8) {
    // SAFETY: see the module.
    unsafe { C::sum(left, right, start) }
}

/// A function of 32 binary16 numbers that is one instruction.
macro_rules! instruction {
    ($name:ident, $template:literal, $($operand:ident)*) => {
        #[inline]
        #[target_feature(enable = "avx512f,avx512bw")]
        unsafe fn $name($($operand: __m512i),*) -> __m512i {
            let result;
            // SAFETY: see the module; registers are all that it touches.
            unsafe {
                asm!($template, result = lateout(zmm_reg) result, $($operand = in(zmm_reg) $operand,)*
                    options(pure, nomem, nostack, preserves_flags));
            }
            result
        }
    };
}

instruction!(add, "vaddph {result}, {left}, {right}", left right);
instruction!(mul, "vmulph {result}, {left}, {right}", left right);

/// `left * right - less`, rounded once.
#[inline]
#[target_feature(enable = "avx512f,avx512bw")]
unsafe fn mul_sub(left: __m512i, right: __m512i, less: __m512i) -> __m512i {
    let mut result = left;
    // SAFETY: see the module; registers are all that it touches.
    unsafe {
        asm!("vfmsub213ph {result}, {right}, {less}", result = inout(zmm_reg) result, right = in(zmm_reg) right,
            less = in(zmm_reg) less, options(pure, nomem, nostack, preserves_flags));
    }
    result
}

/// Which of 32 binary16 numbers are NaN.
#[inline]
#[target_feature(enable = "avx512f,avx512bw")]
unsafe fn nan(halves: __m512i) -> __mmask32 {
    let result: u32;
    // SAFETY: see the module; registers are all that it touches.
    unsafe {
        asm!("vcmpunordph {result}, {halves}, {halves}", result = lateout(kreg) result, halves = in(zmm_reg) halves,
            options(pure, nomem, nostack, preserves_flags));
    }
    result
}

impl FastSum for Float16 {
    #[inline(always)]
    unsafe fn fast_sum(left: *const u8, right: *const u8, start: *mut u8) {
        // SAFETY: see the module.
        unsafe {
            let sum = add(_mm512_loadu_si512(left.cast()), _mm512_loadu_si512(right.cast()));
            let settled = _mm512_mask_mov_epi16(sum, nan(sum), _mm512_set1_epi16(0x7e00));
            _mm512_storeu_si512(start.cast(), settled);
        }
    }
}

/// Where the elements of a group go that come in the order of `Bfloat16::decode`: even ones, then odd ones.
const EVEN_THEN_ODD: [u8; 64] = {
    let mut bytes = [0; 64];
    let mut element = 0;
    while element < 32 {
        let from = element / 2 + element % 2 * 16;
        bytes[2 * element] = 2 * from as u8;
        bytes[2 * element + 1] = 2 * from as u8 + 1;
        element += 1;
    }
    bytes
};

impl FastSum for Bfloat16 {
    /// The conversion of AVX512-BF16 rounds as wanted, but makes zeros of subnormal numbers and keeps payloads of NaN.
    #[inline(always)]
    unsafe fn fast_sum(left: *const u8, right: *const u8, start: *mut u8) {
        /// Quiet NaN, subnormal numbers, signalling NaN.
        const RARE: i32 = 0x01 | 0x20 | 0x80;
        // SAFETY: see the module.
        unsafe {
            let [even, odd] = Self::decode(left).zip(Self::decode(right), super::Vector::add);
            let rare = _mm512_fpclass_ps_mask::<RARE>(even) | _mm512_fpclass_ps_mask::<RARE>(odd);
            if rare != 0 {
                return rare_sum::<Self>(left, right, start);
            }
            let codes: __m512i = std::mem::transmute(_mm512_cvtne2ps_pbh(odd, even));
            let order = _mm512_loadu_si512(EVEN_THEN_ODD.as_ptr().cast());
            _mm512_storeu_si512(start.cast(), _mm512_permutexvar_epi8(order, codes));
        }
    }
}

/// Bytes from two vectors in turn: the first one's where a pair of bytes is even.
#[inline(always)]
unsafe fn alternate(even: __m512i, odd: __m512i) -> __m512i {
    // SAFETY: see the module.
    unsafe { _mm512_mask_blend_epi8(0xaaaa_aaaa_aaaa_aaaa, even, odd) }
}

impl FastSum for Float8e5m2 {
    #[inline(always)]
    unsafe fn fast_sum(left: *const u8, right: *const u8, start: *mut u8) {
        // SAFETY: see the module.
        unsafe {
            let (a, b) = (_mm512_loadu_si512(left.cast()), _mm512_loadu_si512(right.cast()));
            let ([a_even, a_odd], [b_even, b_odd]) = (Self::split(a), Self::split(b));
            let (even, odd) = (add(a_even, b_even), add(a_odd, b_odd));
            // The codes, and what is to be rounded away.
            let codes = alternate(_mm512_srli_epi16::<8>(even), odd);
            let rest = alternate(even, _mm512_slli_epi16::<8>(odd));
            // 0x80 for even codes, where a tie stays, and 0x7f for odd ones: each bit is the code's last, the top one not.
            let last_digit = _mm512_set1_epi64(0x0101_0101_0101_0101);
            let stays = _mm512_gf2p8affine_epi64_epi8::<0x80>(codes, last_digit);
            let up = _mm512_cmpgt_epu8_mask(rest, stays);
            let codes = _mm512_mask_add_epi8(codes, up, codes, _mm512_set1_epi8(1));
            // Twice a code has no sign. What is no number, or too large for one, has the highest exponent here.
            let special = _mm512_set1_epi8((Self::FIRST_SPECIAL as u8 * 2) as i8);
            if _mm512_cmpge_epu8_mask(_mm512_add_epi8(codes, codes), special) != 0 {
                return rare_sum::<Self>(left, right, start);
            }
            _mm512_storeu_si512(start.cast(), codes);
        }
    }
}

/// Rounds binary16 numbers to four digits, ties to even, in two operations. Let x have the integer significand X. The
/// product 127 x is rounded to 11 digits: to a multiple of 128 in units of X's last digit, which leaves 128 x minus X
/// rounded to such a multiple. A tie has an even X, so that "even" means the same for both. (Where the product has a digit
/// less, X ends in less than 9 of 128, and both round X down.) Of numbers up to 255.
#[inline(always)]
unsafe fn round_to_four_digits(halves: __m512i) -> __m512i {
    // SAFETY: see the module.
    unsafe {
        let rest = mul(halves, _mm512_set1_epi16(0x57f0));
        mul_sub(halves, _mm512_set1_epi16(0x5800), rest)
    }
}

/// The same as `Float8e4m3::split`; one multiplication moves the even elements.
#[inline(always)]
unsafe fn split_e4m3(codes: __m512i) -> [__m512i; 2] {
    // SAFETY: see the module.
    unsafe {
        let bits = _mm512_set1_epi16(avx512::E4M3_BITS);
        let even = _mm512_maddubs_epi16(_mm512_set1_epi16(0x0080), codes);
        [_mm512_and_si512(even, bits), _mm512_and_si512(_mm512_srai_epi16::<1>(codes), bits)]
    }
}

impl FastSum for Float8e4m3 {
    #[inline(always)]
    unsafe fn fast_sum(left: *const u8, right: *const u8, start: *mut u8) {
        // SAFETY: see the module.
        unsafe {
            let (a, b) = (_mm512_loadu_si512(left.cast()), _mm512_loadu_si512(right.cast()));
            let sign = _mm512_set1_epi8(i8::MIN);
            let nan = _mm512_set1_epi8(-1);
            let a_nan = _mm512_cmpeq_epi8_mask(_mm512_or_si512(a, sign), nan);
            let b_nan = _mm512_cmpeq_epi8_mask(_mm512_or_si512(b, sign), nan);
            if a_nan | b_nan != 0 {
                return rare_sum::<Self>(left, right, start);
            }
            let ([a_even, a_odd], [b_even, b_odd]) = (split_e4m3(a), split_e4m3(b));
            let (even, odd) = (add(a_even, b_even), add(a_odd, b_odd));
            // Rounding takes the sign of zeros away.
            let signs = alternate(_mm512_srli_epi16::<8>(even), odd);
            // Sums of subnormal codes are exact, so that rounding to four digits is all there is.
            let (even, odd) = (round_to_four_digits(even), round_to_four_digits(odd));
            let magnitudes = alternate(_mm512_srli_epi16::<7>(even), _mm512_add_epi16(odd, odd));
            let largest = _mm512_set1_epi8(Self::FIRST_SPECIAL - 1);
            let magnitudes = _mm512_min_epu8(magnitudes, largest);
            // Where the first operand has a one, the second; else the third.
            let codes = _mm512_ternarylogic_epi32::<0xca>(sign, signs, magnitudes);
            _mm512_storeu_si512(start.cast(), codes);
        }
    }
}
