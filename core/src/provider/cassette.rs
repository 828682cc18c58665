//! Cassettes: what a provider was asked and what it answered, in a file that people can read, and the same answers again
//! without it. For tests and demos.
//!
//! A cassette is JSON lines: a first line with its version, then one line per request with its reply or failure; system
//! prompts, which repeat, have lines of their own. A request to a target of a list names the whole list, so that attempts
//! go round in it again. Keys never get there: headers are no part of a request as it is known here, and every other text
//! goes through [`secret::scrub`]. A request is found again by a digest of what it says, not of when it was said; equal
//! requests are answered in the order in which they were recorded.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::fmt::Write as _;
use std::fs::{File, OpenOptions};
use std::io::{self, BufRead as _, BufReader, Read as _, Seek as _, SeekFrom, Write as _};
use std::path::{Path, PathBuf};
use std::sync::{Arc, LazyLock, Weak};
use std::time::Duration;

use parking_lot::Mutex;
use sha2::{Digest as _, Sha256};

use super::secret::scrub;
use super::{
    ModelReply, ModelRequest, ModelSpec, Piece, Provider, ProviderError, ProviderErrorClass, RawToolCall, ReplyFuture,
    ToolSpec, Usage,
};
use crate::cancel::CancelToken;
use crate::fork::PerProcess;
use crate::ids::Digest;
use crate::message::GrammarRef;
use crate::outcome::ProgramSource;
use crate::program::Language;
use crate::value::{Map, Value, write_json_string};

/// Version of the format.
const VERSION: i64 = 1;

/// What the names, and the fingerprints, of replayed models begin with.
const FINGERPRINT: &str = "cassette:";

/// Most bytes that are read of a first line.
const HEAD_BYTES: u64 = 4 << 10;

/// Bytes of a line of a prompt in a message.
const SHOWN_BYTES: usize = 80;

/// Makes providers that write or play a cassette.
#[derive(Debug)]
pub struct Cassette;

impl Cassette {
    /// The provider, with every request and what came of it added to the file, which is made when it is missing. Several
    /// providers, also of several processes, may write to one file. A request that was cancelled is left out.
    pub fn record(path: &Path, inner: Arc<dyn Provider>) -> Result<Arc<dyn Provider>, CassetteError> {
        if inner.fingerprint().starts_with(FINGERPRINT) {
            return Err(CassetteError::Replayed { path: path.to_owned() });
        }
        Ok(Arc::new(Recorder::new(inner, Tape::open(path)?)))
    }

    /// A provider that answers from the file, and asks nobody.
    pub fn replay(path: &Path) -> Result<Arc<dyn Provider>, CassetteError> {
        Ok(Arc::new(Player::read(path)?))
    }
}

/// Whether a model is a cassette by its name.
pub fn is_named_by(model: &ModelSpec) -> bool {
    matches!(model, ModelSpec::Name(name) | ModelSpec::Target { name, .. } if name.trim_start().starts_with(FINGERPRINT))
}

/// A file that is being recorded, by everyone in this process who does.
#[derive(Debug)]
struct Tape {
    path: PathBuf,
    file: Mutex<File>,
    prompts: Prompts,
}

/// Digests of the system prompts that this process wrote to a file.
type Prompts = Arc<Mutex<BTreeSet<String>>>;

/// Device and number of a file.
type Number = (u64, u64);

/// What this process knows of a file that it records to, or did. Its prompts stay known: runtimes come and go.
#[derive(Default)]
struct Known {
    number: Option<Number>,
    tape: Weak<Tape>,
    prompts: Prompts,
}

