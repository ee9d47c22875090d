//! Time, in one place so that everything above can be given a time instead of asking for it.

use std::time::{Duration, Instant};

/// Now, on the clock that never jumps.
pub fn now() -> Instant {
    Instant::now()
}

/// Sleeps; for retries at the edge only, never on a data path.
pub fn sleep(duration: Duration) {
    std::thread::sleep(duration);
}
