//! How the library chooses, and what it measures for that.

use std::path::Path;
use std::time::Duration;

use crate::library::on_library;
use crate::runs::*;
use crate::support;

/// `name = value unit` of a text.
fn figures(text: &str) -> Vec<(String, f64, String)> {
    let figure = |line: &str| {
        let (name, rest) = line.split_once(" = ")?;
        let (value, unit) = rest.split_once(' ')?;
        Some((name.to_string(), value.parse().ok()?, unit.to_string()))
    };
    text.lines().filter(|line| !line.starts_with('#')).filter_map(figure).collect()
}

/// The lines of --explain: size, way, predicted, measured, ratio.
fn explanations(stdout: &[u8]) -> Vec<(usize, String, f64, f64, f64)> {
    let explanation = |line: &str| {
        let words: Vec<_> =
            line.strip_prefix("#   ")?.split([' ', ',', ':']).filter(|word| !word.is_empty()).collect();
        let ["predicted", predicted, "us", "measured", measured, "us", "ratio", ratio] = *words.get(3..)?
        else {
            return None;
        };
        let number = |text: &str| text.parse().unwrap();
        Some((
            words[0].parse().unwrap(),
            words[2].to_string(),
            number(predicted),
            number(measured),
            number(ratio),
        ))
    };
    text(stdout).lines().filter_map(explanation).collect()
}

#[test]
fn tune_measures_and_prints_and_a_dry_run_writes_nothing() {
    let home = scratch("tune-dry");
    let output = support::run(on_library("tune --dry-run").env("XDG_CACHE_HOME", &home));
    let stdout = text(&output.stdout);
    let figures = figures(&stdout);
    assert!(stdout.starts_with("accl-tune 1\n") && stdout.ends_with("# not written\n"), "{stdout}");
    assert_eq!(figures.len(), 19, "{stdout}");
    assert!(
        figures.iter().all(|(_, value, unit)| *value >= 1.0 && ["ns", "ns/KiB", "KiB"].contains(&&**unit))
    );
    for ranks in ["2", "4", "8"] {
        let row = |line: &&str| line.split_whitespace().take(3).eq(["#", "AllReduce", ranks]);
        assert_eq!(stdout.lines().filter(row).count(), 2, "{stdout}");
    }
    assert_eq!(std::fs::read_dir(&home).unwrap().count(), 0);
}

#[test]
fn what_tune_writes_is_what_communicators_choose_by() {
    let home = scratch("tune-cache");
    let file = home.join("figures");
    let output = support::run(on_library("tune").env("XDG_CACHE_HOME", &home));
    let stdout = text(&output.stdout);
    let written = stdout.lines().last().unwrap().strip_prefix("# written to ").unwrap();
    assert_eq!(Path::new(written).parent(), Some(&*home.join("accl")));
    let kept = std::fs::read_to_string(written).unwrap();
    assert_eq!(figures(&kept), figures(&stdout));
    // A machine whose every handover takes a millisecond cannot be mistaken for another one.
    let slow =
        kept.lines().map(|line| if line.starts_with("handover = ") { "handover = 1000000 ns" } else { line });
    std::fs::write(&file, slow.collect::<Vec<_>>().join("\n")).unwrap();
    let words = "all_reduce -b 8 -e 8 -n 1 -g 2 --explain";
    let predicted = |tune: &str, cache: &Path| {
        let mut command = on_library(words);
        let output = support::run(command.env("ACCL_TUNE", tune).env("XDG_CACHE_HOME", cache));
        explanations(&output.stdout)[0].2
    };
    let nowhere = home.join("nowhere");
    assert!(predicted(file.to_str().unwrap(), &nowhere) >= 1000.0);
    let defaults = predicted("off", &home);
    assert!(defaults < 1.0, "{defaults}");
    assert_eq!(predicted("", &nowhere), defaults, "nothing was measured");
    // The cache of the boot, of another content, counts unless it is turned off.
    std::fs::copy(&file, written).unwrap();
    assert!(predicted("", &home) >= 1000.0 && predicted("measure", &home) >= 1000.0);
    assert_eq!(predicted("off", &home), defaults);
    // A cache that cannot be understood is warned about; a file that is asked for is an error.
    std::fs::write(written, "accl-tune 1\nhandover = 0 ns\n").unwrap();
    assert_eq!(predicted("", &home), defaults);
    let output = on_library(words).env("ACCL_TUNE", written).output().unwrap();
    let stderr = text(&output.stderr);
    assert_eq!(code(&output), 4, "{stderr}");
    assert!(stderr.contains("line 2: handover is \"0 ns\", need a number from 1 to 1000000"), "{stderr}");
}

