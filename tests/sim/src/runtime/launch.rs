//! Registration by the compiler's start-up code, and launches.
#![allow(non_snake_case, reason = "the names are CUDA's")]

use std::sync::Arc;
use std::sync::atomic::Ordering;

use crate::abi::{In, Out, Text, runtime};
use crate::device;
use crate::error::{Code, Outcome};
use crate::handles::Own;
use crate::launch::{self, Arguments, Function, Shape};
use crate::registered;
use crate::stream;

/// `dim3`.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
struct Dim3 {
    x: u32,
    y: u32,
    z: u32,
}

impl From<Dim3> for [u32; 3] {
    fn from(dim: Dim3) -> Self {
        [dim.x, dim.y, dim.z]
    }
}

/// `cudaLaunchConfig_t`.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
struct Configuration {
    grid: Dim3,
    block: Dim3,
    shared_bytes: usize,
    stream: u64,
    attributes: u64,
    attribute_count: u32,
}

thread_local! {
    static CONFIGURATIONS: Own<(Dim3, Dim3, usize, u64)> = const { Own::new() };
}

#[unsafe(no_mangle)]
extern "C" fn __cudaRegisterFatBinary(wrapper: u64) -> u64 {
    registered::add_binary(wrapper)
}

#[unsafe(no_mangle)]
extern "C" fn __cudaRegisterFatBinaryEnd(_handle: u64) {}

#[unsafe(no_mangle)]
extern "C" fn __cudaUnregisterFatBinary(handle: u64) {
    registered::remove_binary(handle);
}

#[unsafe(no_mangle)]
extern "C" fn __cudaInitModule(_handle: u64) -> i8 {
    1
}

#[unsafe(no_mangle)]
extern "C" fn __cudaRegisterFunction(
    binary: u64,
    host: u64,
    _device: u64,
    name: Text,
    _thread_limit: i32,
    _tid: u64,
    _bid: u64,
    _block: u64,
    _grid: u64,
    _warp: u64,
) {
    registered::add_function(binary, host, name.get().unwrap_or_default());
}

#[unsafe(no_mangle)]
extern "C" fn __cudaRegisterVar(
    binary: u64,
    host: u64,
    _device: u64,
    name: Text,
    _external: i32,
    _bytes: usize,
    _is_constant: i32,
    _is_global: i32,
) {
    registered::add_variable(binary, host, name.get().unwrap_or_default());
}

#[unsafe(no_mangle)]
extern "C" fn __cudaPushCallConfiguration(grid: Dim3, block: Dim3, shared_bytes: usize, stream: u64) -> u32 {
    CONFIGURATIONS.with(|stack| stack.change(|stack| stack.push((grid, block, shared_bytes, stream))));
    0
}

fn find(host: u64) -> Outcome<Arc<Function>> {
    registered::function(host, &device::runtime_context()?)
}

/// Launches. A stream of another device is an invalid handle.
fn start(host: u64, shape: Shape, arguments: u64, handle: u64) -> Outcome {
    let context = device::runtime_context()?;
    let stream = stream::find(handle, &context)?;
    if stream.context.device != context.device {
        return Err(Code::INVALID_HANDLE);
    }
    launch::launch(&registered::function(host, &context)?, shape, Arguments::Pointers(arguments), &stream)
}

fn shape(grid: Dim3, block: Dim3, shared_bytes: usize, is_cooperative: bool) -> Outcome<Shape> {
    let shared_bytes = u32::try_from(shared_bytes).map_err(|_| Code::INVALID_VALUE)?;
    Ok(Shape { grid: grid.into(), block: block.into(), shared_bytes, is_cooperative })
}

