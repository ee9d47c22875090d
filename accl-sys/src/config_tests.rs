use super::*;
use accl_core::ErrorKind;

/// Release, and bytes of its `ncclConfig_t`.
const HEADERS: [(u32, usize); 12] = [
    (21400, 24),
    (21703, 40),
    (21801, 48),
    (22105, 48),
    (22503, 48),
    (22602, 48),
    (22703, 72),
    (22803, 80),
    (22902, 88),
    (23003, 96),
    (23102, 112),
    (23203, 120),
];

/// A field's name, since when it is there (by size and by version), and its place.
type Field = (&'static str, u32, fn(&mut ncclConfig_t) -> &mut i32, i32);

const FIELDS: [Field; 21] = [
    ("blocking", 21400, |c| &mut c.blocking, 1),
    ("cgaClusterSize", 21700, |c| &mut c.cgaClusterSize, 2),
    ("minCTAs", 21700, |c| &mut c.minCTAs, 1),
    ("maxCTAs", 21700, |c| &mut c.maxCTAs, 3),
    ("splitShare", 21800, |c| &mut c.splitShare, 1),
    ("trafficClass", 22600, |c| &mut c.trafficClass, 105),
    ("collnetEnable", 22700, |c| &mut c.collnetEnable, 1),
    ("CTAPolicy", 22700, |c| &mut c.CTAPolicy, 2),
    ("shrinkShare", 22700, |c| &mut c.shrinkShare, 1),
    ("nvlsCTAs", 22700, |c| &mut c.nvlsCTAs, 5),
    ("nChannelsPerNetPeer", 22800, |c| &mut c.nChannelsPerNetPeer, 64),
    ("nvlinkCentricSched", 22800, |c| &mut c.nvlinkCentricSched, 1),
    ("graphUsageMode", 22900, |c| &mut c.graphUsageMode, 2),
    ("numRmaCtx", 22900, |c| &mut c.numRmaCtx, 0),
    ("maxP2pPeers", 23000, |c| &mut c.maxP2pPeers, 9),
    ("graphStreamOrdering", 23005, |c| &mut c.graphStreamOrdering, 1),
    ("launchOrderImplicit", 23100, |c| &mut c.launchOrderImplicit, 1),
    ("numRmaSig", 23100, |c| &mut c.numRmaSig, 6),
    ("rmaEagerInit", 23100, |c| &mut c.rmaEagerInit, 1),
    ("hostCftMode", 23100, |c| &mut c.hostCftMode, 3),
    ("nvlsHostMode", 23200, |c| &mut c.nvlsHostMode, 3),
];

fn everything_set(version: u32, size: usize) -> ncclConfig_t {
    let mut config = ncclConfig_t { version, size, netName: c"Socket".as_ptr(), ..NOTHING_SET };
    config.commName = c"job".as_ptr();
    for (_, _, field, value) in FIELDS {
        *field(&mut config) = value;
    }
    config
}

/// The client's struct as a buffer of exactly its size, so that a tool that watches memory sees a read beyond.
fn parse(config: &ncclConfig_t) -> Result<ncclConfig_t> {
    let bytes = config.size.min(size_of::<ncclConfig_t>());
    let source = std::ptr::from_ref(config).cast::<u8>();
    // SAFETY: `bytes` are within the struct, whose padding the tests do not leave uninitialized: it has none.
    let copy = unsafe { std::slice::from_raw_parts(source, bytes) }.to_vec();
    // SAFETY: the copy is as long as its head says, but for sizes beyond ours, of which only ours is read.
    unsafe { fields(Face::Nccl, copy.as_ptr().cast()) }
}

fn kind<T>(result: Result<T>) -> Option<ErrorKind> {
    result.err().map(|error| error.kind())
}

#[test]
fn each_header_sets_what_its_release_knew() {
    for (version, size) in HEADERS {
        let mut parsed = parse(&everything_set(version, size)).unwrap();
        for (name, since, field, value) in FIELDS {
            let expected = if version >= since { value } else { UNDEFINED };
            assert_eq!(*field(&mut parsed), expected, "{name} of a client of {version}");
        }
        assert_eq!(parsed.netName.is_null(), version < 21700, "{version}");
        assert_eq!(parsed.commName.is_null(), version < 22700, "{version}");
        validate(&parsed).unwrap();
    }
}

#[test]
fn padding_that_became_a_field_counts_from_its_release_on() {
    let traffic_class = |version| parse(&everything_set(version, 48)).unwrap().trafficClass;
    assert_eq!(traffic_class(22503), UNDEFINED);
    assert_eq!(traffic_class(22602), 105);
    let ordering = |version| parse(&everything_set(version, 96)).unwrap().graphStreamOrdering;
    assert_eq!(ordering(23003), UNDEFINED);
    assert_eq!(ordering(23007), 1);
}

#[test]
fn a_version_alone_or_a_size_alone_is_not_enough() {
    // The 24 bytes of 2.14 end with padding that became cgaClusterSize.
    let short = parse(&everything_set(23203, 24)).unwrap();
    assert_eq!((short.blocking, short.cgaClusterSize, short.minCTAs), (1, 2, UNDEFINED));
    assert!(short.netName.is_null());
    let old = parse(&everything_set(21400, 120)).unwrap();
    assert_eq!((old.blocking, old.cgaClusterSize, old.nvlsHostMode), (1, UNDEFINED, UNDEFINED));
    // splitShare and commName are told by the size only.
    assert_eq!(old.splitShare, 1);
    assert!(!old.commName.is_null());
}

#[test]
fn a_client_newer_than_us_is_welcome() {
    let mut later = everything_set(29900, 512);
    later.blocking = 0;
    let parsed = parse(&later).unwrap();
    assert_eq!((parsed.blocking, parsed.nvlsHostMode), (0, 3));
}

#[test]
fn what_no_initializer_made_is_refused() {
    let zero = ncclConfig_t { magic: 0, ..NOTHING_SET };
    assert_eq!(kind(parse(&zero)), Some(ErrorKind::InvalidArgument));
    let sim = ncclConfig_t { magic: NCCL_SIM_INFO_MAGIC, ..NOTHING_SET };
    assert_eq!(kind(parse(&sim)), Some(ErrorKind::InvalidArgument));
    let empty = ncclConfig_t { size: 16, ..NOTHING_SET };
    assert_eq!(kind(parse(&empty)), Some(ErrorKind::InvalidArgument));
}

#[test]
fn bad_values_are_refused_by_name() {
    let bad: [(&str, &[i32]); 16] = [
        ("blocking", &[-1, 2]),
        ("cgaClusterSize", &[-1]),
        ("minCTAs", &[0, -5]),
        ("maxCTAs", &[0]),
        ("splitShare", &[2]),
        ("collnetEnable", &[-2]),
        ("CTAPolicy", &[-1, 4]),
        ("shrinkShare", &[2]),
        ("nvlsCTAs", &[0]),
        ("nChannelsPerNetPeer", &[0, 65]),
        ("nvlinkCentricSched", &[2]),
        ("graphUsageMode", &[-1, 3]),
        ("numRmaCtx", &[-1]),
        ("maxP2pPeers", &[0]),
        ("hostCftMode", &[0, 4]),
        ("nvlsHostMode", &[-1, 4]),
    ];
    for (name, values) in bad {
        let (_, _, field, _) = FIELDS.into_iter().find(|known| known.0 == name).unwrap();
        for value in values {
            let mut config = NOTHING_SET;
            *field(&mut config) = *value;
            let error = validate(&config).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::InvalidArgument);
            assert!(error.text().contains(name), "{name}: {error}");
        }
    }
    let crossed = ncclConfig_t { minCTAs: 4, maxCTAs: 3, ..NOTHING_SET };
    assert_eq!(kind(validate(&crossed)), Some(ErrorKind::InvalidArgument));
    validate(&ncclConfig_t { trafficClass: -7, minCTAs: 200, nvlsHostMode: i32::MAX, ..NOTHING_SET })
        .unwrap();
}

#[test]
fn undefined_is_the_default_and_null_is_the_parents() {
    // SAFETY: NULL is allowed, and so is a whole struct.
    let (none, parsed) = unsafe {
        (for_child(Face::Nccl, std::ptr::null()), for_child(Face::Nccl, &raw const NOTHING_SET_STATIC.0))
    };
    assert!(none.unwrap().is_none());
    let parsed = parsed.unwrap().unwrap();
    assert!(parsed.blocking && parsed.name.is_none());
}

struct Shared(ncclConfig_t);
// SAFETY: its pointers are NULL.
unsafe impl Sync for Shared {}
static NOTHING_SET_STATIC: Shared = Shared(NOTHING_SET);
