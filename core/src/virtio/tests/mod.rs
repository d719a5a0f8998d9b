//! Shadow virtqueues against a driver and a backend that keep to the rules ([`good`]), and against such that do not
//! ([`hostile`]).

mod good;
mod hostile;
mod parts;
mod registers;
