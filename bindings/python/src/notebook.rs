//! What a notebook shows: role, context keys and last outcomes of an agent; an outcome with its program. Local and
//! cheap; nothing here asks a model, and every text is escaped.

use std::fmt::Write as _;

use cadenza_core::agent::Agent;
use cadenza_core::outcome::Outcome;

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
