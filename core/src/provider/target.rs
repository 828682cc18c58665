//! How a target is reached and asked: address, keys, headers, sampling, thinking (SC-1.46 to 1.51).
//!
//! The same set stands in three places: the runtime's or agent's options, the provider's part of the configuration, and
//! the target itself. The nearer one wins, field by field, and an explicit `null` there takes a field away (SC-1.48).
//! Knows no wire format: a dialect writes the fields under its vendor's names.

use std::collections::BTreeMap;
use std::path::PathBuf;

use super::{Output, Secret};
use crate::value::Value;

/// A field that may be left as it is (`None`), taken away (`Some(None)`) or set.
pub type Field<T> = Option<Option<T>>;

/// Named entries, laid over the farther place's one by one; each may be taken away, and all of them together.
#[derive(Clone, Debug, PartialEq)]
pub struct Entries<T> {
    near: BTreeMap<String, Option<T>>,
    /// The farther place's entries are taken away.
    alone: bool,
}

impl<T> Default for Entries<T> {
    fn default() -> Self {
        Self { near: BTreeMap::new(), alone: false }
    }
}

impl<T> From<BTreeMap<String, Option<T>>> for Entries<T> {
    /// These entries, over those of farther places.
    fn from(near: BTreeMap<String, Option<T>>) -> Self {
        Self { near, alone: false }
    }
}

impl<T: Clone> Entries<T> {
    /// No entries, whatever farther places say.
    pub fn none() -> Self {
        Self { near: BTreeMap::new(), alone: true }
    }

    /// Every entry by name; `None` for one that is taken away.
    pub fn iter(&self) -> impl Iterator<Item = (&String, &Option<T>)> {
        self.near.iter()
    }

    /// The entry of that name, unless it is taken away.
    pub fn get(&self, name: &str) -> Option<&T> {
        self.near.get(name)?.as_ref()
    }

    fn over(self, far: &Self) -> Self {
        if self.alone {
            return self;
        }
        let mut near = far.near.clone();
        near.extend(self.near);
        Self { near, alone: far.alone }
    }
}

/// Tokens that `extended_thinking = true` stands for.
pub const DEFAULT_THINKING_TOKENS: u32 = 4_096;

/// What one place says about a target; `None` leaves a field to the next place.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct TargetOptions {
    /// `base_url`: where the server answers.
    pub base_url: Option<String>,
    /// `api_key`.
    pub api_key: Option<Secret>,
    /// `api_key_file`: read once, when the model is resolved.
    pub api_key_file: Option<PathBuf>,
    /// `output`: how a program is asked for.
    pub output: Option<Output>,
    /// `stream`: whether the reply is asked for piece by piece.
    pub stream: Option<bool>,
    /// `headers` that go with every request, by name. Their values may be keys.
    pub headers: Entries<Secret>,
    /// `proxy`: the URL of one for this target alone; taken away, none is used.
    pub proxy: Field<Secret>,
    /// `context_size`: tokens that prompt and reply of a local model may have together.
    pub context_size: Option<u32>,
    /// `threads` that compute a local model.
    pub threads: Option<u32>,
    /// `gpu_layers`: layers of a local model that a GPU holds.
    pub gpu_layers: Option<u32>,
    /// What the model is told beside the words.
    pub params: Params,
}

/// What a model is told beside the words. Every field is sent as it is given: bounds differ between vendors.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Params {
    /// `temperature`.
    pub temperature: Field<f64>,
    /// `top_p`.
    pub top_p: Field<f64>,
    /// `repeat_penalty`; vendors without one are not told (S18).
    pub repeat_penalty: Field<f64>,
    /// `seed`.
    pub seed: Field<i64>,
    /// `max_output_tokens`.
    pub max_output_tokens: Field<u32>,
    /// `reasoning_effort`: the vendor's word, such as `high`.
    pub reasoning_effort: Field<String>,
    /// `extended_thinking`: tokens that the model may think for.
    pub extended_thinking: Field<u32>,
    /// `extra`: fields of the wire that have no name here, passed through.
    pub extra: Entries<Value>,
    /// `force_params`: send also what the model is known to refuse (S18).
    pub force_params: Option<bool>,
}

