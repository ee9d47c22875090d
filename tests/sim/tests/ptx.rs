//! Device code that NVRTC wrote, run by the interpreter: the values are those of the hardware.

mod support;

use half::{bf16, f16};
use support::*;

/// A module and a launcher of its kernels.
struct Kernels {
    module: u64,
}

impl Kernels {
    fn load() -> Self {
        ok(cudaSetDevice(0));
        let text = concat!(include_str!("device/kernels.ptx"), "\0");
        let mut module = 0;
        ok(cuModuleLoadData(&mut module, text.as_ptr() as u64));
        Self { module }
    }

    fn function(&self, name: &str) -> u64 {
        let name = format!("{name}\0");
        let mut function = 0;
        ok(cuModuleGetFunction(&mut function, self.module, name.as_ptr() as u64));
        function
    }

    /// Launches with arguments of 8 bytes each (narrower ones are their first bytes).
    fn launch_in(
        &self,
        stream: u64,
        name: &str,
        grid: u32,
        block: u32,
        shared: u32,
        arguments: &[u64],
    ) -> i32 {
        let pointers: Vec<u64> =
            arguments.iter().map(|argument| std::ptr::from_ref(argument) as u64).collect();
        let function = self.function(name);
        cuLaunchKernel(function, grid, 1, 1, block, 1, 1, shared, stream, pointers.as_ptr() as u64, 0)
    }

    fn run(&self, name: &str, grid: u32, block: u32, arguments: &[u64]) {
        ok(self.launch_in(0, name, grid, block, 0, arguments));
        ok(cudaDeviceSynchronize());
    }
}

impl Drop for Kernels {
    fn drop(&mut self) {
        ok(cuModuleUnload(self.module));
    }
}

/// Bit patterns that look random, among them zeros, subnormals, infinities and NaN.
fn patterns(count: usize, seed: u64) -> Vec<u32> {
    let special = [
        0,
        1 << 31,
        1,
        0x8000_0001,
        0x7F80_0000,
        0xFF80_0000,
        0x7FC0_0000,
        0x3F80_0000,
        0x0080_0000,
        0x7F7F_FFFF,
    ];
    let mut state = seed;
    let mut next = || {
        state = state.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        (state >> 32) as u32
    };
    (0..count)
        .map(|_| if next() % 4 == 0 { special[next() as usize % special.len()] } else { next() })
        .collect()
}

#[test]
fn floats_add_and_fuse_bit_by_bit() {
    let kernels = Kernels::load();
    let count = 3000usize;
    let (a, b, c) = (patterns(count, 1), patterns(count, 2), patterns(count, 3));
    let [da, db, dc] = [&a, &b, &c].map(|values| device_with(values));
    let out = device_with(&vec![0u32; count]);
    let f = f32::from_bits;
    kernels.run("add_f32", 3, 128, &[da, db, out, count as u64]);
    for (index, bits) in fetch::<u32>(out, count).into_iter().enumerate() {
        let sum = f(a[index]) + f(b[index]);
        assert_eq!(bits, if sum.is_nan() { 0x7FFF_FFFF } else { sum.to_bits() }, "{index}");
    }
    kernels.run("fma_f32", 12, 256, &[da, db, dc, out, count as u64]);
    for (index, bits) in fetch::<u32>(out, count).into_iter().enumerate() {
        let result = f(a[index]).mul_add(f(b[index]), f(c[index]));
        assert_eq!(bits, if result.is_nan() { 0x7FFF_FFFF } else { result.to_bits() }, "{index}");
    }
    kernels.run("add_f32_vector", 6, 128, &[da, db, out, count as u64 / 4]);
    let sums = fetch::<f32>(out, count);
    assert!((0..count).all(|i| sums[i] == f(a[i]) + f(b[i]) || sums[i].is_nan()));
}

