//! Getting, building and running what a plan needs: Debian's packages, EL2 and the guest programs, QEMU with the image.
#![deny(unsafe_code)]

pub mod build;
mod built;
mod card;
mod cargo;
pub mod columns;
mod command;
pub mod cross_build;
pub mod emulated;
pub mod fetch;
mod linux_build;
pub mod package;
pub mod prepare;
pub mod profile;
pub mod progress;
pub mod run;
mod supply;
pub mod sys;
pub mod temp_files;

pub use supply::Effort;
