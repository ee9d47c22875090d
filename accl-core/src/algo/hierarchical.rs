//! Hierarchical: ranks of a host fold among themselves, one of them carries the result between the hosts, and hands on
//! what comes back. Each byte crosses the network once for each host that needs it.
//!
//! Between the hosts goes a plan of another algorithm, for a *team* of one rank from each host: it is made as if the team
//! were all there is, and then rewritten ([`embed`]) for the ranks and for what each of them brings: its own input, or
//! what it has folded of its host's. Large AllReduces have several teams, each with a share of the elements, so that all
//! ranks of a host work.
//!
//! ReduceScatter and AllGather need no team: what a host has folded for a rank goes straight to that rank, and a block
//! goes straight to one rank of each other host, which hands it on. Among many hosts both go around (`host_ring`).

use super::chunk::{segment, segments};
use super::{Algorithm, Buffer, Operand, Plan, Request, Span, Step};
use super::{all_to_all, host_ring};
use crate::types::{Collective, Rank};
use std::ops::Range;

/// Segments of a window: so much goes through all stages before the next begins.
const WINDOW: usize = 8;

/// How many segments of an AllGather are one where all hosts have one rank: 1 MiB, where 256 KiB are 12 % slower.
const LONE_SEGMENTS: usize = 4;

/// Which ranks share a host.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Layout {
    pub(super) hosts: Vec<Vec<Rank>>,
    pub(super) host_of: Vec<usize>,
}

impl Layout {
    /// The layout in which ranks with equal names share a host. Hosts are in the order of their first ranks.
    pub fn of<T: PartialEq>(names: &[T]) -> Self {
        let (mut hosts, mut host_of): (Vec<Vec<Rank>>, Vec<usize>) = (Vec::new(), Vec::new());
        for (rank, name) in names.iter().enumerate() {
            let known = hosts.iter().position(|ranks| names[ranks[0]] == *name);
            let host = known.unwrap_or_else(|| {
                hosts.push(Vec::new());
                hosts.len() - 1
            });
            hosts[host].push(rank);
            host_of.push(host);
        }
        Self { hosts, host_of }
    }

    /// The ranks of each host.
    pub fn hosts(&self) -> &[Vec<Rank>] {
        &self.hosts
    }

    pub(super) fn neighbours(&self, rank: Rank) -> &[Rank] {
        &self.hosts[self.host_of[rank]]
    }

    /// In what form `rank` brings its host's data to others: folded, unless there is nobody to fold with.
    fn brings(&self, rank: Rank) -> Buffer {
        if self.neighbours(rank).len() == 1 { Buffer::Input } else { Buffer::Partial }
    }

    /// What the ranks of a host bring to `rank`, one of them: the same elements of each one's input.
    pub(super) fn everybody(&self, rank: Rank, own: Span) -> impl Iterator<Item = Operand> {
        self.neighbours(rank).iter().map(move |peer| {
            if *peer == rank { Operand::Local(own) } else { Operand::Peer(*peer, Buffer::Input) }
        })
    }

    /// The rank of `host` that stands for it where `rank` is concerned: the same for none of a host's ranks more often
    /// than needed.
    fn agent(&self, host: usize, rank: Rank) -> Rank {
        let place = self.neighbours(rank).iter().position(|one| *one == rank).unwrap_or(0);
        self.hosts[host][place % self.hosts[host].len()]
    }
}

/// True if there is a plan for operations of `kind` that `between` carries from host to host.
pub(super) fn serves(kind: Collective, between: Algorithm) -> bool {
    match kind {
        Collective::AllToAll | Collective::AllGather | Collective::ReduceScatter => {
            matches!(between, Algorithm::Direct | Algorithm::Ring)
        }
        Collective::AllReduce | Collective::Reduce | Collective::Broadcast => between.serves(kind),
        Collective::Gather | Collective::Scatter | Collective::Split => false,
    }
}

