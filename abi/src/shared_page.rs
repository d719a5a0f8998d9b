//! Pages that EL2 and a guest share: where in them is what.

/// The page in which EL2 tells the vCPUs of a VM how long they were ready to run and did not (DEN0057A). The guest
/// may only read it.
pub mod stolen_time {
    /// Bytes from the structure of one vCPU to that of the next.
    pub const STRIDE: u64 = 64;
    /// Offset of the stolen time in it, 64 bits of nanoseconds. Before it are revision and attributes, both 0.
    pub const TIME: u64 = 8;
}

/// The word by which EL2 asks a VM to stop. The guest may only read it.
pub mod stop {
    /// Its offset in the page: behind the stolen time of all vCPUs, which may be told in the same page. 32 bits, little endian: 0, or how often the
    /// VM was asked in this life.
    pub const WORD: u64 = 2048;
}
