//! Which device driver is used: `DEVICE`, `DRIVER_LIB`, `DRIVER_PREFIX`, `P2P_DISABLE`, `CHECK_MODE`, `CHECK_POINTERS`.

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
    /// `P2P_DISABLE`: devices do not reach each other's memory, even where they could.
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
            apart: source.switch("P2P_DISABLE")?,
            checks_pointers: checks_pointers(source)?,
        })
    }

    /// What this process's environment and files say.
    pub fn load() -> Result<Self> {
        Self::from_source(&Source::of_process()?)
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
