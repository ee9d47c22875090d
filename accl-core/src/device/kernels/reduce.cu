// Reductions on a device: to[i] = the fold of from[0][i], from[1][i], … in order, rounded once.
//
// The bits are those of the host's kernels (src/reduce, docs/numbers.md), for which the same things are done in the same accumulators
// and in the same order. Narrow floats are converted by integer arithmetic, as in src/reduce/format.rs, where the constants are
// explained. The source needs no header and no assembly, so that any compiler of this language takes it. A sum or a product is
// a function that is never contracted (__fadd_rn, …), whatever the compiler's options are.
//
// One kernel for each type and operator: accl_reduce_<type>_<operator>, with ci/kernels to compile them.

typedef unsigned char u8;
typedef unsigned short u16;
typedef unsigned int u32;
typedef unsigned long long u64;
typedef signed char i8;
typedef int i32;
typedef long long i64;

// More operands than this are not reduced in one launch. Parameters may have 4 KiB on all devices, of which this is a quarter.
#define OPERANDS_MOST 64

// All fields have 8 bytes:
//
//     0 to | 8 count | 16 operands | 24 ranks | 32 scaled | 40 from[64] | 552 scale[64] | 1064
struct Parameters {
    u64 to;       // address of the result; it may be one of the operands, and overlaps no other
    u64 count;    // elements
    u64 operands; // 1 … 64
    u64 ranks;    // the divisor of an average, below 2^32
    u64 scaled;   // bit k: operand k is multiplied by its factor; ignored but for pre-multiplied sums
    u64 from[OPERANDS_MOST];  // addresses, of any alignment
    u64 scale[OPERANDS_MOST]; // factors of the element's type, in the low bytes
};

// ---- Element types: from bits to accumulators and back. `encode` makes every NaN the type's own one.

__device__ inline float settled(float x) {
    return (__float_as_uint(x) & 0x7fffffff) > 0x7f800000 ? __uint_as_float(0x7fc00000) : x;
}

// Drops `shift` bits of the mantissa with rounding to even, and lowers the exponent by `rebias`. Meaningless where the result is
// subnormal; may exceed the format's range.
__device__ inline u32 narrow(u32 magnitude, u32 shift, u32 rebias) {
    u32 half = (1u << (shift - 1)) - 1;
    return ((magnitude + half + (magnitude >> shift & 1)) >> shift) - (rebias << (23 - shift));
}

// A magnitude below anchor / 2 as a count of the units in the anchor's last place; the addition rounds.
__device__ inline u32 fixed_point(u32 magnitude, float anchor) {
    return __float_as_uint(__fadd_rn(__uint_as_float(magnitude), anchor)) - __float_as_uint(anchor);
}

// Constants are enumerators, since static members would be variables of the device.

// A narrow float. TOP_CODE is the largest code that is no NaN, OVERFLOW what numbers become that are too large, and NAN_CODE the NaN of
// results.
template <class BITS, int EXPONENT, int MANTISSA, u32 TOP_CODE, u32 OVERFLOW, u32 NAN_CODE> struct Narrow {
    typedef BITS Bits;
    typedef float Acc;
    typedef i32 Key;
    enum : i32 { TOP = TOP_CODE, NAN_BITS = NAN_CODE };
    enum : u32 {
        WIDTH = 1 + EXPONENT + MANTISSA,
        SHIFT = 23 - MANTISSA,
        BIAS = (1 << (EXPONENT - 1)) - 1,
        SIGN = 1u << (WIDTH - 1),
        INFINITY_CODE = ((1u << EXPONENT) - 1) << MANTISSA,
        HAS_INFINITY = INFINITY_CODE == TOP_CODE,
    };

    static __device__ float decode(Bits bits) {
        u32 magnitude = bits & (SIGN - 1);
        u32 sign = (u32)(bits & SIGN) << (32 - WIDTH);
        u32 normal = (magnitude << SHIFT) + ((127 - BIAS) << 23);
        // 2^(1 - BIAS - MANTISSA) is the smallest number.
        u32 subnormal = __float_as_uint(__fmul_rn((float)(i32)magnitude, __uint_as_float((128 - BIAS - MANTISSA) << 23)));
        u32 wide = normal;
        if (HAS_INFINITY && magnitude >= INFINITY_CODE) wide = normal + ((127 - BIAS) << 23);
        u32 all = sign | (magnitude < (1u << MANTISSA) ? subnormal : wide);
        return __uint_as_float(!HAS_INFINITY && magnitude > TOP_CODE ? 0x7fc00000 : all);
    }

    static __device__ Bits encode(float x) {
        u32 bits = __float_as_uint(x);
        u32 magnitude = bits & 0x7fffffff;
        u32 normal = narrow(magnitude, SHIFT, 127 - BIAS);
        normal = normal < OVERFLOW ? normal : OVERFLOW;
        // The anchor's last place is the smallest number.
        u32 subnormal = fixed_point(magnitude, __uint_as_float((128 - BIAS - MANTISSA + 23) << 23));
        u32 code = magnitude < (u32)(128 - BIAS) << 23 ? subnormal : normal;
        if (HAS_INFINITY && magnitude == 0x7f800000) code = INFINITY_CODE;
        code |= bits >> (32 - WIDTH) & SIGN;
        return (Bits)(magnitude > 0x7f800000 ? NAN_CODE : code);
    }
};

