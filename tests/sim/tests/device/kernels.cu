// Device code for the simulator's tests. `make-ptx` turns it into kernels.ptx.

#define KERNEL extern "C" __global__ void
#define INDEX (blockIdx.x * blockDim.x + threadIdx.x)

typedef unsigned short u16;
typedef unsigned int u32;
typedef unsigned long long u64;

KERNEL add_f32(const float *a, const float *b, float *c, u32 count) {
    for (u32 i = INDEX; i < count; i += gridDim.x * blockDim.x) c[i] = a[i] + b[i];
}

KERNEL add_f32_vector(const float4 *a, const float4 *b, float4 *c, u32 count) {
    u32 i = INDEX;
    if (i >= count) return;
    float4 x = a[i], y = b[i];
    c[i] = make_float4(x.x + y.x, x.y + y.y, x.z + y.z, x.w + y.w);
}

KERNEL fma_f32(const float *a, const float *b, const float *c, float *d, u32 count) {
    u32 i = INDEX;
    if (i < count) d[i] = __fmaf_rn(a[i], b[i], c[i]);
}

// Sums in f32, rounded once to bf16.
KERNEL add_bf16(const u16 *a, const u16 *b, u16 *c, u32 count) {
    u32 i = INDEX;
    if (i >= count) return;
    float sum = __int_as_float(a[i] << 16) + __int_as_float(b[i] << 16);
    asm("cvt.rn.bf16.f32 %0, %1;" : "=h"(c[i]) : "f"(sum));
}

KERNEL add_f16(const u16 *a, const u16 *b, u16 *c, u32 count) {
    u32 i = INDEX;
    if (i < count) asm("add.f16 %0, %1, %2;" : "=h"(c[i]) : "h"(a[i]), "h"(b[i]));
}

KERNEL fma_f16x2(const u32 *a, const u32 *b, const u32 *c, u32 *d, u32 count) {
    u32 i = INDEX;
    if (i < count) asm("fma.rn.f16x2 %0, %1, %2, %3;" : "=r"(d[i]) : "r"(a[i]), "r"(b[i]), "r"(c[i]));
}

KERNEL max_bf16x2(const u32 *a, const u32 *b, u32 *c, u32 count) {
    u32 i = INDEX;
    if (i < count) asm("max.NaN.bf16x2 %0, %1, %2;" : "=r"(c[i]) : "r"(a[i]), "r"(b[i]));
}

KERNEL f32_to_e4m3(const float *a, u16 *b, u32 pairs) {
    u32 i = INDEX;
    if (i < pairs) asm("cvt.rn.satfinite.e4m3x2.f32 %0, %1, %2;" : "=h"(b[i]) : "f"(a[2 * i + 1]), "f"(a[2 * i]));
}

KERNEL e5m2_to_f16(const u16 *a, u32 *b, u32 pairs) {
    u32 i = INDEX;
    if (i < pairs) asm("cvt.rn.f16x2.e5m2x2 %0, %1;" : "=r"(b[i]) : "h"(a[i]));
}

KERNEL round_ways(const float *a, float *b, int *c, u16 *d, u32 count) {
    u32 i = INDEX;
    if (i >= count) return;
    b[4 * i] = __fadd_rz(a[i], 1.0f);
    b[4 * i + 1] = __fadd_ru(a[i], 1.0f);
    b[4 * i + 2] = __fmul_rd(a[i], a[i]);
    b[4 * i + 3] = __fdiv_rn(a[i], 3.0f);
    c[3 * i] = __float2int_rn(a[i]);
    c[3 * i + 1] = __float2int_rz(a[i]);
    c[3 * i + 2] = (int)__float2uint_ru(a[i]);
    asm("cvt.rz.f16.f32 %0, %1;" : "=h"(d[i]) : "f"(a[i]));
}

KERNEL integers(const int *a, const int *b, long long *c, u32 count) {
    u32 i = INDEX;
    if (i >= count) return;
    long long *out = c + 12 * i;
    out[0] = (long long)a[i] * b[i];
    out[1] = __mulhi(a[i], b[i]);
    out[2] = b[i] ? a[i] / b[i] : 0;
    out[3] = b[i] ? a[i] % b[i] : 0;
    out[4] = (u32)a[i] / ((u32)b[i] | 1);
    out[5] = __popc(a[i]) + 100 * __clz(a[i]) + 10000 * __ffs(b[i]);
    out[6] = __byte_perm(a[i], b[i], 0x7531);
    out[7] = __funnelshift_r(a[i], b[i], 5);
    out[8] = min(a[i], b[i]) ^ max((u32)a[i], (u32)b[i]);
    out[9] = (signed char)a[i] + (short)b[i];
    out[10] = __umul64hi((u64)a[i] << 32, (u64)b[i] << 20);
    out[11] = (a[i] >> 3) - ((u32)b[i] >> 7);
}

