//! The driver `java`: a class in a Java virtual machine in the node's process.
//!
//! The units are jar files and folders of classes; a class loader of the module's own loads the class that the option `class` names. The class has
//! `public static void start(String[] attributes)`, where each attribute is `NAME=VALUE`, and may have `public static void stop()`. When the module
//! is unloaded, its class loader is closed and nothing here refers to it any more.
//!
//! The virtual machine is made by the first module, from the `libjvm` of `JAVA_HOME` or of the command `java`, and stays until the process ends.
//! It reads `JAVA_TOOL_OPTIONS`.

use crate::descriptor::{Fault, Source};
use crate::instance::{Failed, Instance};
use crate::log::Log;
use crate::units;
use jni::objects::{GlobalRef, JClass, JObject, JString, JThrowable, JValue};
use jni::{InitArgsBuilder, JNIEnv, JNIVersion, JavaVM};
use std::fmt;
use std::path::PathBuf;
use std::rc::Rc;

/// References within one call.
const FRAME: i32 = 32;
/// The most attributes and units have a reference each.
const LARGE_FRAME: i32 = 512;

/// The virtual machine, once a module has needed it.
#[derive(Default)]
pub struct Lazy(Option<Rc<JavaVM>>);

impl fmt::Debug for Lazy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Lazy(..)")
    }
}

/// Why a call into the machine failed.
struct JavaError(String);

impl From<jni::errors::Error> for JavaError {
    fn from(error: jni::errors::Error) -> Self {
        Self(error.to_string())
    }
}

impl Lazy {
    /// Loads a module.
    pub fn load(&mut self, source: &Source, log: &Log) -> Result<Box<dyn Instance>, Failed> {
        let Source { descriptor, folder } = source;
        let class = descriptor.option("class").ok_or("the option class is missing: the name of the class to start")?;
        let paths = descriptor.units.iter().map(|unit| units::find(folder, unit)).collect::<Result<Vec<_>, _>>();
        let paths = paths.map_err(|Fault(why)| why)?;
        let machine = match &self.0 {
            Some(machine) => machine.clone(),
            None => self.0.insert(Rc::new(start_machine()?)).clone(),
        };
        let attributes = descriptor.variables().map(|(name, value)| format!("{name}={value}")).collect();
        let (loader, class) = within(&machine, |env| load_class(env, class, &paths))?;
        log.note(&format!("{} is loaded", descriptor.name));
        Ok(Box::new(Java { machine, loader, class, attributes }))
    }
}

/// A module.
struct Java {
    machine: Rc<JavaVM>,
    loader: GlobalRef,
    class: GlobalRef,
    attributes: Vec<String>,
}

impl Instance for Java {
    fn start(&mut self) -> Result<(), Failed> {
        within(&self.machine, |env| {
            set_context_loader(env, self.loader.as_obj())?;
            let texts = env.new_object_array(self.attributes.len() as i32, "java/lang/String", JObject::null())?;
            for (at, attribute) in self.attributes.iter().enumerate() {
                let text = env.new_string(attribute)?;
                env.set_object_array_element(&texts, at as i32, text)?;
            }
            let class: &JClass<'_> = self.class.as_obj().into();
            env.call_static_method(class, "start", "([Ljava/lang/String;)V", &[JValue::Object(&texts)])?;
            Ok(())
        })
    }

    fn stop(&mut self) -> Result<(), Failed> {
        within(&self.machine, |env| {
            set_context_loader(env, self.loader.as_obj())?;
            let class: &JClass<'_> = self.class.as_obj().into();
            if env.get_static_method_id(class, "stop", "()V").is_err() {
                env.exception_clear()?;
                return Ok(());
            }
            env.call_static_method(class, "stop", "()V", &[])?;
            Ok(())
        })
    }

    fn unload(self: Box<Self>) -> Result<(), Failed> {
        let Self { machine, loader, class, .. } = *self;
        drop(class);
        within(&machine, move |env| {
            set_context_loader(env, &JObject::null())?;
            env.call_method(loader.as_obj(), "close", "()V", &[])?;
            drop(loader);
            env.call_static_method("java/lang/System", "gc", "()V", &[])?;
            Ok(())
        })
    }
}

