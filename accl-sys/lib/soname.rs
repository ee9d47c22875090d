// Included by the build scripts of the shared libraries.

include!("../weak_names.rs");

/// Links the library under `soname`, and lets a file of that name stand beside cargo's `file`, as programs that were
/// linked against it look for it by its soname.
fn soname(file: &str, soname: &str) {
    println!("cargo:rerun-if-changed=build.rs");
    println!("cargo:rerun-if-changed=../soname.rs");
    println!("cargo:rustc-cdylib-link-arg=-Wl,-soname,{soname}");
    // Threads of ours may be running when a program lets go of the library; its code must stay.
    println!("cargo:rustc-cdylib-link-arg=-Wl,-z,nodelete");
    if has_weak_names() {
        let list = concat!(env!("CARGO_MANIFEST_DIR"), "/../names.map");
        println!("cargo:rerun-if-changed={list}");
        println!("cargo:rustc-cdylib-link-arg=-Wl,--version-script={list}");
        // Nothing calls them, so that the linker must be told to look for them.
        println!("cargo:rustc-cdylib-link-arg=-Wl,--undefined-glob=nccl*");
    }
    if file == soname {
        return;
    }
    // OUT_DIR is <target>/<profile>/build/<package>-<hash>/out.
    let out = std::path::PathBuf::from(std::env::var_os("OUT_DIR").unwrap_or_default());
    let Some(profile) = out.ancestors().nth(3) else { return };
    let link = profile.join(soname);
    let _ = std::fs::remove_file(&link);
    if let Err(error) = std::os::unix::fs::symlink(file, &link) {
        println!("cargo:warning={} could not be made: {error}", link.display());
    }
}
