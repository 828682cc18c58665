//! The program in JSON that is still being written: `{"language":"lua","code":"return 1` is the text `return 1` so far.
//!
//! For eyes alone: what is run is what the adapter reads out of the whole reply. Reads any text without complaint.

/// Reads the text of the field `code` out of a JSON object, piece by piece.
#[derive(Debug, Default)]
pub(super) struct CodeText {
    at: At,
    escape: Escape,
    /// The first half of a character that JSON writes as two escapes.
    high: Option<u16>,
}

#[derive(Debug, Default, PartialEq)]
enum At {
    /// Before the object.
    #[default]
    Before,
    /// Before a name, or behind the last field.
    Name,
    /// In a name; longer ones than `code` are not kept.
    InName(String),
    /// Behind a name: whether it is `code`.
    Colon(bool),
    /// Before a value: whether it is that of `code`.
    Value(bool),
    /// In the text of `code`.
    Code,
    /// In another text.
    Text,
    /// In a list or map, with the levels around it, and whether in a text there.
    Nested(u32, bool),
    /// In a number or word.
    Word,
}

#[derive(Debug, Default, PartialEq)]
enum Escape {
    #[default]
    None,
    /// Behind a backslash.
    Begun,
    /// In `\uXXXX`: digits and value so far.
    Unicode(u8, u16),
}

impl CodeText {
    /// What a further piece of JSON adds to the program.
    pub(super) fn take(&mut self, json: &str) -> String {
        let mut out = String::new();
        for letter in json.chars() {
            self.step(letter, &mut out);
        }
        out
    }

    fn step(&mut self, letter: char, out: &mut String) {
        if self.escape != Escape::None {
            return self.escaped(letter, out);
        }
        let in_text = matches!(self.at, At::InName(_) | At::Code | At::Text | At::Nested(_, true));
        if in_text && letter == '\\' {
            self.escape = Escape::Begun;
            return;
        }
        match (&mut self.at, letter) {
            (At::Before, '{') | (At::Word | At::Value(_), ',') => self.at = At::Name,
            (At::Name, '"') => self.at = At::InName(String::new()),
            (At::Name | At::Word | At::Value(_), '}') => self.at = At::Before,
            (At::InName(name), '"') => self.at = At::Colon(name == "code"),
            (At::InName(name), letter) if name.len() <= "code".len() => name.push(letter),
            (At::Colon(code), ':') => self.at = At::Value(*code),
            (At::Value(true), '"') => self.at = At::Code,
            (At::Value(false), '"') => self.at = At::Text,
            (At::Value(_), '{' | '[') => self.at = At::Nested(0, false),
            (At::Value(_), letter) if !letter.is_whitespace() => self.at = At::Word,
            // The next name begins with a quote; what stands between is skipped.
            (At::Code | At::Text, '"') => self.at = At::Name,
            (At::Code, letter) => out.push(letter),
            (At::Nested(levels, false), '{' | '[') => *levels += 1,
            (At::Nested(0, false), '}' | ']') => self.at = At::Name,
            (At::Nested(levels, false), '}' | ']') => *levels -= 1,
            (At::Nested(_, in_text), '"') => *in_text = !*in_text,
            (
                At::Before
                | At::Name
                | At::InName(_)
                | At::Colon(_)
                | At::Value(_)
                | At::Text
                | At::Nested(..)
                | At::Word,
                _,
            ) => {}
        }
    }

    fn escaped(&mut self, letter: char, out: &mut String) {
        let meant = match (&mut self.escape, letter) {
            (Escape::Begun, 'u') => {
                self.escape = Escape::Unicode(0, 0);
                return;
            }
            (Escape::Begun, 'n') => '\n',
            (Escape::Begun, 't') => '\t',
            (Escape::Begun, 'r') => '\r',
            (Escape::Begun, 'b') => '\u{8}',
            (Escape::Begun, 'f') => '\u{c}',
            (Escape::Begun | Escape::None, letter) => letter,
            (Escape::Unicode(digits, value), letter) => {
                let digit = letter.to_digit(16).and_then(|digit| u16::try_from(digit).ok()).unwrap_or_default();
                *value = *value << 4 | digit;
                *digits += 1;
                if *digits < 4 {
                    return;
                }
                let value = *value;
                self.escape = Escape::None;
                return self.unit(value, out);
            }
        };
        self.escape = Escape::None;
        if self.at == At::Code {
            out.push(meant);
        }
    }

    /// One unit of UTF-16.
    fn unit(&mut self, unit: u16, out: &mut String) {
        let high = self.high.take();
        if self.at != At::Code {
            return;
        }
        if (0xd800..0xdc00).contains(&unit) {
            self.high = Some(unit);
            return;
        }
        let units = high.into_iter().chain([unit]);
        out.extend(char::decode_utf16(units).map(|letter| letter.unwrap_or(char::REPLACEMENT_CHARACTER)));
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::value::{Map, Value};

    fn taken(pieces: &[&str]) -> String {
        let mut text = CodeText::default();
        pieces.iter().map(|piece| text.take(piece)).collect()
    }

    #[test]
    fn a_program_is_read_out_of_its_json_as_it_comes() {
        for (pieces, code) in [
            (&[r#"{"code":"return "#, r#"1","language":"lua"}"#][..], "return 1"),
            (&[r#"{"language": "lua", "co"#, r#"de" : "a\"#, r#"n\u00"#, r#"e9\ud83d"#, r#"\ude00" }"#], "a\né😀"),
            (&[r#"{"why":{"code":"no","x":["}","]"]},"n":-1.5e3,"code":"yes"}"#], "yes"),
            (&[r#"{"encode":"no","codes":"no","code":5}"#], ""),
            (&["no json at all", "\"code\":\"x\""], ""),
            (&["\"\\"], ""),
        ] {
            assert_eq!(taken(pieces), code, "{pieces:?}");
        }
    }

    proptest! {
        /// However the JSON is cut, the program comes out; and no text makes it panic.
        #[test]
        fn the_cuts_make_no_difference(
            code in any::<String>(), other in any::<String>(), cuts in prop::collection::vec(any::<prop::sample::Index>(), 0..6),
            noise in any::<String>(),
        ) {
            let inner = Value::List(vec![other.as_str().into(), Value::Map(Map::from([("code".into(), "no".into())]))]);
            let map = Map::from([("a".into(), inner), ("code".into(), code.as_str().into()), ("z".into(), other.into())]);
            let json = Value::Map(map).to_json();
            let ends: Vec<usize> = json.char_indices().map(|(at, _)| at).collect();
            let mut cuts: Vec<usize> = cuts.iter().map(|cut| ends[cut.index(ends.len())]).collect();
            cuts.extend([0, json.len()]);
            cuts.sort_unstable();
            let pieces: Vec<&str> = cuts.windows(2).map(|pair| &json[pair[0]..pair[1]]).collect();
            prop_assert_eq!(taken(&pieces), code);
            taken(&[&noise, &noise]);
        }
    }
}
