//! The driver `shared`: a shared object in the node's process, by the table of `include/motet_module.h`.
//!
//! The table is checked before it is used. What a module then does in this process, good or bad, is its own: a crash ends the node, and the
//! gatekeeper reports that.
#![allow(unsafe_code)]

use crate::descriptor::{Fault, Source};
use crate::instance::{Failed, Instance};
use crate::log::Log;
use crate::text::with_causes;
use crate::units;
use libloading::os::unix::{Library, RTLD_LOCAL, RTLD_NOW};
use std::collections::BTreeMap;
use std::ffi::{CStr, CString, c_char, c_int};
use std::fmt;
use std::ptr::null;

/// `MOTET_MODULE_VERSION`.
const VERSION: u32 = 1;

/// `struct motet_module_host`, and behind it what the functions need.
#[repr(C)]
struct Host {
    version: u32,
    size: u32,
    name: *const c_char,
    attribute: unsafe extern "C" fn(*const Host, *const c_char) -> *const c_char,
    log: unsafe extern "C" fn(*const Host, *const c_char),
    // From here on it is the node's alone.
    own: Own,
}

/// The node's part of a [`Host`].
struct Own {
    name: CString,
    attributes: BTreeMap<CString, CString>,
    log: Log,
}

/// The size of `struct motet_module_host`.
const HOST_SIZE: u32 = std::mem::offset_of!(Host, own) as u32;

/// `struct motet_module`.
#[repr(C)]
#[derive(Clone, Copy)]
struct Table {
    version: u32,
    size: u32,
    load: Option<unsafe extern "C" fn(*const Host) -> c_int>,
    start: Option<unsafe extern "C" fn() -> c_int>,
    stop: Option<unsafe extern "C" fn() -> c_int>,
    unload: Option<unsafe extern "C" fn()>,
}

/// A shared object that is loaded. Its code is there as long as this is.
pub struct Shared {
    table: Table,
    _host: Box<Host>,
    _library: Library,
}

impl fmt::Debug for Shared {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Shared(..)")
    }
}

impl Shared {
    /// Loads the object, checks its table and calls its `load`.
    pub fn load(source: &Source, log: &Log) -> Result<Self, Failed> {
        let Source { descriptor, folder } = source;
        let [unit] = &descriptor.units[..] else {
            return Err("the driver shared takes one unit, the object".to_owned());
        };
        let path = units::file(folder, unit).map_err(|Fault(why)| why)?;
        // SAFETY: the object's constructors run in this process, as the user who loads the module wants.
        let library =
            unsafe { Library::open(Some(&path), RTLD_NOW | RTLD_LOCAL) }.map_err(|error| with_causes(&error))?;
        // SAFETY: the symbol is not used as a function or a reference, only as an address.
        let table = unsafe { library.get::<*const u8>(b"motet_module\0") }
            .map_err(|_| format!("{unit}: does not define motet_module (motet_module.h)"))?
            .as_raw_ptr()
            .cast::<u32>();
        if table.is_null() || !table.is_aligned() {
            return Err(format!("{unit}: motet_module is no table"));
        }
        // SAFETY: the module promises a table that begins with these two numbers, whatever its version.
        let (version, size) = unsafe { (table.read(), table.add(1).read()) };
        if version != VERSION || (size as usize) < size_of::<Table>() {
            return Err(format!(
                "{unit}: its table has version {version} and {size} bytes; this node takes version {VERSION}"
            ));
        }
        // SAFETY: a table of this version and size has these fields.
        let table = unsafe { table.cast::<Table>().read_unaligned() };
        let text = |text: &str| CString::new(text).map_err(|error| error.to_string());
        let mut attributes = BTreeMap::new();
        for (label, value) in descriptor.variables() {
            attributes.insert(text(label)?, text(value)?);
        }
        let own = Own { name: text(&descriptor.name)?, attributes, log: log.clone() };
        let mut host =
            Box::new(Host { version: VERSION, size: HOST_SIZE, name: null(), attribute, log: write_log, own });
        host.name = host.own.name.as_ptr();
        if let Some(load) = table.load {
            // SAFETY: the function is the module's, and the host lives until after `unload`.
            check("load", unsafe { load(&raw const *host) })?;
        }
        Ok(Self { table, _host: host, _library: library })
    }
}

impl Instance for Shared {
    fn start(&mut self) -> Result<(), Failed> {
        match self.table.start {
            // SAFETY: the module is loaded, and this is the thread of all its calls.
            Some(start) => check("start", unsafe { start() }),
            None => Ok(()),
        }
    }

    fn stop(&mut self) -> Result<(), Failed> {
        match self.table.stop {
            // SAFETY: as for start.
            Some(stop) => check("stop", unsafe { stop() }),
            None => Ok(()),
        }
    }

    fn unload(self: Box<Self>) -> Result<(), Failed> {
        if let Some(unload) = self.table.unload {
            // SAFETY: as for start; the module has been stopped.
            unsafe { unload() };
        }
        Ok(())
    }
}

fn check(what: &str, code: c_int) -> Result<(), Failed> {
    if code == 0 { Ok(()) } else { Err(format!("{what} returns {code}")) }
}

/// `motet_module_host.attribute`.
unsafe extern "C" fn attribute(host: *const Host, label: *const c_char) -> *const c_char {
    if host.is_null() || label.is_null() {
        return null();
    }
    // SAFETY: the module passes the host that it was given, and a text that ends with a zero byte.
    let (host, label) = unsafe { (&*host, CStr::from_ptr(label)) };
    host.own.attributes.get(label).map_or(null(), |value| value.as_ptr())
}

/// `motet_module_host.log`.
unsafe extern "C" fn write_log(host: *const Host, line: *const c_char) {
    if host.is_null() || line.is_null() {
        return;
    }
    // SAFETY: as for `attribute`.
    let (host, line) = unsafe { (&*host, CStr::from_ptr(line)) };
    host.own.log.write(line.to_bytes());
    host.own.log.write(b"\n");
}
