#![no_main]
libfuzzer_sys::fuzz_target!(|data: &[u8]| accl_core::fuzzing::plugin_record(data));
