//! Time, in one place so that everything above can be given a time instead of asking for it.
//!
//! # Safety
//! The C library's functions for local time get pointers to values and buffers of this file, with their lengths.
#![allow(unsafe_code)]

use std::ffi::CString;
use std::mem::MaybeUninit;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

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

/// The local time of day in a format of strftime, and `%3f` for milliseconds (1 to 9 digits). Empty if the format is, or
/// makes more than 200 bytes.
pub fn local_time(format: &str) -> String {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    let Ok(format) = CString::new(with_fraction(format, since.subsec_nanos())) else { return String::new() };
    let seconds = since.as_secs().cast_signed() as libc::time_t;
    let mut fields = MaybeUninit::<libc::tm>::zeroed();
    // SAFETY: both pointers are to values of this function.
    if unsafe { libc::localtime_r(&raw const seconds, fields.as_mut_ptr()) }.is_null() {
        return String::new();
    }
    let mut text = [0u8; 200];
    // SAFETY: the buffer is as long as said, the format ends with NUL, and localtime_r has filled the fields.
    let used =
        unsafe { libc::strftime(text.as_mut_ptr().cast(), text.len(), format.as_ptr(), fields.as_ptr()) };
    String::from_utf8_lossy(&text[..used]).into_owned()
}

/// Replaces `%3f` by so many digits of the fraction of a second: strftime knows whole seconds only.
fn with_fraction(format: &str, nanoseconds: u32) -> String {
    let digits = format!("{nanoseconds:09}");
    let mut text = format.to_string();
    for count in 1..=9 {
        text = text.replace(&format!("%{count}f"), &digits[..count]);
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_written_as_asked() {
        assert_eq!(with_fraction("%T.%3f %6f", 1_234_567), "%T.001 001234");
        let text = local_time("[%F %T] ");
        let shape: String =
            text.chars().map(|letter| if letter.is_ascii_digit() { '0' } else { letter }).collect();
        assert_eq!(shape, "[0000-00-00 00:00:00] ");
        assert_eq!(local_time(""), "");
        assert_eq!(local_time(&"x".repeat(300)), "");
        assert_eq!(local_time("a\0b"), "");
    }
}
