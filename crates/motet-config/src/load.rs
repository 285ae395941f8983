//! Loads the settings: environment, then file, then the profile of this machine, then defaults.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::io;
use std::path::{Path, PathBuf};

use crate::config::Config;
use crate::file;
use crate::kind::{Mismatch, Value, size};
use crate::problem::{Problem, ValueSource, nearest};
use crate::profile::{self, Machine, ProfileLookup};
use crate::settings::{SETTINGS, Setting, VARIABLES};

/// Where settings are read from; a test makes its own.
pub struct Environment {
    /// The environment variables that concern settings.
    pub variables: BTreeMap<String, OsString>,
    /// Reads a file; `None` when there is none.
    pub read: fn(&Path) -> io::Result<Option<String>>,
    /// Reads a trusted profile; `None` when there is none.
    pub read_profile: fn(&Path) -> io::Result<Option<String>>,
    /// The machine on which a valid profile was measured.
    pub machine: fn() -> Machine,
    /// Whether this process runs as root.
    pub root: bool,
}

/// Where the value of a setting came from.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Origin {
    /// The value as it was written.
    pub text: String,
    /// `None` for the default.
    pub source: Option<ValueSource>,
}

/// The settings, and where each of them came from.
#[derive(Debug)]
pub struct Loaded {
    /// The settings themselves.
    pub config: Config,
    /// Wrong keys and values, which were ignored.
    pub problems: Vec<Problem>,
    /// One for each row of [`SETTINGS`].
    pub origins: Vec<Origin>,
    /// The file that was read.
    pub file: Option<PathBuf>,
    /// The profile, or the reason why it is not used.
    pub profile: ProfileLookup,
}

impl Config {
    /// Reads the environment and the file. Never fails: a wrong value stays at its default and is reported in the list.
    pub fn from_env() -> (Self, Vec<Problem>) {
        let loaded = Environment::of_this_process().load();
        (loaded.config, loaded.problems)
    }
}

impl Environment {
    /// This process's environment and files.
    pub fn of_this_process() -> Self {
        Self::with(std::env::vars_os())
    }

    /// These environment variables, and this process's files.
    pub fn with(variables: impl IntoIterator<Item = (OsString, OsString)>) -> Self {
        let ours =
            |name: &str| name.starts_with("MOTET_") || ["HOME", "XDG_CONFIG_HOME", "XDG_CACHE_HOME"].contains(&name);
        let variables = variables
            .into_iter()
            .filter_map(|(name, value)| Some((name.into_string().ok()?, value)))
            .filter(|(name, value)| ours(name) && !value.is_empty())
            .collect();
        Self {
            variables,
            read: file::read,
            read_profile: profile::read,
            machine: Machine::here,
            root: profile::is_root(),
        }
    }

    /// Loads the settings.
    pub fn load(&self) -> Loaded {
        let mut loaded = Loaded {
            config: Config::default(),
            problems: Vec::new(),
            origins: SETTINGS.iter().map(|s| Origin { text: s.default.into(), source: None }).collect(),
            file: None,
            profile: profile::find(&self.profiles(), self.read_profile, self.machine),
        };
        self.apply_file(&mut loaded);
        self.apply_environment(&mut loaded);
        loaded.apply_profile();
        loaded
    }

    /// Files that may hold the profile; the first is where `motet tune` writes.
    pub fn profiles(&self) -> Vec<PathBuf> {
        profile::candidates(&self.variables, self.root)
    }

    fn apply_file(&self, loaded: &mut Loaded) {
        for (path, asked) in self.candidates() {
            let whole =
                |what: String, fix: &str| Problem { source: ValueSource::File(path.clone(), 0), what, fix: fix.into() };
            match (self.read)(&path) {
                Ok(Some(text)) => {
                    let (entries, problems) = file::parse(&path, &text);
                    loaded.problems.extend(problems);
                    for entry in entries {
                        let source = ValueSource::File(path.clone(), entry.line);
                        match SETTINGS.iter().position(|s| s.name == entry.key) {
                            Some(row) => loaded.set(row, &entry.text, source, &entry.key),
                            None => loaded.problems.push(unknown(&entry.key, source)),
                        }
                    }
                    loaded.file = Some(path);
                    return;
                }
                Ok(None) if asked && path != Path::new("/dev/null") => {
                    loaded.problems.push(whole("no such file".into(), "correct or unset MOTET_CONFIG"));
                }
                Ok(None) => {}
                // A default path that cannot be read, such as the home folder of a user that this process has left.
                Err(e) if !asked && e.raw_os_error().is_some() => {}
                Err(e) => loaded.problems.push(whole(format!("cannot be read: {e}"), "make it a readable text file")),
            }
            if asked {
                return;
            }
        }
    }

