//! A conversation as a model's tokens, in the form that its own chat template gives.
//!
//! The words of a message are never read as tokens that steer the model: the template is filled with marks, and each mark
//! is replaced by the tokens of its message as plain text. A message cannot end its own turn or speak for another role.

use llama_cpp_2::model::{LlamaChatMessage, LlamaChatTemplate, LlamaModel};
use llama_cpp_2::token::LlamaToken;
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

/// The template of the model, or ChatML where it has none that llama.cpp knows.
pub(super) fn template(model: &LlamaModel) -> LlamaChatTemplate {
    // Cannot fire: the name holds no zero byte.
    let chatml = || LlamaChatTemplate::new(CHATML).expect("a constant without a zero byte");
    let Ok(own) = model.chat_template(None) else { return chatml() };
    let turns = ["system", "user", "assistant", "user"].map(|role| Turn { role, text: String::new() });
    match filled(model, &own, &turns) {
        Ok(_) => own,
        Err(why) => {
            tracing::warn!("the model's chat template is not used, ChatML is: {why}");
            chatml()
        }
    }
}

/// The conversation up to where the assistant's next words begin.
pub(super) fn tokens(
    model: &LlamaModel,
    template: &LlamaChatTemplate,
    turns: &[Turn],
) -> Result<Vec<LlamaToken>, String> {
    let vocabulary = model.vocab();
    let text = filled(model, template, turns)?;
    let mut tokens = Vec::new();
    // A model may ask for a beginning that its vocabulary does not have; such a token must not reach llama.cpp.
    if vocabulary.should_add_bos() && vocabulary.bos().0 >= 0 && !begins_with_bos(model, &text) {
        tokens.push(vocabulary.bos());
    }
    let mut rest = &*text;
    for (index, turn) in turns.iter().enumerate() {
        // `filled` has seen that all marks are there, in order.
        let Some((before, behind)) = rest.split_once(&mark(index)) else { continue };
        tokens.extend(vocabulary.tokenize(before.as_bytes(), false, true));
        tokens.extend(plain_tokens(model, turn.text.as_bytes()));
        rest = behind;
    }
    tokens.extend(vocabulary.tokenize(rest.as_bytes(), false, true));
    Ok(tokens)
}

/// A text as tokens of which none steers the model.
pub(super) fn plain_tokens(model: &LlamaModel, text: &[u8]) -> Vec<LlamaToken> {
    if text.is_empty() {
        return Vec::new();
    }
    let vocabulary = model.vocab();
    let mut tokens = vocabulary.tokenize(text, false, false);
    // This kind of tokenizer sets a space before every text, also before the continuation of one.
    let added = |token: &LlamaToken| vocabulary.token_to_piece(*token, false, None) == b" ";
    if vocabulary.vocab_type() == VocabType::SPM && !text.starts_with(b" ") && tokens.first().is_some_and(added) {
        tokens.remove(0);
    }
    tokens
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
