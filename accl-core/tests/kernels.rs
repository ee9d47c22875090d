//! The kernels for devices against the oracle of the host's kernels, bit by bit, on the simulated device.
//!
//! The simulated device interprets the PTX that drivers are given.

// Helpers of tests fail by panicking.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use accl_core::config;
use accl_core::device::{Accelerator, Device, Host, Operand, UserPointer};
use accl_core::driver::{self, Driver};
use accl_core::reduce::{Form, Reduction};
use accl_core::types::{self, DataType, ReduceOp, Scalar};
use std::ffi::{OsStr, c_uint};
use std::path::PathBuf;
use std::process::Command;
use std::sync::OnceLock;

// It is no part of the library, and names the same modules here.
#[allow(dead_code, reason = "the library's own tests use the rest")]
#[path = "../src/reduce/oracle.rs"]
mod oracle;

use oracle::{Narrow, Oracle};

/// The simulated device's driver, with a context for the calling thread.
fn device() -> &'static dyn Driver {
    static DRIVER: OnceLock<&dyn Driver> = OnceLock::new();
    let driver = *DRIVER.get_or_init(|| {
        let simulator = simulator();
        // SAFETY: nobody has asked for a setting yet, and all that do so wait for this to end.
        unsafe { std::env::set_var("ACCL_DRIVER_LIB", &simulator) };
        let driver = driver::of_process(&config::Driver::load().unwrap()).unwrap().expect("a driver");
        // SAFETY: a function of this type, which may be called at any time.
        unsafe {
            let library = libloading::Library::new(&simulator).unwrap();
            let initialise: libloading::Symbol<'_, extern "C" fn(c_uint) -> i32> =
                library.get(b"cuInit").unwrap();
            assert_eq!(initialise(0), 0);
        }
        driver
    });
    driver.push(driver.primary(0).unwrap()).unwrap();
    driver
}

/// Builds the simulator where cargo would put it beside this test.
fn simulator() -> PathBuf {
    let test = std::env::current_exe().unwrap();
    let profile = test.ancestors().nth(2).expect("<target>/<profile>/deps/<test>").to_path_buf();
    let name = profile.file_name().and_then(OsStr::to_str).unwrap();
    let mut build = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    build.args(["build", "--quiet", "-p", "accl-sim"]);
    build.args(["--profile", if name == "debug" { "dev" } else { name }]);
    build.arg("--target-dir").arg(profile.parent().unwrap());
    assert!(build.status().unwrap().success(), "{build:?}");
    profile.join("libaccl_sim.so")
}

/// A device, with the calling thread's context.
struct Rig {
    driver: &'static dyn Driver,
    accelerator: Accelerator,
}

impl Rig {
    fn new() -> Self {
        let driver = device();
        Self { driver, accelerator: Accelerator::new(driver).unwrap() }
    }

    fn finish(&self) -> accl_core::Result<()> {
        while !self.accelerator.is_through()? {
            std::thread::yield_now();
        }
        Ok(())
    }

    fn copy(&self, to: UserPointer, from: UserPointer, bytes: usize) {
        self.accelerator.copy(to, from, bytes);
        self.finish().unwrap();
    }
}

/// A row in the device's memory, with guards around it.
struct Memory<'a> {
    rig: &'a Rig,
    start: usize,
    row: usize,
}

/// What lies around rows, and must stay.
const GUARD_BYTES: usize = 32;
const GUARD: u8 = 0xa5;

fn pointer(address: usize) -> UserPointer {
    // SAFETY: a place of this test, which is there as long as the device uses it.
    unsafe { UserPointer::new(std::ptr::with_exposed_provenance(address)) }
}

impl<'a> Memory<'a> {
    /// A row at so many bytes behind a multiple of 16.
    fn of(rig: &'a Rig, row: &[u8], shift: usize) -> Self {
        let mut whole = vec![GUARD; GUARD_BYTES + shift];
        whole.extend(row);
        whole.extend([GUARD; GUARD_BYTES]);
        let start = rig.driver.allocate(whole.len()).unwrap();
        assert_eq!(start % 16, 0);
        rig.copy(pointer(start), pointer(whole.as_ptr().expose_provenance()), whole.len());
        Self { rig, start, row: start + GUARD_BYTES + shift }
    }

