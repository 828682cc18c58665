//! A loaded model on a thread of its own: one request after the other, each with the prompt's known beginning reused.
//!
//! llama.cpp's contexts belong to one thread at a time, so the thread owns model and context, and requests come to it
//! through a queue. It looks at the request's token, deadline and waiter before every piece of work: between two tokens,
//! and between two pieces of a prompt. It never opens a file that [`super::gguf`] has not read before.

use std::collections::VecDeque;
use std::num::NonZeroU32;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock, mpsc};
use std::thread;
use std::time::Instant;

use llama_cpp_2::context::LlamaContext;
use llama_cpp_2::context::params::LlamaContextParams;
use llama_cpp_2::llama_backend::LlamaBackend;
use llama_cpp_2::llama_batch::LlamaBatch;
use llama_cpp_2::model::LlamaModel;
use llama_cpp_2::model::params::LlamaModelParams;
use llama_cpp_2::token::LlamaToken;
use llama_cpp_2::{LogOptions, send_logs_to_tracing};
use parking_lot::Mutex;
use tokio::sync::oneshot;

use super::chat::{Chat, Turn};
use super::gate::{Gate, NoGate, Sampler, Sampling, TokenId, Vocabulary};
use super::grammar::Grammar;
use crate::cancel::CancelToken;
use crate::fork::PerProcess;
use crate::provider::{ProviderError, ProviderErrorClass};

/// Tokens of a prompt that are evaluated at once; a cancelled request waits for no more than these.
const PIECE: usize = 64;

/// The window where the option says nothing: what the model was trained for, and at most this.
const DEFAULT_WINDOW: u32 = 8192;

/// Stack of the model's thread in bytes; memory is taken as it is used.
const STACK: usize = 64 << 20;

/// Bytes of stack for one byte of a text that is made tokens. Some of llama.cpp's tokenizers match a run of alike characters
/// with one call per character, of 320 bytes in an optimised build.
const STACK_PER_BYTE: usize = 2 << 10;

/// Gates that are kept for the next request: one per tool set, language and form.
const KEPT_GATES: usize = 8;

/// Bytes that they may take together; the latest is kept in any case.
const KEPT_BYTES: usize = 128 << 20;

/// How a model is loaded.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Loading {
    pub path: PathBuf,
    pub context_size: Option<u32>,
    pub threads: Option<u32>,
    pub gpu_layers: Option<u32>,
}

/// What a request wants of the model.
pub(super) struct Wanted {
    pub turns: Vec<Turn>,
    /// What the reply must be; `None` leaves the model alone (the control of the tests).
    pub form: Option<Form>,
    pub max_output_tokens: u32,
    pub sampling: Sampling,
    pub seed: u64,
}

/// A grammar by name; it is drawn when it is first needed.
pub(super) struct Form {
    pub key: String,
    pub draw: Box<dyn Fn() -> Result<Grammar, ProviderError> + Send>,
}

/// What the model wrote.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Written {
    /// Everything, the opening included. Without a gate, bytes that are no text are replaced.
    pub text: String,
    /// Tokens of the prompt, the opening included.
    pub prompt_tokens: u64,
    /// Of those, found evaluated already.
    pub reused_tokens: u64,
    /// Tokens that the model wrote.
    pub output_tokens: u64,
    /// Whether the model ended by itself, not by the limit.
    pub ended: bool,
}

struct Job {
    wanted: Wanted,
    cancel: CancelToken,
    deadline: Instant,
    reply: oneshot::Sender<Result<Written, ProviderError>>,
}

/// The queue of a loaded model. Dropping the last one frees the model.
#[derive(Debug)]
pub(super) struct Engine {
    loading: Loading,
    name: Arc<str>,
    /// What was found when it was loaded first.
    pub facts: Facts,
    queue: PerProcess<Mutex<Option<mpsc::Sender<Job>>>>,
    /// Tokens evaluated so far.
    pub evaluated: Arc<AtomicU64>,
}

impl Engine {
    /// Loads the model and waits for it.
    pub fn start(loading: Loading, name: Arc<str>) -> Result<Self, String> {
        let evaluated = Arc::default();
        let (queue, loaded) = spawn(&loading, &name, &evaluated)?;
        let facts = loaded.recv().map_err(|_| "the model's thread ended while it loaded the model".to_owned())??;
        let engine = Self { loading, name, facts, queue: PerProcess::default(), evaluated };
        *engine.queue.get().lock() = Some(queue);
        Ok(engine)
    }

