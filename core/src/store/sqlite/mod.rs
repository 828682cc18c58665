//! The store in one SQLite file: one writer thread with group commit, one connection for short reads, and a few files
//! beside it (`-wal`, `-shm` of SQLite's own; `-anchors`, `-locks` of ours).

use std::collections::BTreeMap;
use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Weak};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use parking_lot::{Mutex, RwLock};
use rusqlite::{Connection, ErrorCode, OpenFlags};

use super::{
    AgentId, AgentListed, AgentLock, AgentState, CallQuery, Delegate, Durability, Store, StoreError, StoredCall, Unit,
    VerifyReport,
};
use crate::fork;
use crate::ids::CallId;
use crate::kernel::StoredRun;
use crate::program::registry::{Key, Saved};

mod anchors;
mod locks;
mod queue;
mod read;
mod row;
mod same_file;
mod scan;
mod schema;
mod shared;
mod state;
mod verify;
mod vfs;
mod writer;

use queue::{Job, Queue, Refused};
use writer::{Ack, Last};

/// How long a connection waits for another process.
const PATIENCE: Duration = Duration::from_secs(10);
/// How long a caller without a deadline waits for room in the queue.
const ROOM: Duration = Duration::from_secs(10);

/// Stores that are open in this process, by path.
static OPEN: Mutex<BTreeMap<PathBuf, Weak<SqliteStore>>> = Mutex::new(BTreeMap::new());

/// See [`super::flush_all`].
pub(super) fn flush_all() {
    // Somebody may hold it for ever: a thread that was copied by a fork, or that waits for a stuck disk.
    let Some(open) = OPEN.try_lock_for(ROOM) else { return };
    let stores: Vec<Arc<SqliteStore>> = open.values().filter_map(Weak::upgrade).collect();
    drop(open);
    for store in stores {
        // What a forked child has not used, it has nothing in.
        let ours = store.attached.read().generation == fork::generation();
        if ours && let Err(error) = store.sync() {
            tracing::warn!(%error, "the store could not be flushed");
        }
    }
}

/// A store in a file. Open it with [`SqliteStore::open`]; everybody in this process who opens the same path shares it.
pub struct SqliteStore {
    path: Arc<Path>,
    attached: RwLock<Attached>,
}

/// What belongs to one process.
struct Attached {
    generation: u64,
    queue: Arc<Queue>,
    writer: Option<JoinHandle<()>>,
    file: same_file::SameFile,
    /// None only while the store is closed.
    reader: Option<Arc<Mutex<Connection>>>,
    locks: Arc<locks::Locks>,
}

impl SqliteStore {
    /// Opens the store, made with its folder when missing; ends calls that died with their process.
    pub fn open(path: &Path) -> Result<Arc<Self>, StoreError> {
        let path = std::path::absolute(path).unwrap_or_else(|_| path.to_owned());
        make_folder(&path)?;
        // One file has one name, whatever links lead to it: its log, locks and anchors lie beside that one.
        let path = path.canonicalize().unwrap_or(path);
        let mut open = OPEN.lock();
        if let Some(store) = open.get(&path).and_then(Weak::upgrade)
            && store.check_file().is_ok()
        {
            return Ok(store);
        }
        open.retain(|_, store| store.strong_count() > 0);
        let attached = RwLock::new(Attached::new(&path)?);
        let store = Arc::new(Self { path: path.as_path().into(), attached });
        open.insert(path, Arc::downgrade(&store));
        Ok(store)
    }

    /// Whether the path still names the file that is open.
    fn check_file(&self) -> Result<(), StoreError> {
        self.attached(|attached| attached.file)?.check(&self.path)
    }

    /// What belongs to this process: a forked child attaches anew and leaves its parent's connections alone.
    fn attached<R>(&self, with: impl FnOnce(&Attached) -> R) -> Result<R, StoreError> {
        let generation = fork::generation();
        {
            let attached = self.attached.read();
            if attached.generation == generation {
                return Ok(with(&attached));
            }
        }
        let mut attached = self.attached.write();
        if attached.generation != generation {
            let parents = std::mem::replace(&mut *attached, Attached::new(&self.path)?);
            // Closing them here would end the parent's transactions; the memory is the child's own copy.
            std::mem::forget(parents);
        }
        Ok(with(&attached))
    }

    fn reader(&self) -> Result<Arc<Mutex<Connection>>, StoreError> {
        let closed = || StoreError::Io { path: self.path.to_path_buf(), message: "it is closed".to_owned() };
        self.attached(|attached| attached.reader.clone())?.ok_or_else(closed)
    }

