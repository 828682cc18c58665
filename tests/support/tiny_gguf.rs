//! Writes a tiny model with random weights: a whole GGUF file of the llama architecture, of some hundred kilobytes.
//!
//! It knows every byte, some words, and the tokens that steer a chat; what it says is noise. The same seed gives the same
//! bytes on every machine.

use std::path::Path;

/// Which kind of tokenizer the model has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Tokenizer {
    /// Words with scores and one token per byte (SentencePiece).
    Pieces,
    /// Pairs that are merged, over a printable form of all bytes (GPT-2).
    Merges,
    /// The same, and it knows nothing but three digits.
    Digits,
}

/// What the file is to hold.
#[derive(Clone, Debug)]
pub struct Tiny {
    /// Chooses the weights.
    pub seed: u64,
    pub tokenizer: Tokenizer,
    /// Most tokens that the model was trained for, as it says.
    pub context_length: u32,
    pub layers: u32,
    pub embedding: u32,
    /// Tokens beyond the bytes and the words below: noise of letters, for the size of a real vocabulary.
    pub more_tokens: u32,
    pub chat_template: Option<&'static str>,
    /// How a text is taken apart before its pairs are merged; not of [`Tokenizer::Pieces`].
    pub splitter: &'static str,
    /// Whether the tokens that steer a chat are of the type that llama.cpp finds in any text, as some files have it.
    pub steers_anywhere: bool,
    /// The name of its kind; its tensors are those of llama.
    pub architecture: &'static str,
    /// Further entries of the header, of names behind the architecture's.
    pub entries: &'static [(&'static str, Entry)],
}