    /// Puts a request into the queue. Never waits: where the model is loaded anew, in a forked child or after its thread
    /// ended, the request waits for that in the queue, and is told when it fails.
    pub fn ask(
        &self,
        wanted: Wanted,
        cancel: CancelToken,
        deadline: Instant,
    ) -> Result<oneshot::Receiver<Result<Written, ProviderError>>, ProviderError> {
        let (reply, written) = oneshot::channel();
        let mut job = Job { wanted, cancel, deadline, reply };
        let mut queue = self.queue.get().lock();
        if let Some(running) = &*queue {
            match running.send(job) {
                Ok(()) => return Ok(written),
                Err(back) => job = back.0,
            }
        }
        let (fresh, _loaded) =
            spawn(&self.loading, &self.name, &self.evaluated).map_err(|why| failed(&self.name, why))?;
        let sent = fresh.send(job);
        *queue = Some(fresh);
        sent.map_err(|_| failed(&self.name, "the model's thread ended at once"))?;
        Ok(written)
    }
}

/// What is known of a model once it is loaded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Facts {
    /// Tokens that prompt and reply may have together.
    pub window: u32,
}

fn failed(name: &str, what: impl std::fmt::Display) -> ProviderError {
    ProviderError::new(ProviderErrorClass::ModelError, format!("{name}: {what}"))
}

/// llama.cpp's own state; made once per process, and kept.
fn backend() -> Result<&'static LlamaBackend, String> {
    static BACKEND: OnceLock<Result<LlamaBackend, String>> = OnceLock::new();
    let made = BACKEND.get_or_init(|| {
        send_logs_to_tracing(LogOptions::default());
        LlamaBackend::init().map_err(|error| error.to_string())
    });
    made.as_ref().map_err(Clone::clone)
}

/// The queue of a thread that loads a model and then answers, and where it tells how loading went.
type Started = (mpsc::Sender<Job>, mpsc::Receiver<Result<Facts, String>>);

fn spawn(loading: &Loading, name: &Arc<str>, evaluated: &Arc<AtomicU64>) -> Result<Started, String> {
    let (queue, jobs) = mpsc::channel();
    let (ready, loaded) = mpsc::channel();
    let (loading, name, evaluated) = (loading.clone(), name.clone(), evaluated.clone());
    thread::Builder::new()
        .name("cadenza-llama".into())
        .stack_size(STACK)
        .spawn(move || {
            if let Err(why) = serve(&loading, &name, &evaluated, &jobs, &ready) {
                for job in jobs.try_iter() {
                    let _gone = job.reply.send(Err(failed(&name, &why)));
                }
                // Whoever waits for the model is told; one who went away needs no answer.
                let _gone = ready.send(Err(why));
            }
        })
        .map_err(|error| format!("the model's thread did not start: {error}"))?;
    Ok((queue, loaded))
}

/// Loads the model and answers until nobody can ask any more. Fails only before the first answer.
fn serve(
    loading: &Loading,
    name: &Arc<str>,
    evaluated: &AtomicU64,
    jobs: &mpsc::Receiver<Job>,
    ready: &mpsc::Sender<Result<Facts, String>>,
) -> Result<(), String> {
    let backend = backend()?;
    let mut parameters = LlamaModelParams::default();
    if let Some(layers) = loading.gpu_layers {
        parameters = parameters.with_n_gpu_layers(layers);
    }
    let model = LlamaModel::load_from_file(backend, &loading.path, &parameters)
        .map_err(|error| format!("llama.cpp cannot load it: {error}"))?;
    let window = loading.context_size.unwrap_or_else(|| model.n_ctx_train().min(DEFAULT_WINDOW)).max(1);
    let threads = loading.threads.map(|threads| i32::try_from(threads).unwrap_or(i32::MAX)).unwrap_or_else(|| {
        thread::available_parallelism().ok().and_then(|cores| i32::try_from(cores.get()).ok()).unwrap_or(1)
    });
    let parameters = LlamaContextParams::default()
        .with_n_ctx(NonZeroU32::new(window))
        .with_n_batch(PIECE as u32)
        .with_n_ubatch(PIECE as u32)
        .with_n_threads(threads)
        .with_n_threads_batch(threads)
        .with_no_perf(true);
    let context = model.new_context(backend, parameters).map_err(|error| {
        format!("its window of {window} tokens cannot be made ({error}); set a smaller `context_size`")
    })?;
    let mut speaker = Speaker {
        name: name.clone(),
        chat: Chat::of(&model),
        vocabulary: Arc::new(vocabulary(&model)),
        context,
        batch: LlamaBatch::new(PIECE, 1),
        window,
        known: Vec::new(),
        known_prompt: 0,
        evaluated,
        gates: VecDeque::new(),
    };
    let _gone = ready.send(Ok(Facts { window }));
    while let Ok(job) = jobs.recv() {
        let Job { wanted, cancel, deadline, reply } = job;
        let stop = || {
            if cancel.is_cancelled() || reply.is_closed() {
                Some(ProviderError::cancelled())
            } else if Instant::now() >= deadline {
                // Those who wait have words for it.
                Some(ProviderError::new(ProviderErrorClass::Timeout, "the request's time is over"))
            } else {
                None
            }
        };
        let written = catch_unwind(AssertUnwindSafe(|| speaker.answer(&wanted, &stop)));
        let written = written.unwrap_or_else(|_| {
            speaker.forget();
            Err(failed(name, "internal error while the model wrote"))
        });
        let _gone = reply.send(written);
    }
    Ok(())
}

