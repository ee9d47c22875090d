//! Jobs on several hosts: network namespaces of this machine, joined by cables (veth) that the tests make and remove.
//!
//! Needs root and the command `ip`. Where namespaces are not permitted, the tests say so and pass.

// Helpers of tests fail by panicking.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod doors;
mod encryption;
mod failures;
mod finding;
mod hosts;
mod job;
mod links;
mod namespaces;
mod slow;
mod stripes;
#[path = "../support/mod.rs"]
mod support;

/// Runs a rank in a process of its own, when a test has started this program again.
#[test]
fn worker() {
    job::work(&[
        doors::SCENARIOS,
        encryption::SCENARIOS,
        failures::SCENARIOS,
        finding::SCENARIOS,
        hosts::SCENARIOS,
        links::SCENARIOS,
        slow::SCENARIOS,
        stripes::SCENARIOS,
    ]);
}
