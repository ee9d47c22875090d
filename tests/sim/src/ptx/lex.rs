//! Text in pieces: statements, labels and scopes.

/// A piece of text between delimiters.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Piece<'a> {
    Statement(&'a str),
    Label(&'a str),
    Open(&'a str),
    Close,
}

/// Comments become blanks.
pub(super) fn without_comments(text: &str) -> String {
    let mut clean = String::with_capacity(text.len());
    let mut rest = text;
    while let Some(at) = rest.find('/') {
        let (before, from) = rest.split_at(at);
        clean.push_str(before);
        let end = if from.starts_with("//") {
            from.find('\n')
        } else if from.starts_with("/*") {
            from.find("*/").map(|end| end + 2)
        } else {
            clean.push('/');
            Some(1)
        };
        clean.push(' ');
        rest = end.map_or("", |end| &from[end..]);
    }
    clean.push_str(rest);
    clean
}

/// Splits at `;`, labels and the braces of scopes; braces within a statement are operands or contents.
pub(super) fn pieces(text: &str) -> Vec<Piece<'_>> {
    let mut pieces = Vec::new();
    let (mut start, mut depth) = (0, 0);
    let mut in_quotes = false;
    for (at, character) in text.char_indices() {
        let so_far = text[start..at].trim();
        match character {
            '"' => in_quotes = !in_quotes,
            _ if in_quotes => {}
            '{' if depth == 0 && (so_far.is_empty() || opens_a_body(so_far)) => {
                pieces.push(Piece::Open(so_far));
                start = at + 1;
            }
            '{' => depth += 1,
            '}' if depth == 0 => {
                pieces.push(Piece::Close);
                start = at + 1;
            }
            '}' => depth -= 1,
            ';' if depth == 0 => {
                pieces.push(Piece::Statement(so_far));
                start = at + 1;
            }
            ':' if depth == 0 && is_name(so_far) => {
                pieces.push(Piece::Label(so_far));
                start = at + 1;
            }
            // These directives have no semicolon.
            '\n' if [".version", ".target", ".address_size", ".file", ".loc"]
                .iter()
                .any(|word| so_far.starts_with(word)) =>
            {
                start = at + 1;
            }
            _ => {}
        }
    }
    pieces
}

fn is_name(text: &str) -> bool {
    !text.is_empty() && text.chars().all(|c| c.is_ascii_alphanumeric() || "_$%".contains(c))
}

fn opens_a_body(text: &str) -> bool {
    let mut words = text.split_whitespace();
    words.any(|word| matches!(word, ".entry" | ".func" | ".section"))
}

/// Splits at commas that are in no brackets.
pub(super) fn split(text: &str) -> Vec<&str> {
    let (mut parts, mut depth, mut start) = (Vec::new(), 0, 0);
    for (at, character) in text.char_indices() {
        match character {
            '(' | '[' | '{' => depth += 1,
            ')' | ']' | '}' => depth -= 1,
            ',' if depth == 0 => {
                parts.push(text[start..at].trim());
                start = at + 1;
            }
            _ => {}
        }
    }
    let last = text[start..].trim();
    if !last.is_empty() {
        parts.push(last);
    }
    parts
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_falls_into_pieces() {
        let text = without_comments(
            ".visible .entry f(.param .u64 p) // c\n{ .reg .b32 %r<2>; L1: ld.v2.u32 {%r1, %r2}, [p]; /* x */ { } }",
        );
        let expected = [
            Piece::Open(".visible .entry f(.param .u64 p)"),
            Piece::Statement(".reg .b32 %r<2>"),
            Piece::Label("L1"),
            Piece::Statement("ld.v2.u32 {%r1, %r2}, [p]"),
            Piece::Open(""),
            Piece::Close,
            Piece::Close,
        ];
        assert_eq!(pieces(&text), expected);
    }
}
