//! Reads the sources and holds them to the rules of `ARCHITECTURE.md`: who may import whom, who may be unsafe, and
//! what is done in one place only.
//!
//! Code that is compiled for tests alone is exempt, and so are comments and texts.

// Helpers of tests fail by panicking.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

/// Files of accl-core that opt into unsafe code; each says at its head why its conditions hold.
const UNSAFE_FILES: [&str; 37] = [
    "device/accelerator.rs",
    "device/host.rs",
    "device/mailbox.rs",
    "device/pointer.rs",
    "driver/cuda.rs",
    "driver/fake.rs",
    "driver/network_plugin/fake.rs",
    "driver/table.rs",
    "driver/verbs/fake.rs",
    "driver/verbs/library.rs",
    "driver/verbs/provider.rs",
    "memory/allocate.rs",
    "memory/pages.rs",
    "memory/scratch.rs",
    "os/clock.rs",
    "os/cpu.rs",
    "os/fork.rs",
    "os/futex.rs",
    "os/mapping.rs",
    "os/network.rs",
    "os/tcp.rs",
    "os/process.rs",
    "reduce/body.rs",
    "reduce/mod.rs",
    "reduce/stream.rs",
    "reduce/x86/avx2.rs",
    "reduce/x86/avx512.rs",
    "reduce/x86/float8_avx2.rs",
    "reduce/x86/fp16.rs",
    "reduce/x86/mod.rs",
    "sync/models.rs",
    "transport/board.rs",
    "transport/conformance.rs",
    "transport/shm/arena.rs",
    "transport/shm/lent.rs",
    "transport/shm/link.rs",
    "transport/shm/pull.rs",
];

/// Where unsafe code may be at all.
const UNSAFE_PLACES: [&str; 9] = [
    "os/",
    "sync/",
    "driver/",
    "device/",
    "memory/",
    "reduce/",
    "transport/shm/",
    "transport/board.rs",
    "transport/conformance.rs",
];

/// What is done in one place only: the words, the places, and why.
const ONE_PLACE: [(&str, &[&str], &str); 8] = [
    (
        "env::var",
        &["accl-core/src/config/"],
        "settings are read in `config`, so that each has one rule of origin",
    ),
    (
        "Instant::now",
        &["accl-core/src/os/clock.rs"],
        "time is asked for in `os/clock.rs`, and handed to the rest",
    ),
    // `os` lies below `sync`, and the kernel works on the machine's own words.
    (
        "sync::atomic",
        &["accl-core/src/sync/prim.rs", "accl-core/src/os/"],
        "atomics come from `sync::prim`, \
      so that loom can take their place",
    ),
    ("println!", &[], "a library writes nothing on standard output"),
    ("print!", &[], "a library writes nothing on standard output"),
    ("dbg!", &[], "a library writes nothing that nobody asked for"),
    ("process::exit", &[], "a library does not end the process"),
    ("process::abort", &[], "a library does not end the process"),
];

