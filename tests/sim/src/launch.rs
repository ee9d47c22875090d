//! Kernels: what they are called, what runs in their place, and launching them.

use std::collections::HashSet;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex};

use crate::attributes::{MAX_BLOCK_THREADS, SHARED_OPTIN_BYTES};
use crate::capture::NodeKind;
use crate::device::Context;
use crate::error::{Code, Outcome};
use crate::handles::{Handles, lock};
use crate::named::Named;
use crate::stream::{Stream, Work};
use crate::{abi, config, ptx, raw, time};

/// Shared memory that every kernel may ask for.
const SHARED_BYTES: u32 = 48 << 10;

/// A kernel of a module.
#[derive(Debug)]
pub(crate) struct Function {
    pub(crate) handle: u64,
    pub(crate) name: String,
    body: Body,
    /// The context that it was loaded in.
    context: u64,
    /// Dynamic shared memory that it was allowed to use.
    pub(crate) max_dynamic_bytes: AtomicU32,
}

#[derive(Debug)]
enum Body {
    Ptx(Arc<ptx::Kernel>),
    Named(Named),
    /// Machine code, which nothing here can run.
    Unknown,
}

/// How a kernel is launched.
#[derive(Clone, Debug)]
pub(crate) struct Shape {
    pub(crate) grid: [u32; 3],
    pub(crate) block: [u32; 3],
    pub(crate) shared_bytes: u32,
    /// Must all blocks be able to wait for each other?
    pub(crate) is_cooperative: bool,
}

/// Where a launch finds its arguments.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Arguments {
    /// An array of pointers.
    Pointers(u64),
    /// One packed buffer.
    Buffer(u64, u64),
}

/// Is a launch with these attributes (72 bytes each: a number, and its value from the eighth byte on) a cooperative one? Clusters of
/// more than one block are not supported; other attributes change no result.
pub(crate) fn is_cooperative(attributes: u64, count: u32) -> Outcome<bool> {
    const COOPERATIVE: u32 = 2;
    const CLUSTER: u32 = 4;
    let word = |at: u64| u32::from_ne_bytes(raw::bytes(at, 4).try_into().unwrap_or_default());
    let mut found = false;
    for index in 0..u64::from(count) {
        let at = attributes + index * 72;
        match word(at) {
            COOPERATIVE => found = word(at + 8) != 0,
            CLUSTER if (0..3).any(|axis| word(at + 8 + axis * 4) > 1) => return Err(Code::NOT_SUPPORTED),
            _ => {}
        }
    }
    Ok(found)
}

static FUNCTIONS: Handles<Function> = Handles::new();

pub(crate) fn find(handle: u64) -> Outcome<Arc<Function>> {
    FUNCTIONS.get(handle)
}

pub(crate) fn remove(handle: u64) {
    let _ = FUNCTIONS.remove(handle);
}

/// A function: PTX if there is any, else what its name tells.
pub(crate) fn create(name: &str, kernel: Option<Arc<ptx::Kernel>>, context: u64) -> Arc<Function> {
    let body = match kernel {
        Some(kernel) => Body::Ptx(kernel),
        None => Named::new(name).map_or(Body::Unknown, Body::Named),
    };
    let name = name.to_owned();
    FUNCTIONS.add(|handle| Function {
        handle,
        name,
        body,
        context,
        max_dynamic_bytes: AtomicU32::new(SHARED_BYTES),
    })
}

impl Function {
    /// Sizes of static shared memory, constants and local memory, and the most threads of a block.
    pub(crate) fn sizes(&self) -> (u32, u32, u32, u32) {
        match &self.body {
            Body::Ptx(kernel) => (kernel.shared_bytes, 0, kernel.local_bytes, kernel.max_threads),
            _ => (0, 0, 0, MAX_BLOCK_THREADS),
        }
    }

    pub(crate) fn allow_dynamic(&self, bytes: i32) -> Outcome {
        let bytes = u32::try_from(bytes).map_err(|_| Code::INVALID_VALUE)?;
        if bytes + self.sizes().0 > SHARED_OPTIN_BYTES {
            return Err(Code::INVALID_VALUE);
        }
        self.max_dynamic_bytes.store(bytes, Ordering::Relaxed);
        Ok(())
    }

