//! The table of settings.

/// What kind of value a setting takes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Kind {
    /// 0 or 1.
    Switch,
    /// A decimal number of seconds; 0 means none.
    Seconds,
    /// A number of bytes, with K, M or G behind it if wanted (binary).
    Bytes,
    /// Text with a grammar of its own.
    Text,
}

/// One setting.
#[derive(Clone, Copy, Debug)]
pub struct Setting {
    /// The name without its prefix.
    pub name: &'static str,
    /// What kind of value it takes.
    pub kind: Kind,
    /// The value when nobody sets it; empty for "unset".
    pub default: &'static str,
    /// What it does, in one sentence.
    pub help: &'static str,
}

const fn setting(name: &'static str, kind: Kind, default: &'static str, help: &'static str) -> Setting {
    Setting { name, kind, default, help }
}

/// All settings, by name.
pub const SETTINGS: &[Setting] = &[
    setting(
        "ALGO",
        Kind::Text,
        "",
        "which algorithms may be used: list;operation:list;… of direct, ring, tree, rd; ^ inverts a list",
    ),
    setting(
        "CHECK_MODE",
        Kind::Text,
        "DEFAULT",
        "DEBUG_LOCAL and DEBUG_GLOBAL: calls on a device are refused whose buffers its driver does not know, or that lie in another device",
    ),
    setting("CHECK_POINTERS", Kind::Switch, "0", "1: the same as CHECK_MODE=DEBUG_LOCAL"),
    setting("COMM_BLOCKING", Kind::Switch, "", "overrides the config field `blocking` of every communicator"),
    setting(
        "COMM_ID",
        Kind::Text,
        "",
        "host:port, ipv4:port or [ipv6]:port where rank 0 listens: every rank makes the same unique id of it",
    ),
    setting(
        "CROSS_MEMORY",
        Kind::Switch,
        "1",
        "read large buffers of other processes directly (process_vm_readv) where the kernel allows",
    ),
    setting(
        "DEBUG",
        Kind::Text,
        "",
        "the log's level: VERSION: the version once; WARN: warnings and the text of each failed call; INFO: what goes on; TRACE: every call",
    ),
    setting(
        "DEBUG_FILE",
        Kind::Text,
        "",
        "where the log goes, with %h for the host and %p for the process; unset: standard output",
    ),
    setting(
        "DEBUG_SUBSYS",
        Kind::Text,
        "INIT,BOOTSTRAP,ENV",
        "what INFO is about: names with commas, or ALL; ^ before it: all but these",
    ),
    setting(
        "DEBUG_TIMESTAMP_FORMAT",
        Kind::Text,
        "[%F %T] ",
        "how times are written, as strftime has it, and %3f for milliseconds (1 to 9 digits); _ is a blank; empty: no times",
    ),
    setting(
        "DEBUG_TIMESTAMP_LEVELS",
        Kind::Text,
        "WARN",
        "lines of which levels begin with a time: names with commas, or ALL; ^ before it: all but these",
    ),
    setting(
        "DETERMINISTIC",
        Kind::Switch,
        "0",
        "each element's result depends on nothing but the inputs in rank order",
    ),
    setting(
        "DEVICE",
        Kind::Text,
        "auto",
        "auto: communicators are of the device that the process uses when it makes them, if it uses a driver; none: of host memory",
    ),
    setting(
        "DRIVER_LIB",
        Kind::Text,
        "",
        "the device driver's library; unset: libcuda.so.1 or libhggc.so, if the process has loaded one",
    ),
    setting(
        "DRIVER_PREFIX",
        Kind::Text,
        "",
        "what the names of the driver's functions begin with: cu, hg; unset: as the library's name says",
    ),
    setting(
        "ENCRYPTION_KEY_FILE",
        Kind::Text,
        "",
        "the file with the key that all processes of a job have in common, by which everything that goes over TCP is encrypted; overrides ncclSetEncryption",
    ),
    setting(
        "EXCHANGE_BYTES",
        Kind::Bytes,
        "",
        "up to how many bytes per rank an operation takes the one-step path (at most 16K); unset: as the model says",
    ),
    setting(
        "FLAT_BYTES",
        Kind::Bytes,
        "",
        "up to how many bytes every rank reduces all of an allreduce by itself; unset: as the model says",
    ),
    setting(
        "HOSTID",
        Kind::Text,
        "",
        "what this host is called: ranks of which it differs share no memory, even where they could",
    ),
    setting(
        "IB_ADDR_FAMILY",
        Kind::Text,
        "AF_INET",
        "RDMA over Ethernet: which family of addresses is preferred, AF_INET or AF_INET6",
    ),
    setting(
        "IB_ADDR_RANGE",
        Kind::Text,
        "",
        "RDMA over Ethernet: only addresses within this network, as 10.1.0.0/16",
    ),
    setting(
        "IB_BREAK_EVERY",
        Kind::Text,
        "0",
        "RDMA, for tests of fail-over: after about so many writes a queue pair is put into error; 0: never",
    ),
    setting(
        "IB_DISABLE",
        Kind::Switch,
        "",
        "1: no RDMA between hosts, where TCP is used instead; unset or 0: where both have it",
    ),
    setting(
        "IB_GID_INDEX",
        Kind::Text,
        "-1",
        "RDMA: the place of the address in each port's table; -1: chosen by kind and family",
    ),
    setting(
        "IB_HCA",
        Kind::Text,
        "",
        "RDMA: which devices are used: prefixes of names, with commas, :port behind one if wanted; = before it: whole names; ^ before that: all but these",
    ),
    setting(
        "IB_PCI_RELAXED_ORDERING",
        Kind::Text,
        "2",
        "RDMA: whether the device may write in any order: 0 no, 1 and 2 if it can",
    ),
    setting("IB_PKEY", Kind::Text, "0", "RDMA: the place of the partition key in each port's table"),
    setting(
        "IB_QPS_PER_CONNECTION",
        Kind::Text,
        "1",
        "RDMA: queue pairs for each pair of ports (at most 16)",
    ),
    setting(
        "IB_RETRY_CNT",
        Kind::Text,
        "6",
        "RDMA: how often a packet is sent again (at most 7, which soft RoCE takes for ever)",
    ),
    setting("IB_ROCE_VERSION_NUM", Kind::Text, "2", "RDMA over Ethernet: 1 for frames, 2 for datagrams"),
    setting("IB_SL", Kind::Text, "0", "RDMA: the service level (at most 15)"),
    setting("IB_TC", Kind::Text, "0", "RDMA over Ethernet: the traffic class (at most 255)"),
    setting(
        "IB_TIMEOUT",
        Kind::Text,
        "20",
        "RDMA: a packet is sent again after 4.096 µs times 2 to this power (at most 31)",
    ),
    setting("INIT_TIMEOUT", Kind::Seconds, "300", "how long a new communicator waits for its ranks to come"),
    setting(
        "LOCAL_REGISTER",
        Kind::Switch,
        "1",
        "0: ncclCommRegister succeeds with a NULL handle and registers nothing",
    ),
    setting(
        "NET",
        Kind::Text,
        "",
        "the network between hosts: Socket: TCP; IB: the same as REQUIRE_PATH=rdma; another name: a network plugin's, and nothing else; overrides the config field `netName`",
    ),
    setting(
        "NET_BANDWIDTH_MBPS",
        Kind::Text,
        "",
        "how many Mbit/s a host can send to others, for the choice between ways; unset: as its interface says",
    ),
    setting(
        "NET_LATENCY_US",
        Kind::Text,
        "",
        "microseconds from host to host, for the choice between ways; unset: half of the round trip when ranks join",
    ),
    setting(
        "NET_PLUGIN",
        Kind::Text,
        "",
        "libraries of network plugins, the first that can be used, separated by commas: files, parts of libnccl-net-NAME.so, STATIC_PLUGIN, none; unset: libnccl-net.so",
    ),
    setting(
        "NSOCKS_PERTHREAD",
        Kind::Text,
        "",
        "times SOCKET_NTHREADS: how many connections carry the data of two ranks of different hosts (at most 64); unset: by the interfaces",
    ),
    setting(
        "P2P_DISABLE",
        Kind::Switch,
        "0",
        "1: devices do not read each other's memory, even where they could: everything goes through the host",
    ),
    setting(
        "P2P_LEVEL",
        Kind::Text,
        "",
        "LOC or 0: the same as P2P_DISABLE=1; NVL, PIX, PXB, PHB, SYS or a number: no limit",
    ),
    setting(
        "PARAM_DUMP_ALL",
        Kind::Text,
        "false",
        "true: ncclParamGetAllParameterKeys and ncclParamDumpAll tell the names without an effect, too",
    ),
    setting(
        "PASS_BYTES",
        Kind::Bytes,
        "",
        "from how many bytes on data is copied through shared memory, though peers could read it; unset: as the model says",
    ),
    setting(
        "PEER_TIMEOUT",
        Kind::Seconds,
        "30",
        "how long a host may be silent before its ranks are taken for lost",
    ),
    setting(
        "PORT_RANGE",
        Kind::Text,
        "",
        "first-last: the only TCP ports that are listened on; unset: any that is free",
    ),
    setting(
        "PROFILER_PLUGIN",
        Kind::Text,
        "",
        "a library that is told of calls: a file, a part of libnccl-profiler-NAME.so, STATIC_PLUGIN, none; unset: libnccl-profiler.so if there is one",
    ),
    setting(
        "PROTO",
        Kind::Text,
        "",
        "accepted for compatibility: Simple, LL, LL128; one protocol serves all here",
    ),
    setting(
        "RECORDER",
        Kind::Switch,
        "1",
        "keep a file for each communicator and rank that says what it does, for accl status and accl explain",
    ),
    setting(
        "RECORDER_DIR",
        Kind::Text,
        "",
        "where these files are, a directory of this user with mode 0700; unset: accl-UID in /dev/shm, $XDG_RUNTIME_DIR or /tmp, if that is in memory",
    ),
    setting(
        "REQUIRE_PATH",
        Kind::Text,
        "",
        "rdma: data between hosts goes by RDMA, or the communicator fails and says why; another word: the same for the network plugin of this name",
    ),
    setting(
        "SEGMENT_BYTES",
        Kind::Bytes,
        "256K",
        "how many bytes a pipeline moves at once (a power of two from 64 to 1G)",
    ),
    setting(
        "SHM_DISABLE",
        Kind::Switch,
        "0",
        "no memory shared between processes of one host: they use the network, as if each were on a host of its own",
    ),
    setting(
        "SOCKET_FAMILY",
        Kind::Text,
        "",
        "AF_INET or AF_INET6: the only family of addresses that is used; unset: both",
    ),
    setting(
        "SOCKET_IFNAME",
        Kind::Text,
        "",
        "which network interfaces are used: prefixes of names, with commas; = before it: whole names; ^ before that: all but these",
    ),
    setting("SOCKET_NTHREADS", Kind::Text, "", "see NSOCKS_PERTHREAD (at most 16); no threads are made here"),
    setting(
        "SOCKET_RETRY_CNT",
        Kind::Text,
        "",
        "how often an address is tried again that does not answer or refuses; unset: 15 times if it refuses, and without end where rank 0 may come late",
    ),
    setting(
        "SOCKET_RETRY_SLEEP_MSEC",
        Kind::Text,
        "",
        "milliseconds until an address is tried again, twice as long the second time, three times the third; unset: 100, doubled each time up to 2 s",
    ),
    setting(
        "STAGE_BYTES",
        Kind::Bytes,
        "",
        "from how many bytes on data goes through memory that all ranks share, a segment at a time; unset: as the model says",
    ),
    setting(
        "STREAM_BYTES",
        Kind::Bytes,
        "",
        "from how many bytes on results are stored past the caches; unset: as the model says",
    ),
    setting(
        "TCP_CONGESTION",
        Kind::Text,
        "",
        "congestion control of connections that carry data; unset: the system's, and near hosts without pacing (no BBR)",
    ),
    setting("TIMEOUT", Kind::Seconds, "0", "how long an operation may stand still before it fails"),
    setting(
        "TUNE",
        Kind::Text,
        "",
        "figures of the machine that choices are made by: a file; off; measure (once); unset: this boot's, if measured",
    ),
    setting(
        "TUNER_PLUGIN",
        Kind::Text,
        "",
        "a library that chooses algorithms: a file, a part of libnccl-tuner-NAME.so, STATIC_PLUGIN, none; unset: libnccl-tuner.so or NET_PLUGIN, if there is one",
    ),
    setting(
        "UID_STAGGER_RATE",
        Kind::Text,
        "7000",
        "how many ranks a second come to a unique id that many share; 0: all at once",
    ),
    setting("UID_STAGGER_THRESHOLD", Kind::Text, "256", "up to how many ranks come to a unique id at once"),
    setting(
        "WARN_AFTER",
        Kind::Seconds,
        "10",
        "after how long a wait says on standard error whom it waits for",
    ),
    setting(
        "WARN_ENABLE_DEBUG_INFO",
        Kind::Switch,
        "0",
        "1: the first warning in the log sets its level to INFO, for the rest of the process",
    ),
];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_sorted_and_unique() {
        assert!(SETTINGS.windows(2).all(|pair| pair[0].name < pair[1].name));
    }
}
