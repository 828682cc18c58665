//! The requests of one generation: which target is asked, what a request costs, what becomes of one that fails, and how a
//! reply reaches the kernel.

use std::borrow::Cow;
use std::cell::RefCell;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, OnceLock};
use std::task::Poll;
use std::time::{Duration, Instant, SystemTime};

use super::{Attempts, bounded};
use crate::accounting::{AccountingEntry, Prices};
use crate::adapter::{self, Profile, Wanted};
use crate::agent::call::{self, Call};
use crate::agent::host::CallHost;
use crate::cancel::CancelToken;
use crate::contract::delegation::Acceptance;
use crate::contract::manifest::EXECUTE_PROGRAM;
use crate::contract::{Tokens, ToolPolicy};
use crate::kernel::{Ask, Inference, Input};
use crate::message::{AdapterDecision, AgentMessage, CallFormat, ModelReply, RawToolCall, Usage};
use crate::outcome::{ProgramSource, Reason};
use crate::program::Language;
use crate::prompt::{self, Prompt, PromptContract, PromptInput};
use crate::provider::rotation::Rotation;
use crate::provider::{ModelRequest, Provider, ProviderError, ProviderErrorClass, ToolSpec, secret, targets};
use crate::value::{Map, Value};

/// How long a provider may overrun its own timeout before it is left behind.
const PROVIDER_GRACE: Duration = Duration::from_millis(100);

/// How long one request may take.
#[derive(Clone, Copy)]
struct Patience {
    /// As a whole.
    within: Duration,
    /// The reply comes in pieces, whose silence the provider bounds by itself (SC-3.18).
    streams: bool,
}

impl<'a> Attempts<'a> {
    /// Requests to the model until one is answered; a failing target is followed by the next while requests are left
    /// (AC-7.7, SC-3.*).
    pub(super) async fn infer(&mut self, ask: &Ask) -> Input {
        let call = self.call;
        let settings = &call.agent.0.settings;
        if self.prompt.is_none() {
            let prompt = self.build_prompt();
            self.prompt = Some(prompt);
        }
        loop {
            if let Some(end) = self.nothing_left() {
                return end;
            }
            self.generations += 1;
            let target = target_of(&settings.provider, self.rotation.target());
            self.watching.started(self.generations, ask.hold_text);
            let request = self.request(ask);
            let prompt_bytes = prompt_bytes(&request);
            // The provider gives up by itself; one that does not is left behind.
            let streams = target.streams(&request);
            let patience = Patience { within: if streams { request.total } else { request.timeout }, streams };
            let began = Instant::now();
            let reply = complete(&**target, &request, &call.trace.cancel);
            let reply = call::within(reply, target.model(), patience.within + PROVIDER_GRACE, &call.trace.cancel)
                .await
                .unwrap_or_else(|| Err(given_up(call, target.model(), patience)));
            let entry = AccountingEntry::new(target.model(), SystemTime::now(), began.elapsed());
            let (mut entry, must_be_priced) = match &reply {
                Ok(reply) => (answered(entry, reply, prompt_bytes, &settings.prices), reply.source.is_none()),
                Err(error) => (refused(entry, error, &settings.prices), error.usage.is_some()),
            };
            let error = match reply.and_then(|reply| whole(reply, target.model())) {
                Ok(reply) => {
                    self.account(entry, must_be_priced);
                    return self.replied(reply, &**target, prompt_bytes);
                }
                Err(error) => error,
            };
            // The kernel never sees this reply, so its tokens are counted here.
            call.trace.charge(entry.usage.input.saturating_add(entry.usage.output));
            entry.refuse(error.class.as_str(), bounded(&error.message));
            self.account(entry, must_be_priced);
            self.failed("provider", error.class.as_str(), &error.message);
            if let Some(end) = self.unanswered(target.model(), error, patience).await {
                return end;
            }
        }
    }

    /// Why no further request may be made: none is left, or no money or tokens for it.
    fn nothing_left(&self) -> Option<Input> {
        if self.rotation.left() == 0 {
            // The contract would take another reply, but no request is left for it (SC-1.15, S1).
            let last = self.failures.last().map_or("", |failure| &failure.error_message);
            return Some(Input::ProviderFailed { message: bounded(last).into() });
        }
        self.over_budget()
    }

