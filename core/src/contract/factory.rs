//! Where contracts come from: one deterministic place that chooses policy, scope and budgets (EC phase 2b, V43).
//!
//! Same inputs, same hash (EC-CF1). The rule that chose the policy travels with the contract and is recorded in the first
//! transcript entry (EC-CF3). Calls through the API never look at text; only a page's free text is classified.

use std::sync::Arc;

use super::budget::{Millis, Remaining, Tokens};
use super::manifest::{EXECUTE_PROGRAM, Manifest, ModelProfile};
use super::{CompletionMode, ContextBudget, ContractDraft, ExecutionContract, ToolPolicy};
use crate::ids::Digest;
use crate::message::GrammarRef;

/// Makes contracts for one model and one set of tools.
#[derive(Clone, Debug)]
pub struct ContractFactory {
    /// What exists.
    pub manifest: Arc<Manifest>,
    /// How replies are read, and by which adapter.
    pub profile: ModelProfile,
    /// The grammar that the model writes within, where it has one (EC-GR1).
    pub grammar: Option<GrammarRef>,
    /// Whether contracts are strict; they are also where the profile is (V7).
    pub strict_mode: bool,
    /// The model's window; `None` keeps the default of 8192 tokens.
    pub context_window: Option<u64>,
}

/// Bounds that every kind of run has.
#[derive(Clone, Debug)]
pub struct RunBounds {
    /// Bound of one inference and of one tool call, child runs included.
    pub step_timeout: Millis,
    /// Bound of the whole run.
    pub total_timeout: Millis,
    /// Model tokens, children included; `None` is unlimited.
    pub max_tokens: Option<Tokens>,
    /// The run that starts this one, and what it has left (V40). Bounds above it are cut to it.
    pub parent: Option<(Digest, Remaining)>,
}

impl Default for RunBounds {
    fn default() -> Self {
        Self { step_timeout: Millis(30_000), total_timeout: Millis(300_000), max_tokens: None, parent: None }
    }
}

/// One dynamic call `agent.m(args)`.
#[derive(Clone, Debug)]
pub struct DynamicCall {
    /// Generation attempts N, 1..=4 (C2): N−1 format retries, under a strict contract at most one (V9).
    pub attempts: u32,
    /// Nudges and repairs: further inferences after narration or a failed execution.
    pub nudges: u32,
    /// Time and tokens.
    pub bounds: RunBounds,
}

/// Where free text comes from (EC phase 2b defaults).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Page {
    /// A chat: no tools.
    Chat,
    /// A code page: tools by intent.
    Code,
}

impl ContractFactory {
    /// A dynamic call: `execute_program` must succeed once (unified-kernel 6.1).
    pub fn dynamic_call(&self, call: &DynamicCall) -> ExecutionContract {
        let mut draft = self.draft(ToolPolicy::Required, "api.dynamic_call", &call.bounds);
        draft.allowed_tools = Some(vec![EXECUTE_PROGRAM.into()]);
        draft.completion_mode = CompletionMode::OnRequiredToolOk;
        let retries = call.attempts.saturating_sub(1);
        draft.max_format_retries = if draft.strict_mode { retries.min(1) } else { retries };
        draft.max_semantic_retries = call.nudges;
        draft.max_inferences = call.attempts.saturating_add(call.nudges);
        draft.seal()
    }

    /// A goal run with those tools: ends when the model calls `done`.
    pub fn goal_run(&self, tools: &[Arc<str>], max_inferences: u32, bounds: &RunBounds) -> ExecutionContract {
        let mut draft = self.draft(ToolPolicy::Required, "api.goal_run", bounds);
        draft.allowed_tools = Some(self.in_scope(tools));
        draft.completion_mode = CompletionMode::OnDoneTool;
        draft.max_inferences = max_inferences;
        draft.seal()
    }

    /// Plain chat: no tools, one reply and its retries.
    pub fn chat(&self, bounds: &RunBounds) -> ExecutionContract {
        let mut draft = self.draft(ToolPolicy::Forbidden, "page.chat", bounds);
        draft.max_inferences = 1 + draft.max_format_retries;
        draft.seal()
    }

