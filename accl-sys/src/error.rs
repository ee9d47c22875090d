//! Codes for kinds, and the text of the last failure.

use std::cell::{Cell, UnsafeCell};
use std::ffi::{CStr, c_char};

use accl_core::types::Face;
use accl_core::{Error, ErrorKind};
use parking_lot::Mutex;

use crate::abi::*;

/// Bytes of the text that `ncclGetLastError` returns, with its NUL.
const TEXT_BYTES: usize = 1024;

/// A text of bounded length; the bytes after it are zero.
struct Text([u8; TEXT_BYTES]);

static LAST: Mutex<Text> = Mutex::new(Text([0; TEXT_BYTES]));

thread_local! {
    /// What this thread was last given: another thread's failure must not change it under the reader.
    static GIVEN: UnsafeCell<[u8; TEXT_BYTES]> = const { UnsafeCell::new([0; TEXT_BYTES]) };
    /// The same for the text of this thread's own last failure.
    static GIVEN_OWN: UnsafeCell<[u8; TEXT_BYTES]> = const { UnsafeCell::new([0; TEXT_BYTES]) };
    static OWN: Cell<[u8; TEXT_BYTES]> = const { Cell::new([0; TEXT_BYTES]) };
}

/// The code of a kind, as a face has it.
pub fn code(face: Face, kind: ErrorKind) -> ncclResult_t {
    match kind {
        ErrorKind::Device => ncclUnhandledCudaError,
        ErrorKind::System => ncclSystemError,
        ErrorKind::Internal => ncclInternalError,
        ErrorKind::InvalidArgument => ncclInvalidArgument,
        ErrorKind::InvalidUsage => ncclInvalidUsage,
        ErrorKind::Remote => ncclRemoteError,
        ErrorKind::InProgress => ncclInProgress,
        // PCCL has no such code; peers that do not come in time are as good as gone.
        ErrorKind::Timeout if face == Face::Pccl => ncclRemoteError,
        ErrorKind::Timeout => ncclTimeout,
    }
}

/// Keeps the error's text for `ncclGetLastError` and returns its code. "In progress" is no failure and leaves the
/// text alone.
#[cold]
pub(crate) fn report(function: &str, error: &Error) -> ncclResult_t {
    if error.kind() != ErrorKind::InProgress {
        accl_core::telemetry::failed_call(function, error);
    }
    note(function, error)
}

/// The same for a failure that is asked for, maybe by a program that asks all the time: nothing is said of it.
#[cold]
pub fn note(function: &str, error: &Error) -> ncclResult_t {
    let face = Face::of_function(function);
    let code = code(face, error.kind());
    if error.kind() != ErrorKind::InProgress {
        remember(&[function, ": ", error.text(), " (", face.prefix(), name_of(face, code), ")"]);
    }
    code
}

/// Cuts at a whole character and at a NUL, which would end the text for C anyway.
fn remember(parts: &[&str]) {
    let mut text = LAST.lock();
    text.0.fill(0);
    let mut used = 0;
    for character in parts.iter().flat_map(|part| part.chars()).take_while(|character| *character != '\0') {
        let end = used + character.len_utf8();
        if end >= TEXT_BYTES {
            break;
        }
        character.encode_utf8(&mut text.0[used..end]);
        used = end;
    }
    // A thread that ends has no variables left.
    let _ = OWN.try_with(|own| own.set(text.0));
}

/// The last text as a Rust string, for tests.
#[cfg(test)]
pub(crate) fn last_text() -> String {
    String::from_utf8_lossy(CStr::from_bytes_until_nul(&LAST.lock().0).unwrap().to_bytes()).into_owned()
}

/// The name of a failure's code behind the face's prefix, by which docs/errors.md has a section on it.
fn name_of(face: Face, result: ncclResult_t) -> &'static str {
    match result {
        ncclUnhandledCudaError if face == Face::Pccl => "UnhandledHggcError",
        ncclUnhandledCudaError => "UnhandledCudaError",
        ncclSystemError => "SystemError",
        ncclInternalError => "InternalError",
        ncclInvalidArgument => "InvalidArgument",
        ncclInvalidUsage => "InvalidUsage",
        ncclRemoteError => "RemoteError",
        ncclInProgress => "InProgress",
        ncclTimeout => "Timeout",
        _ => " has no such code",
    }
}

/// The text of a code, as programs print it.
fn text_of(result: ncclResult_t) -> &'static CStr {
    match result {
        ncclSuccess => c"no error",
        ncclUnhandledCudaError => c"unhandled cuda error (run with NCCL_DEBUG=INFO for details)",
        ncclSystemError => c"unhandled system error (run with NCCL_DEBUG=INFO for details)",
        ncclInternalError => c"internal error - please report this issue to the NCCL developers",
        ncclInvalidArgument => c"invalid argument (run with NCCL_DEBUG=WARN for details)",
        ncclInvalidUsage => c"invalid usage (run with NCCL_DEBUG=WARN for details)",
        ncclRemoteError => c"remote process exited or there was a network error",
        ncclInProgress => c"NCCL operation in progress",
        ncclTimeout => c"timeout",
        _ => c"unknown result code",
    }
}

face! {
    /// A short fixed text for a code.
    fn error_string[ncclGetErrorString, pncclGetErrorString](
        result: ncclResult_t,
    ) -> *const c_char, or c"unknown result code".as_ptr(); {
        Ok(text_of(result).as_ptr())
    }

    /// The sentence of the last failure in this process, whatever the communicator; valid until this thread asks
    /// again.
    fn last_error[ncclGetLastError, pncclGetLastError](_comm: ncclComm_t) -> *const c_char, or c"".as_ptr(); {
        Ok(GIVEN.with(|given| {
            let text = LAST.lock().0;
            // SAFETY: only this thread reaches its own copy, and no reference to it outlives this statement.
            unsafe { *given.get() = text };
            given.get().cast::<c_char>().cast_const()
        }))
    }

    /// The sentence of this thread's own last failure; valid until it asks again.
    fn last_error_of_thread[acclLastErrorOfThread]() -> *const c_char, or c"".as_ptr(); {
        Ok(GIVEN_OWN.with(|given| {
            // SAFETY: as above.
            unsafe { *given.get() = OWN.get() };
            given.get().cast::<c_char>().cast_const()
        }))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn long_texts_are_cut_at_a_character() {
        report("f", &Error::usage("é".repeat(2000)));
        let text = last_text();
        // Other tests of this process report failures too; only a text of this test says anything.
        if text.contains('é') {
            assert!(text.len() <= 1023 && text.len() > 1000 && text.ends_with('é'));
        }
    }

    #[test]
    fn pccl_has_no_code_for_time_limits() {
        assert_eq!(report("ncclTest", &Error::new(ErrorKind::Timeout, "late")), ncclTimeout);
        assert_eq!(report("pcclTest", &Error::new(ErrorKind::Timeout, "late")), ncclRemoteError);
        assert_eq!(name_of(Face::Pccl, ncclRemoteError), "RemoteError");
        assert_eq!(name_of(Face::Pccl, ncclUnhandledCudaError), "UnhandledHggcError");
    }

    #[test]
    fn every_code_has_its_text() {
        assert_eq!(text_of(0), c"no error");
        assert_eq!(text_of(8), c"timeout");
        for unknown in [9, 1000, u32::MAX] {
            assert_eq!(text_of(unknown), c"unknown result code");
        }
    }
}
