//! What models refuse: a table by vendor and model, so that a parameter a model would answer with an error is left out and
//! said to be (S18). Models that are not in it are told everything that their wire format has a name for.

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

fn refused(vendor: Vendor, model: &str, params: &Params) -> Vec<&'static str> {
    match vendor {
        Vendor::OpenAi => openai(model),
        Vendor::OpenAiResponses => [&openai(model)[..], &["seed"]].concat(),
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

/// Reasoning models refuse sampling; the others refuse to be told how much to reason.
fn openai(model: &str) -> Vec<&'static str> {
    let reasons =
        ["o1", "o3", "o4", "gpt-5"].iter().any(|prefix| model.starts_with(prefix)) && !model.starts_with("gpt-5-chat");
    let mut refused = vec!["repeat_penalty", "extended_thinking"];
    refused.extend(if reasons { &["temperature", "top_p"][..] } else { &["reasoning_effort"] });
    refused
}

/// Models from 4.7 on refuse sampling, and older ones while they think; 4.1 to 4.5 refuse two kinds of it together. Thoughts
/// must leave room for an answer.
fn anthropic(model: &str, params: &Params) -> Vec<&'static str> {
    let version = anthropic_version(model);
    let budget = params.extended_thinking.flatten();
    let room = |budget| thinking_within(version, budget, params.max_output_tokens.flatten()).is_some();
    let thinks = version >= (3, 7) && budget.is_some_and(room);
    let mut refused = vec!["repeat_penalty", "seed"];
    if version >= (4, 7) || thinks {
        refused.extend(["temperature", "top_p"]);
    } else if ((4, 1)..=(4, 5)).contains(&version) && params.temperature.flatten().is_some() {
        refused.push("top_p");
    }
    if version < (4, 5) {
        refused.push("reasoning_effort");
    }
    if version < (3, 7) || (budget.is_some() && !thinks) {
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
        let omitted = |vendor, model: &str, params: &Params| admitted(vendor, model, params).1;
        for (vendor, model, params, expected) in [
            (Vendor::OpenAi, "gpt-5.1", &all, vec!["temperature", "top_p", "repeat_penalty", "extended_thinking"]),
            (Vendor::OpenAi, "o3-mini", &no_thinking, vec!["temperature", "top_p", "repeat_penalty"]),
            (Vendor::OpenAi, "gpt-4.1", &no_thinking, vec!["repeat_penalty", "reasoning_effort"]),
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
            (Vendor::Anthropic, "claude-sonnet-4-5", &no_thinking, vec!["top_p", "repeat_penalty", "seed"]),
        ] {
            assert_eq!(omitted(vendor, model, params), expected, "{model}");
            let forced = Params { force_params: Some(true), ..params.clone() };
            assert_eq!(omitted(vendor, model, &forced), Vec::<&str>::new(), "{model}");
        }
    }
}