impl Tape {
    /// The tape of this file. Reads no more than its first line, however long the file is.
    fn open(path: &Path) -> Result<Arc<Self>, CassetteError> {
        static KNOWN: LazyLock<PerProcess<Mutex<BTreeMap<PathBuf, Known>>>> = LazyLock::new(PerProcess::default);
        let unusable = |error: io::Error| CassetteError::Unusable { path: path.to_owned(), why: error.to_string() };
        let mut file = OpenOptions::new().read(true).append(true).create(true).open(path).map_err(unusable)?;
        let head = locked(&mut file, |file| {
            mend(file)?;
            file.seek(SeekFrom::Start(0))?;
            let mut head = Vec::new();
            BufReader::new(&mut *file).take(HEAD_BYTES).read_until(b'\n', &mut head)?;
            if head.is_empty() {
                let cadenza = env!("CARGO_PKG_VERSION");
                file.write_all(format!("{{\"cassette\":{VERSION},\"cadenza\":\"{cadenza}\"}}\n").as_bytes())?;
            }
            Ok(head)
        });
        let head = head.map_err(unusable)?;
        // Whatever lies there has to be a cassette that this version can go on with.
        Parsed::read(path, &head)?;
        let number = number(&file.metadata().map_err(unusable)?);
        let mut all = KNOWN.get().lock();
        let known = all.entry(path.canonicalize().map_err(unusable)?).or_default();
        // Another file of that name, or one that somebody emptied, has none of the prompts.
        if known.number != number || head.is_empty() {
            *known = Known { number, ..Known::default() };
        }
        if let Some(tape) = known.tape.upgrade() {
            return Ok(tape);
        }
        let tape = Arc::new(Self { path: path.to_owned(), file: Mutex::new(file), prompts: known.prompts.clone() });
        known.tape = Arc::downgrade(&tape);
        Ok(tape)
    }

    /// Adds one exchange, whole or not at all.
    fn add(&self, of: &Answerer<'_>, asked: &Asked, answer: &Answer) -> Result<(), ProviderError> {
        let (mut file, mut prompts) = (self.file.lock(), self.prompts.lock());
        let mut lines = String::new();
        if !prompts.contains(&asked.system_digest) {
            lines.push_str("{\"prompt\":");
            write_json_string(&asked.system_digest, &mut lines);
            lines.push_str(",\"text\":");
            write_json_string(&asked.system, &mut lines);
            lines.push_str("}\n");
        }
        write_exchange(of, asked, answer, &mut lines);
        let written = locked(&mut file, |file| {
            mend(file)?;
            file.write_all(lines.as_bytes())
        });
        match written {
            Ok(()) => {
                prompts.insert(asked.system_digest.clone());
                Ok(())
            }
            Err(error) => Err(ProviderError::new(
                ProviderErrorClass::Failed,
                format!("the reply came, but cassette {} could not be written: {error}", self.path.display()),
            )),
        }
    }
}

#[cfg(unix)]
fn number(found: &std::fs::Metadata) -> Option<Number> {
    use std::os::unix::fs::MetadataExt as _;

    Some((found.dev(), found.ino()))
}

#[cfg(not(unix))]
fn number(_found: &std::fs::Metadata) -> Option<Number> {
    None
}

/// Works on the file while no other process does.
fn locked<T>(file: &mut File, work: impl FnOnce(&mut File) -> io::Result<T>) -> io::Result<T> {
    file.lock()?;
    let done = work(file);
    file.unlock()?;
    done
}

/// Takes away half a line that a process left when it was killed. Called under the lock: nobody is writing it now.
fn mend(file: &mut File) -> io::Result<()> {
    let end = file.seek(SeekFrom::End(0))?;
    let mut last = [b'\n'];
    if end > 0 {
        file.seek(SeekFrom::End(-1))?;
        file.read_exact(&mut last)?;
    }
    if last == [b'\n'] {
        return Ok(());
    }
    let mut text = Vec::new();
    file.seek(SeekFrom::Start(0))?;
    file.read_to_end(&mut text)?;
    let whole = text.iter().rposition(|byte| *byte == b'\n').map_or(0, |at| at + 1);
    // A file without any whole line is not ours to cut.
    if whole == 0 { Ok(()) } else { file.set_len(whole as u64) }
}

/// A provider whose exchanges are written down.
#[derive(Debug)]
struct Recorder {
    inner: Arc<dyn Provider>,
    tape: Arc<Tape>,
    targets: Vec<Arc<dyn Provider>>,
    /// The names of the list that it is, or that it is a target of; empty for a model of its own.
    list: Arc<[String]>,
    /// The profile that its replies are read with: a target's are read with its list's.
    read_with: String,
}

impl Recorder {
    fn new(inner: Arc<dyn Provider>, tape: Arc<Tape>) -> Self {
        let list: Arc<[String]> = inner.targets().iter().map(|target| target.model().to_owned()).collect();
        let read_with = inner.profile().to_owned();
        let target = |target: &Arc<dyn Provider>| -> Arc<dyn Provider> {
            let (inner, tape, list) = (target.clone(), tape.clone(), list.clone());
            Arc::new(Self { inner, tape, targets: Vec::new(), list, read_with: read_with.clone() })
        };
        let targets = inner.targets().iter().map(target).collect();
        Self { inner, tape, targets, list, read_with }
    }
}