/// The bytes of every token. Tokens that steer a model (begin, end, roles) stand for no text.
fn vocabulary(model: &LlamaModel) -> Vocabulary {
    let vocabulary = model.vocab();
    let mut ends = Vec::new();
    let pieces = vocabulary.tokens().map(|token| {
        if vocabulary.is_eog(token) {
            ends.push(token.0.unsigned_abs());
        }
        let steers = vocabulary.is_control(token) || vocabulary.is_eog(token);
        if steers { Vec::new() } else { vocabulary.token_to_piece(token, false, None) }.into_boxed_slice()
    });
    let pieces = pieces.collect();
    Vocabulary::new(pieces, ends)
}

/// The model at work.
struct Speaker<'a> {
    name: Arc<str>,
    chat: Chat<'a>,
    context: LlamaContext<'a>,
    batch: LlamaBatch<'static>,
    vocabulary: Arc<Vocabulary>,
    window: u32,
    /// The tokens whose evaluation the context holds, in order.
    known: Vec<LlamaToken>,
    /// How many of them were evaluated as pieces of a prompt.
    known_prompt: usize,
    evaluated: &'a AtomicU64,
    gates: VecDeque<(String, Arc<Gate>)>,
}

type Stop<'a> = &'a dyn Fn() -> Option<ProviderError>;

