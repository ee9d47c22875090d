//! What tests against the C interface share: the shared libraries, built for this run, and C programs that use them.

// Each test file uses its part of this, and none of it from outside.
#![allow(dead_code, unreachable_pub)]
// Helpers of tests fail by panicking.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

pub mod api;
pub mod cluster;
pub mod device;
pub mod oracle;
pub mod python;
pub mod snapshot;
pub mod symbols;

use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicUsize, Ordering};

/// The sources' root: that of the workspace, also for tests of its packages.
pub fn root() -> PathBuf {
    let package = PathBuf::from(env!("CARGO_MANIFEST_DIR"));
    let holds_headers = |directory: &&Path| directory.join("include/nccl.h").is_file();
    package.ancestors().find(holds_headers).expect("include/nccl.h above the package").to_path_buf()
}

/// The directory with libaccl.so, libnccl.so, libpccl.so and the links of their sonames, of this run's profile.
pub fn libraries() -> &'static Path {
    static LIBRARIES: OnceLock<PathBuf> = OnceLock::new();
    LIBRARIES.get_or_init(|| build(&["libaccl", "libnccl", "libpccl"]))
}

/// Builds packages with this run's profile, and says where the results are. Cargo builds what a test depends on as a crate;
/// nothing depends on a C library, so we ask for it.
pub fn build(packages: &[&str]) -> PathBuf {
    // This test is <target>/<profile>/deps/<name>, or, for a platform that was named, <target>/<platform>/<profile>/deps/<name>.
    let test = std::env::current_exe().expect("the path of this test");
    let profile = test.ancestors().nth(2).expect("a directory of the profile").to_path_buf();
    let name = profile.file_name().and_then(OsStr::to_str).expect("a name");
    let mut target = profile.parent().expect("a target directory");
    if std::env::var_os("CARGO_BUILD_TARGET").is_some_and(|platform| target.ends_with(platform)) {
        target = target.parent().expect("a target directory");
    }
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let mut build = Command::new(cargo);
    build.current_dir(root()).args(["build", "--quiet"]);
    for package in packages {
        build.args(["-p", package]);
    }
    build.args(["--profile", if name == "debug" { "dev" } else { name }]).arg("--target-dir").arg(target);
    run(&mut build);
    profile
}

/// Runs a command that must succeed.
pub fn run(command: &mut Command) -> Output {
    let output = command.output().unwrap_or_else(|error| panic!("{command:?}: {error}"));
    assert!(
        output.status.success(),
        "{command:?}: {}\n{}{}",
        output.status,
        String::from_utf8_lossy(&output.stdout),
        String::from_utf8_lossy(&output.stderr)
    );
    output
}

/// Sets a soft limit of this process; the hard one stays.
pub fn limit(resource: libc::__rlimit_resource_t, most: u64) {
    let mut limits = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    // SAFETY: a place for the result.
    assert_eq!(unsafe { libc::getrlimit(resource, &raw mut limits) }, 0);
    limits.rlim_cur = most.min(limits.rlim_max);
    // SAFETY: a whole struct.
    assert_eq!(unsafe { libc::setrlimit(resource, &raw const limits) }, 0);
}

/// Compiles a plugin of `tests/c/plugins`, of a version, and with a fault (0: none).
pub fn plugin(kind: &str, version: u32, fault: u32) -> PathBuf {
    let file =
        Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("lib{kind}-{version}-{fault}-{}.so", unique()));
    let mut compile = Command::new(std::env::var_os("CC").unwrap_or_else(|| "cc".into()));
    compile.args(["-std=c11", "-Wall", "-Wextra", "-Werror", "-g", "-shared", "-fPIC"]);
    compile.args([format!("-DVERSION={version}"), format!("-DFAULT={fault}")]);
    let source = root().join(format!("tests/c/plugins/{kind}.c"));
    run(compile.arg(source).arg("-o").arg(&file));
    file
}

/// The languages in which the headers must compile.
#[derive(Clone, Copy, Debug)]
pub enum Language {
    /// C11.
    C,
    /// C++17.
    Cpp,
}

/// Compiles `tests/c/<source>` with every warning an error, links it with `library` ("nccl", …), and returns the
/// program.
pub fn compile(source: &str, language: Language, library: &str) -> PathBuf {
    compile_with(source, language, library, &[])
}

/// What finds errors of memory, leaks, and undefined behaviour while a program runs, in it and in what libraries do with its heap.
const SANITIZERS: [&str; 3] =
    ["-fsanitize=address,undefined", "-fno-sanitize-recover=all", "-fno-omit-frame-pointer"];

