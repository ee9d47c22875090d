//! How many processors this process may use.

/// Processors in this process's affinity mask, at least 1.
pub fn available_cores() -> usize {
    std::thread::available_parallelism().map_or(1, usize::from)
}

/// Lets another thread run, when spinning has lasted too long.
pub fn yield_now() {
    std::thread::yield_now();
}
