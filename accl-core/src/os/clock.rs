//! Time, in one place so that everything above can be given a time instead of asking for it.

use std::time::{Duration, Instant, SystemTime};

/// Now, on the clock that never jumps.
pub fn now() -> Instant {
    Instant::now()
}

/// Nanoseconds since 1970, by the clock of the machine, which may jump: for what is told to people and to other hosts only.
pub fn wall_ns() -> u64 {
    let since = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since.as_nanos()).unwrap_or(u64::MAX)
}

/// Sleeps; for retries at the edge only, never on a data path.
pub fn sleep(duration: Duration) {
    std::thread::sleep(duration);
}