impl Provider for Recorder {
    fn model(&self) -> &str {
        self.inner.model()
    }

    fn profile(&self) -> &str {
        self.inner.profile()
    }

    fn grammar(&self, tools: &[ToolSpec], language: Language) -> Option<GrammarRef> {
        self.inner.grammar(tools, language)
    }

    fn fingerprint(&self) -> &str {
        self.inner.fingerprint()
    }

    fn ready(&self) -> Result<(), ProviderError> {
        self.inner.ready()
    }

    fn waits(&self) -> bool {
        self.inner.waits()
    }

    fn streams(&self, request: &ModelRequest) -> bool {
        self.inner.streams(request)
    }

    fn targets(&self) -> &[Arc<dyn Provider>] {
        &self.targets
    }

    fn complete<'a>(&'a self, request: &'a ModelRequest, cancel: &'a CancelToken) -> ReplyFuture<'a> {
        Box::pin(async move {
            let answer = self.inner.complete(request, cancel).await;
            if !matches!(&answer, Err(error) if error.class == ProviderErrorClass::Cancelled) {
                let of = Answerer { model: self.model(), profile: &self.read_with, list: &self.list };
                self.tape.add(&of, &Asked::of(request), &answer)?;
            }
            answer
        })
    }
}

/// What came of a request.
type Answer = Result<ModelReply, ProviderError>;

/// Whose answer it is.
struct Answerer<'a> {
    model: &'a str,
    profile: &'a str,
    list: &'a [String],
}

/// What a request says, without secrets.
struct Asked {
    digest: String,
    role: String,
    method: String,
    attempt: u32,
    language: &'static str,
    system: String,
    system_digest: String,
    user: String,
    /// Who speaks, and what.
    messages: Vec<(String, String)>,
}

impl Asked {
    fn of(request: &ModelRequest) -> Self {
        let clean = |text: &str| scrub(text).into_owned();
        let messages = request.messages.iter().map(|message| {
            let mut text = clean(&message.content);
            for call in &message.tool_calls {
                let _ = write!(text, "\n{}({})", call.name, scrub(&Value::Map(call.arguments.clone()).to_json()));
            }
            (message.role.as_str().to_owned(), text)
        });
        let mut asked = Self {
            digest: String::new(),
            role: clean(&request.role),
            method: clean(&request.method),
            attempt: request.attempt,
            language: request.language.as_str(),
            system: clean(&request.system_prompt),
            system_digest: String::new(),
            user: clean(&request.user_prompt),
            messages: messages.collect(),
        };
        asked.system_digest = hex(Digest::of_bytes(asked.system.as_bytes()));
        let mut hash = Sha256::new();
        // Each part with its length, so that no two requests say the same in other parts.
        let mut part = |text: &str| {
            let text = lasting(text);
            hash.update((text.len() as u64).to_le_bytes());
            hash.update(text);
        };
        [&asked.role, &asked.method, asked.language, &asked.system, &asked.user].into_iter().for_each(&mut part);
        part(&asked.attempt.to_string());
        for (role, text) in &asked.messages {
            part(role);
            part(text);
        }
        asked.digest = hex(Digest(hash.finalize().into()));
        asked
    }
}

/// The first 64 bits, in hexadecimal digits: short enough for people, long enough for a file of requests.
fn hex(digest: Digest) -> String {
    digest.to_hex()[..16].to_owned()
}

/// The text without what differs from one run to the next: ids of calls in references to their values, and the mark of
/// the fence around them, which is a digest of what is inside.
fn lasting(text: &str) -> Vec<u8> {
    const ID: usize = 32;
    const MARK: (&[u8], usize) = (b"DATA-", 8);
    let bytes = text.as_bytes();
    let is_hex = |byte: &u8| byte.is_ascii_digit() || (b'a'..=b'f').contains(byte);
    let mut kept = Vec::with_capacity(bytes.len());
    let mut at = 0;
    while at < bytes.len() {
        let rest = &bytes[at..];
        let after_mark =
            rest.strip_prefix(MARK.0).filter(|rest| rest.iter().take_while(|b| is_hex(b)).count() == MARK.1);
        if after_mark.is_some() {
            kept.extend_from_slice(MARK.0);
            at += MARK.0.len() + MARK.1;
            continue;
        }
        let digits = rest.iter().take_while(|byte| is_hex(byte)).count();
        match digits {
            0 => {
                kept.push(rest[0]);
                at += 1;
            }
            ID if rest.get(ID) == Some(&b'/') => {
                kept.push(b'#');
                at += ID;
            }
            other => {
                kept.extend_from_slice(&rest[..other]);
                at += other;
            }
        }
    }
    kept
}

