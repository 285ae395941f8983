//! Users: as whom a request is executed.
//!
//! A server of root executes a request with the user and the groups that its client names. Only root gets to such a server, and root's client is trusted
//! as NFS trusts one with AUTH_SYS. Any other server ignores what a client names, and executes all requests as its own user.
//!
//! A thread takes the *effective* user and groups of a request. With an effective user other than root the kernel removes all capabilities
//! (capabilities(7)), so permissions, ownership, quotas and reserved space are those of that user. Real and saved user stay root's: the user can neither
//! signal nor trace the server, and the thread can go back. The process writes no core dumps from the first time on (prctl(2), PR_SET_DUMPABLE).

use crate::Result;
use rustix::io::Errno;
use rustix::process::{Gid, Uid, getegid, geteuid, getgroups, getuid};
use rustix::thread::{
    CapabilitySet, CapabilitySets, capabilities, set_capabilities, set_thread_groups, set_thread_res_gid,
    set_thread_res_uid,
};
use serde::de::{Error as _, SeqAccess, Visitor};
use serde::{Deserialize, Deserializer, Serialize};
use std::fmt;
use std::fs;
use std::marker::PhantomData;
use std::thread;

/// Supplementary groups of an identity. None is left out, which could give permissions where a group has fewer than others: a user with more is refused.
pub const MAX_GROUPS: usize = 1024;
/// A user and group without rights, to try with: those that files of unknown owners have on Linux (`/proc/sys/kernel/overflowuid`).
const WITHOUT_RIGHTS: u32 = 65_534;
/// The number that stands for "no change" in system calls, so that no user and no group has it.
const NO_ID: u32 = u32::MAX;

/// A user, with the groups that a process of it has.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Identity {
    /// The user.
    pub user: u32,
    /// The group that new files belong to.
    pub group: u32,
    /// Supplementary groups, at most [`MAX_GROUPS`].
    #[serde(deserialize_with = "few")]
    pub groups: Vec<u32>,
}

impl Identity {
    /// The identity of a thread of this host that waits for a system call, with the supplementary groups that it has. They are left out if `/proc` does not show
    /// the thread, and for root, who needs none. A user with more than [`MAX_GROUPS`] is one without rights.
    pub fn of_thread(user: u32, group: u32, thread: u32) -> Self {
        let groups = if user == 0 || thread == 0 { Vec::new() } else { supplementary_groups(thread) };
        if groups.len() > MAX_GROUPS {
            return Self { user: WITHOUT_RIGHTS, group: WITHOUT_RIGHTS, groups: Vec::new() };
        }
        Self { user, group, groups }
    }
}

fn supplementary_groups(thread: u32) -> Vec<u32> {
    let Ok(status) = fs::read_to_string(format!("/proc/{thread}/status")) else { return Vec::new() };
    let line = status.lines().find_map(|line| line.strip_prefix("Groups:")).unwrap_or_default();
    line.split_whitespace().filter_map(|group| group.parse().ok()).take(MAX_GROUPS + 1).collect()
}

/// Reads at most [`MAX_GROUPS`] groups.
fn few<'de, D: Deserializer<'de>>(deserializer: D) -> std::result::Result<Vec<u32>, D::Error> {
    struct Few;
    impl<'de> Visitor<'de> for Few {
        type Value = Vec<u32>;

        fn expecting(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
            write!(formatter, "at most {MAX_GROUPS} groups")
        }

        fn visit_seq<A: SeqAccess<'de>>(self, mut sequence: A) -> std::result::Result<Vec<u32>, A::Error> {
            let mut groups = Vec::new();
            while let Some(group) = sequence.next_element()? {
                if groups.len() == MAX_GROUPS {
                    return Err(A::Error::custom("too many groups"));
                }
                groups.push(group);
            }
            Ok(groups)
        }
    }
    deserializer.deserialize_seq(Few)
}

/// The ability of this process to take identities: that of root with its capabilities.
#[derive(Debug)]
pub struct Identities {
    group: Gid,
    groups: Vec<Gid>,
}

/// The identity that a thread has taken. Dropping it gives the thread its own one back.
#[derive(Debug)]
#[must_use = "the thread has the identity as long as this exists"]
pub struct Assumed<'a> {
    own: &'a Identities,
    /// A thread gives back what it has taken itself.
    _thread: PhantomData<*const ()>,
}

impl Identities {
    /// `None`: this process is not root's, or it may not take identities, or capabilities would stay with one that it takes.
    pub fn find() -> Option<Self> {
        if !getuid().is_root() || !geteuid().is_root() {
            return None;
        }
        let own = Self { group: getegid(), groups: getgroups().ok()? };
        // In a thread of its own, which a failure ends.
        let works = thread::scope(|scope| scope.spawn(|| own.works()).join()).unwrap_or(false);
        works.then_some(own)
    }

    fn works(&self) -> bool {
        let effective = || capabilities(None).map(|sets| sets.effective);
        let Ok(before) = effective() else { return false };
        let other = Identity { user: WITHOUT_RIGHTS, group: WITHOUT_RIGHTS, groups: Vec::new() };
        let Ok(assumed) = self.assume(&other) else { return false };
        let is_other = geteuid().as_raw() == WITHOUT_RIGHTS && getegid().as_raw() == WITHOUT_RIGHTS;
        let is_bare = is_other && effective() == Ok(CapabilitySet::empty());
        drop(assumed);
        is_bare && effective() == Ok(before)
    }

