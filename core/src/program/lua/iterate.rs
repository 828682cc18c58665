//! Rewrites each generic `for` so that it iterates in key order: `for k, v in E do` becomes `for k, v in NAME(E) do`.
//!
//! Luau iterates over a bare table in hash order, and no metamethod or hook can change that; the source can. The
//! rewriting keeps every line where it was. It is a lexer and a stack of open blocks, not a parser: it runs only on text
//! that Luau's own compiler has accepted, and gives up, with a reason, rather than guess.

/// The global through which loops are rewritten. Programs may not use the name.
pub(super) const NAME: &str = "__in_key_order";

/// What the rewriting found out.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Rewritten {
    /// The text to compile.
    pub(super) code: String,
    /// The main chunk uses `...`.
    pub(super) uses_varargs: bool,
}

/// Rewrites a program that compiles. The error says what could not be understood, and at which line.
pub(super) fn rewrite(code: &str) -> Result<Rewritten, String> {
    let mut scanner = Scanner::new(code);
    match scanner.run() {
        Ok(()) => Ok(scanner.finish()),
        Err(what) => {
            let line = 1 + code.as_bytes()[..scanner.at.min(code.len())].iter().filter(|byte| **byte == b'\n').count();
            Err(format!("line {line}: {what}"))
        }
    }
}

/// An open block, or an open part of a statement or expression.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Open {
    /// Ends with `end`.
    Function,
    /// Ends with `end`; `then`, `elseif` and `else` stay inside.
    IfStatement,
    /// `do`, `while … do`, `for … do`: ends with `end`.
    Do,
    /// Ends with `until`.
    Repeat,
    /// Between `while` and its `do`.
    WhileHead,
    /// Between `for` and its `in` or `do`.
    ForHead,
    /// Between `in` and `do`: the expressions to wrap.
    ForIn,
    /// An `if` expression, before its `else`.
    IfExpression,
    /// An `if` expression after its `else`; ends where its expression ends.
    ElseExpression,
    /// `(`, `[` or `{`.
    Bracket(u8),
    /// `{` inside an interpolated string: after its `}`, the string goes on.
    Interpolation,
}

/// What the last token was, as far as it matters for telling an `if` expression from an `if` statement.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Last {
    /// A statement may begin here: an operand or a block just ended, or the text begins.
    Statement,
    /// An operand must follow.
    Operand,
    /// `then` or `else`: what follows is what the innermost open `if` is.
    Branch,
}

struct Scanner<'a> {
    code: &'a str,
    bytes: &'a [u8],
    at: usize,
    copied: usize,
    out: String,
    open: Vec<Open>,
    last: Last,
    uses_varargs: bool,
}

impl<'a> Scanner<'a> {
    fn new(code: &'a str) -> Self {
        Self {
            code,
            bytes: code.as_bytes(),
            at: 0,
            copied: 0,
            out: String::with_capacity(code.len() + 64),
            open: Vec::new(),
            last: Last::Statement,
            uses_varargs: false,
        }
    }

    fn finish(mut self) -> Rewritten {
        self.out.push_str(&self.code[self.copied..]);
        Rewritten { code: self.out, uses_varargs: self.uses_varargs }
    }

    fn run(&mut self) -> Result<(), String> {
        while let Some(byte) = self.peek(0) {
            match byte {
                b' ' | b'\t' | b'\r' | b'\n' | 0x0b | 0x0c => self.at += 1,
                b'-' if self.peek(1) == Some(b'-') => self.comment()?,
                b'"' | b'\'' => self.quoted(byte)?,
                b'`' => {
                    self.at += 1;
                    self.interpolated()?;
                }
                b'[' if self.long_bracket().is_some() => {
                    self.long_string()?;
                    self.last = Last::Statement;
                }
                b'0'..=b'9' => self.number(),
                b'.' if self.peek(1).is_some_and(|next| next.is_ascii_digit()) => self.number(),
                b'.' if self.bytes[self.at..].starts_with(b"...") => {
                    self.uses_varargs |= !self.open.contains(&Open::Function);
                    self.at += 3;
                    self.last = Last::Statement;
                }
                b'(' | b'[' | b'{' => {
                    self.open.push(Open::Bracket(byte));
                    self.at += 1;
                    self.last = Last::Operand;
                }
                b')' | b']' | b'}' => self.close(byte)?,
                b';' => {
                    self.at += 1;
                    self.last = Last::Statement;
                }
                b'a'..=b'z' | b'A'..=b'Z' | b'_' => self.word()?,
                _operator => {
                    self.at += 1;
                    self.last = Last::Operand;
                }
            }
        }
        self.leave_else();
        match self.open.last() {
            None => Ok(()),
            Some(open) => Err(format!("a block is not closed ({open:?})")),
        }
    }