typedef Narrow<u16, 5, 10, 0x7c00, 0x7c00, 0x7e00> Float16;
typedef Narrow<u8, 4, 3, 0x7e, 0x7e, 0x7f> Float8e4m3;
typedef Narrow<u8, 5, 2, 0x7c, 0x7b, 0x7e> Float8e5m2;

// The upper half of a float: simpler, and a carry runs into the exponent as it should.
struct Bfloat16 {
    typedef u16 Bits;
    typedef float Acc;
    typedef i32 Key;
    enum : i32 { TOP = 0x7f80, NAN_BITS = 0x7fc0 };
    static __device__ float decode(u16 bits) { return __uint_as_float((u32)bits << 16); }
    static __device__ u16 encode(float x) {
        u32 bits = __float_as_uint(x);
        u32 rounded = (bits + 0x7fff + (bits >> 16 & 1)) >> 16;
        return (u16)((bits & 0x7fffffff) > 0x7f800000 ? 0x7fc0 : rounded);
    }
};

struct Float32 {
    typedef u32 Bits;
    typedef float Acc;
    typedef i32 Key;
    enum : i32 { TOP = 0x7f800000, NAN_BITS = 0x7fc00000 };
    static __device__ float decode(u32 bits) { return __uint_as_float(bits); }
    static __device__ u32 encode(float x) { return __float_as_uint(settled(x)); }
};

struct Float64 {
    typedef u64 Bits;
    typedef double Acc;
    typedef i64 Key;
    enum : i64 { TOP = 0x7ff0000000000000, NAN_BITS = 0x7ff8000000000000 };
    static __device__ double decode(u64 bits) { return __longlong_as_double(bits); }
    static __device__ u64 encode(double x) {
        u64 bits = __double_as_longlong(x);
        return (bits & 0x7fffffffffffffff) > (u64)TOP ? (u64)NAN_BITS : bits;
    }
};

// Sums and products wrap, and are the same in any width of at least the type's own: ACC is unsigned, where that is defined.
template <class NUMBER, class BITS, class ACC, class WIDE> struct Integer {
    typedef BITS Bits;
    typedef ACC Acc;
    typedef NUMBER Number;
    typedef WIDE Wide; // what sums of averages are kept in
    static __device__ Acc decode(Bits bits) { return bits; }
    static __device__ Bits encode(Acc acc) { return (Bits)acc; }
};

// ---- Arithmetic of accumulators.

