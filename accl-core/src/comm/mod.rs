//! Stub, to be replaced at the merge: communicators of one rank that move nothing.
#![allow(clippy::too_many_arguments)]
use crate::bootstrap::UniqueId;
use crate::engine::HostStream;
use crate::memory::UserPointer;
use crate::types::{DataType, ReduceOp, Scalar};
use crate::{Error, Result};
use std::sync::{Arc, Mutex};

pub mod group;

/// How a communicator behaves.
#[derive(Clone, Debug)]
pub struct CommConfig {
    /// Calls wait.
    pub blocking: bool,
    /// For logs.
    pub name: Option<String>,
}

impl Default for CommConfig {
    fn default() -> Self {
        Self { blocking: true, name: None }
    }
}

/// A parsed operator.
#[derive(Clone, Copy, Debug)]
pub struct Operator {
    /// What.
    pub op: ReduceOp,
    /// The factor.
    pub scalar: Scalar,
}

/// Where a factor comes from.
#[derive(Clone, Copy, Debug)]
pub enum ScalarSource {
    /// Here.
    Immediate(Scalar),
    /// There.
    InMemory(UserPointer),
}

#[derive(Debug, Default)]
struct State {
    error: Option<Error>,
    finalized: bool,
    operators: Vec<bool>,
}

/// One rank's end.
#[derive(Clone, Debug)]
pub struct Communicator {
    config: CommConfig,
    state: Arc<Mutex<State>>,
}

