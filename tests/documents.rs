//! What the documents say and show: the example compiles and runs, links lead somewhere, and the table of settings is
//! the one of the sources.

// Helpers of tests fail by panicking.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod support;

use accl_core::config::{ACCEPTED, Kind, SETTINGS};
use accl_core::topo::{FIGURES, Figure, Unit};
use std::path::{Path, PathBuf};
use std::process::Command;

#[test]
fn the_c_example_runs() {
    let directory = support::libraries();
    let program = directory.join(format!("example-allreduce-{}", std::process::id()));
    // As README.md says, apart from the places of the library and of the program.
    let mut compile = Command::new(std::env::var_os("CC").unwrap_or_else(|| "cc".into()));
    compile.args(["-std=gnu11", "-Wall", "-Wextra", "-Werror", "-pedantic"]);
    compile
        .arg("-I")
        .arg(support::root().join("include"))
        .arg(support::root().join("examples/c/allreduce.c"));
    compile.arg("-L").arg(directory).arg("-lnccl").arg("-o").arg(&program);
    support::run(&mut compile);
    let output = support::run(&mut support::program(&program));
    assert_eq!(String::from_utf8_lossy(&output.stdout), "4 ranks, 1000 elements: every sum is right\n");
    std::fs::remove_file(program).unwrap();
}

#[test]
fn links_between_documents_lead_somewhere() {
    let root = support::root();
    let mut documents: Vec<PathBuf> = Vec::new();
    for directory in [root.clone(), root.join("docs")] {
        let entries = std::fs::read_dir(directory).unwrap().map(|entry| entry.unwrap().path());
        documents.extend(entries.filter(|path| path.extension().is_some_and(|extension| extension == "md")));
    }
    let mut links = 0;
    for document in &documents {
        let text = std::fs::read_to_string(document).unwrap();
        for (at, _) in text.match_indices("](") {
            let target = text[at + 2..].split(')').next().unwrap();
            if target.contains("://") {
                continue;
            }
            let file = document.parent().unwrap().join(target.split('#').next().unwrap());
            assert!(file.exists(), "{}: {target}", document.display());
            links += 1;
        }
    }
    println!("{} documents, {links} links", documents.len());
    assert!(documents.len() >= 5 && links > 5);
}

#[test]
fn files_that_the_documents_name_exist() {
    let root = support::root();
    let mut names = 0;
    for document in ["README.md", "ARCHITECTURE.md", "CONTRIBUTING.md"] {
        let text = std::fs::read_to_string(root.join(document)).unwrap();
        for name in text.split('`').skip(1).step_by(2) {
            let name = name.split([' ', ':', ',']).next().unwrap();
            let is_path =
                name.contains('/') && name.contains('.') || name.starts_with("ci/") || name.ends_with('/');
            // Files of others.
            let foreign = ["site-packages/", "target/"].iter().any(|place| name.starts_with(place));
            if foreign
                || !is_path
                || !name.starts_with(|first: char| first.is_ascii_lowercase() || first == '.')
            {
                continue;
            }
            let below = ["", "accl-core/src", "accl-core", "docs", "python/accl"];
            assert!(below.iter().any(|place| root.join(place).join(name).exists()), "{document}: {name}");
            names += 1;
        }
    }
    println!("{names} files are named");
    assert!(names > 30);
}

#[test]
fn the_table_of_settings_is_the_sources() {
    let path = support::root().join("docs/settings.md");
    let text = std::fs::read_to_string(&path).unwrap();
    let rows: Vec<_> = SETTINGS.iter().map(row).collect();
    let table = rows.join("\n");
    let found: Vec<_> = text.lines().filter(|line| line.starts_with("| `")).collect();
    assert!(found == rows, "the table of {} should be:\n{table}", Path::new("docs/settings.md").display());
}

#[test]
fn the_names_without_an_effect_are_the_sources() {
    let text = std::fs::read_to_string(support::root().join("docs/settings.md")).unwrap();
    let (_, section) = text.split_once("## Names without an effect").unwrap();
    let block = section.split("```").nth(1).unwrap().trim_start_matches("text");
    assert!(block.split_whitespace().eq(ACCEPTED.iter().copied()), "it should be:\n{}", ACCEPTED.join(" "));
}

#[test]
fn every_code_has_its_section() {
    let read = |path: &str| std::fs::read_to_string(support::root().join(path)).unwrap();
    let header = read("include/nccl.h");
    let (_, codes) = header.split_once("ncclSuccess = 0,").unwrap();
    let (codes, _) = codes.split_once("ncclNumResults").unwrap();
    let names = codes
        .lines()
        .filter_map(|line| line.trim().split_once(" = "))
        .map(|(name, rest)| format!("## {name} ({})", rest.split([',', ' ']).next().unwrap()));
    let mut expected = vec!["## ncclSuccess (0)".to_string()];
    expected.extend(names);
    let page = read("docs/errors.md");
    let found: Vec<_> = page.lines().filter(|line| line.starts_with("## ")).collect();
    assert_eq!(found, expected);
}

#[test]
fn the_table_of_figures_is_the_sources() {
    let text = std::fs::read_to_string(support::root().join("docs/tuning.md")).unwrap();
    let row =
        |figure: &Figure| format!("| `{}` | {} | {} |", figure.name, figure.unit.name(), figure.meaning);
    let rows: Vec<_> = FIGURES.iter().map(row).collect();
    let (_, table) = text.split_once("## What the figures mean").unwrap();
    let (table, _) = table.split_once("## ").unwrap();
    let found: Vec<_> = table.lines().filter(|line| line.starts_with("| `")).collect();
    assert!(found == rows, "the table of docs/tuning.md should be:\n{}", rows.join("\n"));
    for unit in [Unit::Time, Unit::Kib] {
        let range = unit.range();
        assert!(text.contains(&format!("{} to {}", range.start(), range.end())), "{range:?}");
    }
}

fn row(setting: &accl_core::config::Setting) -> String {
    let kind = match setting.kind {
        Kind::Switch => "0 or 1",
        Kind::Seconds => "seconds",
        Kind::Bytes => "bytes",
        Kind::Text => "text",
    };
    let default = if setting.default.is_empty() { "unset" } else { setting.default };
    format!("| `{}` | {kind} | {default} | {} |", setting.name, setting.help.replace('|', "\\|"))
}
