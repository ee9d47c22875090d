//! Runs every committed fuzz input through the body of its target, with the ordinary toolchain.

// Helpers of tests fail by panicking.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use accl_core::fuzzing::TARGETS;
use std::path::Path;

#[test]
fn all_committed_inputs_still_pass() {
    let fuzz = Path::new(env!("CARGO_MANIFEST_DIR")).join("../fuzz");
    let mut names: Vec<_> = names_in(&fuzz.join("fuzz_targets"), ".rs");
    names.sort();
    let mut known: Vec<_> = TARGETS.iter().map(|(name, _)| (*name).to_string()).collect();
    known.sort();
    assert_eq!(names, known, "fuzz targets and `accl_core::fuzzing::TARGETS`");
    for (name, body) in TARGETS {
        let corpus = fuzz.join("corpus").join(name);
        let mut inputs = names_in(&corpus, "");
        inputs.sort();
        assert!(!inputs.is_empty(), "no inputs for {name}");
        for input in &inputs {
            let data = std::fs::read(corpus.join(input)).unwrap();
            let outcome = std::panic::catch_unwind(|| body(&data));
            assert!(outcome.is_ok(), "fuzz/corpus/{name}/{input} breaks {name}");
        }
        println!("{name}: {} inputs", inputs.len());
    }
}

/// The names of a directory's files that end in `suffix`, without it.
fn names_in(directory: &Path, suffix: &str) -> Vec<String> {
    let entries =
        std::fs::read_dir(directory).unwrap_or_else(|error| panic!("{}: {error}", directory.display()));
    let name = |entry: std::io::Result<std::fs::DirEntry>| entry.unwrap().file_name().into_string().unwrap();
    entries.map(name).filter_map(|name| name.strip_suffix(suffix).map(str::to_string)).collect()
}
