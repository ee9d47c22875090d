//! Choices say what predictions say, on machines of every kind.

use super::*;
use crate::algo::check::KINDS;
use crate::algo::choices::{Choices, Forced, WAYS, sizes};
use crate::topo::FIGURES;
use proptest::prelude::*;

const ALL_WAYS: [Way; 8] = [
    Way::Copied,
    Way::LentFlat,
    Way::LentOwned,
    Way::Passed,
    Way::Staged,
    Way::Ring,
    Way::Tree,
    Way::RecursiveDoubling,
];

const PAIR: Shape = Shape { ranks: 2, cpus: 2, pull: Pull::Kernel };

/// Figures over their whole range, evenly in their logarithm.
fn machines() -> impl Strategy<Value = Machine> {
    prop::collection::vec(0.0..1.0f64, FIGURES.len()).prop_map(|draws| {
        let value = |index: usize| {
            let range = FIGURES[index].unit.range();
            (range.start().ln() + draws[index] * (range.end() / range.start()).ln()).exp()
        };
        Machine::from_values(std::array::from_fn(value))
    })
}

/// Figures around the usual ones.
fn likely_machines() -> impl Strategy<Value = Machine> {
    prop::collection::vec(0.2..5.0f64, FIGURES.len()).prop_map(|factors| {
        let usual = Machine::default().values();
        Machine::from_values(std::array::from_fn(|index| usual[index] * factors[index]))
    })
}

fn shapes() -> impl Strategy<Value = Shape> {
    let pulls = prop::sample::select(vec![Pull::InPlace, Pull::Kernel, Pull::Ring]);
    (1..65usize, 1..65usize, pulls).prop_map(|(ranks, cpus, pull)| Shape { ranks, cpus, pull })
}

fn kinds() -> impl Strategy<Value = Collective> {
    prop::sample::select(KINDS.to_vec())
}

proptest! {
    #[test]
    fn the_way_is_the_cheapest_at_every_size(
        machine in prop_oneof![machines(), likely_machines()], shape in shapes(), kind in kinds(),
    ) {
        let choices = Choices::of(kind, shape, &machine, &Forced::default());
        let time = |way, bytes| predict(way, kind, shape, bytes, &machine);
        for bytes in sizes() {
            let chosen = time(choices.way(bytes), bytes);
            prop_assert!(chosen < f64::INFINITY, "{} bytes", bytes);
            prop_assert!(WAYS.iter().all(|way| chosen <= time(*way, bytes)), "{} bytes", bytes);
        }
        prop_assert_eq!(choices.ways()[0].0, 0);
        prop_assert!(choices.ways().windows(2).all(|pair| pair[0].0 < pair[1].0 && pair[0].1 != pair[1].1));
        let least = choices.streaming_least_bytes;
        let streams = |bytes: usize| streams(kind, shape, bytes, &machine);
        prop_assert!(!sizes().filter(|bytes| *bytes < least).any(streams));
        prop_assert!(least == usize::MAX || streams(least));
    }

    #[test]
    fn no_size_goes_a_way_that_cannot_carry_it(
        machine in machines(), shape in shapes(), kind in kinds(), bytes in 1..1usize << 30, copied in 0..1usize << 20,
    ) {
        for copied_most_bytes in [None, Some(copied)] {
            let forced = Forced { copied_most_bytes, ..Forced::default() };
            let way = Choices::of(kind, shape, &machine, &forced).way(bytes);
            let contributed = Volumes::of(kind, shape.ranks, bytes).contributed;
            prop_assert!(way != Way::Copied || contributed <= BOARD_MOST_BYTES as f64);
            prop_assert!(way != Way::Staged || staging::serves(kind));
            prop_assert!(way != Way::LentOwned || kind == Collective::AllReduce);
        }
    }

    #[test]
    fn what_settings_force_is_done(
        machine in likely_machines(), shape in shapes(), least in 1..1usize << 30, bytes in 1..1usize << 30,
    ) {
        prop_assume!(shape.ranks > 1);
        let way = |forced| Choices::of(Collective::AllReduce, shape, &machine, &forced).way(bytes);
        let passed = way(Forced { passed_least_bytes: Some(least), ..Forced::default() });
        prop_assert_eq!(passed == Way::Passed, bytes >= least);
        let staged = way(Forced { staged_least_bytes: Some(least), ..Forced::default() });
        prop_assert_eq!(staged == Way::Staged, bytes >= least && bytes <= STAGED_MOST_BYTES);
        let flat = way(Forced { flat_most_bytes: Some(least), ..Forced::default() });
        let other = if bytes <= least { Way::LentOwned } else { Way::LentFlat };
        prop_assert_ne!(flat, other);
        let small = bytes.min(20 << 10);
        let forced = Forced { copied_most_bytes: Some(least % (BOARD_MOST_BYTES + 1)), ..Forced::default() };
        let copied = Choices::of(Collective::AllReduce, shape, &machine, &forced).way(small) == Way::Copied;
        prop_assert_eq!(copied, small <= least % (BOARD_MOST_BYTES + 1));
    }

    #[test]
    fn more_bytes_take_no_less_time(
        machine in prop_oneof![machines(), likely_machines()], shape in shapes(), kind in kinds(),
    ) {
        for way in ALL_WAYS {
            let times: Vec<f64> = sizes().map(|bytes| predict(way, kind, shape, bytes, &machine)).collect();
            for pair in times.windows(2) {
                prop_assert!(pair[0] > 0.0 && pair[0] <= pair[1] * (1.0 + 1e-12), "{way:?}: {pair:?}");
            }
        }
    }

    #[test]
    fn slower_figures_never_make_a_call_faster(
        machine in likely_machines(), shape in shapes(), kind in kinds(), place in 0..FIGURES.len(), bytes in 1..1usize << 30,
    ) {
        prop_assume!(FIGURES[place].unit != crate::topo::Unit::Kib);
        let mut values = machine.values();
        values[place] *= 1.5;
        let slower = Machine::from_values(values);
        for way in ALL_WAYS {
            let (before, after) = (predict(way, kind, shape, bytes, &machine), predict(way, kind, shape, bytes, &slower));
            prop_assert!(before <= after, "{way:?}: {before} {after}");
        }
    }
}

