//! What models refuse: a table by vendor and model, so that a parameter a model would answer with an error is left out and
//! said to be (S18). Models that are not in it are told everything that their wire format has a name for.

use super::Output;
use super::dialect::{Vendor, thinking_within};
use super::target::Params;

/// What of these parameters goes to a model, and the names of those that do not.
pub(super) fn admitted(vendor: Vendor, model: &str, params: &Params) -> (Params, Vec<&'static str>) {
    let (mut params, mut omitted) = (params.clone(), Vec::new());
    if params.force_params == Some(true) {
        return (params, omitted);
    }
    let refused = refused(vendor, model, &params);
    let mut refuse = |name: &'static str, given: bool, clear: &mut dyn FnMut()| {
        if given && refused.contains(&name) {
            clear();
            omitted.push(name);
        }
    };
    refuse("temperature", params.temperature.flatten().is_some(), &mut || params.temperature = None);
    refuse("top_p", params.top_p.flatten().is_some(), &mut || params.top_p = None);
    refuse("repeat_penalty", params.repeat_penalty.flatten().is_some(), &mut || params.repeat_penalty = None);
    refuse("seed", params.seed.flatten().is_some(), &mut || params.seed = None);
    let effort = params.reasoning_effort.as_ref().is_some_and(Option::is_some);
    refuse("reasoning_effort", effort, &mut || params.reasoning_effort = None);
    let thinking = params.extended_thinking.flatten().is_some();
    refuse("extended_thinking", thinking, &mut || params.extended_thinking = None);
    (params, omitted)
}

/// How a model is asked for a program when nothing is said: as it can best be held to it. Ollama can force no tool, but
/// holds every model to a schema.
pub(super) fn output(vendor: Vendor, model: &str, params: &Params) -> Output {
    let held_by_schema = match vendor {
        Vendor::OpenAi => refuses_tools(model, params),
        Vendor::Anthropic => !may_be_forced(model),
        Vendor::Ollama => true,
        Vendor::OpenAiResponses | Vendor::OpenAiCompatible | Vendor::Gemini => false,
    };
    if held_by_schema { Output::JsonSchema } else { Output::Tool }
}

/// Whether a model may be told which tool it must use: Fable and Mythos from 5.1 on may not, and no Claude from 5.5 on.
pub(super) fn may_be_forced(claude: &str) -> bool {
    let first = if ["fable", "mythos"].iter().any(|name| claude.contains(name)) { (5, 1) } else { (5, 5) };
    anthropic_version(claude) < first
}

/// Whether a model refuses tools in chat completions: from 5.4 on while it reasons, which it does by itself from 5.6 on.
fn refuses_tools(gpt: &str, params: &Params) -> bool {
    let effort = params.reasoning_effort.as_ref().and_then(Option::as_deref);
    let reasons = |version| effort.map_or(version >= (5, 6), |effort| effort != "none");
    gpt_version(gpt).is_some_and(|version| version >= (5, 4) && reasons(version))
}

fn refused(vendor: Vendor, model: &str, params: &Params) -> Vec<&'static str> {
    match vendor {
        Vendor::OpenAi => openai(model, params),
        Vendor::OpenAiResponses => [&openai(model, params)[..], &["seed"]].concat(),
        // Whatever runs behind it: the server says what it does not know.
        Vendor::OpenAiCompatible => vec!["extended_thinking"],
        Vendor::Anthropic => anthropic(model, params),
        Vendor::Gemini => gemini(model, params),
        Vendor::Ollama => ollama(params),
    }
}

/// Models from 3 on are told a level, those of 2.5 a number of tokens, and older ones do not think.
fn gemini(model: &str, params: &Params) -> Vec<&'static str> {
    let mut refused = vec!["repeat_penalty"];
    let name = model.rsplit('/').next().unwrap_or(model);
    if name.starts_with("gemini-1") || name.starts_with("gemini-2.0") {
        refused.extend(["reasoning_effort", "extended_thinking"]);
    } else if name.starts_with("gemini-2.5") {
        refused.push("reasoning_effort");
    } else if params.reasoning_effort.as_ref().is_some_and(Option::is_some) {
        // One or the other.
        refused.push("extended_thinking");
    }
    refused
}

/// It knows three levels, and none.
fn ollama(params: &Params) -> Vec<&'static str> {
    let effort = params.reasoning_effort.as_ref().and_then(Option::as_deref);
    let known = effort.is_none_or(|effort| ["none", "low", "medium", "high"].contains(&effort));
    if known { Vec::new() } else { vec!["reasoning_effort"] }
}

/// Reasoning models refuse sampling, those that can be told not to reason only while they do; the others refuse to be told
/// how much to reason.
fn openai(model: &str, params: &Params) -> Vec<&'static str> {
    let model = base_of(model);
    let version = gpt_version(model);
    let is_chat = model.split('-').any(|part| part == "chat");
    let is_o = ["o1", "o3", "o4"].iter().any(|prefix| model.starts_with(prefix));
    let reasons = is_o || version.is_some_and(|version| version >= (5, 0)) && !is_chat;
    let told_not_to = params.reasoning_effort.as_ref().and_then(Option::as_deref) == Some("none");
    let mut refused = vec!["repeat_penalty", "extended_thinking"];
    if !reasons {
        refused.push("reasoning_effort");
    } else if !told_not_to || version < Some((5, 1)) {
        refused.extend(["temperature", "top_p"]);
    }
    refused
}

