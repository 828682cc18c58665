//! A model that cannot be asked, where nobody asks one: under `reuse="locked"` a missing key is no reason to refuse.
//!
//! An agent that asks all the same is told why it cannot.

use super::{ModelReply, ModelRequest, Provider, ProviderError, ProviderErrorClass, ReplyFuture};
use crate::cancel::CancelToken;

/// The model by name, and what is missing.
#[derive(Debug)]
pub(super) struct Absent {
    name: String,
    why: String,
}

impl Absent {
    pub(super) fn new(name: String, why: String) -> Self {
        Self { name, why }
    }

    fn error(&self) -> ProviderError {
        ProviderError::new(ProviderErrorClass::Auth, self.why.clone())
    }
}

impl Provider for Absent {
    fn model(&self) -> &str {
        &self.name
    }

    fn ready(&self) -> Result<(), ProviderError> {
        Err(self.error())
    }

    fn complete<'a>(&'a self, _request: &'a ModelRequest, _cancel: &'a CancelToken) -> ReplyFuture<'a> {
        let failed: Result<ModelReply, ProviderError> = Err(self.error());
        Box::pin(std::future::ready(failed))
    }
}
