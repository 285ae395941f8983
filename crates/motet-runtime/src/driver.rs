//! The table of drivers. Interpreters that a process can have only once are made when the first module needs them, and stay.

use crate::descriptor::{DriverKind, Source};
use crate::exec::Exec;
use crate::instance::{Failed, Instance, Launcher, Waker};
use crate::java;
use crate::log::Log;
use crate::python;
use crate::shared::Shared;

/// The drivers, with what they share.
#[derive(Debug)]
pub struct Drivers {
    launcher: Launcher,
    waker: Waker,
    python: python::Lazy,
    java: java::Lazy,
}

impl Drivers {
    /// Drivers that have started nothing.
    pub fn new(launcher: Launcher, waker: Waker) -> Self {
        Self { launcher, waker, python: python::Lazy::default(), java: java::Lazy::default() }
    }

    /// Loads a module.
    pub fn load(&mut self, source: &Source, log: &Log) -> Result<Box<dyn Instance>, Failed> {
        match source.descriptor.driver {
            DriverKind::Exec => Ok(Box::new(Exec::load(source, &self.launcher, self.waker.clone(), log.clone())?)),
            DriverKind::Shared => Ok(Box::new(Shared::load(source, log)?)),
            DriverKind::Java => self.java.load(source, log),
            DriverKind::Python => self.python.load(source, log),
            DriverKind::Pkg | DriverKind::Multi => Ok(Box::new(Parts)),
        }
    }
}

/// A module that consists of others: the registry loads, starts, stops and unloads them with it.
struct Parts;

impl Instance for Parts {
    fn start(&mut self) -> Result<(), Failed> {
        Ok(())
    }

    fn stop(&mut self) -> Result<(), Failed> {
        Ok(())
    }

    fn unload(self: Box<Self>) -> Result<(), Failed> {
        Ok(())
    }
}
