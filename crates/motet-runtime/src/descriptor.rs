//! The descriptor of a module: its name, its driver, what it requires, its attributes and its units.
//!
//! A descriptor is read as input of anyone: its size, its names and its values are bounded, and an error is one line. It is TOML, or the XML of
//! PadicoTM's modules. [`crate::units`] finds the files that it names.

mod toml_form;
mod xml_form;

use crate::text::one_line;
use motet_session::modules::{MAX_PATH_BYTES, MAX_REQUIRES};
use motet_session::paths::check_name;
use rustix::fs::OFlags;
use std::collections::BTreeMap;
use std::fmt;
use std::fs::OpenOptions;
use std::io::Read;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Component, Path, PathBuf};

/// The longest descriptor, bytes.
pub const MAX_BYTES: usize = 64 << 10;
/// The most units of a module.
pub const MAX_UNITS: usize = 64;
/// The most attributes of a module, and values of all of them together.
pub const MAX_ATTRIBUTES: usize = 128;
/// The longest value of an attribute, bytes.
pub const MAX_VALUE_BYTES: usize = 4096;

/// What is wrong with a descriptor, in one line.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Fault(pub String);

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for Fault {}

/// What loads and runs a module.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum DriverKind {
    /// A program, as a child of the node.
    Exec,
    /// A shared object in the node's process.
    Shared,
    /// A class in a Java virtual machine in the node's process.
    Java,
    /// A Python module in an interpreter in the node's process.
    Python,
    /// Other modules.
    Pkg,
    /// Other modules, on every node of a group.
    Multi,
}

impl DriverKind {
    /// All drivers.
    pub const ALL: [Self; 6] = [Self::Exec, Self::Shared, Self::Java, Self::Python, Self::Pkg, Self::Multi];

    /// Its name in descriptors.
    pub fn name(self) -> &'static str {
        match self {
            Self::Exec => "exec",
            Self::Shared => "shared",
            Self::Java => "java",
            Self::Python => "python",
            Self::Pkg => "pkg",
            Self::Multi => "multi",
        }
    }

    /// The options that it knows.
    pub fn options(self) -> &'static [&'static str] {
        match self {
            Self::Exec => &["arguments", "folder", "restart", "restart-limit", "stop-signal", "stop-limit"],
            Self::Shared | Self::Pkg => &[],
            Self::Java => &["class"],
            Self::Python => &["library"],
            Self::Multi => &["group"],
        }
    }

    /// Whether its units are names of modules, not files.
    pub fn has_parts(self) -> bool {
        matches!(self, Self::Pkg | Self::Multi)
    }
}

/// The form of a descriptor.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Format {
    /// TOML.
    Toml,
    /// PadicoTM's XML.
    Xml,
}

impl Format {
    /// Both, in the order in which files are looked for, each with the ending of its files.
    pub const ALL: [(Self, &'static str); 2] = [(Self::Toml, "toml"), (Self::Xml, "xml")];

    /// The form that the ending of a file's name says.
    pub fn of(path: &Path) -> Result<Self, Fault> {
        let ending = path.extension().and_then(|ending| ending.to_str());
        let known = Self::ALL.into_iter().find(|(_, known)| Some(*known) == ending);
        known.map(|(format, _)| format).ok_or_else(|| Fault("a descriptor's name ends in .toml or .xml".to_owned()))
    }
}

/// A descriptor as it was written; nothing that it names has been looked for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Descriptor {
    /// The module's name.
    pub name: String,
    /// Its driver.
    pub driver: DriverKind,
    /// The modules that are loaded and started before it.
    pub requires: Vec<String>,
    /// Its attributes. Those in capital letters are for the module, like variables of the environment; the others are options of the driver.
    pub attributes: BTreeMap<String, Vec<String>>,
    /// What it consists of: files, or for `pkg` and `multi` names of modules.
    pub units: Vec<String>,
}

/// What a form contains, before it is checked.
#[derive(Debug, Default)]
struct Raw {
    name: Option<String>,
    driver: Option<String>,
    requires: Vec<String>,
    attributes: Vec<(String, String)>,
    units: Vec<String>,
}

/// A descriptor, and the folder that it lies in.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Source {
    /// The descriptor.
    pub descriptor: Descriptor,
    /// The folder, without symbolic links.
    pub folder: PathBuf,
}

