//! Timing and verification of one case.

use std::ffi::CStr;
use std::time::Instant;

use crate::args::Settings;
use crate::buffer::Buffer;
use crate::calls::Operation;
use crate::datatype::{DataType, Operator};
use crate::failure::{Exit, Failure, Outcome};
use crate::library::{Comm, Library, Stream};
use crate::machine;
use crate::message::{Explained, Measured, ToHub};
use crate::pattern::Pattern;
use crate::rank::{Group, Seat};
use crate::test::{Counts, Matrix, Test};
use crate::verify::{Check, InPlace, Shape};

/// One row of the table, before it is measured.
#[derive(Debug)]
pub(crate) struct Case {
    test: Test,
    kind: DataType,
    op: Option<Operator>,
    root: i32,
    pub(crate) counts: Counts,
    matrix: Option<Matrix>,
    ranks: usize,
    /// The operator's number in calls.
    operator: i32,
}

impl Case {
    pub(crate) fn new(
        settings: &Settings,
        ranks: usize,
        bytes: usize,
        (kind, op, root): (DataType, Option<Operator>, i32),
        operator: i32,
    ) -> Self {
        let test = settings.test;
        let counts = test.counts(bytes, kind, ranks);
        let spread = settings.environment.spread;
        let matrix = (test == Test::AlltoAllv).then(|| Matrix::new(counts.param_elems, kind, ranks, spread));
        Self { test, kind, op, root, counts, matrix, ranks, operator }
    }

    pub(crate) fn size_bytes(&self) -> usize {
        match &self.matrix {
            Some(matrix) => matrix.largest_total() * self.kind.bytes(),
            None => self.test.size_bytes(self.counts.param_elems, self.kind, self.ranks),
        }
    }
}

/// A rank with everything that measuring takes.
#[allow(missing_debug_implementations, reason = "holds a link")]
pub(crate) struct Measure<'a> {
    pub(crate) seat: &'a Seat,
    pub(crate) settings: &'a Settings,
    pub(crate) library: &'a Library,
    pub(crate) comm: Comm,
    pub(crate) stream: Stream,
    pub(crate) send: Buffer,
    pub(crate) recv: Buffer,
    pub(crate) group: &'a Group,
}

/// The clock of a timed loop: elapsed or, with -C, CPU time.
#[derive(Debug)]
struct Clock {
    begin: Instant,
    begin_cpu: f64,
    /// CPU time is of the process, whose threads share it; None: elapsed time.
    threads: Option<usize>,
}

impl Clock {
    fn start(settings: &Settings) -> Self {
        let threads = (settings.args.report_cputime != 0).then_some(settings.args.nthreads);
        Self { begin: Instant::now(), begin_cpu: machine::cpu_seconds(), threads }
    }

    fn seconds(&self) -> f64 {
        match self.threads {
            Some(threads) => (machine::cpu_seconds() - self.begin_cpu) / threads as f64,
            None => self.begin.elapsed().as_secs_f64(),
        }
    }
}

/// The addresses of a call.
#[derive(Clone, Copy, Debug)]
struct Addresses {
    send: *const std::ffi::c_void,
    recv: *mut std::ffi::c_void,
}

