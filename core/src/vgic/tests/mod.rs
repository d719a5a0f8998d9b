//! Tests of the vGIC on a simulated machine ([`bench`]).

mod answers;
mod asking;
mod bench;
mod board;
mod bounds;
mod corners;
mod edges;
mod fresh;
mod paths;
mod random;
mod ready;
mod registers;
mod several;
mod sharing;
mod shortcuts;
mod single;
mod state;

#[test]
fn a_distributor_fits_beside_the_console_in_the_page_of_a_vm() {
    let size = size_of::<super::Distributor>();
    assert!(size <= 5_376, "{size}");
    assert_eq!(
        core::mem::offset_of!(super::shared::VcpuWords, priority),
        64
    );
}
