//! The system allocator, counting while it is told to. It counts the bytes that were asked for, as our side
//! does.

use std::alloc::{GlobalAlloc, Layout, System};
use std::sync::atomic::{AtomicBool, AtomicI64, Ordering::Relaxed};

struct Counting;

#[global_allocator]
static ALLOCATOR: Counting = Counting;
static ON: AtomicBool = AtomicBool::new(false);
static LIVE: AtomicI64 = AtomicI64::new(0);

fn count(bytes: usize, sign: i64) {
    if ON.load(Relaxed) {
        LIVE.fetch_add(sign * bytes as i64, Relaxed);
    }
}

unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        count(layout.size(), 1);
        unsafe { System.alloc(layout) }
    }
    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        count(layout.size(), 1);
        unsafe { System.alloc_zeroed(layout) }
    }
    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        count(layout.size(), -1);
        unsafe { System.dealloc(pointer, layout) }
    }
    unsafe fn realloc(&self, pointer: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        count(layout.size(), -1);
        count(size, 1);
        unsafe { System.realloc(pointer, layout, size) }
    }
}

/// Counts from here on.
pub fn start_counting() {
    ON.store(true, Relaxed);
}

/// Bytes allocated and not freed since counting started; below zero when older memory was freed.
pub fn live_bytes() -> i64 {
    LIVE.load(Relaxed)
}