    /// No money or tokens are left for a request.
    fn over_budget(&self) -> Option<Input> {
        let trace = &self.call.trace;
        // What the kernel saw of the tokens it bounds itself; replies that held nothing never came to it.
        let tokens = || trace.over_tokens().filter(|_| !self.unanswered.is_empty());
        let message = trace.over_cost().or_else(tokens)?;
        let message = match self.unanswered.last() {
            Some((_, error)) => bounded(&format!("{message}; the last request failed: {}", error.message)),
            None => message,
        };
        Some(Input::BudgetSpent { message: message.into() })
    }

    /// A whole reply of a target, on its way to the adapter: of a list's, it is said who answered, and after whom.
    fn replied(&mut self, mut reply: ModelReply, target: &dyn Provider, prompt_bytes: u64) -> Input {
        if !self.call.agent.0.settings.provider.targets().is_empty() {
            reply.model.get_or_insert_with(|| target.model().to_owned());
            reply.note = targets::fallback_note(target.model(), &self.unanswered).or(reply.note);
        }
        self.inferred(&reply, prompt_bytes)
    }

    /// What follows a failed request: the next one, after its wait, or the end of the inference.
    async fn unanswered(&mut self, model: &str, error: ProviderError, patience: Patience) -> Option<Input> {
        let call = self.call;
        if error.class == ProviderErrorClass::Cancelled {
            return Some(Input::Cancelled { raw_hash: None });
        }
        if error.class == ProviderErrorClass::ContextOverflow {
            // S11: the window of a target is a matter for whoever watches over the flow, also when the next one answers.
            tracing::warn!(
                target_model = model,
                error_class = error.class.as_str(),
                "a request is too large for a model"
            );
        }
        let next = self.rotation.failed(&error).filter(|_| !error.class.is_fatal() && !call.is_over());
        // A window is too small a second time, and a name is wrong; another target's may not be (SC-3.20, SC-3.28).
        let alone = call.agent.0.settings.provider.targets().is_empty();
        let hopeless =
            alone && matches!(error.class, ProviderErrorClass::ContextOverflow | ProviderErrorClass::ModelError);
        match next {
            Some(wait) if !hopeless && wait < call.left() => {
                self.unanswered.push((model.to_owned(), error));
                let wait = if call.agent.0.settings.provider.waits() { wait } else { Duration::ZERO };
                call.agent.runtime().waits().pause(wait, &call.trace.cancel).await;
                if call.trace.cancel.is_cancelled() { Some(Input::Cancelled { raw_hash: None }) } else { None }
            }
            _ if error.class == ProviderErrorClass::Timeout => {
                // The call's own words are only told beside those of targets that failed before.
                let of_call = || Some(call.timeout_words()).filter(|_| !self.unanswered.is_empty());
                self.time_up = model_timeout(call, model, &error, patience).or_else(of_call).map(|words| {
                    let mut failures = std::mem::take(&mut self.unanswered);
                    failures.push((model.to_owned(), ProviderError::new(error.class, words)));
                    targets::all_failed(failures).message
                });
                Some(Input::TimedOut { raw_hash: None })
            }
            Some(_) | None => {
                let fatal = error.class.is_fatal();
                self.refused = matches!(
                    error.class,
                    ProviderErrorClass::Auth
                        | ProviderErrorClass::Quota
                        | ProviderErrorClass::ModelError
                        | ProviderErrorClass::ContextOverflow
                );
                let error = match next {
                    Some(wait) if !hopeless => too_late(error, wait, call.left()),
                    Some(_) | None => error,
                };
                self.unanswered.push((model.to_owned(), error));
                if let Some(end) = self.over_budget().filter(|_| !fatal) {
                    return Some(end);
                }
                let failures = std::mem::take(&mut self.unanswered);
                // Who is refused by an account is told that, and nothing else.
                let message = if fatal {
                    failures.into_iter().next_back().map(|(_, error)| error.message).unwrap_or_default()
                } else {
                    targets::all_failed(failures).message
                };
                Some(Input::ProviderFailed { message: bounded(&message).into() })
            }
        }
    }

    /// Counts a request: for the caller, and for the flow.
    /// `must_be_priced`: a model answered, so a limit of money cannot hold without its price.
    fn account(&mut self, entry: AccountingEntry, must_be_priced: bool) {
        self.call.trace.charge_cost(&entry, must_be_priced);
        self.accounting.push(entry);
    }