    /// Whether this is what the process is anyway.
    pub fn is_own(&self, identity: &Identity) -> bool {
        identity.user == 0 && identity.group == self.group.as_raw()
    }

    /// Gives this thread an identity. EPERM: there is no such user or group in this process's user namespace.
    pub fn assume(&self, identity: &Identity) -> Result<Assumed<'_>> {
        let Identity { user, group, groups } = identity;
        if [user, group].into_iter().chain(groups).any(|&id| id == NO_ID) {
            return Err(Errno::PERM.into());
        }
        // From here on any failure gives the thread its own identity back.
        let assumed = Assumed { own: self, _thread: PhantomData };
        let groups: Vec<_> = groups.iter().copied().map(Gid::from_raw).collect();
        set_thread_groups(&groups).map_err(|_| Errno::PERM)?;
        set_thread_res_gid(None, Gid::from_raw(*group), None).map_err(|_| Errno::PERM)?;
        set_thread_res_uid(None, Uid::from_raw(*user), None).map_err(|_| Errno::PERM)?;
        Ok(assumed)
    }
}

impl Assumed<'_> {
    /// Takes CAP_SYS_ADMIN besides, and no other capability: to register a file by which the kernel reads and writes as this user. Root keeps all that it has:
    /// without the others it could not take its groups back.
    pub fn with_administration(&self) -> Result<()> {
        if geteuid().is_root() {
            return Ok(());
        }
        let sets = capabilities(None)?;
        Ok(set_capabilities(None, CapabilitySets { effective: CapabilitySet::SYS_ADMIN, ..sets })?)
    }
}

impl Drop for Assumed<'_> {
    fn drop(&mut self) {
        let restored = set_thread_res_uid(None, Uid::ROOT, None)
            .and_then(|()| set_thread_res_gid(None, self.own.group, None))
            .and_then(|()| set_thread_groups(&self.own.groups));
        if restored.is_err() {
            // The kernel allows a thread to go back to its real user. One that cannot must not execute what comes next.
            std::process::abort();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::protocol::append;
    use std::panic::{AssertUnwindSafe, catch_unwind};

    fn effective() -> (u32, u32, Vec<Gid>, CapabilitySet) {
        let sets = capabilities(None).expect("capabilities");
        (geteuid().as_raw(), getegid().as_raw(), getgroups().expect("groups"), sets.effective)
    }

    #[test]
    fn groups_are_bounded() {
        let of = |count: u32| Identity { user: 1, group: 2, groups: (0..count).collect() };
        let most = u32::try_from(MAX_GROUPS).expect("a number");
        for (count, accepted) in [(0, true), (most, true), (most + 1, false), (2 * most, false)] {
            let mut bytes = Vec::new();
            append(&of(count), &mut bytes);
            let parsed = postcard::from_bytes::<Identity>(&bytes).ok();
            assert_eq!(parsed, accepted.then(|| of(count)), "{count} groups");
        }
        // A length without groups.
        assert!(postcard::from_bytes::<Identity>(&[1, 2, 0xff, 0xff, 0xff, 0xff, 0x0f]).is_err());
    }

    #[test]
    fn a_thread_has_its_own_identity_again_after_a_panic_and_after_a_refusal() {
        let Some(identities) = Identities::find() else {
            eprintln!("SKIPPED: not root with the capabilities to take identities");
            return;
        };
        let before = effective();
        let user = Identity { user: 1000, group: 1001, groups: vec![7, 8] };
        let panicked = catch_unwind(AssertUnwindSafe(|| {
            let _assumed = identities.assume(&user).expect("the identity");
            let groups = vec![Gid::from_raw(7), Gid::from_raw(8)];
            assert_eq!(effective(), (1000, 1001, groups, CapabilitySet::empty()));
            std::panic::resume_unwind(Box::new("a request that panics"));
        }));
        assert!(panicked.is_err());
        assert_eq!(effective(), before);
        for (user, group) in [(NO_ID, 1), (1, NO_ID)] {
            let refused = identities.assume(&Identity { user, group, groups: Vec::new() }).map(drop);
            assert_eq!(refused.expect_err("refused").raw_os_error(), Some(Errno::PERM.raw_os_error()));
            assert_eq!(effective(), before);
        }
        let assumed = identities.assume(&user).expect("the identity");
        assumed.with_administration().expect("the capability");
        assert_eq!((effective().0, effective().3), (1000, CapabilitySet::SYS_ADMIN));
        drop(assumed);
        assert_eq!(effective(), before);
        // Root in another group.
        let assumed = identities.assume(&Identity { user: 0, group: 1001, groups: vec![7] }).expect("the identity");
        assumed.with_administration().expect("the capability");
        assert_eq!((effective().0, effective().1), (0, 1001));
        assert!(effective().3.contains(CapabilitySet::SYS_ADMIN));
        drop(assumed);
        assert_eq!(effective(), before);
    }

    #[test]
    fn the_groups_of_a_thread_are_those_that_the_system_says() {
        let own = getgroups().expect("groups").into_iter().map(Gid::as_raw).take(MAX_GROUPS).collect::<Vec<_>>();
        let thread = rustix::thread::gettid().as_raw_nonzero().get().cast_unsigned();
        assert_eq!(Identity::of_thread(1000, 1000, thread).groups, own);
        assert!(Identity::of_thread(0, 0, thread).groups.is_empty());
        assert!(Identity::of_thread(1000, 1000, u32::MAX).groups.is_empty());
    }
}
