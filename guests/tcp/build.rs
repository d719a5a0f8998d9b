//! Hands the linker script of the guests to this one.

fn main() {
    let dir = std::env::var("CARGO_MANIFEST_DIR").unwrap_or_else(|_| ".".into());
    println!("cargo::rerun-if-changed=../guest.ld");
    // The host has no use for this program, but may type-check it.
    if std::env::var("CARGO_CFG_TARGET_OS").as_deref() == Ok("none") {
        println!("cargo::rustc-link-arg-bins=-T{dir}/../guest.ld");
        println!("cargo::rustc-link-arg-bins=-zmax-page-size=4096");
        // What it keeps lies there.
        println!("cargo::rustc-link-arg-bins=--defsym=guest_stack=0x140000");
    }
}