/// `between` carries AllReduce, Reduce and Broadcast from host to host; with [`Algorithm::Ring`] there are as many teams
/// as the smallest host has ranks.
pub(super) fn plan(request: &Request, layout: &Layout, between: Algorithm, plan: &mut Plan) {
    // One host is no ring.
    let around = between == Algorithm::Ring && layout.hosts.len() > 1;
    match request.kind {
        Collective::AllToAll if between == Algorithm::Ring => all_to_all::rotated(request, plan),
        Collective::AllToAll => all_to_all::gathered(request, layout, plan),
        Collective::ReduceScatter if around => {
            host_ring::reduce_scatter(request, layout, plan);
        }
        Collective::AllGather if around => host_ring::all_gather(request, layout, plan),
        Collective::ReduceScatter => reduce_scatter(request, layout, plan),
        Collective::AllGather => all_gather(request, layout, plan),
        Collective::AllReduce => {
            let smallest = layout.hosts.iter().map(Vec::len).min().unwrap_or(1);
            let teams = if between == Algorithm::Ring { smallest } else { 1 };
            Teams { request, layout, between, teams }.all_reduce(plan);
        }
        _ => Teams { request, layout, between, teams: 1 }.rooted(plan),
    }
}

/// Operations by teams.
struct Teams<'a> {
    request: &'a Request,
    layout: &'a Layout,
    between: Algorithm,
    teams: usize,
}

impl Teams<'_> {
    /// The rank of each host that is in a team; where there is a root, it stands for its host.
    fn team(&self, number: usize) -> Vec<Rank> {
        let root = self.request.kind.has_root().then_some(self.request.root);
        let member = |ranks: &Vec<Rank>| {
            ranks.iter().copied().find(|rank| Some(*rank) == root).unwrap_or(ranks[number])
        };
        self.layout.hosts.iter().map(member).collect()
    }

    /// The elements that a team carries in a window.
    fn part(&self, number: usize, window: usize, window_elems: usize) -> Range<usize> {
        let share = Request { ranks: self.teams, ..*self.request }.chunk(number);
        segment(&share, window_elems, window)
    }

    /// Elements of a window: the ring of an AllReduce cuts it into a segment for each host.
    fn window_elems(&self) -> usize {
        let cut = self.request.kind == Collective::AllReduce && self.between == Algorithm::Ring;
        self.request.segment_elems * if cut { self.layout.hosts.len() } else { WINDOW }
    }

    fn all_reduce(&self, plan: &mut Plan) {
        let (request, size) = (self.request, self.window_elems());
        let locals = self.layout.neighbours(request.rank);
        let host = self.layout.host_of[request.rank];
        let teams: Vec<_> = (0..self.teams).map(|number| self.team(number)).collect();
        let own = teams.iter().position(|team| team[host] == request.rank);
        let share = Request { ranks: self.teams, ..*request }.chunk(0);
        let windows = segments(&share, size);
        let others = || teams.iter().enumerate().filter(|(number, _)| Some(*number) != own);
        for window in 0..=windows {
            for (number, team) in others().filter(|_| window < windows) {
                plan.send(team[host], Span::input(self.part(number, window, size)));
            }
            // Others' results of the window before: meanwhile they have had the time to fetch them.
            if let Some(before) = window.checked_sub(1) {
                for (number, team) in others() {
                    plan.recv(team[host], Span::output(self.part(number, before, size)));
                }
            }
            if let Some(number) = own.filter(|_| window < windows) {
                let part = self.part(number, window, size);
                self.fold_and_carry(&teams[number], &part, window, plan);
                for peer in locals.iter().filter(|peer| **peer != request.rank) {
                    plan.send(*peer, Span::output(part.clone()));
                }
            }
        }
    }

    /// What a team's member does with a window: folds what its host has, and takes part between the hosts.
    fn fold_and_carry(&self, team: &[Rank], part: &Range<usize>, window: usize, plan: &mut Plan) {
        let request = self.request;
        if window > 0 {
            // Scratch memory is used again. Who was sent something from there depends on the plan between the hosts.
            team.iter().filter(|peer| **peer != request.rank).for_each(|peer| plan.drain(*peer));
        }
        let mut held = Span::input(part.clone());
        if self.layout.brings(request.rank) == Buffer::Partial {
            let operands = self.layout.everybody(request.rank, held);
            held = Span::partial(0..part.len());
            plan.partial_elems = plan.partial_elems.max(part.len());
            plan.reduce(operands, held);
        }
        self.carry(team, part, held, plan);
    }

    /// The part between the hosts, where `held` is what this rank brings.
    fn carry(&self, team: &[Rank], part: &Range<usize>, held: Span, plan: &mut Plan) {
        let request = self.request;
        let place = |rank| team.iter().position(|member| *member == rank).unwrap_or(0);
        let inner = Request {
            ranks: team.len(),
            rank: place(request.rank),
            root: if request.kind.has_root() { place(request.root) } else { 0 },
            count_elems: part.len(),
            // Scratch memory comes in segments.
            segment_elems: request.segment_elems.min(part.len().max(1)),
            ..*request
        };
        let mut between = Plan::default();
        inner.plan(self.between, &mut between);
        let brings = |member: usize| self.layout.brings(team[member]);
        embed(
            &between,
            &Embedding {
                team,
                part,
                held,
                scratch: if held.buffer == Buffer::Partial { part.len() } else { 0 },
                brings: &brings,
            },
            plan,
        );
    }

    /// Broadcast and Reduce.
    fn rooted(&self, plan: &mut Plan) {
        let (request, all) = (self.request, 0..self.request.count_elems);
        let team = self.team(0);
        let agent = team[self.layout.host_of[request.rank]];
        let others = || self.layout.neighbours(request.rank).iter().filter(|peer| **peer != agent);
        let gives = request.kind == Collective::Broadcast;
        let size = self.window_elems();
        for window in 0..segments(&all, size) {
            let part = segment(&all, size, window);
            match (request.rank == agent, gives) {
                (true, true) => {
                    self.carry(&team, &part, Span::input(part.clone()), plan);
                    let from =
                        if request.rank == request.root { Span::input(part) } else { Span::output(part) };
                    others().for_each(|peer| plan.send(*peer, from));
                }
                (true, false) => self.fold_and_carry(&team, &part, window, plan),
                (false, true) => plan.recv(agent, Span::output(part)),
                (false, false) => plan.send(agent, Span::input(part)),
            }
        }
    }
}

