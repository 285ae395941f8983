//! What is mounted where, as /proc/self/mountinfo says.

use std::ffi::OsString;
use std::fs;
use std::os::unix::ffi::OsStringExt;
use std::path::{Path, PathBuf};

/// The directories in a text of the kind of /proc/self/mountinfo on which something is mounted.
pub fn mount_points(text: &[u8]) -> impl Iterator<Item = PathBuf> {
    text.split(|byte| *byte == b'\n').filter_map(|line| {
        let field = line.split(|byte| *byte == b' ').nth(4)?;
        let mut path = Vec::with_capacity(field.len());
        let mut rest = field;
        while let [first, others @ ..] = rest {
            let digits =
                others.get(..3).filter(|digits| *first == b'\\' && digits.iter().all(|d| (b'0'..b'8').contains(d)));
            path.push(digits.map_or(*first, |digits| digits.iter().fold(0, |byte, d| byte << 3 | (d - b'0'))));
            rest = if digits.is_some() { &others[3..] } else { others };
        }
        Some(OsString::from_vec(path).into())
    })
}

/// Whether what is mounted at this path, and seen there, is a mount of an export.
pub fn is_mount_of_export(at: &Path) -> std::io::Result<bool> {
    let mounts = fs::read("/proc/self/mountinfo")?;
    let there = mounts.split(|byte| *byte == b'\n').rfind(|line| mount_points(line).next().as_deref() == Some(at));
    let kind = b" - fuse.motet ";
    Ok(there.is_some_and(|line| line.windows(kind.len()).any(|part| part == kind)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mount_points_are_unescaped() {
        let text = b"29 1 0:26 / / rw - ext4 /dev/x rw\n30 29 0:27 /a /mnt/a\\040b rw,nosuid shared:2 - tmpfs t rw\n\n";
        assert_eq!(mount_points(text).collect::<Vec<_>>(), [PathBuf::from("/"), "/mnt/a b".into()]);
        assert_eq!(mount_points(b"1 2 3 4 /a\\04").collect::<Vec<_>>(), [PathBuf::from("/a\\04")]);
        assert_eq!(mount_points(b"1 2 3 4 /a\\999\\").count(), 1);
    }
}
