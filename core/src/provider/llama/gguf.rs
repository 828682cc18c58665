//! What can be said about a GGUF file before llama.cpp opens it: whether it is one, whole, and a model that writes text.
//!
//! Reads the header only, and never trusts a number in it: every length is checked against the size of the file. llama.cpp
//! checks again, but some of what it finds ends the process instead of the load.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::File;
use std::io::{self, BufReader, Read, Seek, SeekFrom};
use std::path::Path;

use sha2::{Digest as _, Sha256};

use crate::ids::Digest;

/// Bytes at either end of a file that its digest covers.
const DIGESTED: u64 = 1 << 20;

/// Most entries of a header; real ones have some dozens, and some thousand tensors.
const MAX_ENTRIES: u64 = 1 << 20;

/// Most bytes of a name in a header.
const MAX_NAME: u64 = 64 << 10;

/// The key of a model's tokens.
const TOKENS: &str = "tokenizer.ggml.tokens";

/// Most layers of a model and most experts of a layer: llama.cpp ends the process over more.
const MAX_LAYERS: u64 = 512;
const MAX_EXPERTS: u64 = 1024;

/// Models that read or fill in text instead of writing it: llama.cpp gives them no memory of what came before.
const WITHOUT_MEMORY: [&str; 15] = [
    "bert",
    "clef",
    "dream",
    "eurobert",
    "gemma-embedding",
    "jina-bert-v2",
    "jina-bert-v3",
    "llada",
    "llada-moe",
    "modern-bert",
    "neo-bert",
    "nomic-bert",
    "nomic-bert-moe",
    "rnd1",
    "wavtokenizer-dec",
];

/// How deep lists may stand in lists.
const MAX_DEPTH: u32 = 4;

/// A file that looks like a whole model.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Checked {
    /// Digest of the file's size, its first MiB and its last: cheap, and different for different models.
    pub digest: Digest,
    /// Its size in bytes.
    pub bytes: u64,
}

/// Looks at the file's header and ends.
pub fn check(path: &Path) -> Result<Checked, GgufError> {
    let metadata = std::fs::metadata(path).map_err(GgufError::of)?;
    if metadata.is_dir() {
        return Err(GgufError::Directory);
    }
    if !metadata.is_file() {
        return Err(GgufError::NotAFile);
    }
    let mut file = File::open(path).map_err(GgufError::of)?;
    let bytes = file.metadata().map_err(GgufError::of)?.len();
    if bytes == 0 {
        return Err(GgufError::Empty);
    }
    let digest = digest(&mut file, bytes).map_err(GgufError::of)?;
    file.seek(SeekFrom::Start(0)).map_err(GgufError::of)?;
    let mut header = Header { file: BufReader::new(file), at: 0, bytes };
    header.check()?;
    Ok(Checked { digest, bytes })
}

fn digest(file: &mut File, bytes: u64) -> io::Result<Digest> {
    let mut hash = Sha256::new();
    hash.update(bytes.to_le_bytes());
    let mut end = vec![0; usize::try_from(DIGESTED.min(bytes)).unwrap_or(usize::MAX)];
    for start in [0, bytes.saturating_sub(DIGESTED)] {
        file.seek(SeekFrom::Start(start))?;
        file.read_exact(&mut end)?;
        hash.update(&end);
    }
    Ok(Digest(hash.finalize().into()))
}

struct Header {
    file: BufReader<File>,
    at: u64,
    bytes: u64,
}

/// What is kept of a value: enough to judge the model by.
enum Kept {
    Text(String),
    Number(u64),
    /// Of a list with one number per layer, the largest.
    Most(u64),
    /// The vocabulary, each token as its bytes.
    Tokens(BTreeSet<Box<[u8]>>),
    Other,
}

impl Header {
    fn check(&mut self) -> Result<(), GgufError> {
        let magic: [u8; 4] = self.array().map_err(|_| GgufError::NotGguf)?;
        if magic != *b"GGUF" {
            return Err(GgufError::NotGguf);
        }
        let version = self.u32()?;
        if !matches!(version, 2 | 3) {
            // A file for machines with the other byte order reads as a very large version.
            let big_endian = matches!(version.swap_bytes(), 2 | 3);
            return Err(if big_endian { GgufError::ByteOrder } else { GgufError::Version(version) });
        }
        let (tensors, entries) = (self.u64()?, self.u64()?);
        if tensors > MAX_ENTRIES || entries > MAX_ENTRIES {
            return Err(GgufError::Broken("it promises more entries than any model has"));
        }
        let mut kept = BTreeMap::new();
        for _ in 0..entries {
            let name = self.text()?;
            if name.is_empty() {
                return Err(GgufError::Broken("a key has no name, or too long a one"));
            }
            let kind = self.u32()?;
            let value = if name == TOKENS { self.tokens(kind)? } else { self.value(kind, 0)? };
            if kept.insert(name, value).is_some() {
                return Err(GgufError::Broken("a key stands twice"));
            }
        }
        judge(&kept)?;
        self.check_tensors(tensors, &kept)
    }

