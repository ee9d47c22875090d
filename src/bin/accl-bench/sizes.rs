//! Sizes in bytes: how they are written, and which ones a run visits.

/// Reads `8`, `4K`, `128M`, `1.5G`; the letters are powers of 1024, in either case.
pub(crate) fn parse_size(text: &str) -> Result<usize, String> {
    let wrong =
        || format!("\"{text}\" is no size; write bytes, or a number with K, M, G or T (powers of 1024)");
    let (digits, unit) = match text.trim().char_indices().last() {
        Some((at, letter)) if letter.is_ascii_alphabetic() => {
            let power = "kmgt".find(letter.to_ascii_lowercase()).ok_or_else(wrong)?;
            (&text.trim()[..at], 1u64 << (10 * (power + 1)))
        }
        _ => (text.trim(), 1),
    };
    if let Ok(whole) = digits.parse::<u64>() {
        let bytes = whole.checked_mul(unit).ok_or_else(|| format!("{text}: more than an address can say"))?;
        return usize::try_from(bytes).map_err(|_| wrong());
    }
    let number: f64 = digits.parse().map_err(|_| wrong())?;
    let bytes = number * unit as f64;
    if !bytes.is_finite() || !(0.0..9e18).contains(&bytes) || unit == 1 {
        return Err(wrong());
    }
    Ok(bytes as usize)
}

/// How a run goes from one size to the next.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Step {
    Bytes(usize),
    Factor(f64),
}

/// All sizes from `first` to `last`, both included where the step meets them.
pub(crate) fn sizes(first: usize, last: usize, step: Step) -> Vec<usize> {
    let next = |&size: &usize| {
        let next = match step {
            Step::Bytes(bytes) => size.checked_add(bytes)?,
            // A factor such as 1.2 must move even from 1.
            Step::Factor(factor) => ((size as f64 * factor) as usize).max(size.checked_add(1)?),
        };
        (next <= last).then_some(next)
    };
    std::iter::successors((first <= last).then_some(first), next).collect()
}

/// "64 MiB", "1.5 KiB", "12 B".
pub(crate) fn human(bytes: usize) -> String {
    let mut value = bytes as f64;
    let mut unit = "B";
    for larger in ["KiB", "MiB", "GiB", "TiB"] {
        // What would be shown as 1024.0 is one of the next unit.
        if value < 1023.95 {
            break;
        }
        value /= 1024.0;
        unit = larger;
    }
    if (value - value.round()).abs() < 0.05 {
        format!("{value:.0} {unit}")
    } else {
        format!("{value:.1} {unit}")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn letters_are_powers_of_1024() {
        assert_eq!(parse_size("8"), Ok(8));
        assert_eq!(parse_size("4k"), Ok(4096));
        assert_eq!(parse_size("128M"), Ok(128 << 20));
        assert_eq!(parse_size("1.5G"), Ok(3 << 29));
        assert_eq!(parse_size("0"), Ok(0));
    }

    #[test]
    fn what_is_no_size_is_refused() {
        for text in ["", "M", "-1", "8X", "1.5", "nan", "infG", "99999999999999T", "8 8", "é"] {
            assert!(parse_size(text).is_err(), "{text}");
        }
    }

    #[test]
    fn steps_reach_the_end_and_stop() {
        assert_eq!(sizes(8, 64, Step::Factor(2.0)), [8, 16, 32, 64]);
        assert_eq!(sizes(10, 25, Step::Bytes(5)), [10, 15, 20, 25]);
        assert_eq!(sizes(7, 7, Step::Factor(2.0)), [7]);
        assert_eq!(sizes(8, 7, Step::Factor(2.0)), [] as [usize; 0]);
        assert_eq!(sizes(1, 4, Step::Factor(1.2)), [1, 2, 3, 4]);
        assert_eq!(sizes(usize::MAX - 1, usize::MAX, Step::Bytes(1 << 20)), [usize::MAX - 1]);
    }

    #[test]
    fn people_read_units() {
        assert_eq!(human(64 << 20), "64 MiB");
        assert_eq!(human(1536), "1.5 KiB");
        assert_eq!(human(0), "0 B");
        assert_eq!(human((1 << 20) - 16), "1 MiB");
    }
}