impl Measure<'_> {
    fn operation<'c>(&'c self, case: &'c Case) -> Operation<'c> {
        Operation {
            library: self.library,
            comm: self.comm,
            stream: self.stream,
            test: case.test,
            kind: case.kind,
            op: case.operator,
            root: case.root,
            rank: self.group.rank,
            ranks: self.group.ranks,
            count_elems: case.counts.param_elems,
            matrix: case.matrix.as_ref(),
        }
    }

    fn shape<'c>(&self, case: &'c Case) -> Shape<'c> {
        Shape {
            test: case.test,
            kind: case.kind,
            rank: self.group.rank,
            ranks: self.group.ranks,
            root: case.root,
            counts: case.counts,
            matrix: case.matrix.as_ref(),
        }
    }

    fn addresses(&self, case: &Case, in_place: bool) -> Addresses {
        let size = case.kind.bytes();
        if in_place {
            let InPlace { send_elem, recv_elem } = self.shape(case).in_place();
            let at = |elem| self.recv.address(elem * size);
            return Addresses { send: at(send_elem), recv: at(recv_elem) };
        }
        Addresses { send: self.send.address(0), recv: self.recv.address(0) }
    }

    /// Zeroes what the case uses: repeated sums of anything else would run into infinities and slow tiny numbers.
    fn clear(&mut self, case: &Case) {
        let size = case.kind.bytes();
        let counts = case.counts;
        self.send.data(0, counts.send_elems * size).fill(0);
        self.recv.data(0, counts.send_elems.max(counts.recv_elems) * size).fill(0);
    }

    /// A call, or as many as -m says in one group.
    fn iteration(&self, operation: &Operation<'_>, at: Addresses) -> Outcome<()> {
        if self.settings.args.agg_iters == 1 {
            operation.issue(at.send, at.recv)?;
        } else {
            operation.grouped(|| {
                (0..self.settings.args.agg_iters).try_for_each(|_| operation.issue(at.send, at.recv))
            })?;
        }
        self.seat.progress.advance();
        if self.seat.progress.aborted() {
            return Err(Failure::new(Exit::Timeout, "aborted"));
        }
        Ok(())
    }

    /// One iteration that nobody times, complete.
    fn one(&self, case: &Case, at: Addresses) -> Outcome<()> {
        let operation = self.operation(case);
        self.seat.progress.set_calling(true);
        self.iteration(&operation, at)?;
        operation.complete()?;
        self.seat.progress.set_calling(false);
        Ok(())
    }

    /// The very first operation, which pays for what the library puts off until then.
    pub(crate) fn first_call(&mut self, case: &Case) -> Outcome<()> {
        self.clear(case);
        self.seat.barrier()?;
        let begin = Instant::now();
        self.one(case, self.addresses(case, false))?;
        let us = begin.elapsed().as_secs_f64() * 1e6;
        let what = format!("{} of {} bytes", case.test.name(), case.size_bytes());
        self.seat.link.send(&ToHub::FirstCall { us, what });
        Ok(())
    }

    pub(crate) fn warm_up(&mut self, case: &Case) -> Outcome<()> {
        self.clear(case);
        for _ in 0..self.settings.args.warmup_iters {
            self.one(case, self.addresses(case, false))?;
        }
        Ok(())
    }

    /// Times, then verifies.
    pub(crate) fn placement(&mut self, case: &Case, in_place: bool, number: usize) -> Outcome<Measured> {
        let mut measured = Measured::default();
        if case.counts.param_elems > 0 {
            self.clear(case);
            measured = self.timed(case, in_place)?;
        }
        if self.settings.args.check > 0 {
            let mut wrong = 0;
            for pass in 0..self.settings.args.check {
                wrong += self.verified(case, in_place, number * 64 + pass * 2 + usize::from(in_place))?;
            }
            measured.wrong = Some(wrong);
        }
        Ok(measured)
    }

    fn timed(&mut self, case: &Case, in_place: bool) -> Outcome<Measured> {
        let args = &self.settings.args;
        let operation = self.operation(case);
        let at = self.addresses(case, in_place);
        self.one(case, at)?;
        let mut times_us = Vec::with_capacity(if self.settings.per_iteration() { args.iters } else { 0 });
        self.seat.barrier()?;
        self.seat.progress.set_calling(true);
        let clock = Clock::start(self.settings);
        for _ in 0..args.iters {
            let begin = self.settings.per_iteration().then(Instant::now);
            self.iteration(&operation, at)?;
            if args.blocking != 0 || begin.is_some() {
                operation.complete()?;
            }
            if let Some(begin) = begin {
                times_us.push(begin.elapsed().as_secs_f64() * 1e6 / args.agg_iters as f64);
            }
            if matches!(args.blocking, 1 | 3) {
                // Waiting for the others is not a call that hangs.
                self.seat.progress.set_calling(false);
                self.seat.barrier()?;
                self.seat.progress.set_calling(true);
            }
        }
        operation.complete()?;
        let seconds = clock.seconds() / (args.iters * args.agg_iters) as f64;
        self.seat.progress.set_calling(false);
        self.seat.barrier()?;
        Ok(Measured { seconds, times_us, wrong: None })
    }

    /// One pass: known inputs, one operation, comparison. Returns how much is wrong.
    fn verified(&mut self, case: &Case, in_place: bool, seed: usize) -> Outcome<u64> {
        let pattern = Pattern {
            kind: case.kind,
            op: case.op,
            ranks: self.group.ranks,
            seed: crate::pattern::mix(seed as u64),
        };
        let shape = self.shape(case);
        let check = Check { shape: &shape, pattern, in_place };
        check.prepare(&mut self.send, &mut self.recv);
        self.seat.barrier()?;
        // Once, whatever -m says: an operation in place that is repeated changes its input.
        let operation = self.operation(case);
        let at = self.addresses(case, in_place);
        self.seat.progress.set_calling(true);
        operation.issue(at.send, at.recv)?;
        operation.complete()?;
        self.seat.progress.set_calling(false);
        // Nobody may still read a peer's buffer; but also nobody has a reason to wait, were the library right.
        self.seat.barrier()?;
        let finding = check.compare(&mut self.send, &mut self.recv);
        let op = case.op.map_or_else(String::new, |op| format!(" {}", op.name()));
        let place = if in_place { "in place" } else { "out of place" };
        let what = format!(
            "{} {}{op}, {} elements, root {}, {place}",
            case.test.name(),
            case.kind.name(),
            case.counts.param_elems,
            case.root
        );
        for line in finding.describe(self.seat.rank, case.kind, &what) {
            eprintln!("accl-bench: {line}");
        }
        Ok(finding.total())
    }

    /// What the library says that it does for this case; None, and a note, where it cannot say.
    pub(crate) fn explained(&self, case: &Case) -> Outcome<Option<Explained>> {
        let note = |text: &str| {
            self.seat.link.send(&ToHub::Note(text.into()));
            Ok(None)
        };
        let Some(operation) = case.test.operation() else {
            return note("--explain: this test is no single operation, so there is nothing to explain");
        };
        let Some(explain) = self.library.functions.explain.pointer else {
            return note("--explain: the library has no acclExplain; going on without");
        };
        let mut way = [0u8; 32];
        let mut predicted_ns = 0.0;
        let (count, kind) = (case.counts.param_elems, case.kind as i32);
        let (room, room_bytes) = (way.as_mut_ptr().cast(), way.len());
        // SAFETY: A live communicator and a text; writes at most the room, and one number.
        let code = unsafe {
            explain(self.comm, operation.as_ptr(), count, kind, room, room_bytes, &mut predicted_ns)
        };
        self.library.check("acclExplain", code)?;
        let way = CStr::from_bytes_until_nul(&way).unwrap_or_default().to_string_lossy().into_owned();
        Ok(Some(Explained { way, predicted_us: predicted_ns / 1e3 }))
    }

    /// The operator's number; MulSum's is made for this type.
    pub(crate) fn make_operator(&self, kind: DataType, op: Option<Operator>) -> Outcome<i32> {
        let Some(op) = op else { return Ok(0) };
        if let Some(number) = op.number() {
            return Ok(number);
        }
        const HOST_IMMEDIATE: i32 = 1;
        let create = self.library.functions.red_op_create.need()?;
        let mut number = 0;
        let mut scalar = kind.bits_of(Pattern::factor(self.group.rank)).to_le_bytes();
        let address = scalar.as_mut_ptr().cast();
        // SAFETY: The scalar has the width of the type and is read before the call returns; writes one integer.
        let code = unsafe { create(&mut number, address, kind as i32, HOST_IMMEDIATE, self.comm) };
        self.library.check("ncclRedOpCreatePreMulSum", code)?;
        Ok(number)
    }

    pub(crate) fn drop_operator(&self, op: Option<Operator>, number: i32) -> Outcome<()> {
        if op != Some(Operator::MulSum) {
            return Ok(());
        }
        let destroy = self.library.functions.red_op_destroy.need()?;
        // SAFETY: The operator was made on this communicator.
        self.library.check("ncclRedOpDestroy", unsafe { destroy(number, self.comm) })
    }
}
