//! What a program's text states outright: the literals that may hold an answer, or something its writer was told.
//!
//! A scanner, not a parser: it knows strings, comments and numbers of both languages, and which literals only point at a
//! place (`args[1]`, `kwargs["unit"]`), name a type, or are the words of an error. Those tell nothing and are left out.
//! It never decides what a literal means for reuse: see [`registry`](super::registry).

use super::Language;
use crate::value::Value;

/// One literal.
#[derive(Clone, Debug, PartialEq)]
pub enum Literal {
    /// Text, without its quotes.
    Text(String),
    /// A number, without its sign.
    Number(f64),
    /// `true` or `false`.
    Flag(bool),
}

impl Literal {
    /// Whether a leaf of a value says the same.
    pub fn is(&self, leaf: &Value) -> bool {
        match (self, leaf) {
            (Self::Text(text), Value::String(other)) => text == other,
            (Self::Number(number), Value::Int(_) | Value::Float(_)) => leaf.as_float().map(f64::abs) == Some(*number),
            (Self::Flag(flag), Value::Bool(other)) => flag == other,
            _ => false,
        }
    }

    /// Whether it is one of those that every program is full of: 0, 1, a flag, the empty text.
    pub fn is_everyday(&self) -> bool {
        match self {
            Self::Text(text) => text.is_empty(),
            Self::Number(number) => *number == 0.0 || *number == 1.0,
            Self::Flag(_) => true,
        }
    }
}

/// Names of types, which programs compare with.
const TYPES: [&str; 11] =
    ["number", "string", "table", "boolean", "nil", "function", "i64", "f64", "bool", "array", "map"];

/// The telling literals of a program, in order.
pub fn literals(language: Language, code: &str) -> Vec<Literal> {
    let mut scanner =
        Scanner { language, rest: code, before: [Token::Other, Token::Other], errors: 0, found: Vec::new() };
    while !scanner.rest.is_empty() {
        scanner.step();
    }
    scanner.found
}

/// What was just read, as far as it matters.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Token {
    /// An identifier, `)` or `]`: a `[` behind it is an index.
    Place,
    /// `error` or `throw`.
    Raise,
    /// `[`.
    Bracket,
    Other,
}

struct Scanner<'a> {
    language: Language,
    rest: &'a str,
    /// The token before the last one, and the last one.
    before: [Token; 2],
    /// Open parentheses of the error call that the scanner is in.
    errors: u32,
    found: Vec<Literal>,
}

