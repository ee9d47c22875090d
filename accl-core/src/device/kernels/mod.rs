//! Reductions that devices compute.
//!
//! The kernels are written in CUDA C++ (`reduce.cu`) and compiled ahead (`ci/kernels`) to PTX, which a driver translates for its device
//! when it is loaded. There is one for each type and operator, with one parameter:
//!
//! ```text
//! words of 64 bits: to | count | operands | ranks | scaled | from[64] | scale[64]
//! ```
//! Their bits are those of `reduce/`.

use super::{Operand, UserPointer};
use crate::driver::{Context, Driver, Function, Grid, Stream};
use crate::error::{Error, Result};
use crate::reduce::Reduction;
use crate::types::{DataType, ReduceOp};
use parking_lot::Mutex;
use std::ffi::{CStr, CString};
use std::sync::Arc;

/// The kernels in CUDA C++, for drivers that compile when a program runs.
pub const SOURCE: &str = include_str!("reduce.cu");

const PROGRAM: &str = concat!(include_str!("reduce.ptx"), "\0");

/// Operands that the parameter has room for.
pub const OPERANDS_MOST: usize = 64;
const HEAD_WORDS: usize = 5;

/// The kernels are compiled for blocks of at most so many threads.
const BLOCK_THREADS: usize = 256;

/// Each thread takes so many bytes of every operand at a time.
const THREAD_BYTES: usize = 16;

/// As many blocks as a large device runs at once; more would only wait for these.
const BLOCKS_MOST: usize = 1024;

/// The kernels of one context.
#[derive(Debug)]
pub(super) struct Kernels {
    /// In the order of types and, for each, of operators.
    functions: Vec<Function>,
}

/// What has been loaded. It stays as long as its context, which is the process's own.
static LOADED: Mutex<Vec<(Context, Result<Arc<Kernels>>)>> = Mutex::new(Vec::new());

/// The kernels of the current context, loaded once.
pub(super) fn of_current(driver: &dyn Driver) -> Result<Arc<Kernels>> {
    let context = driver.current()?.ok_or_else(|| Error::internal("kernels without a context"))?;
    let mut loaded = LOADED.lock();
    if let Some((_, kernels)) = loaded.iter().find(|(known, _)| *known == context) {
        return kernels.clone();
    }
    let kernels = Kernels::load(driver).map(Arc::new);
    loaded.push((context, kernels.clone()));
    kernels
}

impl Kernels {
    /// All at once, as a driver may wait for the device when it loads one.
    fn load(driver: &dyn Driver) -> Result<Self> {
        let broken = |_| Error::internal("a text with a zero inside");
        let module = driver.load_module(CStr::from_bytes_with_nul(PROGRAM.as_bytes()).map_err(broken)?)?;
        let mut functions = Vec::with_capacity(DataType::ALL.len() * ReduceOp::ALL.len());
        for dtype in DataType::ALL {
            for op in ReduceOp::ALL {
                let name = CString::new(format!("accl_reduce_{dtype}_{op}"));
                let name = name.map_err(|_| Error::internal("a name with a zero inside"))?;
                functions.push(driver.find_function(module, &name)?);
            }
        }
        Ok(Self { functions })
    }

    /// Queues the reduction of elements to elements.
    pub(super) fn reduce(
        &self,
        driver: &dyn Driver,
        stream: Stream,
        reduction: &Reduction,
        operands: &[Operand],
        destination: UserPointer,
        count_elems: usize,
    ) -> Result<()> {
        let (dtype, op) = (reduction.dtype(), reduction.op());
        let index = dtype as usize * ReduceOp::ALL.len() + op as usize;
        let Some(&function) = self.functions.get(index) else {
            return Err(Error::internal(format!("no kernel for {op} of {dtype}")));
        };
        let parameter = parameter(reduction, operands, destination, count_elems)?;
        let block_bytes = BLOCK_THREADS * THREAD_BYTES;
        let blocks = (count_elems * reduction.element_bytes()).div_ceil(block_bytes).clamp(1, BLOCKS_MOST);
        let grid = Grid { blocks: blocks as u32, threads: BLOCK_THREADS as u32 };
        driver.launch(function, grid, &parameter, stream)
    }
}

/// The parameter in words (see the head of this file).
fn parameter(
    reduction: &Reduction,
    operands: &[Operand],
    destination: UserPointer,
    count_elems: usize,
) -> Result<[u64; HEAD_WORDS + 2 * OPERANDS_MOST]> {
    if operands.len() > OPERANDS_MOST {
        return Err(Error::internal(format!(
            "a reduction of {} operands on a device, which takes {OPERANDS_MOST}",
            operands.len()
        )));
    }
    let ranks = u32::try_from(reduction.ranks().max(1))
        .map_err(|_| Error::internal("an average over more than 2^32 ranks on a device"))?;
    let mut words = [0; HEAD_WORDS + 2 * OPERANDS_MOST];
    words[0] = destination.address() as u64;
    words[1] = count_elems as u64;
    words[2] = operands.len() as u64;
    words[3] = u64::from(ranks);
    for (k, operand) in operands.iter().enumerate() {
        words[HEAD_WORDS + k] = operand.start.address() as u64;
        if let Some(scale) = operand.scale {
            words[4] |= 1 << k;
            words[HEAD_WORDS + OPERANDS_MOST + k] = u64::from_le_bytes(scale.0);
        }
    }
    Ok(words)
}

#[cfg(test)]
mod tests {
    use super::*;
    use sha2::{Digest, Sha256};

    #[test]
    fn what_is_compiled_is_the_source() {
        let hash: String = Sha256::digest(SOURCE).iter().map(|byte| format!("{byte:02x}")).collect();
        let first = PROGRAM.lines().next().unwrap();
        assert!(first.contains(&hash), "reduce.ptx is not of this reduce.cu: run ci/kernels\n{first}");
        assert_eq!(PROGRAM.matches(".entry ").count(), 72);
    }
}
