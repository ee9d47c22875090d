//! Which device driver is used: `DEVICE`, `DRIVER_LIB`, `DRIVER_PREFIX`, `P2P_DISABLE`, `P2P_LEVEL`, `CHECK_MODE`, `CHECK_POINTERS`.

use super::source::Source;
use crate::error::{Error, Result};

/// What the settings say of device drivers.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Driver {
    /// `DEVICE`: false if communicators are of host memory, whatever the process uses.
    pub on: bool,
    /// `DRIVER_LIB`: the library, if one is named.
    pub library: Option<String>,
    /// `DRIVER_PREFIX`: what the names of its functions begin with, if that is said.
    pub prefix: Option<String>,
    /// `P2P_DISABLE`, `P2P_LEVEL`: devices do not reach each other's memory, even where they could.
    pub apart: bool,
    /// `CHECK_MODE`, `CHECK_POINTERS`: the driver is asked what memory each buffer lies in.
    pub checks_pointers: bool,
}

impl Driver {
    pub(super) fn from_source(source: &Source) -> Result<Self> {
        let text = |name| Some(source.text(name)).filter(|text| !text.is_empty());
        let on = match source.text("DEVICE").as_str() {
            "auto" => true,
            "none" => false,
            _ => return Err(source.explain("DEVICE", &Error::argument("need auto or none"))),
        };
        Ok(Self {
            on,
            library: text("DRIVER_LIB"),
            prefix: text("DRIVER_PREFIX"),
            apart: source.switch("P2P_DISABLE")? || is_local(source)?,
            checks_pointers: checks_pointers(source)?,
        })
    }

    /// What this process's environment and files say.
    pub fn load() -> Result<Self> {
        Self::from_source(&Source::of_process()?)
    }
}

/// True if `P2P_LEVEL` keeps each device to itself. How far apart two devices are is not known here, so that all other levels are one.
fn is_local(source: &Source) -> Result<bool> {
    match source.text("P2P_LEVEL").as_str() {
        "LOC" | "0" => Ok(true),
        "" | "NVL" | "PIX" | "PXB" | "PHB" | "SYS" => Ok(false),
        number if number.parse::<u32>().is_ok() => Ok(false),
        _ => {
            let need = Error::argument("need LOC, NVL, PIX, PXB, PHB, SYS, or a number");
            Err(source.explain("P2P_LEVEL", &need))
        }
    }
}

/// Either setting turns checks on; what NCCL's second mode compares between ranks is compared here anyway.
fn checks_pointers(source: &Source) -> Result<bool> {
    let by_mode = match source.text("CHECK_MODE").as_str() {
        "DEFAULT" => false,
        "DEBUG_LOCAL" | "DEBUG_GLOBAL" => true,
        _ => {
            let error = Error::argument("need DEFAULT, DEBUG_LOCAL or DEBUG_GLOBAL");
            return Err(source.explain("CHECK_MODE", &error));
        }
    };
    Ok(source.switch("CHECK_POINTERS")? || by_mode)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_level_keeps_devices_apart_or_not() {
        let apart =
            |pairs: &[(&str, &str)]| Driver::from_source(&Source::of_pairs(pairs)).map(|all| all.apart);
        for (level, expected) in [("", false), ("LOC", true), ("0", true), ("NVL", false), ("5", false)] {
            assert_eq!(apart(&[("NCCL_P2P_LEVEL", level)]), Ok(expected), "{level}");
        }
        assert_eq!(apart(&[("NCCL_P2P_LEVEL", "SYS"), ("NCCL_P2P_DISABLE", "1")]), Ok(true));
        let refused = apart(&[("NCCL_P2P_LEVEL", "near")]).unwrap_err();
        assert!(refused.text().contains("NCCL_P2P_LEVEL=near"), "{refused}");
    }

    #[test]
    fn either_setting_turns_pointer_checks_on() {
        let checks = |pairs: &[(&str, &str)]| checks_pointers(&Source::of_pairs(pairs));
        assert_eq!(checks(&[]), Ok(false));
        assert_eq!(checks(&[("NCCL_CHECK_POINTERS", "1")]), Ok(true));
        assert_eq!(checks(&[("NCCL_CHECK_MODE", "DEFAULT")]), Ok(false));
        assert_eq!(checks(&[("NCCL_CHECK_MODE", "DEBUG_LOCAL")]), Ok(true));
        assert_eq!(checks(&[("NCCL_CHECK_MODE", "DEBUG_GLOBAL")]), Ok(true));
        let refused = checks(&[("NCCL_CHECK_MODE", "ALL")]).unwrap_err();
        assert!(refused.text().contains("NCCL_CHECK_MODE=ALL"), "{refused}");
    }
}