/// The model that a name stands for: `ft:o4-mini-2025-04-16:org::id` is one that was trained further.
fn base_of(model: &str) -> &str {
    model.strip_prefix("ft:").map_or(model, |rest| rest.split(':').next().unwrap_or(rest))
}

/// `gpt-5.6-terra` by its numbers; `None` for other families.
fn gpt_version(model: &str) -> Option<(u32, u32)> {
    let number = base_of(model).strip_prefix("gpt-")?.split('-').next()?;
    let (major, minor) = number.split_once('.').unwrap_or((number, "0"));
    Some((major.parse().ok()?, minor.parse().ok()?))
}

/// Models from 4.7 on refuse sampling, and older ones while they think; 4.1 to 4.5 refuse two kinds of it together. Effort is
/// known from 4.6 on, and to Opus 4.5; thinking from 3.7 on, and thoughts must leave room for an answer.
fn anthropic(model: &str, params: &Params) -> Vec<&'static str> {
    let version = anthropic_version(model);
    let budget = params.extended_thinking.flatten();
    let room = |budget| thinking_within(version, budget, params.max_output_tokens.flatten()).is_some();
    let can_think = version >= (3, 7);
    let thinks = can_think && budget.is_some_and(room);
    let mut refused = vec!["repeat_penalty", "seed"];
    if version >= (4, 7) || thinks {
        refused.extend(["temperature", "top_p"]);
    } else if ((4, 1)..=(4, 5)).contains(&version) && params.temperature.flatten().is_some() {
        refused.push("top_p");
    }
    if version < (4, 6) && !(version == (4, 5) && model.contains("opus")) {
        refused.push("reasoning_effort");
    }
    if budget.is_some() && !thinks {
        refused.push("extended_thinking");
    }
    refused
}