/// What an entry of the header says.
#[derive(Clone, Copy, Debug)]
pub enum Entry {
    Number(u32),
    Numbers(&'static [u32]),
    Truth(bool),
    Text(&'static str),
}

impl Default for Tiny {
    fn default() -> Self {
        Self {
            seed: 0,
            tokenizer: Tokenizer::Pieces,
            context_length: 4096,
            layers: 1,
            embedding: 32,
            more_tokens: 0,
            chat_template: None,
            splitter: "gpt-2",
            steers_anywhere: false,
            architecture: "llama",
            entries: &[],
        }
    }
}

/// Words that meet the borders of a grammar: some end a string and more, some hold half of an escape.
const WORDS: [&str; 44] = [
    "return", "local", "function", "end", " end", "args", "[", "]", "1", "0", " +", " =", "==", "\"", "\\", "\\n",
    "\\\"", "\"}", "\"}}", "\"}}\n", "}}", "}", "{", "{\"", "\": ", "\", ", ": ", ", ", "\"name", "\"code\"", "```",
    "`", "``", "\n```", "```lua", "\n", "  ", "I will", " Sure", "<call>", "\\u", "\\ud8", "true", "-",
];

/// Tokens that steer a chat.
const STEERS: [&str; 2] = ["<|im_start|>", "<|im_end|>"];

/// The file's bytes.
pub fn bytes(tiny: &Tiny) -> Vec<u8> {
    let mut random = fastrand::Rng::with_seed(tiny.seed);
    let vocabulary = Vocabulary::new(tiny);
    let (embedding, forward, heads) = (u64::from(tiny.embedding), u64::from(tiny.embedding) * 2, 4);
    let tokens = vocabulary.tokens.len() as u64;

    let mut entries = Entries::default();
    let own = |name: &str| format!("{}.{name}", tiny.architecture);
    entries.text("general.architecture", tiny.architecture);
    entries.text("general.type", "model");
    entries.text("general.name", "tiny");
    entries.u32(&own("context_length"), tiny.context_length);
    entries.u32(&own("embedding_length"), tiny.embedding);
    entries.u32(&own("block_count"), tiny.layers);
    entries.u32(&own("feed_forward_length"), tiny.embedding * 2);
    entries.u32(&own("attention.head_count"), heads);
    entries.u32(&own("attention.head_count_kv"), heads);
    entries.u32(&own("rope.dimension_count"), tiny.embedding / heads);
    entries.f32(&own("attention.layer_norm_rms_epsilon"), 1e-5);
    for (name, value) in tiny.entries {
        entries.entry(&own(name), value);
    }
    vocabulary.write(&mut entries, tiny);
    if let Some(template) = tiny.chat_template {
        entries.text("tokenizer.chat_template", template);
    }

    let mut tensors = Tensors::default();
    let mut noise = |scale: f32| {
        // The sum of some even numbers is nearly normal.
        let sum: f32 = (0..4).map(|_| random.f32() - 0.5).sum();
        sum * scale
    };
    let inner = 1.7 / (tiny.embedding as f32).sqrt();
    tensors.add("token_embd.weight", &[embedding, tokens], || noise(1.7));
    tensors.add("output_norm.weight", &[embedding], || 1.0);
    tensors.add("output.weight", &[embedding, tokens], || noise(4.0 * inner));
    for layer in 0..tiny.layers {
        let name = |part: &str| format!("blk.{layer}.{part}.weight");
        tensors.add(&name("attn_norm"), &[embedding], || 1.0);
        for part in ["attn_q", "attn_k", "attn_v", "attn_output"] {
            tensors.add(&name(part), &[embedding, embedding], || noise(inner));
        }
        tensors.add(&name("ffn_norm"), &[embedding], || 1.0);
        tensors.add(&name("ffn_gate"), &[embedding, forward], || noise(inner));
        tensors.add(&name("ffn_up"), &[embedding, forward], || noise(inner));
        tensors.add(&name("ffn_down"), &[forward, embedding], || noise(inner));
    }

    let mut out = b"GGUF".to_vec();
    out.extend(3_u32.to_le_bytes());
    out.extend(tensors.count.to_le_bytes());
    out.extend(entries.count.to_le_bytes());
    out.extend(entries.bytes);
    out.extend(tensors.infos);
    out.resize(out.len().next_multiple_of(32), 0);
    out.extend(tensors.data);
    out
}

/// Writes the file.
pub fn write(path: &Path, tiny: &Tiny) {
    std::fs::write(path, bytes(tiny)).unwrap();
}

/// The tokens of the model.
struct Vocabulary {
    tokens: Vec<String>,
    kinds: Vec<i32>,
    merges: Vec<String>,
}

const NORMAL: i32 = 1;
const UNKNOWN: i32 = 2;
const CONTROL: i32 = 3;
const USER_DEFINED: i32 = 4;
const BYTE: i32 = 6;

impl Vocabulary {
    fn new(tiny: &Tiny) -> Self {
        let mut tokens: Vec<(String, i32)> =
            vec![("<unk>".into(), UNKNOWN), ("<s>".into(), CONTROL), ("</s>".into(), CONTROL)];
        if tiny.tokenizer != Tokenizer::Digits {
            let kind = if tiny.steers_anywhere { USER_DEFINED } else { CONTROL };
            tokens.extend(STEERS.map(|steer| (steer.to_owned(), kind)));
        }
        let mut merges = Vec::new();
        match tiny.tokenizer {
            Tokenizer::Digits => tokens.extend(["7", "8", "9"].map(|digit| (digit.into(), NORMAL))),
            Tokenizer::Pieces => {
                tokens.extend((0..=255_u8).map(|byte| (format!("<0x{byte:02X}>"), BYTE)));
                tokens.push(("▁".into(), NORMAL));
                tokens.extend((b'!'..=b'~').map(|letter| (char::from(letter).to_string(), NORMAL)));
                // Those of one letter are there already.
                let words = WORDS.into_iter().filter(|word| word.len() > 1);
                tokens.extend(words.map(|word| (word.replace(' ', "▁"), NORMAL)));
            }
            Tokenizer::Merges => {
                tokens.extend((0..=255).map(|byte| (printable(&[byte]), NORMAL)));
                for word in WORDS.into_iter().filter(|word| word.len() > 1) {
                    // A word is merged letter by letter from its start.
                    for end in 2..=word.len() {
                        let (before, letter) = (&word.as_bytes()[..end - 1], &word.as_bytes()[end - 1..end]);
                        let whole = printable(&word.as_bytes()[..end]);
                        if tokens.iter().all(|(token, _)| *token != whole) {
                            merges.push(format!("{} {}", printable(before), printable(letter)));
                            tokens.push((whole, NORMAL));
                        }
                    }
                }
            }
        }
        let mut random = fastrand::Rng::with_seed(7);
        while tokens.len() < 400 + tiny.more_tokens as usize && tiny.more_tokens > 0 {
            let word: String = (0..random.usize(3..12)).map(|_| random.lowercase()).collect();
            let number = tokens.len();
            tokens.push((format!("{word}{number}"), NORMAL));
        }
        let (tokens, kinds) = tokens.into_iter().unzip();
        Self { tokens, kinds, merges }
    }

    fn write(&self, entries: &mut Entries, tiny: &Tiny) {
        match tiny.tokenizer {
            Tokenizer::Pieces => {
                entries.text("tokenizer.ggml.model", "llama");
                let scores: Vec<f32> = (0..self.tokens.len()).map(|index| -(index as f32)).collect();
                entries.list(
                    "tokenizer.ggml.scores",
                    6,
                    scores.len(),
                    scores.iter().flat_map(|score| score.to_le_bytes()),
                );
                entries.u32("tokenizer.ggml.unknown_token_id", 0);
            }
            Tokenizer::Merges | Tokenizer::Digits => {
                entries.text("tokenizer.ggml.model", "gpt2");
                entries.text("tokenizer.ggml.pre", tiny.splitter);
                entries.texts("tokenizer.ggml.merges", &self.merges);
            }
        }
        entries.texts("tokenizer.ggml.tokens", &self.tokens);
        let kinds = self.kinds.iter().flat_map(|kind| kind.to_le_bytes());
        entries.list("tokenizer.ggml.token_type", 5, self.kinds.len(), kinds);
        entries.u32("tokenizer.ggml.bos_token_id", 1);
        entries.u32("tokenizer.ggml.eos_token_id", 2);
    }
}

/// Bytes in the printable form that GPT-2's vocabularies use.
fn printable(bytes: &[u8]) -> String {
    let is_itself = |byte: &u8| matches!(byte, b'!'..=b'~' | 0xa1..=0xac | 0xae..=0xff);
    let others: Vec<u8> = (0..=255).filter(|byte| !is_itself(byte)).collect();
    let one = |byte: &u8| match others.iter().position(|other| other == byte) {
        Some(index) => char::from_u32(256 + index as u32).unwrap(),
        None => char::from(*byte),
    };
    bytes.iter().map(one).collect()
}

/// The key-value part of the header.
#[derive(Default)]
struct Entries {
    bytes: Vec<u8>,
    count: u64,
}

impl Entries {
    fn key(&mut self, key: &str, kind: u32) {
        self.count += 1;
        text(&mut self.bytes, key);
        self.bytes.extend(kind.to_le_bytes());
    }

    fn entry(&mut self, key: &str, value: &Entry) {
        match value {
            Entry::Number(number) => self.u32(key, *number),
            Entry::Numbers(numbers) => {
                self.list(key, 4, numbers.len(), numbers.iter().flat_map(|number| number.to_le_bytes()));
            }
            Entry::Truth(truth) => {
                self.key(key, 7);
                self.bytes.push(u8::from(*truth));
            }
            Entry::Text(value) => self.text(key, value),
        }
    }

    fn u32(&mut self, key: &str, value: u32) {
        self.key(key, 4);
        self.bytes.extend(value.to_le_bytes());
    }

    fn f32(&mut self, key: &str, value: f32) {
        self.key(key, 6);
        self.bytes.extend(value.to_le_bytes());
    }

    fn text(&mut self, key: &str, value: &str) {
        self.key(key, 8);
        text(&mut self.bytes, value);
    }

    fn list(&mut self, key: &str, kind: u32, length: usize, items: impl Iterator<Item = u8>) {
        self.key(key, 9);
        self.bytes.extend(kind.to_le_bytes());
        self.bytes.extend((length as u64).to_le_bytes());
        self.bytes.extend(items);
    }

    fn texts(&mut self, key: &str, texts: &[String]) {
        let mut items = Vec::new();
        texts.iter().for_each(|item| text(&mut items, item));
        self.list(key, 8, texts.len(), items.into_iter());
    }
}

fn text(out: &mut Vec<u8>, text: &str) {
    out.extend((text.len() as u64).to_le_bytes());
    out.extend(text.as_bytes());
}

#[derive(Default)]
struct Tensors {
    infos: Vec<u8>,
    data: Vec<u8>,
    count: u64,
}

impl Tensors {
    fn add(&mut self, name: &str, dimensions: &[u64], mut number: impl FnMut() -> f32) {
        self.count += 1;
        text(&mut self.infos, name);
        self.infos.extend((dimensions.len() as u32).to_le_bytes());
        dimensions.iter().for_each(|dimension| self.infos.extend(dimension.to_le_bytes()));
        // Type 0: 32-bit floats.
        self.infos.extend(0_u32.to_le_bytes());
        self.infos.extend((self.data.len() as u64).to_le_bytes());
        for _ in 0..dimensions.iter().product::<u64>() {
            self.data.extend(number().to_le_bytes());
        }
        self.data.resize(self.data.len().next_multiple_of(32), 0);
    }
}
