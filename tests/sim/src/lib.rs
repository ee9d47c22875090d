//! A simulated CUDA device: programs built for CUDA run on it where there is no GPU.
//!
//! One shared library, `libaccl_sim.so`, has the CUDA runtime's functions, the driver's (also under the prefix `hg`) and a few of
//! NVML's. Under the names `libcudart.so.12`, `libcudart.so.13`, `libcuda.so.1`, `libhggc.so` and `libnvidia-ml.so.1` (symbolic
//! links to one file, which the loader maps once; see [`install`]) it takes the place of NVIDIA's. Device memory is host memory in
//! memory files, a stream is a queue with a thread, a kernel is PTX that an interpreter runs.
//!
//! It is strict: what a device would refuse, or what it would silently do wrong (memory that was freed, a handle that is none, a
//! wait that can not be captured), is an error with the code that the real library gives. What it can not do is an error, too
//! (`cudaErrorNotSupported`), and never a false success.
//!
//! Order of the sources, lowest first: `error`, `config`, `raw` (addresses become memory), `handles`, `memory`, `stream`, `device`,
//! `event`, `copy`, …; the faces, `runtime`, `driver` and `nvml`, turn C into calls of those, and hold no state.
//!
//! # Safety
//!
//! The simulator stands for hardware: it reads and writes the addresses that programs give it. What can be checked is checked
//! against the table of allocations; an address that stands for the program's own memory is believed.

mod abi;
mod attributes;
mod capture;
pub mod config;
mod copy;
mod device;
mod driver;
pub mod error;
mod event;
mod graph;
mod handles;
mod host;
mod ipc;
mod launch;
mod memops;
mod memory;
mod module;
mod named;
mod nvml;
mod ptx;
mod raw;
mod registered;
mod runtime;
mod stream;
mod time;
mod vmm;

pub use abi::library_path;

use std::path::{Path, PathBuf};

/// The names under which programs look for what this library has.
pub const NAMES: [&str; 6] =
    ["libcuda.so.1", "libcudart.so.12", "libcudart.so.13", "libnvidia-ml.so.1", "libhggc.so", "libcuda.so"];

/// The library as cargo has built it, for programs that cargo has built, too (a test, or what lies beside it).
pub fn built() -> Option<PathBuf> {
    let program = std::env::current_exe().ok()?;
    let folders = program.ancestors().skip(1).take(2);
    folders.map(|folder| folder.join("libaccl_sim.so")).find(|library| library.exists())
}

/// Makes symbolic links to `library` (`libaccl_sim.so`) in `directory`, one for each of [`NAMES`]: a folder for LD_LIBRARY_PATH.
///
/// # Errors
///
/// What the file system says; links that are there already are replaced.
pub fn install(library: &Path, directory: &Path) -> std::io::Result<()> {
    std::fs::create_dir_all(directory)?;
    let library = library.canonicalize()?;
    for name in NAMES {
        let link = directory.join(name);
        match std::fs::remove_file(&link) {
            Err(error) if error.kind() != std::io::ErrorKind::NotFound => return Err(error),
            _ => std::os::unix::fs::symlink(&library, &link)?,
        }
    }
    Ok(())
}

/// How many objects of each kind there are: at the end of a program, what it has forgotten.
fn live() -> Vec<(&'static str, usize)> {
    vec![
        ("memory", memory::count()),
        ("streams", stream::count()),
        ("events", event::count()),
        ("modules", module::count()),
        ("graphs", graph::count()),
        ("executables", graph::count_executables()),
        ("allocations", vmm::count()),
    ]
}
