//! Which network plugin a communicator uses, if any: found out by each rank for itself before ranks meet, and told to all others, so that both ends of
//! each link come to the same.

use super::Communicator;
use crate::bootstrap::{PeerRecord, Secret};
use crate::config::subsystem::{INIT, NET};
use crate::config::{PluginWish, Settings};
use crate::driver::network_plugin::{self, NetworkPlugin, Session};
use crate::error::{Error, ErrorKind, Result};
use crate::telemetry::{self, log};
use crate::topo::fnv1a;
use crate::transport::plugin::{Chosen, SLOT_BYTES};
use crate::types::Rank;
use std::sync::Arc;

/// A plugin that this rank can use.
#[derive(Debug)]
pub(super) struct Opened {
    session: Arc<dyn Session>,
    name: String,
    /// Devices that serve here.
    devices: Vec<usize>,
}

/// What came of looking for one: it, or why there is none.
pub(super) type Outcome = std::result::Result<Opened, String>;

impl Opened {
    /// What others are told: equal for plugins of one name, in any case, and not 0.
    fn number(&self) -> u64 {
        fnv1a(self.name.to_lowercase().as_bytes()).max(1)
    }
}

/// A communicator's number, as plugins are told it.
fn number_of(secret: &Secret) -> u64 {
    secret.token().first_chunk().map_or(0, |token| u64::from_be_bytes(*token))
}

/// The first plugin that can be used, as the settings want it.
fn open(settings: &Settings, number: u64) -> Outcome {
    let wish = &settings.network.verbs.plugin;
    let wanted = match wish {
        PluginWish::Off(why) => {
            return Err(format!("no plugin is used: {why}"));
        }
        PluginWish::Required(name) => Some(name),
        PluginWish::Any => None,
    };
    let found = network_plugin::find();
    let mut reasons = found.not_loaded;
    for plugin in &found.plugins {
        let (name, version) = (plugin.name(), plugin.version());
        let opened = match wanted {
            Some(wanted) if *wanted != name.to_lowercase() => Err(format!("{wanted} is wanted (NCCL_NET)")),
            _ => begin(&**plugin, number),
        };
        match opened {
            Ok(opened) => return Ok(opened),
            Err(why) => {
                let why = format!("the network plugin {name} (v{version}) is not used: {why}");
                log::info(INIT | NET, format_args!("NET/Plugin: {why}"));
                reasons.push(why);
            }
        }
    }
    if reasons.is_empty() {
        reasons.push("no network plugin is loaded (NCCL_NET_PLUGIN)".to_string());
    }
    Err(reasons.join("; "))
}

fn begin(plugin: &dyn NetworkPlugin, number: u64) -> Outcome {
    let session = plugin.begin(number).map_err(|error| error.text().to_string())?;
    let mut reasons = Vec::new();
    let mut devices = Vec::new();
    for (index, device) in session.devices().iter().enumerate() {
        let why_not = if !device.reaches_host {
            "does not reach host memory"
        } else if device.needs_device_code {
            "needs code on an accelerator to receive"
        } else if device.most_bytes < SLOT_BYTES {
            "takes only messages that are shorter than those of this library"
        } else {
            devices.push(index);
            continue;
        };
        reasons.push(format!("its device {} {why_not}", device.name));
    }
    if devices.is_empty() {
        let none = || "it has no devices".to_string();
        return Err(if reasons.is_empty() { none() } else { reasons.join("; ") });
    }
    Ok(Opened { session, name: plugin.name().to_string(), devices })
}

impl Communicator {
    /// Looks for a plugin, and keeps what came of it for [`Communicator::choose_plugin`]; what others are told of it: 0 for none.
    pub(super) fn open_plugin(&self, settings: &Settings, number: u64) -> u64 {
        if self.ranks() == 1 {
            return 0;
        }
        let opened = open(settings, number);
        let told = opened.as_ref().map_or(0, Opened::number);
        *self.shared.plugin.lock() = Some(opened);
        told
    }

    /// The same for ranks that meet by a secret.
    pub(super) fn open_plugin_of(&self, settings: &Settings, secret: &Secret) -> u64 {
        self.open_plugin(settings, number_of(secret))
    }

    /// Gives back what is not used.
    pub(super) fn forgo_plugin(&self) {
        drop(self.shared.plugin.lock().take());
    }