    fn word(&mut self) -> Result<(), String> {
        let start = self.at;
        while self.peek(0).is_some_and(|byte| byte.is_ascii_alphanumeric() || byte == b'_') {
            self.at += 1;
        }
        let word = &self.code[start..self.at];
        if word == NAME {
            return Err(format!("the name {NAME} is reserved"));
        }
        match word {
            "function" => self.begin(Open::Function),
            "if" => self.begin_if(),
            "then" => {
                // An `else` expression ends at the `then` of an enclosing `if`.
                self.leave_else();
                self.last = Last::Branch;
            }
            "elseif" | "else" => self.branch(word)?,
            "while" => {
                self.begin(Open::WhileHead);
                self.last = Last::Operand;
            }
            "for" => {
                self.begin(Open::ForHead);
                self.last = Last::Operand;
            }
            "in" => {
                self.replace_top(Open::ForHead, Open::ForIn, "in")?;
                self.insert(self.at, &format!(" {NAME}("));
                self.last = Last::Operand;
            }
            "do" => self.begin_do(start)?,
            "repeat" => self.begin(Open::Repeat),
            "until" => {
                self.leave_else();
                self.pop(&[Open::Repeat], "until")?;
                self.last = Last::Operand;
            }
            "end" => {
                self.leave_else();
                self.pop(&[Open::Function, Open::IfStatement, Open::Do], "end")?;
                self.last = Last::Statement;
            }
            "and" | "or" | "not" | "return" => self.last = Last::Operand,
            _name_or_literal => self.last = Last::Statement,
        }
        Ok(())
    }

    fn begin(&mut self, open: Open) {
        self.open.push(open);
        self.last = Last::Statement;
    }

    fn begin_if(&mut self) {
        let is_expression = match self.last {
            Last::Operand => true,
            Last::Statement => false,
            Last::Branch => matches!(self.open.last(), Some(Open::IfExpression | Open::ElseExpression)),
        };
        if is_expression {
            self.open.push(Open::IfExpression);
        } else {
            // A statement begins, so every expression before it has ended.
            self.leave_else();
            self.open.push(Open::IfStatement);
        }
        self.last = Last::Operand;
    }

    fn branch(&mut self, word: &str) -> Result<(), String> {
        // `if a then if b then c else d else e`: the first `else` ends with its expression.
        if self.open.last() == Some(&Open::ElseExpression) {
            self.leave_else();
        }
        match self.open.last_mut() {
            Some(Open::IfStatement) => {}
            Some(top @ Open::IfExpression) => {
                if word == "else" {
                    *top = Open::ElseExpression;
                }
            }
            _no_if => return Err(format!("`{word}` without an `if`")),
        }
        self.last = if word == "else" { Last::Branch } else { Last::Operand };
        Ok(())
    }

    fn begin_do(&mut self, start: usize) -> Result<(), String> {
        self.leave_else();
        match self.open.last_mut() {
            Some(top @ (Open::WhileHead | Open::ForHead)) => *top = Open::Do,
            Some(top @ Open::ForIn) => {
                *top = Open::Do;
                self.insert(start, ") ");
            }
            Some(_) | None => self.open.push(Open::Do),
        }
        self.last = Last::Statement;
        Ok(())
    }

    fn close(&mut self, byte: u8) -> Result<(), String> {
        self.leave_else();
        self.at += 1;
        let opener = match byte {
            b')' => b'(',
            b']' => b'[',
            _brace => b'{',
        };
        match self.open.pop() {
            Some(Open::Bracket(open)) if open == opener => {
                self.last = Last::Statement;
                Ok(())
            }
            Some(Open::Interpolation) if byte == b'}' => self.interpolated(),
            Some(_) | None => Err(format!("`{}` closes nothing", char::from(byte))),
        }
    }

