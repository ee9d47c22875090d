//! Which way a call would go, and the figures of the machine by which that is chosen: extensions of `accl.h`.

use std::ffi::{CStr, OsStr, c_char};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use accl_core::comm::{Selection, Wish, describe_process};
use accl_core::config::operation_of;
use accl_core::tune::{Target, tune};
use accl_core::{Error, Result};

use crate::abi::*;
use crate::handle::{self, Out};
use crate::plugins::{self, tuner};

face! {
    /// What a call would do, without doing it.
    fn explain[acclExplain](
        comm: ncclComm_t, operation: *const c_char, count: usize, datatype: ncclDataType_t,
        way: *mut c_char, way_bytes: usize, predicted_ns: *mut f64,
    ) {
        let comm = handle::communicator(comm)?;
        handle::required(operation, "operation")?;
        // SAFETY: not NULL, so a string, as the header asks; and a valid pointer.
        let (operation, out) = unsafe { (CStr::from_ptr(operation), Out::new(predicted_ns, "predicted_ns")?) };
        let kind = operation_of(&operation.to_string_lossy())?;
        let data_type = handle::data_type(datatype)?;
        let selection =
            if plugins::is_on() { tuner::choose(&comm, kind, (count, data_type), &Wish::default())? } else { Selection::default() };
        let explained = comm.explain_with(kind, count, data_type, selection)?;
        // SAFETY: the header asks for room of that size.
        unsafe { put(explained.way, way, way_bytes, "way")? };
        out.set(explained.predicted_ns);
        Ok(())
    }

    /// What a rank knows of the others, or a process of itself.
    fn describe[acclDescribe](comm: ncclComm_t, text: *mut c_char, text_bytes: usize) {
        let described =
            if comm.is_null() { describe_process()? } else { handle::communicator(comm)?.describe()? };
        if text_bytes <= described.len() {
            let needed = described.len() + 1;
            return Err(Error::argument(format!("text has room for {text_bytes} bytes; pass at least {needed}")));
        }
        // SAFETY: the header asks for room of that size.
        unsafe { put(&described, text, text_bytes, "text") }
    }

    /// Measures the machine and keeps what it finds.
    fn tune_machine[acclTune](path: *const c_char, text: *mut c_char, text_bytes: usize) {
        if !text.is_null() {
            check_room(text_bytes, "text")?;
        }
        let target = if path.is_null() {
            Target::Cache
        } else {
            // SAFETY: not NULL, so a string, as the header asks.
            match unsafe { CStr::from_ptr(path) }.to_bytes() {
                b"" => Target::Nowhere,
                bytes => Target::File(Path::new(OsStr::from_bytes(bytes))),
            }
        };
        let found = tune(target)?;
        // SAFETY: the header asks for room of that size, or for none.
        if text.is_null() { Ok(()) } else { unsafe { put(&found, text, text_bytes, "text") } }
    }
}

/// Writes `text` and its end, cut where there is no room for more.
///
/// # Safety
/// `to` is NULL, or may be written for `room_bytes`.
unsafe fn put(text: &str, to: *mut c_char, room_bytes: usize, what: &str) -> Result<()> {
    handle::required(to, what)?;
    check_room(room_bytes, what)?;
    let kept = text.floor_char_boundary(room_bytes - 1);
    // SAFETY: at most `room_bytes` are written, which the caller promises to be there.
    unsafe {
        std::ptr::copy_nonoverlapping(text.as_ptr(), to.cast(), kept);
        to.add(kept).write(0);
    }
    Ok(())
}

fn check_room(room_bytes: usize, what: &str) -> Result<()> {
    if room_bytes == 0 {
        return Err(Error::argument(format!("{what} has room for 0 bytes; pass at least 1, for its end")));
    }
    Ok(())
}