#[test]
fn sizes_grow_by_an_eighth_at_most() {
    let all: Vec<_> = sizes().collect();
    assert_eq!((all[0], all[7], all[8], all.last()), (1, 8, 9, Some(&(15 << 28))));
    assert!(all.windows(2).all(|pair| pair[0] < pair[1] && pair[1] <= pair[0] + pair[0].div_ceil(8).max(1)));
}

/// Two ranks that write and read each other's data took so long on the machine of the default figures.
#[test]
fn the_default_machine_is_the_one_that_was_measured() {
    for (bytes, measured_ns) in [(512, 330.0), (2048, 600.0), (4096, 1200.0), (16384, 3300.0)] {
        let ns = predict(Way::Copied, Collective::AllGather, PAIR, bytes, &Machine::default());
        assert!(
            (measured_ns / 1.3..measured_ns * 1.3).contains(&ns),
            "{bytes}: {ns}, measured {measured_ns}"
        );
    }
}

fn ways_of_all_reduce(shape: Shape) -> Vec<Way> {
    let choices = Choices::of(Collective::AllReduce, shape, &Machine::default(), &Forced::default());
    choices.ways().iter().map(|(_, way)| *way).collect()
}

#[test]
fn a_pair_begins_on_the_board_and_lends_more() {
    let ways = ways_of_all_reduce(PAIR);
    assert_eq!(ways[..2], [Way::Copied, Way::LentFlat], "{ways:?}");
}

#[test]
fn crowded_ranks_stage_what_the_board_does_not_hold() {
    let ways = ways_of_all_reduce(Shape { ranks: 8, ..PAIR });
    assert_eq!(ways[0], Way::Copied);
    assert!(ways.contains(&Way::Staged), "{ways:?}");
}

#[test]
fn more_ranks_than_processors_wait_for_each_other() {
    let crowded = Shape { ranks: 4, ..PAIR };
    let roomy = Shape { cpus: 4, ..crowded };
    let time = |shape| predict(Way::Copied, Collective::AllReduce, shape, 8, &Machine::default());
    assert!(time(crowded) > time(roomy) + 799.0, "{} {}", time(crowded), time(roomy));
}
