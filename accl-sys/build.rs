//! Generates `src/abi.rs` from `include/` when the feature `bindgen` is on, and does nothing otherwise: the file is
//! committed, so that building needs no libclang. Says whether exported names can be weak.

include!("weak_names.rs");

fn main() {
    println!("cargo:rerun-if-changed=build.rs");
    println!("cargo:rerun-if-changed=weak_names.rs");
    println!("cargo:rustc-check-cfg=cfg(weak_names)");
    if has_weak_names() {
        println!("cargo:rustc-cfg=weak_names");
    }
    println!("cargo:rerun-if-changed=../include/nccl.h");
    println!("cargo:rerun-if-changed=../include/accl.h");
    println!("cargo:rerun-if-changed=src/plugins/logger.c");
    cc::Build::new()
        .file("src/plugins/logger.c")
        .std("c11")
        .warnings_into_errors(true)
        .compile("accl_plugin_logger");
    #[cfg(feature = "bindgen")]
    generate();
}

#[cfg(feature = "bindgen")]
fn generate() {
    let bindings = bindgen::Builder::default()
        .header("../include/accl.h")
        .allowlist_type("nccl.*|accl.*")
        .allowlist_var("nccl.*|NCCL_.*")
        .ignore_functions()
        .default_enum_style(bindgen::EnumVariation::Consts)
        .prepend_enum_name(false)
        .generate_comments(false)
        .derive_debug(true)
        .raw_line("//! The types and constants of `include/nccl.h`, written by bindgen: do not edit, run `ci/check-bindings`.")
        .raw_line("#![allow(missing_docs, missing_debug_implementations, non_camel_case_types, non_snake_case)]")
        .raw_line("#![allow(non_upper_case_globals, dead_code, unreachable_pub, clippy::all, clippy::use_self)]")
        .formatter(bindgen::Formatter::Prettyplease)
        .generate()
        .unwrap_or_else(|error| fail(&error.to_string()));
    bindings.write_to_file("src/abi.rs").unwrap_or_else(|error| fail(&error.to_string()));
}

#[cfg(feature = "bindgen")]
fn fail(reason: &str) -> ! {
    println!("cargo::error=abi.rs could not be generated: {reason}");
    std::process::exit(1)
}
