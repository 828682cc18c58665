//! A disk that can be watched, cut and broken, under the store's own system calls.
//!
//! The functions of the C library that write files are defined here, in the test program itself: the linked SQLite and
//! Rust's standard library both go through them, without any privilege. Only files of a watched folder are looked at.

use std::collections::{BTreeMap, BTreeSet};
use std::ffi::{CStr, OsStr, c_char, c_int, c_uint, c_void};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock};

/// What happened to the files of a folder, in order.
#[derive(Clone, Debug)]
pub enum Event {
    /// A file was made.
    Create(String),
    /// Bytes at a place.
    Write { file: String, at: usize, data: Vec<u8> },
    /// A new length.
    Truncate { file: String, length: usize },
    /// Everything written to the file before is on the disk.
    Sync(String),
    /// Every name made or taken away before is on the disk.
    SyncFolder,
    /// A name was taken away.
    Unlink(String),
    /// Somebody was told something: a line for whoever checks.
    Told(String),
}

/// Kinds of calls that can fail.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// `write`, `pwrite`.
    Write,
    /// `fsync`, `fdatasync`.
    Sync,
    /// `open`, where it may write.
    Open,
    /// `ftruncate`.
    Truncate,
    /// `unlink`.
    Unlink,
    /// A lock.
    Lock,
}

/// What goes wrong, and when.
#[derive(Clone, Debug, Default)]
pub struct Plan {
    /// The process dies at that call, counted from 1.
    pub kill_at: Option<u64>,
    /// It dies in the middle of a write, or after the call instead of before it.
    pub kill_late: bool,
    /// Calls of these kinds that fail: their ordinals among calls of these kinds, from 1.
    pub fail: Vec<(Kind, u64)>,
    /// How they fail.
    pub errno: c_int,
    /// Bytes by which the files may still grow.
    pub space: Option<usize>,
    /// Everything is written down in [`Disk::events`].
    pub trace: bool,
}

#[derive(Default)]
struct State {
    plan: Plan,
    calls: u64,
    of_kind: BTreeMap<u8, u64>,
    events: Vec<Event>,
    /// Descriptors whose flush failed.
    poisoned: BTreeSet<c_int>,
    reused_after_failed_sync: Vec<String>,
    failures: u32,
}

/// A watched folder.
pub struct Disk {
    folder: PathBuf,
    state: Mutex<State>,
}