/// True if the C compiler has sanitizers whose programs run here; says so if not.
pub fn has_sanitizers() -> bool {
    let directory = libraries().join("c-tests");
    std::fs::create_dir_all(&directory).expect("a directory for programs");
    let program = directory.join(format!("sane-{}", std::process::id()));
    let source = program.with_extension("c");
    std::fs::write(&source, "int main(void) { return 0; }\n").expect("a program");
    let mut command = Command::new(std::env::var_os("CC").unwrap_or_else(|| "cc".into()));
    let compiled = command.args(SANITIZERS).arg(&source).arg("-o").arg(&program).output();
    let runs = compiled.is_ok_and(|output| output.status.success())
        && Command::new(&program).output().is_ok_and(|output| output.status.success());
    if !runs {
        eprintln!(
            "SKIPPED: the C compiler has no sanitizers that run here (gcc or clang with libasan and libubsan)"
        );
    }
    let _ = (std::fs::remove_file(source), std::fs::remove_file(program));
    runs
}

/// Compiles with sanitizers, runs with a look for leaks at the end, and expects that nothing is found.
pub fn is_sane(source: &str, library: &str) {
    let path = compile_with(source, Language::C, library, &SANITIZERS);
    let mut command = program(&path);
    command.env("ASAN_OPTIONS", "detect_leaks=1:strict_string_checks=1:detect_stack_use_after_return=1");
    run(command.env("UBSAN_OPTIONS", "print_stacktrace=1"));
    std::fs::remove_file(path).expect("the program, to remove it");
}

/// A part of file names that no other test and no other process uses.
pub fn unique() -> String {
    static NEXT: AtomicUsize = AtomicUsize::new(0);
    format!("{}-{}", std::process::id(), NEXT.fetch_add(1, Ordering::Relaxed))
}

fn compile_with(source: &str, language: Language, library: &str, flags: &[&str]) -> PathBuf {
    let (compiler, dialect) = match language {
        Language::C => (["-x", "c"], "-std=c11"),
        Language::Cpp => (["-x", "c++"], "-std=c++17"),
    };
    let program = match language {
        Language::C => std::env::var_os("CC").unwrap_or_else(|| "cc".into()),
        Language::Cpp => std::env::var_os("CXX").unwrap_or_else(|| "c++".into()),
    };
    let directory = libraries();
    let outputs = directory.join("c-tests");
    std::fs::create_dir_all(&outputs).expect("a directory for programs");
    let output = outputs.join(format!("{}-{library}-{language:?}-{}", source.replace('.', "-"), unique()));
    let mut command = Command::new(program);
    command.args([dialect, "-Wall", "-Wextra", "-Werror", "-pedantic", "-g", "-pthread"]).args(compiler);
    command.args(flags).arg(root().join("tests/c").join(source)).args(["-x", "none"]);
    command
        .arg("-I")
        .arg(root().join("include"))
        .arg("-L")
        .arg(directory)
        .args(["-Wl,--as-needed".to_string(), format!("-l{library}")]);
    run(command.arg("-o").arg(&output));
    output
}

/// A command that runs a program of [`compile`] with the libraries in reach.
pub fn program(path: &Path) -> Command {
    let mut command = Command::new(path);
    command.env("LD_LIBRARY_PATH", libraries());
    for (name, _) in std::env::vars_os() {
        let name = name.to_string_lossy().into_owned();
        if ["ACCL_", "PCCL_", "NCCL_"].iter().any(|prefix| name.starts_with(prefix)) {
            command.env_remove(name);
        }
    }
    command
}

/// Compiles, runs, and expects success and nothing on stdout: the library never writes there.
pub fn passes(source: &str, language: Language, library: &str) {
    let path = compile(source, language, library);
    let output = run(&mut program(&path));
    assert_eq!(String::from_utf8_lossy(&output.stdout), "", "{source}: output on stdout");
    std::fs::remove_file(path).expect("the program, to remove it");
}

/// True if there is an RDMA device; says so if there is none, and fails where there must be one (the guest of `ci/rdma`).
pub fn has_rdma() -> bool {
    let found = std::fs::read_dir("/sys/class/infiniband").is_ok_and(|mut devices| devices.next().is_some());
    assert!(found || std::env::var_os("TEST_REQUIRES_RDMA").is_none(), "there is no RDMA device");
    if !found {
        eprintln!("NOT TESTED: there is no RDMA device; ci/rdma tests in a guest that has one");
    }
    found
}
