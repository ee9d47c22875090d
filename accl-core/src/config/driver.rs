//! Which device driver is used: `DEVICE`, `DRIVER_LIB`, `DRIVER_PREFIX`, `P2P_DISABLE`.

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
        })
    }

    /// What this process's environment and files say.
    pub fn load() -> Result<Self> {
        Self::from_source(&Source::of_process()?)
    }
}
