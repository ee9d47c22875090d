//! From text to routines: directives, declarations, scopes and labels. Instructions are decoded in `decode`.

use std::collections::HashMap;

use super::lex::{Piece, pieces, split, without_comments};
use super::program::{Instruction, Op, Routine};
use super::types::{Register, Type};
use super::{decode, operands};

/// Why a text is no program.
pub(super) type Parsed<T> = Result<T, String>;

/// A variable of a module.
#[derive(Clone, Debug, Default)]
pub(super) struct Variable {
    pub(super) name: String,
    pub(super) bytes: u64,
    pub(super) content: Vec<u8>,
}

/// Where a name lies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Symbol {
    Shared(u64),
    /// A variable, by its place in the list.
    Global(usize),
    /// In the frame of the routine.
    Frame(u64),
    /// Among the parameters of the kernel.
    Parameter(u64),
}

#[derive(Debug, Default)]
pub(super) struct Module {
    pub(super) routines: Vec<Routine>,
    pub(super) variables: Vec<Variable>,
    pub(super) shared_bytes: u64,
    pub(super) symbols: HashMap<String, Symbol>,
}

/// What is declared in braces.
#[derive(Debug, Default)]
pub(super) struct Scope {
    registers: HashMap<String, (Register, Option<u32>)>,
    symbols: HashMap<String, Symbol>,
}

/// A routine while it is read.
pub(super) struct Body<'a> {
    pub(super) module: &'a Module,
    /// Addresses of the module's variables.
    pub(super) addresses: &'a [u64],
    scopes: Vec<Scope>,
    pub(super) routine: Routine,
    labels: HashMap<String, usize>,
    /// Jumps whose labels come later: instruction, its target's place, label.
    pub(super) jumps: Vec<(usize, usize, String)>,
    pub(super) tables: HashMap<String, Vec<String>>,
}

/// A whole program. `place` gives addresses to the variables, once all of them are known.
pub(super) fn module(
    text: &str,
    place: impl FnOnce(&[Variable]) -> Parsed<Vec<u64>>,
) -> Parsed<(Module, Vec<u64>)> {
    let text = without_comments(text);
    if !text.trim_start().starts_with(".version") {
        return Err("it does not begin with .version".into());
    }
    let pieces = pieces(&text);
    let mut module = Module::default();
    let mut depth = 0;
    for piece in &pieces {
        match piece {
            Piece::Open(_) => depth += 1,
            Piece::Close => depth -= 1,
            Piece::Statement(text) if depth == 0 => declare_global(&mut module, text)?,
            // Shared memory of a routine is the module's, but for its name.
            _ => {}
        }
    }
    let addresses = place(&module.variables)?;
    let mut at = 0;
    while at < pieces.len() {
        if let Piece::Open(head) = pieces[at] {
            let end = at + body_length(&pieces[at..]);
            if !head.starts_with(".section") && !head.is_empty() {
                let (routine, shared_bytes) = routine(&module, &addresses, head, &pieces[at + 1..end])?;
                module.shared_bytes = shared_bytes;
                module.routines.push(routine);
            }
            at = end;
        }
        at += 1;
    }
    Ok((module, addresses))
}

/// How many pieces lie between a brace and its partner.
fn body_length(pieces: &[Piece<'_>]) -> usize {
    let mut depth = 0;
    for (index, piece) in pieces.iter().enumerate() {
        match piece {
            Piece::Open(_) => depth += 1,
            Piece::Close => depth -= 1,
            _ => {}
        }
        if depth == 0 {
            return index;
        }
    }
    pieces.len() - 1
}

/// A declaration: `.align 8 .b8 name[16] = {...}` behind its space.
struct Declaration<'a> {
    name: &'a str,
    bytes: u64,
    align: u64,
    kind: Type,
    content: Option<&'a str>,
}

fn declaration<'a>(text: &'a str) -> Parsed<Declaration<'a>> {
    let (left, content) = match text.split_once('=') {
        Some((left, content)) => (left.trim(), Some(content.trim())),
        None => (text.trim(), None),
    };
    let (left, extents) = match left.split_once('[') {
        Some((name, extents)) => (name, Some(extents)),
        None => (left, None),
    };
    let mut words = left.split_whitespace();
    let (mut align, mut kind, mut name) = (0, None, "");
    while let Some(word) = words.next() {
        match word {
            ".align" => {
                align = words.next().and_then(|n| n.parse().ok()).ok_or("an alignment is no number")?
            }
            ".ptr" | ".global" | ".shared" | ".const" | ".local" | ".param" | ".visible" | ".extern"
            | ".weak" | ".common" => {}
            _ if word.starts_with('.') => kind = kind.or_else(|| Type::new(&word[1..])),
            _ => name = word,
        }
    }
    let kind = kind.ok_or_else(|| format!("no type in `{text}`"))?;
    let mut elements = 1;
    for extent in extents.iter().flat_map(|extents| extents.split('[')) {
        let number = extent.trim_end().trim_end_matches(']').trim();
        elements *= if number.is_empty() {
            0
        } else {
            number.parse::<u64>().map_err(|_| format!("extent `{number}`"))?
        };
    }
    Ok(Declaration {
        name,
        bytes: elements * kind.bytes(),
        align: if align == 0 { kind.bytes() } else { align },
        kind,
        content,
    })
}

