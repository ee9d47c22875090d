//! Names that were meant to be settings: which variables look like a misspelt one.

use super::accepted::is_accepted;
use super::table::SETTINGS;

/// Names with the prefix `ACCL_` that are no settings of the library: of its tools, launchers, tests, and where files are.
const OURS_BESIDES: [&str; 7] = ["CONF_FILE", "RANK", "WORLD", "ROOT", "LOCAL_RANK", "LARGE", "LIB"];

/// How many letters of a name with the prefix may be wrong: with a foreign prefix fewer, as NCCL has names that are listed nowhere.
const PREFIXES: [(&str, usize); 3] = [("ACCL_", 2), ("PCCL_", 1), ("NCCL_", 1)];

/// What to say of a variable that was probably meant to be one of our settings.
pub(super) fn hint(name: &str) -> Option<String> {
    let (prefix, most) = PREFIXES.into_iter().find(|(prefix, _)| name.starts_with(prefix))?;
    let rest = &name[prefix.len()..];
    let known = SETTINGS.iter().any(|setting| setting.name == rest)
        || OURS_BESIDES.contains(&rest)
        || is_accepted(rest);
    if known {
        return None;
    }
    let near = SETTINGS.iter().map(|setting| (distance(rest, setting.name), setting.name)).min()?;
    // In a short name, two letters are half of it.
    (near.0 <= most.min(near.1.len() / 3))
        .then(|| format!("{name} is no setting and has no effect; did you mean {prefix}{}?", near.1))
}

/// How many letters must be put in, left out, replaced, or swapped with the next one.
fn distance(one: &str, other: &str) -> usize {
    let (one, other) = (one.as_bytes(), other.as_bytes());
    let mut rows: [Vec<usize>; 3] = [Vec::new(), (0..=other.len()).collect(), Vec::new()];
    for (at, letter) in one.iter().enumerate() {
        let mut row = vec![at + 1];
        for (to, wanted) in other.iter().enumerate() {
            let mut least =
                (rows[1][to] + usize::from(letter != wanted)).min(rows[1][to + 1] + 1).min(row[to] + 1);
            if at > 0 && to > 0 && letter == &other[to - 1] && &one[at - 1] == wanted {
                least = least.min(rows[0][to - 1] + 1);
            }
            row.push(least);
        }
        rows[0] = std::mem::replace(&mut rows[1], row);
    }
    rows[1].last().copied().unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn distances_count_swaps_once() {
        for (one, other, expected) in
            [("", "", 0), ("abc", "", 3), ("abc", "acb", 1), ("abc", "abd", 1), ("TIMEOT", "TIMEOUT", 1)]
        {
            assert_eq!((distance(one, other), distance(other, one)), (expected, expected), "{one} {other}");
        }
    }

    #[test]
    fn misspelt_names_get_the_nearest_one() {
        for (wrong, right) in [
            ("ACCL_TIMEOT", "ACCL_TIMEOUT"),
            ("ACCL_WARNAFTER", "ACCL_WARN_AFTER"),
            ("NCCL_SOCKET_INFAME", "NCCL_SOCKET_IFNAME"),
            ("PCCL_DEBGU", "PCCL_DEBUG"),
        ] {
            let hint = hint(wrong).unwrap();
            assert_eq!(hint, format!("{wrong} is no setting and has no effect; did you mean {right}?"));
        }
    }

    #[test]
    fn right_and_foreign_names_get_none() {
        for name in [
            "ACCL_TIMEOUT",
            "NCCL_ALGO",
            "NCCL_IB_TIMEOUT",
            "NCCL_NET_PLUGIN",
            "ACCL_RANK",
            "ACCL_SOMETHING_ELSE",
            "NCCL_TUNER_CONFIG_FILE",
            "HOME",
            "ACCL_",
        ] {
            assert_eq!(hint(name), None, "{name}");
        }
    }
}
