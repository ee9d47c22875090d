//! `accl run`: a command, and all that it starts, with this library in the place of libnccl.so.2.
//!
//! The library is loaded before all others (LD_PRELOAD), under the name that others ask for: a DT_RPATH, as PyTorch has it, is
//! searched before LD_LIBRARY_PATH, but nothing is searched for that is loaded already. Programs that open a file have
//! variables of their own.

use std::ffi::OsString;
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::library::Library;

/// Variables that name the file to programs which open it themselves.
const OPENED_BY_NAME: [&str; 2] = ["VLLM_NCCL_SO_PATH", "SGLANG_NCCL_SO_PATH"];

/// Becomes the command; returns only if that fails.
pub(crate) fn run(library: Option<&Path>, quiet: bool, command: &[OsString]) -> Result<(), String> {
    let opened = check(library)?;
    let path = PathBuf::from(&opened.path);
    let Some((program, arguments)) = command.split_first() else {
        return Err("no command; put one behind --".to_string());
    };
    let mut preload = path.clone().into_os_string();
    // The loader separates by either.
    if preload.to_string_lossy().contains([' ', ':']) {
        return Err(format!(
            "{}: the loader cannot preload a path with a blank or a colon; move it",
            path.display()
        ));
    }
    if let Some(others) = std::env::var_os("LD_PRELOAD").filter(|others| !others.is_empty()) {
        preload.push(":");
        preload.push(others);
    }
    if !quiet {
        eprintln!(
            "accl run: {} (NCCL {}) in the place of libnccl.so.2 for {}",
            path.display(),
            version(opened.version),
            program.to_string_lossy()
        );
    }
    let mut command = Command::new(program);
    command.args(arguments).env("LD_PRELOAD", preload);
    for name in OPENED_BY_NAME {
        command.env(name, &path);
    }
    let error = command.exec();
    Err(format!("{}: {error}", program.to_string_lossy()))
}

/// The library, if it is this project's.
pub(crate) fn check(library: Option<&Path>) -> Result<Library, String> {
    let opened = Library::open(library).map_err(|failure| failure.to_string())?;
    match opened.functions.stream_create.pointer {
        Some(_) => Ok(opened),
        None => Err(format!("{} is another NCCL; name ours by --lib", opened.path)),
    }
}

/// As people write it.
pub(crate) fn version(code: i32) -> String {
    format!("{}.{}.{}", code / 10_000, code / 100 % 100, code % 100)
}
