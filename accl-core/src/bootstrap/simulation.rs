//! Thousands of ranks join through the real root and the real shelves, over a network in memory, in virtual time.
//!
//! A message costs the sender's processor and its network port (one after the other for each process), then the way,
//! then the receiver's processor. Sizes are those of the real frames. The proofs are not computed here, but their
//! messages are sent. With a way of 1 and all else free, the time is the number of rounds.

use super::root::{Connection, JoinRequest, Outbox, Root};
use super::tree::{ARITY, STAR_RANKS, Shelf};
use super::wire::{Message, PeerRecord};
use crate::os::clock;
use crate::topo::Place;
use std::collections::{BTreeMap, BinaryHeap};
use std::net::IpAddr;
use std::time::{Duration, Instant};

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

/// Node 0 is the root's service; node 1 + p is process p, its service and its ranks.
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
    root: Root,
    shelves: Vec<Shelf>,
    loads: Vec<Load>,
    /// The ranks that look at the shelf of their own process.
    lookers: BTreeMap<Node, Vec<usize>>,
    records: Vec<PeerRecord>,
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
    let port = 30_000 + (process % 8) as u16;
    PeerRecord { place, host_id: None, port, addresses, host: format!("node-{host:05}.cluster") }
}

impl Simulation {
    fn new(ranks: usize, ranks_per_process: usize, costs: Costs) -> Self {
        let processes = ranks.div_ceil(ranks_per_process);
        Self {
            costs,
            ranks_per_process,
            begin: clock::now(),
            now: 0,
            order: 0,
            events: BinaryHeap::new(),
            messages: Vec::new(),
            root: Root::new(),
            shelves: (0..=processes).map(|_| Shelf::default()).collect(),
            loads: vec![Load::default(); processes + 1],
            lookers: BTreeMap::new(),
            records: (0..ranks).map(|rank| record(rank, ranks_per_process)).collect(),
            verdicts: vec![None; ranks],
            listed: vec![false; ranks],
            dies: None,
            cut_off: None,
        }
    }

    fn node_of(&self, rank: usize) -> Node {
        1 + rank / self.ranks_per_process
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
            self.at(0, Event::Come { rank, to: 0 });
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
                vec![(connection, Message::Challenge { nonce: [0; 16], proof: [0; 32] })]
            }
            Message::Join { ranks, rank, version, patience_ms, record } => {
                let join = JoinRequest { ranks, rank, version, patience_ms, record };
                self.root.handle_join(connection, join, now)
            }
            Message::Ready(failure) => self.root.handle_ready(connection, failure, now),
            Message::Fetch if to == 0 => self.root.handle_fetch(connection),
            Message::Fetch => self.shelves[to].handle_fetch(connection),
            _ => Outbox::new(),
        };
        self.post(to, outbox);
    }

    /// What a rank does.
    fn hear(&mut self, rank: usize, by: Node, message: Message) {
        let node = self.node_of(rank);
        match message {
            Message::Challenge { .. } => {
                self.say(rank, by, Message::Proof([0; 32]));
                let next = if by == 0 {
                    let record = self.records[rank].clone();
                    let ranks = self.records.len() as u32;
                    Message::Join { ranks, rank: rank as u32, version: 1, patience_ms: 0, record }
                } else {
                    Message::Fetch
                };
                self.say(rank, by, next);
            }
            Message::Roster(_) | Message::Seek(_) if self.dies == Some(rank) => {
                let now = self.begin + Duration::from_nanos(self.now);
                let outbox = self.root.handle_closed(rank as u64, now);
                self.post(0, outbox);
            }
            Message::Roster(roster) => {
                self.listed[rank] = roster[..] == self.records[..];
                let outbox = self.shelves[node].handle_roster(roster);
                self.post(node, outbox);
                self.say(rank, 0, Message::Ready(None));
                for looker in self.lookers.remove(&node).unwrap_or_default() {
                    self.look(looker);
                }
            }
            Message::Seek(Some(_)) if self.cut_off == Some(rank) => self.say(rank, 0, Message::Fetch),
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
            self.say(rank, 0, Message::Ready(None));
        } else {
            self.lookers.entry(node).or_default().push(rank);
        }
    }

    fn busiest_bytes(&self) -> u64 {
        self.loads.iter().map(|load| load.sent_bytes).max().unwrap()
    }
}

fn joined(ranks: usize, ranks_per_process: usize, costs: Costs) -> Simulation {
    let mut simulation = Simulation::new(ranks, ranks_per_process, costs);
    simulation.run();
    assert!(simulation.verdicts.iter().all(|verdict| *verdict == Some(Message::Go)));
    assert!(simulation.listed.iter().all(|listed| *listed));
    simulation
}

#[test]
fn bytes_grow_with_the_ranks_and_rounds_with_their_logarithm() {
    println!(
        "ranks  a process  rounds  ms     root bytes  a rank  busiest bytes  root messages  all messages a rank"
    );
    for ranks_per_process in [1, 8] {
        for ranks in [2, 31, 256, 1024, 4096] {
            let rounds = joined(ranks, ranks_per_process, ROUNDS).now;
            let run = joined(ranks, ranks_per_process, REALISTIC);
            let (root, busiest) = (run.loads[0], run.busiest_bytes());
            let all: u64 = run.loads.iter().map(|load| load.sent_messages).sum();
            println!(
                "{ranks:5}  {ranks_per_process:9}  {rounds:6}  {:5.2}  {:10}  {:6}  {busiest:13}  {:13}  {:.1}",
                run.now as f64 / 1e6,
                root.sent_bytes,
                root.sent_bytes / ranks as u64,
                root.sent_messages,
                all as f64 / ranks as f64,
            );
            assert!(busiest <= BYTES_PER_RANK * ranks as u64, "{busiest} bytes, {ranks} ranks");
            // A message each for the greeting's answer, the list or its place, and the verdict.
            assert_eq!(root.sent_messages, 3 * ranks as u64);
            // Six for the star; three to greet another process, and one for each further level of processes.
            let levels = (ranks as f64).log(ARITY as f64);
            assert!(rounds as f64 <= 9.0 + levels, "{rounds} rounds, {ranks} ranks");
        }
    }
}

#[test]
fn a_rank_that_leaves_in_the_middle_is_everybodys_verdict() {
    // One that others get the list from, and one that nobody does.
    for dies in [3, 255] {
        let mut simulation = Simulation::new(256, 1, REALISTIC);
        simulation.dies = Some(dies);
        simulation.run();
        for verdict in &simulation.verdicts {
            let Some(Message::Failure(_, text)) = verdict else { panic!("{verdict:?}") };
            assert!(text.starts_with(&format!("rank {dies} (process {}", 1000 + dies)), "{text}");
        }
    }
}

#[test]
fn a_rank_that_cannot_reach_another_process_gets_the_list_from_the_root() {
    let mut simulation = Simulation::new(256, 2, REALISTIC);
    simulation.cut_off = Some(100);
    simulation.run();
    assert!(simulation.verdicts.iter().all(|verdict| *verdict == Some(Message::Go)));
    assert!(simulation.listed.iter().all(|listed| *listed));
}
