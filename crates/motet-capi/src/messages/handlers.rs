//! Functions of the program's that the engine calls: for messages as they come, and for work put off.

use super::abi::{self, Arrival};
use super::node_handles::{enter, handling, is_handling};
use super::receive::{forget, take};
use super::{EINVAL, call, channel_handle, errno, number};
use motet_api::node::{Body, Handler, Inner, Message, Serve, Task};
use motet_proto::message::Held;
use motet_proto::message::slab;
use motet_sys::thread;
use std::ffi::c_void;
use std::ptr;
use std::sync::Arc;

/// motet_handle_message.
pub type Function = unsafe extern "C" fn(node: u64, arrival: *const Arrival, user: *mut c_void) -> i32;
/// What motet_node_defer takes.
pub type Work = unsafe extern "C" fn(node: u64, user: *mut c_void);

/// Between two looks of whoever waits for a handler to end, ns.
const NAP: u64 = 50_000;

/// The program's word, which it alone understands.
struct User(*mut c_void);

// SAFETY: it is handed back as it came and never followed; `motet.h` says in which threads functions run.
unsafe impl Send for User {}
// SAFETY: as above.
unsafe impl Sync for User {}

impl User {
    fn pointer(&self) -> *mut c_void {
        self.0
    }
}

/// A function of the program's, and its node.
pub struct Registered {
    node: u64,
    function: Function,
    user: User,
}

impl Registered {
    /// Runs the function; what it returns.
    fn run(&self, message: &Message<'_>, body: &[u8], length: u64, number: u64) -> bool {
        let arrival = Arrival {
            size: size_of::<Arrival>(),
            channel: channel_handle(message.channel),
            tag: message.tag,
            headers: message.headers.as_ptr(),
            headers_length: message.headers.len(),
            body: if number == 0 { body.as_ptr() } else { ptr::null() },
            length: length as usize,
            message: number,
        };
        // SAFETY: `motet.h` says what the function may rely on, and the arrival stays for the call.
        handling(|| unsafe { (self.function)(self.node, &raw const arrival, self.user.pointer()) != 0 })
    }

    /// One whose body is to come: it has a number for the time of the call, and longer if the program wants that.
    fn run_long(&self, message: &Message<'_>, held: Held) -> Option<Held> {
        let Ok(entered) = enter(self.node) else { return Some(held) };
        let length = held.length;
        let mut messages = entered.messages();
        if messages.count() >= slab::MOST {
            return Some(held);
        }
        let number = messages.insert(Some(held))?;
        drop(messages);
        let kept = self.run(message, &[], length, number.0.into());
        if kept {
            return None;
        }
        let left = take(&entered, number).ok()?;
        forget(&entered, number);
        Some(left)
    }
}

impl Handler for Registered {
    fn message(&self, _: &Inner, mut message: Message<'_>) {
        match std::mem::replace(&mut message.body, Body::Whole(&[])) {
            Body::Whole(body) => {
                self.run(&message, body, body.len() as u64, 0);
            }
            Body::Long(body) => {
                if let Some(held) = body.take() {
                    *body = self.run_long(&message, held);
                }
            }
        }
    }
}

/// Work put off, as the engine wants it.
pub fn task(node: u64, function: Work, user: *mut c_void) -> Task {
    let user = User(user);
    // SAFETY: `motet.h` says what the function may rely on.
    Box::new(move |_| unsafe { function(node, user.pointer()) })
}

/// # Safety
/// See `motet.h`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn motet_handler_new(
    node: u64,
    function: Option<Function>,
    user: *mut c_void,
    out: *mut u64,
) -> i32 {
    call(|| {
        // SAFETY: the caller's promise.
        unsafe { abi::put(out, 0) }?;
        let entered = enter(node)?;
        let registered = Arc::new(Registered { node, function: function.ok_or(EINVAL)?, user: User(user) });
        let known = Arc::downgrade(&registered);
        let Serve::Handler(handler) = entered.node.handler(registered).map_err(errno)? else { return Err(EINVAL) };
        entered.handlers().insert(handler, known);
        // SAFETY: as above.
        unsafe { abi::put(out, handler.into()) }.map(|()| 0)
    })
}

#[unsafe(no_mangle)]
pub extern "C" fn motet_handler_free(node: u64, handler: u64) -> i32 {
    call(|| {
        let (entered, handler) = (enter(node)?, number(handler)?);
        entered.node.remove_handler(handler).map_err(errno)?;
        let known = entered.handlers().remove(&handler);
        // The engine has let go of it; a thread that runs it has not.
        while !is_handling() && known.as_ref().is_some_and(|known| known.strong_count() > 0) {
            thread::nap(NAP);
        }
        Ok(0)
    })
}