    fn check_tensors(&mut self, tensors: u64, kept: &BTreeMap<String, Kept>) -> Result<(), GgufError> {
        let mut end = 0_u64;
        for _ in 0..tensors {
            let _name = self.text()?;
            let dimensions = self.u32()?;
            if !(1..=4).contains(&dimensions) {
                return Err(GgufError::Broken("a tensor has no or too many dimensions"));
            }
            let mut elements = 1_u64;
            for _ in 0..dimensions {
                let more = self.u64()?;
                elements = elements.checked_mul(more).ok_or(GgufError::Broken("a tensor is too large"))?;
            }
            let (kind, offset) = (self.u32()?, self.u64()?);
            let own = tensor_bytes(kind, elements);
            end = end.max(offset.checked_add(own).ok_or(GgufError::Broken("a tensor is too large"))?);
        }
        let alignment = match kept.get("general.alignment") {
            Some(Kept::Number(alignment)) if alignment.is_power_of_two() && *alignment <= 1 << 16 => *alignment,
            Some(_) => return Err(GgufError::Broken("its alignment is no power of two")),
            None => 32,
        };
        let needed = self.at.next_multiple_of(alignment).saturating_add(end);
        if needed > self.bytes {
            return Err(GgufError::Truncated { needed, bytes: self.bytes });
        }
        Ok(())
    }

    fn value(&mut self, kind: u32, depth: u32) -> Result<Kept, GgufError> {
        Ok(match kind {
            0 | 1 | 7 => Kept::Number(u64::from(self.array::<1>()?[0])),
            2 | 3 => Kept::Number(u64::from(u16::from_le_bytes(self.array()?))),
            4 | 5 => Kept::Number(u64::from(self.u32()?)),
            6 => {
                self.skip(4)?;
                Kept::Other
            }
            8 => Kept::Text(self.text()?),
            9 if depth < MAX_DEPTH => {
                let (kind, length) = (self.u32()?, self.u64()?);
                match fixed_size(kind) {
                    Some(4) if kind != 6 && (1..=MAX_LAYERS).contains(&length) => {
                        let mut most = 0;
                        for _ in 0..length {
                            most = most.max(self.u32()?);
                        }
                        return Ok(Kept::Most(most.into()));
                    }
                    Some(size) => self.skip(length.checked_mul(size).ok_or_else(|| self.cut_short(u64::MAX))?)?,
                    None => {
                        for _ in 0..length {
                            self.list_item(kind, depth)?;
                        }
                    }
                }
                Kept::Other
            }
            10 | 11 => Kept::Number(self.u64()?),
            12 => {
                self.skip(8)?;
                Kept::Other
            }
            _ => return Err(GgufError::Broken("a value has a type that GGUF does not know")),
        })
    }

    /// The vocabulary. llama.cpp ends the process where a token stands twice, as it reads them: up to a zero byte, and one
    /// without a text by its number.
    fn tokens(&mut self, kind: u32) -> Result<Kept, GgufError> {
        const NONE: GgufError = GgufError::NotAModel("it has no vocabulary");
        if kind != 9 || self.u32()? != 8 {
            return Err(NONE);
        }
        let length = self.u64()?;
        if length == 0 {
            return Err(NONE);
        }
        if length > MAX_ENTRIES {
            return Err(GgufError::Broken("its vocabulary is larger than that of any model"));
        }
        let mut tokens = BTreeSet::new();
        for index in 0..length {
            let bytes = self.u64()?;
            if bytes > self.bytes - self.at {
                return Err(self.cut_short(self.at.saturating_add(bytes)));
            }
            if bytes > MAX_NAME {
                return Err(GgufError::Broken("a token is longer than that of any model"));
            }
            let mut token = vec![0; usize::try_from(bytes).unwrap_or(0)];
            self.read(&mut token)?;
            if let Some(zero) = token.iter().position(|byte| *byte == 0) {
                token.truncate(zero);
            }
            if token.is_empty() {
                token = format!("[EMPTY_{index}]").into_bytes();
            }
            if !tokens.insert(token.into_boxed_slice()) {
                return Err(GgufError::Broken("a token stands twice in its vocabulary"));
            }
        }
        Ok(Kept::Tokens(tokens))
    }

