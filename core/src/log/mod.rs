//! The log: exactly one JSON line per dynamic call (AC section 8), derived from its record after the call.
//!
//! Writing happens on a background thread behind a bounded queue. A full queue or a failing file costs lines, which are
//! counted and can be told ([`lost`]), never a call (AC-18). Nothing here waits without a bound: neither for a disk that
//! is stuck nor for a callback that needs what its waiter holds. Setters and context-backed reads are not calls and are
//! not logged.

use std::collections::BTreeMap;
use std::fmt;
use std::fs::{File, OpenOptions};
use std::io::{self, BufWriter, Write};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, TryRecvError, TrySendError, sync_channel};
use std::sync::{Arc, Weak};
use std::thread::Thread;
use std::time::{Duration, Instant};

use parking_lot::{Condvar, Mutex, RwLock};

use crate::fork;
use crate::log::record::CallRecord;

mod encode;
pub mod record;

pub use crate::provider::secret::masked;
pub use encode::line;

/// Lines that may wait for the writer.
const QUEUE: usize = 8_192;
/// How long the writer rests after a line before it looks for more. While it rests, nobody pays for waking it: sending a
/// record then costs a fifth.
const REST: Duration = Duration::from_millis(1);
/// Rests without a line after which the writer sleeps until one comes.
const RESTS: u32 = 20;
/// How long `flush` and the end of a log wait for a stuck disk.
const FLUSH_TIMEOUT: Duration = Duration::from_secs(5);
/// Files whose lost lines are remembered for [`lost`].
const LOST_FILES: usize = 64;

/// Where call records go. Implementations never block and never fail a call.
pub trait LogSink: Send + Sync + fmt::Debug {
    /// Takes one record; counts it as dropped when it cannot.
    fn write(&self, record: &Arc<CallRecord>);
    /// Waits, within a bound, until everything taken so far is out.
    fn flush(&self);
    /// Records that were lost since the start.
    fn dropped(&self) -> u64;
}

/// What a writer thread does with a record.
type Emit = Box<dyn FnMut(&CallRecord) -> io::Result<()> + Send>;
/// Makes it: for each process anew, as threads do not survive a fork.
type MakeEmit = Box<dyn Fn() -> Emit + Send + Sync>;

enum Job {
    Record(Arc<CallRecord>),
    Flush(SyncSender<()>),
}

/// A sink behind a bounded queue and a thread of its own. Dropping it has what is queued written, and the thread end.
pub struct BackgroundLog {
    kind: Kind,
    make_emit: MakeEmit,
    losses: Arc<Losses>,
    writer: RwLock<Writer>,
}

/// What is waited for when a log is dropped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    /// The file's last line, within a bound.
    File,
    /// Nothing: a callback may need a lock, such as the GIL, that the one who drops the log holds.
    Callback,
}

/// The queue of one process.
struct Writer {
    generation: u64,
    queue: Arc<Queue>,
}

/// What a writer thread takes its work from.
struct Queue {
    sender: SyncSender<Job>,
    /// The thread; none when it could not be started.
    writer: Option<Thread>,
    progress: Arc<Progress>,
}

/// How far a writer thread is; outlives its queue.
#[derive(Default)]
struct Progress {
    /// Records that the queue took.
    taken: AtomicU64,
    /// Of these, records that the thread is done with.
    done: AtomicU64,
    /// Nobody waits for the thread any more, and what is left was counted as lost.
    abandoned: AtomicBool,
    ended: Mutex<bool>,
    changed: Condvar,
}

/// The lines that one log lost.
struct Losses {
    /// The file, or what else the log is called.
    name: String,
    dropped: AtomicU64,
}

/// Lines that could not be written to one file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Lost {
    /// The file.
    pub path: String,
    /// How many, since the start or since they were last told.
    pub lines: u64,
    /// Why the last of them was lost.
    pub reason: String,
}

/// A writer thread, as [`flush_all`] finds it.
struct Registered {
    /// The process that it belongs to.
    generation: u64,
    /// Gone when the log was dropped; the thread may still be writing what was queued.
    queue: Weak<Queue>,
    progress: Arc<Progress>,
}

/// Every writer thread that has not ended.
static WRITERS: Mutex<Vec<Registered>> = Mutex::new(Vec::new());

/// Lines lost per file, for [`lost`].
static LOST: Mutex<BTreeMap<String, (u64, String)>> = Mutex::new(BTreeMap::new());

