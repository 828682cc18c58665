//! Rewrites each generic `for` so that it iterates in key order: `for k, v in E do` becomes `for k, v in NAME(E) do`.
//!
//! Luau iterates over a bare table in hash order, and no metamethod or hook can change that; the source can. The
//! rewriting keeps every line where it was. It is a lexer and a stack of open blocks, not a parser: it runs only on text
//! that Luau's own compiler has accepted, and gives up, with a reason, rather than guess. Loops over `ipairs(…)` are in
//! order already and keep the interpreter's short cut, unless the program gives `ipairs` another meaning.

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

/// Rewrites a program that compiles. The error says at which line something could not be understood, and what.
pub(super) fn rewrite(code: &str) -> Result<Rewritten, (u32, String)> {
    let mut scanner = Scanner::new(code);
    match scanner.run() {
        Ok(()) => Ok(scanner.finish()),
        Err(what) => {
            let before = &code.as_bytes()[..scanner.at.min(code.len())];
            let line = 1 + before.iter().filter(|byte| **byte == b'\n').count();
            Err((u32::try_from(line).unwrap_or(u32::MAX), what))
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
    /// Between `in` and `do`: the expressions to wrap. Holds which wrap opened here, and where the `(` of a leading
    /// `ipairs(` is.
    ForIn(usize, Option<usize>),
    /// An `if` expression, before its `else`.
    IfExpression,
    /// An `if` expression after its `else`; ends where its expression ends.
    ElseExpression,
    /// `(`, `[` or `{`, and where.
    Bracket(u8, usize),
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

/// One loop's wrap: where its parts go, and whether the loop is over `ipairs(…)` alone.
#[derive(Clone, Copy)]
struct Wrap {
    opens: usize,
    closes: usize,
    over_ipairs: bool,
}

struct Scanner<'a> {
    code: &'a str,
    bytes: &'a [u8],
    at: usize,
    open: Vec<Open>,
    last: Last,
    wraps: Vec<Wrap>,
    /// The last closed bracket: where it opened, and where it ended.
    closed: (usize, usize),
    /// Where the last token ended.
    token_end: usize,
    /// The last token was `function`, `.` or `:`.
    after_function: bool,
    /// `<` after a name, with nothing since but what types are made of: `Map<string, {number}`.
    angles: u32,
    /// `ipairs` is used other than by calling it.
    ipairs_rebound: bool,
    uses_varargs: bool,
}

impl<'a> Scanner<'a> {
    fn new(code: &'a str) -> Self {
        Self {
            code,
            bytes: code.as_bytes(),
            at: 0,
            open: Vec::new(),
            last: Last::Statement,
            wraps: Vec::new(),
            closed: (0, 0),
            token_end: 0,
            after_function: false,
            angles: 0,
            ipairs_rebound: false,
            uses_varargs: false,
        }
    }

    fn finish(self) -> Rewritten {
        let wraps = self.wraps.iter().filter(|wrap| self.ipairs_rebound || !wrap.over_ipairs);
        let mut places: Vec<(usize, bool)> =
            wraps.flat_map(|wrap| [(wrap.opens, true), (wrap.closes, false)]).collect();
        // Wraps nest, so their parts interleave; no two are in one place.
        places.sort_unstable();
        let mut code = String::with_capacity(self.code.len() + places.len() * (NAME.len() + 2));
        let mut copied = 0;
        for (place, opens) in places {
            code.push_str(&self.code[copied..place]);
            copied = place;
            if opens {
                code.push(' ');
                code.push_str(NAME);
                code.push('(');
            } else {
                code.push_str(") ");
            }
        }
        code.push_str(&self.code[copied..]);
        Rewritten { code, uses_varargs: self.uses_varargs }
    }

    fn run(&mut self) -> Result<(), String> {
        while let Some(byte) = self.peek(0) {
            match byte {
                b' ' | b'\t' | b'\r' | b'\n' | 0x0b | 0x0c => {
                    self.at += 1;
                    continue;
                }
                b'-' if self.peek(1) == Some(b'-') => {
                    self.comment()?;
                    continue;
                }
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
                    self.open.push(Open::Bracket(byte, self.at));
                    self.at += 1;
                    self.last = Last::Operand;
                }
                b')' | b']' | b'}' => self.close(byte)?,
                b';' => {
                    self.at += 1;
                    self.last = Last::Statement;
                }
                b'a'..=b'z' | b'A'..=b'Z' | b'_' => self.word()?,
                b'-' if self.peek(1) == Some(b'>') => {
                    self.at += 2;
                    self.last = Last::Operand;
                }
                b'<' | b'>' => self.angle(byte),
                b'?' => {
                    // Only types end so: `local x: number?`.
                    self.at += 1;
                    self.last = Last::Statement;
                }
                _operator => {
                    if !matches!(byte, b'.' | b',' | b':' | b'|' | b'&') {
                        self.angles = 0;
                    }
                    self.at += 1;
                    self.last = Last::Operand;
                }
            }
            self.after_function = matches!(byte, b'.' | b':') || self.code[..self.at].ends_with("function");
            self.token_end = self.at;
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
                match self.open.last_mut() {
                    Some(top @ Open::ForHead) => *top = Open::ForIn(self.wraps.len(), None),
                    Some(_) | None => return Err("`in` out of place".to_owned()),
                }
                self.wraps.push(Wrap { opens: self.at, closes: self.at, over_ipairs: false });
                self.last = Last::Operand;
            }
            "ipairs" => self.ipairs(start),
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
            "and" | "or" | "not" | "return" => {
                self.angles = 0;
                self.last = Last::Operand;
            }
            _name_or_literal => self.last = Last::Statement,
        }
        Ok(())
    }

    /// `<` and `>` compare, or hold the parameters of a type; a statement may follow only the latter.
    fn angle(&mut self, byte: u8) {
        let after_name = self.bytes[..self.at].last().is_some_and(|last| last.is_ascii_alphanumeric() || *last == b'_');
        if self.peek(1) == Some(b'=') {
            self.angles = 0;
        } else if byte == b'<' && after_name {
            self.angles += 1;
        } else if byte == b'>' && self.angles > 0 {
            self.angles -= 1;
            self.at += 1;
            self.last = Last::Statement;
            return;
        } else {
            self.angles = 0;
        }
        self.at += 1;
        self.last = Last::Operand;
    }

    fn begin(&mut self, open: Open) {
        self.open.push(open);
        self.last = Last::Statement;
    }

    fn begin_if(&mut self) {
        // Where only expressions may stand, it is one; elsewhere the token before it tells.
        let is_expression = match self.open.last() {
            Some(Open::Bracket(..) | Open::Interpolation | Open::WhileHead | Open::ForHead | Open::ForIn(..)) => true,
            Some(Open::IfExpression | Open::ElseExpression) => self.last != Last::Statement,
            Some(Open::Function | Open::IfStatement | Open::Do | Open::Repeat) | None => self.last == Last::Operand,
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
            Some(top) if let Open::ForIn(wrap, ipairs) = *top => {
                *top = Open::Do;
                let over_ipairs = ipairs.is_some_and(|paren| self.closed == (paren, self.token_end));
                let wrap = &mut self.wraps[wrap];
                (wrap.closes, wrap.over_ipairs) = (start, over_ipairs);
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
            Some(Open::Bracket(open, place)) if open == opener => {
                self.closed = (place, self.at);
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

    /// `ipairs`: called where a loop's expressions begin, called elsewhere, or used in a way that may change its meaning.
    fn ipairs(&mut self, start: usize) {
        self.last = Last::Statement;
        let blanks = self.bytes[self.at..].iter().take_while(|byte| byte.is_ascii_whitespace()).count();
        let called = self.peek(blanks) == Some(b'(');
        if !called || self.after_function {
            self.ipairs_rebound = true;
        } else if let Some(Open::ForIn(wrap, ipairs)) = self.open.last_mut()
            && self.code[self.wraps[*wrap].opens..start].trim_ascii().is_empty()
        {
            *ipairs = Some(self.at + blanks);
        }
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
    fn type_annotations_are_not_expressions() {
        let rest = "if x then for k in t do end end";
        let wrapped = "if x then for k in ITER( t ) do end end";
        for code in [
            "local x: number?",
            "local x: Map<string, {number}>",
            "local x: A<B<C>>",
            "type F = (number, ...string) -> A<B>",
            "type G<T> = {[string]: T}?",
            "local x = y :: Map<string, number>",
            "local function f(a: A<B>, ...: number): A<B>? return a end",
            "local x = a < b",
            "local x = a > b",
            "local x = a <= b or c >= d",
            "type T = typeof(if a then b else c)",
        ] {
            check(&format!("{code} {rest}"), &format!("{code} {wrapped}"));
        }
        check("local x = a < b and c > if d then e else f", "local x = a < b and c > if d then e else f");
        check("local x = f(a < b, c > if d then e else g) do end", "local x = f(a < b, c > if d then e else g) do end");
        check("local x = a > if d then e else f if g then end", "local x = a > if d then e else f if g then end");
    }

    #[test]
    fn loops_over_ipairs_keep_the_short_cut() {
        check("for i, v in ipairs(t) do end", "for i, v in ipairs(t) do end");
        check("for i, v in ipairs ( f(t) )\n-- all\ndo end", "for i, v in ipairs ( f(t) )\n-- all\ndo end");
        check(
            "for i, v in ipairs(t) do for k in ipairs(v) do for k in v do end end end",
            "for i, v in ipairs(t) do for k in ipairs(v) do for k in ITER( v ) do end end end",
        );
        for changed in [
            "local ipairs = f",
            "function ipairs(t) end",
            "local function ipairs(t) end",
            "ipairs, x = 1, 2",
            "f(ipairs)",
        ] {
            check(
                &format!("{changed} for i in ipairs(t) do end"),
                &format!("{changed} for i in ITER( ipairs(t) ) do end"),
            );
        }
        for odd in ["ipairs(t)(u)", "ipairs(t).x", "ipairs(t), u", "ipairs(t)[1]", "(ipairs(t))", "ipairs(t) or x"] {
            check(&format!("for i in {odd} do end"), &format!("for i in ITER( {odd} ) do end"));
        }
    }

    #[test]
    fn varargs_of_the_main_chunk_are_seen() {
        assert!(rewrite("return ...").is_ok_and(|rewritten| rewritten.uses_varargs));
        assert!(rewrite("local function f(...) return ... end").is_ok_and(|rewritten| !rewritten.uses_varargs));
        assert!(rewrite("return '...'").is_ok_and(|rewritten| !rewritten.uses_varargs));
    }

    #[test]
    fn the_reserved_name_is_refused() {
        assert!(rewrite(&format!("\nreturn {NAME}")).is_err_and(|(line, _)| line == 2));
    }
}
