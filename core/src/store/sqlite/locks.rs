//! Locks that die with their process: who is alive, and whose turn it is with a named agent.
//!
//! One small file beside the store; each owner and each agent has a byte of it. An open-file-description lock on that byte
//! is let go by the system when the process ends, however it ends: nobody has to guess from a clock.

use std::fs::{File, OpenOptions};
use std::io;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use rusqlite::{Connection, TransactionBehavior, params};

use crate::fork;
use crate::store::{AgentId, AgentLock, StoreError};

/// Where the bytes of agents begin; owners are below.
const AGENTS: i64 = 1 << 40;
/// How often a waiting call looks whether the agent is free.
const POLL: Duration = Duration::from_micros(500);

/// The file of locks. Dropping it lets go of everything that it holds.
pub(super) struct Locks {
    path: PathBuf,
    /// Holds this owner's byte.
    file: LockFile,
}

impl Locks {
    pub(super) fn open(store: &Path) -> io::Result<Self> {
        let path = super::beside(store, "-locks");
        Ok(Self { file: open(&path)?, path })
    }

    /// Signs this process in. Its byte is locked before others can see it: nobody takes it for dead meanwhile.
    pub(super) fn become_owner(&self, connection: &mut Connection) -> rusqlite::Result<i64> {
        let transaction = connection.transaction_with_behavior(TransactionBehavior::Immediate)?;
        transaction.execute(
            "INSERT INTO owners(pid, started) VALUES (?1, ?2)",
            params![std::process::id(), super::writer::now()],
        )?;
        let owner = transaction.last_insert_rowid();
        if let Err(error) = lock(&self.file, owner) {
            tracing::warn!(%error, "this process cannot be told from a dead one: its store cannot lock");
        }
        transaction.commit()?;
        Ok(owner)
    }

    /// Processes that signed in and live no more.
    pub(super) fn dead_owners(&self, connection: &Connection, own: i64) -> rusqlite::Result<Vec<i64>> {
        let owners: Vec<i64> = connection
            .prepare("SELECT owner FROM owners WHERE owner <> ?1 UNION SELECT owner FROM open_runs WHERE owner <> ?1")?
            .query_map([own], |row| row.get(0))?
            .collect::<rusqlite::Result<_>>()?;
        // A descriptor of its own, for this one's locks would not be in its own way.
        let Ok(probe) = open(&self.path) else { return Ok(Vec::new()) };
        Ok(owners.into_iter().filter(|owner| matches!(lock(&probe, *owner), Ok(true))).collect())
    }

    /// A number that is another one after every [`Locks::revise`], by whichever process. It lies in the file's first bytes,
    /// which nobody locks: reading it asks the system's memory and no disk.
    #[cfg(unix)]
    pub(super) fn revision(&self) -> u64 {
        let mut bytes = [0; 8];
        match std::os::unix::fs::FileExt::read_exact_at(&*self.file, &mut bytes, 0) {
            Ok(()) => u64::from_le_bytes(bytes),
            Err(_) => 0,
        }
    }

    /// Makes [`Locks::revision`] another number: drawn, not counted, so that two processes at once do not make one of two.
    #[cfg(unix)]
    pub(super) fn revise(&self) -> io::Result<()> {
        std::os::unix::fs::FileExt::write_all_at(&*self.file, &fastrand::u64(1..).to_le_bytes(), 0)
    }

    /// Without reads at a place, what other processes decide is seen by the next runtime.
    #[cfg(not(unix))]
    pub(super) fn revision(&self) -> u64 {
        0
    }

    #[cfg(not(unix))]
    pub(super) fn revise(&self) -> io::Result<()> {
        Ok(())
    }

    /// The agent's turn; `None` when `deadline` came first.
    pub(super) fn lock_agent(&self, agent: AgentId, deadline: Instant) -> io::Result<Option<Held>> {
        let file = open(&self.path)?;
        loop {
            let byte = AGENTS + agent.0;
            if lock(&file, byte)? {
                return Ok(Some(Held { file, byte }));
            }
            if Instant::now() >= deadline {
                return Ok(None);
            }
            std::thread::sleep(POLL);
        }
    }
}

/// A held agent.
#[derive(Debug)]
pub(super) struct Held {
    file: LockFile,
    byte: i64,
}

impl AgentLock for Held {}

impl Drop for Held {
    /// Said aloud: a forked child has a copy of the descriptor, and would keep the lock for as long as it lives.
    fn drop(&mut self) {
        if self.file.generation == fork::generation()
            && let Err(error) = unlock(&self.file, self.byte)
        {
            tracing::warn!(%error, "the turn of an agent was not given back; closing its file does");
        }
    }
}

