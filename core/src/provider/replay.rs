//! The replay model: plays what a model decided in an earlier flow, so that the flow runs again without it.
//!
//! A request is answered from a recorded call of the same role and method, of one with the same arguments if there is one;
//! each recorded call is played once, its decisions in order. Replies that the boundary rejected were never kept, only
//! their hashes: they are left out, and the run needs an attempt less.

use std::collections::VecDeque;
use std::sync::Arc;

use parking_lot::Mutex;

use super::{ModelReply, ModelRequest, Provider, ProviderError, ProviderErrorClass, ReplyFuture};
use crate::cancel::CancelToken;
use crate::value::{Map, Value};

/// What a model decided in one call.
#[derive(Clone, Debug)]
pub struct Decided {
    /// Role of the agent.
    pub role: String,
    /// The method.
    pub method: String,
    /// Positional arguments.
    pub args: Vec<Value>,
    /// Named arguments.
    pub kwargs: Map,
    /// Its decisions, in order: a tool and its arguments, or the words of a failing provider.
    pub decisions: VecDeque<Result<(String, Map), String>>,
}

/// Plays recorded decisions.
#[derive(Debug)]
pub struct Replay {
    name: String,
    calls: Mutex<Vec<Decided>>,
}

impl Replay {
    /// A model that plays these calls, in the order in which they began.
    pub fn new(name: String, calls: Vec<Decided>) -> Arc<Self> {
        Arc::new(Self { name, calls: Mutex::new(calls) })
    }

    fn play(&self, request: &ModelRequest) -> Result<ModelReply, ProviderError> {
        let mut calls = self.calls.lock();
        let of_method = |call: &Decided| {
            *call.role == *request.role && *call.method == *request.method && !call.decisions.is_empty()
        };
        let same = |call: &Decided| of_method(call) && call.args == *request.args && call.kwargs == *request.kwargs;
        let found = calls.iter().position(same).or_else(|| calls.iter().position(of_method));
        let decision = found.and_then(|index| calls[index].decisions.pop_front());
        match decision {
            Some(Ok((tool, arguments))) => Ok(ModelReply::call("replayed", tool, Value::Map(arguments).to_json())),
            Some(Err(message)) => Err(ProviderError::new(ProviderErrorClass::Failed, message)),
            None => Err(ProviderError::new(
                ProviderErrorClass::ModelError,
                format!("{} has no decision left for {}.{}", self.name, request.role, request.method),
            )),
        }
    }
}

impl Provider for Replay {
    fn model(&self) -> &str {
        &self.name
    }

    fn complete<'a>(&'a self, request: &'a ModelRequest, _cancel: &'a CancelToken) -> ReplyFuture<'a> {
        Box::pin(async move { self.play(request) })
    }
}