#[test]
fn small_floats_round_once() {
    let kernels = Kernels::load();
    let count = 4096usize;
    let a: Vec<u16> = patterns(count, 4).into_iter().map(|bits| (bits >> 16) as u16).collect();
    let b: Vec<u16> = patterns(count, 5).into_iter().map(|bits| (bits >> 16) as u16).collect();
    let (da, db, out) = (device_with(&a), device_with(&b), device_with(&vec![0u16; count]));
    kernels.run("add_bf16", 16, 256, &[da, db, out, count as u64]);
    for (index, bits) in fetch::<u16>(out, count).into_iter().enumerate() {
        let sum = bf16::from_f32(bf16::from_bits(a[index]).to_f32() + bf16::from_bits(b[index]).to_f32());
        assert_eq!(bits, if sum.is_nan() { 0x7FFF } else { sum.to_bits() }, "{index}");
    }
    kernels.run("add_f16", 16, 256, &[da, db, out, count as u64]);
    for (index, bits) in fetch::<u16>(out, count).into_iter().enumerate() {
        let sum = f16::from_f32(f16::from_bits(a[index]).to_f32() + f16::from_bits(b[index]).to_f32());
        assert_eq!(bits, if sum.is_nan() { 0x7FFF } else { sum.to_bits() }, "{index}");
    }
    // 1 + 2^-11 is a tie, which goes to the even one: 1; 1 + 3 * 2^-11 goes up.
    let (one, tie) = (f16::from_f32(1.0).to_bits(), f16::from_f32(4.8828125e-4).to_bits());
    let (da, db) = (device_with(&[one, one + 1]), device_with(&[tie, tie]));
    kernels.run("add_f16", 1, 32, &[da, db, out, 2]);
    assert_eq!(fetch::<u16>(out, 2), [one, one + 2]);
}

#[test]
fn pairs_of_small_floats() {
    let kernels = Kernels::load();
    let f =
        |x: f32, y: f32| u32::from(f16::from_f32(x).to_bits()) | u32::from(f16::from_f32(y).to_bits()) << 16;
    let bf = |x: f32, y: f32| {
        u32::from(bf16::from_f32(x).to_bits()) | u32::from(bf16::from_f32(y).to_bits()) << 16
    };
    let out = device_with(&[0u32; 2]);
    let [a, b, c] = [[f(1.5, -2.0)], [f(3.0, 4.0)], [f(0.25, 100.0)]].map(|values| device_with(&values));
    kernels.run("fma_f16x2", 1, 32, &[a, b, c, out, 1]);
    assert_eq!(fetch::<u32>(out, 1), [f(4.75, 92.0)]);
    let [a, b] = [[bf(1.0, f32::NAN), bf(-0.0, 2.0)], [bf(-1.0, 5.0), bf(0.0, 3.0)]]
        .map(|values| device_with(&values));
    kernels.run("max_bf16x2", 1, 32, &[a, b, out, 2]);
    assert_eq!(fetch::<u32>(out, 2), [bf(1.0, 0.0) & 0xFFFF | 0x7FFF << 16, bf(0.0, 3.0)]);
}

#[test]
fn eight_bit_floats_convert() {
    let kernels = Kernels::load();
    let input = device_with(&[1.0f32, -448.0, 1000.0, 0.0625, 17.0, f32::NAN, 0.001, -1e9]);
    let out = device_with(&[0u32; 4]);
    kernels.run("f32_to_e4m3", 1, 32, &[input, out, 4]);
    assert_eq!(fetch::<u16>(out, 4), [0xFE38, 0x187E, 0x7F58, 0xFE01]);
    let input = device_with(&[0x3C40u16, 0xFB01]);
    kernels.run("e5m2_to_f16", 1, 32, &[input, out, 2]);
    assert_eq!(fetch::<u32>(out, 2), [0x3C00_4000, 0xFB00_0100]);
}

#[test]
fn floats_round_in_every_direction() {
    let kernels = Kernels::load();
    let inputs = [1.0e-10f32, -2.5, 3.5, 1e20, -1e20, f32::NAN, 2049.0, 0.5];
    let count = inputs.len();
    let (b, c, d) = (device_with(&[0f32; 32]), device_with(&[0i32; 24]), device_with(&[0u16; 8]));
    kernels.run("round_ways", 1, 32, &[device_with(&inputs), b, c, d, count as u64]);
    let (b, c, d) = (fetch::<f32>(b, 32), fetch::<i32>(c, 24), fetch::<u16>(d, 8));
    assert_eq!((b[0], b[1]), (1.0, 1.0000001));
    assert_eq!((b[4], b[5], b[6]), (-1.5, -1.5, 6.25));
    assert_eq!(b[3], 1.0e-10 / 3.0);
    let product = f64::from(1.0e-10f32) * f64::from(1.0e-10f32);
    assert!(f64::from(b[2]) <= product && f64::from(b[2].next_up()) > product);
    assert_eq!(c[3..6], [-2, -2, 0]);
    assert_eq!(c[6..9], [4, 3, 4]);
    assert_eq!(c[9..15], [i32::MAX, i32::MAX, -1, i32::MIN, i32::MIN, 0]);
    assert_eq!(c[15..18], [0, 0, 0]);
    assert_eq!(d[6], f16::from_f32(2048.0).to_bits());
    assert_eq!(d[3], 0x7BFF);
}

