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
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, TrySendError, sync_channel};
use std::sync::{Arc, Weak};
use std::thread::JoinHandle;
use std::time::Duration;

use parking_lot::Mutex;

use crate::log::record::CallRecord;

mod encode;
pub mod record;

pub use encode::{line, masked};

/// Lines that may wait for the writer.
const QUEUE: usize = 8_192;
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

/// What the writer thread does with a record.
type Emit = Box<dyn FnMut(&CallRecord) -> io::Result<()> + Send>;

enum Job {
    Record(Arc<CallRecord>),
    Flush(SyncSender<()>),
}

/// A sink behind a bounded queue and a thread of its own. Dropping it writes what is queued and ends the thread.
pub struct BackgroundLog {
    name: String,
    sender: Option<SyncSender<Job>>,
    dropped: Arc<AtomicU64>,
    writer: Mutex<Option<JoinHandle<()>>>,
}

impl BackgroundLog {
    /// Appends JSON lines to a file, made with its folders when missing. An unwritable path costs lines, not calls.
    pub fn to_file(path: &Path) -> Self {
        let path = path.to_owned();
        let name = path.display().to_string();
        let mut file: Option<BufWriter<File>> = None;
        let mut text = String::new();
        Self::spawn(
            name,
            move |record| {
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
            },
        )
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
    pub fn to_callback(name: &str, mut emit: impl FnMut(&CallRecord) + Send + 'static) -> Self {
        Self::spawn(name.to_owned(), move |record| {
            emit(record);
            Ok(())
        })
    }

    fn spawn(name: String, emit: impl FnMut(&CallRecord) -> io::Result<()> + Send + 'static) -> Self {
        let (sender, receiver) = sync_channel(QUEUE);
        let dropped = Arc::new(AtomicU64::new(0));
        let counter = dropped.clone();
        let emit: Emit = Box::new(emit);
        let writer = std::thread::Builder::new()
            .name("cadenza-log".into())
            .spawn(move || write_jobs(&receiver, emit, &counter))
            .ok();
        // Without a thread every line counts as dropped: the receiver is gone with the closure.
        Self { name, sender: Some(sender), dropped, writer: Mutex::new(writer) }
    }
}

fn write_jobs(receiver: &Receiver<Job>, mut emit: Emit, dropped: &AtomicU64) {
    while let Ok(job) = receiver.recv() {
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

impl LogSink for BackgroundLog {
    fn write(&self, record: &Arc<CallRecord>) {
        let Some(sender) = &self.sender else { return };
        match sender.try_send(Job::Record(record.clone())) {
            Ok(()) => {}
            Err(TrySendError::Full(_) | TrySendError::Disconnected(_)) => {
                self.dropped.fetch_add(1, Ordering::Relaxed);
            }
        }
    }

    fn flush(&self) {
        let Some(sender) = &self.sender else { return };
        let (done, flushed) = sync_channel(1);
        if sender.send(Job::Flush(done)).is_ok() {
            match flushed.recv_timeout(FLUSH_TIMEOUT) {
                Ok(()) | Err(RecvTimeoutError::Timeout | RecvTimeoutError::Disconnected) => {}
            }
        }
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
        self.sender = None;
        if let Some(writer) = self.writer.lock().take()
            && writer.thread().id() != std::thread::current().id()
        {
            // The thread ends when the queue is empty; a panic in it was counted already.
            drop(writer.join());
        }
    }
}

/// `calls.jsonl` under the user's state directory, for `log=True`.
pub fn default_path() -> PathBuf {
    dirs::state_dir().or_else(dirs::data_local_dir).unwrap_or_else(std::env::temp_dir).join("cadenza").join("calls.jsonl")
}