    /// A request in free text, with the tools its page offers. Explicit tool intent wins over explanatory words (V43).
    pub fn request(&self, page: Page, text: &str, tools: &[Arc<str>], bounds: &RunBounds) -> ExecutionContract {
        let (policy, rule) = match page {
            Page::Chat => return self.chat(bounds),
            Page::Code if has_tool_intent(text) => (ToolPolicy::Required, "page.code.tool_intent"),
            Page::Code if is_explanatory(text) => (ToolPolicy::Optional, "page.code.explanatory"),
            Page::Code => (ToolPolicy::Optional, "page.code.default"),
        };
        let mut draft = self.draft(policy, rule, bounds);
        draft.allowed_tools = Some(self.in_scope(tools));
        draft.seal()
    }

    /// Only what exists: every allowed tool is in the manifest (EC-CF4).
    fn in_scope(&self, tools: &[Arc<str>]) -> Vec<Arc<str>> {
        tools.iter().filter(|name| self.manifest.get(name).is_some()).cloned().collect()
    }

    fn draft(&self, policy: ToolPolicy, rule: &'static str, bounds: &RunBounds) -> ContractDraft {
        let mut draft = ContractDraft::new(policy, self.profile.adapter_version.clone(), self.profile.id.clone());
        draft.strict_mode = self.strict_mode || self.profile.strict;
        draft.token_gate = draft.strict_mode && policy == ToolPolicy::Required;
        draft.policy_rule = Some(rule.into());
        // The grammar is that of a call, and where none may come no reply follows it.
        if let Some(GrammarRef { profile, sha256 }) = self.grammar.as_ref().filter(|_| policy != ToolPolicy::Forbidden)
        {
            draft.grammar_profile = Some(profile.clone());
            draft.grammar_sha256 = Some(*sha256);
        }
        draft.step_timeout = bounds.step_timeout;
        draft.total_timeout = bounds.total_timeout;
        draft.max_tokens_consumed = bounds.max_tokens;
        if let Some(window) = self.context_window {
            draft.context_budget = ContextBudget { context_window: window, ..draft.context_budget };
        }
        if let Some((parent, remaining)) = &bounds.parent {
            draft.parent_contract_hash = Some(*parent);
            draft.total_timeout = draft.total_timeout.min(remaining.time);
            draft.step_timeout = draft.step_timeout.min(remaining.time);
            draft.max_tokens_consumed = match (draft.max_tokens_consumed, remaining.tokens) {
                (Some(own), Some(left)) => Some(own.min(left)),
                (own, left) => own.or(left),
            };
        }
        draft
    }
}

/// Words that name a file, a command or the workspace together with an action on it.
fn has_tool_intent(text: &str) -> bool {
    const ACTIONS: [&str; 22] = [
        "add", "apply", "build", "change", "commit", "compile", "create", "delete", "edit", "execute", "fix",
        "install", "list", "move", "open", "patch", "read", "refactor", "rename", "run", "search", "write",
    ];
    const OBJECTS: [&str; 17] = [
        "branch",
        "build",
        "command",
        "directory",
        "file",
        "files",
        "folder",
        "function",
        "module",
        "patch",
        "project",
        "repo",
        "repository",
        "script",
        "test",
        "tests",
        "workspace",
    ];
    let has_path = text.split_whitespace().any(|word| {
        let word = word.trim_matches(|c: char| !c.is_alphanumeric());
        word.rsplit_once('.').is_some_and(|(stem, end)| {
            !stem.is_empty() && (1..=4).contains(&end.len()) && end.chars().all(|c| c.is_ascii_lowercase())
        })
    });
    let words = words(text);
    let acts = words.iter().any(|word| ACTIONS.contains(&word.as_str()));
    acts && (has_path || words.iter().any(|word| OBJECTS.contains(&word.as_str())))
}

/// Words that ask for an explanation.
fn is_explanatory(text: &str) -> bool {
    const WORDS: [&str; 9] =
        ["compare", "describe", "difference", "explain", "how", "meaning", "understand", "what", "why"];
    words(text).iter().any(|word| WORDS.contains(&word.as_str()))
}

fn words(text: &str) -> Vec<String> {
    text.split(|c: char| !c.is_alphanumeric()).filter(|word| !word.is_empty()).map(str::to_lowercase).collect()
}
