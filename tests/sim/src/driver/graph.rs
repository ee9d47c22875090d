//! Capture and graphs.

use std::sync::Arc;

use crate::abi::{In, Out, driver};
use crate::capture::{self, Mode, NodeKind};
use crate::error::{Code, Outcome};
use crate::host::{self, HostFunction};
use crate::launch::{self, Shape};
use crate::runtime::put_list;
use crate::{device, graph};

use super::memory::stream_of;
use super::module::arguments;

fn instantiate(out: Out<u64>, handle: u64) -> Outcome {
    let graph = graph::find(handle)?;
    out.set(graph::instantiate(&graph).handle)
}

fn depend(handle: u64, from: In<u64>, to: In<u64>, count: usize) -> Outcome {
    let graph = graph::find(handle)?;
    (0..count).try_for_each(|index| graph.depend(from.at(index)?, to.at(index)?))
}

/// `CUDA_HOST_NODE_PARAMS`.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
struct HostNode {
    function: Option<HostFunction>,
    data: u64,
}

/// `CUDA_KERNEL_NODE_PARAMS`.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
struct KernelNode {
    function: u64,
    grid: [u32; 3],
    block: [u32; 3],
    shared_bytes: u32,
    pointers: u64,
    extra: In<u64>,
    kernel: u64,
    context: u64,
}

fn update(handle: u64, nodes: In<u64>, count: usize, flags: u32) -> Outcome {
    if flags > 1 {
        return Err(Code::INVALID_VALUE);
    }
    capture::update(&stream_of(handle)?, nodes.list(count)?, flags == 1)
}

fn status_of(handle: u64, status: Out<i32>) -> Outcome<capture::Info> {
    let info = capture::info(&stream_of(handle)?);
    status.set(info.status)?;
    Ok(info)
}

