//! Tests of profiles that are missing, valid, of another machine, malformed, or of another user.

use super::*;
use std::os::unix::fs::{PermissionsExt, symlink};

fn profile() -> Profile {
    Profile {
        machine: Machine { processor: "A (R) 9000 @ 3 GHz".into(), cpus: 8, kernel: "6.1.0-13-amd64".into() },
        measured: 1_700_000_000,
        floor: Some(48),
        single_copy_min: Some(4 << 20),
        single_copy_min_far: Some(512 << 10),
        half_copy_min: None,
    }
}

/// A folder that is removed when dropped.
struct Folder(tempfile::TempDir);

impl Folder {
    fn new(name: &str) -> Self {
        let prefix = format!("motet-profile-{name}-");
        let mode = std::fs::Permissions::from_mode(0o700);
        Self(tempfile::Builder::new().prefix(&prefix).permissions(mode).tempdir().unwrap())
    }
}

#[test]
fn what_is_written_is_read_again() {
    let folder = Folder::new("again");
    let path = folder.0.path().join("deeper/motet/profile.toml");
    assert_eq!(read(&path).unwrap(), None);
    for turn in 0..2 {
        write(&path, &profile().render(&[format!("turn {turn}\nx = 1")])).unwrap();
        assert_eq!(Profile::parse(&read(&path).unwrap().unwrap()), Ok(profile()));
    }
    let mode = std::fs::metadata(&path).unwrap().permissions().mode() & 0o777;
    assert_eq!(mode, if is_root() { 0o644 } else { 0o600 });
    assert_eq!(std::fs::read_dir(path.parent().unwrap()).unwrap().count(), 1, "nothing else is left");
}

#[test]
fn first_valid_profile_is_used() {
    let paths = [PathBuf::from("/own"), PathBuf::from("/system")];
    let search = |own: Option<&str>, here: Machine| {
        let read = |path: &Path| match (path.starts_with("/own"), own) {
            (true, own) => Ok(own.map(String::from)),
            _ => Ok(Some(profile().render(&[]))),
        };
        find(&paths, read, || here.clone())
    };
    let valid = |path: &PathBuf| ProfileLookup::Valid { path: path.clone(), profile: profile() };
    assert_eq!(search(None, profile().machine), valid(&paths[1]));
    assert_eq!(search(Some(&profile().render(&[])), profile().machine), valid(&paths[0]));
    assert_eq!(search(Some("garbage"), profile().machine), valid(&paths[1]));
    assert_eq!(find(&[], |_| Ok(None), || profile().machine), ProfileLookup::Missing);
    assert_eq!(find(&paths, |_| Ok(None), || profile().machine), ProfileLookup::Missing);
    let here = profile().machine;
    for (other, why) in [
        (Machine { processor: "B".into(), ..here.clone() }, "measured on another machine (A (R) 9000 @ 3 GHz, here B)"),
        (Machine { cpus: 2, ..here.clone() }, "measured with 8 CPUs, here are 2"),
        (Machine { kernel: "7".into(), ..here }, "measured under kernel 6.1.0-13-amd64, here is 7"),
    ] {
        assert_eq!(search(None, other), ProfileLookup::Ignored { path: paths[1].clone(), why: why.into() });
    }
}

#[test]
fn malformed_profiles_are_refused_with_the_reason() {
    let good = profile().render(&[]);
    let with = |from: &str, to: &str| Profile::parse(&good.replace(from, to));
    for (from, to, what) in [
        ("format = 2", "format = 1", "has format 1, this version of Motet reads format 2"),
        ("format = 2\n", "", "has no format"),
        ("cpus = 8", "cpus = \"many\"", "cpus is not a number"),
        ("cpus = 8\n", "", "has no cpus"),
        ("kernel", "kernels", "has no kernel"),
        ("single_copy_min = 4194304", "single_copy_min = -1", "single_copy_min is out of range"),
        ("single_copy_min = 4194304", "single_copy_min = 0", "single_copy_min is out of range"),
        ("single_copy_min = 4194304", "single_copy_min = 99999999999999999999", "single_copy_min is out of range"),
        ("single_copy_min_far = 524288", "single_copy_min_far = \"a\"", "single_copy_min_far is out of range"),
        ("single_copy_min = 4194304", "single_copy_min = [[1]]", ""),
    ] {
        match with(from, to) {
            Err(said) => assert_eq!(said, what, "{to}"),
            Ok(parsed) => assert!(what.is_empty() && parsed.single_copy_min.is_none(), "{to}"),
        }
    }
    assert_eq!(with("format = 2", "format = 2\nunknown = \"x\"\n"), Ok(profile()));
    assert_eq!(Profile::parse(&(good.clone() + "[table]\nx = 1\n")), Ok(profile()));
    assert!(Profile::parse("\0").is_err() && Profile::parse("").is_err());
    assert!(Profile::parse(&(good + &"#".repeat(5000))).is_err());
}

