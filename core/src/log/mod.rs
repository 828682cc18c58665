//! The log: exactly one JSON line per dynamic call (AC section 8), derived from its record after the call.
//!
//! Writing happens on a background thread behind a bounded queue. A full queue or a failing file costs lines, which are
//! counted, never a call (AC-18). Setters and context-backed reads are not calls and are not logged.

use std::collections::BTreeMap;
use std::fmt;
use std::fs::{File, OpenOptions};
use std::io::{self, BufWriter, Write};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, TryRecvError, TrySendError, sync_channel};
use std::sync::{Arc, Weak};
use std::thread::{JoinHandle, Thread};
use std::time::{Duration, Instant};

use parking_lot::{Mutex, RwLock};

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
/// How long `flush` waits for a stuck disk.
const FLUSH_TIMEOUT: Duration = Duration::from_secs(5);

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

/// A sink behind a bounded queue and a thread of its own. Dropping it writes what is queued and ends the thread.
pub struct BackgroundLog {
    name: String,
    make_emit: MakeEmit,
    dropped: Arc<AtomicU64>,
    writer: RwLock<Writer>,
}

/// The queue of one process and the thread behind it.
struct Writer {
    generation: u64,
    queue: Arc<Queue>,
    thread: Option<JoinHandle<()>>,
}

/// What a writer thread takes its work from.
struct Queue {
    sender: SyncSender<Job>,
    /// The thread; none when it could not be started.
    writer: Option<Thread>,
}

/// Every queue in use and the process it belongs to, for [`flush_all`].
static QUEUES: Mutex<Vec<(u64, Weak<Queue>)>> = Mutex::new(Vec::new());

impl BackgroundLog {
    /// Appends JSON lines to a file, made with its folders when missing. An unwritable path costs lines, not calls.
    pub fn to_file(path: &Path) -> Self {
        let name = path.display().to_string();
        let path: Arc<Path> = path.into();
        Self::start(name, Box::new(move || to_file(path.clone())))
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
        Self::start(name.to_owned(), Box::new(make))
    }

    fn start(name: String, make_emit: MakeEmit) -> Self {
        let dropped = Arc::new(AtomicU64::new(0));
        let writer = RwLock::new(Writer::start(make_emit(), dropped.clone()));
        Self { name, make_emit, dropped, writer }
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
            let parents = std::mem::replace(&mut *writer, Writer::start((self.make_emit)(), self.dropped.clone()));
            // Its thread is not in this process, and may have held a lock of the queue when it was copied.
            std::mem::forget(parents);
        }
        writer.queue.clone()
    }
}

impl Writer {
    fn start(emit: Emit, dropped: Arc<AtomicU64>) -> Self {
        let (sender, receiver) = sync_channel(QUEUE);
        // Without a thread every line counts as dropped: the receiver is gone with the closure.
        let thread = std::thread::Builder::new()
            .name("cadenza-log".into())
            .spawn(move || write_jobs(&receiver, emit, &dropped))
            .ok();
        let writer = thread.as_ref().map(|thread| thread.thread().clone());
        let queue = Arc::new(Queue { sender, writer });
        let generation = fork::generation();
        let mut queues = QUEUES.lock();
        queues.retain(|(made_in, queue)| *made_in == generation && queue.strong_count() > 0);
        queues.push((generation, Arc::downgrade(&queue)));
        Self { generation, queue, thread }
    }
}

/// Waits, within 5 s for each, until every log of this process is out. For the end of a process.
pub fn flush_all() {
    let generation = fork::generation();
    let ours = |(made_in, queue): &(u64, Weak<_>)| (*made_in == generation).then(|| queue.upgrade()).flatten();
    let queues: Vec<Arc<Queue>> = QUEUES.lock().iter().filter_map(ours).collect();
    queues.iter().for_each(|queue| flush(queue));
}

fn flush(queue: &Queue) {
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

fn write_jobs(receiver: &Receiver<Job>, mut emit: Emit, dropped: &AtomicU64) {
    while let Some(job) = next(receiver) {
        match job {
            Job::Record(record) => {
                // A sink of the host may panic; the writer must live on.
                let emitted = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| emit(&record)));
                if !matches!(emitted, Ok(Ok(()))) {
                    dropped.fetch_add(1, Ordering::Relaxed);
                }
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
    let mut options = OpenOptions::new();
    options.create(true).append(true);
    #[cfg(unix)]
    std::os::unix::fs::OpenOptionsExt::mode(&mut options, 0o600);
    options.open(path)
}

impl Queue {
    /// Ends the writer's rest.
    fn wake(&self) {
        if let Some(writer) = &self.writer {
            writer.unpark();
        }
    }
}

impl LogSink for BackgroundLog {
    fn write(&self, record: &Arc<CallRecord>) {
        match self.queue().sender.try_send(Job::Record(record.clone())) {
            Ok(()) => {}
            Err(TrySendError::Full(_) | TrySendError::Disconnected(_)) => {
                self.dropped.fetch_add(1, Ordering::Relaxed);
            }
        }
    }

    fn flush(&self) {
        flush(&self.queue());
    }

    fn dropped(&self) -> u64 {
        self.dropped.load(Ordering::Relaxed)
    }
}

impl fmt::Debug for BackgroundLog {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "BackgroundLog({})", self.name)
    }
}

impl Drop for BackgroundLog {
    fn drop(&mut self) {
        let writer = self.writer.get_mut();
        let Some(thread) = writer.thread.take() else { return };
        let nobody = Arc::new(Queue { sender: sync_channel(1).0, writer: None });
        let queue = std::mem::replace(&mut writer.queue, nobody);
        if writer.generation != fork::generation() {
            // The thread is the parent's; see `queue`.
            std::mem::forget((queue, thread));
            return;
        }
        // The thread ends when the last sender is gone and the queue is empty; a panic in it was counted already.
        drop(queue);
        thread.thread().unpark();
        if thread.thread().id() != std::thread::current().id() {
            drop(thread.join());
        }
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