    fn request(&self, ask: &Ask) -> ModelRequest {
        let call = self.call;
        let settings = &call.agent.0.settings;
        let total = call.left();
        let several = !settings.provider.targets().is_empty();
        let required = self.frame.contract.tool_policy() == ToolPolicy::Required;
        let fair = if several { targets::share(total, self.rotation.left()) } else { total };
        let (system_prompt, user_prompt) =
            self.prompt.as_ref().map(|prompt| (prompt.system.clone(), prompt.user.clone())).unwrap_or_default();
        ModelRequest {
            role: call.agent.role().clone(),
            method: call.method.clone(),
            args: call.args.clone(),
            kwargs: call.kwargs.clone(),
            language: settings.language,
            system_prompt,
            user_prompt,
            messages: self.feedback.iter().map(without_secrets).collect(),
            tools: if ask.offer_tools { offered_tools(settings.language) } else { Arc::new([]) },
            attempt: self.generations,
            timeout: settings.provider_timeout.min(fair),
            total,
            max_output_tokens: ask.max_output_tokens.and_then(|tokens| u32::try_from(tokens).ok()),
            // A contract without a token gate holds nothing back, but the call that it requires is required all the same: a
            // gated model that stands in for another must not narrate either.
            hold_text: ask.hold_text || required && self.program.is_none(),
            grammar: ask.constraints.grammar_sha256,
            pieces: self.watching.sink(),
        }
    }

    /// Hands a reply to the adapter, with the compiler as its judge of programs.
    fn inferred(&mut self, reply: &ModelReply, prompt_bytes: u64) -> Input {
        let settings = &self.call.agent.0.settings;
        let compiled = RefCell::new(None);
        let compile = |code: &str| {
            let executor = self.executor().ok_or_else(|| format!("this build runs no {}", settings.language))?;
            let program = executor.compile(code, &settings.limits).map_err(|error| error.message)?;
            *compiled.borrow_mut() = Some(program);
            Ok(())
        };
        let contract = &self.frame.contract;
        // PRECHECK lets no other profile pass.
        let profile = Profile::from_name(contract.model_profile_id()).unwrap_or(Profile::Program);
        let wanted = Wanted { tool: EXECUTE_PROGRAM, language: settings.language.as_str(), compiles: &compile };
        let result = adapter::adapt(profile, &wanted, contract.strict_mode(), reply);
        self.program = compiled.into_inner();
        self.source = reply.source.unwrap_or(ProgramSource::Generated);
        self.note = reply.note.clone();
        self.unanswered.clear();
        let (language, format) = (settings.language, profile.format());
        let refused = match &result.decision {
            AdapterDecision::Rejected { failure, detail } => {
                Some((failure.as_str(), detail.as_str(), prompt::rejected(*failure, detail, language, format)))
            }
            AdapterDecision::Native(message) | AdapterDecision::Recovered(message) if message.tool_calls.is_empty() => {
                let words = "the model talked, and wrote no program";
                Some((Reason::Narration.as_str(), words, prompt::nudge(language, format)))
            }
            AdapterDecision::Native(_) | AdapterDecision::Recovered(_) => None,
        };
        if let Some((code, detail, feedback)) = refused {
            if let Some(entry) = self.accounting.last_mut() {
                entry.refuse(ProviderErrorClass::InvalidResponse.as_str(), bounded(&format!("{code}: {detail}")));
            }
            self.rotation.refused();
            self.failed("adapter", code, detail);
            self.feedback = Some(feedback);
        } else if let Some(program) = &self.program {
            self.watching.written(&program.code);
        }
        let cancelled = self.call.trace.cancel.is_cancelled();
        let usage = reply.usage.map(plausible);
        Input::Inferred(Box::new(Inference { result, usage, prompt_bytes, chunks: Vec::new(), cancelled }))
    }

    /// In which form the model is asked for its program.
    pub(super) fn format(&self) -> CallFormat {
        let profile = Profile::from_name(self.frame.contract.model_profile_id());
        profile.map_or(CallFormat::Any, Profile::format)
    }

