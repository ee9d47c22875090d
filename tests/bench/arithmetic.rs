//! Times, bandwidths, tails: the numbers.

use serde_json::Value;

use crate::runs::*;
use crate::support;

/// S over count, and the bus factor, as nccl-tests publishes them.
fn published(test: &str, n: f64) -> (f64, f64) {
    match test {
        "all_reduce" => (1.0, 2.0 * (n - 1.0) / n),
        "reduce_scatter" | "all_gather" | "alltoall" | "alltoallv" | "gather" | "scatter" => {
            (n, (n - 1.0) / n)
        }
        "hypercube" => (n - 1.0, 1.0),
        _ => (1.0, 1.0),
    }
}

/// Time of one operation of the shim in groups, of which a hypercube needs several: own part, then each step.
fn groups(test: &str, ranks: u32, in_place: bool) -> f64 {
    match test {
        "hypercube" => f64::from(ranks.ilog2()) + if in_place { 0.0 } else { 1.0 },
        _ => 1.0,
    }
}

/// Checks one result; the answer is how far the times are from those of the shim, as a share.
fn arithmetic(test: &str, ranks: u32, result: &Value) -> f64 {
    let (size, count) = (result["size"].as_f64().unwrap(), result["count"].as_f64().unwrap());
    let (parts, factor) = published(test, f64::from(ranks));
    assert_eq!(size, count * 4.0 * parts, "{test} of {ranks}");
    let mut worst: f64 = 0.0;
    for (place, in_place) in [("out_of_place", false), ("in_place", true)] {
        let one = &result[place];
        if one.is_null() {
            assert!(["alltoall", "alltoallv", "sendrecv"].contains(&test));
            continue;
        }
        let number = |name: &str| one[name].as_f64().unwrap();
        let same = |got: f64, expected: f64| {
            assert!((got / expected - 1.0).abs() < 1e-9, "{test} of {ranks} {place}: {got}, not {expected}");
        };
        same(number("alg_bw"), size / number("time") / 1e3);
        same(number("bus_bw"), number("alg_bw") * factor);
        let expected_us = 10_000.0 * groups(test, ranks, in_place);
        worst = worst.max((number("time") / expected_us - 1.0).abs());
    }
    worst
}

#[test]
fn time_and_bandwidth_are_as_published() {
    let directory = scratch("arithmetic");
    for ranks in [2, 3, 5, 8] {
        for test in TESTS {
            if test == "hypercube" && ![2, 8].contains(&ranks) {
                continue;
            }
            // Threads, which are cheaper than processes; where it goes, shared out among two, to have both.
            let (processes, threads) = if ranks % 2 == 0 { (2, ranks / 2) } else { (1, ranks) };
            let words = format!("{test} -b 64K -e 64K -g {processes} -t {threads} -n 3 -w 0 -q -a 2");
            // On a busy machine calls take longer than the shim says; then another try tells.
            let close = (0..20).any(|attempt| {
                let file = directory.join(format!("{test}-{ranks}-{attempt}.json"));
                support::run(on_shim(&words).arg("-J").arg(&file));
                arithmetic(test, ranks, &json(&file)["results"][0]) < 0.01
            });
            assert!(close, "{test} of {ranks}: the time is never within 1%");
        }
    }
}

#[test]
fn help_explains_every_column_and_code() {
    let help = text(&support::run(&mut bench("--help")).stdout);
    for word in [
        "size (B)",
        "count (elements)",
        "time (us)",
        "algbw (GB/s)",
        "busbw (GB/s)",
        "#wrong",
        "i_p99",
        "10^9 bytes",
        "2(n-1)/n",
        "EXIT CODES",
        "130",
        "ENVIRONMENT",
        "NCCL_TESTS_MIN_BW",
        "-y defaults to 1",
        "--minbytes",
    ] {
        assert!(help.contains(word), "no \"{word}\" in the help");
    }
    let list = text(&support::run(&mut bench("--list")).stdout);
    assert!(list.contains("hypercube") && list.contains("f8e5m2") && list.contains("mulsum"));
}

#[test]
fn tails_show_and_the_slow_rank_is_named() {
    let file = scratch("tails").join("out.json");
    let mut command = on_shim("broadcast -b 1K -e 1K -g 3 -n 200 -I -q");
    command.envs([("SHIM_SLOW_RANK", "1"), ("SHIM_CALL_US", "2000"), ("SHIM_SLOW_US", "20000")]);
    let output = support::run(command.arg("-J").arg(&file));
    let stdout = text(&output.stdout);
    assert!(stdout.contains("i_p99") && stdout.contains("# first call: "), "{stdout}");
    assert!(stdout.contains("# Slowest rank: 1 "), "{stdout}");
    let document = json(&file);
    let one = &document["results"][0]["out_of_place"];
    let number = |name: &str| one[name].as_f64().unwrap();
    assert!(number("p99") > 20_000.0 && number("max") > 20_000.0, "{one}");
    assert!(number("p50") < 5_000.0, "{one}");
    assert_eq!(one["times_us"].as_array().unwrap().len(), 200);
    assert_eq!(one["slowest_rank"], 1);
    assert!(document["accl_bench"]["first_call_us"].as_array().unwrap().len() == 3);
}