    /// An item of a list of texts or lists: its bytes are passed over.
    fn list_item(&mut self, kind: u32, depth: u32) -> Result<(), GgufError> {
        if kind == 8 {
            let length = self.u64()?;
            return self.skip(length);
        }
        self.value(kind, depth + 1).map(|_| ())
    }

    fn text(&mut self) -> Result<String, GgufError> {
        let length = self.u64()?;
        if length > self.bytes - self.at {
            return Err(self.cut_short(self.at.saturating_add(length)));
        }
        // A chat template may be long; only names and short words are kept.
        if length > MAX_NAME {
            self.skip(length)?;
            return Ok(String::new());
        }
        let mut bytes = vec![0; usize::try_from(length).unwrap_or(0)];
        self.read(&mut bytes)?;
        Ok(String::from_utf8_lossy(&bytes).into_owned())
    }

    fn u32(&mut self) -> Result<u32, GgufError> {
        Ok(u32::from_le_bytes(self.array()?))
    }

    fn u64(&mut self) -> Result<u64, GgufError> {
        Ok(u64::from_le_bytes(self.array()?))
    }

    fn array<const N: usize>(&mut self) -> Result<[u8; N], GgufError> {
        let mut bytes = [0; N];
        self.read(&mut bytes)?;
        Ok(bytes)
    }

    fn read(&mut self, bytes: &mut [u8]) -> Result<(), GgufError> {
        let behind = self.at + bytes.len() as u64;
        if behind > self.bytes {
            return Err(self.cut_short(behind));
        }
        self.file.read_exact(bytes).map_err(GgufError::of)?;
        self.at = behind;
        Ok(())
    }

    fn skip(&mut self, bytes: u64) -> Result<(), GgufError> {
        let behind = self.at.saturating_add(bytes);
        if behind > self.bytes {
            return Err(self.cut_short(behind));
        }
        // Within the file, so it is no more than an i64 holds.
        self.file.seek_relative(i64::try_from(bytes).unwrap_or(i64::MAX)).map_err(GgufError::of)?;
        self.at = behind;
        Ok(())
    }

    fn cut_short(&self, needed: u64) -> GgufError {
        GgufError::Truncated { needed, bytes: self.bytes }
    }
}

/// Whether it is a model that writes text, with numbers that llama.cpp loads or refuses without ending the process.
fn judge(kept: &BTreeMap<String, Kept>) -> Result<(), GgufError> {
    let Some(Kept::Text(architecture)) = kept.get("general.architecture") else {
        return Err(GgufError::NotAModel("it names no architecture"));
    };
    let own = |name: &str| kept.get(&format!("{architecture}.{name}"));
    if let Some(Kept::Text(kind)) = kept.get("general.type")
        && kind != "model"
    {
        return Err(GgufError::NotAModel("it is a part for another model (an adapter or projector)"));
    }
    let Some(Kept::Tokens(tokens)) = kept.get(TOKENS) else {
        return Err(GgufError::NotAModel("it has no vocabulary"));
    };
    let Some(Kept::Text(tokenizer)) = kept.get("tokenizer.ggml.model") else {
        return Err(GgufError::NotAModel("it names no tokenizer"));
    };
    match &**tokenizer {
        // What is no token is written as its bytes. llama.cpp throws where there is no token for one of them, and no one
        // catches it.
        "llama" if !(0..=u8::MAX).all(|byte| has_byte(tokens, byte)) => {
            return Err(GgufError::Broken("a byte has no token in its vocabulary"));
        }
        // Here bytes without a token are left out, and tokens are taken apart as UTF-8.
        "gpt2" | "gemma4" if tokens.iter().any(|token| std::str::from_utf8(token).is_err()) => {
            return Err(GgufError::Broken("a token in its vocabulary is no text"));
        }
        "llama" | "gpt2" | "gemma4" => {}
        // The others are of models that write no text or of rare ones, and llama.cpp ends the process over more of what
        // can be wrong with them than is checked here.
        _ => return Err(GgufError::NotAModel("its tokenizer is none of `llama`, `gpt2` and `gemma4`")),
    }
    for name in ["block_count", "embedding_length", "context_length"] {
        if !matches!(own(name), Some(Kept::Number(1..=0x7fff_ffff))) {
            return Err(GgufError::NotAModel("it does not say how large it is"));
        }
    }
    let number = |name: &str| match own(name) {
        Some(Kept::Number(number) | Kept::Most(number)) => *number,
        Some(Kept::Text(_) | Kept::Tokens(_) | Kept::Other) | None => 0,
    };
    if number("pooling_type") != 0
        || matches!(own("attention.causal"), Some(Kept::Number(0)))
        || WITHOUT_MEMORY.contains(&&**architecture)
    {
        return Err(GgufError::NotAModel("it is made for embeddings or for filling in text, not for writing it"));
    }
    if number("block_count") > MAX_LAYERS || number("nextn_predict_layers") > number("block_count") {
        return Err(GgufError::Broken("its number of layers is that of no model"));
    }
    if let Some(Kept::Text(scaling)) = own("rope.scaling.type")
        && !matches!(&**scaling, "none" | "linear" | "yarn" | "longrope")
    {
        return Err(GgufError::Broken("its positions are scaled in a way that is not known"));
    }
    if !experts_fit(architecture, number) {
        return Err(GgufError::Broken("its numbers of experts do not fit each other"));
    }
    Ok(())
}

