//! What the library says on its own: warnings on standard error, nothing on standard output.

use std::io::Write;

/// Writes one line, in one piece, to standard error.
pub fn warn(text: &str) {
    let line = format!("ACCL WARN [{}] {text}\n", crate::os::process::id());
    let _ = std::io::stderr().write_all(line.as_bytes());
}
