//! Calls in the memory of a device, on the simulated one (`tests/sim`): in the order of streams, captured in graphs, and when
//! something fails.

// Helpers of tests fail by panicking.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]
// Every call here is a call of a C interface with arguments that the test keeps alive.
#![allow(clippy::undocumented_unsafe_blocks)]

#[path = "../support/mod.rs"]
mod support;

mod collectives;
mod errors;
mod failures;
mod graphs;
mod suspend;

use support::cluster::work;

#[test]
fn worker() {
    work(
        &[
            &collectives::SCENARIOS[..],
            &errors::SCENARIOS[..],
            &failures::SCENARIOS[..],
            &graphs::SCENARIOS[..],
            &suspend::SCENARIOS[..],
        ]
        .concat(),
    );
}
