//! Locks that belong to an open file, not to the process (store.md, "OFD evidence"), and files that belong to the process
//! that opened them.
//!
//! POSIX record locks vanish when *any* descriptor of the file is closed in the process: a notebook that opens the store
//! with another SQLite library and closes it again would silently take away our locks. Open-file-description locks do
//! not have that fault, but a forked child has its parent's descriptions: with them it would hold its parent's locks, and
//! write when its parent does. So a child closes them, which lets go of nothing, and SQLite finds none of its parent's
//! files there again.
//!
//! SQLite lets its system calls be exchanged; this exchanges some, once per process.

#[cfg(all(target_os = "linux", any(target_arch = "x86_64", target_arch = "aarch64")))]
use std::ffi::c_char;
#[cfg(unix)]
use std::ffi::c_int;
use std::sync::Once;
#[cfg(unix)]
use std::sync::atomic::{AtomicU64, Ordering};

#[cfg(all(target_os = "linux", any(target_arch = "x86_64", target_arch = "aarch64")))]
use rusqlite::ffi;

#[cfg(unix)]
use crate::fork;

/// Makes every later lock of this process's own SQLite an open-file-description lock, where the system has them.
pub(super) fn use_open_file_locks() {
    static ONCE: Once = Once::new();
    ONCE.call_once(install);
}

/// Descriptors of stores that are open, one bit each.
#[cfg(unix)]
static OPEN: [AtomicU64; 1024] = [const { AtomicU64::new(0) }; 1024];

/// The word of a descriptor and its bit; none for what is no descriptor.
#[cfg(unix)]
fn place(descriptor: c_int) -> Option<(&'static AtomicU64, u64)> {
    let descriptor = usize::try_from(descriptor).ok()?;
    Some((OPEN.get(descriptor / 64)?, 1 << (descriptor % 64)))
}

/// Notes that a descriptor of a store was opened: a forked child closes it.
#[cfg(unix)]
pub(super) fn opened(descriptor: c_int) {
    if let Some((word, bit)) = place(descriptor) {
        word.fetch_or(bit, Ordering::AcqRel);
    }
}

/// Notes that a descriptor is about to be closed.
#[cfg(unix)]
pub(super) fn closing(descriptor: c_int) {
    if let Some((word, bit)) = place(descriptor) {
        word.fetch_and(!bit, Ordering::AcqRel);
    }
}

/// In a forked child: closes its copies of the parent's descriptors. What they lock stays locked by the parent, and is
/// free when the parent dies.
#[cfg(unix)]
fn let_go() {
    for (index, word) in OPEN.iter().enumerate() {
        let open = word.swap(0, Ordering::AcqRel);
        for bit in (0..64).filter(|bit| open >> bit & 1 == 1) {
            // SAFETY: a descriptor of the parent's stores. The connections and files that know it are never used or closed
            // in this process: see `SqliteStore::attached` and `locks::LockFile`.
            unsafe { libc::close((index * 64 + bit) as c_int) };
        }
    }
}

/// Functions as SQLite calls them.
#[cfg(all(target_os = "linux", any(target_arch = "x86_64", target_arch = "aarch64")))]
mod calls {
    use super::{c_char, c_int};

    pub(super) type Fcntl = unsafe extern "C" fn(c_int, c_int, *mut libc::c_void) -> c_int;
    pub(super) type Open = unsafe extern "C" fn(*const c_char, c_int, c_int) -> c_int;
    pub(super) type Close = unsafe extern "C" fn(c_int) -> c_int;
    pub(super) type Stat = unsafe extern "C" fn(*const c_char, *mut libc::stat) -> c_int;
    pub(super) type Fstat = unsafe extern "C" fn(c_int, *mut libc::stat) -> c_int;
}