    /// A short read of what is on the disk, everything queued before it included.
    fn read<R>(&self, read: impl FnOnce(&Connection) -> rusqlite::Result<R>) -> Result<R, StoreError> {
        self.sync()?;
        self.peek(read)
    }

    /// A short read of what is on the disk.
    fn peek<R>(&self, read: impl FnOnce(&Connection) -> rusqlite::Result<R>) -> Result<R, StoreError> {
        self.check_file()?;
        let reader = self.reader()?;
        let mut connection = reader.lock();
        let error = match read(&connection) {
            Ok(found) => return Ok(found),
            Err(error) => failure(&error, &self.path),
        };
        if matches!(error, StoreError::Io { .. } | StoreError::Full { .. }) {
            // What its flushes did is not known: it is not asked again (P12).
            let mut fresh = connect(&self.path, false)?;
            schema::configure(&mut fresh).map_err(|error| failure(&error, &self.path))?;
            abandon(std::mem::replace(&mut connection, fresh));
        }
        Err(error)
    }

    /// Hands a job to the writer; waits for room until `deadline`.
    fn send(&self, job: Job, deadline: Option<Instant>) -> Result<(), StoreError> {
        let deadline = deadline.unwrap_or_else(|| Instant::now() + ROOM);
        let queue = self.attached(|attached| attached.queue.clone())?;
        queue.send(job, deadline).map_err(|refused| match refused {
            Refused::Full => StoreError::TimedOut,
            Refused::Trouble(trouble) => trouble,
            Refused::Ended => {
                let message = "its writer has stopped".to_owned();
                StoreError::Io { path: self.path.to_path_buf(), message }
            }
        })
    }
}

impl Attached {
    fn new(path: &Path) -> Result<Self, StoreError> {
        vfs::use_open_file_locks();
        let cannot = |message: String| StoreError::Open { path: path.to_owned(), message };
        let failed = |error: rusqlite::Error| failure(&error, path);
        let mut connection = connect(path, true)?;
        let (locks, owner, mut last) = match Self::enter(&mut connection, path) {
            Ok(entered) => entered,
            Err(error) => {
                abandon(connection);
                return Err(error);
            }
        };
        let file = same_file::SameFile::at(path);
        last.file = file;
        let mut reader = connect(path, false)?;
        schema::configure(&mut reader).map_err(failed)?;
        let queue = Arc::new(Queue::default());
        let (writers_queue, writers_path): (_, Arc<Path>) = (queue.clone(), path.into());
        let writers_locks = locks.clone();
        let writer = std::thread::Builder::new()
            .name("cadenza-store".into())
            .spawn(move || writer::write_jobs(&writers_queue, connection, &writers_path, owner, &writers_locks, last))
            .map_err(|error| cannot(error.to_string()))?;
        let reader = Some(Arc::new(Mutex::new(reader)));
        Ok(Self { generation: fork::generation(), queue, writer: Some(writer), file, reader, locks })
    }

    /// Makes sure that the file is a store, signs in, and ends what died.
    fn enter(connection: &mut Connection, path: &Path) -> Result<(Arc<locks::Locks>, i64, Last), StoreError> {
        let failed = |error: rusqlite::Error| failure(&error, path);
        schema::prepare(connection, path)?;
        verify::check_newest_anchors(connection, path)?;
        let locks = locks::Locks::open(path)
            .map_err(|error| StoreError::Open { path: path.to_owned(), message: error.to_string() })?;
        let owner = locks.become_owner(connection).map_err(failed)?;
        let dead = locks.dead_owners(connection, owner).map_err(failed)?;
        let recovered = writer::recover(connection, &dead).map_err(failed)?;
        if recovered > 0 {
            tracing::info!(recovered, "calls that died with their process are marked as interrupted");
        }
        Ok((Arc::new(locks), owner, Last::read(connection).map_err(failed)?))
    }
}

impl Store for SqliteStore {
    fn location(&self) -> String {
        self.path.display().to_string()
    }

    fn write(&self, unit: Unit, durability: Durability, deadline: Option<Instant>) -> Result<(), StoreError> {
        match durability {
            Durability::Memory => Ok(()),
            Durability::Batch => self.send(Job::Write(unit, None), deadline),
            Durability::Strict => {
                let ack = Arc::new(Ack::default());
                self.send(Job::Write(unit, Some(ack.clone())), deadline)?;
                ack.wait(deadline)
            }
        }
    }

