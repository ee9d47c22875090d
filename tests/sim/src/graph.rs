//! Graphs: nodes that depend on each other, made by capture or one by one; what is instantiated can be launched again and again.
//!
//! Nodes that do not depend on each other run at the same time, each chain in a stream of its own, since kernels of several
//! devices in one graph may wait for each other.

use std::collections::{HashMap, HashSet};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex};

use crate::capture::NodeKind;
use crate::device::Context;
use crate::error::{Code, Outcome};
use crate::handles::{Handles, lock};
use crate::host::HostFunction;
use crate::stream::{self, Point, Stream, Work};
use crate::{abi, capture};

#[derive(Clone)]
pub(crate) struct Node {
    pub(crate) handle: u64,
    pub(crate) kind: NodeKind,
    pub(crate) after: Vec<u64>,
    work: Work,
    context: Arc<Context>,
}

pub(crate) struct Graph {
    pub(crate) handle: u64,
    nodes: Mutex<Vec<Node>>,
    kept: Mutex<Vec<Arc<Reference>>>,
}

/// A graph that can be launched.
pub(crate) struct Executable {
    pub(crate) handle: u64,
    nodes: Vec<Node>,
    /// The chain of each node, and the streams of the chains.
    chains: Vec<usize>,
    streams: Vec<Arc<Stream>>,
    /// Launches of one graph come after each other.
    busy: Mutex<()>,
    _kept: Vec<Arc<Reference>>,
}

/// Something of the program that lives as long as graphs use it.
pub(crate) struct UserObject {
    pub(crate) handle: u64,
    count: AtomicU32,
    destroy: Box<dyn Fn() + Send + Sync>,
}

/// References that a graph has, and its executables share.
struct Reference(Arc<UserObject>, u32);

impl Drop for Reference {
    fn drop(&mut self) {
        let _ = self.0.release(self.1);
    }
}

static GRAPHS: Handles<Graph> = Handles::new();
static EXECUTABLES: Handles<Executable> = Handles::new();
static NODES: Handles<u64> = Handles::new();
static OBJECTS: Handles<UserObject> = Handles::new();

pub(crate) fn count() -> usize {
    GRAPHS.all().len()
}

pub(crate) fn count_executables() -> usize {
    EXECUTABLES.all().len()
}

pub(crate) fn create() -> Arc<Graph> {
    GRAPHS.add(|handle| Graph { handle, nodes: Mutex::default(), kept: Mutex::default() })
}

pub(crate) fn find(handle: u64) -> Outcome<Arc<Graph>> {
    GRAPHS.get(handle).map_err(|_| Code::INVALID_VALUE)
}

pub(crate) fn destroy(handle: u64) -> Outcome {
    let graph = GRAPHS.remove(handle).map_err(|_| Code::INVALID_VALUE)?;
    for node in lock(&graph.nodes).iter() {
        let _ = NODES.remove(node.handle);
    }
    lock(&graph.kept).clear();
    Ok(())
}

/// The node of a handle.
pub(crate) fn node(handle: u64) -> Outcome<Node> {
    let nodes = of_node(handle)?.nodes();
    nodes.into_iter().find(|node| node.handle == handle).ok_or(Code::INVALID_VALUE)
}

/// The graph that a node is in.
pub(crate) fn of_node(node: u64) -> Outcome<Arc<Graph>> {
    find(*NODES.get(node).map_err(|_| Code::INVALID_VALUE)?)
}

impl Graph {
    pub(crate) fn add(&self, kind: NodeKind, work: Work, after: Vec<u64>, context: &Arc<Context>) -> u64 {
        let mut number = 0;
        NODES.add(|handle| {
            number = handle;
            self.handle
        });
        lock(&self.nodes).push(Node { handle: number, kind, after, work, context: Arc::clone(context) });
        number
    }

    pub(crate) fn has(&self, node: u64) -> Outcome {
        if lock(&self.nodes).iter().any(|other| other.handle == node) {
            Ok(())
        } else {
            Err(Code::INVALID_VALUE)
        }
    }

    pub(crate) fn nodes(&self) -> Vec<Node> {
        lock(&self.nodes).clone()
    }

    /// Adds a node that the program makes without a capture.
    pub(crate) fn add_checked(
        &self,
        kind: NodeKind,
        work: Work,
        after: Vec<u64>,
        context: &Arc<Context>,
    ) -> Outcome<u64> {
        after.iter().try_for_each(|&node| self.has(node))?;
        Ok(self.add(kind, work, after, context))
    }

    /// Lets a node wait for another one, too; a circle is an invalid value.
    pub(crate) fn depend(&self, from: u64, to: u64) -> Outcome {
        self.has(from)?;
        if self.ancestors(&[from]).contains(&to) {
            return Err(Code::INVALID_VALUE);
        }
        let mut nodes = lock(&self.nodes);
        let node = nodes.iter_mut().find(|node| node.handle == to).ok_or(Code::INVALID_VALUE)?;
        node.after.push(from);
        Ok(())
    }