    fn pointer(&self) -> UserPointer {
        pointer(self.row)
    }

    fn operand(&self, form: Form, scale: Option<[u8; 8]>) -> Operand {
        Operand { start: self.pointer(), form, scale: scale.map(Scalar) }
    }

    /// The row; whatever is around it must not have changed.
    fn get(&self, bytes: usize) -> Vec<u8> {
        let mut whole = vec![0; bytes + 2 * GUARD_BYTES];
        let to = pointer(whole.as_mut_ptr().expose_provenance());
        self.rig.copy(to, pointer(self.row - GUARD_BYTES), whole.len());
        let (before, rest) = whole.split_at(GUARD_BYTES);
        let (row, behind) = rest.split_at(bytes);
        assert_eq!((before, behind), (&[GUARD; GUARD_BYTES][..], &[GUARD; GUARD_BYTES][..]), "guards");
        row.to_vec()
    }
}

impl Drop for Memory<'_> {
    fn drop(&mut self) {
        let _ = self.rig.driver.free(self.start);
    }
}

/// Numbers that look random.
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        let x = self.0 ^ self.0 >> 33;
        x.wrapping_mul(0xff51_afd7_ed55_8ccd) ^ x >> 29
    }

    fn below(&mut self, end: usize) -> usize {
        (self.next() % end as u64) as usize
    }
}

/// The bits of numbers in which something is special.
fn special(dtype: DataType) -> Vec<u64> {
    let sign = 1u64 << (8 * dtype.size_bytes() - 1);
    let magnitudes = match dtype {
        DataType::Float32 => {
            vec![
                0,
                1,
                0x7f_ffff,
                0x80_0000,
                0x3f80_0000,
                0x3f80_0001,
                0x7f7f_ffff,
                0x7f80_0000,
                0x7f80_0001,
                0x7fff_ffff,
            ]
        }
        DataType::Float64 => vec![
            0,
            1,
            (1 << 52) - 1,
            1 << 52,
            1.0f64.to_bits(),
            1.0f64.next_up().to_bits(),
            f64::MAX.to_bits(),
            f64::INFINITY.to_bits(),
            f64::INFINITY.to_bits() + 1,
            sign - 1,
        ],
        _ => match Narrow::of(dtype) {
            Some(narrow) => {
                let least_normal = 1 << narrow.mantissa_bits;
                let (one, largest) = (narrow.encode(1.0), narrow.largest());
                let codes = [
                    0,
                    1,
                    least_normal - 1,
                    least_normal,
                    one,
                    one + 1,
                    largest - 1,
                    largest,
                    largest + 1,
                    narrow.nan,
                ];
                codes.map(u64::from).to_vec()
            }
            None => vec![0, 1, 2, 3, 100, sign - 2, sign - 1],
        },
    };
    magnitudes
        .iter()
        .flat_map(|magnitude| [*magnitude, magnitude | sign])
        .chain([2 * (sign - 1) + 1])
        .collect()
}

/// Elements: special ones, ordinary ones of any bits, and small numbers, whose sums stay finite.
fn row(dtype: DataType, count: usize, random: &mut Random) -> Vec<u8> {
    let bytes = dtype.size_bytes();
    let special = special(dtype);
    let mut row = Vec::with_capacity(count * bytes);
    for index in 0..count {
        // Stretches of one kind, so that whole columns stay ordinary.
        let bits = match (index / 16 % 4, random.below(8)) {
            (0, 0..4) => special[random.below(special.len())],
            (0, _) | (1, _) => random.next(),
            _ => small(dtype, random.below(41) as i32 - 20),
        };
        row.extend(&bits.to_le_bytes()[..bytes]);
    }
    row
}

