//! The C interface from outside: what the shared libraries export, and C programs that use them.

// Helpers of tests fail by panicking.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod support;

use std::collections::BTreeSet;
use std::path::Path;
use std::process::Command;

use support::Language::{C, Cpp};
use support::symbols::{Kind, exported};

/// All functions of the interface, without prefix.
const NAMES: &str = "
    AllGather AllGatherConfig AllReduce AllReduceConfig AlltoAll AlltoAllConfig Bcast Broadcast
    BroadcastConfig CommAbort CommCount CommCuDevice CommDeregister CommDestroy CommFinalize
    CommGetAsyncError CommGetUniqueId CommGrow CommInitAll CommInitRank CommInitRankConfig
    CommInitRankScalable CommMemStats CommQueryProperties CommRegister CommResume CommRevoke CommShrink
    CommSplit CommSuspend CommUserRank CommWindowDeregister CommWindowRegister DevCommCreate
    DevCommDestroy Gather GatherConfig GetCftDeviceLeInfo GetErrorString GetLastError
    GetLsaDevicePointer GetLsaMultimemDevicePointer GetMultimemDeviceLeInfo GetMultimemDevicePointer
    GetPeerDeviceLeInfo GetPeerDevicePointer GetUniqueId GetVersion GinBarrierCreateRequirement
    GinInboxA2ACreateRequirement GinOutboxCreateRequirement GroupEnd GroupSimulateEnd GroupStart
    LLA2ACalcSlots LLA2ACreateRequirement LsaBarrierCreateRequirement MemAlloc MemFree ParamBind
    ParamDumpAll ParamGet ParamGetAllParameterKeys ParamGetI16 ParamGetI32 ParamGetI64 ParamGetI8
    ParamGetParameter ParamGetStr ParamGetU16 ParamGetU32 ParamGetU64 ParamGetU8 PutSignal Recv
    RedOpCreatePreMulSum RedOpDestroy Reduce ReduceConfig ReduceScatter ReduceScatterConfig
    ResetDebugInit Scatter ScatterConfig Send SetEncryption Signal TeamCft TeamCftMultimem TeamLsa
    TeamRail TeamRankToLsa TeamRankToWorld TeamWorld WaitSignal WinGetUserPtr";

const EXTENSIONS: [&str; 15] = [
    "acclCommInitRankHost",
    "acclDescribe",
    "acclExplain",
    "acclIrecv",
    "acclIsend",
    "acclLastErrorOfThread",
    "acclRequestFree",
    "acclRequestSource",
    "acclRequestTest",
    "acclRequestWait",
    "acclStreamCreate",
    "acclStreamDestroy",
    "acclStreamQuery",
    "acclStreamSynchronize",
    "acclTune",
];

const LIBRARIES: [(&str, &str); 3] =
    [("libaccl.so", "libaccl.so"), ("libnccl.so", "libnccl.so.2"), ("libpccl.so", "libpccl.so.2")];

fn text(command: &mut Command) -> String {
    String::from_utf8(support::run(command).stdout).unwrap()
}

/// libpccl.so.2 has PCCL's names besides: tests/pccl_face.rs.
#[test]
fn the_libraries_export_the_interface_and_nothing_else() {
    let names: Vec<_> = NAMES.split_whitespace().collect();
    assert_eq!(names.len(), 96);
    let twins = names.iter().flat_map(|name| [format!("nccl{name}"), format!("pnccl{name}")]);
    let wanted: BTreeSet<_> = twins.chain(EXTENSIONS.map(str::to_owned)).collect();
    for (file, _) in LIBRARIES {
        let mut found = exported(&support::libraries().join(file));
        if file == "libpccl.so" {
            found.retain(|name, _| !name.starts_with("pccl") && !name.starts_with("nccl_"));
        }
        for (name, kind) in &found {
            // As in NVIDIA's file. Other linkers may be chosen elsewhere, which cannot do it.
            let is_weak = name.starts_with("nccl") && cfg!(target_arch = "x86_64");
            assert_eq!(*kind, if is_weak { Kind::WeakFunction } else { Kind::Function }, "{name} in {file}");
        }
        let found: BTreeSet<_> = found.into_keys().collect();
        let missing: Vec<_> = wanted.difference(&found).collect();
        let extra: Vec<_> = found.difference(&wanted).collect();
        assert!(missing.is_empty() && extra.is_empty(), "{file}: missing {missing:?}, too many {extra:?}");
    }
}

#[test]
fn the_header_declares_what_is_exported() {
    let header = std::fs::read_to_string(support::root().join("include/nccl.h")).unwrap();
    for name in NAMES.split_whitespace() {
        for declared in [format!(" nccl{name}("), format!(" pnccl{name}(")] {
            let pointer = declared.replace(' ', "*");
            let count = header.lines().filter(|line| !line.starts_with([' ', '/']));
            let count = count.filter(|line| line.contains(&declared) || line.contains(&pointer)).count();
            assert_eq!(count, 1, "{declared}");
        }
    }
}