/// An open file of locks. It belongs to the process that opened it; its child has closed it already.
#[derive(Debug)]
struct LockFile {
    /// None only while it is dropped.
    file: Option<File>,
    generation: u64,
}

impl std::ops::Deref for LockFile {
    type Target = File;

    fn deref(&self) -> &File {
        self.file.as_ref().expect("there until it is dropped")
    }
}

impl Drop for LockFile {
    fn drop(&mut self) {
        let Some(file) = self.file.take() else { return };
        if self.generation == fork::generation() {
            #[cfg(unix)]
            super::vfs::closing(std::os::fd::AsRawFd::as_raw_fd(&file));
        } else {
            std::mem::forget(file);
        }
    }
}

fn open(path: &Path) -> io::Result<LockFile> {
    let mut options = OpenOptions::new();
    options.create(true).read(true).write(true).truncate(false);
    #[cfg(unix)]
    std::os::unix::fs::OpenOptionsExt::mode(&mut options, 0o600);
    let file = options.open(path)?;
    #[cfg(unix)]
    super::vfs::opened(std::os::fd::AsRawFd::as_raw_fd(&file));
    Ok(LockFile { file: Some(file), generation: fork::generation() })
}

/// Takes the lock on one byte; false if somebody else has it.
#[cfg(target_os = "linux")]
fn lock(file: &File, byte: i64) -> io::Result<bool> {
    match set(file, byte, libc::F_WRLCK) {
        Ok(()) => Ok(true),
        Err(error) if matches!(error.raw_os_error(), Some(libc::EAGAIN | libc::EACCES)) => Ok(false),
        Err(error) => Err(error),
    }
}

/// Gives it back.
#[cfg(target_os = "linux")]
fn unlock(file: &File, byte: i64) -> io::Result<()> {
    set(file, byte, libc::F_UNLCK)
}

#[cfg(target_os = "linux")]
fn set(file: &File, byte: i64, kind: i32) -> io::Result<()> {
    use std::os::fd::AsRawFd;

    // SAFETY: all-zero bytes are a valid `flock`; its fields are integers.
    let mut wanted: libc::flock = unsafe { std::mem::zeroed() };
    wanted.l_type = kind as i16;
    wanted.l_whence = libc::SEEK_SET as i16;
    wanted.l_start = byte;
    wanted.l_len = 1;
    // SAFETY: the descriptor is open, and `wanted` lives through the call.
    match unsafe { libc::fcntl(file.as_raw_fd(), libc::F_OFD_SETLK, &raw mut wanted) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

/// Without open-file-description locks the whole file is one lock: less at once, but as safe.
#[cfg(not(target_os = "linux"))]
fn lock(file: &File, _byte: i64) -> io::Result<bool> {
    match file.try_lock() {
        Ok(()) => Ok(true),
        Err(std::fs::TryLockError::WouldBlock) => Ok(false),
        Err(std::fs::TryLockError::Error(error)) => Err(error),
    }
}

/// Gives it back.
#[cfg(not(target_os = "linux"))]
fn unlock(file: &File, _byte: i64) -> io::Result<()> {
    file.unlock()
}

/// SQLite's log needs memory that all processes share: a network file system does not have it.
#[cfg(target_os = "linux")]
pub(super) fn refuse_network_files(path: &Path) -> Result<(), StoreError> {
    use std::ffi::CString;
    use std::os::unix::ffi::OsStrExt;

    /// NFS, SMB, CIFS, SMB2, AFS, Coda, Ceph.
    const NETWORK: [i64; 7] = [0x6969, 0x517B, 0xFF53_4D42, 0xFE53_4D42, 0x5346_414F, 0x7375_7245, 0x00C3_6400];
    let Ok(name) = CString::new(path.as_os_str().as_bytes()) else { return Ok(()) };
    // SAFETY: all-zero bytes are a valid `statfs`; `name` is a C string that lives through the call.
    let (result, kind) = unsafe {
        let mut found: libc::statfs = std::mem::zeroed();
        (libc::statfs(name.as_ptr(), &raw mut found), found.f_type)
    };
    #[allow(clippy::unnecessary_cast, reason = "the type of `f_type` differs between C libraries")]
    let kind = kind as i64 & 0xFFFF_FFFF;
    if result == 0 && NETWORK.contains(&kind) {
        let message = "it lies on a network file system, where SQLite is not safe; choose a local path".to_owned();
        return Err(StoreError::Open { path: path.to_owned(), message });
    }
    Ok(())
}

#[cfg(not(target_os = "linux"))]
pub(super) fn refuse_network_files(_path: &Path) -> Result<(), StoreError> {
    Ok(())
}
