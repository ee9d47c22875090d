//! Plugins: libraries of others that this one loads and calls. Each is a symbol of data, a table of functions, whose name tells the version
//! (`abi/clients.md` §5). A plugin that is not there, or refuses, is no error: the library goes on without it.

mod logger;
mod net;
pub mod profiler;
pub mod tuner;

use std::ffi::OsStr;

use accl_core::comm::Communicator;
use accl_core::config::Source;
use accl_core::sync::prim::{AtomicBool, Ordering};
use accl_core::telemetry;
use libloading::os::unix::{Library, RTLD_LOCAL, RTLD_NOW};

/// False once it is known that there is no plugin.
static MAYBE: AtomicBool = AtomicBool::new(true);

/// True if there may be a plugin for calls, which may be looked for then.
#[inline]
pub(crate) fn is_on() -> bool {
    // Relaxed: it only spares the look at what has locks of its own.
    MAYBE.load(Ordering::Relaxed) && look()
}

#[cold]
fn look() -> bool {
    let found = [profiler::profiler().is_some(), tuner::tuner().is_some()].contains(&true);
    if !found {
        MAYBE.store(false, Ordering::Relaxed);
    }
    found
}

/// Tells plugins that a communicator has ended.
pub(crate) fn forget(comm: &Communicator) {
    if is_on() {
        profiler::forget(comm);
        tuner::forget(comm);
    }
}

/// The plugin of a kind, "profiler" or another: in the library that the setting of this name chooses, else, if that says nothing, in that of
/// a network plugin, of which nothing is said if it has none. `of` finds one of these `tables` in a library.
fn find<T>(kind: &str, setting: &str, tables: &str, of: impl Fn(Library) -> Option<T>) -> Option<T> {
    if let Some(library) = open(kind, setting) {
        let found = of(library);
        if found.is_none() {
            telemetry::warn(&format!(
                "the {kind} plugin has no complete {tables}, and is not used; set NCCL_{setting} to one that has, or to none"
            ));
        }
        return found;
    }
    if !value_of(setting).is_empty() {
        return None;
    }
    let names = value_of("NET_PLUGIN");
    let mut names = names.split(',').map(str::trim).filter(|name| *name != "none");
    names.find_map(|name| of(load("net", name).ok()?))
}

/// Opens the library of a kind of plugin that the setting of this name chooses.
fn open(kind: &str, setting: &str) -> Option<Library> {
    let value = value_of(setting);
    if value == "none" {
        return None;
    }
    if value == "STATIC_PLUGIN" {
        return Some(Library::this());
    }
    match load(kind, &value) {
        Ok(library) => return Some(library),
        Err(reasons) if !value.is_empty() => {
            telemetry::warn(&format!(
                "NCCL_{setting}={value} is not loaded, and there is no {kind}: {reasons}"
            ));
        }
        Err(_) => {}
    }
    None
}

/// Opens what a setting for plugins of a kind names by one of its words; why that is not possible.
fn load(kind: &str, value: &str) -> Result<Library, String> {
    let mut reasons = Vec::new();
    for file in files(kind, value) {
        // SAFETY: whoever names a plugin wants its code to run in this process.
        match unsafe { Library::open(Some(OsStr::new(&file)), RTLD_NOW | RTLD_LOCAL) } {
            Ok(library) => return Ok(library),
            Err(error) => reasons.push(error.to_string()),
        }
    }
    Err(reasons.join("; "))
}

/// Has communicators find network plugins, from here on.
pub(crate) fn offer_networks() {
    net::offer();
}

fn value_of(setting: &str) -> String {
    Source::of_process().map(|source| source.lookup(setting).0).unwrap_or_default()
}

/// Where a plugin may be, as the setting names it.
fn files(kind: &str, value: &str) -> Vec<String> {
    if value.is_empty() {
        return vec![format!("libnccl-{kind}.so")];
    }
    let is_whole = value.contains('/') || (value.starts_with("lib") && value.ends_with(".so"));
    let mut files = vec![value.to_string()];
    if !is_whole {
        files.push(format!("libnccl-{kind}-{value}.so"));
    }
    files
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn plugins_are_named_as_files_or_by_a_part_of_one() {
        assert_eq!(files("profiler", ""), ["libnccl-profiler.so"]);
        assert_eq!(files("profiler", "mine"), ["mine", "libnccl-profiler-mine.so"]);
        assert_eq!(files("profiler", "libmine.so"), ["libmine.so"]);
        assert_eq!(files("profiler", "./mine"), ["./mine"]);
    }
}
