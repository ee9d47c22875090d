//! `accl-bench` from outside, mostly against a shim library whose every operation takes a known time.

// Helpers of tests fail by panicking.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod arithmetic;
mod endings;
mod files;
mod launchers;
mod library;
mod runs;
#[path = "../support/mod.rs"]
mod support;
mod tuning;
mod verdicts;
