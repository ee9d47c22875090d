//! Error codes. Runtime and driver share their numbers, so that one type serves both faces; only the names differ.

use std::cell::Cell;
use std::ffi::CStr;

/// A `cudaError_t` or `CUresult` other than success.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Code(pub i32);

/// What the simulator's functions return.
pub type Outcome<T = ()> = Result<T, Code>;

macro_rules! codes {
    ($($name:ident = $number:literal, $runtime:literal, $driver:literal, $text:literal;)*) => {
        #[allow(missing_docs)]
        impl Code { $(pub const $name: Self = Self($number);)* }
        /// Number, the runtime's name, the driver's name, a text.
        const TABLE: &[(i32, &CStr, &CStr, &CStr)] = &[
            (0, c"cudaSuccess", c"CUDA_SUCCESS", c"no error"),
            $(($number, $runtime, $driver, $text),)*
        ];
    };
}

codes! {
    INVALID_VALUE = 1, c"cudaErrorInvalidValue", c"CUDA_ERROR_INVALID_VALUE", c"invalid argument";
    OUT_OF_MEMORY = 2, c"cudaErrorMemoryAllocation", c"CUDA_ERROR_OUT_OF_MEMORY", c"out of memory";
    NOT_INITIALIZED = 3, c"cudaErrorInitializationError", c"CUDA_ERROR_NOT_INITIALIZED", c"initialization error";
    INVALID_CONFIGURATION = 9, c"cudaErrorInvalidConfiguration", c"CUDA_ERROR_INVALID_CONFIGURATION", c"invalid configuration argument";
    INVALID_SYMBOL = 13, c"cudaErrorInvalidSymbol", c"CUDA_ERROR_UNKNOWN", c"invalid device symbol";
    INVALID_DEVICE_POINTER = 17, c"cudaErrorInvalidDevicePointer", c"CUDA_ERROR_UNKNOWN", c"invalid device pointer";
    INVALID_DIRECTION = 21, c"cudaErrorInvalidMemcpyDirection", c"CUDA_ERROR_UNKNOWN", c"invalid copy direction for memcpy";
    INVALID_DEVICE_FUNCTION = 98, c"cudaErrorInvalidDeviceFunction", c"CUDA_ERROR_UNKNOWN", c"invalid device function";
    NO_DEVICE = 100, c"cudaErrorNoDevice", c"CUDA_ERROR_NO_DEVICE", c"no CUDA-capable device is detected";
    INVALID_DEVICE = 101, c"cudaErrorInvalidDevice", c"CUDA_ERROR_INVALID_DEVICE", c"invalid device ordinal";
    INVALID_IMAGE = 200, c"cudaErrorInvalidKernelImage", c"CUDA_ERROR_INVALID_IMAGE", c"device kernel image is invalid";
    INVALID_CONTEXT = 201, c"cudaErrorDeviceUninitialized", c"CUDA_ERROR_INVALID_CONTEXT", c"invalid device context";
    MAP_FAILED = 205, c"cudaErrorMapBufferObjectFailed", c"CUDA_ERROR_MAP_FAILED", c"mapping of buffer object failed";
    ALREADY_MAPPED = 208, c"cudaErrorAlreadyMapped", c"CUDA_ERROR_ALREADY_MAPPED", c"resource already mapped";
    NO_BINARY = 209, c"cudaErrorNoKernelImageForDevice", c"CUDA_ERROR_NO_BINARY_FOR_GPU", c"no kernel image is available for execution on the device";
    NOT_MAPPED = 211, c"cudaErrorNotMapped", c"CUDA_ERROR_NOT_MAPPED", c"resource not mapped";
    INVALID_PTX = 218, c"cudaErrorInvalidPtx", c"CUDA_ERROR_INVALID_PTX", c"a PTX JIT compilation failed";
    ECC_UNCORRECTABLE = 214, c"cudaErrorECCUncorrectable", c"CUDA_ERROR_ECC_UNCORRECTABLE", c"uncorrectable ECC error encountered";
    FILE_NOT_FOUND = 301, c"cudaErrorFileNotFound", c"CUDA_ERROR_FILE_NOT_FOUND", c"file not found";
    INVALID_HANDLE = 400, c"cudaErrorInvalidResourceHandle", c"CUDA_ERROR_INVALID_HANDLE", c"invalid resource handle";
    ILLEGAL_STATE = 401, c"cudaErrorIllegalState", c"CUDA_ERROR_ILLEGAL_STATE", c"the operation cannot be performed in the present state";
    NOT_FOUND = 500, c"cudaErrorSymbolNotFound", c"CUDA_ERROR_NOT_FOUND", c"named symbol not found";
    NOT_READY = 600, c"cudaErrorNotReady", c"CUDA_ERROR_NOT_READY", c"device not ready";
    ILLEGAL_ADDRESS = 700, c"cudaErrorIllegalAddress", c"CUDA_ERROR_ILLEGAL_ADDRESS", c"an illegal memory access was encountered";
    OUT_OF_RESOURCES = 701, c"cudaErrorLaunchOutOfResources", c"CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES", c"too many resources requested for launch";
    PEER_ALREADY_ENABLED = 704, c"cudaErrorPeerAccessAlreadyEnabled", c"CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED", c"peer access is already enabled";
    PEER_NOT_ENABLED = 705, c"cudaErrorPeerAccessNotEnabled", c"CUDA_ERROR_PEER_ACCESS_NOT_ENABLED", c"peer access has not been enabled";
    CONTEXT_DESTROYED = 709, c"cudaErrorContextIsDestroyed", c"CUDA_ERROR_CONTEXT_IS_DESTROYED", c"context is destroyed";
    ASSERT = 710, c"cudaErrorAssert", c"CUDA_ERROR_ASSERT", c"device-side assert triggered";
    HOST_ALREADY_REGISTERED = 712, c"cudaErrorHostMemoryAlreadyRegistered", c"CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED", c"part or all of the requested memory range is already mapped";
    HOST_NOT_REGISTERED = 713, c"cudaErrorHostMemoryNotRegistered", c"CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED", c"pointer does not correspond to a registered memory region";
    ILLEGAL_INSTRUCTION = 715, c"cudaErrorIllegalInstruction", c"CUDA_ERROR_ILLEGAL_INSTRUCTION", c"an illegal instruction was encountered";
    MISALIGNED = 716, c"cudaErrorMisalignedAddress", c"CUDA_ERROR_MISALIGNED_ADDRESS", c"misaligned address";
    LAUNCH_FAILED = 719, c"cudaErrorLaunchFailure", c"CUDA_ERROR_LAUNCH_FAILED", c"unspecified launch failure";
    COOPERATIVE_TOO_LARGE = 720, c"cudaErrorCooperativeLaunchTooLarge", c"CUDA_ERROR_COOPERATIVE_LAUNCH_TOO_LARGE", c"too many blocks in cooperative launch";
    NOT_PERMITTED = 800, c"cudaErrorNotPermitted", c"CUDA_ERROR_NOT_PERMITTED", c"operation not permitted";
    NOT_SUPPORTED = 801, c"cudaErrorNotSupported", c"CUDA_ERROR_NOT_SUPPORTED", c"operation not supported";
    CAPTURE_UNSUPPORTED = 900, c"cudaErrorStreamCaptureUnsupported", c"CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED", c"operation not permitted when stream is capturing";
    CAPTURE_INVALIDATED = 901, c"cudaErrorStreamCaptureInvalidated", c"CUDA_ERROR_STREAM_CAPTURE_INVALIDATED", c"operation failed due to a previous error during capture";
    CAPTURE_MERGE = 902, c"cudaErrorStreamCaptureMerge", c"CUDA_ERROR_STREAM_CAPTURE_MERGE", c"operation would result in a merge of separate capture sequences";
    CAPTURE_UNMATCHED = 903, c"cudaErrorStreamCaptureUnmatched", c"CUDA_ERROR_STREAM_CAPTURE_UNMATCHED", c"capture was not ended in the same stream as it began";
    CAPTURE_UNJOINED = 904, c"cudaErrorStreamCaptureUnjoined", c"CUDA_ERROR_STREAM_CAPTURE_UNJOINED", c"capturing stream has unjoined work";
    CAPTURE_ISOLATION = 905, c"cudaErrorStreamCaptureIsolation", c"CUDA_ERROR_STREAM_CAPTURE_ISOLATION", c"dependency created on uncaptured work in another stream";
    CAPTURE_IMPLICIT = 906, c"cudaErrorStreamCaptureImplicit", c"CUDA_ERROR_STREAM_CAPTURE_IMPLICIT", c"operation would make the legacy stream depend on a capturing blocking stream";
    CAPTURED_EVENT = 907, c"cudaErrorCapturedEvent", c"CUDA_ERROR_CAPTURED_EVENT", c"operation not permitted on an event last recorded in a capturing stream";
    CAPTURE_WRONG_THREAD = 908, c"cudaErrorStreamCaptureWrongThread", c"CUDA_ERROR_STREAM_CAPTURE_WRONG_THREAD", c"attempt to terminate a thread-local capture sequence from another thread";
    UNKNOWN = 999, c"cudaErrorUnknown", c"CUDA_ERROR_UNKNOWN", c"unknown error";
}