/// A third of a small integer, or where there are no thirds the integer.
fn small(dtype: DataType, number: i32) -> u64 {
    let third = f64::from(number) / 3.0;
    match (dtype, Narrow::of(dtype)) {
        (DataType::Float32, _) => u64::from((third as f32).to_bits()),
        (DataType::Float64, _) => third.to_bits(),
        (_, Some(narrow)) => u64::from(narrow.encode(third)),
        _ => i64::from(number).cast_unsigned(),
    }
}

/// One reduction.
struct Case {
    dtype: DataType,
    op: ReduceOp,
    ranks: usize,
    count: usize,
    /// Where each operand, and at last the result, starts behind a multiple of 16.
    shifts: Vec<usize>,
    /// The result takes the place of this operand.
    alias: Option<usize>,
}

impl Case {
    fn check(&self, rig: &Rig, random: &mut Random) {
        let Self { dtype, op, ranks, count, .. } = *self;
        let bytes = count * dtype.size_bytes();
        let operands = self.shifts.len() - 1;
        let rows: Vec<_> = (0..operands).map(|_| row(dtype, count, random)).collect();
        let scales: Vec<_> = (0..operands)
            .map(|k| {
                let special = special(dtype);
                let bits = if k % 4 == 3 {
                    special[random.below(special.len())]
                } else {
                    small(dtype, k as i32 - 4)
                };
                (k % 3 != 1 && op == ReduceOp::PreMulSum).then_some(bits.to_le_bytes())
            })
            .collect();
        let memory: Vec<_> =
            rows.iter().zip(&self.shifts).map(|(row, shift)| Memory::of(rig, row, *shift)).collect();
        let own = Memory::of(rig, &vec![GUARD; bytes], self.shifts[operands]);
        let result = self.alias.map_or(&own, |k| &memory[k]);
        let operands: Vec<_> =
            memory.iter().zip(&scales).map(|(memory, scale)| memory.operand(Form::Element, *scale)).collect();
        let reduction = Reduction::new(dtype, op, ranks);

        rig.accelerator.reduce(&reduction, &operands, result.pointer(), Form::Element, count);
        rig.finish().unwrap();
        let found = result.get(bytes);
        let oracle = Oracle { dtype, op, ranks };
        let size = dtype.size_bytes();
        for index in 0..count {
            let at = index * size..(index + 1) * size;
            let inputs: Vec<_> = rows
                .iter()
                .zip(&scales)
                .map(|(row, scale)| (&row[at.clone()], Form::Element, *scale))
                .collect();
            let expected = oracle.reduce(&inputs, Form::Element);
            assert_eq!(
                found[at],
                expected,
                "{dtype} {op} of {} operands, ranks {ranks}, element {index} of {count}, shifts {:?}: {inputs:02x?}",
                rows.len(),
                self.shifts
            );
        }
        for (k, (row, memory)) in rows.iter().zip(&memory).enumerate() {
            if self.alias != Some(k) {
                assert_eq!(memory.get(bytes), *row, "operand {k} has changed");
            }
        }
    }
}

/// All that a type is checked with.
fn check_type(dtype: DataType) {
    let rig = &Rig::new();
    assert!(rig.accelerator.has_kernels());
    let mut random = Random(dtype as u64);
    let size = dtype.size_bytes();
    for op in ReduceOp::ALL {
        for operands in [1, 2, 3, 5, 8, 17] {
            for (round, count) in [0, 1, 7, 16, 100, 1000].into_iter().enumerate() {
                // All aligned; all alike, but not at vectors; each its own way; and elements across their own boundaries.
                let shifts = match round % 4 {
                    0 => vec![0; operands + 1],
                    1 => vec![3 * size % 16; operands + 1],
                    2 => (0..=operands).map(|_| random.below(4) * size % 16).collect(),
                    _ => (0..=operands).map(|_| random.below(16)).collect(),
                };
                let alias = (round % 3 == 1).then(|| random.below(operands));
                let ranks = if round % 2 == 0 { operands } else { 1 + random.below(1000) };
                Case { dtype, op, ranks, count, shifts, alias }.check(rig, &mut random);
            }
        }
        // Each way to lie, with the same lengths.
        for shift in 0..17 {
            let shifts = if shift < 16 { vec![shift; 3] } else { vec![0, 0, size] };
            for count in [9, 100] {
                let shifts = shifts.clone();
                Case { dtype, op, ranks: 2, count, shifts, alias: None }.check(rig, &mut random);
            }
        }
        let shifts = vec![0; 65];
        Case { dtype, op, ranks: 64, count: 33, shifts, alias: Some(63) }.check(rig, &mut random);
    }
}