// One sum for each block: shared memory, barriers, shuffles.
KERNEL block_sum(const int *a, int *sums, u32 count) {
    __shared__ int parts[32];
    u32 i = INDEX;
    int sum = i < count ? a[i] : 0;
    for (int step = 16; step > 0; step /= 2) sum += __shfl_xor_sync(0xffffffff, sum, step);
    if (threadIdx.x % 32 == 0) parts[threadIdx.x / 32] = sum;
    __syncthreads();
    if (threadIdx.x < 32) {
        sum = threadIdx.x < blockDim.x / 32 ? parts[threadIdx.x] : 0;
        for (int step = 16; step > 0; step /= 2) sum += __shfl_down_sync(0xffffffff, sum, step);
        if (threadIdx.x == 0) sums[blockIdx.x] = sum;
    }
}

KERNEL reverse_in_dynamic(int *a) {
    extern __shared__ int room[];
    room[threadIdx.x] = a[threadIdx.x];
    __syncthreads();
    a[threadIdx.x] = room[blockDim.x - 1 - threadIdx.x];
}

KERNEL count_all(u32 *counter, u64 *big, float *sum) {
    atomicAdd(counter, 1);
    atomicMax(big, (u64)INDEX << 33);
    atomicAdd(sum, 0.5f);
}

// All blocks meet: each must be able to wait for the others.
KERNEL blocks_meet(volatile u32 *arrived, u32 *seen) {
    if (threadIdx.x == 0) {
        __threadfence();
        atomicAdd((u32 *)arrived, 1);
        while (*arrived < gridDim.x) {}
        seen[blockIdx.x] = *arrived;
    }
    __syncthreads();
}

// Two launches meet, each of which says that it is there and waits for the other.
KERNEL launches_meet(u32 *mine, volatile u32 *theirs) {
    atomicExch_system(mine, 1);
    __threadfence_system();
    while (*theirs == 0) {}
}

__device__ __noinline__ int collatz(int n) {
    int steps = 0;
    while (n != 1) {
        n = n % 2 ? 3 * n + 1 : n / 2;
        steps++;
    }
    return steps;
}

KERNEL call_function(int *a, u32 count) {
    u32 i = INDEX;
    if (i < count) a[i] = collatz(a[i]);
}

__constant__ int table[4] = {10, 20, 30, 40};
__device__ int variable = 7;

KERNEL use_variables(int *a) {
    a[threadIdx.x] = table[threadIdx.x] + variable;
}

KERNEL votes(u32 *a) {
    bool odd = threadIdx.x & 1;
    a[threadIdx.x] = __ballot_sync(0xffffffff, odd);
    a[32 + threadIdx.x] = __any_sync(0xffffffff, odd) + 2 * __all_sync(0xffffffff, odd);
    a[64 + threadIdx.x] = __match_any_sync(0xffffffff, threadIdx.x / 8);
    a[96 + threadIdx.x] = __reduce_add_sync(0xffffffff, threadIdx.x);
    a[128 + threadIdx.x] = __syncthreads_count(odd);
}

KERNEL write_beyond(int *a) {
    a[16] = 1;
}

KERNEL local_array(int *a, u32 count) {
    int room[16];
    for (int i = 0; i < 16; i++) room[i] = a[i] * 3;
    int sum = 0;
    for (u32 i = 0; i < count; i++) sum += room[a[i] & 15];
    a[0] = sum;
}

KERNEL switch_ways(int *a) {
    switch (a[threadIdx.x]) {
    case 0: a[threadIdx.x] = 5; break;
    case 1: a[threadIdx.x] *= 17; break;
    case 2: a[threadIdx.x] += 100; break;
    case 3: a[threadIdx.x] = -1; break;
    case 4: a[threadIdx.x] ^= 0x55; break;
    case 5: a[threadIdx.x] = threadIdx.x; break;
    case 6: a[threadIdx.x] = 66; break;
    default: a[threadIdx.x] = 0;
    }
}
