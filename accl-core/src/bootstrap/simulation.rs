//! Thousands of ranks join through the real root and the real shelves, over a network in memory, in virtual time.
//!
//! A message costs the sender's processor and its network port (one after the other for each process), then the way,
//! then the receiver's processor. Sizes are those of the real frames. The proofs are not computed here, but their
//! messages are sent. With a way of 1 and all else free, the time is the number of rounds.

use super::auth::Proof;
use super::root::{Connection, JoinRequest, Outbox, Root};
use super::share::{Heard, Side, pass_on, ranks_of, share_of};
use super::tree::{ARITY, STAR_RANKS, Shelf};
use super::wire::{Message, PeerRecord};
use crate::error::Error;
use crate::os::clock;
use crate::topo::{Place, Uplink};
use std::collections::{BTreeMap, BinaryHeap};
use std::net::IpAddr;
use std::time::{Duration, Instant};

/// Not computed here.
const PROOF: Proof = Proof { secret: [0; 32], key: None };
/// Bytes that the busiest process sends for each rank at most: the list of all up to `STAR_RANKS` times, 24 bytes for a
/// rank of the hosts below, and what is said to each rank alone.
const BYTES_PER_RANK: u64 = 24 * STAR_RANKS as u64 + 250;

/// What things cost, in nanoseconds.
#[derive(Clone, Copy)]
struct Costs {
    way: u64,
    message: u64,
    /// For 1024 bytes.
    kibibyte: u64,
}

const ROUNDS: Costs = Costs { way: 1, message: 0, kibibyte: 0 };
/// 50 µs of way, 5 µs for a message, 1.25 GB/s.
const REALISTIC: Costs = Costs { way: 50_000, message: 5_000, kibibyte: 819 };

/// The services of the roots come first, then the processes: their services and their ranks.
type Node = usize;

#[derive(PartialEq, Eq, PartialOrd, Ord)]
enum Event {
    /// A rank opens a connection to a node.
    Come { rank: usize, to: Node },
    /// Something arrives at the service of `to`, for which that has a connection.
    Heard { to: Node, connection: Connection, what: usize },
    /// Something arrives at a rank.
    Told { rank: usize, by: Node, what: usize },
}

#[derive(Default, Clone, Copy)]
struct Load {
    sent_bytes: u64,
    sent_messages: u64,
    busy_until: u64,
}

struct Simulation {
    costs: Costs,
    ranks_per_process: usize,
    begin: Instant,
    now: u64,
    order: u64,
    events: BinaryHeap<std::cmp::Reverse<(u64, u64, Event)>>,
    messages: Vec<Message>,
    roots: Vec<Root>,
    shelves: Vec<Shelf>,
    loads: Vec<Load>,
    /// The ranks that look at the shelf of their own process.
    lookers: BTreeMap<Node, Vec<usize>>,
    records: Vec<PeerRecord>,
    /// What delegates that have not yet joined the other root are told meanwhile.
    unheard: BTreeMap<usize, Vec<Message>>,
    /// The verdict of each rank, and whether it has had the right list.
    verdicts: Vec<Option<Message>>,
    listed: Vec<bool>,
    /// Does not get its list, and leaves.
    dies: Option<usize>,
    /// Cannot reach its parent.
    cut_off: Option<usize>,
}

fn record(rank: usize, ranks_per_process: usize) -> PeerRecord {
    let (process, host) = (rank / ranks_per_process, rank / 8);
    let place = Place {
        kernel: host as u64 + 1,
        network: 7,
        pid_namespace: 7,
        pid: 1000 + process as u32,
        process: 0x1234_5678_9abc ^ (process as u64) << 40,
    };
    let addresses = [[10, 0, (host >> 8) as u8, host as u8], [10, 1, (host >> 8) as u8, host as u8]];
    let addresses = addresses.map(IpAddr::from).to_vec();
    let uplink = Uplink { round_trip_us: 20 + host as u32, bandwidth_mbps: 100_000 };
    let port = 30_000 + (process % 8) as u16;
    PeerRecord {
        place,
        host_id: None,
        port,
        addresses,
        host: format!("node-{host:05}.cluster"),
        uplink,
        on_device: false,
        has_verbs: false,
        plugin: 0,
    }
}

