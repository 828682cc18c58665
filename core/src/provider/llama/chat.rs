//! A conversation as a model's tokens, in the form that its own chat template gives.
//!
//! The words of a message are never read as tokens that steer the model: the template is filled with marks, and each mark
//! is replaced by the tokens of its message as plain text. A message cannot end its own turn or speak for another role. Where
//! llama.cpp would still find a token that steers (one that the model's file calls defined by its user, type 4), the text is
//! cut within it.

use llama_cpp_2::model::{LlamaChatMessage, LlamaChatTemplate, LlamaModel};
use llama_cpp_2::token::LlamaToken;
use llama_cpp_2::token_type::LlamaTokenAttr;
use llama_cpp_2::vocab::VocabType;

/// One message of the conversation.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Turn {
    /// `system`, `user` or `assistant`: the roles that every template knows.
    pub role: &'static str,
    pub text: String,
}

/// The form of most models without one of their own.
const CHATML: &str = "chatml";

/// How a model's conversations are written.
pub(super) struct Chat<'a> {
    model: &'a LlamaModel,
    template: LlamaChatTemplate,
    /// Texts of at least two characters that llama.cpp would take for a token that steers, also within a message.
    steers: Vec<String>,
}

impl<'a> Chat<'a> {
    /// With the template of the model, or ChatML where it has none that llama.cpp knows.
    pub fn of(model: &'a LlamaModel) -> Self {
        let turns = ["system", "user", "assistant", "user"].map(|role| Turn { role, text: String::new() });
        let own = model.chat_template(None).ok().and_then(|own| match filled(model, &own, &turns) {
            Ok(_) => Some(own),
            Err(why) => {
                tracing::warn!("the model's chat template is not used, ChatML is: {why}");
                None
            }
        });
        // Cannot fire: the name holds no zero byte.
        let template = own.unwrap_or_else(|| LlamaChatTemplate::new(CHATML).expect("a constant without a zero byte"));
        let mut chat = Self { model, template, steers: Vec::new() };
        // Cannot fire: the template was filled with as many turns, or is ChatML.
        let used = chat.tokens(&turns).unwrap_or_default();
        let vocabulary = model.vocab();
        chat.steers = vocabulary
            .tokens()
            .filter(|token| vocabulary.attr(*token).contains(LlamaTokenAttr::UserDefined))
            .filter_map(|token| Some((token, vocabulary.text(token)?.to_str().ok()?.to_owned())))
            .filter(|(token, text)| steers(text, used.contains(token)))
            .map(|(_, text)| text)
            .collect();
        chat
    }

    /// The conversation up to where the assistant's next words begin.
    pub fn tokens(&self, turns: &[Turn]) -> Result<Vec<LlamaToken>, String> {
        let vocabulary = self.model.vocab();
        let text = filled(self.model, &self.template, turns)?;
        let mut tokens = Vec::new();
        // A model may ask for a beginning that its vocabulary does not have; such a token must not reach llama.cpp.
        if vocabulary.should_add_bos() && vocabulary.bos().0 >= 0 && !begins_with_bos(self.model, &text) {
            tokens.push(vocabulary.bos());
        }
        let mut rest = &*text;
        for (index, turn) in turns.iter().enumerate() {
            // `filled` has seen that all marks are there, in order.
            let Some((before, behind)) = rest.split_once(&mark(index)) else { continue };
            tokens.extend(match index {
                0 => vocabulary.tokenize(before.as_bytes(), false, true),
                _ => self.continued(before.as_bytes(), true),
            });
            tokens.extend(self.plain_tokens(turn.text.as_bytes()));
            rest = behind;
        }
        tokens.extend(self.continued(rest.as_bytes(), true));
        Ok(tokens)
    }

    /// A text that continues another, as tokens of which none steers the model.
    pub fn plain_tokens(&self, text: &[u8]) -> Vec<LlamaToken> {
        let mut tokens = Vec::new();
        let mut rest = 0;
        for at in 0..text.len() {
            // Cut within each of them, so that no part holds a whole one.
            if let Some(steer) = self.steers.iter().find(|steer| text[at..].starts_with(steer.as_bytes())) {
                let cut = at + steer.chars().next().map_or(0, char::len_utf8);
                tokens.extend(self.continued(&text[rest..cut], false));
                rest = cut;
            }
        }
        tokens.extend(self.continued(&text[rest..], false));
        tokens
    }

    /// The tokens of a text that continues another.
    ///
    /// One kind of tokenizer sets a space before every text, and may make one token of it and what follows. So something is
    /// put before the text, and its tokens are taken away: where they are whole, none reached from it into the text.
    fn continued(&self, text: &[u8], parse_special: bool) -> Vec<LlamaToken> {
        let vocabulary = self.model.vocab();
        let tokens = |text: &[u8]| vocabulary.tokenize(text, false, parse_special);
        if vocabulary.vocab_type() == VocabType::SPM && !text.is_empty() {
            for before in [&b"\x01"[..], b"\n"] {
                let both = tokens(&[before, text].concat());
                if let Some(own) = both.strip_prefix(&*tokens(before)) {
                    return own.to_vec();
                }
            }
        }
        tokens(text)
    }
}

/// Whether a token of this text, which llama.cpp finds in any text, steers the model: the template uses it, or it has the
/// form that such tokens have. What is blank steers nothing.
fn steers(text: &str, used: bool) -> bool {
    let has_form = text.starts_with("<|") && text.ends_with("|>");
    text.chars().nth(1).is_some() && !text.trim().is_empty() && (used || has_form)
}

/// The template with a mark in place of every message.
fn filled(model: &LlamaModel, template: &LlamaChatTemplate, turns: &[Turn]) -> Result<String, String> {
    let messages: Result<Vec<_>, _> = turns
        .iter()
        .enumerate()
        .map(|(index, turn)| LlamaChatMessage::new(turn.role.to_owned(), mark(index)))
        .collect();
    let messages = messages.map_err(|error| error.to_string())?;
    let text = model.apply_chat_template(template, &messages, true).map_err(|error| error.to_string())?;
    let mut rest = &*text;
    for index in 0..turns.len() {
        rest = rest.split_once(&mark(index)).ok_or("the chat template leaves out or moves a message")?.1;
    }
    Ok(text)
}

fn mark(index: usize) -> String {
    format!("[cadenza message {index}]")
}

fn begins_with_bos(model: &LlamaModel, text: &str) -> bool {
    let bos = model.vocab().bos();
    let piece = model.vocab().text(bos).map(|text| text.to_bytes().to_vec()).unwrap_or_default();
    !piece.is_empty() && text.as_bytes().starts_with(&piece)
}
