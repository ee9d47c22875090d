//! Thresholds say what predictions say, on machines of every kind.

use super::*;
use crate::algo::check::KINDS;
use crate::topo::FIGURES;
use proptest::prelude::*;

const WAYS: [Way; 7] =
    [Way::Copied, Way::LentFlat, Way::LentOwned, Way::Passed, Way::Ring, Way::Tree, Way::RecursiveDoubling];

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

/// Up to `threshold` the first is never more, and right above it is, unless there is no size above.
fn crosses(threshold: usize, first: impl Fn(usize) -> f64, second: impl Fn(usize) -> f64) {
    for bytes in sizes().take_while(|bytes| *bytes <= threshold) {
        assert!(first(bytes) <= second(bytes), "{bytes}: {} > {}", first(bytes), second(bytes));
    }
    if let Some(bytes) = sizes().find(|bytes| *bytes > threshold) {
        assert!(first(bytes) > second(bytes), "{bytes}: {} <= {}", first(bytes), second(bytes));
    }
}

proptest! {
    #[test]
    fn thresholds_are_where_predictions_cross(
        machine in prop_oneof![machines(), likely_machines()], shape in shapes(), kind in kinds(),
    ) {
        let thresholds = Thresholds::of(kind, shape, &machine);
        let time = |way, bytes| predict(way, kind, shape, bytes, &machine);
        crosses(
            thresholds.copied_most_bytes,
            |bytes| time(Way::Copied, bytes),
            |bytes| time(Way::LentFlat, bytes).min(time(Way::LentOwned, bytes)),
        );
        let passing = thresholds.passing_least_bytes;
        for bytes in sizes().filter(|bytes| *bytes >= passing) {
            let lent = time(Way::LentFlat, bytes).min(time(Way::LentOwned, bytes));
            prop_assert!(time(Way::Passed, bytes) < lent, "{} bytes", bytes);
        }
        if let Some(last) = sizes().filter(|bytes| *bytes < passing).last() {
            let lent = time(Way::LentFlat, last).min(time(Way::LentOwned, last));
            prop_assert!(time(Way::Passed, last) >= lent, "{} bytes", last);
        }
        crosses(
            thresholds.flat_most_bytes,
            |bytes| time(Way::LentFlat, bytes),
            |bytes| time(Way::LentOwned, bytes),
        );
        let volumes = |bytes| Volumes::of(kind, shape.ranks, bytes);
        let stores =
            |bytes| Model { kind, shape, bytes, volumes: volumes(bytes), machine: &machine }.stores();
        let below = sizes().filter(|bytes| *bytes < thresholds.streaming_least_bytes);
        prop_assert!(below.map(stores).all(|(cached, streaming)| cached <= streaming));
        if thresholds.streaming_least_bytes < usize::MAX {
            let (cached, streaming) = stores(thresholds.streaming_least_bytes);
            prop_assert!(streaming < cached);
        }
        let board = BOARD_MOST_BYTES as f64;
        prop_assert!(volumes(thresholds.copied_most_bytes).contributed <= board);
        prop_assert!(kind == Collective::AllReduce || thresholds.flat_most_bytes == usize::MAX);
    }

    #[test]
    fn more_bytes_take_no_less_time(
        machine in prop_oneof![machines(), likely_machines()], shape in shapes(), kind in kinds(),
    ) {
        for way in WAYS {
            let times: Vec<f64> = sizes().map(|bytes| predict(way, kind, shape, bytes, &machine)).collect();
            for pair in times.windows(2) {
                prop_assert!(pair[0] > 0.0 && pair[0] <= pair[1] * (1.0 + 1e-12), "{way:?}: {pair:?}");
            }
        }
    }

    #[test]
    fn the_way_is_the_cheapest_around_each_threshold(machine in likely_machines(), shape in shapes()) {
        let kind = Collective::AllReduce;
        let thresholds = Thresholds::of(kind, shape, &machine);
        prop_assume!(shape.ranks > 1 && thresholds.copied_most_bytes < thresholds.flat_most_bytes);
        let ways = [Way::Copied, Way::LentFlat, Way::LentOwned];
        for threshold in [thresholds.copied_most_bytes, thresholds.flat_most_bytes] {
            for bytes in sizes().filter(|bytes| *bytes == threshold) {
                let chosen = predict(thresholds.way(bytes), kind, shape, bytes, &machine);
                let least = ways.map(|way| predict(way, kind, shape, bytes, &machine));
                // Copying may become the cheapest again, and is not gone back to.
                let least = if threshold == thresholds.copied_most_bytes { &least[..] } else { &least[1..] };
                prop_assert!(least.iter().all(|time| chosen <= *time), "{bytes}: {chosen} of {least:?}");
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
        for way in WAYS {
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

#[test]
fn a_pair_goes_from_the_board_to_lending_to_owning_to_passing() {
    let thresholds = Thresholds::of(Collective::AllReduce, PAIR, &Machine::default());
    assert!((1024..=16384).contains(&thresholds.copied_most_bytes), "{thresholds:?}");
    assert!(thresholds.flat_most_bytes > thresholds.copied_most_bytes, "{thresholds:?}");
    assert!(thresholds.flat_most_bytes < usize::MAX, "{thresholds:?}");
    assert_eq!(thresholds.way(8), Way::Copied);
    assert_eq!(thresholds.way(thresholds.copied_most_bytes + 1), Way::LentFlat);
    assert_eq!(thresholds.way(thresholds.flat_most_bytes + 1), Way::LentOwned);
    assert_eq!(thresholds.way(1 << 30), Way::Passed);
    // With more ranks, reading everything everywhere is worth it for less.
    let eight = Shape { ranks: 8, cpus: 8, ..PAIR };
    let wide = Thresholds::of(Collective::AllReduce, eight, &Machine::default());
    assert!(wide.flat_most_bytes < thresholds.flat_most_bytes, "{wide:?}");
}

#[test]
fn more_ranks_than_processors_wait_for_each_other() {
    let crowded = Shape { ranks: 4, ..PAIR };
    let roomy = Shape { cpus: 4, ..crowded };
    let time = |shape| predict(Way::Copied, Collective::AllReduce, shape, 8, &Machine::default());
    assert!(time(crowded) > time(roomy) + 799.0, "{} {}", time(crowded), time(roomy));
}