__device__ inline float add(float a, float b) { return __fadd_rn(a, b); }
__device__ inline float multiply(float a, float b) { return __fmul_rn(a, b); }
__device__ inline float divide(float a, u32 ranks) { return __fdiv_rn(a, (float)ranks); }
__device__ inline double add(double a, double b) { return __dadd_rn(a, b); }
__device__ inline double multiply(double a, double b) { return __dmul_rn(a, b); }
__device__ inline double divide(double a, u32 ranks) { return __ddiv_rn(a, (double)ranks); }
__device__ inline u32 add(u32 a, u32 b) { return a + b; }
__device__ inline u32 multiply(u32 a, u32 b) { return a * b; }
__device__ inline u64 add(u64 a, u64 b) { return a + b; }
__device__ inline u64 multiply(u64 a, u64 b) { return a * b; }

// What changes no number that is added to it: of floats that is -0, as +0 would take the sign of a sum of -0.
__device__ inline void zero(float &x) { x = -0.0f; }
__device__ inline void zero(double &x) { x = -0.0; }
__device__ inline void zero(u32 &x) { x = 0; }
__device__ inline void zero(u64 &x) { x = 0; }

// A sum of 64-bit integers: 128 bits in two's complement.
struct Sum128 {
    u64 low, high;
};

__device__ inline void widen(i64 &sum, i64 x) { sum += x; }
__device__ inline void widen(Sum128 &sum, i64 x) {
    sum.low += (u64)x;
    sum.high += (u64)(x >> 63) + (sum.low < (u64)x);
}
__device__ inline void widen(Sum128 &sum, u64 x) {
    sum.low += x;
    sum.high += sum.low < x;
}
__device__ inline void clear(i64 &sum) { sum = 0; }
__device__ inline void clear(Sum128 &sum) { sum.low = sum.high = 0; }

// Cut off toward zero; the low 64 bits of the quotient.
__device__ inline u64 mean(i64 sum, u32 ranks) { return (u64)(sum / (i64)ranks); }
__device__ inline u64 mean(Sum128 sum, u32 ranks) {
    bool negative = (i64)sum.high < 0;
    u64 low = negative ? 0 - sum.low : sum.low;
    u64 high = negative ? ~sum.high + (sum.low == 0) : sum.high;
    // By hand, in digits of 32 bits; what the two upper ones leave is all that matters of them.
    u64 rest = high % ranks;
    u64 upper = rest << 32 | low >> 32;
    u64 lower = upper % ranks << 32 | (low & 0xffffffff);
    u64 quotient = upper / ranks << 32 | lower / ranks;
    return negative ? 0 - quotient : quotient;
}

// ---- Operators: begin, fold in each operand, finish. Factors are accumulators, or nothing.

struct NoFactor {
    __device__ NoFactor(const Parameters &, u32) {}
};

template <class F> struct Sum {
    typedef typename F::Bits Bits;
    typedef typename F::Acc Acc;
    typedef NoFactor Factor;
    static __device__ void begin(Acc &acc) { zero(acc); }
    static __device__ void fold(Acc &acc, Bits next, NoFactor) { acc = add(acc, F::decode(next)); }
    static __device__ Bits finish(Acc acc, u32) { return F::encode(acc); }
};

template <class F> struct Prod : Sum<F> {
    typedef typename F::Acc Acc;
    static __device__ void begin(Acc &acc) { acc = 1; }
    static __device__ void fold(Acc &acc, typename F::Bits next, NoFactor) { acc = multiply(acc, F::decode(next)); }
};

template <class F> struct Avg : Sum<F> {
    static __device__ typename F::Bits finish(typename F::Acc acc, u32 ranks) { return F::encode(divide(acc, ranks)); }
};

template <class F> struct PreMulSum : Sum<F> {
    typedef typename F::Acc Acc;
    struct Factor {
        bool scaled;
        Acc factor;
        __device__ Factor(const Parameters &p, u32 operand)
            : scaled(p.scaled >> operand & 1), factor(F::decode((typename F::Bits)p.scale[operand])) {}
    };
    static __device__ void fold(Acc &acc, typename F::Bits next, Factor by) {
        Acc number = F::decode(next);
        acc = add(acc, by.scaled ? multiply(number, by.factor) : number);
    }
};

