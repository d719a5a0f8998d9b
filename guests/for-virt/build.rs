//! Links the program where it expects its RAM.

fn main() {
    let dir = std::env::var("CARGO_MANIFEST_DIR").unwrap_or_else(|_| ".".into());
    println!("cargo::rerun-if-changed=board.ld");
    // The host has no use for this program, but may type-check it.
    if std::env::var("CARGO_CFG_TARGET_OS").as_deref() == Ok("none") {
        println!("cargo::rustc-link-arg-bins=-T{dir}/board.ld");
        println!("cargo::rustc-link-arg-bins=-zmax-page-size=4096");
    }
}
