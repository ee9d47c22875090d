//! The names that programs which nobody here wrote look for in libnccl.so.2 when they are loaded: read from their files once, and
//! compared with what is exported. One name that is missing, and PyTorch cannot be imported.

// Helpers of tests fail by panicking.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod support;

use std::collections::BTreeSet;
use support::symbols::exported;

/// Releases of PyTorch, how many names their libtorch_cuda.so has undefined, and which came with each: none was ever removed.
const PYTORCH: [(&str, usize, &str); 7] = [
    (
        "2.0.1",
        22,
        "AllGather AllReduce Bcast Broadcast CommAbort CommCount CommGetAsyncError CommInitAll CommInitRank CommUserRank
         GetErrorString GetLastError GetUniqueId GetVersion GroupEnd GroupStart Recv RedOpCreatePreMulSum RedOpDestroy Reduce
         ReduceScatter Send",
    ),
    ("2.5.1", 26, "CommRegister CommDeregister CommInitRankConfig CommSplit"),
    ("2.6.0", 28, "CommDestroy CommFinalize"),
    (
        "2.8.0",
        34,
        "CommInitRankScalable CommWindowRegister CommWindowDeregister GroupSimulateEnd MemAlloc MemFree",
    ),
    ("2.11.0", 38, "AlltoAll CommShrink DevCommCreate DevCommDestroy"),
    (
        "2.12.1",
        46,
        "CommMemStats CommResume CommSuspend GetLsaMultimemDevicePointer GetPeerDevicePointer PutSignal Signal WaitSignal",
    ),
    ("2.15.0", 51, "CommGetUniqueId CommGrow CommRevoke Gather WinGetUserPtr"),
];

/// Other programs: vLLM 0.33 and SGLang 0.5 by ctypes, CuPy 14 linked, nccl-tests 2.19 linked.
const OTHERS: [(&str, usize, &str); 4] = [
    (
        "vLLM",
        21,
        "GetErrorString GetLastError GetVersion GetUniqueId CommInitRank AllReduce Reduce AllGather ReduceScatter Send Recv Broadcast
         CommDestroy CommAbort CommSuspend CommResume GroupStart GroupEnd CommQueryProperties CommWindowRegister CommWindowDeregister",
    ),
    (
        "SGLang",
        19,
        "GetErrorString GetVersion GetUniqueId CommInitRank CommInitRankConfig AllReduce Reduce AllGather ReduceScatter Send Recv
         Broadcast CommDestroy GroupStart GroupEnd CommWindowRegister CommWindowDeregister MemAlloc MemFree",
    ),
    (
        "CuPy",
        22,
        "AllGather AllReduce Bcast Broadcast CommAbort CommCount CommCuDevice CommDestroy CommGetAsyncError CommInitAll
         CommInitRankConfig CommSplit CommUserRank GetErrorString GetUniqueId GetVersion GroupEnd GroupStart Recv Reduce
         ReduceScatter Send",
    ),
    (
        "nccl-tests",
        33,
        "AllGather AllReduce AlltoAll Broadcast CommAbort CommCount CommDeregister CommDestroy CommGetAsyncError CommInitRankConfig
         CommQueryProperties CommRegister CommUserRank CommWindowDeregister CommWindowRegister DevCommCreate DevCommDestroy
         Gather GetErrorString GetLastError GetUniqueId GetVersion GroupEnd GroupStart MemAlloc MemFree Recv RedOpCreatePreMulSum
         RedOpDestroy Reduce ReduceScatter Scatter Send",
    ),
];

/// Declared by NVIDIA's header and exported by nobody's library, so that no program can need it.
const NOT_EXPORTED: &str = "ncclCftBarrierCreateRequirement";

fn missing<'a>(names: impl Iterator<Item = &'a str>, exported: &BTreeSet<String>) -> Vec<String> {
    names.map(|name| format!("nccl{name}")).filter(|name| !exported.contains(name)).collect()
}

#[test]
fn every_release_of_pytorch_finds_its_names() {
    let exported: BTreeSet<_> = exported(&support::libraries().join("libnccl.so")).into_keys().collect();
    let mut names: BTreeSet<&str> = BTreeSet::new();
    for (release, count, added) in PYTORCH {
        names.extend(added.split_whitespace());
        assert_eq!(names.len(), count, "{release}");
        assert_eq!(missing(names.iter().copied(), &exported), [""; 0], "{release}");
    }
    assert!(!exported.contains(NOT_EXPORTED));
}

#[test]
fn other_programs_find_theirs() {
    for library in ["libnccl.so", "libpccl.so", "libaccl.so"] {
        let exported: BTreeSet<_> = exported(&support::libraries().join(library)).into_keys().collect();
        for (program, count, names) in OTHERS {
            assert_eq!(names.split_whitespace().count(), count, "{program}");
            assert_eq!(missing(names.split_whitespace(), &exported), [""; 0], "{program}, {library}");
        }
    }
}