/// Writes fields of one line, in a fixed order.
struct Line<'a> {
    out: &'a mut String,
    first: bool,
}

impl<'a> Line<'a> {
    fn begin(out: &'a mut String) -> Self {
        out.push('{');
        Self { out, first: true }
    }

    fn name(&mut self, name: &str) -> &mut String {
        if !std::mem::take(&mut self.first) {
            self.out.push(',');
        }
        write_json_string(name, self.out);
        self.out.push(':');
        self.out
    }

    fn text(&mut self, name: &str, text: &str) {
        write_json_string(&scrub(text), self.name(name));
    }

    fn maybe(&mut self, name: &str, text: Option<&str>) {
        if let Some(text) = text {
            self.text(name, text);
        }
    }

    fn number(&mut self, name: &str, number: u64) {
        let _ = write!(self.name(name), "{number}");
    }

    fn end(self) {
        self.out.push('}');
    }
}

fn write_exchange(of: &Answerer<'_>, asked: &Asked, answer: &Answer, out: &mut String) {
    let mut line = Line::begin(out);
    line.text("request", &asked.digest);
    line.text("role", &asked.role);
    line.text("method", &asked.method);
    line.number("attempt", asked.attempt.into());
    line.text("language", asked.language);
    line.text("model", of.model);
    line.text("profile", of.profile);
    if !of.list.is_empty() {
        let targets = line.name("targets");
        for (index, name) in of.list.iter().enumerate() {
            targets.push(if index == 0 { '[' } else { ',' });
            write_json_string(&scrub(name), targets);
        }
        targets.push(']');
    }
    line.text("system", &asked.system_digest);
    line.text("user", &asked.user);
    let messages = line.name("messages");
    messages.push('[');
    for (index, (role, text)) in asked.messages.iter().enumerate() {
        if index > 0 {
            messages.push(',');
        }
        let mut message = Line::begin(messages);
        message.text("role", role);
        message.text("content", text);
        message.end();
    }
    messages.push(']');
    match answer {
        Ok(reply) => write_reply(reply, line.name("reply")),
        Err(error) => {
            let mut failure = Line::begin(line.name("error"));
            failure.text("class", error.class.as_str());
            failure.text("message", &error.message);
            if let Some(wait) = error.retry_after {
                failure.number("retry_after_ms", u64::try_from(wait.as_millis()).unwrap_or(u64::MAX));
            }
            write_usage(&mut failure, error.usage);
            failure.end();
        }
    }
    line.end();
    out.push('\n');
}

fn write_reply(reply: &ModelReply, out: &mut String) {
    let mut line = Line::begin(out);
    line.maybe("content", reply.content.as_deref());
    if !reply.tool_calls.is_empty() {
        let calls = line.name("tool_calls");
        calls.push('[');
        for (index, call) in reply.tool_calls.iter().enumerate() {
            if index > 0 {
                calls.push(',');
            }
            let mut one = Line::begin(calls);
            one.text("id", &call.id);
            one.text("name", &call.name);
            one.text("arguments", &call.arguments);
            one.end();
        }
        calls.push(']');
    }
    write_usage(&mut line, reply.usage);
    line.maybe("stop_reason", reply.stop_reason.as_deref());
    line.maybe("model", reply.model.as_deref());
    line.maybe("provider", reply.provider.as_deref());
    line.maybe("source", reply.source.map(ProgramSource::as_str));
    line.maybe("note", reply.note.as_deref());
    line.end();
}

fn write_usage(line: &mut Line<'_>, usage: Option<Usage>) {
    let Some(Usage { input, cached, output, cache_write, reasoning }) = usage else { return };
    let mut usage = Line::begin(line.name("usage"));
    usage.number("input", input);
    usage.number("cached", cached);
    usage.number("output", output);
    usage.number("cache_write", cache_write);
    usage.number("reasoning", reasoning);
    usage.end();
}

/// One recorded exchange.
#[derive(Debug)]
struct Exchange {
    line: usize,
    digest: String,
    role: String,
    method: String,
    attempt: u64,
    model: String,
    profile: String,
    targets: Vec<String>,
    system: String,
    user: String,
    answer: Answer,
}

