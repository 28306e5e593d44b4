//! How much memory a piece of work takes at its most, on its own thread.

use std::alloc::GlobalAlloc;
use std::alloc::Layout;
use std::alloc::System;
use std::cell::Cell;

/// The system's allocator, which counts.
pub struct Counting;

thread_local! {
    /// What is held now, and the most that was held since the last [`peak_of`], in bytes. What another thread gave back is counted here
    /// as if it had been held here, so the number may be below 0.
    static HELD: Cell<(isize, isize)> = const { Cell::new((0, 0)) };
}

fn count(by: isize) {
    // A thread that ends has no counter any more.
    let _ = HELD.try_with(|held| {
        let (now, most) = held.get();
        held.set((now + by, most.max(now + by)));
    });
}

// An allocator cannot be written without. A larger place for the same thing is asked for as a new one, so that both count, as
// they do when it has to move.
#[allow(unsafe_code)]
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        count(layout.size().cast_signed());
        unsafe { System.alloc(layout) }
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        count(layout.size().cast_signed());
        unsafe { System.alloc_zeroed(layout) }
    }

    unsafe fn dealloc(&self, place: *mut u8, layout: Layout) {
        count(-layout.size().cast_signed());
        unsafe { System.dealloc(place, layout) }
    }
}

/// The work's result, and how many bytes more than before it held at its most.
pub fn peak_of<T>(work: impl FnOnce() -> T) -> (T, usize) {
    let before = HELD.with(|held| {
        let (now, _) = held.get();
        held.set((now, now));
        now
    });
    let result = work();
    let (_, most) = HELD.with(Cell::get);
    (result, (most - before).unsigned_abs())
}

#[test]
fn the_most_that_was_held_is_counted() {
    let (kept, peak) = peak_of(|| {
        drop(vec![1_u8; 1 << 20]);
        vec![1_u8; 1 << 10]
    });
    assert_eq!(kept.len(), 1 << 10);
    assert_eq!(peak, 1 << 20);
}
