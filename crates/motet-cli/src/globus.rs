//! Sets up programs of the Globus toolkit that `motet run` starts.
//!
//! XIO, the I/O library of Globus, loads its drivers by name from LD_LIBRARY_PATH; Motet's folder is put in front of it. A GridFTP server allows drivers by no
//! environment variable, so its command gets an option that allows `motet` to clients that ask for it. The default stack stays `tcp`, whose sockets the sockets
//! adapter serves as fast, with all attributes of `tcp` (ADR 49).
//!
//! What it is not: a change for a user who chooses. A server whose command or configuration names drivers of data channels keeps its own.

use std::ffi::{OsStr, OsString};
use std::path::{Path, PathBuf};
use std::process::Command;

/// The server's options, as on its command line, and in a configuration file.
const WHITE_LIST: (&str, &str) = ("dc-whitelist", "dc_whitelist");
const DEFAULT_STACK: (&str, &str) = ("dc-default", "dc_default");
/// The drivers that clients may ask for: the server's own default, and Motet's.
const ALLOWED: &str = "motet,tcp,gsi";
const SERVER: &str = "globus-gridftp-server";
/// Where the server looks for its configuration if its command names none.
const CONFIGURATION: [&str; 2] = ["/etc/gridftp.conf", "/etc/grid-security/gridftp.conf"];
const CONFIGURATION_FOLDER: &str = "/etc/gridftp.d";
const LIBRARY_PATH: &str = "LD_LIBRARY_PATH";

/// Sets up a command whose program is in `file`. `driver`: the folder of the driver, if it is built. Returns a line that says what was done; `None`: the
/// program is none of Globus.
pub fn configure(command: &mut Command, driver: Option<&Path>, file: &Path, words: &[OsString]) -> Option<String> {
    let name = file.file_name().and_then(OsStr::to_str).filter(|name| name.starts_with("globus-"))?;
    let Some(driver) = driver else {
        return Some("Globus uses the sockets adapter: the driver of XIO is not built (libglobus-xio-dev)".to_owned());
    };
    command.env(LIBRARY_PATH, library_path(driver, std::env::var_os(LIBRARY_PATH).as_deref()));
    if name != SERVER {
        return Some(format!("Globus XIO finds the driver motet in {}", driver.display()));
    }
    if let Some(whose) = chosen(words) {
        return Some(format!("GridFTP keeps its own data channel, which {whose} chooses; {SERVER} can load motet"));
    }
    let options = [format!("-{}", WHITE_LIST.0), ALLOWED.into()];
    command.args(&options);
    let added = options.join(" ");
    Some(format!(
        "GridFTP: the sockets adapter serves data channels, clients may ask for the driver motet in {}: added {added}",
        driver.display()
    ))
}

/// Motet's folder in front of the user's.
fn library_path(driver: &Path, user: Option<&OsStr>) -> OsString {
    let users = user
        .map(std::env::split_paths)
        .into_iter()
        .flatten()
        .filter(|folder| folder != driver && !folder.as_os_str().is_empty());
    // A folder with a colon is refused when the libraries are searched.
    std::env::join_paths(std::iter::once(driver.to_owned()).chain(users)).unwrap_or_else(|_| driver.into())
}

/// Who has chosen drivers of data channels, if anybody.
fn chosen(words: &[OsString]) -> Option<String> {
    let given = |name: &str| words.iter().skip(1).any(|word| is_option(word, name));
    if given(WHITE_LIST.0) || given(DEFAULT_STACK.0) {
        return Some("the command".to_owned());
    }
    configurations(words).into_iter().find(|file| chooses(file)).map(|file| file.display().to_string())
}

/// Whether a word is `-NAME` or `--NAME`.
fn is_option(word: &OsStr, name: &str) -> bool {
    word.to_str().and_then(|word| word.strip_prefix("--").or_else(|| word.strip_prefix('-'))) == Some(name)
}

/// The configuration files that the server will read.
fn configurations(words: &[OsString]) -> Vec<PathBuf> {
    let value =
        |name| words.iter().position(|word| is_option(word, name)).and_then(|at| words.get(at + 1)).map(PathBuf::from);
    let mut files = match value("c") {
        Some(file) => vec![file],
        None => CONFIGURATION.map(PathBuf::from).into(),
    };
    let folder = value("C").unwrap_or_else(|| CONFIGURATION_FOLDER.into());
    files.extend(std::fs::read_dir(folder).into_iter().flatten().flatten().map(|entry| entry.path()));
    files
}

/// Whether a configuration file names one of the options.
fn chooses(file: &Path) -> bool {
    let text = std::fs::read_to_string(file).unwrap_or_default();
    names_an_option(&text)
}

fn names_an_option(text: &str) -> bool {
    let names = text.lines().filter_map(|line| line.split_whitespace().next());
    names.map(|name| name.trim_start_matches('$')).any(|name| name == WHITE_LIST.1 || name == DEFAULT_STACK.1)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn words(line: &str) -> Vec<OsString> {
        line.split(' ').map(OsString::from).collect()
    }

    fn added(line: &str) -> Vec<String> {
        let mut command = Command::new("true");
        configure(
            &mut command,
            Some(Path::new("/m/globus")),
            Path::new("/usr/sbin/globus-gridftp-server"),
            &words(line),
        );
        command.get_args().map(|word| word.to_string_lossy().into_owned()).collect()
    }

    #[test]
    fn a_server_allows_the_driver_unless_its_user_chooses() {
        let allowed = ["-dc-whitelist", "motet,tcp,gsi"];
        let none = "-C /nonexistent -c /nonexistent";
        assert_eq!(added(&format!("globus-gridftp-server -aa {none}")), allowed);
        for own in ["-dc-default tcp", "--dc-default tcp", "-dc-whitelist tcp"] {
            assert!(added(&format!("globus-gridftp-server {none} {own}")).is_empty(), "{own}");
        }
    }

    #[test]
    fn configuration_files_are_read() {
        assert!(names_an_option("# x\nport 2811\ndc_default tcp,gsi\n"));
        assert!(!names_an_option("port 2811\n#dc_default tcp\n"));
    }

    #[test]
    fn other_programs_get_the_path_or_nothing() {
        let mut command = Command::new("true");
        let driver = Some(Path::new("/m/globus"));
        assert!(configure(&mut command, driver, Path::new("/usr/bin/globus-url-copy"), &[]).is_some());
        assert_eq!(command.get_args().count(), 0);
        assert!(configure(&mut command, driver, Path::new("/usr/bin/curl"), &[]).is_none());
        let line = configure(&mut command, None, Path::new("/usr/sbin/globus-gridftp-server"), &[]);
        assert!(line.is_some_and(|line| line.contains("libglobus-xio-dev")) && command.get_args().count() == 0);
    }

    #[test]
    fn motets_folder_is_first_and_no_other_is_lost() {
        let ours = Path::new("/m/globus");
        assert_eq!(library_path(ours, None), "/m/globus");
        assert_eq!(library_path(ours, Some("/u/one:/m/globus:/u/two".as_ref())), "/m/globus:/u/one:/u/two");
    }
}
