//! What a message from one rank to another costs: to the model it is a broadcast between these two.

use super::cost::{Pull, Shape, Way, predict};
use crate::topo::Machine;
use crate::types::Collective;

/// Nanoseconds from the send of a message of `bytes` until it is received, between ranks of one host, who are as `shape` says. Up to
/// `copied_most_bytes` it goes through a ring, whose reader need not be there yet.
pub(super) fn predict_message(
    shape: Shape,
    bytes: usize,
    copied_most_bytes: usize,
    machine: &Machine,
) -> f64 {
    let cpus = if shape.ranks > shape.cpus { 1 } else { 2 };
    let copied = bytes <= copied_most_bytes || shape.pull == Pull::Ring;
    let way = if copied { Way::Passed } else { Way::LentFlat };
    predict(way, Collective::Broadcast, Shape { ranks: 2, cpus, ..shape }, bytes, machine)
}

/// Nanoseconds that a rank takes to copy `bytes` to itself.
pub(super) fn predict_own_copy(shape: Shape, bytes: usize, machine: &Machine) -> f64 {
    predict(Way::LentFlat, Collective::Broadcast, Shape { ranks: 1, ..shape }, bytes, machine)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_message_is_a_broadcast_between_two() {
        let (machine, eager) = (Machine::default(), 64 << 10);
        let many = Shape { ranks: 8, cpus: 8, pull: Pull::Kernel };
        let broadcast = |way, bytes, cpus| {
            let pair = Shape { ranks: 2, cpus, pull: Pull::Kernel };
            predict(way, Collective::Broadcast, pair, bytes, &machine)
        };
        let message = |shape, bytes| predict_message(shape, bytes, eager, &machine);
        assert_eq!(message(many, eager), broadcast(Way::Passed, eager, 2));
        assert_eq!(message(many, eager + 1), broadcast(Way::LentFlat, eager + 1, 2));
        assert_eq!(message(Shape { cpus: 2, ..many }, 8), broadcast(Way::Passed, 8, 1));
        let apart = Shape { pull: Pull::Ring, ..many };
        assert_eq!(message(apart, 1 << 20), {
            let pair = Shape { ranks: 2, cpus: 2, pull: Pull::Ring };
            predict(Way::Passed, Collective::Broadcast, pair, 1 << 20, &machine)
        });
        assert!(predict_own_copy(many, 1 << 20, &machine) < message(many, 1 << 20));
    }
}
