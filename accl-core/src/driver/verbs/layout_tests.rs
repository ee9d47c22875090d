//! Are our declarations those of the header? A C compiler says so, where there are both.

use super::abi::LAYOUT;
use std::path::{Path, PathBuf};
use std::process::Command;

/// Where `infiniband/verbs.h` may lie: where `ci/rdma-guest/build` unpacks it, or installed.
fn include() -> Option<PathBuf> {
    let unpacked = Path::new(env!("CARGO_MANIFEST_DIR")).join("../target/rdma-guest/include");
    [unpacked, PathBuf::from("/usr/include")]
        .into_iter()
        .find(|folder| folder.join("infiniband/verbs.h").is_file())
}

#[test]
fn sizes_and_offsets_are_those_of_the_header() {
    let Some(include) = include() else {
        println!(
            "NOT CHECKED: needs infiniband/verbs.h (package libibverbs-dev, or ci/rdma-guest/build) and cc"
        );
        return;
    };
    let mut program = String::from(
        "#include <infiniband/verbs.h>\n#include <stddef.h>\n#define SAME(a, b) _Static_assert((a) == (b), #a)\n",
    );
    let mut facts = 0;
    for (name, bytes, members) in LAYOUT {
        if *bytes > 0 {
            program += &format!("SAME(sizeof({name}), {bytes});\n");
            facts += 1;
        }
        for (member, offset) in *members {
            program += &format!("SAME(offsetof({name}, {member}), {offset});\n");
            facts += 1;
        }
    }
    for (name, value) in super::abi::NUMBERS {
        program += &format!("SAME({name}, {value});\n");
        facts += 1;
    }
    let folder = std::env::temp_dir().join(format!("accl-verbs-layout-{}", std::process::id()));
    std::fs::create_dir_all(&folder).unwrap();
    let source = folder.join("layout.c");
    std::fs::write(&source, program).unwrap();
    let output = Command::new("cc")
        .args(["-fsyntax-only", "-I"])
        .arg(&include)
        .arg(&source)
        .output()
        .expect("needs cc (package build-essential)");
    std::fs::remove_dir_all(&folder).unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    println!("{facts} sizes, offsets and numbers");
    assert!(facts > 80, "{facts}");
}