#[test]
fn the_libraries_are_found_by_their_sonames() {
    for (file, soname) in LIBRARIES {
        let library = support::libraries().join(file);
        let dynamic = text(Command::new("readelf").args(["-d", "-W"]).arg(&library));
        let line = dynamic.lines().find(|line| line.contains("SONAME")).unwrap_or_default();
        assert!(line.ends_with(&format!("[{soname}]")), "{file}: {line}");
        assert!(!dynamic.contains("libaccl_sys") && !dynamic.contains("libcuda"), "{file}: {dynamic}");
        let by_soname = support::libraries().join(soname).canonicalize().unwrap();
        assert_eq!(by_soname, library.canonicalize().unwrap());
    }
}

#[test]
fn the_version_stands_in_the_files() {
    for (file, _) in LIBRARIES {
        let bytes = std::fs::read(support::libraries().join(file)).unwrap();
        let banner = b"NCCL version 2.30.7+cuda0.0";
        assert!(bytes.windows(banner.len()).any(|window| window == banner), "{file}");
    }
}

#[test]
fn the_header_has_the_published_layout() {
    support::passes("layout.c", C, "nccl");
    support::passes("layout.c", Cpp, "nccl");
}

#[test]
fn basics() {
    for library in ["accl", "nccl", "pccl"] {
        support::passes("basics.c", C, library);
    }
    support::passes("basics.c", Cpp, "nccl");
}

#[test]
fn bad_arguments_are_refused() {
    support::passes("arguments.c", C, "nccl");
    support::passes("arguments.c", Cpp, "nccl");
}

#[test]
fn settings_are_read_by_key() {
    support::passes("parameters.c", C, "nccl");
    let program = support::compile("parameters.c", Cpp, "nccl");
    let output = support::run(support::program(&program).env("NCCL_DEBUG", "INFO"));
    let text = String::from_utf8(output.stdout).unwrap();
    for line in [
        "NCCL_ALGO value=ring set_by=environment as NCCL_ALGO default=<unset>: which algorithms",
        "NCCL_WARN_AFTER value=5 set_by=environment as ACCL_WARN_AFTER default=10: after how long",
        "NCCL_HOSTID value=<unset> set_by=default default=<unset>: what this host is called",
    ] {
        assert_eq!(text.matches(&format!("NCCL INFO {line}")).count(), 2, "{line} in {text}");
    }
    assert!(!text.contains("NCCL INFO NCCL_NTHREADS"), "{text}");
    std::fs::remove_file(program).unwrap();
}

#[test]
fn configurations_of_every_release_are_read_to_their_end() {
    support::passes("config.c", C, "nccl");
}

#[test]
fn codes_say_whose_fault_it_was() {
    support::passes("codes.c", C, "nccl");
}

#[test]
fn what_nvidia_says_and_does_otherwise_is_decided() {
    support::passes("quirks.c", C, "nccl");
    support::passes("quirks.c", Cpp, "nccl");
}

#[test]
fn a_call_sets_its_communicators_time_limits() {
    support::passes("limits.c", C, "nccl");
}

#[test]
fn the_time_of_a_group_is_estimated() {
    support::passes("simulated.c", C, "nccl");
}

#[test]
fn a_call_selects_its_algorithm() {
    support::passes("selected.c", C, "nccl");
}

#[test]
fn a_communicator_of_one_rank() {
    support::passes("alone.c", C, "nccl");
    support::passes("alone.c", Cpp, "nccl");
}

#[test]
fn forked_children_join() {
    support::passes("forked.c", C, "nccl");
}

#[test]
fn ranks_split() {
    support::passes("split.c", C, "nccl");
}

#[test]
fn the_library_is_loaded_and_unloaded() {
    support::passes("unload.c", C, "nccl");
}

/// C24, C42: programs with sanitizers, which see what the library does with the heap, and what it leaves. Not `forked.c`, which forks while the
/// library has a thread: the sanitizer's own allocator may be locked in the child then, for ever (GCC 12).
#[test]
fn sanitizers_find_nothing() {
    if support::has_sanitizers() {
        for source in [
            "alone.c",
            "arguments.c",
            "basics.c",
            "config.c",
            "limits.c",
            "parameters.c",
            "quirks.c",
            "selected.c",
            "simulated.c",
            "split.c",
            "unload.c",
        ] {
            support::is_sane(source, "nccl");
        }
    }
}

#[test]
fn a_tool_can_take_the_place_of_a_function() {
    support::passes("interpose.c", C, "nccl");
}

#[test]
fn an_installation_is_complete() {
    let prefix = support::libraries().join(format!("c-tests/install-{}", std::process::id()));
    let profile = support::libraries().file_name().unwrap().to_str().unwrap().replace("debug", "dev");
    let target = support::libraries().parent().unwrap();
    let mut install = Command::new(support::root().join("ci/install"));
    support::run(install.arg(&prefix).arg(profile).env("CARGO_TARGET_DIR", target));
    let link = |name: &str| std::fs::read_link(prefix.join("lib").join(name)).unwrap();
    for face in ["nccl", "pccl"] {
        assert_eq!(link(&format!("lib{face}.so")), Path::new(&format!("lib{face}.so.2")));
        assert!(prefix.join(format!("lib/lib{face}.so.2")).symlink_metadata().unwrap().is_file());
    }
    assert!(prefix.join("lib/libaccl.so").is_file());
    for header in ["nccl.h", "pccl.h", "accl.h"] {
        assert!(prefix.join("include").join(header).is_file(), "{header}");
    }
    std::fs::remove_dir_all(prefix).unwrap();
}