/// Makes the machine. Its handlers for SIGTERM and others are left out: signals are the node's.
fn start_machine() -> Result<JavaVM, Failed> {
    let options = InitArgsBuilder::new().version(JNIVersion::V8).option("-Xrs").option("-Djava.class.path=").build();
    let options = options.map_err(|error| error.to_string())?;
    let machine = JavaVM::new(options).map_err(|error| {
        format!(
            "there is no Java virtual machine: {error}; install a JDK (Debian: default-jdk-headless), or set JAVA_HOME"
        )
    })?;
    machine.attach_current_thread_permanently().map_err(|error| error.to_string())?;
    Ok(machine)
}

/// Runs `act` with references that end with it. An exception becomes an error.
fn within<T>(machine: &JavaVM, act: impl FnOnce(&mut JNIEnv<'_>) -> Result<T, JavaError>) -> Result<T, Failed> {
    let mut env = machine.get_env().map_err(|error| error.to_string())?;
    let result = env.with_local_frame(LARGE_FRAME, act);
    result.map_err(|JavaError(why)| exception(&mut env).unwrap_or(why))
}

/// The exception that is pending, which it is not any more then.
fn exception(env: &mut JNIEnv<'_>) -> Option<String> {
    let exception: JThrowable<'_> = env.exception_occurred().ok().filter(|exception| !exception.is_null())?;
    let _ = env.exception_describe(); // the stack trace goes to the node's standard error
    let _ = env.exception_clear();
    let text = env.with_local_frame::<_, String, JavaError>(FRAME, |env| {
        let text = env.call_method(&exception, "toString", "()Ljava/lang/String;", &[])?.l()?;
        let text: String = env.get_string(&JString::from(text))?.into();
        Ok(text)
    });
    let _ = env.exception_clear();
    Some(text.unwrap_or_else(|_| "an exception without a text".to_owned()))
}

/// A class loader for these paths, and the class that it has loaded and initialised.
fn load_class(env: &mut JNIEnv<'_>, class: &str, paths: &[PathBuf]) -> Result<(GlobalRef, GlobalRef), JavaError> {
    let urls = env.new_object_array(paths.len() as i32, "java/net/URL", JObject::null())?;
    for (at, path) in paths.iter().enumerate() {
        let path = path.to_str().ok_or_else(|| JavaError("a unit's path is no UTF-8 text".to_owned()))?;
        let path = env.new_string(path)?;
        let file = env.new_object("java/io/File", "(Ljava/lang/String;)V", &[JValue::Object(&path)])?;
        let uri = env.call_method(&file, "toURI", "()Ljava/net/URI;", &[])?.l()?;
        let url = env.call_method(&uri, "toURL", "()Ljava/net/URL;", &[])?.l()?;
        env.set_object_array_element(&urls, at as i32, url)?;
    }
    let loader = env.new_object("java/net/URLClassLoader", "([Ljava/net/URL;)V", &[JValue::Object(&urls)])?;
    let name = env.new_string(class)?;
    let signature = "(Ljava/lang/String;ZLjava/lang/ClassLoader;)Ljava/lang/Class;";
    let arguments = [JValue::Object(&name), JValue::Bool(1), JValue::Object(&loader)];
    let loaded = env.call_static_method("java/lang/Class", "forName", signature, &arguments)?.l()?;
    let loaded = JClass::from(loaded);
    if env.get_static_method_id(&loaded, "start", "([Ljava/lang/String;)V").is_err() {
        let _ = env.exception_clear();
        return Err(JavaError(format!("the class {class} has no public static void start(String[])")));
    }
    Ok((env.new_global_ref(loader)?, env.new_global_ref(loaded)?))
}

/// Makes a class loader the one that libraries use in this thread.
fn set_context_loader(env: &mut JNIEnv<'_>, loader: &JObject<'_>) -> Result<(), JavaError> {
    let thread = env.call_static_method("java/lang/Thread", "currentThread", "()Ljava/lang/Thread;", &[])?.l()?;
    env.call_method(&thread, "setContextClassLoader", "(Ljava/lang/ClassLoader;)V", &[JValue::Object(loader)])?;
    Ok(())
}