/// A cassette's lines.
#[derive(Debug, Default)]
struct Parsed {
    exchanges: Vec<Exchange>,
}

impl Parsed {
    fn read(path: &Path, bytes: &[u8]) -> Result<Self, CassetteError> {
        let mut parsed = Self::default();
        for (index, line) in bytes.split(|byte| *byte == b'\n').enumerate() {
            if line.is_empty() {
                continue;
            }
            let number = index + 1;
            let broken = |why: String| CassetteError::Line { path: path.to_owned(), line: number, why };
            let text = std::str::from_utf8(line).map_err(|_| broken("not UTF-8".to_owned()))?;
            let Ok(Value::Map(map)) = Value::from_json(text) else {
                return Err(broken("not a JSON object".to_owned()));
            };
            if number == 1 {
                match map.get("cassette").and_then(Value::as_int) {
                    Some(VERSION) => continue,
                    Some(version) if version > VERSION => {
                        return Err(broken(format!(
                            "a cassette of version {version}; this version of cadenza reads version {VERSION}"
                        )));
                    }
                    Some(_) | None => {
                        return Err(broken("no cassette: its first line has no `cassette` version".into()));
                    }
                }
            }
            if map.contains_key("request") {
                parsed.exchanges.push(Exchange::read(number, &map).map_err(broken)?);
            } else if !map.contains_key("prompt") {
                return Err(broken("neither a request nor a prompt".to_owned()));
            }
        }
        Ok(parsed)
    }
}

fn text(map: &Map, name: &str) -> Result<String, String> {
    map.get(name).and_then(Value::as_str).map(str::to_owned).ok_or_else(|| format!("`{name}` is not text"))
}

fn maybe(map: &Map, name: &str) -> Result<Option<String>, String> {
    match map.get(name) {
        None | Some(Value::Null) => Ok(None),
        Some(_) => text(map, name).map(Some),
    }
}

/// The texts of a list; none where there is no list.
fn names(map: &Map, name: &str) -> Result<Vec<String>, String> {
    let Some(list) = map.get(name) else { return Ok(Vec::new()) };
    let texts = list.as_list().and_then(|list| list.iter().map(|one| one.as_str().map(str::to_owned)).collect());
    texts.ok_or_else(|| format!("`{name}` is not a list of texts"))
}

fn count(map: &Map, name: &str) -> Result<u64, String> {
    let found = map.get(name).and_then(Value::as_int).and_then(|number| u64::try_from(number).ok());
    found.ok_or_else(|| format!("`{name}` is not a whole number"))
}

impl Exchange {
    fn read(line: usize, map: &Map) -> Result<Self, String> {
        let answer = match (map.get("reply"), map.get("error")) {
            (Some(Value::Map(reply)), None) => Ok(read_reply(reply)?),
            (None, Some(Value::Map(error))) => Err(read_error(error)?),
            _ => return Err("a request has one of `reply` and `error`".to_owned()),
        };
        Ok(Self {
            line,
            digest: text(map, "request")?,
            role: text(map, "role")?,
            method: text(map, "method")?,
            attempt: count(map, "attempt")?,
            model: text(map, "model")?,
            profile: text(map, "profile")?,
            targets: names(map, "targets")?,
            system: text(map, "system")?,
            user: text(map, "user")?,
            answer,
        })
    }

    /// Which models were to answer.
    fn asked_of(&self) -> String {
        if self.targets.is_empty() {
            return "a single model".to_owned();
        }
        format!("the models {}", self.targets.join(", "))
    }

    fn named(&self) -> String {
        format!("line {}, {}.{} (attempt {})", self.line, self.role, self.method, self.attempt)
    }
}

fn read_reply(map: &Map) -> Result<ModelReply, String> {
    let mut tool_calls = Vec::new();
    if let Some(calls) = map.get("tool_calls") {
        for call in calls.as_list().ok_or("`tool_calls` is not a list")? {
            let call = call.as_map().ok_or("a tool call is not an object")?;
            tool_calls.push(RawToolCall {
                id: text(call, "id")?,
                name: text(call, "name")?,
                arguments: text(call, "arguments")?,
            });
        }
    }
    let source = match maybe(map, "source")? {
        None => None,
        Some(name) => {
            const SOURCES: [ProgramSource; 4] =
                [ProgramSource::Generated, ProgramSource::Reused, ProgramSource::Library, ProgramSource::None];
            let known = SOURCES.into_iter().find(|source| source.as_str() == name);
            Some(known.ok_or_else(|| format!("unknown source `{name}`"))?)
        }
    };
    Ok(ModelReply {
        content: maybe(map, "content")?,
        tool_calls,
        usage: read_usage(map)?,
        stop_reason: maybe(map, "stop_reason")?,
        model: maybe(map, "model")?,
        provider: maybe(map, "provider")?,
        source,
        note: maybe(map, "note")?.map(Into::into),
        ..ModelReply::default()
    })
}

