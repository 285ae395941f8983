//! The exports that a program of `motet run --files` sees, as its environment says.

use std::fmt;

use serde::{Deserialize, Serialize};

use crate::procfs;

/// The variable in which `motet run --files` notes them, for `motet ps` and `motet why`: a list in JSON.
pub const USES_VARIABLE: &str = "MOTET_FILES_USES";
/// No more of them are shown for one process.
const MAX_USES: usize = 64;

/// How an export appears to a program.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(rename_all = "lowercase")]
pub enum Way {
    /// The preload object changes paths.
    Preload,
    /// The directory is mounted again, for the program only.
    Bind,
    /// A process serves a mount, for the program only.
    Fuse,
}

/// An export that a program sees.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct Use {
    /// The export: NAME or HOST:NAME.
    pub export: String,
    /// Where it appears.
    pub at: String,
    /// How.
    pub way: Way,
    /// Why so.
    pub why: String,
}

impl Use {
    /// Reads the variable's value; what makes no sense is left out.
    pub fn parse(text: &str) -> Vec<Self> {
        let mut uses: Vec<Self> = serde_json::from_str(text).unwrap_or_default();
        uses.truncate(MAX_USES);
        uses
    }

    /// Those of a process.
    pub fn of(pid: u32) -> Vec<Self> {
        procfs::variable(pid, USES_VARIABLE).map(|text| Self::parse(&text)).unwrap_or_default()
    }
}

impl fmt::Display for Use {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { export, at, way, why } = self;
        let how = match way {
            Way::Preload => "by preload",
            Way::Bind => "its directory, mounted for this program only",
            Way::Fuse => "mounted by FUSE for this program only",
        };
        write!(f, "{at} is export {export}, {how}: {why}")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn uses_are_read_from_what_a_process_says() {
        let text = r#"[{"export":"results","at":"/mnt/r","way":"bind","why":"the program is static"}]"#;
        let uses = Use::parse(text);
        assert_eq!(serde_json::to_string(&uses).unwrap(), text);
        assert!(uses[0].to_string().starts_with("/mnt/r is export results, its directory"), "{}", uses[0]);
        for wrong in ["", "{}", r#"[{"export":1}]"#] {
            assert_eq!(Use::parse(wrong), []);
        }
        let many = format!("[{}]", [&text[1..text.len() - 1]; 100].join(","));
        assert_eq!(Use::parse(&many).len(), MAX_USES);
    }
}
