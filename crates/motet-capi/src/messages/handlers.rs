//! The program's functions that the engine calls: message handlers and deferred work.

use super::abi::{self, RawArrival};
use super::node_handles::{enter, in_handler, run_handler};
use super::receive::{forget, take};
use super::{EINVAL, call, channel_handle, errno, number};
use crate::user_pointer::UserPointer;
use motet_api::node::{Body, Message, Serve};
use motet_engine::message::{Handler, Node, Task};
use motet_proto::message::UnexpectedMessage;
use motet_proto::message::slab;
use motet_sys::thread;
use std::ffi::c_void;
use std::ptr;
use std::sync::Arc;

/// The type `motet_message_handler`.
pub type Function = unsafe extern "C" fn(node: u64, arrival: *const RawArrival, user: *mut c_void) -> i32;
/// The function that `motet_node_defer` takes.
pub type Work = unsafe extern "C" fn(node: u64, user: *mut c_void);

/// Time between two checks of `motet_handler_free` for a thread that still runs the handler, ns.
const FREE_POLL_NS: u64 = 50_000;

/// A handler of the program, and its node.
struct RegisteredHandler {
    node: u64,
    function: Function,
    user: UserPointer,
}

impl RegisteredHandler {
    /// Runs the function; returns whether it keeps the message.
    fn run(&self, message: &Message<'_>, body: &[u8], length: u64, number: u64) -> bool {
        let arrival = RawArrival {
            size: size_of::<RawArrival>(),
            channel: channel_handle(message.channel),
            tag: message.tag,
            headers: message.headers.as_ptr(),
            headers_length: message.headers.len(),
            body: if number == 0 { body.as_ptr() } else { ptr::null() },
            length: length as usize,
            message: number,
        };
        // SAFETY: `motet.h` says what the function may rely on, and the arrival stays for the call.
        run_handler(|| unsafe { (self.function)(self.node, &raw const arrival, self.user.pointer()) != 0 })
    }

    /// Runs the function for a message whose body has not arrived. The message has a handle during the call, and longer if the function keeps it.
    fn run_long(&self, message: &Message<'_>, held: UnexpectedMessage) -> Option<UnexpectedMessage> {
        let Ok(entered) = enter(self.node) else { return Some(held) };
        let length = held.length;
        let mut messages = entered.messages();
        if messages.count() >= slab::MAX_RECORDS {
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

impl Handler for RegisteredHandler {
    fn message(&self, _: &Node, mut message: Message<'_>) {
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

/// Deferred work as a task of the engine.
pub fn task(node: u64, function: Work, user: *mut c_void) -> Task {
    let user = UserPointer(user);
    // SAFETY: `motet.h` says what the function may rely on.
    Box::new(move |_| unsafe { function(node, user.pointer()) })
}

/// # Safety
/// The caller keeps what `motet.h` requires.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn motet_handler_new(
    node: u64,
    function: Option<Function>,
    user: *mut c_void,
    out: *mut u64,
) -> i32 {
    call(|| {
        // SAFETY: the caller's promise.
        unsafe { abi::write_handle(out, 0) }?;
        let entered = enter(node)?;
        let registered =
            Arc::new(RegisteredHandler { node, function: function.ok_or(EINVAL)?, user: UserPointer(user) });
        let known = Arc::downgrade(&registered);
        let Serve::Handler(handler) = entered.node.handler(registered).map_err(errno)? else { return Err(EINVAL) };
        entered.handlers().insert(handler, known);
        // SAFETY: as above.
        unsafe { abi::write_handle(out, handler.into()) }.map(|()| 0)
    })
}

#[unsafe(no_mangle)]
pub extern "C" fn motet_handler_free(node: u64, handler: u64) -> i32 {
    call(|| {
        let (entered, handler) = (enter(node)?, number(handler)?);
        entered.node.remove_handler(handler).map_err(errno)?;
        let known = entered.handlers().remove(&handler);
        // The engine has dropped the handler; a thread that runs it has not.
        while !in_handler() && known.as_ref().is_some_and(|known| known.strong_count() > 0) {
            thread::sleep_ns(FREE_POLL_NS);
        }
        Ok(0)
    })
}