#[test]
fn all_ranks_choose_by_what_rank_0_was_given() {
    let file = scratch("tune-differs").join("slow");
    std::fs::write(&file, "accl-tune 1\nhandover = 1000000 ns\n").unwrap();
    let start = |rank: usize| {
        let mut command = on_library("all_reduce -b 8 -e 1M -f 32 -n 1 --explain");
        command.env("OMPI_COMM_WORLD_RANK", rank.to_string()).env("OMPI_COMM_WORLD_SIZE", "2");
        spawn(command.env("ACCL_TUNE", if rank == 0 { file.to_str().unwrap() } else { "/nowhere/figures" }))
    };
    let outputs = [1, 0].map(start).map(|child| within(Duration::from_secs(60), child).0);
    for output in &outputs {
        let stderr = text(&output.stderr);
        assert!(code(output) == 0 && !stderr.contains("in another way"), "{stderr}");
    }
    assert!(explanations(&outputs[1].stdout).iter().all(|(_, _, predicted, ..)| *predicted >= 1000.0));
}

#[test]
fn measure_measures_once_and_keeps_it() {
    let home = scratch("tune-measure");
    let run = || {
        let mut command = on_library("broadcast -b 8 -e 8 -n 1 -t 2 --explain");
        let output = support::run(command.env("ACCL_TUNE", "measure").env("XDG_CACHE_HOME", &home));
        explanations(&output.stdout)[0].2
    };
    let first = run();
    let kept: Vec<_> =
        std::fs::read_dir(home.join("accl")).unwrap().map(|entry| entry.unwrap().path()).collect();
    assert_eq!(kept.len(), 1);
    let content = std::fs::read(&kept[0]).unwrap();
    assert_eq!(run(), first);
    assert_eq!(std::fs::read(&kept[0]).unwrap(), content);
}

#[test]
fn explanations_stand_under_every_row() {
    let json_file = scratch("explain").join("out.json");
    for test in
        ["all_reduce", "all_gather", "reduce", "broadcast", "reduce_scatter", "alltoall", "gather", "scatter"]
    {
        let mut command = on_library(&format!("{test} -b 64 -e 1M -f 16 -n 2 -g 2 --explain"));
        let output = support::run(command.env("ACCL_TUNE", "off"));
        let explained = explanations(&output.stdout);
        let rows = rows(&output.stdout);
        assert_eq!(explained.len(), rows.len(), "{}", text(&output.stdout));
        for (row, (bytes, way, predicted, measured, ratio)) in rows.iter().zip(&explained) {
            assert_eq!(row[0], bytes.to_string());
            assert_eq!(row[5].parse::<f64>().unwrap(), *measured);
            assert!(["copied", "lent-flat", "lent-owned", "passed"].contains(&way.as_str()), "{way}");
            // Both sides of the table are rounded.
            assert!(
                (ratio * predicted - measured).abs() <= 0.02 * measured + ratio * 0.01,
                "{row:?} {predicted} {ratio}"
            );
        }
        assert_eq!((&*explained[0].1, explained[0].1 == explained.last().unwrap().1), ("copied", false));
    }
    let mut command = on_library("all_reduce -b 1M -e 1M -n 1 -g 2 --explain");
    command.env("ACCL_ALGO", "ring").arg("-J").arg(&json_file);
    assert_eq!(explanations(&support::run(&mut command).stdout)[0].1, "ring");
    let result = &json(&json_file)["results"][0]["explained"];
    assert!(result["way"] == "ring" && result["predicted_us"].as_f64().unwrap() > 0.0, "{result}");
}

#[test]
fn what_cannot_be_explained_is_said_and_measured() {
    for (words, reason) in [
        (on_shim("all_reduce -b 8 -e 8 -n 1 --explain"), "no acclExplain"),
        (on_library("sendrecv -b 8 -e 8 -n 1 -g 2 --explain"), "no single operation"),
    ] {
        let mut command = words;
        let output = support::run(command.env("SHIM_CALL_US", "50"));
        assert!(text(&output.stderr).contains(reason), "{}", text(&output.stderr));
        assert_eq!((rows(&output.stdout).len(), explanations(&output.stdout).len()), (1, 0));
    }
    let output = on_shim("tune").output().unwrap();
    assert_eq!(code(&output), 3);
    assert!(text(&output.stderr).contains("no acclTune"), "{}", text(&output.stderr));
    assert_eq!(code(&on_library("tune --dry-run --output x").output().unwrap()), 2);
    assert_eq!(code(&on_library("tune --output /proc/x/y").output().unwrap()), 4);
}
