//! PTX.
use crate::device::Context;
use crate::error::*;
use crate::launch::Shape;
use std::sync::Arc;
#[derive(Debug)]
pub(crate) struct Kernel {
    pub(crate) shared_bytes: u32,
    pub(crate) local_bytes: u32,
    pub(crate) max_threads: u32,
    pub(crate) parameters: Vec<(u32, u32)>,
}
pub(crate) struct Program;
impl Program {
    pub(crate) fn unload(&self) {}
    pub(crate) fn kernel(&self, _: &str) -> Option<Arc<Kernel>> {
        None
    }
    pub(crate) fn global(&self, _: &str) -> Option<(u64, u64)> {
        None
    }
}
pub(crate) fn load(_: &str, _: &Arc<Context>) -> Result<Program, (Code, String)> {
    Err((Code::INVALID_PTX, String::new()))
}
pub(crate) fn run(_: &Kernel, _: &Shape, _: &[u8], _: &Arc<Context>) -> Outcome {
    Err(Code::NOT_SUPPORTED)
}