impl Disk {
    /// Watches a folder until the process ends. Files that are open already are not seen.
    pub fn watch(folder: &Path, plan: Plan) -> Arc<Self> {
        let disk = Arc::new(Self { folder: folder.to_owned(), state: Mutex::new(State { plan, ..State::default() }) });
        DISKS.write().unwrap_or_else(PoisonError::into_inner).push(disk.clone());
        disk
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// From now on it behaves like this; calls are counted anew.
    pub fn behave(&self, plan: Plan) {
        let mut state = self.state();
        (state.plan, state.calls, state.of_kind) = (plan, 0, BTreeMap::new());
    }

    /// Calls so far.
    pub fn calls(&self) -> u64 {
        self.state().calls
    }

    /// Calls of that kind so far.
    pub fn calls_of(&self, kind: Kind) -> u64 {
        self.state().of_kind.get(&(kind as u8)).copied().unwrap_or(0)
    }

    /// Calls that were made to fail.
    pub fn failures(&self) -> u32 {
        self.state().failures
    }

    /// Writes to and flushes of a descriptor after one of its flushes had failed: pages of it may be forgotten (P12).
    pub fn reused_after_failed_sync(&self) -> Vec<String> {
        self.state().reused_after_failed_sync.clone()
    }

    /// Notes that somebody was told something.
    pub fn told(&self, line: String) {
        self.state().events.push(Event::Told(line));
    }

    /// Everything that happened.
    pub fn events(&self) -> Vec<Event> {
        self.state().events.clone()
    }
}

static DISKS: RwLock<Vec<Arc<Disk>>> = RwLock::new(Vec::new());
static OPEN: Mutex<BTreeMap<c_int, Slot>> = Mutex::new(BTreeMap::new());
/// Descriptors of watched files; all others take the short way.
static WATCHED: [AtomicBool; 4096] = [const { AtomicBool::new(false) }; 4096];

/// An open file of a watched folder.
#[derive(Clone)]
struct Slot {
    disk: Arc<Disk>,
    /// Empty for the folder itself.
    name: String,
    appends: bool,
}

/// The disk and the name of a path in a watched folder.
fn find(path: *const c_char) -> Option<(Arc<Disk>, String)> {
    // SAFETY: callers of the C library's functions give NUL-terminated paths.
    let path = Path::new(OsStr::from_bytes(unsafe { CStr::from_ptr(path) }.to_bytes()));
    let disks = DISKS.read().unwrap_or_else(PoisonError::into_inner);
    disks.iter().rev().find_map(|disk| {
        let name = path.strip_prefix(&disk.folder).ok()?;
        Some((disk.clone(), name.to_string_lossy().into_owned()))
    })
}

fn watched(descriptor: c_int) -> Option<Slot> {
    let index = usize::try_from(descriptor).ok()?;
    if !WATCHED.get(index)?.load(Ordering::Acquire) {
        return None;
    }
    OPEN.lock().unwrap_or_else(PoisonError::into_inner).get(&descriptor).cloned()
}

fn fail_with(errno: c_int) {
    // SAFETY: the C library gives every thread a place for its error number.
    unsafe { *libc::__errno_location() = errno };
}

/// Ends the process as `kill -9` does.
pub fn die() -> ! {
    // SAFETY: takes no memory; the process ends here as by `kill -9`.
    unsafe {
        libc::kill(libc::getpid(), libc::SIGKILL);
        loop {
            libc::pause();
        }
    }
}

/// What becomes of one call.
enum Verdict {
    Go,
    Die,
    Fail(c_int),
}

fn judge(disk: &Disk, kind: Kind, name: &str) -> Verdict {
    let mut state = disk.state();
    state.calls += 1;
    let ordinal = state.of_kind.entry(kind as u8).or_insert(0);
    *ordinal += 1;
    let ordinal = *ordinal;
    if state.plan.kill_at == Some(state.calls) {
        return Verdict::Die;
    }
    // The shared memory of the log is no file of the disk: it is made again from the log.
    if state.plan.fail.contains(&(kind, ordinal)) && !name.ends_with("-shm") {
        state.failures += 1;
        return Verdict::Fail(state.plan.errno);
    }
    Verdict::Go
}

/// Performs a call that is no write, and notes it.
fn perform(slot: &Slot, kind: Kind, act: impl FnOnce() -> c_int, event: impl FnOnce() -> Event) -> c_int {
    let late = slot.disk.state().plan.kill_late;
    match judge(&slot.disk, kind, &slot.name) {
        Verdict::Die if !late => die(),
        Verdict::Die => {
            act();
            die()
        }
        Verdict::Fail(errno) => {
            fail_with(errno);
            -1
        }
        Verdict::Go => {
            let done = act();
            let mut state = slot.disk.state();
            if done >= 0 && state.plan.trace {
                let event = event();
                state.events.push(event);
            }
            done
        }
    }
}

fn length_of(descriptor: c_int) -> usize {
    // SAFETY: all-zero bytes are a valid `stat`, and the descriptor is the caller's.
    let mut found: libc::stat = unsafe { std::mem::zeroed() };
    // SAFETY: as above.
    if unsafe { libc::fstat(descriptor, &raw mut found) } == 0 { found.st_size as usize } else { 0 }
}

fn note_use(slot: &Slot, descriptor: c_int, what: &str) {
    let mut state = slot.disk.state();
    if state.poisoned.contains(&descriptor) {
        state.reused_after_failed_sync.push(format!("{what} {}", slot.name));
    }
}

fn write_watched(slot: &Slot, descriptor: c_int, buffer: *const c_void, count: usize, at: Option<i64>) -> isize {
    let raw = |count: usize| {
        // SAFETY: the caller's buffer holds at least `count` bytes, and its descriptor is open.
        unsafe {
            match at {
                Some(at) => libc::syscall(libc::SYS_pwrite64, descriptor, buffer, count, at) as isize,
                None => libc::syscall(libc::SYS_write, descriptor, buffer, count) as isize,
            }
        }
    };
    note_use(slot, descriptor, "write");
    let length = length_of(descriptor);
    let place = match at {
        Some(at) => at as usize,
        None if slot.appends => length,
        // SAFETY: asks for the place of the caller's descriptor.
        None => unsafe { libc::lseek(descriptor, 0, libc::SEEK_CUR) as usize },
    };
    let late = slot.disk.state().plan.kill_late;
    match judge(&slot.disk, Kind::Write, &slot.name) {
        Verdict::Die => {
            if late {
                raw(count / 2);
            }
            die()
        }
        Verdict::Fail(errno) => {
            fail_with(errno);
            return -1;
        }
        Verdict::Go => {}
    }
    let mut state = slot.disk.state();
    // A hole before the bytes takes no space.
    let growth = (place + count).saturating_sub(length).min(count);
    let mut allowed = count;
    if let Some(space) = &mut state.plan.space {
        let room = (*space).min(growth);
        allowed = count - (growth - room);
        *space -= room;
        if allowed == 0 && count > 0 {
            state.failures += 1;
            drop(state);
            fail_with(libc::ENOSPC);
            return -1;
        }
    }
    let written = raw(allowed);
    if written > 0 && state.plan.trace {
        // SAFETY: the caller's buffer holds the bytes that were just written.
        let data = unsafe { std::slice::from_raw_parts(buffer.cast::<u8>(), written as usize) }.to_vec();
        state.events.push(Event::Write { file: slot.name.clone(), at: place, data });
    }
    written
}

fn open_file(path: *const c_char, flags: c_int, mode: c_uint) -> c_int {
    // SAFETY: the caller's path and flags, passed on.
    let raw = || unsafe { libc::syscall(libc::SYS_openat, libc::AT_FDCWD, path, flags, mode) as c_int };
    let Some((disk, name)) = find(path) else { return raw() };
    let slot = Slot { disk, name, appends: flags & libc::O_APPEND != 0 };
    let writes = flags & (libc::O_CREAT | libc::O_WRONLY | libc::O_RDWR) != 0;
    let descriptor = if writes {
        // SAFETY: looks whether the path exists.
        let makes = flags & libc::O_CREAT != 0 && unsafe { libc::access(path, libc::F_OK) } != 0;
        let descriptor = perform(&slot, Kind::Open, raw, || Event::Told(String::new()));
        let mut state = slot.disk.state();
        if state.plan.trace && descriptor >= 0 {
            state.events.pop();
            if makes {
                state.events.push(Event::Create(slot.name.clone()));
            }
        }
        descriptor
    } else {
        raw()
    };
    if let Some(watched) = usize::try_from(descriptor).ok().and_then(|index| WATCHED.get(index)) {
        OPEN.lock().unwrap_or_else(PoisonError::into_inner).insert(descriptor, slot);
        watched.store(true, Ordering::Release);
    }
    descriptor
}

/// Replaces the C library's.
///
/// # Safety
/// As for the function of that name.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn open(path: *const c_char, flags: c_int, mode: c_uint) -> c_int {
    open_file(path, flags, mode)
}