#[test]
fn modules_import_lower_layers_only() {
    let layers = layers();
    let root = workspace().join("accl-core/src");
    let mut imports: BTreeMap<(String, String), BTreeSet<PathBuf>> = BTreeMap::new();
    let mut modules = BTreeSet::new();
    for source in sources(&root) {
        let Some(module) = source.module.first() else { continue };
        modules.insert(module.clone());
        for target in crate_level_names(&source) {
            imports.entry((module.clone(), target)).or_default().insert(source.path.clone());
        }
    }
    let known: BTreeSet<_> = layers.keys().cloned().collect();
    assert_eq!(modules, known, "modules of accl-core, and the table in ARCHITECTURE.md");
    let mut wrong = Vec::new();
    for ((from, to), files) in &imports {
        // Re-exports at the root are those of `error`, in the lowest layer.
        let to_layer = layers.get(to).copied().unwrap_or(0);
        let known = layers.contains_key(to)
            || ["Error", "ErrorKind", "Result", "VERSION_CODE"].contains(&to.as_str());
        if !known || (from != to && to_layer >= layers[from]) {
            wrong.push(format!("{from} (layer {}) names crate::{to} in {files:?}", layers[from]));
        }
    }
    println!("{} modules, {} different imports", modules.len(), imports.len());
    assert!(imports.len() > 50, "the imports were not found");
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn only_listed_files_are_unsafe() {
    let root = workspace().join("accl-core/src");
    let mut found = BTreeSet::new();
    for source in all_files(&root) {
        let relative = source.strip_prefix(&root).unwrap().to_str().unwrap().to_string();
        let code = without_tests(&without_comments_and_texts(&std::fs::read_to_string(&source).unwrap()));
        let opts_in = ["allow(unsafe_code)", "expect(unsafe_code"].iter().any(|words| code.contains(words));
        if opts_in && relative != "lib.rs" {
            found.insert(relative);
        }
    }
    let listed: BTreeSet<_> = UNSAFE_FILES.iter().map(|file| (*file).to_string()).collect();
    println!("{} files opt into unsafe code", found.len());
    assert_eq!(found, listed, "files that opt into unsafe code, and the list of this test");
    for file in &found {
        assert!(
            UNSAFE_PLACES.iter().any(|place| file.starts_with(place)),
            "{file} is in no place for unsafe code"
        );
    }
    let lib = std::fs::read_to_string(root.join("lib.rs")).unwrap();
    assert!(lib.contains("#![deny(unsafe_code)]"));
}

#[test]
fn what_belongs_in_one_place_is_there_only() {
    let mut files = 0;
    let mut wrong = Vec::new();
    let mut places = BTreeSet::new();
    for package in ["accl-core/src", "accl-sys/src"] {
        for source in sources(&workspace().join(package)) {
            files += 1;
            let relative = source.path.strip_prefix(workspace()).unwrap().to_str().unwrap();
            for (words, allowed, why) in ONE_PLACE {
                let found = source.code.match_indices(words);
                // "println!" is no "print!", and "eprintln!" is no "println!".
                let whole = |at: usize| !source.code[..at].ends_with(|before: char| before.is_alphanumeric());
                if !found.map(|(at, _)| at).any(whole) {
                    continue;
                }
                match allowed.iter().find(|place| relative.starts_with(**place)) {
                    Some(place) => drop(places.insert(*place)),
                    None => wrong.push(format!("{relative}: {words}: {why}")),
                }
            }
        }
    }
    println!("{files} files, {} rules", ONE_PLACE.len());
    assert!(files > 70, "the sources were not found");
    assert_eq!(places.len(), 4, "places that are allowed what they no longer do: {places:?}");
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

/// One source file that is not only for tests.
struct Source {
    path: PathBuf,
    /// Its module path, from the crate's root.
    module: Vec<String>,
    /// Without comments, texts and tests.
    code: String,
}

fn workspace() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap()
}

/// The table in ARCHITECTURE.md: a block that begins with ```layers, in it a number and names a line.
fn layers() -> BTreeMap<String, u32> {
    let text = std::fs::read_to_string(workspace().join("ARCHITECTURE.md")).unwrap();
    let (_, table) = text.split_once("```layers\n").expect("a table of layers");
    let (table, _) = table.split_once("```").expect("its end");
    let mut layers = BTreeMap::new();
    for line in table.lines() {
        let (line, _) = line.split_once('#').unwrap_or((line, ""));
        let mut words = line.split_whitespace();
        let Some(number) = words.next() else { continue };
        for name in words {
            assert_eq!(
                layers.insert(name.to_string(), number.parse().unwrap()),
                None,
                "{name} stands there twice"
            );
        }
    }
    layers
}

fn all_files(directory: &Path) -> Vec<PathBuf> {
    let mut files = Vec::new();
    for entry in std::fs::read_dir(directory).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            files.extend(all_files(&path));
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            files.push(path);
        }
    }
    files.sort();
    files
}

/// All files below `root`, except those of modules that are declared for tests only.
fn sources(root: &Path) -> Vec<Source> {
    let mut sources = Vec::new();
    let mut for_tests: Vec<Vec<String>> = Vec::new();
    for path in all_files(root) {
        let relative = path.strip_prefix(root).unwrap().with_extension("");
        let mut module: Vec<_> = relative.iter().map(|part| part.to_str().unwrap().to_string()).collect();
        if module.last().is_some_and(|last| last == "mod" || last == "lib") {
            module.pop();
        }
        let code = without_comments_and_texts(&std::fs::read_to_string(&path).unwrap());
        for (at, attribute) in test_attributes(&code) {
            if let Some(name) = declared_module(&code[at + attribute.len()..]) {
                let mut path = module.clone();
                path.push(name.to_string());
                for_tests.push(path);
            }
        }
        sources.push(Source { path, module, code: without_tests(&code) });
    }
    sources.retain(|source| !for_tests.iter().any(|prefix| source.module.starts_with(prefix)));
    sources
}

/// "x" of "mod x;", perhaps after other attributes.
fn declared_module(code: &str) -> Option<&str> {
    let (item, _) = code.split_once([';', '{'])?;
    let name = item.trim().rsplit_once("mod ")?.1;
    code[item.len()..].starts_with(';').then_some(name)
}

/// Where the code has attributes that restrict something to tests, and their texts.
fn test_attributes(code: &str) -> Vec<(usize, &str)> {
    let starts = code.match_indices("#[cfg(");
    let attributes = starts.map(|(at, _)| (at, &code[at..at + code[at..].find(']').unwrap() + 1]));
    attributes.filter(|(_, text)| *text == "#[cfg(test)]" || text.starts_with("#[cfg(all(test")).collect()
}

/// Blanks out items that are compiled for tests only.
fn without_tests(code: &str) -> String {
    let mut kept = code.to_string();
    for (at, attribute) in test_attributes(code) {
        let rest = &code[at + attribute.len()..];
        let end = rest.find([';', '{']).unwrap();
        let end = if rest[end..].starts_with(';') { end + 1 } else { end + after_braces(&rest[end..]) };
        let range = at..at + attribute.len() + end;
        kept.replace_range(range.clone(), &" ".repeat(range.len()));
    }
    kept
}