impl Source {
    /// Reads a descriptor's file.
    pub fn read(path: &Path) -> Result<Self, Fault> {
        let place = |why: &dyn fmt::Display| Fault(format!("{}: {}", shown(path), one_line(&why.to_string())));
        if path.as_os_str().len() > MAX_PATH_BYTES || !path.is_absolute() {
            return Err(place(&"is no absolute path"));
        }
        let format = Format::of(path).map_err(|fault| place(&fault))?;
        // Without waiting for the writer of a FIFO.
        let flags = (OFlags::NONBLOCK | OFlags::NOCTTY).bits() as i32;
        let file = OpenOptions::new().read(true).custom_flags(flags).open(path).map_err(|error| place(&error))?;
        if !file.metadata().is_ok_and(|meta| meta.is_file()) {
            return Err(place(&"is no file"));
        }
        let mut text = Vec::new();
        file.take(MAX_BYTES as u64 + 1).read_to_end(&mut text).map_err(|error| place(&error))?;
        let descriptor = parse(format, &text).map_err(|fault| place(&fault))?;
        let folder = path.canonicalize().map_err(|error| place(&error))?;
        let folder = folder.parent().map(Path::to_owned).ok_or_else(|| place(&"is no file"))?;
        Ok(Self { descriptor, folder })
    }

    /// Reads the descriptor of another module, which lies in the same folder as `NAME.toml` or `NAME.xml`.
    pub fn beside(folder: &Path, name: &str) -> Result<Self, Fault> {
        check_module(name)?;
        let paths = Format::ALL.map(|(_, ending)| folder.join(format!("{name}.{ending}")));
        let Some(path) = paths.iter().find(|path| path.exists()) else {
            return Err(Fault(format!("there is no {name}.toml or {name}.xml in {}", shown(folder))));
        };
        let source = Self::read(path)?;
        if source.descriptor.name != name {
            let own = &source.descriptor.name;
            return Err(Fault(format!("{}: describes {own}, not {name}", shown(path))));
        }
        Ok(source)
    }
}

/// Parses a descriptor.
pub fn parse(format: Format, text: &[u8]) -> Result<Descriptor, Fault> {
    if text.len() > MAX_BYTES {
        return Err(Fault(format!("is longer than {MAX_BYTES} bytes")));
    }
    let Ok(text) = str::from_utf8(text) else { return Err(Fault("is no UTF-8 text".to_owned())) };
    let raw = match format {
        Format::Toml => toml_form::parse(text),
        Format::Xml => xml_form::parse(text),
    };
    raw.and_then(check).map_err(|fault| Fault(one_line(&fault.0)))
}

/// Checks the name of a module.
pub fn check_module(name: &str) -> Result<(), Fault> {
    check_name("module", name).map_err(|error| Fault(error.to_string()))
}