    fn build_prompt(&mut self) -> Prompt {
        let call = self.call;
        let settings = &call.agent.0.settings;
        let delegation = &settings.delegation;
        let acceptance: Vec<&str> = delegation
            .acceptance()
            .iter()
            .map(|item| match item {
                Acceptance::Prose(text) | Acceptance::Assert(text) => text.as_str(),
            })
            .collect();
        let context = CallHost::new(self.frame).attempt.snapshot();
        // Models see no secret, neither by its name nor by its value. Programs do.
        let shown =
            |map: &Map| map.iter().map(|(key, value)| (key.clone(), secret::masked_entry(key, value))).collect();
        let (args, kwargs): (Vec<_>, Map) = (call.args.iter().map(secret::masked).collect(), shown(&call.kwargs));
        let shown_context: Map = shown(&context);
        let remembered = call.agent.remembered();
        let history: Vec<_> = remembered.iter().map(|entry| entry.line().clone()).collect();
        let delegates = call.agent.runtime().delegates().of(call.agent.maker());
        let Prompt { system, user } = prompt::build(&PromptInput {
            role: call.agent.role(),
            method: &call.method,
            args: &args,
            kwargs: &kwargs,
            language: settings.language,
            contract: PromptContract {
                purpose: delegation.purpose(),
                deliverable: delegation.deliverable(),
                acceptance: &acceptance,
                failure_policy: None,
            },
            context: &shown_context,
            history: &history,
            tools: &settings.tool_docs,
            delegates: &delegates,
            format: self.format(),
        });
        self.shown = (context, remembered);
        Prompt { system: scrubbed(system), user: scrubbed(user) }
    }
}

/// The provider's reply; its panic is a failure like any other.
async fn complete(
    provider: &dyn Provider,
    request: &ModelRequest,
    cancel: &CancelToken,
) -> Result<ModelReply, ProviderError> {
    let mut reply = std::pin::pin!(async { provider.complete(request, cancel).await });
    std::future::poll_fn(|context| {
        catch_unwind(AssertUnwindSafe(|| reply.as_mut().poll(context))).unwrap_or_else(|_| {
            let message = format!("the provider {} panicked", provider.model());
            Poll::Ready(Err(ProviderError::new(ProviderErrorClass::Failed, message)))
        })
    })
    .await
}

fn given_up(call: &Call<'_>, model: &str, patience: Patience) -> ProviderError {
    if call.trace.cancel.is_cancelled() {
        ProviderError::cancelled()
    } else {
        ProviderError::timed_out(model, patience.within)
    }
}

/// The entry with what a reply says about itself. Where it says nothing of tokens, its cost is estimated from the bytes, as
/// its tokens are (V18).
fn answered(mut entry: AccountingEntry, reply: &ModelReply, prompt_bytes: u64, prices: &Prices) -> AccountingEntry {
    entry.usage = reply.usage.map(plausible).unwrap_or_default();
    let calls: usize = reply.tool_calls.iter().map(|call| call.arguments.len()).sum();
    let reply_bytes = (reply.content.as_ref().map_or(0, String::len) + calls) as u64;
    let estimate = || Usage {
        input: Tokens::estimate(prompt_bytes).0,
        output: Tokens::estimate(reply_bytes).0,
        ..Usage::default()
    };
    let counted = reply.usage.map_or_else(estimate, plausible);
    entry.cost = prices.cost(&entry.target, reply.model.as_deref(), &counted);
    entry.stopped(reply.stop_reason.as_deref());
    entry.omitted_params = reply.omitted.clone();
    entry.routed(reply.provider.as_deref(), reply.model.as_deref());
    entry
}

/// The entry of a request that failed: what it used all the same.
fn refused(mut entry: AccountingEntry, error: &ProviderError, prices: &Prices) -> AccountingEntry {
    if let Some(usage) = error.usage.map(plausible) {
        entry.cost = prices.cost(&entry.target, None, &usage);
        entry.usage = usage;
    }
    entry
}