/// Replaces the C library's.
///
/// # Safety
/// As for the function of that name.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn open64(path: *const c_char, flags: c_int, mode: c_uint) -> c_int {
    open_file(path, flags, mode)
}

/// Replaces the C library's.
///
/// # Safety
/// As for the function of that name.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn close(descriptor: c_int) -> c_int {
    if let Some(slot) = watched(descriptor) {
        slot.disk.state().poisoned.remove(&descriptor);
        WATCHED[descriptor as usize].store(false, Ordering::Release);
        OPEN.lock().unwrap_or_else(PoisonError::into_inner).remove(&descriptor);
    }
    // SAFETY: passed on as it came.
    unsafe { libc::syscall(libc::SYS_close, descriptor) as c_int }
}

/// Replaces the C library's.
///
/// # Safety
/// As for the function of that name.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn write(descriptor: c_int, buffer: *const c_void, count: usize) -> isize {
    match watched(descriptor) {
        Some(slot) => write_watched(&slot, descriptor, buffer, count, None),
        // SAFETY: passed on as it came.
        None => unsafe { libc::syscall(libc::SYS_write, descriptor, buffer, count) as isize },
    }
}

fn pwrite_at(descriptor: c_int, buffer: *const c_void, count: usize, at: i64) -> isize {
    match watched(descriptor) {
        Some(slot) => write_watched(&slot, descriptor, buffer, count, Some(at)),
        // SAFETY: passed on as it came.
        None => unsafe { libc::syscall(libc::SYS_pwrite64, descriptor, buffer, count, at) as isize },
    }
}