/// How the plan of a team becomes a part of everybody's.
struct Embedding<'a> {
    /// The rank of each of its members.
    team: &'a [Rank],
    /// The elements that are all elements to it.
    part: &'a Range<usize>,
    /// What is this member's input to it.
    held: Span,
    /// Where its scratch memory begins.
    scratch: usize,
    /// What the input of each member is.
    brings: &'a dyn Fn(usize) -> Buffer,
}

impl Embedding<'_> {
    fn span(&self, span: Span) -> Span {
        let range = |start: usize| start + span.start_elems..start + span.start_elems + span.count_elems;
        match span.buffer {
            Buffer::Input => Span {
                buffer: self.held.buffer,
                start_elems: self.held.start_elems + span.start_elems,
                ..span
            },
            Buffer::Partial => Span::partial(range(self.scratch)),
            Buffer::Output | Buffer::Staging | Buffer::Transit => Span::output(range(self.part.start)),
        }
    }

    fn operand(&self, operand: Operand) -> Operand {
        match operand {
            Operand::Local(span) => Operand::Local(self.span(span)),
            Operand::Peer(member, Buffer::Input) => Operand::Peer(self.team[member], (self.brings)(member)),
            Operand::Peer(member, buffer) => Operand::Peer(self.team[member], buffer),
            Operand::Remote(member, span) => Operand::Remote(self.team[member], self.span(span)),
        }
    }
}

/// Appends the steps of a team's plan, which has messages and local steps only.
fn embed(between: &Plan, embedding: &Embedding<'_>, plan: &mut Plan) {
    let team = embedding.team;
    for step in &between.steps {
        match step.clone() {
            Step::Send { to, span } => plan.send(team[to], embedding.span(span)),
            Step::Recv { from, span } => plan.recv(team[from], embedding.span(span)),
            Step::Drain { to } => plan.drain(team[to]),
            Step::Copy { from, to } => plan.copy(embedding.span(from), embedding.span(to)),
            Step::Reduce { operands, to } => {
                let operands = between.operands[operands].iter().map(|operand| embedding.operand(*operand));
                plan.reduce(operands, embedding.span(to));
            }
            // No plan of messages has these.
            Step::Read { .. } | Step::Tell | Step::Await { .. } => {}
        }
    }
    plan.partial_elems = plan.partial_elems.max(embedding.scratch + between.partial_elems);
}

