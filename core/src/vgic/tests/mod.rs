//! What the vGIC promises, on a simulated machine ([`bench`]).

mod bench;
mod registers;
mod several;
mod single;