/// Whether llama.cpp takes these numbers of experts; over others it ends the process.
fn experts_fit(architecture: &str, number: impl Fn(&str) -> u64) -> bool {
    let (mut experts, mut used) = (number("expert_count"), number("expert_used_count"));
    let (groups, groups_used) = (number("expert_group_count"), number("expert_group_used_count"));
    if matches!(architecture, "hunyuan_vl" | "hunyuan-dense") && experts <= 1 {
        (experts, used) = (0, 0);
    }
    if experts == 0 {
        return used == 0 && groups == 0;
    }
    let grouped = groups <= 1 || experts % groups == 0 && (1..groups).contains(&groups_used);
    experts <= MAX_EXPERTS && (1..=experts).contains(&used) && groups < experts && grouped
}

/// Whether there is a token for this byte, as llama.cpp looks for it.
fn has_byte(tokens: &BTreeSet<Box<[u8]>>, byte: u8) -> bool {
    tokens.contains(format!("<0x{byte:02X}>").as_bytes()) || byte != 0 && tokens.contains([byte].as_slice())
}

/// Bytes of a number; `None` for texts, lists and unknown types.
fn fixed_size(kind: u32) -> Option<u64> {
    match kind {
        0 | 1 | 7 => Some(1),
        2 | 3 => Some(2),
        4..=6 => Some(4),
        10..=12 => Some(8),
        _ => None,
    }
}

/// At least so many bytes belong to a tensor; 0 where the type is not known here.
fn tensor_bytes(kind: u32, elements: u64) -> u64 {
    // Elements of a block and its bytes, by ggml's numbers.
    let (block, bytes) = match kind {
        0 | 26 => (1, 4),
        1 | 25 | 30 => (1, 2),
        24 => (1, 1),
        27 | 28 => (1, 8),
        2 => (32, 18),
        3 => (32, 20),
        6 => (32, 22),
        7 => (32, 24),
        8 => (32, 34),
        10 => (256, 84),
        11 => (256, 110),
        12 => (256, 144),
        13 => (256, 176),
        14 => (256, 210),
        _ => return 0,
    };
    (elements / block).saturating_mul(bytes)
}

/// A file that is no model.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum GgufError {
    /// It cannot be read.
    #[error("it cannot be read: {0}")]
    Unreadable(String),
    /// It is a folder.
    #[error("it is a folder; name the .gguf file in it")]
    Directory,
    /// It is a device, a pipe or a socket.
    #[error("it is no regular file")]
    NotAFile,
    /// It has no bytes.
    #[error("it is empty; download it again")]
    Empty,
    /// It is something else.
    #[error(
        "it is no GGUF file; name a model in llama.cpp's format (safetensors and the like must be converted first)"
    )]
    NotGguf,
    /// An older or newer format.
    #[error("it is GGUF version {0}, and this build reads 2 and 3; get a newer file of the model, or a newer Cadenza")]
    Version(u32),
    /// For other machines.
    #[error("it was written for machines with the other byte order; get the little-endian file")]
    ByteOrder,
    /// It ends too soon.
    #[error("it ends too soon: {bytes} bytes of at least {needed}; download it again")]
    Truncated {
        /// Bytes that its header promises.
        needed: u64,
        /// Bytes that it has.
        bytes: u64,
    },
    /// Its header makes no sense.
    #[error("its header is damaged ({0}); download it again")]
    Broken(&'static str),
    /// GGUF, but no model that writes text.
    #[error("it is GGUF but no model that can be asked: {0}")]
    NotAModel(&'static str),
}

impl GgufError {
    fn of(error: io::Error) -> Self {
        Self::Unreadable(error.to_string())
    }
}