driver! {
    fn StreamBeginCapture(handle: u64) {
        capture::begin(&stream_of(handle)?, Mode::Global, None)
    }

    fn StreamBeginCapture_v2(handle: u64, mode: i32) {
        capture::begin(&stream_of(handle)?, Mode::new(mode)?, None)
    }

    fn StreamBeginCaptureToGraph(handle: u64, into: u64, after: In<u64>, _edges: u64, count: usize, mode: i32) {
        let into = graph::find(into)?;
        capture::begin(&stream_of(handle)?, Mode::new(mode)?, Some((into, after.list(count)?)))
    }

    fn StreamEndCapture(handle: u64, out: Out<u64>) {
        let ended = capture::end(&stream_of(handle)?);
        out.set_if(ended.as_ref().map_or(0, |graph| graph.handle));
        ended.map(drop)
    }

    fn StreamIsCapturing(handle: u64, status: Out<i32>) {
        let stream = stream_of(handle)?;
        if stream.is_legacy() && stream.context.blocking_streams().iter().any(|other| capture::info(other).status == 1) {
            return Err(Code::CAPTURE_IMPLICIT);
        }
        status.set(capture::info(&stream).status)
    }

    fn StreamGetCaptureInfo(handle: u64, status: Out<i32>, id: Out<u64>) {
        let info = status_of(handle, status)?;
        if info.status == 1 {
            id.set_if(info.id);
        }
        Ok(())
    }

    fn StreamGetCaptureInfo_v2(
        handle: u64,
        status: Out<i32>,
        id: Out<u64>,
        graph: Out<u64>,
        after: Out<u64>,
        count: Out<usize>,
    ) {
        let info = status_of(handle, status)?;
        if info.status == 1 {
            id.set_if(info.id);
            graph.set_if(info.graph);
            after.set_if(info.after.0);
            count.set_if(info.after.1);
        }
        Ok(())
    }

    fn StreamGetCaptureInfo_v3(
        handle: u64,
        status: Out<i32>,
        id: Out<u64>,
        graph: Out<u64>,
        after: Out<u64>,
        edges: Out<u64>,
        count: Out<usize>,
    ) {
        let info = status_of(handle, status)?;
        if info.status == 1 {
            id.set_if(info.id);
            graph.set_if(info.graph);
            after.set_if(info.after.0);
            edges.set_if(info.edges);
            count.set_if(info.after.1);
        }
        Ok(())
    }

    fn StreamUpdateCaptureDependencies(handle: u64, nodes: In<u64>, count: usize, flags: u32) {
        update(handle, nodes, count, flags)
    }

    fn StreamUpdateCaptureDependencies_v2(handle: u64, nodes: In<u64>, _edges: u64, count: usize, flags: u32) {
        update(handle, nodes, count, flags)
    }

    fn ThreadExchangeStreamCaptureMode(mode: Out<i32>) {
        let new = Mode::new(mode.get()?)?;
        mode.set(capture::exchange_mode(new) as i32)
    }

    fn GraphCreate(out: Out<u64>, flags: u32) {
        if flags != 0 {
            return Err(Code::INVALID_VALUE);
        }
        out.set(graph::create().handle)
    }

    fn GraphDestroy(handle: u64) {
        graph::destroy(handle)
    }

    fn GraphInstantiateWithFlags(out: Out<u64>, handle: u64, _flags: u64) {
        instantiate(out, handle)
    }

    fn GraphInstantiate_v2(out: Out<u64>, handle: u64, _error_node: u64, _log: u64, _log_bytes: usize) {
        instantiate(out, handle)
    }

    fn GraphUpload(executable: u64, handle: u64) {
        stream_of(handle)?;
        graph::executable(executable).map(drop)
    }

    fn GraphLaunch(executable: u64, handle: u64) {
        graph::launch(&graph::executable(executable)?, &stream_of(handle)?)
    }

    fn GraphExecDestroy(executable: u64) {
        graph::destroy_executable(executable)
    }

    fn GraphGetNodes(handle: u64, nodes: Out<u64>, count: Out<usize>) {
        let all: Vec<u64> = graph::find(handle)?.nodes().iter().map(|node| node.handle).collect();
        put_list(nodes, count, &all)
    }

    fn GraphNodeGetType(node: u64, kind: Out<i32>) {
        kind.set(graph::node(node)?.kind as i32)
    }

    fn GraphNodeGetDependencies(node: u64, out: Out<u64>, count: Out<usize>) {
        put_list(out, count, &graph::node(node)?.after)
    }

    fn GraphNodeGetDependencies_v2(node: u64, out: Out<u64>, edges: Out<u64>, count: Out<usize>) {
        let after = graph::node(node)?.after;
        if !edges.is_null() {
            (0..after.len().min(count.get()?)).try_for_each(|index| edges.set_at(index, 0))?;
        }
        put_list(out, count, &after)
    }

    fn GraphAddDependencies(handle: u64, from: In<u64>, to: In<u64>, count: usize) {
        depend(handle, from, to, count)
    }

    fn GraphAddDependencies_v2(handle: u64, from: In<u64>, to: In<u64>, _edges: u64, count: usize) {
        depend(handle, from, to, count)
    }

    fn GraphAddEmptyNode(out: Out<u64>, handle: u64, after: In<u64>, count: usize) {
        let context = device::current()?;
        let graph = graph::find(handle)?;
        out.set(graph.add_checked(NodeKind::Empty, Arc::new(|| Ok(())), after.list(count)?, &context)?)
    }

    /// The parameters are a function and its data.
    fn GraphAddHostNode(out: Out<u64>, handle: u64, after: In<u64>, count: usize, parameters: In<HostNode>) {
        let context = device::current()?;
        let graph = graph::find(handle)?;
        let HostNode { function, data } = parameters.get()?;
        let work = host::work(function.ok_or(Code::INVALID_VALUE)?, data);
        out.set(graph.add_checked(NodeKind::Host, work, after.list(count)?, &context)?)
    }

    /// The parameters are those of a launch.
    fn GraphAddKernelNode_v2(out: Out<u64>, handle: u64, after: In<u64>, count: usize, parameters: In<KernelNode>) {
        let context = device::current()?;
        let graph = graph::find(handle)?;
        let KernelNode { function, grid, block, shared_bytes, pointers, extra, .. } = parameters.get()?;
        let shape = Shape { grid, block, shared_bytes, is_cooperative: false };
        let arguments = arguments(pointers, extra)?;
        let work = launch::prepare(&launch::find(function)?, shape, arguments, &context)?;
        out.set(graph.add_checked(NodeKind::Kernel, work, after.list(count)?, &context)?)
    }

    fn UserObjectCreate(out: Out<u64>, data: u64, destroy: Option<HostFunction>, count: u32, _flags: u32) {
        out.set(graph::user_object(data, destroy, count)?)
    }

    fn UserObjectRetain(object: u64, count: u32) {
        graph::find_object(object)?.retain(count);
        Ok(())
    }

    fn UserObjectRelease(object: u64, count: u32) {
        graph::find_object(object)?.release(count)
    }

    fn GraphRetainUserObject(handle: u64, object: u64, count: u32, flags: u32) {
        graph::find(handle)?.keep(graph::find_object(object)?, count, flags == 1);
        Ok(())
    }
}