fn read_usage(map: &Map) -> Result<Option<Usage>, String> {
    let Some(usage) = map.get("usage") else { return Ok(None) };
    let usage = usage.as_map().ok_or("`usage` is not an object")?;
    Ok(Some(Usage {
        input: count(usage, "input")?,
        cached: count(usage, "cached")?,
        output: count(usage, "output")?,
        cache_write: count(usage, "cache_write")?,
        reasoning: count(usage, "reasoning")?,
    }))
}

fn read_error(map: &Map) -> Result<ProviderError, String> {
    use ProviderErrorClass as Class;
    const CLASSES: [Class; 9] = [
        Class::Auth,
        Class::Quota,
        Class::RateLimit,
        Class::ContextOverflow,
        Class::Timeout,
        Class::Network,
        Class::ModelError,
        Class::InvalidResponse,
        Class::Failed,
    ];
    let name = text(map, "class")?;
    let class = CLASSES.into_iter().find(|class| class.as_str() == name);
    let mut error =
        ProviderError::new(class.ok_or_else(|| format!("unknown error class `{name}`"))?, text(map, "message")?);
    if map.contains_key("retry_after_ms") {
        error.retry_after = Some(Duration::from_millis(count(map, "retry_after_ms")?));
    }
    error.usage = read_usage(map)?;
    Ok(error)
}

/// Answers from a cassette: as the model of all of it, or as one target of the list that was recorded.
struct Player {
    reel: Arc<Reel>,
    model: String,
    targets: Vec<Arc<dyn Provider>>,
}

/// What is played.
struct Reel {
    path: PathBuf,
    profile: String,
    fingerprint: String,
    exchanges: Vec<Exchange>,
    /// What is left of the answers to each request, by its digest.
    left: Mutex<BTreeMap<String, VecDeque<usize>>>,
}

impl Player {
    fn read(path: &Path) -> Result<Self, CassetteError> {
        let bytes = std::fs::read(path)
            .map_err(|error| CassetteError::Unusable { path: path.to_owned(), why: error.to_string() })?;
        let exchanges = Parsed::read(path, &bytes)?.exchanges;
        let Some(first) = exchanges.first() else {
            return Err(CassetteError::Empty { path: path.to_owned() });
        };
        // Every call of a runtime has the same profile, and goes round in the same list.
        let differs = |words: fn(&Exchange) -> String| {
            let other = exchanges.iter().find(|exchange| words(exchange) != words(first))?;
            let (now, before) = (words(other), words(first));
            let why =
                format!("recorded with {now}, line {} with {before}; record each in a file of its own", first.line);
            Some(CassetteError::Line { path: path.to_owned(), line: other.line, why })
        };
        let by_profile = differs(|exchange| format!("the profile {}", exchange.profile));
        let by_targets = || differs(Exchange::asked_of);
        if let Some(error) = by_profile.or_else(by_targets) {
            return Err(error);
        }
        let names = first.targets.clone();
        let same_model = exchanges.iter().all(|exchange| exchange.model == first.model);
        let model = match (&*names, same_model) {
            ([], true) => first.model.clone(),
            ([], false) => format!("{FINGERPRINT}{}", path.display()),
            (names, _) => names.join(","),
        };
        let mut left: BTreeMap<String, VecDeque<usize>> = BTreeMap::new();
        for (index, exchange) in exchanges.iter().enumerate() {
            left.entry(exchange.digest.clone()).or_default().push_back(index);
        }
        let reel = Arc::new(Reel {
            path: path.to_owned(),
            profile: first.profile.clone(),
            fingerprint: format!("{FINGERPRINT}{}", hex(Digest::of_bytes(&bytes))),
            exchanges,
            left: Mutex::new(left),
        });
        let target = |model| -> Arc<dyn Provider> { Arc::new(Self { reel: reel.clone(), model, targets: Vec::new() }) };
        let targets = names.into_iter().map(target).collect();
        Ok(Self { reel, model, targets })
    }
}