fn put_attributes(out: Out<u64>, function: &Function) -> Outcome {
    let (shared, constant, local, threads) = function.sizes();
    out.set(shared.into())?;
    out.set_at(1, constant.into())?;
    out.set_at(2, local.into())?;
    (3..18).try_for_each(|word| out.set_at(word, 0))?;
    let ints = out.cast::<u32>();
    ints.set_at(6, threads)?;
    ints.set_at(7, 32)?;
    ints.set_at(8, 90)?;
    ints.set_at(9, 90)?;
    ints.set_at(11, function.max_dynamic_bytes.load(Ordering::Relaxed))
}

/// Blocks of a multiprocessor: as many as its threads and its shared memory allow.
pub(crate) fn occupancy(block_threads: i32, dynamic_bytes: usize, static_bytes: u32) -> Outcome<i32> {
    if block_threads <= 0 {
        return Err(Code::INVALID_VALUE);
    }
    let by_threads = 2048 / (block_threads as u32).next_multiple_of(32) as i32;
    let shared = dynamic_bytes + static_bytes as usize;
    let by_shared = if shared == 0 { 32 } else { ((228 << 10) / (shared + 1024)) as i32 };
    Ok(by_threads.min(by_shared).clamp(0, 32))
}

runtime! {
    fn __cudaPopCallConfiguration(grid: Out<Dim3>, block: Out<Dim3>, shared_bytes: Out<usize>, stream: Out<u64>) {
        let top = CONFIGURATIONS.with(|stack| stack.change(Vec::pop)).ok_or(Code::INVALID_CONFIGURATION)?;
        grid.set(top.0)?;
        block.set(top.1)?;
        shared_bytes.set(top.2)?;
        stream.set(top.3)
    }

    fn __cudaGetKernel(out: Out<u64>, host: u64) {
        if !registered::has(host) {
            return Err(Code::INVALID_DEVICE_FUNCTION);
        }
        out.set(host)
    }

    fn __cudaLaunchKernel(kernel: u64, grid: Dim3, block: Dim3, arguments: u64, shared_bytes: usize, stream: u64) {
        start(kernel, shape(grid, block, shared_bytes, false)?, arguments, stream)
    }

    fn cudaLaunchKernel(host: u64, grid: Dim3, block: Dim3, arguments: u64, shared_bytes: usize, stream: u64) {
        start(host, shape(grid, block, shared_bytes, false)?, arguments, stream)
    }

    fn cudaLaunchCooperativeKernel(
        host: u64,
        grid: Dim3,
        block: Dim3,
        arguments: u64,
        shared_bytes: usize,
        stream: u64,
    ) {
        start(host, shape(grid, block, shared_bytes, true)?, arguments, stream)
    }

    fn cudaLaunchKernelExC(configuration: In<Configuration>, host: u64, arguments: u64) {
        let configuration = configuration.get()?;
        let Configuration { grid, block, shared_bytes, stream, attributes, attribute_count } = configuration;
        let is_cooperative = launch::is_cooperative(attributes, attribute_count)?;
        start(host, shape(grid, block, shared_bytes, is_cooperative)?, arguments, stream)
    }

    fn cudaFuncGetAttributes(out: Out<u64>, host: u64) {
        put_attributes(out, &*find(host)?)
    }

    fn cudaFuncSetAttribute(host: u64, attribute: i32, value: i32) {
        let function = find(host)?;
        match attribute {
            8 => function.allow_dynamic(value),
            9..=15 => Ok(()),
            _ => Err(Code::INVALID_VALUE),
        }
    }

    fn cudaFuncSetCacheConfig(host: u64, _config: i32) {
        find(host).map(drop)
    }

    fn cudaOccupancyMaxActiveBlocksPerMultiprocessor(out: Out<i32>, host: u64, threads: i32, dynamic_bytes: usize) {
        out.set(occupancy(threads, dynamic_bytes, find(host)?.sizes().0)?)
    }

    fn cudaOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(
        out: Out<i32>,
        host: u64,
        threads: i32,
        dynamic_bytes: usize,
        _flags: u32,
    ) {
        out.set(occupancy(threads, dynamic_bytes, find(host)?.sizes().0)?)
    }
}