/// Where the block ends that `code` begins with.
fn after_braces(code: &str) -> usize {
    let mut depth = 0;
    for (at, byte) in code.bytes().enumerate() {
        match byte {
            b'{' => depth += 1,
            b'}' => depth -= 1,
            _ => {}
        }
        if depth == 0 {
            return at + 1;
        }
    }
    panic!("a block without end");
}

/// Replaces comments, texts and characters by blanks; the rest stays where it is.
fn without_comments_and_texts(text: &str) -> String {
    let bytes = text.as_bytes();
    let mut kept = vec![b' '; bytes.len()];
    let mut at = 0;
    while at < bytes.len() {
        let rest = &bytes[at..];
        let raw = rest.starts_with(b"r\"") || rest.starts_with(b"r#\"");
        let skip = if rest.starts_with(b"//") {
            rest.iter().position(|byte| *byte == b'\n').unwrap_or(rest.len())
        } else if rest.starts_with(b"/*") {
            text[at..].find("*/").unwrap() + 2
        } else if raw && !bytes[..at].last().is_some_and(u8::is_ascii_alphanumeric) {
            let (open, close) = if rest[1] == b'"' { (2, "\"") } else { (3, "\"#") };
            open + text[at + open..].find(close).unwrap() + close.len()
        } else if rest[0] == b'"' || (rest[0] == b'\'' && is_character(rest)) {
            quoted(rest)
        } else {
            kept[at] = bytes[at];
            at += 1;
            continue;
        };
        at += skip;
    }
    String::from_utf8(kept.iter().map(|byte| if byte.is_ascii() { *byte } else { b' ' }).collect()).unwrap()
}

/// How long a quoted text is, with both quotes.
fn quoted(bytes: &[u8]) -> usize {
    let mut at = 1;
    while bytes[at] != bytes[0] {
        at += if bytes[at] == b'\\' { 2 } else { 1 };
    }
    at + 1
}

/// True for a character, false for a lifetime.
fn is_character(bytes: &[u8]) -> bool {
    bytes[1] == b'\\'
        || bytes[1..].iter().take(6).position(|byte| *byte == b'\'').is_some_and(|at| {
            // 'a' and multi-byte characters; a lifetime is followed by something else than its quote.
            at >= 1 && !(bytes[1].is_ascii() && at > 1)
        })
}

/// The names at the crate's root that a file names, by `crate::` or by enough `super::`.
fn crate_level_names(source: &Source) -> Vec<String> {
    let code = &source.code;
    let mut names = Vec::new();
    for (at, path) in code.match_indices("crate::") {
        let foreign = code[..at].ends_with(|before: char| before.is_alphanumeric() || "_$".contains(before));
        if !foreign {
            names.extend(first_names(&code[at + path.len()..]));
        }
    }
    let up = "super::".repeat(source.module.len());
    for (at, _) in code.match_indices(&up) {
        let rest = &code[at + up.len()..];
        if !code[..at].ends_with("super::") && !source.module.is_empty() {
            assert!(!rest.starts_with("super::"), "{}: a path beyond the root", source.path.display());
            names.extend(first_names(rest));
        }
    }
    names
}

/// "a" of "a::b", and "a" and "b" of "{a::x, b::{y, z}}".
fn first_names(code: &str) -> Vec<String> {
    let name = |text: &str| {
        let text = text.trim_start();
        let end = text.find(|next: char| !next.is_alphanumeric() && next != '_').unwrap_or(text.len());
        text[..end].to_string()
    };
    if !code.starts_with('{') {
        return vec![name(code)];
    }
    let list = &code[1..after_braces(code) - 1];
    let mut depth = 0;
    let parts = list.split(|next| {
        depth += i32::from(next == '{') - i32::from(next == '}');
        next == ',' && depth == 0
    });
    parts.filter(|part| !part.trim().is_empty()).map(name).collect()
}

#[test]
fn the_reader_of_sources_reads_well() {
    let code = without_comments_and_texts(
        "a // crate::x\n/* b */ 'c' '\\'' \"d\\\"e\" r#\"f\"# <'g> h('i', 'j) #[cfg(test)] mod k { {} } l",
    );
    assert_eq!(code.split_whitespace().collect::<String>(), "a<'g>h(,'j)#[cfg(test)]modk{{}}l");
    assert_eq!(without_tests(&code).split_whitespace().last(), Some("l"));
    assert!(!without_tests(&code).contains("mod"));
    assert_eq!(first_names("{a::{b, c}, d as e, f::g};"), ["a", "d", "f"]);
    assert_eq!(declared_module(" mod x;"), Some("x"));
    assert_eq!(declared_module(" mod x { }"), None);
    let source = |code: &str| Source {
        path: PathBuf::new(),
        module: vec!["a".to_string(), "b".to_string()],
        code: code.to_string(),
    };
    assert_eq!(
        crate_level_names(&source("super::super::c::d; super::e; $crate::f; crate::g::h")),
        ["g", "c"]
    );
}