/// `claude-sonnet-4-5-20250929` and `claude-3-7-sonnet-latest` by their numbers. A name without one is taken for new.
pub(super) fn anthropic_version(model: &str) -> (u32, u32) {
    // Days of release have more digits than a version.
    let small = |part: &&&str| part.len() <= 2;
    let parts: Vec<&str> = model.split(['-', '.', '@', ':', '/']).collect();
    let first = parts.iter().position(|part| part.len() <= 2 && part.parse::<u32>().is_ok());
    let Some(first) = first else { return (u32::MAX, 0) };
    let major = parts[first].parse().unwrap_or(u32::MAX);
    let minor = parts.get(first + 1).filter(small).and_then(|part| part.parse().ok()).unwrap_or(0);
    (major, minor)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_are_read_from_names() {
        for (model, version) in [
            ("claude-sonnet-4-5-20250929", (4, 5)),
            ("claude-3-7-sonnet-latest", (3, 7)),
            ("claude-3-opus-20240229", (3, 0)),
            ("claude-opus-4-20250514", (4, 0)),
            ("anthropic.claude-opus-4-7", (4, 7)),
            ("claude-opus-5", (5, 0)),
            ("claude-next", (u32::MAX, 0)),
        ] {
            assert_eq!(anthropic_version(model), version, "{model}");
        }
    }

    /// Who refuses a tool, or to be forced to one, is asked for what holds it all the same.
    #[test]
    fn a_model_is_asked_for_a_program_as_it_can_be_held_to_it() {
        let effort =
            |word: Option<&str>| Params { reasoning_effort: word.map(|word| Some(word.into())), ..Params::default() };
        for (vendor, model, word, expected) in [
            (Vendor::OpenAi, "gpt-4.1", None, Output::Tool),
            (Vendor::OpenAi, "gpt-5.1", Some("high"), Output::Tool),
            (Vendor::OpenAi, "gpt-5.4", None, Output::Tool),
            (Vendor::OpenAi, "gpt-5.4-mini", Some("low"), Output::JsonSchema),
            (Vendor::OpenAi, "gpt-5.6-terra", None, Output::JsonSchema),
            (Vendor::OpenAi, "gpt-5.6-terra", Some("none"), Output::Tool),
            (Vendor::OpenAi, "gpt-6-luna", None, Output::JsonSchema),
            (Vendor::OpenAi, "gpt-6.1-sol-2026-10-20", Some("high"), Output::JsonSchema),
            (Vendor::OpenAi, "o3", Some("high"), Output::Tool),
            (Vendor::OpenAiResponses, "gpt-6-luna", Some("high"), Output::Tool),
            (Vendor::OpenAiCompatible, "gpt-6-luna", None, Output::Tool),
            (Vendor::Anthropic, "claude-sonnet-4-5-20250929", None, Output::Tool),
            (Vendor::Anthropic, "claude-opus-5", None, Output::Tool),
            (Vendor::Anthropic, "claude-fable-5", None, Output::Tool),
            (Vendor::Anthropic, "claude-fable-5-1", None, Output::JsonSchema),
            (Vendor::Anthropic, "anthropic.claude-opus-5-5", None, Output::JsonSchema),
            (Vendor::Anthropic, "claude-haiku-5-5", None, Output::JsonSchema),
            (Vendor::Gemini, "gemini-3.8-flash", Some("high"), Output::Tool),
            (Vendor::Ollama, "qwen3", None, Output::JsonSchema),
        ] {
            assert_eq!(output(vendor, model, &effort(word)), expected, "{model} {word:?}");
        }
    }

    /// S18: what each model refuses is left out and named; whoever forces it sends it.
    #[test]
    fn s18_what_a_model_refuses_is_left_out() {
        let all = Params {
            temperature: Some(Some(0.5)),
            top_p: Some(Some(0.8)),
            repeat_penalty: Some(Some(1.2)),
            seed: Some(Some(7)),
            reasoning_effort: Some(Some("high".into())),
            extended_thinking: Some(Some(4_096)),
            ..Params::default()
        };
        let no_thinking = Params { extended_thinking: None, ..all.clone() };
        let no_reasoning = Params { reasoning_effort: Some(Some("none".into())), ..no_thinking.clone() };
        let omitted = |vendor, model: &str, params: &Params| admitted(vendor, model, params).1;
        for (vendor, model, params, expected) in [
            (Vendor::OpenAi, "gpt-5.1", &all, vec!["temperature", "top_p", "repeat_penalty", "extended_thinking"]),
            (Vendor::OpenAi, "o3-mini", &no_thinking, vec!["temperature", "top_p", "repeat_penalty"]),
            (
                Vendor::OpenAi,
                "ft:o4-mini-2025-04-16:org::id",
                &no_thinking,
                vec!["temperature", "top_p", "repeat_penalty"],
            ),
            (Vendor::OpenAi, "gpt-6-luna", &no_thinking, vec!["temperature", "top_p", "repeat_penalty"]),
            (Vendor::OpenAi, "gpt-6-luna", &no_reasoning, vec!["repeat_penalty"]),
            (Vendor::OpenAi, "gpt-5-mini", &no_reasoning, vec!["temperature", "top_p", "repeat_penalty"]),
            (Vendor::OpenAi, "gpt-5-chat-latest", &no_thinking, vec!["repeat_penalty", "reasoning_effort"]),
            (Vendor::OpenAi, "gpt-4.1", &no_thinking, vec!["repeat_penalty", "reasoning_effort"]),
            (Vendor::OpenAi, "gpt-4o", &no_thinking, vec!["repeat_penalty", "reasoning_effort"]),
            (Vendor::OpenAiResponses, "o3", &no_thinking, vec!["temperature", "top_p", "repeat_penalty", "seed"]),
            (Vendor::OpenAiCompatible, "qwen", &all, vec!["extended_thinking"]),
            (Vendor::Gemini, "gemini-3-pro", &all, vec!["repeat_penalty", "extended_thinking"]),
            (Vendor::Gemini, "gemini-2.5-flash", &all, vec!["repeat_penalty", "reasoning_effort"]),
            (Vendor::Gemini, "gemini-2.0-flash", &no_thinking, vec!["repeat_penalty", "reasoning_effort"]),
            (Vendor::Ollama, "qwen3", &all, vec![]),
            (
                Vendor::Anthropic,
                "claude-opus-4-7",
                &no_thinking,
                vec!["temperature", "top_p", "repeat_penalty", "seed"],
            ),
            (Vendor::Anthropic, "claude-opus-4-6", &no_thinking, vec!["repeat_penalty", "seed"]),
            (Vendor::Anthropic, "claude-opus-4-6", &all, vec!["temperature", "top_p", "repeat_penalty", "seed"]),
            (
                Vendor::Anthropic,
                "claude-sonnet-4-5",
                &no_thinking,
                vec!["top_p", "repeat_penalty", "seed", "reasoning_effort"],
            ),
            (
                Vendor::Anthropic,
                "claude-haiku-4-5-20251001",
                &all,
                vec!["temperature", "top_p", "repeat_penalty", "seed", "reasoning_effort"],
            ),
            (Vendor::Anthropic, "claude-opus-4-5", &no_thinking, vec!["top_p", "repeat_penalty", "seed"]),
            (Vendor::Anthropic, "claude-sonnet-4-6", &no_thinking, vec!["repeat_penalty", "seed"]),
            // What cannot think keeps its sampling.
            (
                Vendor::Anthropic,
                "claude-3-5-haiku-latest",
                &all,
                vec!["repeat_penalty", "seed", "reasoning_effort", "extended_thinking"],
            ),
        ] {
            assert_eq!(omitted(vendor, model, params), expected, "{model}");
            let forced = Params { force_params: Some(true), ..params.clone() };
            assert_eq!(omitted(vendor, model, &forced), Vec::<&str>::new(), "{model}");
        }
    }
}