// The exact mean of integers.
template <class F> struct Mean {
    typedef typename F::Bits Bits;
    typedef typename F::Wide Acc;
    typedef NoFactor Factor;
    static __device__ void begin(Acc &acc) { clear(acc); }
    static __device__ void fold(Acc &acc, Bits next, NoFactor) { widen(acc, (typename F::Number)next); }
    static __device__ Bits finish(Acc acc, u32 ranks) { return (Bits)mean(acc, ranks); }
};

template <class F, bool MAX> struct ExtremeInteger {
    typedef typename F::Bits Bits;
    typedef typename F::Number Acc;
    typedef NoFactor Factor;
    enum : bool { SIGNED = (Acc)-1 < (Acc)0 };
    // The number that any other one replaces.
    static __device__ void begin(Acc &acc) {
        const Bits top = (Bits)((Bits)1 << (8 * sizeof(Bits) - 1));
        acc = (Acc)(SIGNED ? (MAX ? top : (Bits)~top) : (MAX ? (Bits)0 : (Bits)~(Bits)0));
    }
    static __device__ void fold(Acc &acc, Bits next, NoFactor) {
        Acc number = (Acc)next;
        acc = (MAX ? number > acc : number < acc) ? number : acc;
    }
    static __device__ Bits finish(Acc acc, u32) { return (Bits)acc; }
};

// Floats as signed integers in the same order, for which the magnitudes of negative ones are flipped. A NaN becomes the integer that
// wins over all others, which no number becomes.
template <class F, bool MAX> struct ExtremeFloat {
    typedef typename F::Bits Bits;
    typedef typename F::Key Acc;
    typedef NoFactor Factor;
    enum : Acc {
        MAGNITUDE = (Acc)(((u64)1 << (8 * sizeof(Bits) - 1)) - 1),
        MOST = (Acc)(((u64)1 << (8 * sizeof(Acc) - 1)) - 1),
        WINNER = MAX ? MOST : -MOST - 1,
        LOSER = MAX ? -MOST - 1 : MOST,
    };

    static __device__ Acc flip(Acc key) { return key ^ (key >> (8 * sizeof(Acc) - 1) & MAGNITUDE); }
    static __device__ void begin(Acc &acc) { acc = LOSER; }
    static __device__ void fold(Acc &acc, Bits next, NoFactor) {
        // With the sign in front.
        Acc bits = (Acc)((Acc)next << 8 * (sizeof(Acc) - sizeof(Bits))) >> 8 * (sizeof(Acc) - sizeof(Bits));
        Acc key = (bits & MAGNITUDE) > F::TOP ? (Acc)WINNER : flip(bits);
        acc = (MAX ? key > acc : key < acc) ? key : acc;
    }
    static __device__ Bits finish(Acc acc, u32) { return (Bits)(acc == WINNER ? (Acc)F::NAN_BITS : flip(acc)); }
};

// ---- The loops.

template <class Bits> union Vector {
    uint4 whole;
    Bits lanes[16 / sizeof(Bits)];
};

// One element at any address.
template <class Bits> __device__ inline Bits load(u64 address) {
    if (address % sizeof(Bits) == 0) return *(const Bits *)address;
    u64 bits = 0;
    for (int at = 0; at < (int)sizeof(Bits); at++) bits |= (u64)((const u8 *)address)[at] << 8 * at;
    return (Bits)bits;
}

template <class Bits> __device__ inline void store(u64 address, Bits bits) {
    if (address % sizeof(Bits) == 0) {
        *(Bits *)address = bits;
    } else {
        for (int at = 0; at < (int)sizeof(Bits); at++) ((u8 *)address)[at] = (u8)((u64)bits >> 8 * at);
    }
}

template <class K> __device__ inline void one(const Parameters &p, u64 at_byte) {
    typedef typename K::Bits Bits;
    typename K::Acc acc;
    K::begin(acc);
#pragma unroll 1
    for (u32 k = 0; k < (u32)p.operands; k++) {
        K::fold(acc, load<Bits>(p.from[k] + at_byte), typename K::Factor(p, k));
    }
    store(p.to + at_byte, K::finish(acc, (u32)p.ranks));
}

