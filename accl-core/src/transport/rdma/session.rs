//! What the two ends of a link agree on, and what becomes of paths.

use super::breaking::Breaking;
use super::link::{Core, INLINE_BYTES, Path, RECEIVES, Rail, SENDS};
use super::path::{PathState, Stage, Todo};
use super::ports::LocalPort;
use super::record::{PairAddress, PortAddress, Record};
use super::window::Have;
use super::{MOST_PATHS, RING_BYTES, SLOT_BYTES, SLOTS};
use crate::config::{self, subsystem};
use crate::device::{Device, Host};
use crate::driver::verbs::{Connection, GidKind, PairShape};
use crate::error::{Error, ErrorKind, Result};
use crate::os::clock;
use crate::telemetry::{self, log};
use crate::transport::tcp::{Listened, Watched};
use std::sync::Weak;
use std::time::Duration;

/// How long an end waits for its queue pair to give everything back.
const DRAIN_PATIENCE: Duration = Duration::from_secs(1);
/// How long a packet may take that shows whether any pass. Devices try for longer, and what goes by TCP meanwhile is slow.
const TRIAL_PATIENCE: Duration = Duration::from_secs(3);
/// How long a path rests that has failed, at first and at most; longer each time that nothing has passed by it.
const PAUSE: (Duration, Duration) = (Duration::from_millis(100), Duration::from_secs(30));
/// The place of a rail that could not be made.
const NO_RAIL: usize = usize::MAX;
/// How often it is asked whether ports have a link, while nothing moves.
const PORTS_EVERY: Duration = Duration::from_millis(250);

impl Core {
    pub(super) fn settings(&self) -> &config::Verbs {
        &self.tcp.settings().verbs
    }

    fn leads(&self) -> bool {
        self.tcp.dials()
    }

    /// Sends and takes in records, and sees after paths.
    pub(super) fn look_at_connection(&mut self) {
        let tcp = self.tcp.clone();
        let Ok(Some(socket)) = tcp.socket() else { return };
        if !self.has_greeted {
            self.has_greeted = true;
            let ports = self.ports.iter().map(|port| port.address).collect();
            self.channel.say(&Record::Hello { pairs: self.settings().pairs, ports });
        }
        self.channel.fill(socket);
        loop {
            let heard = match self.channel.next() {
                Ok(Some(record)) => {
                    self.events += 1;
                    self.hear(record)
                }
                Ok(None) => break,
                Err(error) => Err(error),
            };
            if let Err(error) = heard {
                self.end_wrong(error.text());
                break;
            }
        }
        self.see_after_paths();
        self.channel.flush(socket);
        if self.channel.has_ended {
            // What came before the end is there by now.
            tcp.lost("it closed the connection");
        }
    }

    fn hear(&mut self, record: Record) -> Result<()> {
        let wrong = |what: &str| Err(Error::remote(format!("it sends {what}, which is not due")));
        match record {
            Record::Hello { pairs, ports } => return self.hear_hello(pairs, &ports),
            Record::Pair { path, .. }
            | Record::Ready { path, .. }
            | Record::Passed { path, .. }
            | Record::Closed { path, .. }
            | Record::Useless { path, .. }
                if usize::from(path) >= self.paths.len() =>
            {
                return wrong("a word about a path that is none");
            }
            Record::Pair { path, epoch, address } => return self.hear_pair(path.into(), epoch, address),
            Record::Ready { path, epoch } => {
                let index = usize::from(path);
                match self.paths[index].state.hear_ready(epoch) {
                    Todo::Wrong => return wrong("\"ready\""),
                    Todo::Try => self.try_packet(index),
                    _ => {}
                }
            }
            Record::Passed { path, epoch } => {
                if self.paths[usize::from(path)].state.hear_passed(epoch) == Todo::Wrong {
                    return wrong("\"passed\"");
                }
                self.see_up(path.into());
            }
            Record::Useless { path, text } => {
                let whom = self.tcp.world().named(&[self.tcp.peer()]);
                self.give_up(path.into(), format!("{whom} says: {text}"));
                self.see_settled();
            }
            Record::Closed { path, epoch, have } => {
                let index = usize::from(path);
                match self.paths[index].state.hear_closed(epoch, have) {
                    Todo::Drain => self.drain(index, "the peer has closed its end"),
                    Todo::TakeBack(have) => return self.take_back(index, have),
                    Todo::Wrong => return wrong("\"closed\""),
                    _ => {}
                }
            }
            Record::Credit(consumed) => {
                if !self.sends.credit(consumed) {
                    return wrong("a credit");
                }
            }
            Record::Segment { number, data } => {
                self.receive_ring.ensure(RING_BYTES)?;
                if !self.receives.arrive(number, data.len() as u32) {
                    return wrong("a segment");
                }
                let place = (number % SLOTS as u64) as usize * SLOT_BYTES;
                let from = self.aside.fill(&data)?;
                Host.copy(self.receive_ring.start().byte_add(place), from, data.len());
            }
            Record::Failure { code, text } => {
                let kind = u8::try_from(code).ok().and_then(ErrorKind::from_code);
                self.failure.get_or_insert_with(|| Error::new(kind.unwrap_or(ErrorKind::Remote), text));
            }
        }
        Ok(())
    }