impl Speaker<'_> {
    fn answer(&mut self, wanted: &Wanted, stop: Stop<'_>) -> Result<Written, ProviderError> {
        if let Some(why) = stop() {
            return Err(why);
        }
        let gate = wanted.form.as_ref().map(|form| self.gate(form, stop)).transpose()?;
        let opening = gate.as_ref().map(|gate| gate.opening()).unwrap_or_default();
        let prompt = self.prompt(&wanted.turns, opening)?;
        let least = gate.as_ref().map_or(1, |gate| gate.left(gate.start()));
        let limit = self.limit(prompt.len(), least, wanted.max_output_tokens)?;
        let reused = self.evaluate_prompt(&prompt, stop)?;
        let mut written = self.write(gate.as_deref(), limit, wanted, stop)?;
        written.prompt_tokens = prompt.len() as u64;
        written.reused_tokens = reused as u64;
        Ok(written)
    }

    /// The conversation and how its next message begins, as tokens.
    fn prompt(&self, turns: &[Turn], opening: &[u8]) -> Result<Vec<LlamaToken>, ProviderError> {
        let bytes = turns.iter().map(|turn| turn.text.len()).fold(0, usize::saturating_add);
        let most = self.vocabulary.longest().saturating_mul(self.window as usize);
        if bytes > most {
            return Err(self.overflow(format_args!("the prompt has {bytes} bytes, and no {most} bytes fit")));
        }
        let longest = turns.iter().map(|turn| turn.text.len()).max().unwrap_or(0);
        let chat = &self.chat;
        let tokens = || {
            let mut prompt = chat.tokens(turns)?;
            prompt.extend(chat.plain_tokens(opening));
            Ok(prompt)
        };
        let prompt = with_stack_for(longest, tokens).map_err(|why| failed(&self.name, why))?;
        if prompt.is_empty() {
            // There would be no logits to choose from but those of an earlier request.
            return Err(failed(&self.name, "the model's vocabulary has no token for anything in the prompt"));
        }
        Ok(prompt)
    }

    fn overflow(&self, what: impl std::fmt::Display) -> ProviderError {
        let (name, window) = (&self.name, self.window);
        let advice = "raise `context_size` or keep less in the context";
        let message = format!("{name}: {what}, the window holds {window} tokens; {advice}");
        ProviderError::new(ProviderErrorClass::ContextOverflow, message)
    }

    /// How many tokens the reply may have, before anything is evaluated.
    fn limit(&self, prompt: usize, least: u32, asked: u32) -> Result<u32, ProviderError> {
        let room = u32::try_from(prompt).ok().and_then(|prompt| self.window.checked_sub(prompt));
        let Some(room) = room.filter(|room| *room >= least.max(1)) else {
            return Err(self.overflow(format_args!("the prompt has {prompt} tokens and the shortest reply {least}")));
        };
        let limit = asked.min(room);
        if limit < least {
            return Err(failed(
                &self.name,
                format_args!("{asked} output tokens are too few: the shortest reply has {least}; allow more of them"),
            ));
        }
        Ok(limit)
    }

    /// Evaluates what the context does not hold yet; gives how many tokens it held.
    ///
    /// Only whole pieces that were evaluated as such are reused: the same tokens in other batches have other last digits,
    /// and a reply would depend on what was asked before.
    fn evaluate_prompt(&mut self, prompt: &[LlamaToken], stop: Stop<'_>) -> Result<usize, ProviderError> {
        let common = self.known.iter().zip(prompt).take_while(|(one, other)| one == other).count();
        // The last token is evaluated in any case: its logits choose the first token of the reply.
        let common = common.min(self.known_prompt).min(prompt.len().saturating_sub(1));
        let mut reused = common / PIECE * PIECE;
        if reused < self.known.len() && !self.cut(reused) {
            self.forget();
            reused = 0;
        }
        self.known_prompt = reused;
        for piece in prompt[reused..].chunks(PIECE) {
            if let Some(why) = stop() {
                return Err(why);
            }
            self.evaluate(piece)?;
            self.known_prompt = self.known.len();
        }
        Ok(reused)
    }

    /// Takes everything behind so many tokens out of the context. Not every kind of model can do that.
    fn cut(&mut self, kept: usize) -> bool {
        let cut = u32::try_from(kept)
            .is_ok_and(|kept| self.context.clear_kv_cache_seq(Some(0), Some(kept), None).is_ok_and(|done| done));
        if cut {
            self.known.truncate(kept);
        }
        cut
    }

    fn forget(&mut self) {
        self.context.clear_kv_cache();
        self.known.clear();
        self.known_prompt = 0;
    }

    /// Evaluates at most [`PIECE`] tokens; the logits of the last one can be read then.
    fn evaluate(&mut self, tokens: &[LlamaToken]) -> Result<(), ProviderError> {
        self.batch.clear();
        for (index, token) in tokens.iter().enumerate() {
            let position = i32::try_from(self.known.len() + index).unwrap_or(i32::MAX);
            let added = self.batch.add(*token, position, &[0], index + 1 == tokens.len());
            added.map_err(|error| failed(&self.name, error))?;
        }
        if let Err(error) = self.context.decode(&mut self.batch) {
            // What the context holds now is not known.
            self.forget();
            return Err(failed(&self.name, format_args!("llama.cpp did not evaluate the tokens: {error}")));
        }
        self.known.extend(tokens);
        self.evaluated.fetch_add(tokens.len() as u64, Ordering::Relaxed);
        Ok(())
    }

    /// Chooses token after token until the reply is whole, the model ends it, or the limit is reached. Behind a gate it
    /// is whole in every case.
    fn write(
        &mut self,
        gate: Option<&Gate>,
        limit: u32,
        wanted: &Wanted,
        stop: Stop<'_>,
    ) -> Result<Written, ProviderError> {
        let mut sampler = Sampler::new(wanted.sampling, wanted.seed);
        let mut bytes = gate.map(|gate| gate.opening().to_vec()).unwrap_or_default();
        let mut state = gate.map_or(0, Gate::start);
        let whole = |state| gate.is_some_and(|gate| gate.rest(state).is_some());
        let (mut count, mut ended) = (0, false);
        while !whole(state) && count < limit {
            if let Some(why) = stop() {
                return Err(why);
            }
            let remaining = limit - count - 1;
            let chosen = sampler.choose(self.context.get_logits(), gate.map(|gate| (gate, state, remaining)));
            // With a gate this cannot fire: `left(state) <= limit - count` at the start, and behind every allowed token.
            let (token, next) = chosen.ok_or_else(|| failed(&self.name, "the model gave no number for any token"))?;
            count += 1;
            if self.vocabulary.is_end(token) {
                ended = true;
                break;
            }
            bytes.extend_from_slice(self.vocabulary.piece(token));
            state = next;
            if !whole(state) && count < limit {
                self.evaluate(&[token_of(token)])?;
            }
        }
        ended |= whole(state);
        bytes.extend_from_slice(gate.and_then(|gate| gate.rest(state)).unwrap_or_default());
        let text = match gate {
            // Cannot fire: every path of a grammar is UTF-8, and the reply ends where its grammar does.
            Some(_) => {
                String::from_utf8(bytes).map_err(|_| failed(&self.name, "internal error: the reply is no text"))?
            }
            None => String::from_utf8_lossy(&bytes).into_owned(),
        };
        Ok(Written { text, prompt_tokens: 0, reused_tokens: 0, output_tokens: count.into(), ended })
    }

    fn gate(&mut self, form: &Form, stop: Stop<'_>) -> Result<Arc<Gate>, ProviderError> {
        if let Some((_, gate)) = self.gates.iter().find(|(key, _)| *key == form.key) {
            return Ok(gate.clone());
        }
        let made = Gate::new((form.draw)()?, self.vocabulary.clone(), &|| stop().is_some());
        let gate = Arc::new(made.map_err(|why| match why {
            NoGate::CannotWrite => failed(&self.name, why),
            // What stops it once does so again.
            NoGate::Stopped => stop().unwrap_or_else(ProviderError::cancelled),
        })?);
        self.gates.push_back((form.key.clone(), gate.clone()));
        keep(&mut self.gates, |(_, gate)| gate.bytes());
        Ok(gate)
    }
}

