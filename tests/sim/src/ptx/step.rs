//! One thread's instructions.

use crate::error::Code;
use crate::memory::Access;
use crate::raw;

use super::float::Round;
use super::machine::{Fault, Frame, Machine, Stop, Surroundings, Thread, Wish};
use super::program::{Call, Op};
use super::space::{self, Memories};
use super::types::{Address, Atomic, Logic, Operand, Register, Space, Type, WarpOp, mask, signed};
use super::{alu, convert, warp};

/// What comes after an instruction.
enum Next {
    Follow,
    At(usize),
    Stop(Stop),
}

impl Machine<'_> {
    /// Runs a thread until it stops, for at most so many instructions.
    pub(super) fn steps(
        &mut self,
        thread: &mut Thread,
        around: &Surroundings<'_>,
        turn: u32,
    ) -> Result<Stop, Fault> {
        let linked = self.linked;
        let mut routine = thread.frame.routine;
        let mut code = &linked.routines[routine].code[..];
        for _ in 0..turn {
            if thread.frame.routine != routine {
                routine = thread.frame.routine;
                code = &linked.routines[routine].code;
            }
            let instruction = &code[thread.at];
            thread.at += 1;
            if let Some((register, wanted)) = instruction.guard
                && (thread.registers[thread.frame.registers + register as usize] != 0) != wanted
            {
                continue;
            }
            match self.step(thread, around, &instruction.op)? {
                Next::Follow => {}
                Next::At(at) => thread.at = at,
                Next::Stop(stop) => return Ok(stop),
            }
        }
        Ok(Stop::Turn)
    }

    fn step(&mut self, thread: &mut Thread, around: &Surroundings<'_>, op: &Op) -> Result<Next, Fault> {
        match op {
            Op::Move { to, from } => set(thread, *to, self.read(thread, around, *from)),
            Op::Binary { f, kind, mods, to, a, b } => {
                let (a, b) = (
                    read_typed(self, thread, around, *a, *kind),
                    read_typed(self, thread, around, *b, *kind),
                );
                let mut carry = thread.carry;
                let value = alu::binary(*f, *kind, mods, a, b, &mut carry).ok_or_else(|| unknown(op))?;
                thread.carry = carry;
                set(thread, *to, value);
            }
            Op::Ternary { f, kind, mods, to, a, b, c } => {
                let (a, b) = (
                    read_typed(self, thread, around, *a, *kind),
                    read_typed(self, thread, around, *b, *kind),
                );
                let values = [a, b, self.read(thread, around, *c)];
                let mut carry = thread.carry;
                let value = alu::ternary(*f, *kind, mods, values, &mut carry).ok_or_else(|| unknown(op))?;
                thread.carry = carry;
                set(thread, *to, value);
            }
            Op::Unary { f, kind, mods, to, a } => {
                let a = read_typed(self, thread, around, *a, *kind);
                set(thread, *to, alu::unary(*f, *kind, mods, a).ok_or_else(|| unknown(op))?);
            }
            Op::Load { space, kind, to, at } => self.load(thread, around, (*space, *kind), to, at)?,
            Op::Store { space, kind, from, at } => self.store(thread, around, (*space, *kind), from, at)?,
            Op::SetPred { .. } | Op::Set { .. } | Op::Select { .. } | Op::SelectSign { .. } => {
                self.choose(thread, around, op)
            }
            Op::Convert { result, kind, mods, to, a, b } => {
                let a = read_typed(self, thread, around, *a, *kind);
                let b = b.map(|b| read_typed(self, thread, around, b, *kind));
                let value = convert::convert(*result, *kind, mods, a, b).ok_or_else(|| unknown(op))?;
                let value = if result.is_signed() { signed(value, result.bytes()) as u64 } else { value };
                set(thread, *to, value);
            }
            Op::Jump { to } => return Ok(Next::At(*to)),
            Op::JumpTable { index, to } => {
                let index = self.read(thread, around, *index) as usize;
                let target = to
                    .get(index)
                    .ok_or_else(|| Fault::new(Code::ILLEGAL_INSTRUCTION, "a jump beyond its table"))?;
                return Ok(Next::At(*target));
            }
            Op::Call(call) => return self.call(thread, around, call),
            Op::Return => return Ok(self.return_from(thread)),
            Op::Exit => return Ok(Next::Stop(Stop::Done)),
            Op::Trap => return Err(Fault::new(Code::ILLEGAL_INSTRUCTION, "a trap")),
            Op::Barrier(barrier) => return Ok(Next::Stop(Stop::Barrier(**barrier))),
            Op::Warp { op, members } => return Ok(self.wish(thread, around, op, *members)),
            Op::Yield => return Ok(Next::Stop(Stop::Turn)),
            Op::Fence => std::sync::atomic::fence(std::sync::atomic::Ordering::SeqCst),
            Op::Nothing => {}
            _ => self.rare(thread, around, op)?,
        }
        Ok(Next::Follow)
    }

    /// What is seldom needed.
    fn rare(&mut self, thread: &mut Thread, around: &Surroundings<'_>, op: &Op) -> Result<(), Fault> {
        match op {
            Op::Pack { to, parts, bits } => {
                let part_mask = mask(u64::from(*bits) / 8);
                let value = parts.iter().enumerate().fold(0, |value, (index, part)| {
                    value | (self.read(thread, around, *part) & part_mask) << (index as u32 * bits)
                });
                set(thread, *to, value);
            }
            Op::Unpack { to, from, bits } => {
                let value = self.read(thread, around, *from);
                for (index, to) in to.iter().enumerate() {
                    if let Some(to) = to {
                        set(thread, *to, value >> (index as u32 * bits) & mask(u64::from(*bits) / 8));
                    }
                }
            }
            Op::Bfi { kind, to, a, b, c, d } => {
                let [a, b, c, d] = [*a, *b, *c, *d].map(|operand| self.read(thread, around, operand));
                set(
                    thread,
                    *to,
                    alu::insert(*kind, a & kind.mask(), b & kind.mask(), c as u32 & 0xFF, d as u32 & 0xFF),
                );
            }
            Op::Atomic { .. } => self.atomic(thread, around, op)?,
            Op::ToGeneric { space, to, a } => {
                let value = self.read(thread, around, *a);
                set(thread, *to, value.wrapping_add(space::window(*space)));
            }
            Op::FromGeneric { space, to, a } => {
                let value = self.read(thread, around, *a);
                set(thread, *to, value.wrapping_sub(space::window(*space)));
            }
            Op::IsSpace { space, to, a } => {
                let value = self.read(thread, around, *a);
                set(thread, *to, space::is_in(*space, value).into());
            }
            Op::CopyAsync { to, from, bytes, count } => {
                let count = count.map_or(*bytes, |count| self.read(thread, around, count).min(*bytes));
                let target =
                    self.find(thread, around, Space::Shared, to, *bytes, *bytes, Access::ReadWrite)?;
                raw::fill(target, 0, 1, *bytes);
                if count > 0 {
                    let source = self.find(thread, around, Space::Global, from, count, 1, Access::Read)?;
                    raw::copy(target, source, count);
                }
            }
            Op::ActiveMask { to } => set(thread, *to, 1 << (thread.number & 31)),
            _ => return Err(unknown(op)),
        }
        Ok(())
    }

    #[allow(clippy::too_many_arguments, reason = "an access has as many sides")]
    fn find(
        &mut self,
        thread: &Thread,
        around: &Surroundings<'_>,
        space: Space,
        at: &Address,
        bytes: u64,
        align: u64,
        access: Access,
    ) -> Result<u64, Fault> {
        let address = self.read(thread, around, at.base).wrapping_add(at.offset as u64);
        let local = &thread.local;
        let mut memories =
            Memories { cache: &mut self.cache, shared: around.shared, local, parameters: &self.parameters };
        memories.find(space, address, bytes, align, access)
    }

    fn load(
        &mut self,
        thread: &mut Thread,
        around: &Surroundings<'_>,
        (space, kind): (Space, Type),
        to: &[Option<Register>],
        at: &Address,
    ) -> Result<(), Fault> {
        let width = kind.bytes();
        let total = width * to.len() as u64;
        let place = self.find(thread, around, space, at, total, total, Access::Read)?;
        for (index, to) in to.iter().enumerate() {
            let value = raw::load(place + index as u64 * width, width);
            let value = if kind.is_signed() { signed(value, width) as u64 } else { value };
            if let Some(to) = to {
                set(thread, *to, value);
            }
        }
        Ok(())
    }

    fn store(
        &mut self,
        thread: &mut Thread,
        around: &Surroundings<'_>,
        (space, kind): (Space, Type),
        from: &[Operand],
        at: &Address,
    ) -> Result<(), Fault> {
        let width = kind.bytes();
        let total = width * from.len() as u64;
        let place = self.find(thread, around, space, at, total, total, Access::ReadWrite)?;
        self.has_progress = true;
        for (index, from) in from.iter().enumerate() {
            raw::store(place + index as u64 * width, width, self.read(thread, around, *from));
        }
        Ok(())
    }

    fn atomic(&mut self, thread: &mut Thread, around: &Surroundings<'_>, op: &Op) -> Result<(), Fault> {
        let Op::Atomic { space, op: f, kind, to, at, a, b } = op else { return Err(unknown(op)) };
        let width = kind.bytes();
        let [a, b] = [*a, *b].map(|operand| self.read(thread, around, operand) & kind.mask());
        let place = self.find(thread, around, *space, at, width, width, Access::ReadWrite)?;
        let change = |old| match f {
            Atomic::Cas => {
                if old == a {
                    b
                } else {
                    old
                }
            }
            _ => warp::combine(*f, *kind, old, a),
        };
        let old = raw::update(place, width, change);
        self.has_progress |= change(old) != old;
        if let Some(to) = to {
            set(thread, *to, old);
        }
        Ok(())
    }

    fn choose(&self, thread: &mut Thread, around: &Surroundings<'_>, op: &Op) {
        let read = |operand: Operand| self.read(thread, around, operand);
        match op {
            Op::SetPred { compare, logic, kind, flush, to, a, b } => {
                let (a, b) = (read(*a), read(*b));
                // A pair gives a predicate for each half, anything else one and its opposite.
                let (low, high) = match kind.half() {
                    Some(half) => {
                        let high = alu::compare(*compare, half, *flush, a >> 16, b >> 16);
                        (alu::compare(*compare, half, *flush, a, b), high)
                    }
                    None => {
                        let holds = alu::compare(*compare, *kind, *flush, a, b);
                        (holds, !holds)
                    }
                };
                let with = |holds: bool| match logic {
                    None => holds,
                    Some((logic, other, negate)) => {
                        let other = (read(*other) != 0) != *negate;
                        match logic {
                            Logic::And => holds && other,
                            Logic::Or => holds || other,
                            Logic::Xor => holds != other,
                        }
                    }
                };
                let (first, second) = (with(low), with(high));
                set(thread, to.0, first.into());
                if let Some(to) = to.1 {
                    set(thread, to, second.into());
                }
            }
            Op::Set { compare, result, kind, flush, to, a, b } => {
                let (a, b) = (read(*a), read(*b));
                let value = match (kind.half(), result.half()) {
                    (Some(half), inner) => {
                        let one = |a, b| {
                            answer(inner.unwrap_or(Type::B(2)), alu::compare(*compare, half, *flush, a, b))
                        };
                        one(a, b) | one(a >> 16, b >> 16) << 16
                    }
                    _ => answer(*result, alu::compare(*compare, *kind, *flush, a, b)),
                };
                set(thread, *to, value);
            }
            Op::Select { to, a, b, pred } => {
                let value = if read(*pred) != 0 { read(*a) } else { read(*b) };
                set(thread, *to, value);
            }
            Op::SelectSign { kind, to, a, b, sign } => {
                let sign = read(*sign);
                let is_positive = match kind.format() {
                    Some(format) => format.decode(sign) >= 0.0,
                    None => signed(sign, kind.bytes()) >= 0,
                };
                let value = if is_positive { read(*a) } else { read(*b) };
                set(thread, *to, value);
            }
            _ => {}
        }
    }

    /// Leaves what a thread wants from its warp, and stops it.
    fn wish(&self, thread: &mut Thread, around: &Surroundings<'_>, op: &WarpOp, members: Operand) -> Next {
        let read = |operand: Operand| self.read(thread, around, operand);
        let values = match op {
            WarpOp::Sync => [0; 3],
            WarpOp::Shuffle { value, lane, clamp, .. } => [read(*value), read(*lane), read(*clamp)],
            WarpOp::Vote { pred, negate, .. } => [u64::from((read(*pred) != 0) != *negate), 0, 0],
            WarpOp::Match { value, bytes, .. } => [read(*value) & mask(*bytes), 0, 0],
            WarpOp::Redux { value, kind, .. } => [read(*value) & kind.mask(), 0, 0],
        };
        let members = read(members) as u32;
        thread.wish = Some(Wish { op: *op, members, values });
        Next::Stop(Stop::Warp)
    }

    /// Enters a function: its frame and registers come behind the caller's.
    fn call(&mut self, thread: &mut Thread, around: &Surroundings<'_>, call: &Call) -> Result<Next, Fault> {
        match call.name.as_str() {
            "__assertfail" => return Err(Fault::new(Code::ASSERT, "an assertion does not hold")),
            // Device printf: nothing is printed.
            "vprintf" => return Ok(Next::Follow),
            _ => {}
        }
        let missing = || Fault::new(Code::ILLEGAL_INSTRUCTION, format!("function {} has no body", call.name));
        let &routine = self.linked.names.get(&call.name).ok_or_else(missing)?;
        let target = &self.linked.routines[routine];
        let caller = &self.linked.routines[thread.frame.routine];
        if thread.callers.len() > 1000 {
            return Err(Fault::new(Code::ILLEGAL_ADDRESS, "the stack is full"));
        }
        let frame = Frame {
            routine,
            next: thread.at,
            registers: thread.frame.registers + caller.registers,
            local: (thread.frame.local + caller.frame_bytes).next_multiple_of(16),
        };
        thread.local.reserve(frame.local + target.frame_bytes);
        if thread.registers.len() < frame.registers + target.registers {
            thread.registers.resize(frame.registers + target.registers, 0);
        }
        for (&from, &(to, bytes)) in call.arguments.iter().zip(&target.parameters) {
            self.copy_local(thread, around, frame.local + u64::from(to), thread.frame.local + from, bytes)?;
        }
        thread.callers.push(thread.frame);
        thread.frame = frame;
        Ok(Next::At(0))
    }

    fn copy_local(
        &mut self,
        thread: &Thread,
        around: &Surroundings<'_>,
        to: u64,
        from: u64,
        bytes: u32,
    ) -> Result<(), Fault> {
        let at = |value| Address { base: Operand::Value(value), offset: 0 };
        let to = self.find(thread, around, Space::Local, &at(to), bytes.into(), 1, Access::ReadWrite)?;
        let from = self.find(thread, around, Space::Local, &at(from), bytes.into(), 1, Access::Read)?;
        raw::copy(to, from, bytes.into());
        Ok(())
    }

    /// Leaves a function (its results go to where the call says), or ends the thread.
    fn return_from(&mut self, thread: &mut Thread) -> Next {
        let Some(caller) = thread.callers.pop() else { return Next::Stop(Stop::Done) };
        let done = std::mem::replace(&mut thread.frame, caller);
        let linked = self.linked;
        let results = &linked.routines[done.routine].results;
        if let Op::Call(call) = &linked.routines[caller.routine].code[done.next - 1].op {
            let around = Surroundings { shared: &thread.local, block: [0; 3] };
            for (&to, &(from, bytes)) in call.results.iter().zip(results) {
                let _ =
                    self.copy_local(thread, &around, caller.local + to, done.local + u64::from(from), bytes);
            }
        }
        Next::At(done.next)
    }
}

#[inline(always)]
fn read_typed(
    machine: &Machine<'_>,
    thread: &Thread,
    around: &Surroundings<'_>,
    operand: Operand,
    kind: Type,
) -> u64 {
    machine.read(thread, around, operand) & kind.mask()
}

/// What `set` gives: 1 as a float, all bits as an integer.
fn answer(result: Type, holds: bool) -> u64 {
    match (holds, result.format()) {
        (false, _) => 0,
        (true, Some(format)) => format.encode(1.0, Round::Nearest, false),
        (true, None) => result.mask(),
    }
}

fn set(thread: &mut Thread, register: Register, value: u64) {
    let place = thread.frame.registers + register as usize;
    thread.registers[place] = value;
}

fn unknown(op: &Op) -> Fault {
    Fault::new(Code::NOT_SUPPORTED, format!("this is not known to the simulated device: {op:?}"))
}
