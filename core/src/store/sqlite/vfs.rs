//! Locks that belong to an open file, not to the process (store.md, "OFD evidence").
//!
//! POSIX record locks vanish when *any* descriptor of the file is closed in the process: a notebook that opens the store
//! with another SQLite library and closes it again would silently take away our locks. Open-file-description locks do
//! not have that fault. SQLite lets its system calls be exchanged; this exchanges `fcntl`, once per process.

use std::ffi::c_int;
use std::sync::Once;

use rusqlite::ffi;

/// Makes every later lock of this process's own SQLite an open-file-description lock, where the system has them.
pub(super) fn use_open_file_locks() {
    static ONCE: Once = Once::new();
    ONCE.call_once(install);
}

/// `fcntl` as SQLite calls it.
#[cfg(all(target_os = "linux", any(target_arch = "x86_64", target_arch = "aarch64")))]
type Fcntl = unsafe extern "C" fn(c_int, c_int, *mut libc::c_void) -> c_int;

#[cfg(all(target_os = "linux", any(target_arch = "x86_64", target_arch = "aarch64")))]
fn install() {
    // SAFETY: `sqlite3_vfs_find` gives the default VFS, which lives as long as the process, and null when there is none.
    // `xSetSystemCall` takes a NUL-terminated name and a function that behaves as the one it replaces. Called once, and
    // before this process opens a store.
    let installed = unsafe {
        let vfs = ffi::sqlite3_vfs_find(std::ptr::null());
        let Some(set) = vfs.as_ref().and_then(|vfs| vfs.xSetSystemCall) else { return };
        let replacement = std::mem::transmute::<Fcntl, unsafe extern "C" fn()>(fcntl);
        set(vfs, c"fcntl".as_ptr(), Some(replacement))
    };
    if installed != ffi::SQLITE_OK {
        tracing::warn!(installed, "SQLite keeps its process-wide locks: do not open the store with another library");
    }
}

#[cfg(not(all(target_os = "linux", any(target_arch = "x86_64", target_arch = "aarch64"))))]
fn install() {}

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
