//! Holds the texts of errors to the rule that they say what to do: those for what a program has done wrong, and for peers that are
//! lost. Reads the sources, where the texts stand; what the system refuses comes with its own words and the limit behind them.

// Helpers of tests fail by panicking.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use std::path::{Path, PathBuf};

/// A text that has one of these words, in whatever form, says what to do, or what would have been right.
const REMEDIES: [&str; 36] = [
    "allow",
    "ask",
    "at least",
    "at most",
    "call",
    "check",
    "choose",
    "destroy",
    "end ",
    "expect",
    "give",
    "hand ",
    "install",
    "make",
    "match",
    "REMEDY",
    "instead",
    "free memory",
    "must",
    "name",
    "need",
    "one of",
    "only",
    "pass",
    "register",
    "remove",
    "see ",
    "set ",
    "shrink",
    "split",
    "take",
    "there are",
    "unset",
    "use ",
    "wait",
    "want",
];
/// What fits into a line of a log beside what a text is about.
const MOST_BYTES: usize = 400;

#[derive(Debug)]
struct Text {
    place: String,
    kind: String,
    words: String,
}

#[test]
fn errors_say_what_to_do() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let mut texts = Vec::new();
    for directory in [root.join("src"), root.join("../accl-sys/src")] {
        for file in files(&directory) {
            collect(&directory, &file, &mut texts);
        }
    }
    println!("{} texts", texts.len());
    assert!(texts.len() > 200, "the texts were not found");
    let remediless = |text: &&Text| {
        // What connections and the system say becomes a part of such a text.
        let part = [
            "bootstrap/",
            "encryption/socket.rs",
            "os/",
            "transport/plugin/record.rs",
            "transport/tcp/record.rs",
            "transport/rdma/record.rs",
            "transport/rdma/session.rs",
        ]
        .iter()
        .any(|place| text.place.starts_with(place));
        let whole = text.kind != "remote" || !part;
        let counts = ["argument", "usage", "remote"].contains(&text.kind.as_str());
        counts && whole && !REMEDIES.iter().any(|word| text.words.contains(word))
    };
    let without: Vec<_> = texts.iter().filter(remediless).collect();
    assert!(without.is_empty(), "they do not say what to do: {without:#?}");
    let long: Vec<_> = texts.iter().filter(|text| text.words.len() > MOST_BYTES).collect();
    assert!(long.is_empty(), "they are too long for a line: {long:#?}");
}

fn files(directory: &Path) -> Vec<PathBuf> {
    let mut found = Vec::new();
    for entry in std::fs::read_dir(directory).unwrap() {
        let path = entry.unwrap().path();
        let name = path.file_name().unwrap().to_str().unwrap().to_string();
        if path.is_dir() && name != "tests" {
            found.extend(files(&path));
        } else if name.ends_with(".rs") && !name.ends_with("tests.rs") {
            found.push(path);
        }
    }
    found
}

/// The texts of errors that `file` makes; tests stand at its end.
fn collect(directory: &Path, file: &Path, texts: &mut Vec<Text>) {
    let source = std::fs::read_to_string(file).unwrap();
    let code = source.split("#[cfg(test)]").next().unwrap();
    let place = file.strip_prefix(directory).unwrap().display();
    for (at, call) in code.match_indices("Error::") {
        let rest = &code[at + call.len()..];
        let kind: String = rest.chars().take_while(char::is_ascii_alphabetic).collect();
        let Some(arguments) = rest[kind.len()..].strip_prefix('(') else { continue };
        let words = literals(arguments);
        if !words.is_empty() {
            let line = 1 + code[..at].matches('\n').count();
            texts.push(Text { place: format!("{place}:{line}"), kind, words });
        }
    }
}

/// The string literals up to the closing parenthesis, with one space between them.
fn literals(arguments: &str) -> String {
    let (mut words, mut depth) = (Vec::new(), 1);
    let mut rest = arguments.char_indices();
    while let Some((_, letter)) = rest.next() {
        match letter {
            '(' => depth += 1,
            ')' => depth -= 1,
            '"' => words.push(literal(&mut rest)),
            _ => {}
        }
        if depth == 0 {
            break;
        }
    }
    words.join(" ")
}

/// A literal whose opening quote has been read; a backslash at the end of a line takes the next line's indentation with it.
fn literal(rest: &mut impl Iterator<Item = (usize, char)>) -> String {
    let (mut text, mut skips) = (String::new(), false);
    while let Some((_, letter)) = rest.next() {
        if skips && letter.is_whitespace() {
            continue;
        }
        skips = false;
        match letter {
            '"' => break,
            '\\' => match rest.next() {
                Some((_, '\n')) => skips = true,
                Some((_, escaped)) => text.push(escaped),
                None => break,
            },
            _ => text.push(letter),
        }
    }
    text
}