    fn sync(&self) -> Result<(), StoreError> {
        let ack = Arc::new(Ack::default());
        let deadline = Instant::now() + ROOM;
        self.send(Job::Sync(ack.clone()), Some(deadline))?;
        ack.wait(Some(deadline))
    }

    fn call(&self, id: CallId) -> Result<Option<StoredCall>, StoreError> {
        self.read(|connection| read::call(connection, id))
    }

    fn calls(&self, query: &CallQuery) -> Result<Vec<StoredCall>, StoreError> {
        self.read(|connection| read::calls(connection, query))
    }

    fn run(&self, id: CallId) -> Result<Option<StoredRun>, StoreError> {
        self.read(|connection| read::run(connection, id))?.transpose().map_err(|error| StoreError::Corrupt {
            path: self.path.to_path_buf(),
            message: format!("the transcript of call {id} cannot be read: {error}"),
        })
    }

    fn open_agent(&self, namespace: &str, name: &str, role: &str) -> Result<AgentState, StoreError> {
        let state = self.read(|connection| read::open_agent(connection, namespace, name, role))?;
        if state.role == role {
            return Ok(state);
        }
        Err(StoreError::Role { name: name.to_owned(), role: state.role })
    }

    fn changed_agent(&self, id: AgentId, version: i64) -> Result<Option<AgentState>, StoreError> {
        self.peek(|connection| read::changed_agent(connection, id, version))
    }

    fn lock_agent(&self, id: AgentId, deadline: Instant) -> Result<Box<dyn AgentLock>, StoreError> {
        let locks = self.attached(|attached| attached.locks.clone())?;
        match locks.lock_agent(id, deadline) {
            Ok(Some(lock)) => Ok(Box::new(lock)),
            Ok(None) => Err(StoreError::TimedOut),
            Err(error) => Err(StoreError::Io { path: self.path.to_path_buf(), message: error.to_string() }),
        }
    }

    fn agents(&self) -> Result<Vec<AgentListed>, StoreError> {
        self.read(read::agents)
    }

    fn delegates(&self, namespace: &str, maker: &str, name: Option<&str>) -> Result<Vec<Delegate>, StoreError> {
        self.peek(|connection| read::delegates(connection, namespace, maker, name))
    }

    fn programs(&self, key: Option<&Key>) -> Result<Vec<Saved>, StoreError> {
        match key {
            Some(_) => self.peek(|connection| read::programs(connection, key)),
            None => self.read(|connection| read::programs(connection, key)),
        }
    }

    fn revision(&self) -> u64 {
        self.attached(|attached| attached.locks.revision()).unwrap_or_default()
    }

    fn verify_call(&self, id: CallId) -> Result<(), StoreError> {
        self.sync()?;
        self.check_file()?;
        let reader = self.reader()?;
        verify::call(&reader.lock(), &self.path, id)
    }

    fn verify(&self) -> Result<VerifyReport, StoreError> {
        self.sync()?;
        self.check_file()?;
        let reader = self.reader()?;
        verify::everything(&reader.lock(), &self.path)
    }
}

impl fmt::Debug for SqliteStore {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "SqliteStore({})", self.path.display())
    }
}

impl Drop for SqliteStore {
    /// Everything queued is written first, within a bound: a disk that is stuck must not keep a process from ending.
    fn drop(&mut self) {
        let attached = self.attached.get_mut();
        let Some(writer) = attached.writer.take() else { return };
        if attached.generation != fork::generation() {
            std::mem::forget((writer, attached.reader.clone(), attached.locks.clone()));
            return;
        }
        // The writer is the last to close, for it was the first to open: its descriptor holds the lock under which SQLite
        // puts the log into the file and takes it away.
        attached.reader = None;
        attached.queue.close();
        if writer.thread().id() == std::thread::current().id() {
            return;
        }
        if attached.queue.wait_for_end(Instant::now() + ROOM) {
            drop(writer.join());
        } else {
            tracing::error!(path = %self.path.display(), "the store is left with calls that the disk does not take");
        }
    }
}

fn connect(path: &Path, create: bool) -> Result<Connection, StoreError> {
    let mut flags = OpenFlags::SQLITE_OPEN_READ_WRITE | OpenFlags::SQLITE_OPEN_NO_MUTEX;
    if create {
        flags |= OpenFlags::SQLITE_OPEN_CREATE;
    }
    Connection::open_with_flags(path, flags).map_err(|error| failure(&error, path))
}

/// Lets go of a connection that failed. It does not tidy up the log on its way out: what its flushes did is not known.
fn abandon(connection: Connection) {
    use rusqlite::config::DbConfig::SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE;

    if let Err(error) = connection.set_db_config(SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, true) {
        tracing::debug!(%error, "a connection that failed may tidy up");
    }
}