    /// Expressions of `if … else` end wherever something that cannot continue them comes.
    fn leave_else(&mut self) {
        while self.open.last() == Some(&Open::ElseExpression) {
            self.open.pop();
        }
    }

    fn pop(&mut self, allowed: &[Open], word: &str) -> Result<(), String> {
        match self.open.pop() {
            Some(open) if allowed.contains(&open) => Ok(()),
            Some(_) | None => Err(format!("`{word}` closes nothing")),
        }
    }

    fn replace_top(&mut self, from: Open, to: Open, word: &str) -> Result<(), String> {
        match self.open.last_mut() {
            Some(top) if *top == from => {
                *top = to;
                Ok(())
            }
            Some(_) | None => Err(format!("`{word}` out of place")),
        }
    }

    fn insert(&mut self, place: usize, text: &str) {
        self.out.push_str(&self.code[self.copied..place]);
        self.out.push_str(text);
        self.copied = place;
    }

    fn peek(&self, ahead: usize) -> Option<u8> {
        self.bytes.get(self.at + ahead).copied()
    }

    fn comment(&mut self) -> Result<(), String> {
        self.at += 2;
        if self.peek(0) == Some(b'[') && self.long_bracket().is_some() {
            return self.long_string();
        }
        while self.peek(0).is_some_and(|byte| byte != b'\n') {
            self.at += 1;
        }
        Ok(())
    }

    /// The level of the long bracket that opens here, if one does.
    fn long_bracket(&self) -> Option<usize> {
        let level = self.bytes[self.at + 1..].iter().take_while(|byte| **byte == b'=').count();
        (self.peek(1 + level) == Some(b'[')).then_some(level)
    }

    fn long_string(&mut self) -> Result<(), String> {
        let level = self.long_bracket().unwrap_or(0);
        let closing = format!("]{}]", "=".repeat(level));
        let start = self.at + 2 + level;
        match self.code[start..].find(&closing) {
            Some(length) => {
                self.at = start + length + closing.len();
                Ok(())
            }
            None => Err("a long string is not closed".to_owned()),
        }
    }

    fn quoted(&mut self, quote: u8) -> Result<(), String> {
        self.at += 1;
        while let Some(byte) = self.peek(0) {
            self.at += 1;
            if byte == quote {
                self.last = Last::Statement;
                return Ok(());
            }
            if byte == b'\\' {
                self.escape();
            }
        }
        Err("a string is not closed".to_owned())
    }

    /// Skips what follows a backslash: one byte, or for `\z` all blanks after it.
    fn escape(&mut self) {
        let escaped = self.peek(0);
        self.at += 1;
        if escaped == Some(b'z') {
            while self.peek(0).is_some_and(|byte| matches!(byte, b' ' | b'\t' | b'\r' | b'\n' | 0x0b | 0x0c)) {
                self.at += 1;
            }
        } else if escaped == Some(b'u') && self.peek(0) == Some(b'{') {
            // `\u{…}` in an interpolated string opens no expression.
            self.at += 1;
        }
    }

    /// The rest of an interpolated string, up to its end or to the next `{`.
    fn interpolated(&mut self) -> Result<(), String> {
        while let Some(byte) = self.peek(0) {
            self.at += 1;
            match byte {
                b'`' => {
                    self.last = Last::Statement;
                    return Ok(());
                }
                b'\\' => self.escape(),
                b'{' => {
                    self.open.push(Open::Interpolation);
                    self.last = Last::Operand;
                    return Ok(());
                }
                _text => {}
            }
        }
        Err("an interpolated string is not closed".to_owned())
    }