/// Checks everything that needs no file.
fn check(raw: Raw) -> Result<Descriptor, Fault> {
    let refuse = |why: String| Err(Fault(why));
    let Some(name) = raw.name else { return refuse("has no name".to_owned()) };
    check_module(&name)?;
    let Some(driver) = raw.driver else { return refuse("has no driver".to_owned()) };
    let Some(driver) = DriverKind::ALL.into_iter().find(|kind| kind.name() == driver) else {
        let known = DriverKind::ALL.map(DriverKind::name).join(", ");
        return refuse(format!("there is no driver {:?}: use {known}", start_of(&driver)));
    };
    if raw.requires.len() > MAX_REQUIRES {
        return refuse(format!("requires more than {MAX_REQUIRES} modules"));
    }
    let mut requires = Vec::new();
    for required in raw.requires {
        check_module(&required)?;
        if !requires.contains(&required) {
            requires.push(required);
        }
    }
    let most = if driver.has_parts() { MAX_REQUIRES } else { MAX_UNITS };
    if raw.units.is_empty() || raw.units.len() > most {
        return refuse(format!("has {} units; the driver {} takes 1 to {most}", raw.units.len(), driver.name()));
    }
    for unit in &raw.units {
        if driver.has_parts() { check_module(unit)? } else { check_unit(unit)? }
    }
    if raw.attributes.len() > MAX_ATTRIBUTES {
        return refuse(format!("has more than {MAX_ATTRIBUTES} values of attributes"));
    }
    let mut attributes = BTreeMap::<String, Vec<String>>::new();
    for (label, value) in raw.attributes {
        if value.len() > MAX_VALUE_BYTES || value.contains('\0') {
            let label = start_of(&label);
            return refuse(format!(
                "the value of {label:?} is longer than {MAX_VALUE_BYTES} bytes, or has a zero byte"
            ));
        }
        attributes.entry(label).or_default().push(value);
    }
    for (label, values) in &attributes {
        check_attribute(driver, label, values)?;
    }
    if driver == DriverKind::Multi {
        let Some(group) = attributes.get("group").and_then(|values| values.first()) else {
            return refuse("the driver multi needs the option group".to_owned());
        };
        check_name("group", group).map_err(|error| Fault(error.to_string()))?;
    }
    Ok(Descriptor { name, driver, requires, attributes, units: raw.units })
}

/// Checks a unit that names a file.
fn check_unit(unit: &str) -> Result<(), Fault> {
    if unit.is_empty() || unit.len() > MAX_PATH_BYTES || unit.contains('\0') {
        return Err(Fault("a unit is empty, too long, or has a zero byte".to_owned()));
    }
    if Path::new(unit).components().any(|part| part == Component::ParentDir) {
        return Err(Fault(format!("the unit {:?} leaves the descriptor's folder", start_of(unit))));
    }
    Ok(())
}

fn check_attribute(driver: DriverKind, label: &str, values: &[String]) -> Result<(), Fault> {
    if is_variable(label) {
        return match values.len() {
            1 => Ok(()),
            _ => Err(Fault(format!("{label} has more than one value"))),
        };
    }
    if !driver.options().contains(&label) {
        let known = match driver.options() {
            [] => "it has none".to_owned(),
            options => format!("use {}", options.join(", ")),
        };
        let label = start_of(label);
        return Err(Fault(format!("the driver {} has no option {label:?}: {known}", driver.name())));
    }
    if label != "arguments" && values.len() != 1 {
        return Err(Fault(format!("the option {label} has more than one value")));
    }
    Ok(())
}

/// Whether an attribute is for the module: capital letters, digits and `_`.
pub fn is_variable(label: &str) -> bool {
    label.len() <= 64
        && label.starts_with(|first: char| first.is_ascii_uppercase() || first == '_')
        && label.bytes().all(|byte| byte.is_ascii_uppercase() || byte.is_ascii_digit() || byte == b'_')
}

impl Descriptor {
    /// The value of an option that has one.
    pub fn option(&self, label: &str) -> Option<&str> {
        self.attributes.get(label)?.first().map(String::as_str)
    }

    /// The attributes that are for the module.
    pub fn variables(&self) -> impl Iterator<Item = (&str, &str)> {
        let all = self.attributes.iter().filter(|(label, _)| is_variable(label));
        all.filter_map(|(label, values)| Some((label.as_str(), values.first()?.as_str())))
    }

    /// All modules that have to be loaded before it: those that it requires, and its parts.
    pub fn dependencies(&self) -> Vec<&str> {
        let parts = self.units.iter().filter(|_| self.driver.has_parts());
        self.requires.iter().chain(parts).map(String::as_str).collect()
    }
}

/// A path, short enough for a line.
fn shown(path: &Path) -> String {
    path.to_string_lossy().chars().take(256).collect()
}

/// The start of a text that may be long.
fn start_of(text: &str) -> String {
    text.chars().take(64).collect()
}

#[cfg(test)]
mod tests;
