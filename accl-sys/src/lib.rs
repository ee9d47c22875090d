//! test
/// # Safety
/// none
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ncclGetVersion(v: *mut i32) -> i32 {
    unsafe { *v = 1 };
    0
}
