//! What a notebook shows: role, context keys and last outcomes of an agent; an outcome with its program. Local and
//! cheap; nothing here asks a model, and every text is escaped.

use std::fmt::Write as _;

use cadenza_core::agent::Agent;
use cadenza_core::outcome::Outcome;
use cadenza_core::runtime::calls::CallTree;
use cadenza_core::runtime::repertoire::Listed;
use cadenza_core::value::Value;

use crate::outcome::cut;

/// Outcomes shown for an agent.
const OUTCOMES: usize = 5;
const TABLE: &str = "<table style=\"text-align:left\">";

/// An agent as HTML.
pub(crate) fn agent(agent: &Agent) -> String {
    let mut html =
        format!("<div class=\"cadenza-agent\"><strong>Agent</strong> <code>{}</code>", escaped(agent.role()));
    let keys = agent.runtime_context().keys();
    if keys.is_empty() {
        html.push_str("<br><em>runtime context is empty</em>");
    } else {
        html.push_str("<br>runtime context:");
        for key in keys.iter().take(50) {
            put(&mut html, format_args!(" <code>{}</code>", escaped(key)));
        }
        if keys.len() > 50 {
            put(&mut html, format_args!(" and {} more", keys.len() - 50));
        }
    }
    let history = agent.history();
    if !history.is_empty() {
        put(
            &mut html,
            format_args!("{TABLE}<tr><th>call</th><th>status</th><th>value or message</th><th>source</th></tr>"),
        );
        for record in history.iter().rev().take(OUTCOMES) {
            put(
                &mut html,
                format_args!(
                    "<tr><td><code>{}</code></td><td>{}</td><td><code>{}</code></td><td>{}</td></tr>",
                    escaped(&record.method),
                    status(&record.outcome),
                    escaped(&shown(&record.outcome)),
                    record.metadata.source.as_str(),
                ),
            );
        }
        html.push_str("</table>");
    }
    html.push_str("</div>");
    html
}

/// An outcome as HTML.
pub(crate) fn outcome(outcome: &Outcome) -> String {
    let mut html = format!(
        "<div class=\"cadenza-outcome\"><strong>Outcome</strong> {} <code>{}</code>",
        status(outcome),
        escaped(&shown(outcome))
    );
    if let Some(metadata) = &outcome.metadata {
        put(
            &mut html,
            format_args!(
                "<br><small>{}.{} &middot; {} &middot; {} tokens</small>",
                escaped(&outcome.role),
                escaped(&outcome.method),
                metadata.source.as_str(),
                metadata.tokens,
            ),
        );
        if let Some(code) = &metadata.code {
            put(
                &mut html,
                format_args!(
                    "<details><summary>program ({})</summary><pre>{}</pre></details>",
                    metadata.language,
                    escaped(code)
                ),
            );
        }
    }
    html.push_str("</div>");
    html
}

/// A kept program as HTML.
pub(crate) fn program(listed: &Listed) -> String {
    let saved = &listed.saved;
    format!(
        "<div class=\"cadenza-program\"><strong>Program</strong> <code>{}</code> version {} {}<br><small>{} by {} &middot; \
         {} uses, {} failed &middot; {}</small><pre>{}</pre></div>",
        escaped(&listed.name()),
        saved.version,
        listed.state().as_str(),
        saved.key.language,
        escaped(&saved.model),
        saved.uses,
        saved.failures,
        listed.short_id(),
        escaped(&saved.code),
    )
}

/// A call with the calls below it as HTML.
pub(crate) fn call_tree(tree: &CallTree) -> String {
    let mut html = "<div class=\"cadenza-calls\"><strong>Calls</strong><ul>".to_owned();
    put_call(tree, &mut html);
    html.push_str("</ul></div>");
    html
}

fn put_call(tree: &CallTree, html: &mut String) {
    let ok = tree.text("outcome_status") == "ok";
    let (colour, state) = if ok { ("green", "ok") } else { ("firebrick", tree.text("outcome_error_type")) };
    put(
        html,
        format_args!(
            "<li><code>{}</code> <span style=\"color:{colour}\">{}</span> <code>{}</code> <small>{}</small>",
            escaped(&signature(tree)),
            escaped(state),
            escaped(&came_of(tree)),
            escaped(&cost(tree)),
        ),
    );
    if !tree.text("code").is_empty() {
        put(
            html,
            format_args!(
                "<details><summary>program ({})</summary><pre>{}</pre></details>",
                escaped(tree.text("language")),
                escaped(tree.text("code"))
            ),
        );
    }
    if !tree.children.is_empty() {
        html.push_str("<ul>");
        tree.children.iter().for_each(|child| put_call(child, html));
        html.push_str("</ul>");
    }
    html.push_str("</li>");
}

/// A call in one line of text.
pub(crate) fn call_line(tree: &CallTree) -> String {
    let ok = tree.text("outcome_status") == "ok";
    let state = if ok { "ok" } else { tree.text("outcome_error_type") };
    format!("{}  {state} {}  {}", signature(tree), came_of(tree), cost(tree))
}

fn signature(tree: &CallTree) -> String {
    let mut arguments: Vec<String> = match tree.call.get("args") {
        Some(Value::List(args)) => args.iter().map(Value::to_json).collect(),
        Some(_) | None => Vec::new(),
    };
    let kwargs = tree.call.get("kwargs").and_then(Value::as_map).into_iter().flatten();
    arguments.extend(kwargs.map(|(name, value)| format!("{name}={}", value.to_json())));
    format!("{}.{}({})", tree.text("role"), tree.text("method"), cut(&arguments.join(", ")))
}

/// The value, or what went wrong.
fn came_of(tree: &CallTree) -> String {
    match tree.text("outcome_status") {
        "ok" => cut(&tree.call.get("value").map(Value::to_json).unwrap_or_default()),
        _ => cut(tree.text("outcome_error_message")),
    }
}

fn cost(tree: &CallTree) -> String {
    let ms = tree.call.get("duration_ms").and_then(Value::as_float).unwrap_or_default();
    let why = match tree.text("reuse") {
        "" | "reused" => String::new(),
        why => format!(" ({why})"),
    };
    format!("{}{why}, {ms:.1} ms", tree.text("program_source"))
}

fn status(outcome: &Outcome) -> String {
    match outcome.error() {
        None => "<span style=\"color:green\">ok</span>".to_owned(),
        Some(error) => format!("<span style=\"color:firebrick\">{}</span>", escaped(error.error_type.as_str())),
    }
}

fn shown(outcome: &Outcome) -> String {
    match outcome.error() {
        None => cut(&outcome.value().to_json()),
        Some(error) => cut(&error.message),
    }
}

fn put(html: &mut String, text: std::fmt::Arguments<'_>) {
    // Writing to a String cannot fail.
    let _ = html.write_fmt(text);
}

/// Text as HTML text or attribute value.
fn escaped(text: &str) -> String {
    let mut html = String::with_capacity(text.len() + 16);
    for character in text.chars() {
        match character {
            '&' => html.push_str("&amp;"),
            '<' => html.push_str("&lt;"),
            '>' => html.push_str("&gt;"),
            '"' => html.push_str("&quot;"),
            '\'' => html.push_str("&#39;"),
            other => html.push(other),
        }
    }
    html
}
