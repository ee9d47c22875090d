//! Names that were meant to be settings: which variables look like a misspelt one.

use super::table::SETTINGS;

/// Names with the prefix `ACCL_` that are no settings of the library: of its tools, launchers, tests, and where files are.
const OURS_BESIDES: [&str; 7] = ["CONF_FILE", "RANK", "WORLD", "ROOT", "LOCAL_RANK", "LARGE", "LIB"];

/// Names that NCCL has and this library does not: set on purpose, however near they are to one of ours.
const OF_NCCL: &str = "ALLOC_P2P_NET_LL_BUFFERS BUFFSIZE CGA_CLUSTER_SIZE CHECKS_DISABLE \
    COLLNET_ENABLE COLLNET_NODE_THRESHOLD COMM_SHRINK_SHARE_RESOURCES COMM_SPLIT_SHARE_RESOURCES CONF_FILE CROSS_NIC CTA_POLICY \
    CUMEM_ENABLE CUMEM_HOST_ENABLE DEBUG_LEVELS DMABUF_ENABLE ENABLE_VERSION_CHECK ENV_PLUGIN GIN_ENABLE GIN_TYPE GRAPH_DUMP_FILE \
    GRAPH_FILE GRAPH_MIXING_SUPPORT GRAPH_REGISTER GRAPH_STREAM_ORDERING IB_ADAPTIVE_ROUTING IB_ADDR_FAMILY IB_ADDR_RANGE \
    IB_AR_THRESHOLD IB_DISABLE IB_ECE_ENABLE IB_FIFO_TC IB_GID_INDEX IB_HCA IB_MERGE_NICS IB_OOO_RQ IB_PCI_RELAXED_ORDERING \
    IB_QPS_PER_CONNECTION IB_RETRY_CNT IB_RETURN_ASYNC_EVENTS IB_ROCE_VERSION_NUM IB_SL IB_SPLIT_DATA_ON_QPS IB_TC IB_TIMEOUT \
    IGNORE_CPU_AFFINITY IPC_USE_ABSTRACT_SOCKET LAUNCH_MODE LAUNCH_ORDER_IMPLICIT LAUNCH_RACE_FATAL LEGACY_CUDA_REGISTER \
    MAX_CTAS MAX_NCHANNELS MAX_NRINGS MEM_SYNC_DOMAIN MIN_CTAS MIN_NCHANNELS MIN_NRINGS MNNVL_CLIQUE_ID MNNVL_ENABLE MNNVL_UUID \
    MULTI_RANK_GPU_ENABLE NCHANNELS_PER_NET_PEER NET NETDEVS_POLICY NET_GDR_C2C NET_GDR_LEVEL NET_GDR_READ NET_MERGE_LEVEL \
    NET_MERGE_POLICY NET_PLUGIN NET_SHARED_BUFFERS NET_SHARED_COMMS NO_CACHE NTHREADS NUM_RMA_CTX NVB_DISABLE NVLS_ENABLE \
    NVLS_NCHANNELS NVLINK_UTIL_CENTRIC_SCHED_ENABLE OOB_NET_ENABLE OOB_NET_IFNAME P2P_DIRECT_DISABLE P2P_LEVEL \
    P2P_LL_THRESHOLD P2P_MAX_PEERS P2P_NET_CHUNKSIZE P2P_PXN_LEVEL PARAM_DUMP_ALL PROFILER_PLUGIN PROFILE_EVENT_MASK PXN_C2C \
    PXN_DISABLE RAS_ADDR RAS_ENABLE RAS_TIMEOUT_FACTOR RUNTIME_CONNECT SET_STACK_SIZE SET_THREAD_NAME SHM_LOCALITY SHM_USE_CUDA_MEMCPY \
    SOCKET_MAGIC SOCKET_POLL_TIMEOUT_MSEC SOCKET_RETRY_CNT SOCKET_RETRY_SLEEP_MSEC SYM_GIN_KERNELS_ENABLE THREAD_THRESHOLDS \
    TOPO_DUMP_FILE TOPO_FILE TUNER_PLUGIN WARN_ENABLE_DEBUG_INFO WIN_ENABLE";

/// How many letters of a name with the prefix may be wrong: with a foreign prefix fewer, as NCCL has names that are not listed here.
const PREFIXES: [(&str, usize); 3] = [("ACCL_", 2), ("PCCL_", 1), ("NCCL_", 1)];

/// What to say of a variable that was probably meant to be one of our settings.
pub(super) fn hint(name: &str) -> Option<String> {
    let (prefix, most) = PREFIXES.into_iter().find(|(prefix, _)| name.starts_with(prefix))?;
    let rest = &name[prefix.len()..];
    let known = SETTINGS.iter().any(|setting| setting.name == rest)
        || OURS_BESIDES.contains(&rest)
        || OF_NCCL.split_whitespace().any(|other| other == rest);
    if known {
        return None;
    }
    let near = SETTINGS.iter().map(|setting| (distance(rest, setting.name), setting.name)).min()?;
    // In a short name, two letters are half of it.
    (near.0 <= most.min(near.1.len() / 3))
        .then(|| format!("{name} is no setting and has no effect; did you mean {prefix}{}?", near.1))
}

/// How many letters must be put in, left out, replaced, or swapped with the next one.
fn distance(one: &str, other: &str) -> usize {
    let (one, other) = (one.as_bytes(), other.as_bytes());
    let mut rows: [Vec<usize>; 3] = [Vec::new(), (0..=other.len()).collect(), Vec::new()];
    for (at, letter) in one.iter().enumerate() {
        let mut row = vec![at + 1];
        for (to, wanted) in other.iter().enumerate() {
            let mut least =
                (rows[1][to] + usize::from(letter != wanted)).min(rows[1][to + 1] + 1).min(row[to] + 1);
            if at > 0 && to > 0 && letter == &other[to - 1] && &one[at - 1] == wanted {
                least = least.min(rows[0][to - 1] + 1);
            }
            row.push(least);
        }
        rows[0] = std::mem::replace(&mut rows[1], row);
    }
    rows[1].last().copied().unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn distances_count_swaps_once() {
        for (one, other, expected) in
            [("", "", 0), ("abc", "", 3), ("abc", "acb", 1), ("abc", "abd", 1), ("TIMEOT", "TIMEOUT", 1)]
        {
            assert_eq!((distance(one, other), distance(other, one)), (expected, expected), "{one} {other}");
        }
    }

    #[test]
    fn misspelt_names_get_the_nearest_one() {
        for (wrong, right) in [
            ("ACCL_TIMEOT", "ACCL_TIMEOUT"),
            ("ACCL_WARNAFTER", "ACCL_WARN_AFTER"),
            ("NCCL_SOCKET_INFAME", "NCCL_SOCKET_IFNAME"),
            ("PCCL_DEBGU", "PCCL_DEBUG"),
        ] {
            let hint = hint(wrong).unwrap();
            assert_eq!(hint, format!("{wrong} is no setting and has no effect; did you mean {right}?"));
        }
    }

    #[test]
    fn right_and_foreign_names_get_none() {
        for name in [
            "ACCL_TIMEOUT",
            "NCCL_ALGO",
            "NCCL_IB_TIMEOUT",
            "NCCL_NET_PLUGIN",
            "ACCL_RANK",
            "ACCL_SOMETHING_ELSE",
            "NCCL_TUNER_CONFIG_FILE",
            "HOME",
            "ACCL_",
        ] {
            assert_eq!(hint(name), None, "{name}");
        }
    }
}