    /// The peer's ports are known: both ends come to the same paths.
    fn hear_hello(&mut self, pairs: u8, ports: &[PortAddress]) -> Result<()> {
        if self.is_settled || !self.paths.is_empty() {
            return Err(Error::remote("it greets twice, which is not due"));
        }
        self.receive_ring.ensure(RING_BYTES)?;
        let rounds = usize::from(pairs.max(self.settings().pairs));
        let own: Vec<_> = self.ports.iter().map(|port| port.address).collect();
        let now = clock::now();
        for (here, there) in pairs_of_ports(&own, ports, rounds) {
            let rail = self.rail(here);
            let index = self.paths.len();
            self.paths.push(Path {
                state: PathState::new(self.leads()),
                rail: *rail.as_ref().unwrap_or(&NO_RAIL),
                peer_port: there,
                pair: None,
                number: 0,
                first_packet: 0,
                remote: None,
                posted: 0,
                done: 0,
                signalled: 0,
                expected: 0,
                deadline: None,
                offer_from: now,
                pause: PAUSE.0,
                was_tried: false,
                was_up: false,
                has_carried: false,
                is_useless: false,
                reason: String::new(),
                segments: 0,
            });
            if let Err(error) = rail {
                // The peer hears why, and does not ask for it again and again.
                let text = error.text().to_string();
                self.channel.say(&Record::Useless { path: index as u8, text: text.clone() });
                self.give_up(index, text);
            }
        }
        self.peer_ports = ports.to_vec();
        self.see_settled();
        Ok(())
    }

    /// A path that one end cannot use.
    fn give_up(&mut self, index: usize, reason: String) {
        let path = &mut self.paths[index];
        (path.is_useless, path.was_tried, path.reason) = (true, true, reason);
    }

    /// The rail of a port, made when it is first needed.
    fn rail(&mut self, port: usize) -> Result<usize> {
        let port = self.ports[port].clone();
        let known = self.rails.iter().position(|rail| rail.port.name() == port.name());
        if let Some(known) = known {
            return Ok(known);
        }
        let relaxed = self.settings().is_relaxed;
        let bytes = RING_BYTES;
        let rings = [self.send_ring.ensure(bytes)?, self.receive_ring.ensure(bytes)?];
        let name = port.name();
        let named = |error: Error| error.within(format_args!("port {name} cannot be used"));
        // Segments are announced by words, which come behind them whatever the order of other writes.
        let own = port.device.register(rings[0].address(), bytes, relaxed).map_err(named)?;
        let open = port.device.register(rings[1].address(), bytes, relaxed).map_err(named)?;
        let entries = (MOST_PATHS as u32 * (SENDS + RECEIVES)).min(port.device.limits().completions);
        let completions = port.device.completions(entries).map_err(named)?;
        let (world, peer) = (self.tcp.world(), self.tcp.peer());
        let listened = Listened { socket: Weak::new(), peer, whom: world.named(&[peer]), patience: None };
        let watched = Watched::new(completions.descriptor(), &world.arena, world.rank, listened)?;
        let (local_key, ring_key) = (own.local_key(), open.remote_key());
        let rail = Rail { port, watched, completions, _registrations: [own, open], local_key, ring_key };
        self.rails.push(rail);
        Ok(self.rails.len() - 1)
    }

    fn hear_pair(&mut self, index: usize, epoch: u32, address: PairAddress) -> Result<()> {
        let todo = self.paths[index].state.hear_pair(epoch);
        if matches!(todo, Todo::Answer | Todo::Connect) {
            self.paths[index].remote = Some(address);
        }
        let outcome = match todo {
            Todo::Wrong => return Err(Error::remote("it sends a queue pair, which is not due")),
            Todo::Answer => self.make_pair(index).and_then(|()| self.connect(index)),
            Todo::Connect => self.connect(index),
            _ => Ok(()),
        };
        if let Err(error) = outcome {
            self.trouble(index, error.text());
        }
        Ok(())
    }

