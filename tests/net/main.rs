//! Jobs on several hosts: network namespaces of this machine, joined by cables (veth) that the tests make and remove.
//!
//! Needs root and the command `ip`. Where namespaces are not permitted, the tests say so and pass.

// Helpers of tests fail by panicking.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod failures;
mod finding;
mod job;
mod links;
mod namespaces;
mod stripes;
#[path = "../support/mod.rs"]
mod support;

/// Runs a rank in a process of its own, when a test has started this program again.
#[test]
fn worker() {
    job::work(&[failures::SCENARIOS, finding::SCENARIOS, links::SCENARIOS, stripes::SCENARIOS]);
}
