//! Gathering: a packet of a head, headers and a body in parts, passed to the transport as one list of parts.

use super::Packets;
use super::packet::Kind;

/// Parts of a packet that are gathered without an allocation.
const MAX_INLINE_PARTS: usize = 16;

/// Sends a packet of a head, headers and a gathered body.
#[inline(always)]
pub(super) fn put<P: Packets + ?Sized>(
    packets: &mut P,
    kind: Kind,
    head: &[u8],
    headers: &[u8],
    body: &[&[u8]],
) -> bool {
    let mut parts: [&[u8]; MAX_INLINE_PARTS] = [&[]; MAX_INLINE_PARTS];
    let Some(rest) = parts.get_mut(2..2 + body.len()) else { return put_many(packets, kind, head, headers, body) };
    rest.copy_from_slice(body);
    (parts[0], parts[1]) = (head, headers);
    packets.put(kind as u8, &parts[..2 + body.len()])
}

/// Sends a packet of more than [`MAX_INLINE_PARTS`] parts.
#[cold]
fn put_many<P: Packets + ?Sized>(packets: &mut P, kind: Kind, head: &[u8], headers: &[u8], body: &[&[u8]]) -> bool {
    let parts: Vec<&[u8]> = [head, headers].into_iter().chain(body.iter().copied()).collect();
    packets.put(kind as u8, &parts)
}

/// Sends a packet of a head, headers and the first `length` bytes of a body.
pub(super) fn put_front<P: Packets>(
    packets: &mut P,
    kind: Kind,
    head: &[u8],
    headers: &[u8],
    body: &[&[u8]],
    mut length: usize,
) -> bool {
    let mut parts = vec![head, headers];
    for part in body {
        let fits = part.len().min(length);
        parts.push(&part[..fits]);
        length -= fits;
    }
    packets.put(kind as u8, &parts)
}
