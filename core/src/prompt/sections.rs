//! A prompt taken apart again: which of its words are about what, so that each part's cost can be seen.
//!
//! Works on the texts as they were kept, in logs and stores, too. Every byte belongs to exactly one section: the sections,
//! one after the other, are the prompt.

use crate::program::Language;

/// Names of sections, in the order in which they stand in a prompt.
pub const SECTIONS: [&str; 11] = [
    "system",
    "role",
    "method",
    "contract",
    "tools",
    "delegates",
    "frame",
    "arguments",
    "context",
    "history",
    FEEDBACK,
];

/// What the model was told about its earlier answers. It follows the two texts, as messages of its own.
pub const FEEDBACK: &str = "feedback";

/// A part of a prompt.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Section<'a> {
    /// One of [`SECTIONS`].
    pub name: &'static str,
    /// Its text; its lines lie one behind the other.
    pub text: &'a str,
}

/// The heading of the host tools in a system prompt.
const HOST_TOOLS: &str = "\n# Host tools\n";

/// What lines of a user prompt begin with, outside and inside of its fence. A line that begins like none of them goes on
/// with the section before it.
const HEADS: [(&str, &str); 8] = [
    ("Role: ", "role"),
    ("Method: ", "method"),
    ("Purpose: ", "contract"),
    ("The value ", "contract"),
    ("If it fails: ", "contract"),
    ("Host tools (", "tools"),
    ("Delegates made before; ", "delegates"),
    ("This call, as JSON.", "frame"),
];
const DATA_HEADS: [(&str, &str); 4] =
    [("args: ", "arguments"), ("kwargs: ", "arguments"), ("context: ", "context"), ("history (", "history")];

/// The sections of the two texts, in order. A section that is not there is left out; `frame` holds the words around the
/// data and comes before and after it. Text that is no prompt of ours is all `frame`.
pub fn sections<'a>(system: &'a str, user: &'a str) -> Vec<Section<'a>> {
    let mut found = Vec::new();
    // Today's words need no search.
    let today = Language::ALL.into_iter().map(super::stable_text).find(|words| system.starts_with(words));
    let tools = today.map(str::len).or_else(|| system.find(HOST_TOOLS)).unwrap_or(system.len());
    push(&mut found, "system", &system[..tools]);
    push(&mut found, "tools", &system[tools..]);
    let (mut name, mut begin, mut at) = ("frame", 0, 0);
    let mut fenced = false;
    for line in user.split_inclusive('\n') {
        let heads = if fenced { &DATA_HEADS[..] } else { &HEADS[..] };
        let head = heads.iter().find(|(head, _)| line.starts_with(head)).map(|(_, name)| *name);
        let opens = !fenced && line.starts_with("<<<DATA-");
        let closes = fenced && line.starts_with("DATA-") && line.trim_end().ends_with(">>>");
        if let Some(next) = if opens || closes { Some("frame") } else { head }
            && next != name
        {
            push(&mut found, name, &user[begin..at]);
            (name, begin) = (next, at);
        }
        fenced = (fenced || opens) && !closes;
        at += line.len();
    }
    push(&mut found, name, &user[begin..]);
    found
}

/// Bytes of each section of a prompt and of the feedback that followed it, in the order of [`SECTIONS`]; those that are not
/// there are left out. Takes a microsecond or two: it is done for every call that asks a model.
pub fn section_bytes(system: &str, user: &str, feedback: usize) -> Box<[(&'static str, u32)]> {
    let mut sizes = [0_usize; SECTIONS.len()];
    let texts = sections(system, user).into_iter().map(|section| (section.name, section.text.len()));
    for (name, bytes) in texts.chain([(FEEDBACK, feedback)]) {
        // Every section has one of these names.
        if let Some(index) = SECTIONS.iter().position(|known| *known == name) {
            sizes[index] += bytes;
        }
    }
    let sizes = SECTIONS.into_iter().zip(sizes).filter(|(_, bytes)| *bytes > 0);
    sizes.map(|(name, bytes)| (name, u32::try_from(bytes).unwrap_or(u32::MAX))).collect()
}

fn push<'a>(found: &mut Vec<Section<'a>>, name: &'static str, text: &'a str) {
    if !text.is_empty() {
        found.push(Section { name, text });
    }
}
