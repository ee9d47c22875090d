//! Kernels that are part of the program: the compiler's start-up code registers them by the address of a host function.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, OnceLock};

use crate::device::Context;
use crate::error::{Code, Outcome};
use crate::handles::lock;
use crate::launch::{self, Function};
use crate::module::{self, Module};

/// A kernel or a variable as it was registered.
#[derive(Clone)]
struct Entry {
    binary: u64,
    name: String,
}

#[derive(Default)]
struct Registry {
    /// Wrappers of fat binaries, by the handle that their owner got.
    binaries: HashMap<u64, u64>,
    entries: HashMap<u64, Entry>,
    /// Variables, by the address of their shadow in the host program.
    variables: HashMap<u64, Entry>,
    /// Made at the first use in a context (the second number).
    functions: HashMap<(u64, u64), Arc<Function>>,
    modules: HashMap<(u64, u64), Option<Arc<Module>>>,
}

impl Registry {
    /// The module of a fat binary in a context, loaded at its first use; `None` if it holds no PTX.
    fn module(&mut self, binary: u64, context: &Arc<Context>) -> Outcome<Option<Arc<Module>>> {
        let wrapper = self.binaries.get(&binary).copied().ok_or(Code::INVALID_DEVICE_FUNCTION)?;
        let load = || match module::ptx_of(wrapper) {
            Ok(_) => module::load(wrapper, context).ok(),
            Err(_) => None,
        };
        Ok(self.modules.entry((binary, context.handle)).or_insert_with(load).clone())
    }
}

fn registry() -> &'static Mutex<Registry> {
    static REGISTRY: OnceLock<Mutex<Registry>> = OnceLock::new();
    REGISTRY.get_or_init(Mutex::default)
}

/// A handle for a fat binary; it points at something, as programs may expect.
pub(crate) fn add_binary(wrapper: u64) -> u64 {
    let handle = Box::into_raw(Box::new(wrapper)) as u64;
    lock(registry()).binaries.insert(handle, wrapper);
    handle
}

pub(crate) fn remove_binary(handle: u64) {
    let mut registry = lock(registry());
    registry.binaries.remove(&handle);
    registry.entries.retain(|_, entry| entry.binary != handle);
    registry.variables.retain(|_, entry| entry.binary != handle);
}

pub(crate) fn add_function(binary: u64, host: u64, name: String) {
    lock(registry()).entries.insert(host, Entry { binary, name });
}

/// The kernel behind a host function, or behind a handle of one.
pub(crate) fn function(host: u64, context: &Arc<Context>) -> Outcome<Arc<Function>> {
    let mut registry = lock(registry());
    if let Some(function) = registry.functions.get(&(host, context.handle)) {
        return Ok(Arc::clone(function));
    }
    let Some(entry) = registry.entries.get(&host).cloned() else {
        drop(registry);
        return launch::find(host).map_err(|_| Code::INVALID_DEVICE_FUNCTION);
    };
    let module = registry.module(entry.binary, context)?;
    let function = match module.as_ref().map(|module| module.function(&entry.name)) {
        Some(Ok(function)) => function,
        _ => launch::create(&entry.name, None, context.handle),
    };
    registry.functions.insert((host, context.handle), Arc::clone(&function));
    Ok(function)
}

pub(crate) fn add_variable(binary: u64, host: u64, name: String) {
    lock(registry()).variables.insert(host, Entry { binary, name });
}

/// Address and size of a variable on a context's device.
pub(crate) fn variable(host: u64, context: &Arc<Context>) -> Outcome<(u64, u64)> {
    let mut registry = lock(registry());
    let entry = registry.variables.get(&host).cloned().ok_or(Code::INVALID_SYMBOL)?;
    let module = registry.module(entry.binary, context)?.ok_or(Code::NOT_SUPPORTED)?;
    module.global(&entry.name).map_err(|_| Code::INVALID_SYMBOL)
}

/// Is a kernel registered for this host function?
pub(crate) fn has(host: u64) -> bool {
    lock(registry()).entries.contains_key(&host)
}