impl Simulation {
    fn new(ranks: usize, ranks_per_process: usize, ids: usize, costs: Costs) -> Self {
        let nodes = ids + ranks.div_ceil(ranks_per_process);
        Self {
            costs,
            ranks_per_process,
            begin: clock::now(),
            now: 0,
            order: 0,
            events: BinaryHeap::new(),
            messages: Vec::new(),
            roots: (0..ids).map(|_| Root::new()).collect(),
            shelves: (0..nodes).map(|_| Shelf::default()).collect(),
            loads: vec![Load::default(); nodes],
            lookers: BTreeMap::new(),
            unheard: BTreeMap::new(),
            records: (0..ranks).map(|rank| record(rank, ranks_per_process)).collect(),
            verdicts: vec![None; ranks],
            listed: vec![false; ranks],
            dies: None,
            cut_off: None,
        }
    }

    fn node_of(&self, rank: usize) -> Node {
        self.roots.len() + rank / self.ranks_per_process
    }

    fn root_of(&self, rank: usize) -> Node {
        share_of(rank as u32, self.records.len() as u32, self.roots.len() as u32) as usize
    }

    fn is_delegate(&self, rank: usize) -> bool {
        let root = self.root_of(rank);
        let ranks = ranks_of(root as u32, self.records.len() as u32, self.roots.len() as u32);
        root > 0 && ranks.start as usize == rank
    }

    fn at(&mut self, time: u64, event: Event) {
        self.order += 1;
        self.events.push(std::cmp::Reverse((time, self.order, event)));
    }

    /// The node is busy with one message of so many bytes; when it has done with it.
    fn work(&mut self, node: Node, bytes: u64) -> u64 {
        let load = &mut self.loads[node];
        let cost = self.costs.message + bytes * self.costs.kibibyte / 1024;
        load.busy_until = load.busy_until.max(self.now) + cost;
        load.busy_until
    }

    fn send(&mut self, from: Node, message: Message, event: impl FnOnce(usize) -> Event) {
        let bytes = message.encode().len() as u64;
        let load = &mut self.loads[from];
        load.sent_bytes += bytes;
        load.sent_messages += 1;
        let sent = self.work(from, bytes);
        self.messages.push(message);
        let event = event(self.messages.len() - 1);
        self.at(sent + self.costs.way, event);
    }

    /// Messages that a service has for the ranks at its connections, which bear their numbers.
    fn post(&mut self, from: Node, outbox: Outbox) {
        for (connection, message) in outbox {
            let rank = connection as usize;
            self.send(from, message, |what| Event::Told { rank, by: from, what });
        }
    }

    /// A rank says something to a service.
    fn say(&mut self, rank: usize, to: Node, message: Message) {
        let from = self.node_of(rank);
        self.send(from, message, |what| Event::Heard { to, connection: rank as u64, what });
    }

    fn run(&mut self) {
        for rank in 0..self.records.len() {
            let to = self.root_of(rank);
            self.at(0, Event::Come { rank, to });
        }
        while let Some(std::cmp::Reverse((time, _, event))) = self.events.pop() {
            self.now = time;
            match event {
                Event::Come { rank, to } => {
                    self.say(rank, to, Message::Hello { protocol: 3, token: [0; 16], nonce: [0; 16] });
                }
                Event::Heard { to, connection, what } => {
                    self.now = self.work(to, 0);
                    let message = self.messages[what].clone();
                    self.serve(to, connection, message);
                }
                Event::Told { rank, by, what } => {
                    let node = self.node_of(rank);
                    self.now = self.work(node, 0);
                    let message = self.messages[what].clone();
                    self.hear(rank, by, message);
                }
            }
        }
    }

