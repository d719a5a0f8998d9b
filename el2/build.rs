//! Hands the linker script to the linker when building for the machine.

fn main() {
    let here = std::env::var("CARGO_MANIFEST_DIR").unwrap_or_default();
    println!("cargo:rerun-if-changed=el2.ld");
    if std::env::var("CARGO_CFG_TARGET_OS").as_deref() == Ok("none") {
        println!("cargo:rustc-link-arg-bins=-T{here}/el2.ld");
        println!("cargo:rustc-link-arg-bins=--no-eh-frame-hdr");
        println!("cargo:rustc-link-arg-bins=--build-id=none");
        // An ADRP at the end of a page, with accesses behind it.
        println!("cargo:rustc-link-arg-bins=--fix-cortex-a53-843419");
    }
}