    /// Files to try, and whether the user named it.
    fn candidates(&self) -> Vec<(PathBuf, bool)> {
        if let Some(path) = self.variables.get("MOTET_CONFIG") {
            return vec![(path.into(), true)];
        }
        let own = file::folder(&self.variables, "XDG_CONFIG_HOME", ".config").map(|f| (f.join("motet.toml"), false));
        own.into_iter().chain([("/etc/motet.toml".into(), false)]).collect()
    }

    fn apply_environment(&self, loaded: &mut Loaded) {
        for (name, value) in self.variables.iter().filter(|(name, _)| name.starts_with("MOTET_")) {
            let source = ValueSource::Environment(name.clone());
            match (SETTINGS.iter().position(|s| s.env == name), value.to_str()) {
                (Some(row), Some(text)) => loaded.set(row, text, source, ""),
                (Some(_), None) => {
                    let what = "the value is not UTF-8 text".into();
                    loaded.problems.push(Problem { source, what, fix: "use plain text".into() });
                }
                (None, _) if VARIABLES.iter().any(|v| v.env == name) => {}
                // Other programs and tests have variables of their own: only a misspelt setting is reported.
                (None, _) => loaded.problems.extend(misspelt(name, source)),
            }
        }
    }
}

impl Loaded {
    /// Sizes that are not set, or are set to 0 (as measured), are taken from the profile.
    fn apply_profile(&mut self) {
        let ProfileLookup::Valid { path, profile } = &self.profile else { return };
        let (path, values): (PathBuf, Vec<_>) = (path.clone(), profile.settings().collect());
        for (name, value) in values {
            let Some(row) = SETTINGS.iter().position(|s| s.name == name) else { continue };
            if SETTINGS[row].kind.parse(&self.origins[row].text) == Ok(Value::Number(0)) {
                self.set(row, &size(value), ValueSource::Profile(path.clone()), name);
            }
        }
        self.config.profile = Some(path);
    }

    /// Applies one value, or records a problem. `key` is named in the problem if the source does not name it.
    fn set(&mut self, row: usize, text: &str, source: ValueSource, key: &str) {
        match SETTINGS[row].kind.parse(text) {
            Ok(value) => {
                (SETTINGS[row].apply)(&mut self.config, value);
                self.origins[row] = Origin { text: text.trim().into(), source: Some(source) };
            }
            Err(mismatch) => self.problems.push(unfit(mismatch, text, source, key)),
        }
    }
}

impl Setting {
    /// Checks a value as a user writes it.
    ///
    /// # Errors
    /// The value is wrong; the problem names `source`.
    pub fn check(&self, text: &str, source: ValueSource) -> Result<(), Problem> {
        self.kind.parse(text).map(drop).map_err(|m| unfit(m, text, source, self.name))
    }

    /// The problem for a name that is not a setting.
    pub fn unknown(name: &str, source: ValueSource) -> Problem {
        unknown(name, source)
    }
}

fn unfit(mismatch: Mismatch, text: &str, source: ValueSource, key: &str) -> Problem {
    let key = if key.is_empty() { String::new() } else { format!("{key} = ") };
    Problem { source, what: format!("{key}`{text}` {}", mismatch.what), fix: mismatch.fix }
}