    /// What the worker of a service does.
    fn serve(&mut self, to: Node, connection: Connection, message: Message) {
        let now = self.begin + Duration::from_nanos(self.now);
        let outbox = match message {
            Message::Hello { .. } => {
                vec![(connection, Message::Challenge { nonce: [0; 16], proof: PROOF })]
            }
            Message::Join { ranks, rank, ids, stands, version, patience_ms, record } => {
                let join = JoinRequest { ranks, rank, ids, stands, version, patience_ms, record };
                self.roots[to].handle_join(connection, join, now)
            }
            Message::Ready(failure) => self.roots[to].handle_ready(connection, failure, now),
            Message::Share(list) => self.roots[to].handle_share(connection, list, now),
            Message::Go => self.roots[to].handle_verdict(connection, None, now),
            Message::Failure(kind, text) => {
                self.roots[to].handle_verdict(connection, Some(Error::new(kind, text)), now)
            }
            Message::Fetch if to < self.roots.len() => self.roots[to].handle_fetch(connection, now),
            Message::Fetch => self.shelves[to].handle_fetch(connection),
            _ => Outbox::new(),
        };
        self.post(to, outbox);
    }

    /// What a rank does.
    fn hear(&mut self, rank: usize, by: Node, message: Message) {
        let (node, root) = (self.node_of(rank), self.root_of(rank));
        let mut message = message;
        if let (true, Some(unheard)) = (by == root, self.unheard.get_mut(&rank)) {
            unheard.push(message);
            return;
        }
        if self.is_delegate(rank) && by < self.roots.len() && !matches!(message, Message::Challenge { .. }) {
            let side = if by == root { Side::Branch } else { Side::Trunk };
            let (said, heard) = pass_on(side, message);
            if let Some(said) = said {
                self.say(rank, if side == Side::Branch { 0 } else { root }, said);
            }
            let (Heard::List(heard) | Heard::Verdict(heard)) = heard else { return };
            message = heard;
        }
        match message {
            Message::Challenge { .. } => {
                self.say(rank, by, Message::Proof(PROOF));
                let next = if by < self.roots.len() {
                    let record = self.records[rank].clone();
                    let (ranks, ids) = (self.records.len() as u32, self.roots.len() as u32);
                    let (rank, stands) = (rank as u32, by != root);
                    Message::Join { ranks, rank, ids, stands, version: 1, patience_ms: 0, record }
                } else {
                    Message::Fetch
                };
                self.say(rank, by, next);
                if self.is_delegate(rank) && by == root {
                    self.at(self.now, Event::Come { rank, to: 0 });
                    self.unheard.insert(rank, Vec::new());
                } else if self.is_delegate(rank) && by == 0 {
                    for message in self.unheard.remove(&rank).unwrap_or_default() {
                        self.hear(rank, root, message);
                    }
                }
            }
            Message::Roster(_) | Message::Seek(_) if self.dies == Some(rank) => {
                let now = self.begin + Duration::from_nanos(self.now);
                for node in [Some(root), self.is_delegate(rank).then_some(0)].into_iter().flatten() {
                    let outbox = self.roots[node].handle_closed(rank as u64, now);
                    self.post(node, outbox);
                }
            }
            Message::Roster(roster) => {
                self.listed[rank] = roster[..] == self.records[..];
                let outbox = self.shelves[node].handle_roster(roster);
                self.post(node, outbox);
                self.say(rank, root, Message::Ready(None));
                for looker in self.lookers.remove(&node).unwrap_or_default() {
                    self.look(looker);
                }
            }
            Message::Seek(Some(_)) if self.cut_off == Some(rank) => self.say(rank, root, Message::Fetch),
            Message::Seek(Some(parent)) => {
                let at = self.records.iter().position(|record| record.place.shares_process(&parent.place));
                let to = self.node_of(at.unwrap());
                self.at(self.now, Event::Come { rank, to });
            }
            Message::Seek(None) => self.look(rank),
            verdict => {
                assert!(self.verdicts[rank].is_none(), "rank {rank} hears two verdicts");
                self.verdicts[rank] = Some(verdict);
            }
        }
    }

    fn look(&mut self, rank: usize) {
        let node = self.node_of(rank);
        if let Some(roster) = self.shelves[node].roster() {
            self.listed[rank] = roster[..] == self.records[..];
            self.say(rank, self.root_of(rank), Message::Ready(None));
        } else {
            self.lookers.entry(node).or_default().push(rank);
        }
    }

    fn busiest_bytes(&self) -> u64 {
        self.loads.iter().map(|load| load.sent_bytes).max().unwrap()
    }
}

