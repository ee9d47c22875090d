//! From the text of an instruction to what the machine runs. What is not known is an error that names it.

use super::float::Round;
use super::lex::split;
use super::names::{atomic_op, binary, comparison, unary};
use super::operands::{address, number, operand, register, sink, vector};
use super::parse::{Body, Parsed, Symbol};
use super::program::{Barrier, BarrierKind, Call, Instruction, Op};
use super::types::{
    Address, Atomic, Binary, Logic, Mods, Operand, Part, Register, Shuffle, Space, Ternary, Type, Vote,
    WarpOp,
};

/// An instruction in pieces.
pub(super) struct Text<'a> {
    /// The opcode's words between dots.
    words: Vec<&'a str>,
    operands: Vec<&'a str>,
}

pub(super) fn instruction(body: &mut Body<'_>, text: &str) -> Parsed<Instruction> {
    let (guard, rest) = match text.strip_prefix('@') {
        Some(rest) => {
            let (name, rest) = rest.split_once(char::is_whitespace).ok_or("a predicate alone")?;
            let (wanted, name) = match name.strip_prefix('!') {
                Some(name) => (false, name),
                None => (true, name),
            };
            (Some((body.register(name).ok_or_else(|| format!("register {name}"))?, wanted)), rest.trim())
        }
        None => (None, text),
    };
    let (opcode, operands) = rest.split_once(char::is_whitespace).unwrap_or((rest, ""));
    let text = Text { words: opcode.split('.').collect(), operands: split(operands) };
    let op = text.decode(body).map_err(|why| format!("{opcode}: {why}"))?;
    Ok(Instruction { guard, op })
}

