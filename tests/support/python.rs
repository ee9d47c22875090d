//! Ranks that are Python programs, without any framework.

// Each test file uses its part of this, and none of it from outside.
#![allow(dead_code, unreachable_pub)]
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use std::os::unix::process::CommandExt;
use std::process::Command;

/// True if there is a Python that can call C; says so if not.
pub fn is_here() -> bool {
    let found =
        Command::new("python3").args(["-c", "import ctypes"]).status().is_ok_and(|status| status.success());
    if !found {
        eprintln!("SKIPPED: python3 with ctypes is needed");
    }
    found
}

/// What all of these programs begin with.
const LIBRARY: &str = "
import ctypes, os, signal, sys, threading, time
class Id(ctypes.Structure):
    _fields_ = [('bytes', ctypes.c_uint8 * 128)]
class Config(ctypes.Structure):
    _fields_ = [('size', ctypes.c_size_t), ('magic', ctypes.c_uint), ('version', ctypes.c_uint), ('blocking', ctypes.c_int)]
lib = ctypes.CDLL(os.environ['TEST_LIBRARY'])
lib.ncclCommInitRank.argtypes = [ctypes.c_void_p, ctypes.c_int, Id, ctypes.c_int]
lib.ncclCommInitRankConfig.argtypes = [ctypes.c_void_p, ctypes.c_int, Id, ctypes.c_int, ctypes.c_void_p]
lib.ncclAllReduce.argtypes = [ctypes.c_void_p, ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_int,
                              ctypes.c_void_p, ctypes.c_void_p]
SUCCESS, IN_PROGRESS = 0, 7
comm, ranks = ctypes.c_void_p(), int(os.environ['TEST_SHAPE'].split(',')[1])
uids = [Id.from_buffer_copy(bytes.fromhex(text)) for text in os.environ['TEST_IDS'].split(',')]
def total():
    one, sums = ctypes.c_int32(1), ctypes.c_int32(0)
    code = lib.ncclAllReduce(ctypes.byref(one), ctypes.byref(sums), 1, 2, 0, comm, None)
    return code or sums.value
";

/// Joins as rank 1, and sums with rank 0 and the others.
pub const JOIN: &str = "
assert lib.ncclCommInitRank(ctypes.byref(comm), ranks, uids[0], 1) == SUCCESS
assert total() == ranks
";

/// Becomes Python; does not return.
pub fn become_python(program: &str) -> ! {
    let error = Command::new("python3").arg("-c").arg(format!("{LIBRARY}{program}")).exec();
    panic!("python3: {error}");
}