fn joined(ranks: usize, ranks_per_process: usize, ids: usize, costs: Costs) -> Simulation {
    let mut simulation = Simulation::new(ranks, ranks_per_process, ids, costs);
    simulation.run();
    assert!(simulation.verdicts.iter().all(|verdict| *verdict == Some(Message::Go)));
    assert!(simulation.listed.iter().all(|listed| *listed));
    simulation
}

/// Prints and returns the rounds, and the run at realistic costs.
fn measured(ranks: usize, ranks_per_process: usize, ids: usize) -> (u64, Simulation) {
    let rounds = joined(ranks, ranks_per_process, ids, ROUNDS).now;
    let run = joined(ranks, ranks_per_process, ids, REALISTIC);
    let messages = |load: &Load| load.sent_messages;
    println!(
        "{ranks:5} {ranks_per_process:9} {ids:4} {rounds:7} {:8.2} {:11} {:7} {:14} {:14} {:20.1}",
        run.now as f64 / 1e6,
        run.loads[0].sent_bytes,
        run.loads[0].sent_bytes / ranks as u64,
        run.busiest_bytes(),
        run.loads[0].sent_messages,
        run.loads.iter().map(messages).sum::<u64>() as f64 / ranks as f64,
    );
    (rounds, run)
}

#[test]
fn bytes_grow_with_the_ranks_and_rounds_with_their_logarithm() {
    println!(
        "ranks a process  ids  rounds       ms  root bytes  a rank  busiest bytes  root messages  all messages a rank"
    );
    for ranks_per_process in [1, 8] {
        for ranks in [2, 31, 256, 1024, 4096] {
            let (rounds, run) = measured(ranks, ranks_per_process, 1);
            let busiest = run.busiest_bytes();
            assert!(busiest <= BYTES_PER_RANK * ranks as u64, "{busiest} bytes, {ranks} ranks");
            // A message each for the greeting's answer, the list or its place, and the verdict.
            assert_eq!(run.loads[0].sent_messages, 3 * ranks as u64);
            // Six for the star; three to greet another process, and one for each further level of processes.
            let levels = (ranks as f64).log(ARITY as f64);
            assert!(rounds as f64 <= 9.0 + levels, "{rounds} rounds, {ranks} ranks");
        }
    }
}

#[test]
fn several_ids_share_the_work_of_the_root() {
    let (_, one) = measured(4096, 1, 1);
    for ids in [4, 16, 64] {
        let (rounds, several) = measured(4096, 1, ids);
        assert!(several.now * 2 < one.now, "{} ns by one id, {} by {ids}", one.now, several.now);
        assert!(several.busiest_bytes() <= BYTES_PER_RANK * 4096);
        // The delegate greets a second root, carries the list there, "ready", and the verdict back; and two trees.
        let levels = 4096f64.log(ARITY as f64);
        assert!(rounds as f64 <= 17.0 + 2.0 * levels, "{rounds} rounds");
        for root in &several.loads[..ids] {
            assert!(root.sent_messages <= 3 * (4096 / ids + ids) as u64 + 1, "{}", root.sent_messages);
        }
    }
    for ids in [1, 3, 7, 31] {
        joined(31, 2, ids, REALISTIC);
    }
}

#[test]
fn a_rank_that_leaves_in_the_middle_is_everybodys_verdict() {
    // One that others get the list from, one that nobody does, and (of the last ids) one that stands for others.
    for (dies, ids) in [(3, 1), (255, 1), (3, 4), (64, 4), (70, 4), (255, 4)] {
        let mut simulation = Simulation::new(256, 1, ids, REALISTIC);
        simulation.dies = Some(dies);
        simulation.run();
        for (rank, verdict) in simulation.verdicts.iter().enumerate() {
            let Some(Message::Failure(_, text)) = verdict else { panic!("rank {rank}: {verdict:?}") };
            assert!(text.starts_with(&format!("rank {dies} (process {}", 1000 + dies)), "{text}");
        }
    }
}

#[test]
fn a_rank_that_cannot_reach_another_process_gets_the_list_from_the_root() {
    let mut simulation = Simulation::new(256, 2, 1, REALISTIC);
    simulation.cut_off = Some(100);
    simulation.run();
    assert!(simulation.verdicts.iter().all(|verdict| *verdict == Some(Message::Go)));
    assert!(simulation.listed.iter().all(|listed| *listed));
}
