//! Capture and graphs.
#![allow(non_snake_case, reason = "the names are CUDA's")]

use crate::abi::{In, Out, runtime};
use crate::capture::{self, Mode};
use crate::error::{Code, Outcome};
use crate::graph;
use crate::host::HostFunction;

use super::stream;

/// What the functions that ask about captures return; the address of edges is 0 where the caller has no use for it.
struct Asked {
    status: Out<i32>,
    id: Out<u64>,
    graph: Out<u64>,
    after: Out<u64>,
    edges: Option<Out<u64>>,
    count: Out<usize>,
}

fn ask(handle: u64, asked: &Asked) -> Outcome {
    let stream = stream::find(handle)?;
    let info = capture::info(&stream);
    asked.status.set(info.status)?;
    if info.status == 1 {
        asked.id.set_if(info.id);
        asked.graph.set_if(info.graph);
        asked.after.set_if(info.after.0);
        asked.count.set_if(info.after.1);
        if let Some(edges) = asked.edges {
            edges.set_if(info.edges);
        }
    }
    Ok(())
}

fn update(handle: u64, nodes: In<u64>, count: usize, flags: u32) -> Outcome {
    if flags > 1 {
        return Err(Code::INVALID_VALUE);
    }
    capture::update(&stream::find(handle)?, nodes.list(count)?, flags == 1)
}

fn instantiate(out: Out<u64>, handle: u64) -> Outcome {
    let graph = graph::find(handle)?;
    out.set(graph::instantiate(&graph).handle)
}