    fn check(&self, shape: &Shape) -> Outcome {
        let threads: u64 = shape.block.iter().map(|&n| u64::from(n)).product();
        let has_zero = shape.grid.iter().chain(&shape.block).any(|&n| n == 0);
        let is_wide = shape.grid[0] > i32::MAX as u32 || shape.grid[1..].iter().any(|&n| n > 65535);
        if has_zero || is_wide || threads > u64::from(MAX_BLOCK_THREADS) || shape.block[2] > 64 {
            return Err(Code::INVALID_CONFIGURATION);
        }
        if threads > u64::from(self.sizes().3) {
            return Err(Code::OUT_OF_RESOURCES);
        }
        if shape.shared_bytes > self.max_dynamic_bytes.load(Ordering::Relaxed) {
            return Err(Code::INVALID_VALUE);
        }
        Ok(())
    }

    /// The arguments as the bytes of the parameter space; they are read during the call.
    fn pack(&self, arguments: Arguments) -> Outcome<Vec<u8>> {
        let layout: &[(u32, u32)] = match &self.body {
            Body::Ptx(kernel) => &kernel.parameters,
            Body::Named(named) => named.parameters(),
            Body::Unknown => return Err(Code::NOT_SUPPORTED),
        };
        let total = layout.last().map_or(0, |&(offset, bytes)| offset + bytes) as usize;
        match arguments {
            Arguments::Buffer(address, bytes) => {
                if (bytes as usize) < total {
                    return Err(Code::INVALID_VALUE);
                }
                Ok(raw::bytes(address, total))
            }
            Arguments::Pointers(0) if total > 0 => Err(Code::INVALID_VALUE),
            Arguments::Pointers(array) => {
                let mut packed = vec![0; total];
                for (index, &(offset, bytes)) in layout.iter().enumerate() {
                    let pointer = u64::from_ne_bytes(
                        <[u8; 8]>::try_from(raw::bytes(array + index as u64 * 8, 8)).unwrap_or_default(),
                    );
                    if pointer == 0 {
                        return Err(Code::INVALID_VALUE);
                    }
                    packed[offset as usize..(offset + bytes) as usize]
                        .copy_from_slice(&raw::bytes(pointer, bytes as usize));
                }
                Ok(packed)
            }
        }
    }
}

/// Launches in a stream of the current context.
pub(crate) fn launch(
    function: &Arc<Function>,
    shape: Shape,
    arguments: Arguments,
    stream: &Arc<Stream>,
) -> Outcome {
    stream.context.check()?;
    let work = prepare(function, shape, arguments, &stream.context)?;
    stream.submit(NodeKind::Kernel, work).map(drop)
}

/// Checks a launch, reads its arguments, and makes of it what a stream or a graph does.
pub(crate) fn prepare(
    function: &Arc<Function>,
    shape: Shape,
    arguments: Arguments,
    context: &Arc<Context>,
) -> Outcome<Work> {
    if function.context != context.handle {
        return Err(Code::INVALID_HANDLE);
    }
    function.check(&shape)?;
    if matches!(function.body, Body::Unknown) {
        say_unknown(&function.name);
        return Err(Code::NOT_SUPPORTED);
    }
    if let Body::Ptx(kernel) = &function.body
        && shape.is_cooperative
        && shape.grid.iter().map(|&n| n as usize).product::<usize>() > kernel.resident_blocks(&shape)
    {
        return Err(Code::COOPERATIVE_TOO_LARGE);
    }
    let packed = function.pack(arguments)?;
    let (function, context) = (Arc::clone(function), Arc::clone(context));
    Ok(Arc::new(move || {
        abi::injected("kernel")?;
        time::pause_us(config::get().delay_us);
        match &function.body {
            Body::Ptx(kernel) => ptx::run(kernel, &shape, &packed, &context),
            Body::Named(named) => named.run(&packed),
            Body::Unknown => Err(Code::NOT_SUPPORTED),
        }
    }))
}

/// Says once which kernel can not be run.
fn say_unknown(name: &str) {
    static SAID: Mutex<Option<HashSet<String>>> = Mutex::new(None);
    if lock(&SAID).get_or_insert_default().insert(name.to_owned()) {
        eprintln!("accl-sim: kernel {name} is machine code, which the simulated device can not run");
    }
}