impl Code {
    /// Does this error stay with the context until it is destroyed?
    pub fn is_sticky(self) -> bool {
        (700..=719).contains(&self.0) && ![701, 704, 705, 709, 712, 713].contains(&self.0)
    }
}

fn row(number: i32) -> Option<&'static (i32, &'static CStr, &'static CStr, &'static CStr)> {
    TABLE.iter().find(|row| row.0 == number)
}

/// The runtime's name of a code.
pub fn runtime_name(number: i32) -> &'static CStr {
    row(number).map_or(c"unrecognized error code", |row| row.1)
}

/// The driver's name of a code, if it is one.
pub fn driver_name(number: i32) -> Option<&'static CStr> {
    row(number).map(|row| row.2)
}

/// A text for a code, if it is one.
pub fn text(number: i32) -> Option<&'static CStr> {
    row(number).map(|row| row.3)
}

thread_local! {
    static LAST: Cell<i32> = const { Cell::new(0) };
}

/// The number of an outcome; the runtime's face also keeps it as the thread's last error (not ready is no error).
pub fn keep_last(outcome: Outcome) -> i32 {
    match outcome {
        Ok(()) => 0,
        Err(code) => {
            if code != Code::NOT_READY {
                LAST.set(code.0);
            }
            code.0
        }
    }
}

/// The number of an outcome.
pub fn number(outcome: Outcome) -> i32 {
    outcome.map_or_else(|code| code.0, |()| 0)
}

/// The thread's last error, and whether to forget it.
pub fn last(forget: bool) -> i32 {
    if forget { LAST.replace(0) } else { LAST.get() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn codes_have_names() {
        assert_eq!(runtime_name(2), c"cudaErrorMemoryAllocation");
        assert_eq!(driver_name(400), Some(c"CUDA_ERROR_INVALID_HANDLE"));
        assert_eq!(driver_name(12345), None);
        assert!(Code::ILLEGAL_ADDRESS.is_sticky());
        assert!(!Code::PEER_ALREADY_ENABLED.is_sticky());
    }

    #[test]
    fn the_last_error_is_kept_until_it_is_taken() {
        assert_eq!(keep_last(Err(Code::INVALID_VALUE)), 1);
        assert_eq!(keep_last(Ok(())), 0);
        assert_eq!(keep_last(Err(Code::NOT_READY)), 600);
        assert_eq!((last(false), last(true), last(true)), (1, 1, 0));
    }
}