fn misspelt(name: &str, source: ValueSource) -> Option<Problem> {
    let bare = |name: &'static str| name.strip_prefix("MOTET_").unwrap_or(name);
    let known = SETTINGS.iter().map(|s| s.env).chain(VARIABLES.iter().map(|v| v.env)).map(bare);
    let near = nearest(name.strip_prefix("MOTET_").unwrap_or(name), known)?;
    Some(Problem { source, what: "no such setting".into(), fix: format!("did you mean MOTET_{near}?") })
}

fn unknown(key: &str, source: ValueSource) -> Problem {
    let fix = match nearest(key, SETTINGS.iter().map(|s| s.name)) {
        Some(near) => format!("did you mean {near}?"),
        None => "`motet config` lists all settings".into(),
    };
    Problem { source, what: format!("no such setting: `{key}`"), fix }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn with(variables: &[(&str, &str)], read: fn(&Path) -> io::Result<Option<String>>) -> Loaded {
        let variables = variables.iter().map(|(k, v)| (k.to_string(), v.into())).collect();
        let here = || Machine { processor: "P".into(), cpus: 2, kernel: "K".into() };
        Environment { variables, read, read_profile: profile_file, machine: here, root: false }.load()
    }

    /// One profile of this machine and one of another.
    fn profile_file(path: &Path) -> io::Result<Option<String>> {
        let text = |cpus: u32| {
            format!("format = 2\nprocessor = \"P\"\ncpus = {cpus}\nkernel = \"K\"\nsingle_copy_min = 524288\n")
        };
        match path.to_str() {
            Some("/here") => Ok(Some(text(2))),
            Some("/there") => Ok(Some(text(64))),
            _ => Ok(None),
        }
    }

    #[test]
    fn profile_ranks_between_default_and_file() {
        fn sets(_: &Path) -> io::Result<Option<String>> {
            Ok(Some("single_copy_min = \"1MiB\"".into()))
        }
        fn measured(_: &Path) -> io::Result<Option<String>> {
            Ok(Some("single_copy_min = 0".into()))
        }
        let row = SETTINGS.iter().position(|s| s.name == "single_copy_min").unwrap();
        type Case<'a> = (&'a [(&'a str, &'a str)], fn(&Path) -> io::Result<Option<String>>, u64, &'a str);
        let cases: &[Case<'_>] = &[
            (&[("MOTET_PROFILE", "/here")], no_file, 524_288, "profile /here"),
            (&[("MOTET_PROFILE", "/here"), ("HOME", "/h")], sets, 1 << 20, "/h/.config/motet.toml:1"),
            (&[("MOTET_PROFILE", "/here"), ("HOME", "/h")], measured, 524_288, "profile /here"),
            (&[("MOTET_PROFILE", "/here"), ("MOTET_SINGLE_COPY_MIN", "3M")], no_file, 3 << 20, "environment variable"),
            (&[("MOTET_PROFILE", "/here"), ("MOTET_SINGLE_COPY_MIN", "0K")], sets, 524_288, "profile /here"),
            (&[("MOTET_PROFILE", "/there")], no_file, 0, ""),
            (&[], no_file, 0, ""),
        ];
        for (variables, read, value, from) in cases {
            let loaded = with(variables, *read);
            let source = loaded.origins[row].source.as_ref().map_or(String::new(), ToString::to_string);
            assert_eq!(loaded.config.single_copy_min, *value, "{variables:?}");
            assert!(source.starts_with(from) && source.is_empty() == from.is_empty(), "{source} {variables:?}");
            assert!(loaded.problems.is_empty(), "a profile is never a problem");
            assert_eq!(loaded.config.profile.is_some(), variables.iter().any(|v| v.1 == "/here"));
        }
        let ProfileLookup::Ignored { why, .. } = with(&[("MOTET_PROFILE", "/there")], no_file).profile else {
            panic!()
        };
        assert_eq!(why, "measured with 64 CPUs, here are 2");
    }

    fn no_file(_: &Path) -> io::Result<Option<String>> {
        Ok(None)
    }

    #[test]
    fn environment_wins_over_file_over_default() {
        fn read(path: &Path) -> io::Result<Option<String>> {
            Ok((path == Path::new("/home/a/.config/motet.toml")).then(|| "ring = \"8KiB\"\nspin = \"1us\"".into()))
        }
        let loaded = with(&[("HOME", "/home/a"), ("MOTET_RING", "16K")], read);
        assert_eq!((loaded.config.ring, loaded.config.spin, loaded.config.hot), (16384, 1000, 64));
        assert_eq!(loaded.file, Some("/home/a/.config/motet.toml".into()));
        assert!(loaded.problems.is_empty());
        assert_eq!(
            loaded.origins[2],
            Origin { text: "16K".into(), source: Some(ValueSource::Environment("MOTET_RING".into())) }
        );
    }

    #[test]
    fn user_file_hides_the_system_file() {
        fn both(path: &Path) -> io::Result<Option<String>> {
            Ok(Some(if path.starts_with("/etc") { "hot = 1" } else { "hot = 2" }.into()))
        }
        assert_eq!(with(&[("HOME", "/h")], both).config.hot, 2);
        assert_eq!(with(&[], both).config.hot, 1);
        assert_eq!(with(&[("XDG_CONFIG_HOME", "relative")], both).config.hot, 1);
    }

    #[test]
    fn wrong_values_stay_at_their_default_and_are_reported() {
        let loaded = with(
            &[("MOTET_RING", "70000"), ("MOTET_RIGN", "1"), ("MOTET_TEST", "1"), ("MOTET_CONFIG", "/nowhere")],
            no_file,
        );
        assert_eq!(loaded.config.ring, 65536);
        let lines: Vec<_> = loaded.problems.iter().map(Problem::to_string).collect();
        assert_eq!(
            lines,
            [
                "/nowhere: no such file; correct or unset MOTET_CONFIG",
                "environment variable MOTET_RIGN: no such setting; did you mean MOTET_RING?",
                "environment variable MOTET_RING: `70000` is not a power of two; use 64KiB or 128KiB",
            ]
        );
    }

    #[test]
    fn wrong_lines_of_a_file_are_reported_by_number() {
        fn read(_: &Path) -> io::Result<Option<String>> {
            Ok(Some("hot = 0\n\nstreems = 5\n".into()))
        }
        let lines: Vec<_> = with(&[("MOTET_CONFIG", "f")], read).problems.iter().map(Problem::to_string).collect();
        assert_eq!(
            lines,
            [
                "f:1: hot = `0` is out of range; use 1 to 65536 streams",
                "f:3: no such setting: `streems`; did you mean streams?"
            ]
        );
    }

    #[test]
    fn unreadable_default_file_counts_as_absent() {
        fn locked_home(path: &Path) -> io::Result<Option<String>> {
            if path.starts_with("/etc") { Ok(Some("hot = 1".into())) } else { Err(io::Error::from_raw_os_error(13)) }
        }
        let loaded = with(&[("HOME", "/home/ada")], locked_home);
        assert!(loaded.problems.is_empty(), "{:?}", loaded.problems);
        assert_eq!((loaded.config.hot, loaded.file), (1, Some("/etc/motet.toml".into())));
        let loaded = with(&[("HOME", "/home/ada"), ("MOTET_CONFIG", "/home/ada/.config/motet.toml")], locked_home);
        assert!(
            loaded.problems[0]
                .to_string()
                .starts_with("/home/ada/.config/motet.toml: cannot be read: Permission denied")
        );
    }

    #[test]
    fn settings_come_from_the_given_environment() {
        let variables = [("MOTET_HOT", "3"), ("PATH", "/bin"), ("MOTET_RING", ""), ("MOTET_CONFIG", "/dev/null")];
        let environment = Environment::with(variables.map(|(name, value)| (name.into(), value.into())));
        assert_eq!(environment.variables.len(), 2);
        assert_eq!(environment.load().config.hot, 3);
    }

    #[test]
    fn unreadable_named_file_is_reported() {
        let loaded = with(&[("MOTET_CONFIG", "/etc")], file::read);
        assert_eq!(
            loaded.problems[0].to_string(),
            "/etc: cannot be read: not a regular file; make it a readable text file"
        );
        assert!(with(&[("MOTET_CONFIG", "/dev/null")], file::read).problems.is_empty());
    }
}
