//! How long a group should take, by the model of [`Communicator::explain`], without carrying it out.
//!
//! One thread carries out a group, whatever its streams are: so what one rank has to do adds up, and so do communicators.
//! Ranks of one communicator that are in the same group do their parts of the same operations, and count once. What copies to and from
//! a device take, the model does not know.

use super::Communicator;
use super::group::Share;
use crate::engine::{EAGER_BYTES, OneSidedCall, Part};
use crate::error::Result;

/// Nanoseconds for all of these.
pub(super) fn group_ns(shares: &[Share]) -> Result<f64> {
    let mut communicators: Vec<(u64, f64)> = Vec::new();
    for Share { communicator, part } in shares {
        let (number, rank_ns) = (communicator.public_number(), rank_ns(communicator, part)?);
        match communicators.iter_mut().find(|(known, _)| *known == number) {
            Some((_, longest_ns)) => *longest_ns = longest_ns.max(rank_ns),
            None => communicators.push((number, rank_ns)),
        }
    }
    Ok(communicators.iter().map(|(_, ns)| ns).sum())
}

/// Nanoseconds for what one rank does.
fn rank_ns(communicator: &Communicator, part: &Part) -> Result<f64> {
    communicator.check_usable()?;
    let mut ns = 0.0;
    for call in &part.calls {
        ns += communicator.explain_bytes(call.kind, call.count_bytes(), call.selection)?.predicted_ns;
    }
    let (facts, rank) = (&communicator.joined()?.facts, communicator.rank());
    let message_ns = |peer, bytes| facts.predict_message(rank, peer, bytes, EAGER_BYTES);
    let all_ns = |send| {
        let one_way = part.transfers.iter().filter(|transfer| transfer.send == send);
        one_way.map(|transfer| message_ns(transfer.peer, transfer.bytes)).sum::<f64>()
    };
    let copies_ns = part.copies.iter().map(|copy| message_ns(rank, copy.bytes)).sum::<f64>();
    // What is put somewhere is sent; how long a wait for signals lasts is up to others.
    let puts = part.one_sided.iter().filter_map(OneSidedCall::puts);
    let puts_ns = puts.map(|(peer, bytes)| message_ns(peer, bytes)).sum::<f64>();
    // What comes and what goes is under way at the same time.
    Ok(ns + copies_ns + f64::max(all_ns(true) + puts_ns, all_ns(false)))
}

#[cfg(test)]
mod tests {
    use super::super::{CommConfig, Operator, Stream, group};
    use super::*;
    use crate::ErrorKind;
    use crate::memory::{Scratch, UserPointer};
    use crate::types::{Collective, DataType, ReduceOp};

    fn all_reduce(rank: &Communicator, at: UserPointer, count: usize) {
        let sum = Operator::plain(ReduceOp::Sum);
        rank.all_reduce(at, at, count, DataType::Float32, sum, Stream::None).unwrap();
    }

    fn explained(rank: &Communicator, count: usize) -> f64 {
        rank.explain(Collective::AllReduce, count, DataType::Float32).unwrap().predicted_ns
    }

    fn simulated(body: impl FnOnce()) -> Result<Option<f64>> {
        group::start();
        body();
        group::simulate()
    }

    #[test]
    fn calls_and_communicators_add_up_and_ranks_of_one_count_once() {
        let mut memory = Scratch::default();
        let at = memory.fill(&[7; 4096]).unwrap();
        let pair = Communicator::init_all(2, None, &CommConfig::default()).unwrap();
        let other = Communicator::init_all(2, None, &CommConfig::default()).unwrap();
        let (small, large) = (explained(&pair[0], 10), explained(&pair[0], 1000));
        assert!(small > 0.0 && large > small);
        assert_eq!(simulated(|| {}), Ok(Some(0.0)));
        assert_eq!(simulated(|| all_reduce(&pair[0], at, 10)), Ok(Some(small)));
        let twice = simulated(|| {
            pair.iter().for_each(|rank| all_reduce(rank, at, 10));
            pair.iter().for_each(|rank| all_reduce(rank, at, 1000));
        });
        assert_eq!(twice, Ok(Some(small + large)));
        let both = simulated(|| {
            all_reduce(&pair[1], at, 10);
            all_reduce(&other[0], at, 10);
        });
        assert_eq!(both, Ok(Some(small + small)));
        // Nothing was done, and nothing is left.
        assert!(memory.read(4096).iter().all(|byte| *byte == 7));
        assert_eq!(simulated(|| {}), Ok(Some(0.0)));
    }

    #[test]
    fn messages_that_come_and_go_count_once() {
        let mut memory = Scratch::default();
        let at = memory.fill(&[7; 4096]).unwrap();
        let pair = Communicator::init_all(2, None, &CommConfig::default()).unwrap();
        let message = |send, rank: usize, peer, count| {
            let call = if send { Communicator::send } else { Communicator::recv };
            call(&pair[rank], at, count, DataType::Uint8, peer, Stream::None).unwrap();
        };
        let one = simulated(|| message(true, 0, 1, 4096)).unwrap().unwrap();
        assert!(one > 0.0);
        let both = simulated(|| {
            message(true, 0, 1, 4096);
            message(false, 0, 1, 4096);
        });
        assert_eq!(both, Ok(Some(one)));
        let two = simulated(|| (0..2).for_each(|_| message(false, 0, 1, 4096)));
        assert_eq!(two, Ok(Some(one + one)));
        // To itself, and without the other half of that.
        let own = simulated(|| [true, false].iter().for_each(|send| message(*send, 1, 1, 4096)));
        let own = own.unwrap().unwrap();
        assert!(own > 0.0 && own < one, "{own} of {one}");
        let error = simulated(|| message(true, 1, 1, 4096)).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::InvalidUsage);
    }

    #[test]
    fn groups_inside_others_wait_for_those() {
        let mut memory = Scratch::default();
        let at = memory.fill(&[0; 64]).unwrap();
        let alone = Communicator::init_all(1, None, &CommConfig::default()).unwrap();
        let inner = simulated(|| assert_eq!(simulated(|| all_reduce(&alone[0], at, 10)), Ok(None)));
        assert_eq!(inner, Ok(Some(explained(&alone[0], 10))));
        assert_eq!(group::simulate().unwrap_err().kind(), ErrorKind::InvalidUsage);
        let failed = crate::Error::argument("a bad call");
        assert_eq!(simulated(|| group::fail(&failed)), Err(failed));
        assert_eq!(simulated(|| {}), Ok(Some(0.0)));
    }
}