/// The reply, unless it ended before its end: a program in its text may lack its last lines (EC-AD1). A structured
/// call shows by its own form whether it is whole.
fn whole(reply: ModelReply, model: &str) -> Result<ModelReply, ProviderError> {
    let words = match reply.stop_reason.as_deref().unwrap_or_default().to_ascii_lowercase().as_str() {
        "length" | "max_tokens" | "max_output_tokens" => {
            "the reply was cut at its limit of tokens; raise `max_output_tokens`"
        }
        "model_context_window_exceeded" => "the reply was cut where the model's window ends",
        "content_filter" | "safety" | "recitation" | "refusal" | "prohibited_content" | "blocklist" | "spii" => {
            "a filter of the server cut the reply"
        }
        "incomplete" => "the server says that the reply was cut, and not why",
        _ => return Ok(reply),
    };
    let is_whole = |call: &RawToolCall| match Value::from_json(&call.arguments) {
        Ok(Value::Map(arguments)) => !arguments.is_empty(),
        Ok(_) | Err(_) => false,
    };
    if !reply.tool_calls.is_empty() && reply.tool_calls.iter().all(is_whole) {
        return Ok(reply);
    }
    Err(ProviderError::new(ProviderErrorClass::InvalidResponse, format!("{model}: {words}")))
}

/// The requests of one generation.
pub(super) fn rotation(call: &Call<'_>) -> Rotation {
    let settings = &call.agent.0.settings;
    Rotation::new(settings.provider.targets().len(), settings.generation_attempts())
}

/// One of a list's targets; a provider that is no list is its only one.
fn target_of(provider: &Arc<dyn Provider>, index: usize) -> &Arc<dyn Provider> {
    provider.targets().get(index).unwrap_or(provider)
}

/// What a caller is told when the model's time ran out; nothing when it was the call's.
fn model_timeout(call: &Call<'_>, model: &str, error: &ProviderError, patience: Patience) -> Option<String> {
    let settings = &call.agent.0.settings;
    // A host's own provider may have given up earlier, for its own reasons.
    let own_words = *error != ProviderError::timed_out(model, patience.within);
    if patience.streams {
        // Bounded by its silence, of which the provider tells, and as a whole by the call.
        return own_words.then(|| error.message.clone());
    }
    if patience.within < settings.provider_timeout {
        return None;
    }
    let allowed_ms = patience.within.as_millis();
    let words = format!("{model} took longer than {allowed_ms} ms; raise `provider_timeout_seconds`");
    Some(if own_words { format!("{words} ({})", error.message) } else { words })
}

/// The failure of a target that might answer later, when later is too late.
fn too_late(error: ProviderError, wait: Duration, left: Duration) -> ProviderError {
    let (wait, left) = (wait.as_secs_f64(), left.as_secs_f64());
    let why = format!(
        "the next request would have to wait {wait:.0} s, and the call has {left:.0} s left; raise `call_timeout_seconds`"
    );
    ProviderError { message: format!("{}; {why}", error.message), ..error }
}

/// Token counts come from a server or from a host's function. What no model ever used in one reply is cut.
fn plausible(usage: Usage) -> Usage {
    const MOST: u64 = 1 << 40;
    let [input, cached, output, cache_write, reasoning] =
        [usage.input, usage.cached, usage.output, usage.cache_write, usage.reasoning].map(|count| count.min(MOST));
    Usage { input, cached, output, cache_write, reasoning }
}

/// `execute_program`, as it is offered to a model.
pub(in crate::agent) fn offered_tools(language: Language) -> Arc<[ToolSpec]> {
    static OFFERED: [OnceLock<Arc<[ToolSpec]>>; Language::ALL.len()] = [const { OnceLock::new() }; Language::ALL.len()];
    let offered = OFFERED[language as usize].get_or_init(|| {
        [ToolSpec {
            name: EXECUTE_PROGRAM.into(),
            description: prompt::EXECUTE_PROGRAM_DESCRIPTION.into(),
            parameters: prompt::execute_program_parameters(language),
        }]
        .into()
    });
    offered.clone()
}

fn without_secrets(message: &AgentMessage) -> AgentMessage {
    AgentMessage { content: secret::scrub(&message.content).into_owned(), ..message.clone() }
}

fn prompt_bytes(request: &ModelRequest) -> u64 {
    let messages: usize = request.messages.iter().map(|message| message.content.len()).sum();
    (request.system_prompt.len() + request.user_prompt.len() + messages) as u64
}

/// The text without secrets; the same text when there are none.
fn scrubbed(text: Arc<str>) -> Arc<str> {
    match secret::scrub(&text) {
        Cow::Borrowed(_) => text,
        Cow::Owned(scrubbed) => scrubbed.into(),
    }
}