impl TargetOptions {
    /// Whether they say nothing.
    pub fn is_empty(&self) -> bool {
        *self == Self::default()
    }

    /// The options that are set here, by name, those of [`Params`] last.
    pub(super) fn given(&self) -> Vec<&'static str> {
        let own = set([
            ("base_url", self.base_url.is_some()),
            ("api_key", self.api_key.is_some()),
            ("api_key_file", self.api_key_file.is_some()),
            ("headers", self.headers.iter().any(|(_, value)| value.is_some())),
            ("proxy", self.proxy.as_ref().is_some_and(Option::is_some)),
            ("stream", self.stream.is_some()),
            ("threads", self.threads.is_some()),
            ("gpu_layers", self.gpu_layers.is_some()),
            ("context_size", self.context_size.is_some()),
            ("output", self.output.is_some()),
        ]);
        own.chain(self.params.given()).collect()
    }

    /// These options with `far` behind them: what is not said here is taken from there.
    pub fn over(self, far: &Self) -> Self {
        // A key belongs to the address that it was given with: another address does not get the farther place's key.
        let same_place = self.base_url.is_none();
        let own_key = self.api_key.is_some() || self.api_key_file.is_some();
        let key = |of: &Self| (of.api_key.clone(), of.api_key_file.clone());
        let (api_key, api_key_file) = if own_key || !same_place { key(&self) } else { key(far) };
        let headers = if same_place { self.headers.over(&far.headers) } else { self.headers };
        Self {
            base_url: self.base_url.or_else(|| far.base_url.clone()),
            api_key,
            api_key_file,
            output: self.output.or(far.output),
            stream: self.stream.or(far.stream),
            headers,
            proxy: self.proxy.or_else(|| far.proxy.clone()),
            context_size: self.context_size.or(far.context_size),
            threads: self.threads.or(far.threads),
            gpu_layers: self.gpu_layers.or(far.gpu_layers),
            params: self.params.over(&far.params),
        }
    }
}

/// The names of what is set.
fn set<const N: usize>(options: [(&'static str, bool); N]) -> impl Iterator<Item = &'static str> {
    options.into_iter().filter(|(_, is_set)| *is_set).map(|(name, _)| name)
}

impl Params {
    /// What is set here for the model, by name; `force_params` says nothing to it.
    pub(super) fn given(&self) -> impl Iterator<Item = &'static str> {
        set([
            ("temperature", self.temperature.flatten().is_some()),
            ("top_p", self.top_p.flatten().is_some()),
            ("repeat_penalty", self.repeat_penalty.flatten().is_some()),
            ("seed", self.seed.flatten().is_some()),
            ("max_output_tokens", self.max_output_tokens.flatten().is_some()),
            ("reasoning_effort", self.reasoning_effort.as_ref().is_some_and(Option::is_some)),
            ("extended_thinking", self.extended_thinking.flatten().is_some()),
            ("extra", self.extra.iter().any(|(_, value)| value.is_some())),
        ])
    }

    fn over(self, far: &Self) -> Self {
        Self {
            temperature: self.temperature.or(far.temperature),
            top_p: self.top_p.or(far.top_p),
            repeat_penalty: self.repeat_penalty.or(far.repeat_penalty),
            seed: self.seed.or(far.seed),
            max_output_tokens: self.max_output_tokens.or(far.max_output_tokens),
            reasoning_effort: self.reasoning_effort.or_else(|| far.reasoning_effort.clone()),
            extended_thinking: self.extended_thinking.or(far.extended_thinking),
            extra: self.extra.over(&far.extra),
            force_params: self.force_params.or(far.force_params),
        }
    }
}