    fn number(&mut self) {
        // Digits, letters of `0x` and exponents, underscores, points, and a sign after an exponent.
        let hexadecimal = self.peek(0) == Some(b'0') && matches!(self.peek(1), Some(b'x' | b'X'));
        while let Some(byte) = self.peek(0) {
            let signed = matches!(byte, b'e' | b'E') && !hexadecimal && matches!(self.peek(1), Some(b'+' | b'-'));
            let point = byte == b'.' && self.peek(1) != Some(b'.');
            if signed {
                self.at += 2;
            } else if byte.is_ascii_alphanumeric() || byte == b'_' || point {
                self.at += 1;
            } else {
                break;
            }
        }
        self.last = Last::Statement;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(code: &str, expected: &str) {
        let expected = expected.replace("ITER", NAME);
        assert_eq!(rewrite(code).map(|rewritten| rewritten.code), Ok(expected), "{code}");
    }

    #[test]
    fn loops_are_wrapped_and_lines_stay() {
        check("for k, v in t do end", "for k, v in ITER( t ) do end");
        check("for k in pairs(t)\ndo\nend", "for k in ITER( pairs(t)\n) do\nend");
        check("for i = 1, 3 do end", "for i = 1, 3 do end");
        check("while x do for a in b do end end", "while x do for a in ITER( b ) do end end");
        check("repeat for a in b do end until x", "repeat for a in ITER( b ) do end until x");
        check("for k: string, v: {number} in t do end", "for k: string, v: {number} in ITER( t ) do end");
    }

    #[test]
    fn what_looks_like_a_loop_is_left_alone() {
        for code in [
            "return 'for k in t do end'",
            "return \"for \\\" k in t do\"",
            "return [==[for k in t do ]] ]==]",
            "-- for k in t do\nreturn 1",
            "--[[ for k in t do ]] return 1",
            "return `for k in {t} do`",
            "return `a \\{ for k in t do`",
            "return `\\u{41} for k in t do`",
            "return 'x\\z\n  y for k in t do'",
            "x = 3 for i = 1, 2 do end",
            "return 0x1p4, 1e+5, 1e-5, 1_000, .5, 3 .. 4",
        ] {
            check(code, code);
        }
    }

    #[test]
    fn nested_functions_and_expressions_inside_the_header() {
        check(
            "for k in (function() for a in b do end return c end)() do end",
            "for k in ITER( (function() for a in ITER( b ) do end return c end)() ) do end",
        );
        check(
            "for k in if x then y else z do local q = 1 end",
            "for k in ITER( if x then y else z ) do local q = 1 end",
        );
        check(
            "for k in `{(function() for a in b do end return 'x' end)()}` do end",
            "for k in ITER( `{(function() for a in ITER( b ) do end return 'x' end)()}` ) do end",
        );
        check(
            "local x = if a then if b then 1 else 2 else 3 for k in t do end",
            "local x = if a then if b then 1 else 2 else 3 for k in ITER( t ) do end",
        );
        check(
            "if a then if b then for k in t do end end elseif c then else local y = if d then 1 elseif e then 2 else 3 end for k in t do end",
            "if a then if b then for k in ITER( t ) do end end elseif c then else local y = if d then 1 elseif e then 2 else 3 end for k in ITER( t ) do end",
        );
        check(
            "if if a then b else c then for k in t do end end",
            "if if a then b else c then for k in ITER( t ) do end end",
        );
        check(
            "while if a then b else c do for k in t do end end",
            "while if a then b else c do for k in ITER( t ) do end end",
        );
        check("f(if a then b else c) if x then end", "f(if a then b else c) if x then end");
        check(
            "return if a then function() if b then end end else nil",
            "return if a then function() if b then end end else nil",
        );
        check("local x = if a then b else c if d then e() end", "local x = if a then b else c if d then e() end");
    }

    #[test]
    fn varargs_of_the_main_chunk_are_seen() {
        assert!(rewrite("return ...").is_ok_and(|rewritten| rewritten.uses_varargs));
        assert!(rewrite("local function f(...) return ... end").is_ok_and(|rewritten| !rewritten.uses_varargs));
        assert!(rewrite("return '...'").is_ok_and(|rewritten| !rewritten.uses_varargs));
    }

    #[test]
    fn the_reserved_name_is_refused() {
        assert!(rewrite(&format!("\nreturn {NAME}")).is_err_and(|error| error.starts_with("line 2: ")));
    }
}
