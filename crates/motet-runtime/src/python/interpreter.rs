//! An interpreter of Python in this process, by the few functions of the stable C API that a call of a function with texts needs.
#![allow(unsafe_code)]

use crate::instance::Failed;
use crate::text::with_causes;
use libloading::os::unix::{Library, RTLD_GLOBAL, RTLD_NOW};
use std::cell::Cell;
use std::ffi::{CString, c_char, c_int};
use std::path::Path;
use std::ptr::{NonNull, null_mut};

/// Code that runs first, and that later calls use.
const BOOTSTRAP: &str = include_str!("bootstrap.py");
/// `Py_file_input`.
const FILE_INPUT: c_int = 257;
/// Minor versions that are looked for, the newest first.
const MINORS: std::ops::RangeInclusive<u32> = 8..=16;

/// An opaque object of Python.
type Object = *mut std::ffi::c_void;

/// Declares the table of functions, and how it is filled.
macro_rules! functions {
    ($($name:ident: fn($($argument:ty),*) $(-> $result:ty)?;)*) => {
        /// Functions of `libpython3`.
        #[allow(non_snake_case)]
        struct Functions {
            $($name: unsafe extern "C" fn($($argument),*) $(-> $result)?,)*
        }

        impl Functions {
            fn of(library: &Library) -> Result<Self, libloading::Error> {
                // SAFETY: the types are those of the stable C API of Python 3, which keeps them.
                unsafe { Ok(Self { $($name: *library.get(concat!(stringify!($name), "\0").as_bytes())?,)* }) }
            }
        }
    };
}

functions! {
    Py_IsInitialized: fn() -> c_int;
    Py_InitializeEx: fn(c_int);
    Py_CompileString: fn(*const c_char, *const c_char, c_int) -> Object;
    PyEval_EvalCode: fn(Object, Object, Object) -> Object;
    PyEval_GetBuiltins: fn() -> Object;
    PyEval_SaveThread: fn() -> Object;
    PyEval_RestoreThread: fn(Object);
    PyDict_New: fn() -> Object;
    PyDict_SetItemString: fn(Object, *const c_char, Object) -> c_int;
    PyDict_GetItemString: fn(Object, *const c_char) -> Object;
    PyTuple_New: fn(isize) -> Object;
    PyTuple_SetItem: fn(Object, isize, Object) -> c_int;
    PyUnicode_FromStringAndSize: fn(*const c_char, isize) -> Object;
    PyUnicode_AsUTF8String: fn(Object) -> Object;
    PyBytes_AsStringAndSize: fn(Object, *mut *mut c_char, *mut isize) -> c_int;
    PyObject_CallObject: fn(Object, Object) -> Object;
    PyErr_Print: fn();
    Py_DecRef: fn(Object);
}

/// The interpreter. It is used by the thread that has made it.
pub struct Interpreter {
    python: Functions,
    /// The names that the bootstrap code defines.
    names: Object,
    /// This thread's state while other threads of Python may run.
    thread: Cell<Object>,
    _library: Library,
}

impl Interpreter {
    /// Loads `libpython3` and starts an interpreter.
    pub fn open(library: Option<&Path>) -> Result<Self, Failed> {
        let library = load(library)?;
        let python = Functions::of(&library)
            .map_err(|error| format!("this libpython3 lacks functions: {}", with_causes(&error)))?;
        // SAFETY: no other interpreter is made in this process: the node's one thread for modules does this once. Signals stay the node's (0).
        let thread = unsafe {
            if (python.Py_IsInitialized)() != 0 {
                return Err("another module has made an interpreter of Python in this process".to_owned());
            }
            (python.Py_InitializeEx)(0);
            (python.PyEval_SaveThread)()
        };
        let mut interpreter = Self { python, names: null_mut(), thread: Cell::new(thread), _library: library };
        interpreter.names = interpreter.locked(|| interpreter.bootstrap())?;
        Ok(interpreter)
    }

    /// Calls a function of the bootstrap code with texts; it returns a text.
    pub fn call(&self, function: &str, arguments: &[String]) -> Result<String, Failed> {
        self.locked(|| self.call_locked(function, arguments))
    }