macro_rules! types {
    ($($name:ident: $dtype:ident;)*) => { $(
        #[test]
        fn $name() {
            check_type(DataType::$dtype);
        }
    )* };
}

types! {
    int8: Int8;
    uint8: Uint8;
    int32: Int32;
    uint32: Uint32;
    int64: Int64;
    uint64: Uint64;
    float16: Float16;
    float32: Float32;
    float64: Float64;
    bfloat16: Bfloat16;
    float8e4m3: Float8e4m3;
    float8e5m2: Float8e5m2;
}

/// All bits of a narrow type, each with each of some others.
#[test]
fn every_narrow_number() {
    let rig = &Rig::new();
    for dtype in [DataType::Float16, DataType::Bfloat16, DataType::Float8e4m3, DataType::Float8e5m2] {
        let all: Vec<u8> = if dtype.size_bytes() == 1 {
            (0..1 << 16).map(|code| code as u8).collect()
        } else {
            (0..=u16::MAX).flat_map(u16::to_le_bytes).collect()
        };
        let other: Vec<u8> = if dtype.size_bytes() == 1 {
            (0..1 << 16).map(|code: u32| (code >> 8) as u8).collect()
        } else {
            (0..=u16::MAX).flat_map(|code| code.wrapping_mul(40_503).to_le_bytes()).collect()
        };
        let (left, right) = (Memory::of(rig, &all, 0), Memory::of(rig, &other, 0));
        let out = Memory::of(rig, &vec![0; all.len()], 0);
        for op in [ReduceOp::Sum, ReduceOp::Prod, ReduceOp::Max, ReduceOp::Min] {
            let reduction = Reduction::new(dtype, op, 2);
            let count = all.len() / dtype.size_bytes();

            rig.accelerator.reduce(
                &reduction,
                &[left.operand(Form::Element, None), right.operand(Form::Element, None)],
                out.pointer(),
                Form::Element,
                count,
            );
            rig.finish().unwrap();
            // The host's kernels, which have an oracle of their own: that one would take a minute here.
            let mut expected = vec![0; all.len()];
            let operand = |row: &[u8]| Operand {
                start: pointer(row.as_ptr().expose_provenance()),
                form: Form::Element,
                scale: None,
            };
            let to = pointer(expected.as_mut_ptr().expose_provenance());
            Host.reduce(&reduction, &[operand(&all), operand(&other)], to, Form::Element, count);
            assert_eq!(out.get(all.len()), expected, "{op} of {dtype}");
        }
    }
}

#[test]
fn what_is_not_reduced_is_an_error() {
    let rig = &Rig::new();
    let memory = Memory::of(rig, &[0; 64], 0);
    let operand = |form| memory.operand(form, None);
    let reduction = Reduction::new(DataType::Float16, ReduceOp::Sum, 65);
    let told = |operands: &[Operand], form| {
        rig.accelerator.reduce(&reduction, operands, memory.pointer(), form, 4);
        let error = rig.finish().unwrap_err().to_string();
        // It is told once.
        rig.finish().unwrap();
        error
    };
    let element = operand(Form::Element);
    assert!(told(&[element; 65], Form::Element).contains("65 operands"));
    assert!(told(&[element; 2], Form::Accumulator).contains("elements only"));
    assert!(told(&[element, operand(Form::Accumulator)], Form::Element).contains("elements only"));

    rig.accelerator.reduce(&reduction, &[element; 64], memory.pointer(), Form::Element, 4);
    rig.finish().unwrap();
    assert_eq!(memory.get(64), [0; 64]);
}
