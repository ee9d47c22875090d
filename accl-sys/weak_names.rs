// Included by the build scripts of accl_sys and of the shared libraries, which must say the same.

/// True if the names of NCCL can be weak, as in NVIDIA's library: that takes a list of exported names of our own beside the compiler's, which
/// LLVM's linker takes and GNU's refuses. The former comes with the compiler for this platform and is used, unless somebody has chosen another one.
fn has_weak_names() -> bool {
    let variable = |name: &str| std::env::var(name).unwrap_or_default();
    println!("cargo:rerun-if-env-changed=CARGO_ENCODED_RUSTFLAGS");
    println!("cargo:rerun-if-env-changed=RUSTC_LINKER");
    let flags = variable("CARGO_ENCODED_RUSTFLAGS");
    let chosen = flags.contains("linker") || flags.contains("fuse-ld") || !variable("RUSTC_LINKER").is_empty();
    variable("TARGET") == "x86_64-unknown-linux-gnu" && !chosen && brings_linker(&variable("RUSTC"))
}

/// True if the compiler has LLVM's linker among its files; those of some distributions do not.
fn brings_linker(compiler: &str) -> bool {
    let asked = std::process::Command::new(compiler).args(["--print", "sysroot"]).output();
    let sysroot = asked.map(|output| String::from_utf8_lossy(&output.stdout).trim().to_owned()).unwrap_or_default();
    let place = "lib/rustlib/x86_64-unknown-linux-gnu/bin/gcc-ld/ld.lld";
    std::path::Path::new(&sysroot).join(place).exists()
}
