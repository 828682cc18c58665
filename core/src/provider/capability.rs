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
    let (given, refused): (Vec<_>, _) = (params.given().collect(), refused(vendor, model, &params));
    let mut refuse = |name: &'static str, clear: &mut dyn FnMut()| {
        if given.contains(&name) && refused.contains(&name) {
            clear();
            omitted.push(name);
        }
    };
    refuse("temperature", &mut || params.temperature = None);
    refuse("top_p", &mut || params.top_p = None);
    refuse("repeat_penalty", &mut || params.repeat_penalty = None);
    refuse("seed", &mut || params.seed = None);
    refuse("reasoning_effort", &mut || params.reasoning_effort = None);
    refuse("extended_thinking", &mut || params.extended_thinking = None);
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
    let reasons = |version| effort(params).map_or(version >= (5, 6), |word| word != "none");
    gpt_version(gpt).is_some_and(|version| version >= (5, 4) && reasons(version))
}

fn effort(params: &Params) -> Option<&str> {
    params.reasoning_effort.as_ref().and_then(Option::as_deref)
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
    } else if effort(params).is_some() {
        // One or the other.
        refused.push("extended_thinking");
    }
    refused
}

/// It knows three levels, and none.
fn ollama(params: &Params) -> Vec<&'static str> {
    let known = effort(params).is_none_or(|effort| ["none", "low", "medium", "high"].contains(&effort));
    if known { Vec::new() } else { vec!["reasoning_effort"] }
}

/// Reasoning models refuse sampling while they reason; the others refuse to be told how much to reason. From 5.1 to 5.4 they
/// reason when they are told to, and from 5.1 on they can be told not to.
fn openai(model: &str, params: &Params) -> Vec<&'static str> {
    let model = base_of(model);
    let says = |word: &str| model.split('-').any(|part| part == word);
    let gpt = gpt_version(model).filter(|version| *version >= (5, 0) && !says("chat"));
    let is_o = ["o1", "o3", "o4"].iter().any(|prefix| model.starts_with(prefix));
    let can_rest = gpt >= Some((5, 1)) && !says("codex") && !says("pro");
    let rests = match effort(params) {
        Some(word) => can_rest && word == "none",
        None => can_rest && gpt <= Some((5, 4)),
    };
    let mut refused = vec!["repeat_penalty", "extended_thinking"];
    if gpt.is_none() && !is_o {
        refused.push("reasoning_effort");
    } else if !rests {
        refused.extend(["temperature", "top_p"]);
    }
    refused
}

/// The model that a name stands for: a gateway puts its maker before it, and `ft:o4-mini-2025-04-16:org::id` is one that was
/// trained further.
fn base_of(model: &str) -> &str {
    let name = model.rsplit('/').next().unwrap_or(model);
    name.strip_prefix("ft:").map_or(name, |rest| rest.split(':').next().unwrap_or(rest))
}

/// `gpt-5.6-terra` by its numbers, which Azure's names write without the point (`gpt-35-turbo`); `None` for other families.
fn gpt_version(model: &str) -> Option<(u32, u32)> {
    let number = base_of(model).strip_prefix("gpt-")?.split('-').next()?;
    let (major, minor) = match number.split_once('.') {
        Some(parts) => parts,
        None if number.len() == 2 && number.is_ascii() => number.split_at(1),
        None => (number, "0"),
    };
    Some((major.parse().ok()?, minor.parse().ok()?))
}

/// Models from 4.7 on refuse sampling, and older ones while they think; 4.1 to 4.5 refuse two kinds of it together. Effort is
/// known from 4.6 on, and to Opus 4.5; thinking from 3.7 on, and thoughts must leave room for an answer.
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
    if version < (4, 6) && !(version == (4, 5) && model.contains("opus")) {
        refused.push("reasoning_effort");
    }
    if budget.is_some() && !thinks {
        refused.push("extended_thinking");
    }
    refused
}