impl BackgroundLog {
    /// Appends JSON lines to a file, made with its folders when missing. An unwritable path costs lines, not calls.
    pub fn to_file(path: &Path) -> Self {
        let name = path.display().to_string();
        let path: Arc<Path> = path.into();
        Self::start(Kind::File, name, Box::new(move || to_file(path.clone())))
    }

    /// The log of a file, shared by everyone in this process who writes to the same path.
    pub fn shared(path: &Path) -> Arc<Self> {
        static OPEN: Mutex<BTreeMap<PathBuf, Weak<BackgroundLog>>> = Mutex::new(BTreeMap::new());
        let absolute = std::path::absolute(path).unwrap_or_else(|_| path.to_owned());
        let mut open = OPEN.lock();
        if let Some(log) = open.get(&absolute).and_then(Weak::upgrade) {
            return log;
        }
        open.retain(|_, log| log.strong_count() > 0);
        let log = Arc::new(Self::to_file(&absolute));
        open.insert(absolute, Arc::downgrade(&log));
        log
    }

    /// Calls `emit` with each record, on the writer thread.
    pub fn to_callback(name: &str, emit: impl Fn(&CallRecord) + Send + Sync + 'static) -> Self {
        let emit = Arc::new(emit);
        let make = move || -> Emit {
            let emit = emit.clone();
            Box::new(move |record| {
                emit(record);
                Ok(())
            })
        };
        Self::start(Kind::Callback, name.to_owned(), Box::new(make))
    }

    fn start(kind: Kind, name: String, make_emit: MakeEmit) -> Self {
        let losses = Arc::new(Losses { name, dropped: AtomicU64::new(0) });
        let writer = RwLock::new(Writer::start(make_emit(), losses.clone()));
        Self { kind, make_emit, losses, writer }
    }

    /// The queue of this process.
    fn queue(&self) -> Arc<Queue> {
        let generation = fork::generation();
        {
            let writer = self.writer.read();
            if writer.generation == generation {
                return writer.queue.clone();
            }
        }
        let mut writer = self.writer.write();
        if writer.generation != generation {
            let parents = std::mem::replace(&mut *writer, Writer::start((self.make_emit)(), self.losses.clone()));
            // Its thread is not in this process, and may have held a lock of the queue when it was copied.
            std::mem::forget(parents);
        }
        writer.queue.clone()
    }
}

impl Writer {
    fn start(emit: Emit, losses: Arc<Losses>) -> Self {
        let (sender, receiver) = sync_channel(QUEUE);
        let progress = Arc::new(Progress::default());
        let ending = Ending(progress.clone());
        // Without a thread every line counts as dropped: the receiver is gone with the closure.
        let thread = std::thread::Builder::new()
            .name("cadenza-log".into())
            .spawn(move || write_jobs(&receiver, emit, &losses, &ending.0))
            .ok();
        let writer = thread.map(|thread| thread.thread().clone());
        let queue = Arc::new(Queue { sender, writer, progress: progress.clone() });
        let generation = fork::generation();
        let mut writers = WRITERS.lock();
        writers.retain(|known| known.generation == generation && !*known.progress.ended.lock());
        writers.push(Registered { generation, queue: Arc::downgrade(&queue), progress });
        Self { generation, queue }
    }
}

/// Says that the thread has ended, however it did.
struct Ending(Arc<Progress>);

impl Drop for Ending {
    fn drop(&mut self) {
        *self.0.ended.lock() = true;
        self.0.changed.notify_all();
    }
}

impl Progress {
    /// Whether the thread ended before the deadline.
    fn ended_by(&self, deadline: Instant) -> bool {
        let mut ended = self.ended.lock();
        while !*ended {
            if self.changed.wait_until(&mut ended, deadline).timed_out() {
                return *ended;
            }
        }
        true
    }
}

impl Losses {
    fn add(&self, lines: u64, reason: &str) {
        if lines == 0 {
            return;
        }
        self.dropped.fetch_add(lines, Ordering::Relaxed);
        let mut lost = LOST.lock();
        if lost.len() < LOST_FILES || lost.contains_key(&self.name) {
            let entry = lost.entry(self.name.clone()).or_default();
            entry.0 += lines;
            reason.clone_into(&mut entry.1);
        }
    }
}

/// Lines that were lost in this process and not told yet, by file.
pub fn lost() -> Vec<Lost> {
    let lost = std::mem::take(&mut *LOST.lock());
    lost.into_iter().map(|(path, (lines, reason))| Lost { path, lines, reason }).collect()
}

