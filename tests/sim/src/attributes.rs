//! What a simulated device says about itself: the numbers of an H100-like device, as far as programs ask.

use crate::config;
use crate::device;

pub(crate) const NAME: &str = "ACCL simulated device";
pub(crate) const SHARED_OPTIN_BYTES: u32 = 227 << 10;
pub(crate) const MAX_BLOCK_THREADS: u32 = 1024;

/// An attribute by the API's number; `None` if there is none of that number. Attributes that are not named here are 0: "has not".
pub(crate) fn get(attribute: i32, device: usize) -> Option<i32> {
    let config = config::get();
    let (domain, bus, number) = device::pci(device);
    let value = match attribute {
        1..=3 => 1024,
        4 => 64,
        5 => i32::MAX,
        6 | 7 => 65535,
        8 => 48 << 10,
        9 => 64 << 10,
        10 => 32,
        11 => i32::MAX,
        12 | 82 => 65536,
        13 => 1_755_000,
        14 => 512,
        // Multiprocessors: few, so that programs which size launches by them do not drown the interpreter.
        16 => 8,
        19 | 31 | 41 | 78 | 79 | 80 | 83 | 90 | 91 | 95 | 99 | 113 | 125 | 129 => 1,
        33 => bus,
        34 => number,
        36 => 2_619_000,
        37 => 5120,
        38 => 50 << 20,
        39 => 2048,
        40 => 3,
        50 => domain,
        75 => config.compute.0,
        76 => config.compute.1,
        81 => 228 << 10,
        97 => SHARED_OPTIN_BYTES as i32,
        106 => 32,
        111 => 1024,
        92..=94 | 122 | 123 => i32::from(config.memops),
        102 | 103 => i32::from(config.vmm),
        0 => return None,
        ..=150 => 0,
        _ => return None,
    };
    Some(value)
}

/// A field of `cudaDeviceProp`: its place in CUDA 12's and CUDA 13's struct, and what it holds.
pub(crate) struct Field {
    pub(crate) places: (usize, usize),
    pub(crate) value: Value,
}

pub(crate) enum Value {
    Int(i32),
    Long(u64),
    Bytes(Vec<u8>),
}

/// Sizes of the struct in CUDA 12 and 13.
pub(crate) const PROPERTIES_BYTES: (usize, usize) = (1032, 1008);

/// All fields that are not zero.
pub(crate) fn properties(device: usize) -> Vec<Field> {
    let attribute = |number| Value::Int(get(number, device).unwrap_or(0));
    let long = |number| Value::Long(get(number, device).unwrap_or(0) as u64);
    let field = |cuda12, cuda13, value| Field { places: (cuda12, cuda13), value };
    let same = |place, value| Field { places: (place, place), value };
    vec![
        same(0, Value::Bytes(NAME.as_bytes().to_vec())),
        same(256, Value::Bytes(device::uuid(device).to_vec())),
        same(288, Value::Long(config::get().capacity_bytes)),
        same(296, long(8)),
        same(304, attribute(12)),
        same(308, attribute(10)),
        same(312, long(11)),
        same(320, attribute(1)),
        same(324, attribute(2)),
        same(328, attribute(3)),
        same(332, attribute(4)),
        same(336, attribute(5)),
        same(340, attribute(6)),
        same(344, attribute(7)),
        same(352, long(9)),
        same(360, attribute(75)),
        same(364, attribute(76)),
        same(368, long(14)),
        field(388, 384, attribute(16)),
        field(400, 392, attribute(19)),
        field(576, 560, attribute(31)),
        field(584, 568, attribute(33)),
        field(588, 572, attribute(34)),
        field(592, 576, attribute(50)),
        field(600, 584, attribute(40)),
        field(604, 588, attribute(41)),
        field(612, 592, attribute(37)),
        field(616, 596, attribute(38)),
        field(624, 604, attribute(39)),
        field(628, 608, attribute(78)),
        field(640, 624, long(81)),
        field(648, 632, attribute(82)),
        field(652, 636, attribute(83)),
        field(680, 660, attribute(90)),
        field(688, 668, attribute(95)),
        field(696, 672, long(97)),
        field(712, 688, attribute(106)),
        field(720, 696, long(111)),
        field(728, 704, attribute(99)),
        field(768, 744, attribute(125)),
        field(776, 752, attribute(129)),
    ]
}