impl Text<'_> {
    fn has(&self, word: &str) -> bool {
        self.words.contains(&word)
    }

    /// All types of the opcode, in order.
    fn kinds(&self) -> Vec<Type> {
        self.words[1..].iter().filter_map(|word| Type::new(word)).collect()
    }

    fn kind(&self) -> Parsed<Type> {
        self.kinds().last().copied().ok_or_else(|| "no type".into())
    }

    fn operand_text(&self, index: usize) -> Parsed<&str> {
        self.operands.get(index).copied().ok_or_else(|| "too few operands".into())
    }

    fn mods(&self) -> Mods {
        let to_integer = ["rni", "rzi", "rmi", "rpi"].iter().any(|word| self.has(word));
        let round = match () {
            () if self.has("rz") || self.has("rzi") => Round::Zero,
            () if self.has("rm") || self.has("rmi") => Round::Down,
            () if self.has("rp") || self.has("rpi") => Round::Up,
            () => Round::Nearest,
        };
        let part = match () {
            () if self.has("wide") => Part::Wide,
            () if self.has("hi") => Part::High,
            () => Part::Low,
        };
        Mods {
            round,
            saturate: self.has("sat"),
            flush: self.has("ftz"),
            nan: self.has("NaN"),
            relu: self.has("relu"),
            xorsign: self.has("xorsign"),
            abs: self.has("abs") && self.words[0] != "abs",
            carry_out: self.has("cc"),
            part,
            wrap: self.has("wrap"),
            left: self.has("l"),
            to_integer,
            is_plain: !["sat", "ftz", "relu", "cc"].iter().any(|word| self.has(word)),
        }
    }

    fn to(&self, body: &mut Body<'_>, index: usize) -> Parsed<Register> {
        register(body, self.operand_text(index)?)
    }

    fn value(&self, body: &Body<'_>, index: usize, kind: Type) -> Parsed<Operand> {
        operand(body, self.operand_text(index)?, kind)
    }

    fn space(&self) -> Space {
        let param = self.words.iter().any(|word| word.starts_with("param"));
        let shared = self.words.iter().any(|word| word.starts_with("shared"));
        match () {
            () if shared => Space::Shared,
            () if self.has("global") || self.has("const") => Space::Global,
            () if self.has("local") => Space::Local,
            () if param => Space::Param,
            () => Space::Generic,
        }
    }

    fn decode(&self, body: &mut Body<'_>) -> Parsed<Op> {
        match self.words[0] {
            "mov" => self.mov(body),
            "ld" | "ldu" => {
                let (space, at) = self.place(body, 1)?;
                let to = vector(self.operand_text(0)?)
                    .into_iter()
                    .map(|name| sink(body, name))
                    .collect::<Parsed<_>>()?;
                Ok(Op::Load { space, kind: self.kind()?, to, at })
            }
            "st" => {
                let (space, at) = self.place(body, 0)?;
                let kind = self.kind()?;
                let from = vector(self.operand_text(1)?)
                    .into_iter()
                    .map(|text| operand(body, text, kind))
                    .collect::<Parsed<_>>()?;
                Ok(Op::Store { space, kind, from, at })
            }
            "atom" | "red" => self.atomic(body),
            "cvta" => {
                let (to, a) = (self.to(body, 0)?, self.value(body, 1, Type::B(8))?);
                Ok(if self.has("to") {
                    Op::FromGeneric { space: self.space(), to, a }
                } else {
                    Op::ToGeneric { space: self.space(), to, a }
                })
            }
            "isspacep" => Ok(Op::IsSpace {
                space: self.space(),
                to: self.to(body, 0)?,
                a: self.value(body, 1, Type::B(8))?,
            }),
            "cvt" => self.convert(body),
            "setp" | "set" => self.compare(body),
            "selp" => {
                let kind = self.kind()?;
                let [a, b] = [self.value(body, 1, kind)?, self.value(body, 2, kind)?];
                Ok(Op::Select { to: self.to(body, 0)?, a, b, pred: self.value(body, 3, Type::Pred)? })
            }
            "slct" => {
                let kinds = self.kinds();
                let [result, kind] = kinds[..] else { return Err("two types are needed".into()) };
                let [a, b] = [self.value(body, 1, result)?, self.value(body, 2, result)?];
                Ok(Op::SelectSign { kind, to: self.to(body, 0)?, a, b, sign: self.value(body, 3, kind)? })
            }
            "bfi" => {
                let kind = self.kind()?;
                let [a, b] = [self.value(body, 1, kind)?, self.value(body, 2, kind)?];
                let [c, d] = [self.value(body, 3, Type::B(4))?, self.value(body, 4, Type::B(4))?];
                Ok(Op::Bfi { kind, to: self.to(body, 0)?, a, b, c, d })
            }
            "bra" | "brx" | "call" | "ret" | "exit" | "trap" | "brkpt" | "bar" | "barrier" => {
                self.control(body)
            }
            "shfl" => self.shuffle(body),
            "vote" | "match" | "redux" => self.warp(body),
            "activemask" => Ok(Op::ActiveMask { to: self.to(body, 0)? }),
            "membar" | "fence" => Ok(Op::Fence),
            "nanosleep" => Ok(Op::Yield),
            "prefetch" | "prefetchu" | "discard" | "applypriority" | "griddepcontrol" => Ok(Op::Nothing),
            "cp" if self.has("async") && !self.has("bulk") => self.copy_async(body),
            _ => self.arithmetic(body),
        }
    }

    /// Where to go on, and who to wait for.
    fn control(&self, body: &mut Body<'_>) -> Parsed<Op> {
        match self.words[0] {
            "bra" => {
                body.jumps.push((body.routine.code.len(), 0, self.operand_text(0)?.to_owned()));
                Ok(Op::Jump { to: 0 })
            }
            "brx" => self.jump_table(body),
            "call" => self.call(body),
            "ret" => Ok(Op::Return),
            "exit" => Ok(Op::Exit),
            "trap" | "brkpt" => Ok(Op::Trap),
            "bar" | "barrier" if self.has("warp") => {
                Ok(Op::Warp { op: Box::new(WarpOp::Sync), members: self.value(body, 0, Type::B(4))? })
            }
            "bar" | "barrier" if !self.has("cluster") => self.barrier(body),
            _ => Err("is not known to the simulated device".into()),
        }
    }

    fn arithmetic(&self, body: &mut Body<'_>) -> Parsed<Op> {
        let unknown = "is not known to the simulated device";
        if unary(&self.words).is_none()
            && binary(&self.words, self.operands.len()).is_none()
            && self.ternary()?.is_none()
        {
            return Err(unknown.into());
        }
        let kind = self.kind()?;
        let mods = self.mods();
        let to = self.to(body, 0)?;
        let wide = if mods.part == Part::Wide { Type::B(kind.bytes() as u8 * 2) } else { kind };
        if let Some(f) = unary(&self.words) {
            return Ok(Op::Unary { f, kind, mods, to, a: self.value(body, 1, kind)? });
        }
        if let Some(f) = binary(&self.words, self.operands.len()) {
            let b_kind = if matches!(f, Binary::Shl | Binary::Shr) { Type::B(4) } else { kind };
            let [a, b] = [self.value(body, 1, kind)?, self.value(body, 2, b_kind)?];
            return Ok(Op::Binary { f, kind, mods, to, a, b });
        }
        if let Some(f) = self.ternary()? {
            let c_kind = if matches!(f, Ternary::Bfe | Ternary::Shf) { Type::B(4) } else { wide };
            let b_kind = if f == Ternary::Bfe { Type::B(4) } else { kind };
            let c = self.value(body, 3, c_kind)?;
            return Ok(Op::Ternary {
                f,
                kind,
                mods,
                to,
                a: self.value(body, 1, kind)?,
                b: self.value(body, 2, b_kind)?,
                c,
            });
        }
        Err(unknown.into())
    }

    fn ternary(&self) -> Parsed<Option<Ternary>> {
        Ok(Some(match self.words[0] {
            "fma" | "mad" => Ternary::Fma,
            "madc" => Ternary::MadC,
            "sad" => Ternary::Sad,
            "bfe" => Ternary::Bfe,
            "prmt" if self.words.len() == 2 => Ternary::Prmt,
            "shf" => Ternary::Shf,
            "lop3" if !self.has("BoolOp") => {
                let table = number(self.operand_text(4)?, Type::B(4)).ok_or("the table is no number")?;
                Ternary::Lop3(table as u8)
            }
            "dp4a" => Ternary::Dp4a,
            "min" => Ternary::Min3,
            "max" => Ternary::Max3,
            _ => return Ok(None),
        }))
    }

    fn mov(&self, body: &mut Body<'_>) -> Parsed<Op> {
        let kind = self.kind()?;
        let (to, from) = (self.operand_text(0)?, self.operand_text(1)?);
        let bits = kind.bytes() as u32 * 8;
        if to.starts_with('{') {
            let to: Vec<_> = vector(to).into_iter().map(|name| sink(body, name)).collect::<Parsed<_>>()?;
            let bits = bits / to.len() as u32;
            return Ok(Op::Unpack { to, from: operand(body, from, kind)?, bits });
        }
        let to = register(body, to)?;
        if from.starts_with('{') {
            let names = vector(from);
            let bits = bits / names.len() as u32;
            let part = Type::B((bits / 8) as u8);
            let parts = names.into_iter().map(|name| operand(body, name, part)).collect::<Parsed<_>>()?;
            return Ok(Op::Pack { to, parts, bits });
        }
        Ok(Op::Move { to, from: operand(body, from, kind)? })
    }

    /// Space and address; parameters of functions are in frames.
    fn place(&self, body: &Body<'_>, index: usize) -> Parsed<(Space, Address)> {
        let at = address(body, self.operand_text(index)?)?;
        let space = match (self.space(), at.base) {
            (Space::Param, Operand::Frame(_)) => Space::Local,
            (space, _) => space,
        };
        Ok((space, at))
    }

    fn atomic(&self, body: &mut Body<'_>) -> Parsed<Op> {
        let has_result = self.words[0] == "atom";
        let first = usize::from(has_result);
        let op = atomic_op(&self.words).ok_or("this operation is not known")?;
        let kind = self.kind()?;
        if self.has("v2") || self.has("v4") || self.has("v8") || kind.bytes() > 8 || kind.bytes() == 1 {
            return Err("vectors and this size are not known".into());
        }
        let (space, at) = self.place(body, first)?;
        let a = self.value(body, first + 1, kind)?;
        let b = if op == Atomic::Cas { self.value(body, first + 2, kind)? } else { Operand::Value(0) };
        let to = if has_result { sink(body, self.operand_text(0)?)? } else { None };
        Ok(Op::Atomic { space, op, kind, to, at, a, b })
    }

    fn convert(&self, body: &mut Body<'_>) -> Parsed<Op> {
        let kinds = self.kinds();
        let [result, kind] = kinds[..] else {
            return Err("two types are needed, of those that are known".into());
        };
        let is_eight = matches!(result, Type::E4m3x2 | Type::E5m2x2);
        if self.has("satfinite") && !is_eight
            || self.words.iter().any(|word| matches!(*word, "rna" | "rs" | "tf32"))
        {
            return Err("this way of rounding is not known".into());
        }
        let mods = self.mods();
        let b = if self.operands.len() > 2 { Some(self.value(body, 2, kind)?) } else { None };
        Ok(Op::Convert { result, kind, mods, to: self.to(body, 0)?, a: self.value(body, 1, kind)?, b })
    }

    fn compare(&self, body: &mut Body<'_>) -> Parsed<Op> {
        let kinds = self.kinds();
        let kind = self.kind()?;
        let compare = comparison(self.words[1]).ok_or("this comparison is not known")?;
        let flush = self.has("ftz");
        let [a, b] = [self.value(body, 1, kind)?, self.value(body, 2, kind)?];
        if self.words[0] == "set" {
            let result = *kinds.first().ok_or("no type")?;
            return Ok(Op::Set { compare, result, kind, flush, to: self.to(body, 0)?, a, b });
        }
        let logic = match self.words.get(2) {
            Some(&"and") => Some(Logic::And),
            Some(&"or") => Some(Logic::Or),
            Some(&"xor") => Some(Logic::Xor),
            _ => None,
        };
        let logic = match logic {
            Some(logic) => {
                let text = self.operand_text(3)?;
                let name = text.trim_start_matches('!');
                Some((logic, operand(body, name, Type::Pred)?, text.starts_with('!')))
            }
            None => None,
        };
        let names: Vec<&str> = self.operand_text(0)?.split('|').map(str::trim).collect();
        let first = sink(body, names[0])?.unwrap_or_else(|| body.spare());
        let second = names.get(1).map_or(Ok(None), |name| sink(body, name))?;
        Ok(Op::SetPred { compare, logic, kind, flush, to: (first, second), a, b })
    }

    fn jump_table(&self, body: &mut Body<'_>) -> Parsed<Op> {
        let index = self.value(body, 0, Type::B(4))?;
        let labels = body.tables.get(self.operand_text(1)?).cloned().ok_or("this table is not known")?;
        let at = body.routine.code.len();
        let count = labels.len();
        body.jumps.extend(labels.into_iter().enumerate().map(|(place, label)| (at, place, label)));
        Ok(Op::JumpTable { index, to: vec![0; count] })
    }

    /// `call (results), name, (arguments)`, where results and arguments are names in the frame.
    fn call(&self, body: &Body<'_>) -> Parsed<Op> {
        let slots = |text: &str| -> Parsed<Vec<u64>> {
            let names = text.trim_matches(|c| matches!(c, '(' | ')'));
            let slot = |name: &str| match body.symbol(name) {
                Some(Symbol::Frame(at)) => Ok(at),
                _ => Err(format!("argument {name}")),
            };
            split(names).into_iter().map(slot).collect()
        };
        let mut operands = self.operands.iter().copied().peekable();
        let results = operands.next_if(|text| text.starts_with('(')).map_or(Ok(Vec::new()), slots)?;
        let name = operands.next().ok_or("no name")?.to_owned();
        if body.register(&name).is_some() {
            return Err("calls through pointers are not known".into());
        }
        let arguments = operands.next().filter(|text| text.starts_with('(')).map_or(Ok(Vec::new()), slots)?;
        Ok(Op::Call(Box::new(Call { name, arguments, results })))
    }

    fn barrier(&self, body: &mut Body<'_>) -> Parsed<Op> {
        let kind = match () {
            () if self.has("arrive") => BarrierKind::Arrive,
            () if self.has("popc") => BarrierKind::Popc,
            () if self.has("and") => BarrierKind::And,
            () if self.has("or") => BarrierKind::Or,
            () => BarrierKind::Sync,
        };
        let zero = Operand::Value(0);
        let barrier = if matches!(kind, BarrierKind::Sync | BarrierKind::Arrive) {
            let threads = if self.operands.len() > 1 { Some(self.value(body, 1, Type::B(4))?) } else { None };
            Barrier {
                kind,
                id: self.value(body, 0, Type::B(4))?,
                threads,
                to: body.spare(),
                pred: zero,
                negate: false,
            }
        } else {
            let last = self.operands.len() - 1;
            let text = self.operand_text(last)?;
            let pred = operand(body, text.trim_start_matches('!'), Type::Pred)?;
            let threads = if last > 2 { Some(self.value(body, 2, Type::B(4))?) } else { None };
            let (to, id) = (self.to(body, 0)?, self.value(body, 1, Type::B(4))?);
            Barrier { kind, id, threads, to, pred, negate: text.starts_with('!') }
        };
        Ok(Op::Barrier(Box::new(barrier)))
    }

    fn shuffle(&self, body: &mut Body<'_>) -> Parsed<Op> {
        let mode = match () {
            () if self.has("up") => Shuffle::Up,
            () if self.has("down") => Shuffle::Down,
            () if self.has("bfly") => Shuffle::Butterfly,
            () => Shuffle::Index,
        };
        if !self.has("sync") {
            return Err("only the form with .sync is known".into());
        }
        let (to, valid) = self.pair(body)?;
        let word = Type::B(4);
        let [value, lane, clamp] =
            [self.value(body, 1, word)?, self.value(body, 2, word)?, self.value(body, 3, word)?];
        let members = self.value(body, 4, word)?;
        Ok(Op::Warp { op: Box::new(WarpOp::Shuffle { mode, to, valid, value, lane, clamp }), members })
    }

    /// `register|predicate`.
    fn pair(&self, body: &mut Body<'_>) -> Parsed<(Register, Option<Register>)> {
        let names: Vec<&str> = self.operand_text(0)?.split('|').map(str::trim).collect();
        let to = sink(body, names[0])?.unwrap_or_else(|| body.spare());
        Ok((to, names.get(1).map_or(Ok(None), |name| sink(body, name))?))
    }

    fn warp(&self, body: &mut Body<'_>) -> Parsed<Op> {
        let word = Type::B(4);
        if !self.has("sync") {
            return Err("only the form with .sync is known".into());
        }
        let members = self.value(body, 2, word)?;
        let op = match self.words[0] {
            "vote" => {
                let mode = match () {
                    () if self.has("all") => Vote::All,
                    () if self.has("any") => Vote::Any,
                    () if self.has("uni") => Vote::Uni,
                    () => Vote::Ballot,
                };
                let text = self.operand_text(1)?;
                let pred = operand(body, text.trim_start_matches('!'), Type::Pred)?;
                WarpOp::Vote { mode, to: self.to(body, 0)?, pred, negate: text.starts_with('!') }
            }
            "match" => {
                let (to, valid) = self.pair(body)?;
                let kind = self.kind()?;
                WarpOp::Match {
                    all: self.has("all"),
                    to,
                    valid,
                    value: self.value(body, 1, kind)?,
                    bytes: kind.bytes(),
                }
            }
            _ => {
                let kind = self.kind()?;
                let op = atomic_op(&self.words).ok_or("this operation is not known")?;
                WarpOp::Redux { op, kind, to: self.to(body, 0)?, value: self.value(body, 1, kind)? }
            }
        };
        Ok(Op::Warp { op: Box::new(op), members })
    }

    /// Copies at once, which is an order that asynchronous copies allow.
    fn copy_async(&self, body: &Body<'_>) -> Parsed<Op> {
        if self.words.iter().any(|word| word.ends_with("group") || *word == "wait_all") {
            return Ok(Op::Nothing);
        }
        if self.has("mbarrier") {
            return Err("is not known to the simulated device".into());
        }
        let bytes = number(self.operand_text(2)?, Type::B(4)).ok_or("the size is no number")?;
        let count = if self.operands.len() > 3 { Some(self.value(body, 3, Type::B(4))?) } else { None };
        let [to, from] = [address(body, self.operand_text(0)?)?, address(body, self.operand_text(1)?)?];
        Ok(Op::CopyAsync { to, from, bytes, count })
    }
}
