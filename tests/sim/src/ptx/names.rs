//! What the words of PTX mean: special registers, opcodes, comparisons.

use super::types::{Atomic, Binary, Compare, LaneMask, Special, Unary};

pub(super) fn special(name: &str) -> Option<Special> {
    let axis = |letter: &str| ["x", "y", "z"].iter().position(|axis| *axis == letter);
    if let Some((stem, letter)) = name.split_once('.') {
        let axis = axis(letter)?;
        return Some(match stem {
            "%tid" => Special::Thread(axis),
            "%ntid" => Special::BlockSize(axis),
            "%ctaid" => Special::Block(axis),
            "%nctaid" => Special::GridSize(axis),
            "%cluster_ctaid" | "%clusterid" => Special::Zero,
            "%cluster_nctaid" => Special::One,
            _ => return None,
        });
    }
    Some(match name {
        "%laneid" => Special::Lane,
        "%warpid" => Special::Warp,
        "%nwarpid" => Special::Warps,
        "%lanemask_eq" => Special::LaneMask(LaneMask::Equal),
        "%lanemask_lt" => Special::LaneMask(LaneMask::Less),
        "%lanemask_le" => Special::LaneMask(LaneMask::LessEqual),
        "%lanemask_gt" => Special::LaneMask(LaneMask::Greater),
        "%lanemask_ge" => Special::LaneMask(LaneMask::GreaterEqual),
        "%clock" | "%clock64" | "%clock_hi" => Special::Clock,
        "%globaltimer" | "%globaltimer_lo" => Special::NanoTime,
        "%dynamic_smem_size" => Special::DynamicShared,
        "%total_smem_size" => Special::TotalShared,
        "%smid" | "%gridid" | "%cluster_ctarank" => Special::Zero,
        "%nsmid" | "%cluster_nctarank" => Special::One,
        _ => return None,
    })
}

pub(super) fn unary(words: &[&str]) -> Option<Unary> {
    Some(match words[0] {
        "abs" => Unary::Abs,
        "neg" => Unary::Neg,
        "not" => Unary::Not,
        "cnot" => Unary::CNot,
        "popc" => Unary::Popc,
        "clz" => Unary::Clz,
        "brev" => Unary::Brev,
        "bfind" => Unary::Bfind(words.contains(&"shiftamt")),
        "rcp" => Unary::Rcp,
        "sqrt" => Unary::Sqrt,
        "rsqrt" => Unary::Rsqrt,
        "ex2" => Unary::Ex2,
        "lg2" => Unary::Lg2,
        "sin" => Unary::Sin,
        "cos" => Unary::Cos,
        "tanh" => Unary::Tanh,
        _ => return None,
    })
}

pub(super) fn binary(words: &[&str], operands: usize) -> Option<Binary> {
    Some(match words[0] {
        "add" => Binary::Add,
        "addc" => Binary::AddC,
        "sub" => Binary::Sub,
        "subc" => Binary::SubC,
        "mul" => Binary::Mul,
        "mul24" => Binary::Mul24,
        "div" => Binary::Div,
        "rem" => Binary::Rem,
        "min" if operands == 3 => Binary::Min,
        "max" if operands == 3 => Binary::Max,
        "and" => Binary::And,
        "or" => Binary::Or,
        "xor" => Binary::Xor,
        "shl" => Binary::Shl,
        "shr" => Binary::Shr,
        "copysign" => Binary::CopySign,
        _ => return None,
    })
}

pub(super) fn comparison(word: &str) -> Option<Compare> {
    Some(match word {
        "eq" => Compare::Eq,
        "ne" => Compare::Ne,
        "lt" | "lo" => Compare::Lt,
        "le" | "ls" => Compare::Le,
        "gt" | "hi" => Compare::Gt,
        "ge" | "hs" => Compare::Ge,
        "equ" => Compare::Equ,
        "neu" => Compare::Neu,
        "ltu" => Compare::Ltu,
        "leu" => Compare::Leu,
        "gtu" => Compare::Gtu,
        "geu" => Compare::Geu,
        "num" => Compare::Num,
        "nan" => Compare::Nan,
        _ => return None,
    })
}

pub(super) fn atomic_op(words: &[&str]) -> Option<Atomic> {
    words[1..].iter().find_map(|word| {
        Some(match *word {
            "add" => Atomic::Add,
            "exch" => Atomic::Exch,
            "cas" => Atomic::Cas,
            "min" => Atomic::Min,
            "max" => Atomic::Max,
            "and" => Atomic::And,
            "or" => Atomic::Or,
            "xor" => Atomic::Xor,
            "inc" => Atomic::Inc,
            "dec" => Atomic::Dec,
            _ => return None,
        })
    })
}
