//! Modules: PTX text, alone or in a fat binary.

use std::collections::HashMap;
use std::sync::{Arc, Mutex};

use crate::device::Context;
use crate::error::{Code, Outcome};
use crate::handles::{Handles, lock};
use crate::launch::{self, Function};
use crate::{ptx, raw};

pub(crate) struct Module {
    pub(crate) handle: u64,
    context: u64,
    program: ptx::Program,
    functions: Mutex<HashMap<String, Arc<Function>>>,
}

static MODULES: Handles<Module> = Handles::new();

pub(crate) fn count() -> usize {
    MODULES.all().len()
}

const ELF: u32 = u32::from_le_bytes(*b"\x7fELF");
const FAT_WRAPPER: u32 = 0x4662_43B1;
const FAT_BINARY: u32 = 0xBA55_ED50;

fn u32_at(address: u64) -> u32 {
    u32::from_ne_bytes(raw::bytes(address, 4).try_into().unwrap_or_default())
}

fn u64_at(address: u64) -> u64 {
    u64::from_ne_bytes(raw::bytes(address, 8).try_into().unwrap_or_default())
}

/// Text up to its end.
fn text_at(address: u64) -> String {
    let mut bytes = Vec::new();
    loop {
        match raw::bytes(address + bytes.len() as u64, 1)[..] {
            [byte] if byte != 0 => bytes.push(byte),
            _ => break,
        }
    }
    String::from_utf8_lossy(&bytes).into_owned()
}

/// The PTX of an image that a program gives.
pub(crate) fn ptx_of(image: u64) -> Outcome<String> {
    if image == 0 {
        return Err(Code::INVALID_VALUE);
    }
    match u32_at(image) {
        ELF => Err(Code::NO_BINARY),
        FAT_WRAPPER => ptx_of_fat_binary(u64_at(image + 8)),
        FAT_BINARY => ptx_of_fat_binary(image),
        _ => Ok(text_at(image)),
    }
}

/// The first PTX of a fat binary that is not compressed. A header (size at 6, bytes that follow at 8) comes before entries with
/// headers of their own (kind at 0, size of the header at 4, bytes that follow at 8, flags at 40).
fn ptx_of_fat_binary(address: u64) -> Outcome<String> {
    const PTX: u32 = 1;
    const COMPRESSED: u64 = 0x2000 | 0x1000;
    if u32_at(address) != FAT_BINARY {
        return Err(Code::INVALID_IMAGE);
    }
    let header = u64::from(u32_at(address + 4) >> 16);
    let end = address + header + u64_at(address + 8);
    let mut entry = address + header;
    while entry < end {
        let (kind, header, bytes) = (u32_at(entry) & 0xFFFF, u64::from(u32_at(entry + 4)), u64_at(entry + 8));
        if kind == PTX && u64_at(entry + 40) & COMPRESSED == 0 {
            return Ok(text_at(entry + header));
        }
        entry += header + bytes;
    }
    Err(Code::NO_BINARY)
}

/// Loads a module; what is wrong with its text is said aloud.
pub(crate) fn load(image: u64, context: &Arc<Context>) -> Outcome<Arc<Module>> {
    let text = ptx_of(image)?;
    let program = ptx::load(&text, context)
        .inspect_err(|(_, why)| eprintln!("accl-sim: this PTX can not be loaded: {why}"));
    let program = program.map_err(|(code, _)| code)?;
    Ok(MODULES.add(|handle| Module { handle, context: context.handle, program, functions: Mutex::default() }))
}

pub(crate) fn find(handle: u64) -> Outcome<Arc<Module>> {
    MODULES.get(handle)
}

pub(crate) fn unload(handle: u64) -> Outcome {
    let module = MODULES.remove(handle)?;
    for function in lock(&module.functions).values() {
        launch::remove(function.handle);
    }
    module.program.unload();
    Ok(())
}

impl Module {
    pub(crate) fn function(&self, name: &str) -> Outcome<Arc<Function>> {
        let mut functions = lock(&self.functions);
        if let Some(function) = functions.get(name) {
            return Ok(Arc::clone(function));
        }
        let kernel = self.program.kernel(name).ok_or(Code::NOT_FOUND)?;
        let function = launch::create(name, Some(kernel), self.context);
        functions.insert(name.to_owned(), Arc::clone(&function));
        Ok(function)
    }

    /// Address and size of a variable.
    pub(crate) fn global(&self, name: &str) -> Outcome<(u64, u64)> {
        self.program.global(name).ok_or(Code::NOT_FOUND)
    }
}