impl Communicator {
    fn alone(config: CommConfig) -> Self {
        Self { config, state: Arc::default() }
    }
    fn state(&self) -> Result<std::sync::MutexGuard<'_, State>> {
        self.state.lock().map_err(|_| Error::internal("poisoned"))
    }
    /// Joins.
    pub fn init(
        ids: &[UniqueId],
        ranks: usize,
        rank: usize,
        config: CommConfig,
        failed: Option<Box<dyn FnOnce() + Send>>,
    ) -> Result<Self> {
        let _ = (ids, rank, failed);
        if ranks != 1 {
            return Err(Error::usage("the stub has one rank only"));
        }
        Ok(Self::alone(config))
    }
    /// Joins all.
    pub fn init_all(ranks: usize) -> Result<Vec<Self>> {
        (0..ranks).map(|rank| Self::init(&[], ranks, rank, CommConfig::default(), None)).collect()
    }
    /// Splits.
    pub fn split(
        &self,
        color: Option<u32>,
        key: i32,
        config: Option<CommConfig>,
        done: Box<dyn FnOnce(Option<Self>) + Send>,
    ) -> Result<()> {
        let _ = key;
        done(color.map(|_| Self::alone(config.unwrap_or_else(|| self.config.clone()))));
        Ok(())
    }
    /// Ranks.
    pub fn ranks(&self) -> usize {
        1
    }
    /// Rank.
    pub fn rank(&self) -> usize {
        0
    }
    /// Configuration.
    pub fn config(&self) -> CommConfig {
        self.config.clone()
    }
    /// Step 3.
    pub fn check_ready(&self) -> Result<()> {
        Ok(())
    }
    /// Steps 2 to 4.
    pub fn check_usable(&self) -> Result<()> {
        self.async_state()
    }
    /// The state.
    pub fn async_state(&self) -> Result<()> {
        self.state()?.error.clone().map_or(Ok(()), Err)
    }
    /// Spoils.
    pub fn store_error(&self, error: &Error) {
        if let Ok(mut state) = self.state() {
            state.error.get_or_insert_with(|| error.clone());
        }
    }
    /// Flushes.
    pub fn finalize(&self) -> Result<()> {
        if std::mem::replace(&mut self.state()?.finalized, true) {
            return Err(Error::argument("finalized twice"));
        }
        Ok(())
    }
    /// Ends.
    pub fn destroy(&self) -> Result<()> {
        Ok(())
    }
    /// Ends at once.
    pub fn abort(&self) -> Result<()> {
        Ok(())
    }
    /// Step 7.
    pub fn operator(&self, value: i32) -> Result<Operator> {
        let known = usize::try_from(value).map_err(|_| Error::argument("negative operator"))?;
        let made =
            |index: usize| Ok::<_, Error>(self.state()?.operators.get(index).copied().unwrap_or(false));
        match known.checked_sub(5) {
            None => Ok(Operator { op: ReduceOp::ALL[known], scalar: Scalar::default() }),
            Some(index) if made(index)? => {
                Ok(Operator { op: ReduceOp::PreMulSum, scalar: Scalar::default() })
            }
            Some(_) => Err(Error::argument("unknown operator")),
        }
    }
    /// Makes an operator.
    pub fn create_pre_mul_sum(&self, dtype: DataType, scalar: ScalarSource) -> Result<i32> {
        let _ = (dtype, scalar);
        let mut state = self.state()?;
        state.operators.push(true);
        Ok(4 + state.operators.len() as i32)
    }
    /// Forgets an operator.
    pub fn destroy_operator(&self, value: i32) -> Result<()> {
        self.operator(value)?;
        let index = usize::try_from(value).ok().and_then(|value| value.checked_sub(5));
        let index = index.ok_or_else(|| Error::argument("built in"))?;
        self.state()?.operators[index] = false;
        Ok(())
    }
    /// Registers.
    pub fn register(&self, start: UserPointer, bytes: usize) -> Result<usize> {
        let _ = bytes;
        Ok(start.address().max(1))
    }
    /// Deregisters.
    pub fn deregister(&self, handle: usize) -> Result<()> {
        let _ = handle;
        Err(Error::usage("unknown handle"))
    }
    /// Stub.
    pub fn all_reduce(
        &self,
        send: UserPointer,
        recv: UserPointer,
        count_elems: usize,
        dtype: DataType,
        op: Operator,
        stream: Option<&HostStream>,
    ) -> Result<()> {
        let _ = (send, recv, count_elems, dtype, op, stream);
        Ok(())
    }
    /// Stub.
    pub fn reduce(
        &self,
        send: UserPointer,
        recv: UserPointer,
        count_elems: usize,
        dtype: DataType,
        op: Operator,
        root: usize,
        stream: Option<&HostStream>,
    ) -> Result<()> {
        let _ = (send, recv, count_elems, dtype, op, root, stream);
        Ok(())
    }
    /// Stub.
    pub fn broadcast(
        &self,
        send: UserPointer,
        recv: UserPointer,
        count_elems: usize,
        dtype: DataType,
        root: usize,
        stream: Option<&HostStream>,
    ) -> Result<()> {
        let _ = (send, recv, count_elems, dtype, root, stream);
        Ok(())
    }
    /// Stub.
    pub fn all_gather(
        &self,
        send: UserPointer,
        recv: UserPointer,
        count_elems: usize,
        dtype: DataType,
        stream: Option<&HostStream>,
    ) -> Result<()> {
        let _ = (send, recv, count_elems, dtype, stream);
        Ok(())
    }
    /// Stub.
    pub fn reduce_scatter(
        &self,
        send: UserPointer,
        recv: UserPointer,
        count_elems: usize,
        dtype: DataType,
        op: Operator,
        stream: Option<&HostStream>,
    ) -> Result<()> {
        let _ = (send, recv, count_elems, dtype, op, stream);
        Ok(())
    }
    /// Stub.
    pub fn all_to_all(
        &self,
        send: UserPointer,
        recv: UserPointer,
        count_elems: usize,
        dtype: DataType,
        stream: Option<&HostStream>,
    ) -> Result<()> {
        let _ = (send, recv, count_elems, dtype, stream);
        Ok(())
    }
    /// Stub.
    pub fn gather(
        &self,
        send: UserPointer,
        recv: UserPointer,
        count_elems: usize,
        dtype: DataType,
        root: usize,
        stream: Option<&HostStream>,
    ) -> Result<()> {
        let _ = (send, recv, count_elems, dtype, root, stream);
        Ok(())
    }
    /// Stub.
    pub fn scatter(
        &self,
        send: UserPointer,
        recv: UserPointer,
        count_elems: usize,
        dtype: DataType,
        root: usize,
        stream: Option<&HostStream>,
    ) -> Result<()> {
        let _ = (send, recv, count_elems, dtype, root, stream);
        Ok(())
    }
    /// Stub.
    pub fn send(
        &self,
        buffer: UserPointer,
        count_elems: usize,
        dtype: DataType,
        peer: usize,
        stream: Option<&HostStream>,
    ) -> Result<()> {
        let _ = (buffer, count_elems, dtype, peer, stream);
        Ok(())
    }
    /// Stub.
    pub fn recv(
        &self,
        buffer: UserPointer,
        count_elems: usize,
        dtype: DataType,
        peer: usize,
        stream: Option<&HostStream>,
    ) -> Result<()> {
        let _ = (buffer, count_elems, dtype, peer, stream);
        Ok(())
    }
}