    /// The plugin by which this rank goes to others, as all ranks know of each other. An error where one is required that this rank or another one has
    /// not.
    pub(super) fn choose_plugin(
        &self,
        peers: &[PeerRecord],
        secret: &Secret,
        settings: &Settings,
    ) -> Result<Option<Chosen>> {
        let own = &peers[self.rank()];
        let wish = &settings.network.verbs.plugin;
        // A split is of ranks that know each other already.
        let opened = self.shared.plugin.lock().take();
        let opened = opened.unwrap_or_else(|| {
            if own.plugin == 0 {
                Err("the communicator that this one is made of uses no network plugin".to_string())
            } else {
                open(settings, number_of(secret))
            }
        });
        if let PluginWish::Required(name) = wish {
            if let Err(why) = &opened {
                return Err(Error::new(
                    ErrorKind::InvalidUsage,
                    format!(
                        "the network plugin {name} is required (NCCL_NET, ACCL_REQUIRE_PATH or netName) and cannot be used: {why}; see NCCL_NET_PLUGIN, \
                         or unset that to go by what there is"
                    ),
                ));
            }
            if let Some(rank) = differing(peers, own) {
                return Err(Error::remote(format!(
                    "the network plugin {name} is required (NCCL_NET, ACCL_REQUIRE_PATH or netName), but rank {rank} ({}) uses another one or none; \
                     see NCCL_NET_PLUGIN there, or unset that to go by TCP",
                    peers[rank].describe()
                )));
            }
        } else if own.plugin != 0
            && let Some(rank) = differing(peers, own)
        {
            telemetry::warn(&format!(
                "NET/Plugin: rank {rank} ({}) does not use the network plugin that rank {} uses, so other ways are taken between these two and those like \
                 them; set NCCL_NET_PLUGIN alike on all hosts",
                peers[rank].describe(),
                self.rank()
            ));
        }
        if own.plugin == 0 {
            return Ok(None);
        }
        Ok(Some(self.chosen(opened, peers, wish)))
    }

    /// Ranks of a host take its devices in turn.
    fn chosen(&self, opened: Outcome, peers: &[PeerRecord], wish: &PluginWish) -> Chosen {
        let own = self.rank();
        let before = peers[..own].iter().filter(|peer| peer.shares_host(&peers[own])).count();
        let is_required = matches!(wish, PluginWish::Required(_));
        match opened {
            Ok(Opened { session, name, devices }) => {
                let device = devices[before % devices.len()];
                let called = session.devices().get(device).map_or("?", |device| device.name.as_str());
                log::info(
                    INIT | NET,
                    format_args!("NET/Plugin: rank {own} uses device {called} of {}", devices.len()),
                );
                log::info(INIT | NET, format_args!("Using network {name}"));
                Chosen { session: Ok(session), name, device, is_required }
            }
            Err(why) => {
                Chosen { session: Err(why), name: "that is not there".to_string(), device: 0, is_required }
            }
        }
    }
}

/// A rank of another host whose plugin is not that of `own`.
fn differing(peers: &[PeerRecord], own: &PeerRecord) -> Option<Rank> {
    peers.iter().position(|peer| !peer.shares_host(own) && peer.plugin != own.plugin)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::Source;
    use crate::driver::network_plugin::Properties;
    use crate::driver::network_plugin::fake::Fake;

    #[derive(Debug)]
    struct Named(Properties);

    impl NetworkPlugin for Named {
        fn name(&self) -> &str {
            "Named"
        }

        fn version(&self) -> u32 {
            8
        }

        fn begin(&self, _communicator: u64) -> Result<Arc<dyn Session>> {
            Ok(Fake::of(vec![self.0.clone()]).session())
        }
    }

    #[test]
    fn devices_that_cannot_serve_are_passed_over_with_the_reason() {
        let good = Fake::new(1, 1, false).session().devices()[0].clone();
        assert_eq!(begin(&Named(good.clone()), 1).unwrap().devices, [0]);
        for (spoiled, why) in [
            (Properties { reaches_host: false, ..good.clone() }, "does not reach host memory"),
            (Properties { needs_device_code: true, ..good.clone() }, "needs code on an accelerator"),
            (Properties { most_bytes: SLOT_BYTES - 1, ..good }, "takes only messages that are shorter"),
        ] {
            let text = begin(&Named(spoiled), 1).unwrap_err();
            assert!(text.contains("fake0") && text.contains(why), "{text}");
        }
    }

    #[test]
    fn settings_keep_plugins_away() {
        let settings = Settings::from_source(&Source::of_pairs(&[("NCCL_NET", "Socket")])).unwrap();
        let why = open(&settings, 1).unwrap_err();
        assert!(why.contains("no plugin is used: another network is chosen"), "{why}");
        let settings = Settings::from_source(&Source::of_pairs(&[("NCCL_NET", "Elsewhere")])).unwrap();
        assert!(open(&settings, 1).unwrap_err().contains("no network plugin is loaded"));
    }
}
