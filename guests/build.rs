//! Hands the linker script to every guest.

fn main() {
    let dir = std::env::var("CARGO_MANIFEST_DIR").unwrap_or_else(|_| ".".into());
    println!("cargo::rerun-if-changed=guest.ld");
    // The host has no use for these programs, but may type-check them.
    if std::env::var("CARGO_CFG_TARGET_OS").as_deref() == Ok("none") {
        println!("cargo::rustc-link-arg-bins=-T{dir}/guest.ld");
        println!("cargo::rustc-link-arg-bins=-zmax-page-size=4096");
        // The service VM has the state of all its devices there.
        println!("cargo::rustc-link-arg-bin=service=--defsym=guest_stack=0x80000");
    }
}
