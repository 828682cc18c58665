//! Text from outside, made safe to show: a terminal obeys control characters, and models and servers write them too.

use std::borrow::Cow;
use std::fmt::Write as _;

/// The text with control characters, and those that reorder what is written, as `\u{1b}` and the like. New lines and
/// tabs stay.
pub fn printable(text: &str) -> Cow<'_, str> {
    escaped(
        text,
        |character| !matches!(character, '\n' | '\t') && acts(character),
        |out, character| {
            // Writing to a String cannot fail.
            let _ = write!(out, "\\u{{{:x}}}", u32::from(character));
        },
    )
}

/// JSON text, which means the same afterwards: such characters become escapes of JSON.
pub fn printable_json(json: &str) -> Cow<'_, str> {
    // Outside of strings JSON has no control characters but white space.
    escaped(
        json,
        |character| !character.is_ascii_whitespace() && acts(character),
        |out, character| {
            let _ = write!(out, "\\u{:04x}", u32::from(character));
        },
    )
}

fn escaped(text: &str, is_unsafe: impl Fn(char) -> bool, escape: impl Fn(&mut String, char)) -> Cow<'_, str> {
    if !text.chars().any(&is_unsafe) {
        return text.into();
    }
    let mut out = String::with_capacity(text.len() + 16);
    for character in text.chars() {
        if is_unsafe(character) {
            escape(&mut out, character);
        } else {
            out.push(character);
        }
    }
    out.into()
}

/// C0 and C1 controls, DEL, and the marks that turn the direction of writing. All lie in the first plane of Unicode.
fn acts(character: char) -> bool {
    character.is_control()
        || matches!(character, '\u{61c}' | '\u{200e}' | '\u{200f}' | '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}')
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_terminal_obeys_becomes_visible() {
        let text = "a\u{1b}[31mb\u{9b}2J\r\n\tc\u{202e}d\u{7f}ü";
        assert_eq!(printable(text), "a\\u{1b}[31mb\\u{9b}2J\\u{d}\n\tc\\u{202e}d\\u{7f}ü");
        assert!(matches!(printable("größe → 7"), Cow::Borrowed(_)));
    }

    #[test]
    fn json_means_the_same() {
        let text = "x\u{1b}\u{9b}\u{202e}y";
        let json = serde_json::to_string(text).unwrap();
        let shown = printable_json(&json);
        assert!(shown.is_ascii());
        assert_eq!(serde_json::from_str::<String>(&shown).unwrap(), text);
    }
}
