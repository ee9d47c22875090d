//! What plugins write to the log, by a function in C (`logger.c`).

use std::ffi::{CStr, c_char, c_int, c_ulong, c_void};
use std::panic::catch_unwind;
use std::sync::Once;

use accl_core::telemetry::{self, log};

/// NCCL's numbers of levels.
const WARN: c_int = 2;
const INFO: c_int = 3;

type Sink = extern "C" fn(c_int, c_ulong, *const c_char, c_int, *const c_char);

/// The function as a plugin gets it; its type is the plugin's matter.
#[derive(Clone, Copy, Debug)]
#[repr(transparent)]
pub(super) struct Logger(*const c_void);

unsafe extern "C" {
    fn accl_plugin_logs_to(sink: Sink);
    fn accl_plugin_log();
}

/// The function for plugins.
pub(super) fn logger() -> Logger {
    static SET: Once = Once::new();
    // SAFETY: a function that stays where it is; nobody else sets it.
    SET.call_once(|| unsafe { accl_plugin_logs_to(line) });
    Logger(accl_plugin_log as *const c_void)
}

/// A line of a plugin.
extern "C" fn line(
    level: c_int,
    subsystems: c_ulong,
    _file: *const c_char,
    _line: c_int,
    text: *const c_char,
) {
    // SAFETY: `logger.c` hands a text with its end.
    let text = unsafe { CStr::from_ptr(text) }.to_string_lossy();
    // A plugin's call must come back, whatever happens here.
    let _ = catch_unwind(|| match level {
        WARN => telemetry::warn(&text),
        // The bits above are of no subsystem.
        INFO => log::info(subsystems as u32, format_args!("{text}")),
        _ => {}
    });
}
