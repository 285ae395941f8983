//! Gives libmotet.so its SONAME, and keeps everything but `motet_*` out of its symbol table.
fn main() {
    println!("cargo:rustc-cdylib-link-arg=-Wl,-soname,libmotet.so.0");
    println!("cargo:rustc-cdylib-link-arg=-Wl,-z,nodelete");
    println!("cargo:rerun-if-changed=build.rs");
}