/// `claude-sonnet-4-5-20250929` and `claude-3-7-sonnet-latest` by their numbers. A Claude without one is taken for new; another
/// model, at a server that speaks this format too, for the version that refuses least.
pub(super) fn anthropic_version(model: &str) -> (u32, u32) {
    let Some(begin) = ["claude", "fable", "mythos"].iter().filter_map(|name| model.rfind(name)).min() else {
        return (4, 6);
    };
    // Days of release have more digits than a version.
    let small = |part: &&&str| part.len() <= 2;
    let parts: Vec<&str> = model[begin..].split(['-', '.', '@', ':', '/']).collect();
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
            ("gpt-3.5-turbo", Some((3, 5))),
            ("gpt-35-turbo-16k", Some((3, 5))),
            ("gpt-41-mini", Some((4, 1))),
            ("gpt-5", Some((5, 0))),
            ("openai/gpt-5.6-terra", Some((5, 6))),
            ("ft:gpt-4.1-mini-2025-04-14:org::id", Some((4, 1))),
            ("gpt-4o-2024-08-06", None),
            ("gpt-oss-120b", None),
            ("chatgpt-4o-latest", None),
        ] {
            assert_eq!(gpt_version(model), version, "{model}");
        }
        for (model, version) in [
            ("claude-sonnet-4-5-20250929", (4, 5)),
            ("claude-3-7-sonnet-latest", (3, 7)),
            ("claude-3-opus-20240229", (3, 0)),
            ("claude-opus-4-20250514", (4, 0)),
            ("anthropic.claude-opus-4-7", (4, 7)),
            ("claude-opus-5", (5, 0)),
            ("claude-next", (u32::MAX, 0)),
            ("us.anthropic.claude-3-5-sonnet-20241022-v2:0", (3, 5)),
            ("arn:aws:bedrock:us-east-1:1:inference-profile/us.anthropic.claude-opus-4-5-20251101-v1:0", (4, 5)),
            ("claude-3-5-sonnet@20240620", (3, 5)),
            ("prod-01-claude-opus-5-5", (5, 5)),
            ("deepseek-v3.1", (4, 6)),
            ("MiniMax-M2.1", (4, 6)),
        ] {
            assert_eq!(anthropic_version(model), version, "{model}");
        }
    }

    /// Who refuses a tool, or to be forced to one, is asked for what holds it all the same.
    #[test]
    fn a_model_is_asked_for_a_program_as_it_can_be_held_to_it() {
        let told =
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
            (Vendor::Anthropic, "kimi-k2-0905-preview", None, Output::Tool),
            (Vendor::Anthropic, "claude-fable-5", None, Output::Tool),
            (Vendor::Anthropic, "claude-fable-5-1", None, Output::JsonSchema),
            (Vendor::Anthropic, "anthropic.claude-opus-5-5", None, Output::JsonSchema),
            (Vendor::Anthropic, "claude-haiku-5-5", None, Output::JsonSchema),
            (Vendor::Gemini, "gemini-3.8-flash", Some("high"), Output::Tool),
            (Vendor::Ollama, "qwen3", None, Output::JsonSchema),
        ] {
            assert_eq!(output(vendor, model, &told(word)), expected, "{model} {word:?}");
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
        let sampling = Params { temperature: Some(Some(0.0)), top_p: Some(Some(0.8)), ..Params::default() };
        let no_reasoning = Params { reasoning_effort: Some(Some("none".into())), ..no_thinking.clone() };
        let omitted = |vendor, model: &str, params: &Params| admitted(vendor, model, params).1;
        for (vendor, model, params, expected) in [
            (Vendor::OpenAi, "gpt-5.1", &all, vec!["temperature", "top_p", "repeat_penalty", "extended_thinking"]),
            (Vendor::OpenAi, "gpt-5.1", &sampling, vec![]),
            (Vendor::OpenAi, "gpt-5.1-codex", &sampling, vec!["temperature", "top_p"]),
            (Vendor::OpenAi, "gpt-5", &sampling, vec!["temperature", "top_p"]),
            (Vendor::OpenAi, "gpt-5.6-sol", &sampling, vec!["temperature", "top_p"]),
            (Vendor::OpenAi, "gpt-35-turbo", &sampling, vec![]),
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