/// What the hosts have folded for a rank goes straight to it.
fn reduce_scatter(request: &Request, layout: &Layout, plan: &mut Plan) {
    let (rank, all, size) = (request.rank, 0..request.count_elems, request.segment_elems);
    let host = layout.host_of[rank];
    let locals = layout.neighbours(rank);
    let part = |owner: Rank, index| {
        let part = segment(&all, size, index);
        let start = request.block(owner).start;
        start + part.start..start + part.end
    };
    // All go through the owners in one order, that of what they send to the same rank: those of other hosts first.
    let elsewhere = |owner: &Rank| layout.host_of[*owner] != host;
    let owners: Vec<Rank> = (0..request.ranks)
        .filter(elsewhere)
        .chain(locals.iter().copied().filter(|owner| *owner != rank))
        .collect();
    // Ranks of other hosts for whom this one folds what its host has.
    let clients: Vec<Rank> =
        (0..request.ranks).filter(elsewhere).filter(|owner| layout.agent(host, *owner) == rank).collect();
    let everybody = |owner, index| layout.everybody(rank, Span::input(part(owner, index)));
    let folds = layout.brings(rank) == Buffer::Partial;
    plan.partial_elems = if folds { clients.len() * size } else { 0 };
    for index in 0..segments(&all, size) {
        for owner in owners.iter().copied() {
            let agent = if layout.host_of[owner] == host { owner } else { layout.agent(host, owner) };
            // An agent of a host with one rank sends on what it has itself.
            if agent != rank {
                plan.send(agent, Span::input(part(owner, index)));
            } else if !folds {
                plan.send(owner, Span::input(part(owner, index)));
            }
        }
        for (slot, client) in clients.iter().enumerate().filter(|_| folds) {
            if index > 0 {
                plan.drain(*client);
            }
            let whole = part(*client, index);
            let sum = Span::partial(slot * size..slot * size + whole.len());
            plan.reduce(everybody(*client, index), sum);
            plan.send(*client, sum);
        }
        let mut operands = Vec::new();
        for number in 0..layout.hosts.len() {
            if number == host {
                operands.extend(everybody(rank, index));
            } else {
                let agent = layout.agent(number, rank);
                operands.push(Operand::Peer(agent, layout.brings(agent)));
            }
        }
        plan.reduce(operands, Span::output(segment(&all, size, index)));
    }
}

/// A block goes to one rank of each other host, which hands it on.
fn all_gather(request: &Request, layout: &Layout, plan: &mut Plan) {
    let (rank, all) = (request.rank, 0..request.count_elems);
    let host = layout.host_of[rank];
    let locals = layout.neighbours(rank);
    // Segments let ranks hand on while more comes. Where nobody does, fewer are faster: only the copy of the own block waits.
    let lone = layout.hosts.iter().all(|ranks| ranks.len() == 1);
    let size = request.segment_elems * if lone { LONE_SEGMENTS } else { 1 };
    let part = |owner: Rank, index| {
        let part = segment(&all, size, index);
        let start = request.block(owner).start;
        Span::output(start + part.start..start + part.end)
    };
    for index in 0..segments(&all, size) {
        let own = Span::input(segment(&all, size, index));
        for number in (0..layout.hosts.len()).filter(|number| *number != host) {
            plan.send(layout.agent(number, rank), own);
        }
        locals.iter().filter(|peer| **peer != rank).for_each(|peer| plan.send(*peer, own));
        plan.copy(own, part(rank, index));
        for owner in locals.iter().filter(|owner| **owner != rank) {
            plan.recv(*owner, part(*owner, index));
        }
        // What comes from another host is handed on at once. All go through the others in one order, that of what they
        // get from the same rank.
        for owner in (0..request.ranks).filter(|owner| layout.host_of[*owner] != host) {
            let agent = layout.agent(host, owner);
            if agent != rank {
                plan.recv(agent, part(owner, index));
                continue;
            }
            plan.recv(owner, part(owner, index));
            for peer in locals.iter().filter(|peer| **peer != rank) {
                plan.send(*peer, part(owner, index));
            }
        }
    }
}
