//! The processors: how many this process may use, which one a thread runs on, and giving way.
#![allow(unsafe_code)]

/// Processors in this process's affinity mask, at least 1.
pub fn available_cores() -> usize {
    std::thread::available_parallelism().map_or(1, usize::from)
}

/// The processor that the calling thread runs on; none where the system does not say.
pub fn current_core() -> Option<u32> {
    // SAFETY: the call takes nothing and only returns a number.
    u32::try_from(unsafe { libc::sched_getcpu() }).ok()
}

/// Lets another thread run, when spinning has lasted too long.
pub fn yield_now() {
    std::thread::yield_now();
}