fn declare_global(module: &mut Module, text: &str) -> Parsed<()> {
    let words: Vec<&str> = text.split_whitespace().collect();
    if words.contains(&".shared") {
        let declared = declaration(text)?;
        let symbol = Symbol::Shared(module.shared_bytes.next_multiple_of(declared.align));
        if let Symbol::Shared(at) = symbol {
            module.shared_bytes = at + declared.bytes;
        }
        module.symbols.insert(declared.name.to_owned(), symbol);
    } else if words.contains(&".global") || words.contains(&".const") {
        let declared = declaration(text)?;
        let content = declared.content.map_or(Ok(Vec::new()), |content| contents(content, declared.kind))?;
        let bytes = declared.bytes.max(content.len() as u64);
        let variable = Variable { name: declared.name.to_owned(), bytes, content };
        module.symbols.insert(variable.name.clone(), Symbol::Global(module.variables.len()));
        module.variables.push(variable);
    }
    Ok(())
}

fn contents(text: &str, kind: Type) -> Parsed<Vec<u8>> {
    let text = text.trim().trim_matches(|c| matches!(c, '{' | '}' | ' '));
    let mut bytes = Vec::new();
    for item in split(text) {
        let value = operands::number(item, kind).ok_or_else(|| format!("initial value `{item}`"))?;
        bytes.extend_from_slice(&value.to_ne_bytes()[..kind.bytes() as usize]);
    }
    Ok(bytes)
}