/// Waits, within 5 s for each, until every log of this process is out. For the end of a process.
pub fn flush_all() {
    let generation = fork::generation();
    let writers: Vec<(Option<Arc<Queue>>, Arc<Progress>)> = WRITERS
        .lock()
        .iter()
        .filter(|known| known.generation == generation)
        .map(|known| (known.queue.upgrade(), known.progress.clone()))
        .collect();
    for (queue, progress) in writers {
        match queue {
            Some(queue) => flush(&queue),
            // The log was dropped, and its thread writes what was queued.
            None => drop(progress.ended_by(Instant::now() + FLUSH_TIMEOUT)),
        }
    }
}

fn flush(queue: &Queue) {
    // A callback that flushes its own log would wait for itself.
    if queue.is_mine() {
        return;
    }
    let deadline = Instant::now() + FLUSH_TIMEOUT;
    let (done, flushed) = sync_channel(1);
    let mut job = Job::Flush(done);
    // A full queue in front of a stuck disk must not hold the caller for ever.
    while let Err(TrySendError::Full(refused)) = queue.sender.try_send(job) {
        if Instant::now() >= deadline {
            return;
        }
        job = refused;
        std::thread::sleep(Duration::from_millis(1));
    }
    queue.wake();
    match flushed.recv_timeout(deadline.saturating_duration_since(Instant::now())) {
        Ok(()) | Err(RecvTimeoutError::Timeout | RecvTimeoutError::Disconnected) => {}
    }
}

fn to_file(path: Arc<Path>) -> Emit {
    let mut file: Option<BufWriter<File>> = None;
    let mut text = String::new();
    Box::new(move |record| {
        let writer = match &mut file {
            Some(writer) => writer,
            None => file.insert(BufWriter::new(open(&path)?)),
        };
        text.clear();
        line(record, &mut text);
        text.push('\n');
        let written = writer.write_all(text.as_bytes()).and_then(|()| writer.flush());
        if written.is_err() {
            file = None;
        }
        written
    })
}

fn write_jobs(receiver: &Receiver<Job>, mut emit: Emit, losses: &Losses, progress: &Progress) {
    while let Some(job) = next(receiver) {
        if progress.abandoned.load(Ordering::Acquire) {
            return;
        }
        match job {
            Job::Record(record) => {
                // A sink of the host may panic; the writer must live on.
                match std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| emit(&record))) {
                    Ok(Ok(())) => {}
                    Ok(Err(error)) => losses.add(1, &error.to_string()),
                    Err(_) => losses.add(1, "the log's callback panicked"),
                }
                progress.done.fetch_add(1, Ordering::Release);
            }
            Job::Flush(done) => drop(done.try_send(())),
        }
    }
}

/// The next job: looked for now and then for a while, then waited for. `None` when nobody can send one any more.
fn next(receiver: &Receiver<Job>) -> Option<Job> {
    for _ in 0..RESTS {
        match receiver.try_recv() {
            Ok(job) => return Some(job),
            Err(TryRecvError::Disconnected) => return None,
            Err(TryRecvError::Empty) => std::thread::park_timeout(REST),
        }
    }
    receiver.recv().ok()
}

fn open(path: &Path) -> io::Result<File> {
    if let Some(folder) = path.parent() {
        std::fs::create_dir_all(folder)?;
    }
    let not_a_file = || io::Error::new(io::ErrorKind::InvalidInput, NOT_A_FILE);
    // Before it is opened: opening a pipe waits for its reader.
    if std::fs::metadata(path).is_ok_and(|found| !found.is_file()) {
        return Err(not_a_file());
    }
    let mut options = OpenOptions::new();
    options.create(true).append(true);
    #[cfg(unix)]
    std::os::unix::fs::OpenOptionsExt::mode(&mut options, 0o600);
    let file = options.open(path)?;
    if file.metadata()?.is_file() { Ok(file) } else { Err(not_a_file()) }
}

const NOT_A_FILE: &str = "it is not a regular file";

/// What stands there already and can never be a log: a folder, a pipe, a device.
pub fn refusal(path: &Path) -> Option<&'static str> {
    match std::fs::metadata(path) {
        Ok(found) if found.is_dir() => Some("it is a folder"),
        Ok(found) if !found.is_file() => Some(NOT_A_FILE),
        Ok(_) | Err(_) => None,
    }
}