    /// Makes a queue pair for a path, and says so.
    fn make_pair(&mut self, index: usize) -> Result<()> {
        let (partition, break_every) = (self.settings().partition, self.settings().break_every);
        let path = &mut self.paths[index];
        (path.posted, path.done, path.signalled, path.expected) = (0, 0, 0, 0);
        (path.was_up, path.has_carried) = (false, false);
        let Some(rail) = self.rails.get_mut(path.rail) else {
            return Err(Error::new(ErrorKind::System, path.reason.clone()));
        };
        let shape = PairShape {
            port: rail.port.number,
            sends: SENDS,
            receives: RECEIVES,
            inline_bytes: INLINE_BYTES,
            partition,
        };
        let mut pair = rail.completions.pair(shape)?;
        if break_every > 0 {
            pair = Box::new(Breaking::new(pair, break_every));
        }
        pair.expect(RECEIVES)?;
        (path.number, path.expected) = (pair.number(), RECEIVES);
        path.pair = Some(pair);
        // Packets of an earlier connection, if there are any left, should have other numbers.
        path.first_packet = (clock::wall_ns() >> 4) as u32 & 0xff_ffff;
        let address = PairAddress {
            number: path.number,
            first_packet: path.first_packet,
            ring: self.receive_ring.start().address() as u64,
            key: rail.ring_key,
        };
        let record = Record::Pair { path: index as u8, epoch: path.state.epoch(), address };
        self.channel.say(&record);
        Ok(())
    }

    /// Connects a path's queue pair with the peer's, and says so.
    fn connect(&mut self, index: usize) -> Result<()> {
        let settings = self.settings().clone();
        let path = &mut self.paths[index];
        let peer = self.peer_ports[path.peer_port];
        let (Some(pair), Some(remote), Some(rail)) = (&mut path.pair, path.remote, self.rails.get(path.rail))
        else {
            return Err(Error::internal("a path that is to be connected and has no queue pair"));
        };
        let own = rail.port.address;
        let connection = Connection {
            pair: remote.number,
            gid: peer.gid,
            lid: peer.lid,
            is_global: own.kind != GidKind::InfiniBand || settings.gid_index.is_some(),
            gid_index: rail.port.gid_index,
            // Both ends must use the same.
            mtu: own.mtu.min(peer.mtu).into(),
            own_packet: path.first_packet,
            peer_packet: remote.first_packet,
            retries: settings.retries,
            timeout: settings.timeout,
            service_level: settings.service_level,
            traffic_class: settings.traffic_class,
        };
        pair.connect(&connection)?;
        let epoch = path.state.epoch();
        self.channel.say(&Record::Ready { path: index as u8, epoch });
        Ok(())
    }

    /// Both ends are connected; whether the network lets packets of the path's size through is another question.
    fn try_packet(&mut self, index: usize) {
        let path = &mut self.paths[index];
        path.deadline = Some(clock::now() + TRIAL_PATIENCE);
        let offset = SLOTS * SLOT_BYTES;
        let source = self.send_ring.start().address() + offset;
        let bytes = self.packet_bytes(index);
        self.write(index, source, (offset, bytes), None, true);
    }

    /// The most bytes of one packet on a path.
    fn packet_bytes(&self, index: usize) -> u32 {
        let path = &self.paths[index];
        let own = self.rails.get(path.rail).map_or(1, |rail| rail.port.address.mtu);
        128 << own.min(self.peer_ports[path.peer_port].mtu)
    }

    /// Something is wrong with a path: this end closes it.
    pub(super) fn trouble(&mut self, index: usize, why: &str) {
        if self.paths[index].state.trouble() == Todo::Drain {
            self.drain(index, why);
        }
    }

    fn drain(&mut self, index: usize, why: &str) {
        let path = &mut self.paths[index];
        path.reason = why.to_string();
        path.deadline = Some(clock::now() + DRAIN_PATIENCE);
        // One that was never connected got nothing, and may keep its requests for ever.
        let was_connected = path.remote.is_some();
        let failed = path.pair.as_mut().is_none_or(|pair| !was_connected || pair.fail().is_err());
        if failed {
            self.drained(index);
        } else {
            self.see_drained(index);
        }
    }

