//! Modules, functions and launches.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use crate::abi::{In, Out, Text, driver};
use crate::device;
use crate::error::{Code, Outcome};
use crate::launch::{self, Arguments, Shape};
use crate::module;
use crate::runtime::occupancy;

use super::memory::stream_of;

fn load(out: Out<u64>, image: u64) -> Outcome {
    let context = device::current()?;
    if out.is_null() {
        return Err(Code::INVALID_VALUE);
    }
    out.set(module::load(image, &context)?.handle)
}

/// Arguments by pointers, or by the list that ends with 0: 1, buffer, 2, address of its size.
pub(super) fn arguments(pointers: u64, extra: In<u64>) -> Outcome<Arguments> {
    if extra.address() == 0 {
        return Ok(Arguments::Pointers(pointers));
    }
    if pointers != 0 {
        return Err(Code::INVALID_VALUE);
    }
    let (mut buffer, mut bytes, mut index) = (0, 0, 0);
    loop {
        let value = extra.at(index + 1);
        match extra.at(index)? {
            0 => return Ok(Arguments::Buffer(buffer, bytes)),
            1 => buffer = value?,
            2 => bytes = u64::from_ne_bytes(crate::raw::bytes(value?, 8).try_into().unwrap_or_default()),
            _ => return Err(Code::INVALID_VALUE),
        }
        index += 2;
    }
}

fn start(function: u64, shape: Shape, handle: u64, arguments: Arguments) -> Outcome {
    let context = device::current()?;
    let function = launch::find(function)?;
    let stream = stream_of(handle)?;
    if !Arc::ptr_eq(&stream.context, &context) {
        return Err(Code::INVALID_HANDLE);
    }
    // The driver has no code of its own for a shape that can not be.
    launch::launch(&function, shape, arguments, &stream)
        .map_err(|code| if code == Code::INVALID_CONFIGURATION { Code::INVALID_VALUE } else { code })
}

/// `CUlaunchConfig`.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
struct Configuration {
    grid: [u32; 3],
    block: [u32; 3],
    shared_bytes: u32,
    stream: u64,
    attributes: u64,
    attribute_count: u32,
}

driver! {
    fn ModuleLoadData(out: Out<u64>, image: u64) {
        load(out, image)
    }

    fn ModuleLoadDataEx(out: Out<u64>, image: u64, _count: u32, _options: u64, _values: u64) {
        load(out, image)
    }

    fn ModuleLoadFatBinary(out: Out<u64>, image: u64) {
        load(out, image)
    }

    fn ModuleLoad(out: Out<u64>, path: Text) {
        let mut image = std::fs::read(path.get()?).map_err(|_| Code::FILE_NOT_FOUND)?;
        image.push(0);
        load(out, image.as_ptr() as u64)
    }

    fn ModuleUnload(module: u64) {
        device::current()?;
        module::unload(module)
    }

    fn ModuleGetFunction(out: Out<u64>, module: u64, name: Text) {
        device::current()?;
        out.set(module::find(module)?.function(&name.get()?)?.handle)
    }

    fn ModuleGetGlobal_v2(address: Out<u64>, bytes: Out<usize>, module: u64, name: Text) {
        let (at, size) = module::find(module)?.global(&name.get()?)?;
        address.set_if(at);
        bytes.set_if(size as usize);
        Ok(())
    }

    /// Nothing is loaded lazily.
    fn ModuleGetLoadingMode(mode: Out<i32>) {
        mode.set(1)
    }

    fn FuncGetAttribute(out: Out<i32>, attribute: i32, function: u64) {
        let function = launch::find(function)?;
        let (shared, constant, local, threads) = function.sizes();
        let value = match attribute {
            0 => threads,
            1 => shared,
            2 => constant,
            3 => local,
            4 => 32,
            5 | 6 => 90,
            8 => function.max_dynamic_bytes.load(Ordering::Relaxed),
            7..18 => 0,
            _ => return Err(Code::INVALID_VALUE),
        };
        out.set(value as i32)
    }

    fn FuncSetAttribute(function: u64, attribute: i32, value: i32) {
        let function = launch::find(function)?;
        match attribute {
            8 => function.allow_dynamic(value),
            9..18 => Ok(()),
            _ => Err(Code::INVALID_VALUE),
        }
    }

    fn FuncSetCacheConfig(function: u64, _config: i32) {
        launch::find(function).map(drop)
    }

    fn LaunchKernel(
        function: u64,
        grid_x: u32,
        grid_y: u32,
        grid_z: u32,
        block_x: u32,
        block_y: u32,
        block_z: u32,
        shared_bytes: u32,
        handle: u64,
        pointers: u64,
        extra: In<u64>,
    ) {
        let (grid, block) = ([grid_x, grid_y, grid_z], [block_x, block_y, block_z]);
        let shape = Shape { grid, block, shared_bytes, is_cooperative: false };
        start(function, shape, handle, arguments(pointers, extra)?)
    }

    fn LaunchCooperativeKernel(
        function: u64,
        grid_x: u32,
        grid_y: u32,
        grid_z: u32,
        block_x: u32,
        block_y: u32,
        block_z: u32,
        shared_bytes: u32,
        handle: u64,
        pointers: u64,
    ) {
        let (grid, block) = ([grid_x, grid_y, grid_z], [block_x, block_y, block_z]);
        let shape = Shape { grid, block, shared_bytes, is_cooperative: true };
        start(function, shape, handle, Arguments::Pointers(pointers))
    }

    fn LaunchKernelEx(configuration: In<Configuration>, function: u64, pointers: u64, extra: In<u64>) {
        let Configuration { grid, block, shared_bytes, stream, attributes, attribute_count } = configuration.get()?;
        let is_cooperative = launch::is_cooperative(attributes, attribute_count)?;
        let shape = Shape { grid, block, shared_bytes, is_cooperative };
        start(function, shape, stream, arguments(pointers, extra)?)
    }

    fn OccupancyMaxActiveBlocksPerMultiprocessor(out: Out<i32>, function: u64, threads: i32, dynamic_bytes: usize) {
        out.set(occupancy(threads, dynamic_bytes, launch::find(function)?.sizes().0)?)
    }

    fn OccupancyMaxActiveBlocksPerMultiprocessorWithFlags(
        out: Out<i32>,
        function: u64,
        threads: i32,
        dynamic_bytes: usize,
        _flags: u32,
    ) {
        out.set(occupancy(threads, dynamic_bytes, launch::find(function)?.sizes().0)?)
    }

    fn OccupancyMaxPotentialBlockSize(
        grid: Out<i32>,
        block: Out<i32>,
        function: u64,
        _dynamic_of_block: u64,
        dynamic_bytes: usize,
        limit: i32,
    ) {
        let (shared, _, _, most) = launch::find(function)?.sizes();
        let threads = if limit > 0 { limit.min(most as i32) } else { most as i32 };
        block.set(threads)?;
        grid.set(occupancy(threads, dynamic_bytes, shared)? * 8)
    }
}