impl Reel {
    fn play(&self, request: &ModelRequest) -> Answer {
        let asked = Asked::of(request);
        let next = self.left.lock().get_mut(&asked.digest).and_then(VecDeque::pop_front);
        match next {
            Some(index) => self.exchanges[index].answer.clone(),
            None => Err(ProviderError::new(ProviderErrorClass::Failed, self.missing(&asked))),
        }
    }

    /// What is not on the cassette, and what comes nearest.
    fn missing(&self, asked: &Asked) -> String {
        let mut message = format!(
            "cassette {} has no reply for {}.{} (attempt {})",
            self.path.display(),
            asked.role,
            asked.method,
            asked.attempt
        );
        let nearness = |exchange: &&Exchange| {
            let same = exchange.user.bytes().zip(asked.user.bytes()).take_while(|(one, other)| one == other).count();
            let call = exchange.role == asked.role && exchange.method == asked.method;
            (exchange.digest == asked.digest, call, exchange.attempt == u64::from(asked.attempt), same)
        };
        // Of equally near ones the first.
        if let Some(nearest) = self.exchanges.iter().rev().max_by_key(nearness) {
            let _ = write!(message, "; the nearest is {}", nearest.named());
            if nearest.digest == asked.digest {
                message.push_str(", which is played already");
            } else if let Some((recorded, now)) = first_difference(&nearest.user, &asked.user) {
                let _ = write!(message, ", where the prompt says `{recorded}` and now `{now}`");
            } else if nearest.system != asked.system_digest {
                message.push_str(", with another system prompt");
            }
        }
        message.push_str("; record it again");
        message
    }
}

/// The first line that is not the same, in both texts.
fn first_difference<'a>(recorded: &'a str, now: &'a str) -> Option<(&'a str, &'a str)> {
    let cut = |line: &'a str| &line[..line.floor_char_boundary(SHOWN_BYTES)];
    let (mut recorded, mut now) = (recorded.lines(), now.lines());
    loop {
        match (recorded.next(), now.next()) {
            (None, None) => return None,
            (one, other) if one.map(lasting) == other.map(lasting) => {}
            (one, other) => return Some((cut(one.unwrap_or("nothing")), cut(other.unwrap_or("nothing")))),
        }
    }
}

impl std::fmt::Debug for Player {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(formatter, "Cassette({}, {} exchanges)", self.reel.path.display(), self.reel.exchanges.len())
    }
}

impl Provider for Player {
    fn model(&self) -> &str {
        &self.model
    }

    fn profile(&self) -> &str {
        &self.reel.profile
    }

    fn fingerprint(&self) -> &str {
        &self.reel.fingerprint
    }

    /// What was waited for then is not waited for again.
    fn waits(&self) -> bool {
        false
    }

    fn targets(&self) -> &[Arc<dyn Provider>] {
        &self.targets
    }

    fn complete<'a>(&'a self, request: &'a ModelRequest, _cancel: &'a CancelToken) -> ReplyFuture<'a> {
        Box::pin(async move {
            let answer = self.reel.play(request);
            if let (Some(pieces), Ok(reply)) = (&request.pieces, &answer) {
                pieces.put(Piece::Text(reply.content.as_deref().unwrap_or_default()));
                reply.tool_calls.iter().for_each(|call| pieces.put(Piece::Arguments(&call.arguments)));
            }
            answer
        })
    }
}

/// Why a cassette cannot be recorded or played.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum CassetteError {
    /// The file cannot be read or written.
    #[error("cassette {}: {why}", path.display())]
    Unusable {
        /// Which.
        path: PathBuf,
        /// The system's words.
        why: String,
    },
    /// A line is not as it should be, or of a newer version.
    #[error("cassette {}, line {line}: {why}", path.display())]
    Line {
        /// Which file.
        path: PathBuf,
        /// 1-based.
        line: usize,
        /// What is wrong.
        why: String,
    },
    /// Nothing was recorded.
    #[error("cassette {} holds no request; record one with `record`", path.display())]
    Empty {
        /// Which.
        path: PathBuf,
    },
    /// The model to be recorded is itself played from a cassette.
    #[error("cassette {}: the model is played from a cassette already; copy that file", path.display())]
    Replayed {
        /// Where it was to be recorded.
        path: PathBuf,
    },
}
