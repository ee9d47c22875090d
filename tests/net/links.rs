//! Connections for data between ranks of several hosts, made by the core itself, without a transport that uses them.

use super::job::{Job, Rank, Scenario};
use super::namespaces::Net;
use super::support::api::UniqueId;
use accl_core::bootstrap::{
    self, LinkRequest, LinkSink, Membership, Request, dial_link, expect_links, link_secret,
};
use accl_core::config::Network;
use accl_core::encryption::Socket;
use std::sync::{Arc, Condvar, Mutex};
use std::time::{Duration, Instant};

pub(crate) const SCENARIOS: &[(&str, Scenario)] = &[("link_all", link_all), ("join_all", join_all)];

#[derive(Debug, Default)]
struct Guests {
    taken: Mutex<Vec<(LinkRequest, Socket)>>,
    news: Condvar,
}

impl LinkSink for Guests {
    fn accept(&self, request: LinkRequest, socket: Socket) {
        self.taken.lock().unwrap().push((request, socket));
        self.news.notify_all();
    }
}

impl Guests {
    fn take(&self, from_rank: u32) -> Socket {
        let mut taken = self.taken.lock().unwrap();
        loop {
            if let Some(at) = taken.iter().position(|(request, _)| request.from_rank == from_rank) {
                return taken.remove(at).1;
            }
            let (more, limit) = self.news.wait_timeout(taken, Duration::from_secs(60)).unwrap();
            assert!(!limit.timed_out(), "rank {from_rank} did not come");
            taken = more;
        }
    }
}

/// Joins by an id that rank 0 makes.
fn join<'a>(rank: &Rank, network: &'a Network) -> Membership<'a> {
    if rank.rank == 0 {
        rank.publish(&UniqueId(bootstrap::UniqueId::create().unwrap().0));
    }
    let id = bootstrap::UniqueId(rank.published_id().0);
    let patience = Some(Duration::from_secs(60));
    let request = Request {
        plugin: 0,
        ranks: rank.ranks,
        rank: rank.rank,
        version: 1,
        patience,
        on_device: false,
        has_verbs: false,
        network,
    };
    bootstrap::join(&[id], request, &|| Ok(())).unwrap()
}

/// Every rank learns who the others are, the same as all of them.
fn join_all(rank: Rank) {
    let network = Network::load().unwrap();
    let membership = join(&rank, &network);
    let processes: std::collections::BTreeSet<_> =
        membership.peers.iter().map(|peer| peer.place.process).collect();
    assert_eq!(processes.len(), rank.ranks);
    assert_eq!(membership.peers[rank.rank].place.pid, std::process::id());
    membership.confirm(Ok(())).unwrap();
}

/// Every rank dials those above it and says its number; they answer with theirs.
fn link_all(rank: Rank) {
    let never = || Ok(());
    let soon = || Instant::now() + Duration::from_secs(60);
    let network = Network::load().unwrap();
    let membership = join(&rank, &network);
    membership.check_reachable().unwrap();
    let (peers, secret) = (membership.peers.clone(), link_secret(membership.secret));
    let guests = Arc::new(Guests::default());
    let own = rank.rank as u32;
    let _expectation = expect_links(secret, own, guests.clone()).unwrap();
    membership.confirm(Ok(())).unwrap();

    let mut sockets = Vec::new();
    for (peer, to_rank) in peers.iter().zip(0u32..) {
        if to_rank > own {
            let request = LinkRequest { from_rank: own, to_rank, purpose: 1, index: 2 };
            let socket = dial_link(peer, secret, request, &network, soon(), &never).unwrap();
            socket.send_all(&[own as u8], soon(), &never).unwrap();
            sockets.push((socket, to_rank));
        }
    }
    for from_rank in 0..own {
        let socket = guests.take(from_rank);
        socket.send_all(&[own as u8], soon(), &never).unwrap();
        sockets.push((socket, from_rank));
    }
    for (socket, peer) in &sockets {
        let mut byte = [0];
        socket.receive_exact(&mut byte, soon(), &never).unwrap();
        assert_eq!(u32::from(byte[0]), *peer);
        // Until all have read what they need, nobody may end.
        socket.send_all(&[100], soon(), &never).unwrap();
    }
    for (socket, _) in &sockets {
        let mut byte = [0];
        socket.receive_exact(&mut byte, soon(), &never).unwrap();
        assert_eq!(byte, [100]);
    }
    assert_eq!(sockets.len(), rank.ranks - 1);
}

#[test]
fn ranks_link_over_whatever_leads_to_each_other() {
    let Some(net) = Net::switched(3) else { return };
    for host in 0..3 {
        net.bridge(host, "docker0", "172.17.0.1/16");
        net.decoy(host, "aaa0", &[&format!("10.8{host}.0.1/24")]);
    }
    let ended = Job::new(&net, "link_all", &[0, 1, 2, 1, 0]).run();
    super::job::assert_success(&ended);
    let Some(net) = Net::new(2) else { return };
    net.cable((0, "eth0", &[]), (1, "eth0", &[]));
    super::job::assert_success(&Job::new(&net, "link_all", &[0, 1, 1]).run());
}

/// So many ranks get their list from each other: most of them over TCP, some by local sockets.
#[test]
fn many_ranks_get_their_list_from_each_other() {
    let Some(net) = Net::switched(3) else { return };
    for host in 0..3 {
        net.decoy(host, "aaa0", &[&format!("10.8{host}.0.1/24")]);
    }
    let hosts: Vec<_> = (0..36).map(|rank| rank % 3).collect();
    let ended = Job::new(&net, "join_all", &hosts).run();
    super::job::assert_success(&ended);
}
