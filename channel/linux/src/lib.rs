//! The end of a channel (`[channel.NAME]` of a description) in a program of Linux, on a kernel without any driver of this project:
//! [`bulkhead_channel`] over what Debian's kernels have from 6.1 on. `../include/bulkhead_channel_linux.h` is the same for C.
//!
//! | what | is in Linux | needs |
//! | --- | --- | --- |
//! | memory that nobody caches, the default of a channel with a VM that has a `kernel` | `/dev/mem`, as Device memory | `CAP_SYS_RAWIO`, to open |
//! | memory that is cached, `cacheable = true`, on kernels that have device-dax | `/dev/daxN.M` | modules `of_pmem`, `nd_pmem`, `dax_pmem` and `device_dax`; rights by file |
//! | to hear | an input device, whose key is pressed and released by each doorbell | modules `gpio_keys` and `evdev` |
//! | to ring | a line of a GPIO controller, whose register is the doorbell | nothing: gpio-mmio is built in |
//!
//! Only [`End::open`] needs rights; a program may give them up afterwards.
//!
//! ```no_run
//! use bulkhead_channel_linux::End;
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let mut end = End::open("report")?;
//! if end.owes() {
//!     end.ring()?; // the life before this one ended between number and ring
//! }
//! if end.sender().send(b"42 degrees").is_ok_and(|ring| ring) {
//!     end.ring()?;
//! }
//! let mut message = [0; 64];
//! loop {
//!     while let Ok(Some(length)) = end.receiver().look(&mut message) {
//!         println!("{:?}", &message[..length]);
//!         if end.receiver().take() {
//!             end.ring()?;
//!         }
//!     }
//!     if end.receiver().wait() {
//!         end.sleep(None)?; // or poll `heard_by` among other files, then call `heard`
//!     }
//! }
//! # }
//! ```
//!
//! An end that polls (`"poll"` in the description) has nothing to sleep by, and calls neither `wait` nor `sleep`.

mod end;
mod node;
mod sys;

pub use bulkhead_channel::{Broken, LookError, Receiver, SendError, Sender, Shape};
pub use end::{End, OpenError};
