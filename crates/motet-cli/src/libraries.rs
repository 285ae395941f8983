//! Finds Motet's libraries: beside the program after a build, or in the folders of an installation.

use std::hash::{DefaultHasher, Hash, Hasher};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};

use crate::exit_error::{Failure, LIBRARIES, Outcome};
use motet_inspect::process_scan::{FILES_SHIM, ORB_SHIM, PROVIDER, SHIM, XIO_DRIVER};

/// File names of the engine, best first.
const ENGINE: [&str; 2] = ["libmotet.so.0", "libmotet.so"];

/// Absolute paths of the libraries.
#[derive(Debug, PartialEq, Eq)]
pub struct Libraries {
    /// libmotet_sockets.so.
    pub shim: PathBuf,
    /// libmotet_omniorb.so, if it exists.
    pub orb_shim: Option<PathBuf>,
    /// libmotet_files.so, if it exists.
    pub files_shim: Option<PathBuf>,
    /// libmotet.so.0.
    pub engine: PathBuf,
    /// The folder of libmotet-fi.so, if that exists: libfabric takes a folder.
    pub provider: Option<PathBuf>,
    /// The folder of the driver of Globus XIO, if that exists: XIO takes a folder.
    pub xio_driver: Option<PathBuf>,
}

impl Libraries {
    /// These libraries, without the omniORB adapter unless it is wanted.
    pub fn with_orb(mut self, wanted: bool) -> Self {
        self.orb_shim.take_if(|_| !wanted);
        self
    }

    /// These libraries, without the files adapter unless it is wanted.
    pub fn with_files(mut self, wanted: bool) -> Self {
        self.files_shim.take_if(|_| !wanted);
        self
    }

    /// The objects to preload. The files adapter is first: it gives environments to programs from which the sockets adapter then takes what they cannot load.
    pub fn preload_objects(&self) -> impl Iterator<Item = &PathBuf> {
        self.files_shim.iter().chain(std::iter::once(&self.shim)).chain(&self.orb_shim)
    }
}

/// Finds the libraries. A failure names the folders that were searched.
pub fn find() -> Outcome<Libraries> {
    let given = std::env::var_os("MOTET_LIBDIR").filter(|v| !v.is_empty()).map(PathBuf::from);
    let program = std::env::current_exe().ok();
    let folders = match (&given, program.as_deref().and_then(Path::parent)) {
        // In an installation the engine's folder is the parent of the preload object's.
        (Some(folder), _) => vec![folder.clone(), folder.join("..")],
        (None, Some(own)) => vec![own.to_owned(), own.join("../lib/motet"), own.join("../lib")],
        (None, None) => Vec::new(),
    };
    let first = |names: &[&str]| {
        let mut paths = folders.iter().flat_map(|folder| names.iter().map(move |name| folder.join(name)));
        paths.find(|path| path.is_file())
    };
    let missing = |name: &str| {
        let shown = folders.iter().filter(|f| !f.ends_with(".."));
        let looked = shown.map(|f| f.display().to_string()).collect::<Vec<_>>().join(", ");
        let fix = if given.is_some() {
            "correct MOTET_LIBDIR"
        } else {
            "run `make build` or `make install`, or set MOTET_LIBDIR"
        };
        Failure::new(LIBRARIES, format!("{name} is not in {looked}; {fix}"))
    };
    let shim = first(&[SHIM]).ok_or_else(|| missing(SHIM))?;
    let engine = first(&ENGINE).ok_or_else(|| missing(ENGINE[0]))?;
    let orb_shim = first(&[ORB_SHIM]).map(usable).transpose()?;
    let files_shim = first(&[FILES_SHIM]).map(usable).transpose()?;
    let provider = first(&[&format!("libfabric/{PROVIDER}")]).map(usable).transpose()?;
    let provider = provider.as_deref().and_then(Path::parent).map(Path::to_owned);
    let xio_driver = first(&[&format!("globus/{XIO_DRIVER}")]).map(usable).transpose()?;
    let xio_driver = xio_driver.as_deref().and_then(Path::parent).map(Path::to_owned);
    Ok(Libraries { shim: usable(shim)?, orb_shim, files_shim, engine: usable(engine)?, provider, xio_driver })
}

/// A path that LD_PRELOAD can hold, without `..`, of a shared object.
fn usable(path: PathBuf) -> Outcome<PathBuf> {
    let folder = path.parent().and_then(|f| f.canonicalize().ok());
    let folder = folder.map(|folder| if is_separated(&folder) { link_to(&folder) } else { Ok(folder) }).transpose()?;
    let path = folder.zip(path.file_name()).map_or(path.clone(), |(folder, name)| folder.join(name));
    let mut start = [0; 4];
    let read = std::fs::File::open(&path).and_then(|mut f| std::io::Read::read_exact(&mut f, &mut start));
    match read {
        Ok(()) if start == *b"\x7fELF" => Ok(path),
        Ok(()) => {
            Err(Failure::new(LIBRARIES, format!("{} is not a library; build or install Motet again", path.display())))
        }
        Err(e) => Err(Failure::new(
            LIBRARIES,
            format!("{} cannot be read: {e}; build or install Motet again", path.display()),
        )),
    }
}

/// Whether LD_PRELOAD would take the path for several: a space or a colon separates its entries, and nothing escapes one.
fn is_separated(path: &Path) -> bool {
    path.as_os_str().as_bytes().iter().any(|b| b.is_ascii_whitespace() || *b == b':')
}

/// The path of a symbolic link to the folder that LD_PRELOAD can hold, in a folder that only this user can enter.
fn link_to(folder: &Path) -> Outcome<PathBuf> {
    let refuse = |why: String| {
        let what = format!("{} has a space or colon in its path, which LD_PRELOAD cannot hold", folder.display());
        Failure::new(LIBRARIES, format!("{what}, and no link to it can be made: {why}; move it"))
    };
    let links = motet_session::paths::libraries_folder().map_err(|why| refuse(why.to_string()))?;
    if is_separated(&links) {
        return Err(refuse(format!("{} has one, too", links.display())));
    }
    let mut hash = DefaultHasher::new();
    folder.hash(&mut hash);
    let link = links.join(format!("{:016x}", hash.finish()));
    if std::fs::read_link(&link).is_ok_and(|target| target == folder) {
        return Ok(link);
    }
    // Another `motet run` may do the same at this moment: a rename replaces its link by an equal one.
    let new = links.join(format!("{:016x}.{}", hash.finish(), std::process::id()));
    let made = symlink(folder, &new).and_then(|()| std::fs::rename(&new, &link));
    made.map(|()| link).map_err(|why| refuse(why.to_string()))
}