/// Lets go of the oldest, until those that are left are few and small enough to be kept.
fn keep<T>(gates: &mut VecDeque<T>, bytes: impl Fn(&T) -> usize) {
    while gates.len() > 1 && (gates.len() > KEPT_GATES || gates.iter().map(&bytes).sum::<usize>() > KEPT_BYTES) {
        gates.pop_front();
    }
}

/// Does the work where there is stack for a text of so many bytes: a long one gets a thread of its own.
fn with_stack_for<T: Send>(bytes: usize, work: impl FnOnce() -> Result<T, String> + Send) -> Result<T, String> {
    let needed = bytes.saturating_mul(STACK_PER_BYTE);
    // The rest is more than everything else on the model's thread uses.
    if needed <= STACK / 2 {
        return work();
    }
    thread::scope(|scope| {
        let thread = thread::Builder::new().name("cadenza-tokens".into()).stack_size(needed.saturating_add(STACK));
        let tokens = thread
            .spawn_scoped(scope, work)
            .map_err(|error| format!("there is no memory to take a text of {bytes} bytes apart: {error}"))?;
        tokens.join().map_err(|_| "internal error while a text was taken apart".to_owned())?
    })
}

fn token_of(token: TokenId) -> LlamaToken {
    // A vocabulary has at most as many tokens as an i32 counts.
    LlamaToken::new(i32::try_from(token).unwrap_or(i32::MAX))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn few_and_small_gates_are_kept_and_the_latest_always() {
        let kept = |sizes: &[usize]| {
            let mut gates = VecDeque::new();
            for size in sizes {
                gates.push_back(*size);
                keep(&mut gates, |size| *size);
            }
            Vec::from(gates)
        };
        assert_eq!(kept(&[1, 2, 3, 4, 5, 6, 7, 8, 9, 10]), [3, 4, 5, 6, 7, 8, 9, 10]);
        assert_eq!(kept(&[1, KEPT_BYTES / 2, KEPT_BYTES / 2]), [KEPT_BYTES / 2; 2]);
        assert_eq!(kept(&[1, KEPT_BYTES + 1]), [KEPT_BYTES + 1]);
        assert_eq!(kept(&[KEPT_BYTES + 1, 2]), [2]);
    }
}