    /// Runs `act` while this thread holds the interpreter's lock.
    fn locked<T>(&self, act: impl FnOnce() -> T) -> T {
        // SAFETY: this is the thread's own state, and the thread does not hold the lock.
        unsafe { (self.python.PyEval_RestoreThread)(self.thread.get()) };
        let result = act();
        // SAFETY: the thread holds the lock.
        self.thread.set(unsafe { (self.python.PyEval_SaveThread)() });
        result
    }

    /// An object that a function has returned, or the failure. What Python has to say goes to standard error.
    fn own(&self, object: Object, what: &str) -> Result<Owned<'_>, Failed> {
        match NonNull::new(object) {
            Some(object) => Ok(Owned(&self.python, object.as_ptr())),
            None => {
                // SAFETY: the thread holds the lock, and an error is set.
                unsafe { (self.python.PyErr_Print)() };
                Err(format!("Python fails: {what}"))
            }
        }
    }

    fn bootstrap(&self) -> Result<Object, Failed> {
        let python = &self.python;
        let code = CString::new(BOOTSTRAP).map_err(|error| error.to_string())?;
        // SAFETY: the thread holds the lock, and all objects are Python's own, checked for null.
        unsafe {
            let code = (python.Py_CompileString)(code.as_ptr(), c"motet-bootstrap.py".as_ptr(), FILE_INPUT);
            let code = self.own(code, "compile")?;
            let names = self.own((python.PyDict_New)(), "dict")?;
            (python.PyDict_SetItemString)(names.1, c"__builtins__".as_ptr(), (python.PyEval_GetBuiltins)());
            self.own((python.PyEval_EvalCode)(code.1, names.1, names.1), "bootstrap code")?;
            Ok(names.keep())
        }
    }

    fn call_locked(&self, function: &str, arguments: &[String]) -> Result<String, Failed> {
        let python = &self.python;
        let name = CString::new(function).map_err(|error| error.to_string())?;
        // SAFETY: the thread holds the lock. The tuple takes over the texts; the function is borrowed from the dictionary; the bytes of the
        // result are copied while it lives.
        unsafe {
            let tuple = self.own((python.PyTuple_New)(arguments.len() as isize), "tuple")?;
            for (at, text) in arguments.iter().enumerate() {
                let text = (python.PyUnicode_FromStringAndSize)(text.as_ptr().cast(), text.len() as isize);
                (python.PyTuple_SetItem)(tuple.1, at as isize, self.own(text, "text")?.keep());
            }
            let function = (python.PyDict_GetItemString)(self.names, name.as_ptr());
            if function.is_null() {
                return Err("Python fails: the bootstrap code is damaged".to_owned());
            }
            let result = self.own((python.PyObject_CallObject)(function, tuple.1), "call")?;
            let bytes = self.own((python.PyUnicode_AsUTF8String)(result.1), "result")?;
            let (mut start, mut length) = (null_mut(), 0);
            if (python.PyBytes_AsStringAndSize)(bytes.1, &raw mut start, &raw mut length) != 0 {
                return Err("Python fails: result".to_owned());
            }
            let bytes = std::slice::from_raw_parts(start.cast::<u8>(), usize::try_from(length).unwrap_or(0));
            Ok(String::from_utf8_lossy(bytes).into_owned())
        }
    }
}

/// A reference to an object that is given back when dropped, under the lock.
struct Owned<'a>(&'a Functions, Object);

impl Owned<'_> {
    fn keep(self) -> Object {
        let object = self.1;
        std::mem::forget(self);
        object
    }
}

impl Drop for Owned<'_> {
    fn drop(&mut self) {
        // SAFETY: the reference is this one's, and it is dropped before the lock is.
        unsafe { (self.0.Py_DecRef)(self.1) };
    }
}

/// Loads `libpython3`, for extension modules to see as well.
fn load(named: Option<&Path>) -> Result<Library, Failed> {
    let flags = RTLD_NOW | RTLD_GLOBAL;
    if let Some(path) = named {
        // SAFETY: the descriptor's author wants this library's constructors to run.
        return unsafe { Library::open(Some(path), flags) }.map_err(|error| with_causes(&error));
    }
    let names = MINORS.rev().map(|minor| format!("libpython3.{minor}.so.1.0"));
    // SAFETY: a libpython3 of this machine has no constructors that harm.
    names.into_iter().find_map(|name| unsafe { Library::open(Some(&name), flags) }.ok()).ok_or_else(|| {
        "there is no libpython3 on this host (Debian: libpython3.11); the option library may name one".to_owned()
    })
}
