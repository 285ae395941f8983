//! The links of a node to the other members: one for each, which all circuits share.

use crate::error::Error;
use crate::turns::Turns;
use motet::node::{LinkId, Node, NodeId};
use motet::reason::Reason;
use motet_session::api::Member;
use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// The links.
#[derive(Debug, Default)]
pub struct Links {
    up: Mutex<HashMap<NodeId, LinkId>>,
    /// Taken while a link to a member is looked for or made: of two links one would have to be closed, and the peer may use it already.
    attempts: Turns<NodeId>,
}

impl Links {
    /// The link to a member: the one that is there, opened by either side, or a new one within this time.
    pub fn to(&self, node: &Node, member: &Member, limit: Duration) -> Result<LinkId, Error> {
        let id = id_of(member)?;
        let since = Instant::now();
        let Some(_turn) = self.attempts.take(id, limit) else { return Err(Error::TimedOut) };
        let is_up =
            |link: LinkId, of: NodeId| node.link_info(link).is_ok_and(|info| info.gone.is_none() && info.peer == of);
        let known = self.lock().get(&id).copied().filter(|link| is_up(*link, id));
        if let Some(link) = known {
            return Ok(link);
        }
        let link = match node.links()?.into_iter().find(|link| is_up(*link, id)) {
            Some(link) => link,
            None => {
                let link = node.connect(&member.address, Some(limit.saturating_sub(since.elapsed())))?;
                // A node of another container may have the same name under which this one was looked for.
                if node.link_info(link)?.peer != id {
                    let _ = node.disconnect(link);
                    return Err(Error::Node(motet::node::Error::Unreachable(Reason::NO_SUCH_NODE)));
                }
                link
            }
        };
        let mut up = self.lock();
        // Nothing is kept of members that have gone.
        up.retain(|peer, link| is_up(*link, *peer));
        up.insert(id, link);
        Ok(link)
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<NodeId, LinkId>> {
        self.up.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The identity of a member, for the engine.
pub fn id_of(member: &Member) -> Result<NodeId, Error> {
    let number = u128::from_str_radix(&member.node, 16);
    number.map(|number| NodeId(number.to_be_bytes())).map_err(|_| Error::Invalid("a member has no identity".to_owned()))
}
