//! The memory meter: an allocator that knows how many bytes each thread holds.
//!
//! Rhai has no memory limit of its own. A program runs on one thread from its first step to its last, so the bytes that
//! thread holds more than at the start are the program's. A product that links this crate installs the meter once
//! (`#[global_allocator] static ALLOCATOR: MeteredAllocator = MeteredAllocator(System);`), over whichever allocator it
//! prefers; without it the executor falls back to Rhai's own size limits, which are looser and slower. The meter never
//! refuses an allocation: the executor looks at it at every step and ends the program.

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;
use std::sync::OnceLock;

/// An allocator, the system's by default, with one thread-local counter beside it; about a nanosecond per call.
#[derive(Clone, Copy, Debug, Default)]
pub struct MeteredAllocator<A = System>(pub A);

impl MeteredAllocator {
    /// Bytes that the calling thread allocated and did not free; may be negative. Only differences mean anything, and
    /// only in a process that runs on the meter.
    pub fn held() -> isize {
        held()
    }
}

thread_local! {
    // Constant and without a destructor, so that it may be touched inside the allocator at any time.
    static HELD: Cell<isize> = const { Cell::new(0) };
}

fn add(bytes: isize) {
    // A thread that is being torn down counts nothing.
    let _ = HELD.try_with(|held| held.set(held.get().wrapping_add(bytes)));
}

// SAFETY: every call is passed on to `A` unchanged; counting touches only a thread-local integer.
unsafe impl<A: GlobalAlloc> GlobalAlloc for MeteredAllocator<A> {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        add(layout.size() as isize);
        // SAFETY: the caller keeps `GlobalAlloc`'s contract, which is `A`'s.
        unsafe { self.0.alloc(layout) }
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        add(layout.size() as isize);
        // SAFETY: as above.
        unsafe { self.0.alloc_zeroed(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        add(-(layout.size() as isize));
        // SAFETY: as above.
        unsafe { self.0.dealloc(pointer, layout) }
    }

    unsafe fn realloc(&self, pointer: *mut u8, layout: Layout, new_size: usize) -> *mut u8 {
        add(new_size as isize - layout.size() as isize);
        // SAFETY: as above.
        unsafe { self.0.realloc(pointer, layout, new_size) }
    }
}

pub(super) fn held() -> isize {
    HELD.try_with(Cell::get).unwrap_or(0)
}

/// Whether the process runs on the meter.
pub(super) fn installed() -> bool {
    static INSTALLED: OnceLock<bool> = OnceLock::new();
    *INSTALLED.get_or_init(|| {
        let before = held();
        let probe = std::hint::black_box(Box::new([0_u8; 64]));
        let counted = held() != before;
        drop(probe);
        counted
    })
}