#[test]
fn only_files_that_other_users_cannot_write_are_trusted() {
    let folder = Folder::new("believed");
    let path = folder.0.path().join("profile.toml");
    write(&path, &profile().render(&[])).unwrap();
    for mode in [0o620, 0o602, 0o666] {
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(mode)).unwrap();
        assert_eq!(read(&path).unwrap_err().to_string(), "other users can write it");
    }
    std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o600)).unwrap();
    assert!(read(&path).unwrap().is_some());
    let link = folder.0.path().join("link");
    symlink(&path, &link).unwrap();
    assert!(read(&link).is_err(), "a link is not followed");
    // Writing replaces a link and leaves what it pointed to.
    write(&link, "new").unwrap();
    assert_eq!(std::fs::read_to_string(&link).unwrap(), "new");
    assert_ne!(std::fs::read_to_string(&path).unwrap(), "new");
    assert!(read(folder.0.path()).is_err() && write(&path.join("below"), "x").is_err());
    if is_root() {
        std::os::unix::fs::chown(&path, Some(65533), None).unwrap();
        assert_eq!(read(&path).unwrap_err().to_string(), "it belongs to another user");
        std::os::unix::fs::chown(&folder.0, Some(65533), None).unwrap();
        assert_eq!(write(&path, "x").unwrap_err().to_string(), "its folder belongs to another user");
    } else {
        eprintln!("SKIPPED: files of another user need root");
    }
}

#[test]
fn path_that_cannot_be_written_is_an_error() {
    // Not even root may write there.
    assert!(write(Path::new("/proc/motet/profile.toml"), "x").is_err());
    assert!(write(Path::new("/proc/profile.toml"), "x").is_err());
}

#[test]
fn root_uses_only_its_own_file() {
    let variables = |list: &[(&str, &str)]| list.iter().map(|(k, v)| (k.to_string(), OsString::from(v))).collect();
    let system = PathBuf::from(SYSTEM_PROFILE_PATH);
    let home = variables(&[("HOME", "/home/a")]);
    assert_eq!(candidates(&home, false), ["/home/a/.cache/motet/profile.toml".into(), system.clone()]);
    assert_eq!(candidates(&home, true), [PathBuf::from(SYSTEM_PROFILE_PATH)]);
    let cache = variables(&[("HOME", "/home/a"), ("XDG_CACHE_HOME", "/c")]);
    assert_eq!(candidates(&cache, false), ["/c/motet/profile.toml".into(), system.clone()]);
    assert_eq!(candidates(&variables(&[]), false), [system]);
    assert_eq!(candidates(&variables(&[("MOTET_PROFILE", "/p")]), false), [PathBuf::from("/p")]);
    assert!(candidates(&variables(&[("MOTET_PROFILE", "/dev/null")]), true).is_empty());
}

#[test]
fn machine_is_described_and_cpu_lists_are_counted() {
    let here = Machine::here();
    assert!(!here.processor.is_empty() && here.cpus > 0 && !here.kernel.is_empty(), "{here:?}");
    assert_eq!(
        [count_cpus("0-3,6"), count_cpus("0"), count_cpus(""), count_cpus("3-1"), count_cpus("x")],
        [5, 1, 0, 0, 0]
    );
}

proptest::proptest! {
    #[test]
    fn any_text_is_parsed_or_refused(text in ".{0,300}") {
        let _ = Profile::parse(&text);
    }
}
