//! Calls captured in graphs, replayed with other calls in between.

use super::support::api::*;
use super::support::cluster::{Cluster, Rank, Scenario};
use super::support::device::{OnDevice, cuda, with_devices};

pub(crate) const SCENARIOS: [(&str, Scenario); 2] = [("replays", replays), ("outlives", outlives)];

fn replays(rank: Rank) {
    let (api, cuda, ranks) = (rank.api, cuda(), rank.ranks as i32);
    cuda.choose(rank.rank);
    let comm = rank.join();
    let stream = cuda.stream();
    let (first, second, third) =
        (OnDevice::of(&[0i32; 50]), OnDevice::of(&[0i32; 50]), OnDevice::of(&[0i32; 50]));
    let reduce = |from: &OnDevice<i32>, to: &OnDevice<i32>| {
        api.ok(unsafe { (api.ncclAllReduce)(from.start, to.start, 50, INT32, SUM, comm, stream) });
    };
    let peer = ((rank.rank + 1) % rank.ranks) as i32;
    let before = ((rank.rank + rank.ranks - 1) % rank.ranks) as i32;
    let graph = cuda.capture(stream, || {
        reduce(&first, &second);
        let code = api.group(|| unsafe {
            api.ok((api.ncclSend)(second.start, 50, INT32, peer, comm, stream));
            api.ok((api.ncclRecv)(third.start, 50, INT32, before, comm, stream));
        });
        api.ok(code);
        reduce(&third, &second);
    });
    assert_eq!(second.get(), [0; 50], "a captured call runs when the graph is launched");
    for round in 1..20 {
        first.set(&[round + rank.rank as i32; 50]);
        graph.launch(stream);
        if round % 3 == 0 {
            reduce(&second, &second);
        }
        if round % 4 == 0 {
            graph.launch(stream);
        }
        cuda.wait(stream);
        let sum: i32 = (0..ranks).map(|rank| round + rank).sum();
        let again = if round % 3 == 0 && round % 4 != 0 { ranks } else { 1 };
        assert_eq!(second.get(), [sum * ranks * again; 50], "round {round}");
    }
    drop(graph);
    reduce(&first, &second);
    cuda.wait(stream);
    api.destroy(comm);
}

#[test]
fn graphs_are_replayed_with_calls_in_between() {
    for (processes, threads) in [(2, 1), (1, 2), (3, 1)] {
        with_devices(Cluster::new(processes, threads), 4).run("replays");
    }
}

/// A communicator that is destroyed while a graph of its calls lives: replays end, whatever they do.
fn outlives(rank: Rank) {
    let (api, cuda) = (rank.api, cuda());
    cuda.choose(0);
    let comm = rank.join();
    let stream = cuda.stream();
    let buffer = OnDevice::of(&[1i32; 50]);
    let graph = cuda.capture(stream, || unsafe {
        api.ok((api.ncclAllReduce)(buffer.start, buffer.start, 50, INT32, SUM, comm, stream));
    });
    graph.launch(stream);
    cuda.wait(stream);
    assert_eq!(buffer.get(), [rank.ranks as i32; 50]);
    if rank.argument == "abort" {
        api.ok(unsafe { (api.ncclCommAbort)(comm) });
    } else {
        api.destroy(comm);
    }
    graph.launch(stream);
    cuda.wait(stream);
    drop(graph);
}

#[test]
fn graphs_may_outlive_their_communicator() {
    for how in ["abort", "destroy"] {
        with_devices(Cluster::new(2, 1), 4).argument(how).run("outlives");
    }
}