#[test]
fn integers_are_as_in_c() {
    let kernels = Kernels::load();
    let count = 500usize;
    let [a, b] =
        [7, 8].map(|seed| patterns(count, seed).into_iter().map(|bits| bits as i32).collect::<Vec<_>>());
    let out = device_with(&vec![0i64; 12 * count]);
    kernels.run("integers", 4, 128, &[device_with(&a), device_with(&b), out, count as u64]);
    let out = fetch::<i64>(out, 12 * count);
    for index in 0..count {
        let (x, y) = (a[index], b[index]);
        let (ux, uy) = (x as u32, y as u32);
        let bytes = (u64::from(uy) << 32 | u64::from(ux)).to_le_bytes();
        let odd = u32::from_le_bytes([bytes[1], bytes[3], bytes[5], bytes[7]]);
        let ffs = if y == 0 { 0 } else { y.trailing_zeros() + 1 };
        let expected = [
            i64::from(x) * i64::from(y),
            (i64::from(x) * i64::from(y)) >> 32,
            i64::from(if y == 0 { 0 } else { x.wrapping_div(y) }),
            i64::from(if y == 0 { 0 } else { x.wrapping_rem(y) }),
            i64::from(ux / (uy | 1)),
            i64::from(ux.count_ones() + 100 * ux.leading_zeros() + 10000 * ffs),
            i64::from(odd),
            i64::from(((u64::from(uy) << 32 | u64::from(ux)) >> 5) as u32),
            i64::from(x.min(y) as u32 ^ ux.max(uy)),
            i64::from(x as i8) + i64::from(y as i16),
            ((u128::from((i64::from(x) as u64) << 32) * u128::from((i64::from(y) as u64) << 20)) >> 64)
                as i64,
            i64::from(((x >> 3) as u32).wrapping_sub(uy >> 7)),
        ];
        assert_eq!(out[12 * index..12 * index + 12], expected, "{x} {y}");
    }
}

#[test]
fn blocks_sum_by_shuffles_and_barriers() {
    let kernels = Kernels::load();
    let values: Vec<i32> = (0..1000).map(|i| i * i - 300).collect();
    let sums = device_with(&[0i32; 4]);
    kernels.run("block_sum", 4, 256, &[device_with(&values), sums, 1000]);
    let expected: Vec<i32> = values.chunks(256).map(|chunk| chunk.iter().sum()).collect();
    assert_eq!(fetch::<i32>(sums, 4), expected);
    let room = device_with(&[1, 2, 3, 4, 5]);
    ok(kernels.launch_in(0, "reverse_in_dynamic", 1, 5, 20, &[room]));
    assert_eq!(fetch::<i32>(room, 5), [5, 4, 3, 2, 1]);
}

#[test]
fn threads_vote() {
    let kernels = Kernels::load();
    let out = device_with(&[0u32; 160]);
    kernels.run("votes", 1, 32, &[out]);
    let out = fetch::<u32>(out, 160);
    assert!(out[..32].iter().all(|&ballot| ballot == 0xAAAA_AAAA));
    assert!(out[32..64].iter().all(|&bits| bits == 1));
    assert_eq!((out[64], out[73], out[95]), (0xFF, 0xFF00, 0xFF00_0000));
    assert!(out[96..128].iter().all(|&sum| sum == 496));
    assert!(out[128..].iter().all(|&odd| odd == 16));
}

#[test]
fn atomics_count_all() {
    let kernels = Kernels::load();
    let (counter, big, sum) = (device_with(&[0u32]), device_with(&[0u64]), device_with(&[0f32]));
    kernels.run("count_all", 5, 96, &[counter, big, sum]);
    assert_eq!(fetch::<u32>(counter, 1), [480]);
    assert_eq!(fetch::<u64>(big, 1), [479 << 33]);
    assert_eq!(fetch::<f32>(sum, 1), [240.0]);
}

