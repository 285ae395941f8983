//! The engine's memory: the C library's, but in signal handlers.
//!
//! A handler may have interrupted malloc(), whose locks and lists are then in any state. The engine itself is never interrupted by one
//! ([`motet_sys::signal_handlers`]), so what it needs in a handler is mapped, piece by piece, and what it gives back there waits for a call
//! that is not made in one. Both are rare: the way of a message allocates nothing.

use std::alloc::{GlobalAlloc, Layout, System};
use std::ptr::null_mut;
use std::sync::atomic::{
    AtomicPtr, AtomicUsize, Ordering::AcqRel, Ordering::Acquire, Ordering::Relaxed, Ordering::Release,
};

struct Memory;

#[global_allocator]
static MEMORY: Memory = Memory;

/// Pieces that were mapped in handlers and are in use: their addresses.
static MAPPED: [AtomicUsize; 256] = [const { AtomicUsize::new(0) }; 256];
static COUNT: AtomicUsize = AtomicUsize::new(0);
/// Blocks of the C library's that handlers gave back: each holds the address of the next.
static LATER: AtomicPtr<u8> = AtomicPtr::new(null_mut());
const PAGE: usize = 4096;

// SAFETY: `System` serves all, but blocks that were mapped: those are whole pages of their own, noted until they are given back.
unsafe impl GlobalAlloc for Memory {
    #[inline]
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        if motet_sys::signal_handlers::inside() {
            return map(layout);
        }
        if !LATER.load(Relaxed).is_null() {
            free_later_ones();
        }
        // SAFETY: the caller's promise.
        unsafe { System.alloc(roomy(layout)) }
    }

    #[inline]
    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        if motet_sys::signal_handlers::inside() {
            return map(layout); // pages come with zeros
        }
        // SAFETY: the caller's promise.
        unsafe { System.alloc_zeroed(roomy(layout)) }
    }

    unsafe fn realloc(&self, block: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        // SAFETY: the caller's promise, which both pass on.
        unsafe {
            let larger = Layout::from_size_align_unchecked(size, layout.align());
            if COUNT.load(Relaxed) == 0 && !motet_sys::signal_handlers::inside() {
                return System.realloc(block, layout, roomy(larger).size());
            }
            let moved = self.alloc(larger);
            if !moved.is_null() {
                std::ptr::copy_nonoverlapping(block, moved, layout.size().min(size));
                self.dealloc(block, layout);
            }
            moved
        }
    }

    #[inline]
    unsafe fn dealloc(&self, block: *mut u8, layout: Layout) {
        if COUNT.load(Relaxed) > 0 && unmap(block, layout) {
            return;
        }
        if motet_sys::signal_handlers::inside() {
            free_later(block);
            return;
        }
        // SAFETY: the caller's promise: `alloc` had it from `System`, which does not ask for the size.
        unsafe { System.dealloc(block, layout) }
    }
}

/// With room for the address that `dealloc` may put there.
#[inline]
fn roomy(layout: Layout) -> Layout {
    let size = layout.size().max(size_of::<*mut u8>());
    // SAFETY: the alignment is one already, and the size is larger by 7 at most where it is less than 8.
    unsafe { Layout::from_size_align_unchecked(size, layout.align()) }
}

fn pages(layout: Layout) -> usize {
    layout.size().max(1).next_multiple_of(PAGE)
}

/// A block of whole pages.
#[cold]
fn map(layout: Layout) -> *mut u8 {
    if layout.align() > PAGE {
        return null_mut();
    }
    let Some(place) = MAPPED.iter().find(|place| place.compare_exchange(0, 1, Acquire, Relaxed).is_ok()) else {
        return null_mut();
    };
    let block = motet_sys::memory::anonymous(pages(layout)).unwrap_or(null_mut());
    place.store(block as usize, Release);
    if !block.is_null() {
        COUNT.fetch_add(1, AcqRel);
    }
    block
}

/// Whether the block was mapped; then it is no more.
#[cold]
fn unmap(block: *mut u8, layout: Layout) -> bool {
    let Some(place) = MAPPED.iter().find(|place| place.load(Acquire) == block as usize) else { return false };
    // SAFETY: it was mapped with this length, and its owner gives it back.
    unsafe { motet_sys::memory::give_up_anonymous(block, pages(layout)) };
    place.store(0, Release);
    COUNT.fetch_sub(1, AcqRel);
    true
}

#[cold]
fn free_later(block: *mut u8) {
    let mut next = LATER.load(Relaxed);
    loop {
        // SAFETY: the block is ours, aligned for malloc() and has room for an address.
        unsafe { block.cast::<*mut u8>().write_unaligned(next) };
        match LATER.compare_exchange_weak(next, block, Release, Relaxed) {
            Ok(_) => return,
            Err(now) => next = now,
        }
    }
}

#[cold]
fn free_later_ones() {
    let mut block = LATER.swap(null_mut(), AcqRel);
    while !block.is_null() {
        // SAFETY: `free_later` put the address there; the C library's free() does not ask for the layout.
        unsafe {
            let next = block.cast::<*mut u8>().read_unaligned();
            System.dealloc(block, Layout::new::<*mut u8>());
            block = next;
        }
    }
}