// 16 bytes of each operand, at once.
template <class K> __device__ inline void several(const Parameters &p, u64 at_byte) {
    typedef typename K::Bits Bits;
    const int LANES = 16 / sizeof(Bits);
    typename K::Acc accs[LANES];
#pragma unroll
    for (int lane = 0; lane < LANES; lane++) K::begin(accs[lane]);
#pragma unroll 1
    for (u32 k = 0; k < (u32)p.operands; k++) {
        Vector<Bits> next;
        next.whole = *(const uint4 *)(p.from[k] + at_byte);
        typename K::Factor factor(p, k);
#pragma unroll
        for (int lane = 0; lane < LANES; lane++) K::fold(accs[lane], next.lanes[lane], factor);
    }
    Vector<Bits> result;
#pragma unroll
    for (int lane = 0; lane < LANES; lane++) result.lanes[lane] = K::finish(accs[lane], (u32)p.ranks);
    *(uint4 *)(p.to + at_byte) = result.whole;
}

// Elements before the first one at which all addresses are aligned for vectors; all of them if there is none.
template <class Bits> __device__ inline u64 head(const Parameters &p) {
    u64 differences = 0;
#pragma unroll 1
    for (u32 k = 0; k < (u32)p.operands; k++) differences |= p.from[k] ^ p.to;
    u64 bytes = 0 - p.to & 15;
    u64 elems = bytes / sizeof(Bits);
    bool none = (differences & 15) != 0 || bytes % sizeof(Bits) != 0;
    return none || elems > p.count ? p.count : elems;
}

template <class K> __device__ inline void reduce(const Parameters &p) {
    const u64 BYTES = sizeof(typename K::Bits), LANES = 16 / BYTES;
    const u64 first = (u64)blockIdx.x * blockDim.x + threadIdx.x, step = (u64)gridDim.x * blockDim.x;
    const u64 before = head<typename K::Bits>(p), vectors = (p.count - before) / LANES;
#pragma unroll 1
    for (u64 at = first; at < vectors; at += step) several<K>(p, before * BYTES + at * 16);
    // What is before and behind the vectors.
#pragma unroll 1
    for (u64 at = first; at < p.count - vectors * LANES; at += step) {
        one<K>(p, (at < before ? at : at + vectors * LANES) * BYTES);
    }
}

#define KERNEL(type, operator, K) \
    extern "C" __global__ void __launch_bounds__(256) accl_reduce_##type##_##operator(const Parameters p) { reduce<K >(p); }

#define FLOAT(type, F)                                \
    KERNEL(type, sum, Sum<F>)                         \
    KERNEL(type, prod, Prod<F>)                       \
    KERNEL(type, max, ExtremeFloat<F COMMA true>)     \
    KERNEL(type, min, ExtremeFloat<F COMMA false>)    \
    KERNEL(type, avg, Avg<F>)                         \
    KERNEL(type, premulsum, PreMulSum<F>)

#define INTEGER(type, F)                              \
    KERNEL(type, sum, Sum<F>)                         \
    KERNEL(type, prod, Prod<F>)                       \
    KERNEL(type, max, ExtremeInteger<F COMMA true>)   \
    KERNEL(type, min, ExtremeInteger<F COMMA false>)  \
    KERNEL(type, avg, Mean<F>)                        \
    KERNEL(type, premulsum, PreMulSum<F>)

#define COMMA ,

typedef Integer<i8, u8, u32, i64> Int8;
typedef Integer<u8, u8, u32, i64> Uint8;
typedef Integer<i32, u32, u32, i64> Int32;
typedef Integer<u32, u32, u32, i64> Uint32;
typedef Integer<i64, u64, u64, Sum128> Int64;
typedef Integer<u64, u64, u64, Sum128> Uint64;

INTEGER(int8, Int8)
INTEGER(uint8, Uint8)
INTEGER(int32, Int32)
INTEGER(uint32, Uint32)
INTEGER(int64, Int64)
INTEGER(uint64, Uint64)
FLOAT(float16, Float16)
FLOAT(float32, Float32)
FLOAT(float64, Float64)
FLOAT(bfloat16, Bfloat16)
FLOAT(float8e4m3, Float8e4m3)
FLOAT(float8e5m2, Float8e5m2)