    /// These nodes and all that they depend on.
    pub(crate) fn ancestors(&self, of: &[u64]) -> HashSet<u64> {
        let nodes = lock(&self.nodes);
        let by_handle: HashMap<_, _> = nodes.iter().map(|node| (node.handle, node)).collect();
        let mut open = of.to_vec();
        let mut reached = HashSet::new();
        while let Some(node) = open.pop() {
            if reached.insert(node) {
                open.extend(by_handle.get(&node).into_iter().flat_map(|node| &node.after));
            }
        }
        reached
    }

    pub(crate) fn keep(&self, object: Arc<UserObject>, count: u32, moves: bool) {
        if !moves {
            object.count.fetch_add(count, Ordering::AcqRel);
        }
        lock(&self.kept).push(Arc::new(Reference(object, count)));
    }
}

/// Nodes in an order in which each comes after those that it depends on.
fn sorted(mut nodes: Vec<Node>) -> Vec<Node> {
    let mut done = HashSet::new();
    let mut order = Vec::with_capacity(nodes.len());
    while !nodes.is_empty() {
        let before = order.len();
        let mut rest = Vec::new();
        for node in nodes {
            if node.after.iter().all(|after| done.contains(after)) {
                done.insert(node.handle);
                order.push(node);
            } else {
                rest.push(node);
            }
        }
        nodes = rest;
        if order.len() == before {
            break;
        }
    }
    order
}

pub(crate) fn instantiate(graph: &Graph) -> Arc<Executable> {
    let nodes = sorted(graph.nodes());
    let mut ends: HashMap<u64, usize> = HashMap::new();
    let mut chains = Vec::new();
    let mut streams: Vec<Arc<Stream>> = Vec::new();
    for node in &nodes {
        // A node goes on with the chain of a node that it depends on, if that is the chain's last one and of the same context.
        let previous = node.after.iter().find_map(|after| {
            let &chain = ends.get(after)?;
            Arc::ptr_eq(&streams[chain].context, &node.context).then_some((*after, chain))
        });
        let chain = match previous {
            Some((after, chain)) => {
                ends.remove(&after);
                chain
            }
            None => {
                streams.push(stream::hidden(&node.context));
                streams.len() - 1
            }
        };
        ends.insert(node.handle, chain);
        chains.push(chain);
    }
    let kept = lock(&graph.kept).clone();
    EXECUTABLES.add(|handle| Executable {
        handle,
        nodes,
        chains,
        streams,
        busy: Mutex::default(),
        _kept: kept,
    })
}

pub(crate) fn executable(handle: u64) -> Outcome<Arc<Executable>> {
    EXECUTABLES.get(handle).map_err(|_| Code::INVALID_VALUE)
}

/// What is running goes on to its end.
pub(crate) fn destroy_executable(handle: u64) -> Outcome {
    EXECUTABLES.remove(handle).map(drop).map_err(|_| Code::INVALID_VALUE)
}

pub(crate) fn launch(executable: &Arc<Executable>, stream: &Arc<Stream>) -> Outcome {
    stream.context.check()?;
    if capture::of(stream)?.is_some() {
        return Err(Code::NOT_SUPPORTED);
    }
    let executable = Arc::clone(executable);
    stream.submit(NodeKind::Graph, Arc::new(move || executable.run())).map(drop)
}

impl Executable {
    fn run(&self) -> Outcome {
        let _busy = lock(&self.busy);
        if self.streams.len() <= 1 {
            return self.nodes.iter().try_for_each(|node| (node.work)());
        }
        let mut points: HashMap<u64, Point> = HashMap::new();
        for (node, &chain) in self.nodes.iter().zip(&self.chains) {
            let after = node.after.iter().filter_map(|after| points.get(after).cloned()).collect();
            let point = self.streams[chain].queue_after(after, Arc::clone(&node.work))?;
            points.insert(node.handle, point);
        }
        points.values().for_each(Point::wait);
        self.streams.iter().try_for_each(|stream| stream.context.check())
    }
}

impl Drop for Executable {
    fn drop(&mut self) {
        self.streams.iter().for_each(|stream| stream.close());
    }
}

/// The handle of a new object, which calls `destroy` with `data` when nobody keeps it any more.
pub(crate) fn user_object(data: u64, destroy: Option<HostFunction>, count: u32) -> Outcome<u64> {
    let destroy = destroy.filter(|_| count > 0).ok_or(Code::INVALID_VALUE)?;
    let destroy = Box::new(move || destroy(data));
    Ok(OBJECTS.add(|handle| UserObject { handle, count: AtomicU32::new(count), destroy }).handle)
}

pub(crate) fn find_object(handle: u64) -> Outcome<Arc<UserObject>> {
    OBJECTS.get(handle).map_err(|_| Code::INVALID_VALUE)
}

impl UserObject {
    pub(crate) fn retain(&self, count: u32) {
        self.count.fetch_add(count, Ordering::AcqRel);
    }

    /// Gives references back; the last one destroys the object, by a function that must not call the API.
    pub(crate) fn release(&self, count: u32) -> Outcome {
        let less = |now: u32| now.checked_sub(count);
        let before = self.count.fetch_update(Ordering::AcqRel, Ordering::Acquire, less);
        if before.map_err(|_| Code::INVALID_VALUE)? == count {
            let _ = OBJECTS.remove(self.handle);
            abi::call_host_function(|| (self.destroy)());
        }
        Ok(())
    }
}