    /// All requests of a queue pair in error come back: then everything that has arrived is known.
    pub(super) fn see_drained(&mut self, index: usize) {
        if self.paths[index].expected == 0 {
            self.drained(index);
        }
    }

    fn drained(&mut self, index: usize) {
        let path = &mut self.paths[index];
        path.pair = None;
        (path.number, path.remote, path.deadline) = (0, None, None);
        let (epoch, have) = (path.state.epoch(), self.receives.have());
        self.channel.say(&Record::Closed { path: index as u8, epoch, have });
        let todo = self.paths[index].state.drained();
        // A credit may have been lost with the path, and stands in that record.
        self.receives.tell(have.consumed);
        if let Todo::TakeBack(have) = todo
            && let Err(error) = self.take_back(index, have)
        {
            self.end_wrong(error.text());
        }
    }

    /// Both ends of a path are closed: what the peer has not got by it goes another way.
    fn take_back(&mut self, index: usize, have: Have) -> Result<()> {
        let Some(count) = self.sends.take_back(index as u8, have) else {
            return Err(Error::remote("it has consumed more than was sent, which cannot be"));
        };
        // Who leaves takes its end down and does not say so; of those who do, this is the one line.
        let (name, path) = (self.path_name(index), &mut self.paths[index]);
        if path.was_up {
            self.tcp.world().count_paths(|paths| {
                paths.failed += 1;
                paths.segments_again += count as u64;
            });
            telemetry::warn(&format!("{name} was down: {}; {count} segments go again", path.reason));
        } else {
            say(format_args!("{name} cannot be used: {}", path.reason));
        }
        path.was_tried = true;
        if path.has_carried {
            path.pause = PAUSE.0;
        }
        path.offer_from = clock::now() + path.pause;
        path.pause = (path.pause * 2).min(PAUSE.1);
        self.see_settled();
        Ok(())
    }

    /// What time brings.
    fn see_after_paths(&mut self) {
        let now = clock::now();
        let looks = now - self.ports_seen >= PORTS_EVERY;
        if looks {
            self.ports_seen = now;
            for news in self.rails.iter().flat_map(|rail| rail.port.device.news()) {
                say(format_args!("NET/IB : {news}"));
            }
        }
        for index in 0..self.paths.len() {
            let path = &self.paths[index];
            let is_late = path.deadline.is_some_and(|deadline| now > deadline);
            match path.state.stage() {
                Stage::Draining if is_late => self.drained(index),
                Stage::Trying if is_late => {
                    let why = self.nothing_passes(index);
                    self.trouble(index, &why);
                }
                Stage::Idle if self.may_offer(index) && now >= path.offer_from => self.offer(index),
                Stage::Up if looks && self.port_is_down(index) => self.trouble(index, "its port is down"),
                _ => {}
            }
        }
    }

    fn may_offer(&self, index: usize) -> bool {
        let path = &self.paths[index];
        path.state.may_offer() && !path.is_useless
    }

    fn nothing_passes(&self, index: usize) -> String {
        format!(
            "no answer to a packet of {} bytes within {TRIAL_PATIENCE:?}: see whether the ports' addresses reach each other (ping -M do -s {0}), that \
             switches and interfaces on the way let packets of that size through, and UDP port 4791 for RoCE v2, and whether partition keys \
             are the same",
            self.packet_bytes(index)
        )
    }

    fn port_is_down(&self, index: usize) -> bool {
        let Some(rail) = self.rails.get(self.paths[index].rail) else { return true };
        let LocalPort { device, number, .. } = &rail.port;
        !device.is_active(*number).unwrap_or(false)
    }

    fn offer(&mut self, index: usize) {
        if self.paths[index].was_tried && self.port_is_down(index) {
            let path = &mut self.paths[index];
            path.offer_from = clock::now() + path.pause;
            return;
        }
        self.paths[index].state.offer();
        if let Err(error) = self.make_pair(index) {
            // The peer has not heard of it, and must: epochs are counted on both ends.
            self.paths[index].reason = error.text().to_string();
            self.channel.say(&Record::Pair {
                path: index as u8,
                epoch: self.paths[index].state.epoch(),
                address: PairAddress { number: 0, first_packet: 0, ring: 0, key: 0 },
            });
            self.trouble(index, error.text());
        }
    }

