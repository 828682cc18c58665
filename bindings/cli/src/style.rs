//! Colours on a terminal, plain text everywhere else. `NO_COLOR` is honoured.

use std::io::IsTerminal as _;

use nu_ansi_term::{Color, Style as Ansi};

/// When there are colours (`--color`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, clap::ValueEnum)]
pub enum When {
    /// On a terminal that can show them.
    #[default]
    Auto,
    /// Always.
    Always,
    /// Never.
    Never,
}

/// How text is painted: with colours or not at all.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Style {
    colours: bool,
}

impl Style {
    /// No colours.
    pub const PLAIN: Self = Self { colours: false };

    /// The style of standard output.
    pub fn of_stdout(when: When) -> Self {
        Self { colours: decide(when, std::io::stdout().is_terminal()) }
    }

    /// The style of standard error.
    pub fn of_stderr(when: When) -> Self {
        Self { colours: decide(when, std::io::stderr().is_terminal()) }
    }

    /// Whether there are colours.
    pub fn has_colours(self) -> bool {
        self.colours
    }

    /// Success.
    pub fn good(self, text: &str) -> String {
        self.paint(Color::Green.normal(), text)
    }

    /// Failure.
    pub fn bad(self, text: &str) -> String {
        self.paint(Color::Red.bold(), text)
    }

    /// What stands back.
    pub fn faint(self, text: &str) -> String {
        self.paint(Color::DarkGray.normal(), text)
    }

    /// What stands out.
    pub fn strong(self, text: &str) -> String {
        self.paint(Ansi::new().bold(), text)
    }

    /// Names.
    pub fn name(self, text: &str) -> String {
        self.paint(Color::Cyan.normal(), text)
    }

    /// Any other colour.
    pub fn paint(self, ansi: Ansi, text: &str) -> String {
        if self.colours { ansi.paint(text).to_string() } else { text.to_owned() }
    }
}

fn decide(when: When, terminal: bool) -> bool {
    let set = |name: &str| std::env::var_os(name).is_some_and(|value| !value.is_empty());
    match when {
        When::Always => true,
        When::Never => false,
        When::Auto => terminal && !set("NO_COLOR") && std::env::var_os("TERM").is_none_or(|term| term != "dumb"),
    }
}
