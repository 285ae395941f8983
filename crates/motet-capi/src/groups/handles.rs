//! Memberships, groups and circuits by handle ([`crate::objects`]). Each object pins its node.

use crate::messages::Errno;
use crate::objects::{self, Kind};
use motet_group::{Circuit, EndPoint, Group, Membership};
use std::sync::Arc;

pub use crate::pin::Pin;

/// An object of the program, with its node. The object is dropped first.
pub struct Pinned<T> {
    pub object: T,
    pub pin: Pin,
}

crate::objects::kinds! {
    Pinned<Membership>, memberships;
    Pinned<Group>, groups;
    Pinned<Circuit>, circuits;
    Pinned<EndPoint>, end_points;
}

/// Adds an object and returns its handle.
pub fn insert<T>(object: T, pin: Pin) -> Result<u64, Errno>
where
    Pinned<T>: Kind,
{
    objects::insert(Pinned { object, pin })
}

/// The object of a handle, which may be any number.
pub fn find<T>(handle: u64) -> Result<Arc<Pinned<T>>, Errno>
where
    Pinned<T>: Kind,
{
    objects::find(handle)
}

/// Takes the object of a handle out. It ends when no other thread is in a call on it.
pub fn remove<T>(handle: u64) -> Result<Arc<Pinned<T>>, Errno>
where
    Pinned<T>: Kind,
{
    objects::remove_if(handle, |_| Ok(()))
}