    /// All paths have been tried once: from now on messages go by those that are up.
    fn see_settled(&mut self) {
        if self.is_settled || !self.paths.iter().all(|path| path.was_tried) {
            return;
        }
        self.is_settled = true;
        let useful = self.paths.iter().filter(|path| path.state.stage() == Stage::Up).count();
        if useful == 0 && self.settings().is_required {
            self.end_required();
        } else if useful < self.paths.len().max(1) {
            let whom = self.tcp.world().named(&[self.tcp.peer()]);
            let instead = if useful == 0 {
                "no path".to_string()
            } else {
                format!("only {useful} of {} paths", self.paths.len())
            };
            let tcp = if useful == 0 { ", so TCP is used" } else { "" };
            telemetry::warn(&format!("RDMA: {instead} to {whom}{tcp}: {}", self.reasons()));
        }
    }

    fn reasons(&self) -> String {
        let mut reasons: Vec<_> = self.paths.iter().map(|path| path.reason.as_str()).collect();
        reasons.retain(|reason| !reason.is_empty());
        reasons.dedup();
        if reasons.is_empty() {
            "its ports and those of this host are of different kinds (InfiniBand, RoCE v1, v2)".to_string()
        } else {
            reasons.join("; ")
        }
    }

    /// There is no path where one is required.
    pub(super) fn end_required(&mut self) {
        let (whom, why) = (self.tcp.world().named(&[self.tcp.peer()]), self.reasons());
        let text =
            format!("ACCL_REQUIRE_PATH=rdma, but no path leads to {whom}: {why}; unset it to go by TCP");
        self.failure.get_or_insert_with(|| Error::remote(text));
    }

    fn path_name(&self, index: usize) -> String {
        let path = &self.paths[index];
        let port = self.rails.get(path.rail).map_or_else(|| "?".to_string(), |rail| rail.port.describe());
        let world = self.tcp.world();
        format!("RDMA path {index} of rank {} to rank {} by {port}", world.rank, self.tcp.peer())
    }

    /// If a path is up now, that is said.
    pub(super) fn see_up(&mut self, index: usize) {
        let path = &mut self.paths[index];
        if path.state.stage() != Stage::Up {
            return;
        }
        let again = path.was_tried;
        (path.was_tried, path.was_up) = (true, true);
        self.tcp.world().count_paths(|paths| paths.came_up += 1);
        path.reason.clear();
        let name = self.path_name(index);
        say(format_args!("{name} is up{}", if again { " again" } else { "" }));
        self.see_settled();
    }
}

fn say(text: std::fmt::Arguments<'_>) {
    log::info(subsystem::INIT | subsystem::NET, text);
}

/// Which port here goes with which one there, as both ends must come to it: each round by all ports of the end that has more.
fn pairs_of_ports(own: &[PortAddress], peer: &[PortAddress], rounds: usize) -> Vec<(usize, usize)> {
    let fits = |here: usize, there: usize| own[here].kind == peer[there].kind;
    let most = if own.is_empty() || peer.is_empty() { 0 } else { own.len().max(peer.len()) };
    let one_round = (0..most).map(|index| (index % own.len(), index % peer.len()));
    let fitting: Vec<_> = one_round.filter(|(here, there)| fits(*here, *there)).collect();
    fitting.iter().cycle().take(fitting.len() * rounds).take(MOST_PATHS).copied().collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::driver::verbs::Gid;

    #[test]
    fn both_ends_come_to_the_same_pairs_of_ports() {
        let port = |kind| PortAddress { gid: Gid::default(), lid: 0, mtu: 5, kind };
        let (v2, v1) = (port(GidKind::RoceV2), port(GidKind::RoceV1));
        assert_eq!(pairs_of_ports(&[v2, v2], &[v2, v2], 2), [(0, 0), (1, 1), (0, 0), (1, 1)]);
        assert_eq!(pairs_of_ports(&[v2, v2, v2], &[v2], 1), [(0, 0), (1, 0), (2, 0)]);
        assert_eq!(pairs_of_ports(&[v2], &[v2, v2, v2], 1), [(0, 0), (0, 1), (0, 2)]);
        assert_eq!(pairs_of_ports(&[v1, v2], &[v2, v2], 1), [(1, 1)]);
        assert_eq!(pairs_of_ports(&[v1], &[v2], 3), []);
        assert_eq!(pairs_of_ports(&[], &[v2], 3), []);
        assert_eq!(pairs_of_ports(&[v2; 8], &[v2; 8], 9).len(), MOST_PATHS);
    }
}
