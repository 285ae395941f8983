//! What a program wants to know of a member of an epoll set.

/// The events that the program wants for a stream's data.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Interest {
    /// No events.
    None,
    /// Level-triggered: as long as there is data.
    Level,
    /// Edge-triggered: when more data has arrived.
    Edge,
}