impl Scanner<'_> {
    fn step(&mut self) {
        let first = self.rest.chars().next().unwrap_or(' ');
        if first.is_whitespace() {
            return self.skip(first.len_utf8());
        }
        if let Some(length) = self.comment() {
            return self.skip(length);
        }
        match first {
            '"' | '\'' | '`' => self.quoted(first),
            '[' if self.language == Language::Lua && self.long_bracket(0).is_some() => {
                let (open, length) = self.long_bracket(0).unwrap_or_default();
                let text = self.rest.get(open..length.saturating_sub(open)).unwrap_or_default().to_owned();
                self.skip(length);
                self.literal(Literal::Text(text));
            }
            '0'..='9' => self.number(),
            first if first.is_alphabetic() || first == '_' => self.word(),
            '(' => {
                if self.errors > 0 || self.before[1] == Token::Raise {
                    self.errors += 1;
                }
                self.token(1, Token::Other);
            }
            ')' => {
                self.errors = self.errors.saturating_sub(1);
                self.token(1, Token::Place);
            }
            '[' => self.token(1, Token::Bracket),
            ']' => self.token(1, Token::Place),
            other => self.token(other.len_utf8(), Token::Other),
        }
    }

    fn skip(&mut self, bytes: usize) {
        self.rest = self.rest.get(bytes..).unwrap_or_default();
    }

    fn token(&mut self, bytes: usize, token: Token) {
        self.skip(bytes);
        self.before = [self.before[1], token];
    }

    /// The length of a comment that begins here.
    fn comment(&self) -> Option<usize> {
        let (line, block) = match self.language {
            Language::Lua => ("--", "--["),
            Language::Rhai => ("//", "/*"),
        };
        if self.rest.starts_with(block) {
            match self.language {
                Language::Lua => {
                    if let Some((_, length)) = self.long_bracket(2) {
                        return Some(length);
                    }
                }
                Language::Rhai => return Some(self.rest.find("*/").map_or(self.rest.len(), |end| end + 2)),
            }
        }
        self.rest.starts_with(line).then(|| self.rest.find('\n').unwrap_or(self.rest.len()))
    }

    /// `[[…]]` or `[==[…]==]` at that place: the length of what opens it, and of everything from here on.
    fn long_bracket(&self, at: usize) -> Option<(usize, usize)> {
        let text = self.rest.get(at..)?.strip_prefix('[')?;
        let level = text.bytes().take_while(|byte| *byte == b'=').count();
        text[level..].strip_prefix('[')?;
        let open = at + level + 2;
        let close = format!("]{}]", "=".repeat(level));
        let length = self.rest[open..].find(&close).map_or(self.rest.len(), |end| open + end + close.len());
        Some((open, length))
    }

    fn quoted(&mut self, quote: char) {
        let mut text = String::new();
        let mut characters = self.rest.char_indices().skip(1);
        let mut length = self.rest.len();
        while let Some((index, character)) = characters.next() {
            match character {
                '\\' => text.extend(characters.next().map(|(_, escaped)| match escaped {
                    'n' => '\n',
                    't' => '\t',
                    other => other,
                })),
                character if character == quote => {
                    length = index + 1;
                    break;
                }
                character => text.push(character),
            }
        }
        self.skip(length);
        self.literal(Literal::Text(text));
    }

    fn number(&mut self) {
        let bytes = self.rest.as_bytes();
        let radix = match bytes.get(1) {
            Some(b'x' | b'X') if bytes[0] == b'0' => 16,
            Some(b'b' | b'B') if bytes[0] == b'0' => 2,
            Some(b'o' | b'O') if bytes[0] == b'0' => 8,
            Some(_) | None => 10,
        };
        let digits =
            |from: usize| bytes[from..].iter().take_while(|byte| byte.is_ascii_digit() || **byte == b'_').count();
        let (length, value) = if radix == 10 {
            let mut length = digits(0);
            // `1..5` is a range, `a.1` no number; `1.5` is one.
            if bytes.get(length) == Some(&b'.') && bytes.get(length + 1).is_none_or(|next| next.is_ascii_digit()) {
                length += 1 + digits((length + 1).min(bytes.len()));
            }
            if matches!(bytes.get(length), Some(b'e' | b'E')) {
                let sign = usize::from(matches!(bytes.get(length + 1), Some(b'+' | b'-')));
                let exponent = bytes.get(length + 1 + sign..).map_or(0, |_| digits(length + 1 + sign));
                length += if exponent > 0 { 1 + sign + exponent } else { 0 };
            }
            (length, self.rest[..length].replace('_', "").parse().unwrap_or(f64::NAN))
        } else {
            let length = 2 + bytes[2..].iter().take_while(|byte| byte.is_ascii_hexdigit() || **byte == b'_').count();
            let digits = self.rest[2..length].replace('_', "");
            (length, u64::from_str_radix(&digits, radix).map_or(f64::NAN, |number| number as f64))
        };
        self.skip(length.max(1));
        self.literal(Literal::Number(value));
    }

    fn word(&mut self) {
        let length = self
            .rest
            .find(|character: char| !character.is_alphanumeric() && character != '_')
            .unwrap_or(self.rest.len());
        let word = &self.rest[..length];
        let flag = match word {
            "true" => Some(true),
            "false" => Some(false),
            _ => None,
        };
        let token = match word {
            "error" | "throw" => Token::Raise,
            "return" | "in" | "and" | "or" | "not" | "then" | "else" | "do" => Token::Other,
            _ => Token::Place,
        };
        match flag {
            Some(flag) => {
                self.skip(length);
                self.literal(Literal::Flag(flag));
            }
            None => self.token(length, token),
        }
    }

    /// Notes a literal that was just passed, unless it tells nothing.
    fn literal(&mut self, literal: Literal) {
        let indexes = match self.language {
            // Brackets make no lists in Lua.
            Language::Lua => self.before[1] == Token::Bracket,
            Language::Rhai => self.before == [Token::Place, Token::Bracket],
        };
        let points = indexes && self.rest.trim_start().starts_with(']');
        let raises = self.errors > 0 || self.before[1] == Token::Raise;
        let names_a_type = matches!(&literal, Literal::Text(text) if TYPES.contains(&text.as_str()));
        if !(points || raises || names_a_type) {
            self.found.push(literal);
        }
        self.before = [self.before[1], Token::Other];
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shown(language: Language, code: &str) -> String {
        let shown: Vec<String> = literals(language, code)
            .into_iter()
            .map(|literal| match literal {
                Literal::Text(text) => format!("{text:?}"),
                Literal::Number(number) => number.to_string(),
                Literal::Flag(flag) => flag.to_string(),
            })
            .collect();
        shown.join(" ")
    }

    #[test]
    fn places_types_errors_and_comments_tell_nothing() {
        for (language, code, expected) in [
            (Language::Lua, "return args[1] + args[2] -- 5", ""),
            (Language::Lua, "--[[ 7 ]] return kwargs['unit'], t[ 2 ]", ""),
            (Language::Lua, "if type(args[1]) ~= 'number' then error('needs ' .. (3) .. ' numbers') end return 4", "4"),
            (Language::Lua, "error 'no'; return x2 + 0x10 + 1_000 + 2.5e3 + .5", "16 1000 2500 5"),
            (
                Language::Lua,
                "return {text = args[1], mood = \"it's\", long = [==[a]]b]==], ok = true}",
                "\"it's\" \"a]]b\" true",
            ),
            (Language::Rhai, "if args.len() != 2 { throw \"two\"; } [\"a\", 3] // 4", "2 \"a\" 3"),
            (Language::Rhai, "args[0] + t[\"k\"] + [7][0]; for i in 1..5 { } /* 9 */ `x${1}`", "7 1 5 \"x${1}\""),
        ] {
            assert_eq!(shown(language, code), expected, "{code}");
        }
    }

    #[test]
    fn no_text_makes_the_scanner_fail() {
        let texts = ["\"", "'\\", "[[", "--[", "--[[", "0x", "1e", "1.", "/*", "é'é\\", "[=", "`", "1e+", "9.", "[=["];
        for text in texts {
            for language in Language::ALL {
                literals(language, text);
                literals(language, &format!("{text} {text}"));
            }
        }
    }
}
