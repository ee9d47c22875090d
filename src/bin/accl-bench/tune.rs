//! `accl-bench tune`: has the library measure this machine, and shows what it found.

use std::ffi::{CStr, CString};
use std::os::unix::ffi::OsStrExt as _;

use crate::args::Arguments;
use crate::failure::{Exit, Failure, Outcome};
use crate::library::Library;

/// More than the library's text has.
const TEXT_BYTES: usize = 64 << 10;

pub(crate) fn run(args: &Arguments) -> Outcome<Exit> {
    let library = Library::open(args.lib.as_deref())?;
    let tune = library.functions.tune.need()?;
    let file = match (&args.output, args.dry_run) {
        (_, true) => Some(CString::default()),
        (Some(file), _) => Some(
            CString::new(file.as_os_str().as_bytes())
                .map_err(|_| Failure::usage("--output: a name without zeros in it"))?,
        ),
        (None, false) => None,
    };
    let path = file.as_ref().map_or(std::ptr::null(), |file| file.as_ptr());
    let mut text = vec![0u8; TEXT_BYTES];
    // SAFETY: A text or null, and room of that size, which the call fills.
    let code = unsafe { tune(path, text.as_mut_ptr().cast(), text.len()) };
    library.check("acclTune", code)?;
    print!("{}", CStr::from_bytes_until_nul(&text).unwrap_or_default().to_string_lossy());
    Ok(Exit::Good)
}
