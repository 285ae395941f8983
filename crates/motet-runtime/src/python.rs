//! The driver `python`: a Python module in an interpreter in the node's process.
//!
//! A module is a file with the functions `start()` and `stop()`, either of which may be missing. Before its first line runs, its global
//! `motet_attributes` holds the attributes of the descriptor. What it prints while it is loaded, started or stopped goes to its log.
//!
//! The interpreter is made by the first module, from a `libpython3` that is looked for then, and stays until the process ends.

mod interpreter;

use crate::descriptor::{Fault, Source};
use crate::instance::{Failed, Instance};
use crate::log::Log;
use crate::units;
use interpreter::Interpreter;
use std::fmt;
use std::path::Path;
use std::rc::Rc;

/// The interpreter, once a module has needed it.
#[derive(Default)]
pub struct Lazy(Option<Rc<Interpreter>>);

impl fmt::Debug for Lazy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Lazy(..)")
    }
}

impl Lazy {
    /// Loads a module. The option `library` names another `libpython3`; the first module decides.
    pub fn load(&mut self, source: &Source, log: &Log) -> Result<Box<dyn Instance>, Failed> {
        let Source { descriptor, folder } = source;
        let [unit] = &descriptor.units[..] else { return Err("the driver python takes one unit, a file".to_owned()) };
        let path = units::file(folder, unit).map_err(|Fault(why)| why)?;
        let path = path.to_str().ok_or("the file's path is no UTF-8 text")?.to_owned();
        let interpreter = match &self.0 {
            Some(interpreter) => interpreter.clone(),
            None => {
                let library = descriptor.option("library").map(Path::new);
                self.0.insert(Rc::new(Interpreter::open(library)?)).clone()
            }
        };
        let mut arguments = vec![descriptor.name.clone(), path];
        arguments.extend(descriptor.variables().flat_map(|(label, value)| [label.to_owned(), value.to_owned()]));
        let module = Python { interpreter, name: descriptor.name.clone(), log: log.clone() };
        module.call("load", &arguments)?;
        Ok(Box::new(module))
    }
}

/// A module.
struct Python {
    interpreter: Rc<Interpreter>,
    name: String,
    log: Log,
}

impl Python {
    /// Calls a function of the bootstrap code, and takes what was printed.
    fn call(&self, function: &str, arguments: &[String]) -> Result<(), Failed> {
        let answer = self.interpreter.call(function, arguments)?;
        let (error, printed) = answer.split_once('\0').unwrap_or((&answer, ""));
        self.log.write(printed.as_bytes());
        if error.is_empty() { Ok(()) } else { Err(error.to_owned()) }
    }
}

impl Instance for Python {
    fn start(&mut self) -> Result<(), Failed> {
        self.call("start", std::slice::from_ref(&self.name))
    }

    fn stop(&mut self) -> Result<(), Failed> {
        self.call("stop", std::slice::from_ref(&self.name))
    }

    fn unload(self: Box<Self>) -> Result<(), Failed> {
        self.call("unload", std::slice::from_ref(&self.name))
    }
}
