//! PTX: an interpreter for the device code that NVRTC and nvcc write.
//!
//! `parse` and `decode` turn text into instructions once, when a module is loaded; what they do not know is an error that names it.
//! `machine` runs blocks, `step` instructions, `warp` what threads do together. Results are those of the hardware, bit for bit
//! (`float`), but for the approximations (`rcp.approx`, `ex2.approx`, …), which are rounded results here.

mod alu;
mod convert;
mod decode;
mod float;
mod lex;
mod machine;
mod names;
mod operands;
mod parse;
mod program;
mod space;
mod step;
mod types;
mod warp;

use std::collections::HashMap;
use std::sync::Arc;

use crate::device::Context;
use crate::error::{Code, Outcome};
use crate::launch::Shape;
use crate::memory::{self, Kind};
use crate::raw;

use program::Routine;

/// Multiprocessors of a device, and what one holds.
const MULTIPROCESSORS: usize = 8;
const THREADS: usize = 2048;
const SHARED_BYTES: usize = 228 << 10;

/// Routines that can call each other.
#[derive(Debug)]
pub(crate) struct Linked {
    routines: Vec<Routine>,
    names: HashMap<String, usize>,
}

/// A kernel of a program.
#[derive(Debug)]
pub(crate) struct Kernel {
    linked: Arc<Linked>,
    routine: usize,
    /// Static shared memory.
    pub(crate) shared_bytes: u32,
    pub(crate) local_bytes: u32,
    pub(crate) max_threads: u32,
    /// Offset and size of each parameter.
    pub(crate) parameters: Vec<(u32, u32)>,
}

/// A program that is loaded.
#[derive(Debug)]
pub(crate) struct Program {
    linked: Arc<Linked>,
    shared_bytes: u32,
    globals: HashMap<String, (u64, u64)>,
}

/// Loads a program: variables get memory of the context's device.
pub(crate) fn load(text: &str, context: &Arc<Context>) -> Result<Program, (Code, String)> {
    let mut taken = Vec::new();
    let parsed = parse::module(text, |variables| {
        for variable in variables {
            let bytes = variable.bytes.max(1);
            let range = memory::allocate(context.device, context.handle, bytes, Kind::Device)
                .map_err(|_| "no memory is left for its variables".to_owned())?;
            raw::fill(range.base, 0, 1, bytes);
            raw::copy(range.base, variable.content.as_ptr() as u64, variable.content.len() as u64);
            taken.push((variable.name.clone(), range.base, bytes));
        }
        Ok(taken.iter().map(|(_, base, _)| *base).collect())
    });
    let (module, _) = parsed.map_err(|why| {
        for (_, base, _) in &taken {
            let _ = memory::release(*base, &[Kind::Device]);
        }
        (Code::INVALID_PTX, why)
    })?;
    let names =
        module.routines.iter().enumerate().map(|(index, routine)| (routine.name.clone(), index)).collect();
    let shared_bytes = module.shared_bytes as u32;
    let linked = Arc::new(Linked { routines: module.routines, names });
    let globals = taken.into_iter().map(|(name, base, bytes)| (name, (base, bytes))).collect();
    Ok(Program { linked, shared_bytes, globals })
}

impl Program {
    pub(crate) fn kernel(&self, name: &str) -> Option<Arc<Kernel>> {
        let &routine = self.linked.names.get(name)?;
        let code = &self.linked.routines[routine];
        code.is_entry.then(|| {
            Arc::new(Kernel {
                linked: Arc::clone(&self.linked),
                routine,
                shared_bytes: self.shared_bytes,
                local_bytes: code.frame_bytes as u32,
                max_threads: code.max_threads,
                parameters: code.parameters.clone(),
            })
        })
    }

    pub(crate) fn global(&self, name: &str) -> Option<(u64, u64)> {
        self.globals.get(name).copied()
    }

    pub(crate) fn unload(&self) {
        for (base, _) in self.globals.values() {
            let _ = memory::release(*base, &[Kind::Device]);
        }
    }
}

impl Kernel {
    fn name(&self) -> &str {
        &self.linked.routines[self.routine].name
    }

    /// How many blocks are on the device at a time.
    pub(crate) fn resident_blocks(&self, shape: &Shape) -> usize {
        let threads = shape.block.iter().product::<u32>().next_multiple_of(32) as usize;
        let shared = (self.shared_bytes + shape.shared_bytes) as usize;
        let by_shared = if shared == 0 { 32 } else { SHARED_BYTES / (shared + 1024) };
        (THREADS / threads).min(by_shared).clamp(1, 32) * MULTIPROCESSORS
    }
}

/// Runs a kernel to its end; a failure is said aloud.
pub(crate) fn run(kernel: &Kernel, shape: &Shape, packed: &[u8], context: &Arc<Context>) -> Outcome {
    machine::run(kernel, shape, packed, context)
}