#[cfg(all(target_os = "linux", any(target_arch = "x86_64", target_arch = "aarch64")))]
fn install() {
    use std::mem::transmute;

    type Any = unsafe extern "C" fn();
    fork::let_go_with(let_go);
    // SAFETY: `sqlite3_vfs_find` gives the default VFS, which lives as long as the process, and null when there is none.
    // `xSetSystemCall` takes a NUL-terminated name and a function that behaves as the one it replaces. Called once, and
    // before this process opens a store.
    let refused = unsafe {
        let vfs = ffi::sqlite3_vfs_find(std::ptr::null());
        let Some(set) = vfs.as_ref().and_then(|vfs| vfs.xSetSystemCall) else { return };
        [
            (c"fcntl", transmute::<calls::Fcntl, Any>(fcntl)),
            (c"open", transmute::<calls::Open, Any>(open)),
            (c"close", transmute::<calls::Close, Any>(close)),
            (c"stat", transmute::<calls::Stat, Any>(stat)),
            (c"fstat", transmute::<calls::Fstat, Any>(fstat)),
        ]
        .into_iter()
        .find(|(name, replacement)| set(vfs, name.as_ptr(), Some(*replacement)) != ffi::SQLITE_OK)
    };
    if let Some((name, _)) = refused {
        tracing::warn!(?name, "SQLite keeps its own: do not open the store with another library, and do not fork");
    }
}

#[cfg(not(all(target_os = "linux", any(target_arch = "x86_64", target_arch = "aarch64"))))]
fn install() {
    #[cfg(unix)]
    fork::let_go_with(let_go);
}

/// # Safety
/// As for `open`.
#[cfg(all(target_os = "linux", any(target_arch = "x86_64", target_arch = "aarch64")))]
unsafe extern "C" fn open(path: *const c_char, flags: c_int, mode: c_int) -> c_int {
    // SAFETY: passed on as it came.
    let descriptor = unsafe { libc::open(path, flags, mode) };
    opened(descriptor);
    descriptor
}

/// # Safety
/// As for `close`.
#[cfg(all(target_os = "linux", any(target_arch = "x86_64", target_arch = "aarch64")))]
unsafe extern "C" fn close(descriptor: c_int) -> c_int {
    closing(descriptor);
    // SAFETY: passed on as it came.
    unsafe { libc::close(descriptor) }
}

/// # Safety
/// As for `stat`.
#[cfg(all(target_os = "linux", any(target_arch = "x86_64", target_arch = "aarch64")))]
unsafe extern "C" fn stat(path: *const c_char, found: *mut libc::stat) -> c_int {
    // SAFETY: passed on as it came; `found` is written when the result is 0.
    unsafe {
        let result = libc::stat(path, found);
        if result == 0 {
            (*found).st_dev = device((*found).st_dev);
        }
        result
    }
}

/// # Safety
/// As for `fstat`.
#[cfg(all(target_os = "linux", any(target_arch = "x86_64", target_arch = "aarch64")))]
unsafe extern "C" fn fstat(descriptor: c_int, found: *mut libc::stat) -> c_int {
    // SAFETY: passed on as it came; `found` is written when the result is 0.
    unsafe {
        let result = libc::fstat(descriptor, found);
        if result == 0 {
            (*found).st_dev = device((*found).st_dev);
        }
        result
    }
}

/// SQLite knows open files by device and number, and shares locks between connections to one file. In a child every file
/// is on another device, so that it finds none of its parent's.
#[cfg(all(target_os = "linux", any(target_arch = "x86_64", target_arch = "aarch64")))]
fn device(device: libc::dev_t) -> libc::dev_t {
    device ^ (fork::generation() << 40)
}

/// `fcntl` with record locks turned into open-file-description locks.
///
/// SQLite calls it as a variadic function with at most one argument, an `int` or a pointer; on these two platforms that
/// argument travels in the same register as a pointer parameter.
///
/// # Safety
/// As for `fcntl`: `argument` is what `command` takes.
#[cfg(all(target_os = "linux", any(target_arch = "x86_64", target_arch = "aarch64")))]
unsafe extern "C" fn fcntl(descriptor: c_int, command: c_int, argument: *mut libc::c_void) -> c_int {
    let command = match command {
        libc::F_SETLK => libc::F_OFD_SETLK,
        libc::F_SETLKW => libc::F_OFD_SETLKW,
        libc::F_GETLK => libc::F_OFD_GETLK,
        // SAFETY: passed on as it came.
        other => return unsafe { libc::fcntl(descriptor, other, argument) },
    };
    let lock = argument.cast::<libc::flock>();
    // SAFETY: for the three lock commands the argument points to a `flock` of the caller's; these commands want its
    // `l_pid` to be zero.
    unsafe {
        (*lock).l_pid = 0;
        libc::fcntl(descriptor, command, lock)
    }
}