/// A folder of its own for a store that has none yet; the file is for its owner alone.
fn make_folder(path: &Path) -> Result<(), StoreError> {
    let cannot = |error: std::io::Error, what: &str| StoreError::Open {
        path: path.to_owned(),
        message: format!("{what}: {error}"),
    };
    if path.is_dir() {
        let message = "it is a folder; name a file in it".to_owned();
        return Err(StoreError::Open { path: path.to_owned(), message });
    }
    if path.exists() && !path.is_file() {
        let message = "it is no file; choose another path for `store`".to_owned();
        return Err(StoreError::Open { path: path.to_owned(), message });
    }
    if let Some(folder) = path.parent().filter(|folder| !folder.exists()) {
        let made: Vec<&Path> = folder.ancestors().take_while(|folder| !folder.exists()).collect();
        let mut builder = std::fs::DirBuilder::new();
        builder.recursive(true);
        #[cfg(unix)]
        std::os::unix::fs::DirBuilderExt::mode(&mut builder, 0o700);
        builder.create(folder).map_err(|error| cannot(error, "its folder cannot be made"))?;
        // SQLite flushes the names in the store's own folder; that one's name must outlive a lost power, too.
        for around in made.iter().filter_map(|folder| folder.parent()) {
            if let Err(error) = std::fs::File::open(around).and_then(|around| around.sync_all()) {
                tracing::debug!(%error, folder = %around.display(), "a new folder was not flushed");
            }
        }
    }
    if !path.exists() {
        let mut options = std::fs::OpenOptions::new();
        options.create(true).append(true);
        #[cfg(unix)]
        std::os::unix::fs::OpenOptionsExt::mode(&mut options, 0o600);
        options.open(path).map_err(|error| cannot(error, "the file cannot be made"))?;
    }
    locks::refuse_network_files(path)
}

/// A file beside the store.
fn beside(store: &Path, suffix: &str) -> PathBuf {
    let mut name = store.as_os_str().to_owned();
    name.push(suffix);
    name.into()
}

/// Waits for another process: a little, and never as long as the others, so that no herd forms.
fn patience(attempts: i32) -> bool {
    let tick = Duration::from_micros(100 + fastrand::u64(0..200));
    std::thread::sleep(tick);
    Duration::from_micros(200) * attempts.unsigned_abs() < PATIENCE
}

/// Whether the error is about the file and not about what was to be written: such a unit would be refused again and
/// again, and everything behind it.
fn is_about_the_file(error: &rusqlite::Error) -> bool {
    let about_the_unit = [ErrorCode::ConstraintViolation, ErrorCode::TooBig, ErrorCode::TypeMismatch];
    error.sqlite_error_code().is_some_and(|code| !about_the_unit.contains(&code))
}

fn failure(error: &rusqlite::Error, path: &Path) -> StoreError {
    let path = path.to_owned();
    let message = error.to_string();
    // The log's shared memory is a file, too; what it cannot have is space.
    if error.sqlite_error().is_some_and(|error| error.extended_code == rusqlite::ffi::SQLITE_IOERR_SHMSIZE) {
        return StoreError::Full { path };
    }
    // A column that does not hold what its table says, or a row that does not fit its seal.
    let damaged = match error {
        rusqlite::Error::FromSqlConversionFailure(_, _, error) => Some(error.to_string()),
        rusqlite::Error::InvalidColumnType(..)
        | rusqlite::Error::IntegralValueOutOfRange(..)
        | rusqlite::Error::Utf8Error(..) => Some(message.clone()),
        _ => None,
    };
    if let Some(message) = damaged {
        return StoreError::Corrupt { path, message };
    }
    match error.sqlite_error_code() {
        Some(ErrorCode::DiskFull) => StoreError::Full { path },
        Some(ErrorCode::DatabaseBusy | ErrorCode::DatabaseLocked) => StoreError::Busy { path },
        Some(ErrorCode::ReadOnly | ErrorCode::PermissionDenied) => StoreError::ReadOnly { path, message },
        Some(ErrorCode::DatabaseCorrupt) => StoreError::Corrupt { path, message },
        Some(ErrorCode::NotADatabase) => {
            let message = "it is not a database; choose another path for `store`".to_owned();
            StoreError::Open { path, message }
        }
        Some(ErrorCode::CannotOpen) => StoreError::Open { path, message },
        Some(_) | None => StoreError::Io { path, message },
    }
}