/// Why lines could not be written to the path as things stand, as far as can be told without writing anything.
pub fn problem(path: &Path) -> Option<String> {
    if path.exists() {
        let opened = OpenOptions::new().append(true).open(path);
        return refusal(path).map(str::to_owned).or_else(|| opened.err().map(|error| error.to_string()));
    }
    let absolute = std::path::absolute(path).ok()?;
    let folder = absolute.ancestors().skip(1).find(|folder| folder.exists())?;
    let about = std::fs::metadata(folder).ok()?;
    if !about.is_dir() {
        return Some(format!("{} is not a folder", folder.display()));
    }
    about.permissions().readonly().then(|| format!("the folder {} cannot be written to", folder.display()))
}

impl Queue {
    /// Ends the writer's rest.
    fn wake(&self) {
        if let Some(writer) = &self.writer {
            writer.unpark();
        }
    }

    /// Whether this is the thread behind it.
    fn is_mine(&self) -> bool {
        self.writer.as_ref().is_some_and(|writer| writer.id() == std::thread::current().id())
    }
}

impl LogSink for BackgroundLog {
    fn write(&self, record: &Arc<CallRecord>) {
        let queue = self.queue();
        match queue.sender.try_send(Job::Record(record.clone())) {
            Ok(()) => drop(queue.progress.taken.fetch_add(1, Ordering::Relaxed)),
            Err(TrySendError::Full(_)) => self.losses.add(1, "the log was written more slowly than calls ended"),
            Err(TrySendError::Disconnected(_)) => self.losses.add(1, "no thread could be started for the log"),
        }
    }

    fn flush(&self) {
        flush(&self.queue());
    }

    fn dropped(&self) -> u64 {
        self.losses.dropped.load(Ordering::Relaxed)
    }
}

impl fmt::Debug for BackgroundLog {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "BackgroundLog({})", self.losses.name)
    }
}

impl Drop for BackgroundLog {
    fn drop(&mut self) {
        let writer = self.writer.get_mut();
        let progress = writer.queue.progress.clone();
        let nobody = Arc::new(Queue { sender: sync_channel(1).0, writer: None, progress: Arc::default() });
        let queue = std::mem::replace(&mut writer.queue, nobody);
        if writer.generation != fork::generation() {
            // The thread is the parent's; see `queue`.
            std::mem::forget(queue);
            return;
        }
        let (mine, thread) = (queue.is_mine(), queue.writer.clone());
        // The thread ends when the last sender is gone and the queue is empty.
        drop(queue);
        let Some(thread) = thread else { return };
        thread.unpark();
        if self.kind == Kind::Callback || mine || progress.ended_by(Instant::now() + FLUSH_TIMEOUT) {
            return;
        }
        progress.abandoned.store(true, Ordering::Release);
        let left = progress.taken.load(Ordering::Acquire).saturating_sub(progress.done.load(Ordering::Acquire));
        self.losses.add(left, "the file did not take them in time");
    }
}

/// `calls.jsonl` under the user's state directory, for `log=True`.
pub fn default_path() -> PathBuf {
    dirs::state_dir()
        .or_else(dirs::data_local_dir)
        .unwrap_or_else(std::env::temp_dir)
        .join("cadenza")
        .join("calls.jsonl")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::runtime::Runtime;
    use crate::runtime::options::{LogOption, Options};

    /// One call into that log.
    fn call(log: Arc<BackgroundLog>) {
        let options = Options { log: Some(LogOption::Sink(log)), ..Options::default() };
        let runtime = Runtime::builder().options(options).build().unwrap();
        let agent = runtime.agent("calculator", Options::default()).unwrap();
        agent.call("add", vec![1.into(), 2.into()], crate::value::Map::new()).unwrap();
    }

    fn stuck(kind: Kind) -> Arc<BackgroundLog> {
        let make = || -> Emit {
            Box::new(|_| {
                std::thread::sleep(Duration::from_secs(60));
                Ok(())
            })
        };
        Arc::new(BackgroundLog::start(kind, format!("a stuck {kind:?}"), Box::new(make)))
    }

    #[test]
    fn ending_a_log_on_a_stuck_disk_is_bounded_and_its_lines_count_as_lost() {
        let log = stuck(Kind::File);
        call(log.clone());
        let (losses, started) = (log.losses.clone(), Instant::now());
        drop(log);
        assert!(started.elapsed() < Duration::from_secs(30));
        assert_eq!(losses.dropped.load(Ordering::Relaxed), 1);
        assert!(lost().iter().any(|lost| lost.path == "a stuck File" && lost.lines == 1));
    }

    #[test]
    fn a_callback_is_not_waited_for_when_its_log_ends() {
        let started = Instant::now();
        call(stuck(Kind::Callback));
        assert!(started.elapsed() < Duration::from_secs(4));
    }
}
