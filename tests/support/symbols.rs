//! What shared libraries export, as `nm` tells it.

use std::collections::BTreeMap;
use std::path::Path;
use std::process::Command;

/// What a symbol is.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Kind {
    /// A function, or its second name.
    Function,
    /// The same, which gives way to another of its name.
    WeakFunction,
    /// Data that programs may write.
    Variable,
}

/// All that `library` exports.
pub fn exported(library: &Path) -> BTreeMap<String, Kind> {
    let mut nm = Command::new("nm");
    let output = super::run(nm.args(["-D", "--defined-only", "--format=posix"]).arg(library));
    let symbol = |line: &str| {
        let mut words = line.split_whitespace();
        let (name, letter) = (words.next().unwrap(), words.next().unwrap());
        let kind = match letter {
            "T" => Kind::Function,
            "W" => Kind::WeakFunction,
            "B" | "D" => Kind::Variable,
            _ => panic!("{name} of {} is {letter}", library.display()),
        };
        (name.to_owned(), kind)
    };
    String::from_utf8(output.stdout).unwrap().lines().map(symbol).collect()
}