/// Replaces the C library's.
///
/// # Safety
/// As for the function of that name.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pwrite(descriptor: c_int, buffer: *const c_void, count: usize, at: i64) -> isize {
    pwrite_at(descriptor, buffer, count, at)
}

/// Replaces the C library's.
///
/// # Safety
/// As for the function of that name.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pwrite64(descriptor: c_int, buffer: *const c_void, count: usize, at: i64) -> isize {
    pwrite_at(descriptor, buffer, count, at)
}

fn sync(descriptor: c_int, call: libc::c_long) -> c_int {
    // SAFETY: passed on as it came.
    let raw = || unsafe { libc::syscall(call, descriptor) as c_int };
    let Some(slot) = watched(descriptor) else { return raw() };
    note_use(&slot, descriptor, "flush");
    let event = || match &*slot.name {
        "" => Event::SyncFolder,
        name => Event::Sync(name.to_owned()),
    };
    let done = perform(&slot, Kind::Sync, raw, event);
    if done != 0 {
        slot.disk.state().poisoned.insert(descriptor);
    }
    done
}

/// Replaces the C library's.
///
/// # Safety
/// As for the function of that name.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fsync(descriptor: c_int) -> c_int {
    sync(descriptor, libc::SYS_fsync)
}

/// Replaces the C library's.
///
/// # Safety
/// As for the function of that name.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fdatasync(descriptor: c_int) -> c_int {
    sync(descriptor, libc::SYS_fdatasync)
}

fn truncate(descriptor: c_int, length: i64) -> c_int {
    // SAFETY: passed on as it came.
    let raw = || unsafe { libc::syscall(libc::SYS_ftruncate, descriptor, length) as c_int };
    let Some(slot) = watched(descriptor) else { return raw() };
    perform(&slot, Kind::Truncate, raw, || Event::Truncate { file: slot.name.clone(), length: length as usize })
}

/// Replaces the C library's.
///
/// # Safety
/// As for the function of that name.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ftruncate(descriptor: c_int, length: i64) -> c_int {
    truncate(descriptor, length)
}

/// Replaces the C library's.
///
/// # Safety
/// As for the function of that name.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ftruncate64(descriptor: c_int, length: i64) -> c_int {
    truncate(descriptor, length)
}

/// Replaces the C library's.
///
/// # Safety
/// As for the function of that name.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn unlink(path: *const c_char) -> c_int {
    // SAFETY: passed on as it came.
    let raw = || unsafe { libc::syscall(libc::SYS_unlinkat, libc::AT_FDCWD, path, 0) as c_int };
    let Some((disk, name)) = find(path) else { return raw() };
    let slot = Slot { disk, name, appends: false };
    perform(&slot, Kind::Unlink, raw, || Event::Unlink(slot.name.clone()))
}

/// Replaces the C library's; locks of watched files are calls of their own.
///
/// # Safety
/// As for the function of that name.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fcntl(descriptor: c_int, command: c_int, argument: *mut c_void) -> c_int {
    // SAFETY: passed on as it came; the kernel takes every argument as one word.
    let raw = || unsafe { libc::syscall(libc::SYS_fcntl, descriptor, command, argument) as c_int };
    match watched(descriptor).filter(|_| command == libc::F_OFD_SETLK) {
        Some(slot) => perform(&slot, Kind::Lock, raw, || Event::Told(String::new())),
        None => raw(),
    }
}
