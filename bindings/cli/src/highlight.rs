//! Program text with its syntax coloured, for a terminal.

use cadenza_core::printable::printable;
use cadenza_core::program::Language;
use nu_ansi_term::{Color, Style as Ansi};
use synoptic::{Highlighter, TokOpt};

use crate::style::Style;

/// Columns of a tab.
const TAB: usize = 4;

/// What Luau adds to the Lua that the highlighter knows.
const LUAU_WORDS: &str = r"\b(continue|export|type|typeof|context|args|kwargs|agent|tools|history|Agent|Outcome)\b";
/// Rhai's words.
const RHAI_WORDS: &str = r"\b(let|const|fn|private|if|else|switch|while|loop|do|until|for|in|break|continue|return|throw|try|catch|import|export|as|this|true|false|is_shared|is_def_fn|is_def_var)\b";
/// What a program is given.
const RHAI_GIVEN: &str = r"\b(context|args|kwargs|agent|tools|history|Agent|Outcome|json)\b";

/// The program, coloured if the style has colours.
pub fn program(code: &str, language: Language, style: Style) -> String {
    let code = &*printable(code);
    if !style.has_colours() {
        return code.to_owned();
    }
    let mut highlighter = match language {
        Language::Lua => lua(),
        Language::Rhai => rhai(),
    };
    let lines: Vec<String> = code.split('\n').map(str::to_owned).collect();
    highlighter.run(&lines);
    let coloured = lines.iter().enumerate().map(|(number, line)| {
        let tokens = highlighter.line(number, line).into_iter();
        tokens.map(|token| painted(token, style)).collect::<String>()
    });
    coloured.collect::<Vec<_>>().join("\n")
}

fn painted(token: TokOpt, style: Style) -> String {
    match token {
        TokOpt::Some(text, kind) => style.paint(colour(&kind), &text),
        TokOpt::None(text) => text,
    }
}

fn colour(kind: &str) -> Ansi {
    match kind {
        "comment" => Color::DarkGray.italic(),
        "string" | "character" => Color::Green.normal(),
        "digit" | "number" | "boolean" => Color::Yellow.normal(),
        "keyword" => Color::Purple.normal(),
        "function" => Color::Blue.normal(),
        "namespace" | "struct" | "given" => Color::Cyan.normal(),
        _ => Ansi::new(),
    }
}

fn lua() -> Highlighter {
    // Cannot fire: the crate answers every extension, with an empty highlighter when it does not know it.
    let mut highlighter = synoptic::from_extension("lua", TAB).unwrap_or_else(|| Highlighter::new(TAB));
    highlighter.keyword("given", LUAU_WORDS);
    highlighter
}

fn rhai() -> Highlighter {
    let mut highlighter = Highlighter::new(TAB);
    highlighter.bounded("comment", "/\\*", "\\*/", false);
    highlighter.keyword("comment", "(//.*)$");
    highlighter.bounded("string", "\"", "\"", true);
    highlighter.bounded_interp("string", "`", "`", "\\$\\{", "\\}", false);
    highlighter.keyword("character", r"('(?:[^'\\]|\\.)')");
    highlighter.keyword("digit", r"\b(0x[0-9a-fA-F_]+|0b[01_]+|\d[\d_]*(?:\.\d+)?(?:[eE][+-]?\d+)?)\b");
    highlighter.keyword("keyword", RHAI_WORDS);
    highlighter.keyword("given", RHAI_GIVEN);
    highlighter.keyword("function", r"\b([a-zA-Z_]\w*)\s*\(");
    highlighter
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::style::When;

    #[test]
    fn colours_change_nothing_but_colours() {
        let lua = "-- add\nlocal total = args[1] + 2.5 -- \"no string\"\nreturn `sum: {total}` .. [[ü\n]]\n";
        let rhai = "// add\nlet total = args[0] + 2.5; /* a\nb */\n`sum: ${total}` + \"x\\\"y\" + 'c'\n";
        for (code, language) in [(lua, Language::Lua), (rhai, Language::Rhai)] {
            assert_eq!(program(code, language, Style::PLAIN), code);
            let coloured = program(code, language, Style::of_stdout(When::Always));
            assert!(coloured.contains("\u{1b}["), "{coloured}");
            let plain: String = coloured
                .split('\u{1b}')
                .enumerate()
                .map(|(index, part)| if index == 0 { part } else { part.split_once('m').unwrap().1 })
                .collect();
            assert_eq!(plain, code);
        }
    }
}