runtime! {
    fn cudaStreamBeginCapture(handle: u64, mode: i32) {
        capture::begin(&stream::find(handle)?, Mode::new(mode)?, None)
    }

    fn cudaStreamBeginCaptureToGraph(
        handle: u64,
        into: u64,
        after: In<u64>,
        _edges: u64,
        count: usize,
        mode: i32,
    ) {
        let into = graph::find(into)?;
        capture::begin(&stream::find(handle)?, Mode::new(mode)?, Some((into, after.list(count)?)))
    }

    fn cudaStreamEndCapture(handle: u64, out: Out<u64>) {
        let ended = capture::end(&stream::find(handle)?);
        out.set_if(ended.as_ref().map_or(0, |graph| graph.handle));
        ended.map(drop)
    }

    fn cudaStreamIsCapturing(handle: u64, status: Out<i32>) {
        let stream = stream::find(handle)?;
        if stream.is_legacy() && stream.context.blocking_streams().iter().any(|other| capture::info(other).status == 1) {
            return Err(Code::CAPTURE_IMPLICIT);
        }
        status.set(capture::info(&stream).status)
    }

    fn cudaStreamGetCaptureInfo(
        handle: u64,
        status: Out<i32>,
        id: Out<u64>,
        graph: Out<u64>,
        after: Out<u64>,
        edges: Out<u64>,
        count: Out<usize>,
    ) {
        ask(handle, &Asked { status, id, graph, after, edges: Some(edges), count })
    }

    fn cudaStreamGetCaptureInfo_v3(
        handle: u64,
        status: Out<i32>,
        id: Out<u64>,
        graph: Out<u64>,
        after: Out<u64>,
        edges: Out<u64>,
        count: Out<usize>,
    ) {
        ask(handle, &Asked { status, id, graph, after, edges: Some(edges), count })
    }

    fn cudaStreamGetCaptureInfo_v2(
        handle: u64,
        status: Out<i32>,
        id: Out<u64>,
        graph: Out<u64>,
        after: Out<u64>,
        count: Out<usize>,
    ) {
        ask(handle, &Asked { status, id, graph, after, edges: None, count })
    }

    fn cudaThreadExchangeStreamCaptureMode(mode: Out<i32>) {
        let new = Mode::new(mode.get()?)?;
        mode.set(capture::exchange_mode(new) as i32)
    }

    fn cudaGraphCreate(out: Out<u64>, flags: u32) {
        if flags != 0 {
            return Err(Code::INVALID_VALUE);
        }
        out.set(graph::create().handle)
    }

    fn cudaGraphDestroy(handle: u64) {
        graph::destroy(handle)
    }

    fn cudaGraphInstantiate(out: Out<u64>, handle: u64, _flags: u64) {
        instantiate(out, handle)
    }

    fn cudaGraphInstantiateWithFlags(out: Out<u64>, handle: u64, _flags: u64) {
        instantiate(out, handle)
    }

    fn cudaGraphUpload(executable: u64, handle: u64) {
        stream::find(handle)?;
        graph::executable(executable).map(drop)
    }

    fn cudaGraphLaunch(executable: u64, handle: u64) {
        let stream = stream::find(handle)?;
        graph::launch(&graph::executable(executable)?, &stream)
    }

    fn cudaGraphExecDestroy(executable: u64) {
        graph::destroy_executable(executable)
    }

    fn cudaGraphGetNodes(handle: u64, nodes: Out<u64>, count: Out<usize>) {
        let all: Vec<u64> = graph::find(handle)?.nodes().iter().map(|node| node.handle).collect();
        put_list(nodes, count, &all)
    }

    fn cudaGraphNodeGetType(node: u64, kind: Out<i32>) {
        kind.set(graph::node(node)?.kind as i32)
    }

    /// CUDA 12 has no edges: there the third argument is the number. A number lies where its caller keeps it, as edges do, so
    /// the two can not be told apart, and only the newer one is here.
    fn cudaGraphNodeGetDependencies(node: u64, out: Out<u64>, edges: Out<u64>, count: Out<usize>) {
        let after = graph::node(node)?.after;
        if !edges.is_null() {
            (0..after.len().min(count.get()?)).try_for_each(|index| edges.set_at(index, 0))?;
        }
        put_list(out, count, &after)
    }

    fn cudaUserObjectCreate(out: Out<u64>, data: u64, destroy: Option<HostFunction>, count: u32, _flags: u32) {
        out.set(graph::user_object(data, destroy, count)?)
    }

    fn cudaUserObjectRetain(object: u64, count: u32) {
        graph::find_object(object)?.retain(count);
        Ok(())
    }

    fn cudaUserObjectRelease(object: u64, count: u32) {
        graph::find_object(object)?.release(count)
    }

    fn cudaGraphRetainUserObject(handle: u64, object: u64, count: u32, flags: u32) {
        graph::find(handle)?.keep(graph::find_object(object)?, count, flags == 1);
        Ok(())
    }

    fn cudaStreamUpdateCaptureDependencies_v2(handle: u64, nodes: In<u64>, _edges: u64, count: usize, flags: u32) {
        update(handle, nodes, count, flags)
    }
}

/// A list that is counted first and fetched then.
pub(crate) fn put_list(out: Out<u64>, count: Out<usize>, all: &[u64]) -> Outcome {
    if !out.is_null() {
        let room = count.get()?;
        all.iter().take(room).enumerate().try_for_each(|(index, &item)| out.set_at(index, item))?;
    }
    count.set(all.len())
}

/// CUDA 13 has edges as the third argument, CUDA 12 the number of nodes: no number of nodes looks like an address, and no flags
/// like a number of nodes beyond 1, so the two are told apart by the third argument.
#[unsafe(no_mangle)]
extern "C" fn cudaStreamUpdateCaptureDependencies(
    handle: u64,
    nodes: In<u64>,
    third: u64,
    fourth: u64,
    fifth: u32,
) -> i32 {
    let name = "cudaStreamUpdateCaptureDependencies";
    let is_13 = third == 0 || third > 1 << 32;
    let body = || {
        if is_13 {
            update(handle, nodes, fourth as usize, fifth)
        } else {
            update(handle, nodes, third as usize, fourth as u32)
        }
    };
    crate::abi::runtime_call(name, || format!("({handle:#x}, {nodes:?}, {third}, {fourth}, {fifth})"), body)
}