/// Reads a routine; also says how much shared memory the module has by then.
fn routine(module: &Module, addresses: &[u64], head: &str, pieces: &[Piece<'_>]) -> Parsed<(Routine, u64)> {
    let mut body = Body {
        module,
        addresses,
        scopes: vec![Scope::default()],
        routine: Routine { max_threads: 1024, is_entry: head.contains(".entry"), ..Routine::default() },
        labels: HashMap::new(),
        jumps: Vec::new(),
        tables: HashMap::new(),
    };
    body.head(head)?;
    let mut shared_bytes = module.shared_bytes;
    let mut last_label = "";
    for piece in pieces {
        match piece {
            Piece::Open(_) => body.scopes.push(Scope::default()),
            Piece::Close => drop(body.scopes.pop()),
            Piece::Label(label) => {
                body.labels.insert((*label).to_owned(), body.routine.code.len());
                last_label = label;
            }
            Piece::Statement(text) if text.starts_with(".branchtargets") => {
                let names = split(&text[14..]).into_iter().map(str::to_owned).collect();
                body.tables.insert(last_label.to_owned(), names);
            }
            Piece::Statement(text) => {
                body.statement(text, &mut shared_bytes)
                    .map_err(|why| format!("{why} (in `{text}`, {})", body.routine.name))?;
            }
        }
    }
    body.routine.code.push(Instruction { guard: None, op: Op::Return });
    body.resolve()?;
    Ok((body.routine, shared_bytes))
}

impl Body<'_> {
    /// `.visible .entry name(parameters) .maxntid 256, 1, 1`, or `.func (results) name(parameters)`.
    fn head(&mut self, head: &str) -> Parsed<()> {
        let (_, after) =
            head.split_once(".entry").or_else(|| head.split_once(".func")).ok_or("no routine")?;
        let after = after.trim();
        let (results, after) = match after.strip_prefix('(') {
            Some(rest) => rest.split_once(')').ok_or("results do not end")?,
            None => ("", after),
        };
        let (name, parameters, tail) = match after.split_once('(') {
            Some((name, rest)) => {
                let (parameters, tail) = rest.split_once(')').ok_or("parameters do not end")?;
                (name.trim(), parameters, tail)
            }
            None => (after.split_whitespace().next().unwrap_or(""), "", ""),
        };
        self.routine.name = name.to_owned();
        self.routine.results = self.formals(results)?;
        self.routine.parameters = self.formals(parameters)?;
        for word in [".maxntid", ".reqntid"] {
            if let Some((_, extents)) = tail.split_once(word) {
                let extents = extents.split(['.', '\n']).next().unwrap_or("");
                let product: Option<u32> = extents.split(',').map(|n| n.trim().parse::<u32>().ok()).product();
                self.routine.max_threads = product.unwrap_or(1024).min(1024);
            }
        }
        Ok(())
    }

    fn formals(&mut self, text: &str) -> Parsed<Vec<(u32, u32)>> {
        let mut places = Vec::new();
        let mut offset = 0;
        for item in split(text) {
            let declared = declaration(item)?;
            if self.routine.is_entry {
                offset = u64::next_multiple_of(offset, declared.align);
                self.scopes[0].symbols.insert(declared.name.to_owned(), Symbol::Parameter(offset));
                places.push((offset as u32, declared.bytes as u32));
                offset += declared.bytes;
            } else {
                let at = self.frame(declared.name, declared.bytes, declared.align);
                places.push((at as u32, declared.bytes as u32));
            }
        }
        Ok(places)
    }

    /// Room in the frame.
    fn frame(&mut self, name: &str, bytes: u64, align: u64) -> u64 {
        let at = self.routine.frame_bytes.next_multiple_of(align.max(8));
        self.routine.frame_bytes = at + bytes.max(8);
        self.declare(name, Symbol::Frame(at));
        at
    }

    fn declare(&mut self, name: &str, symbol: Symbol) {
        if let Some(scope) = self.scopes.last_mut() {
            scope.symbols.insert(name.to_owned(), symbol);
        }
    }

    fn statement(&mut self, text: &str, shared_bytes: &mut u64) -> Parsed<()> {
        let word = text.split_whitespace().next().unwrap_or("");
        // Inline assembly may leave out blanks: `.reg.b16 x`.
        if word.starts_with('.') && word[1..].contains('.') {
            return self
                .statement(&text.replacen('.', " .", 2).trim_start().replace("  ", " "), shared_bytes);
        }
        match word {
            "" | ".pragma" | ".loc" | ".callprototype" => Ok(()),
            ".reg" => self.registers(text),
            ".local" | ".param" => {
                let declared = declaration(text)?;
                self.frame(declared.name, declared.bytes, declared.align);
                Ok(())
            }
            ".shared" => {
                let declared = declaration(text)?;
                let at = shared_bytes.next_multiple_of(declared.align);
                *shared_bytes = at + declared.bytes;
                self.declare(declared.name, Symbol::Shared(at));
                Ok(())
            }
            _ if word.starts_with('.') => Err(format!("directive {word}")),
            _ => {
                let instruction = decode::instruction(self, text)?;
                self.routine.code.push(instruction);
                Ok(())
            }
        }
    }

    /// `.reg .b32 %r<10>` or `.reg .pred p, q`.
    fn registers(&mut self, text: &str) -> Parsed<()> {
        let rest = text.trim_start_matches(".reg").trim();
        let (kind, names) = rest.split_once(char::is_whitespace).ok_or("registers without a name")?;
        Type::new(kind.trim_start_matches('.'))
            .filter(|kind| kind.bytes() <= 8)
            .ok_or_else(|| format!("registers of type {kind}"))?;
        for name in split(names) {
            let (name, count) = match name.split_once('<') {
                Some((name, count)) => (
                    name,
                    Some(count.trim_end_matches('>').parse::<u32>().map_err(|_| "count of registers")?),
                ),
                None => (name, None),
            };
            let first = self.routine.registers as Register;
            self.routine.registers += count.unwrap_or(1) as usize;
            if let Some(scope) = self.scopes.last_mut() {
                scope.registers.insert(name.trim().to_owned(), (first, count));
            }
        }
        Ok(())
    }

    /// A register by its name.
    pub(super) fn register(&self, name: &str) -> Option<Register> {
        let digits = name.len() - name.bytes().rev().take_while(u8::is_ascii_digit).count();
        let (stem, number) = name.split_at(digits);
        for scope in self.scopes.iter().rev() {
            if let Some(&(first, None)) = scope.registers.get(name) {
                return Some(first);
            }
            if let (Some(&(first, Some(count))), Ok(number)) =
                (scope.registers.get(stem), number.parse::<u32>())
                && number < count
            {
                return Some(first + number);
            }
        }
        None
    }

    /// A register that no name has: for results that nobody wants.
    pub(super) fn spare(&mut self) -> Register {
        self.routine.registers += 1;
        self.routine.registers as Register - 1
    }

    pub(super) fn symbol(&self, name: &str) -> Option<Symbol> {
        let local = self.scopes.iter().rev().find_map(|scope| scope.symbols.get(name).copied());
        local.or_else(|| self.module.symbols.get(name).copied())
    }

    /// Puts the places of labels into jumps.
    fn resolve(&mut self) -> Parsed<()> {
        for (at, index, label) in std::mem::take(&mut self.jumps) {
            let target = *self.labels.get(&label).ok_or_else(|| format!("label {label}"))?;
            match &mut self.routine.code[at].op {
                Op::Jump { to } => *to = target,
                Op::JumpTable { to, .. } => to[index] = target,
                _ => {}
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn declarations_have_sizes() {
        let declared = declaration(".shared .align 16 .b8 name[4][32]").unwrap();
        assert_eq!((declared.name, declared.bytes, declared.align), ("name", 128, 16));
        assert_eq!(contents("{1, 2, 0x10}", Type::B(2)).unwrap(), [1, 0, 2, 0, 16, 0]);
    }
}