#[test]
fn blocks_and_launches_can_wait_for_each_other() {
    let kernels = Kernels::load();
    let (arrived, seen) = (device_with(&[0u32]), device_with(&[0u32; 8]));
    kernels.run("blocks_meet", 8, 64, &[arrived, seen]);
    assert_eq!(fetch::<u32>(seen, 8), [8; 8]);
    let (first, second) = (device_with(&[0u32]), device_with(&[0u32]));
    let (mut here, mut there) = (0, 0);
    ok(cudaStreamCreateWithFlags(&mut here, 1));
    ok(cudaStreamCreateWithFlags(&mut there, 1));
    ok(kernels.launch_in(here, "launches_meet", 1, 1, 0, &[first, second]));
    assert_eq!(cudaStreamQuery(here), 600);
    ok(kernels.launch_in(there, "launches_meet", 1, 1, 0, &[second, first]));
    ok(cudaStreamSynchronize(here));
    ok(cudaStreamSynchronize(there));
}

#[test]
fn functions_variables_tables_and_local_arrays() {
    let kernels = Kernels::load();
    let numbers = device_with(&[1, 7, 27, 97]);
    kernels.run("call_function", 1, 32, &[numbers, 4]);
    assert_eq!(fetch::<i32>(numbers, 4), [0, 16, 111, 118]);
    kernels.run("use_variables", 1, 4, &[numbers]);
    assert_eq!(fetch::<i32>(numbers, 4), [17, 27, 37, 47]);
    let values: Vec<i32> = (0..16).collect();
    let room = device_with(&values);
    kernels.run("local_array", 1, 1, &[room, 16]);
    assert_eq!(fetch::<i32>(room, 2), [360, 1]);
    let ways = device_with(&[0, 1, 2, 3, 4, 5, 6, 7]);
    kernels.run("switch_ways", 1, 8, &[ways]);
    assert_eq!(fetch::<i32>(ways, 8), [5, 17, 102, -1, 4 ^ 0x55, 5, 66, 0]);
}

#[test]
fn wrong_launches_are_refused() {
    let kernels = Kernels::load();
    let out = device_with(&[0u32; 32]);
    assert_eq!(kernels.launch_in(0, "use_variables", 0, 32, 0, &[out]), 1);
    assert_eq!(kernels.launch_in(0, "use_variables", 1, 2048, 0, &[out]), 1);
    assert_eq!(kernels.launch_in(0, "use_variables", 1, 32, 100 << 10, &[out]), 1);
    ok(cudaSetDevice(1));
    assert_eq!(kernels.launch_in(0, "use_variables", 1, 4, 0, &[out]), 400);
    ok(cudaSetDevice(0));
    let mut function = 0;
    assert_eq!(cuModuleGetFunction(&mut function, kernels.module, c"nobody".as_ptr() as u64), 500);
    let mut module = 0;
    let text = c".version 8.0\n.target sm_90\n.visible .entry f() {\n.reg .b32 %r<2>;\nwgmma.fence.sync.aligned;\nret;\n}\n";
    assert_eq!(cuModuleLoadData(&mut module, text.as_ptr() as u64), 218);
    assert_eq!(cuModuleLoadData(&mut module, c"hello".as_ptr() as u64), 218);
}

#[test]
fn a_write_beyond_breaks_the_context_and_only_that() {
    let kernels = Kernels::load();
    // A context of its own, since it is lost.
    let mut context = 0;
    ok(cuCtxCreate_v2(&mut context, 0, 1));
    let text = concat!(include_str!("device/kernels.ptx"), "\0");
    let mut module = 0;
    ok(cuModuleLoadData(&mut module, text.as_ptr() as u64));
    let mut room = 0;
    ok(cuMemAlloc_v2(&mut room, 64));
    let broken = Kernels { module };
    ok(broken.launch_in(0, "write_beyond", 1, 1, 0, &[room]));
    std::mem::forget(broken);
    assert_eq!(cuCtxSynchronize(), 700);
    let mut more = 0;
    assert_eq!(cuMemAlloc_v2(&mut more, 64), 700);
    ok(cuCtxDestroy_v2(context));
    ok(cudaSetDevice(0));
    let numbers = device_with(&[0; 4]);
    kernels.run("use_variables", 1, 4, &[numbers]);
    assert_eq!(fetch::<i32>(numbers, 4), [17, 27, 37, 47]);
}
