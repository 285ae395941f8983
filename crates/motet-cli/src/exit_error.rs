//! Exit codes, and failures as one line of text.

use clap::error::ErrorKind;

/// The command failed.
pub const FAILED: u8 = 1;
/// Wrong options or settings.
pub const USAGE: u8 = 2;
/// No such process or peer.
pub const NOT_FOUND: u8 = 3;
/// Motet's libraries are missing or damaged.
pub const LIBRARIES: u8 = 70;
/// The command was found but cannot be executed; the shell's code.
pub const NOT_EXECUTABLE: u8 = 126;
/// The command was not found; the shell's code.
pub const NO_COMMAND: u8 = 127;

/// Every exit code with its meaning, for the manual.
pub const CODES: &[(&str, &str)] = &[
    ("0", "success"),
    ("1", "failed; `doctor`: something that shared memory needs is missing"),
    ("2", "wrong option, setting or driver name"),
    (
        "3",
        "no such process, peer, session, group, module, node, export or mount (`why`, `ps`, `groups`, `down`, `run --group`, `modules`, `export`, `mount`, `umount`, `nbd`)",
    ),
    ("70", "`run`: Motet's libraries are missing or damaged"),
    ("126", "`run`: the command cannot be executed"),
    ("127", "`run`: the command was not found"),
    ("other", "`run`: the command's own; it ends by the signal that ended the command"),
];

/// The exit codes as the last lines of `--help`.
pub const AFTER_HELP: &str = "Exit status: 0 success, 1 failed, 2 wrong option or setting, 3 no such process, peer or session, \
                              70 Motet's libraries are missing, 126 and 127 as in a shell; `run` returns the status of its command.";

/// A failure: an exit code, and the line after `motet: `.
#[derive(Debug)]
pub struct Failure {
    /// The exit code.
    pub code: u8,
    /// The text, one line.
    pub message: String,
}

/// The result of a command: an exit code, or a failure.
pub type Outcome<T = u8> = Result<T, Failure>;

impl Failure {
    /// A failure with an exit code and one line of text.
    pub fn new(code: u8, message: impl Into<String>) -> Self {
        Self { code, message: message.into() }
    }
}

impl From<motet_config::Problem> for Failure {
    fn from(problem: motet_config::Problem) -> Self {
        Self::new(USAGE, problem.to_string())
    }
}

/// The outcome of an error of clap: the requested help, or the error as one line.
pub fn usage(error: &clap::Error) -> Outcome {
    match error.kind() {
        ErrorKind::DisplayHelp | ErrorKind::DisplayVersion => {
            crate::output::text(&error.render().to_string())?;
            Ok(0)
        }
        ErrorKind::DisplayHelpOnMissingArgumentOrSubcommand => {
            motet_session::notes::raw(&error.render().to_string());
            Ok(USAGE)
        }
        _ => {
            let text = error.render().to_string();
            let lines: Vec<&str> = text.lines().take_while(|l| !l.starts_with("Usage:")).map(str::trim).collect();
            let said = lines.iter().filter(|l| !l.is_empty() && !l.starts_with("For more information"));
            let said = said.copied().collect::<Vec<_>>().join("; ");
            let said = said.strip_prefix("error: ").unwrap_or(&said).replace(":;", ":");
            Err(Failure::new(USAGE, format!("{said}; see --help")))
        }
    }
}
