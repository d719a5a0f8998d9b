//! A loop whose instructions are known.

/// Instructions of a pass of the loop.
pub const PASS: u64 = 8;

/// A row of passes in which nobody else had the pCPU.
#[derive(Clone, Copy, Debug)]
pub struct Row {
    /// The counter before the first pass.
    pub begin: u64,
    /// The counter at its last pass.
    pub end: u64,
    /// The counter when it was over.
    pub over: u64,
    /// Passes.
    pub passes: u64,
}

/// Reads the counter without end, until it jumps by more than `jump` ticks or is at `until`.
pub fn row(jump: u64, until: u64) -> Row {
    let (begin, end, over, passes): (u64, u64, u64, u64);
    // SAFETY: the block reads a counter, and touches no memory.
    unsafe {
        core::arch::asm!(
            "mrs {over}, cntvct_el0",
            "mov {begin}, {over}",
            "mov {passes}, #0",
            "2:",
            "mov {end}, {over}",
            "mrs {over}, cntvct_el0",
            "sub {passed}, {over}, {end}",
            "cmp {passed}, {jump}",
            "ccmp {over}, {until}, #2, ls",
            "b.hs 3f",
            "add {passes}, {passes}, #1",
            "b 2b",
            "3:",
            begin = out(reg) begin,
            end = out(reg) end,
            over = out(reg) over,
            passes = out(reg) passes,
            passed = out(reg) _,
            jump = in(reg) jump,
            until = in(reg) until,
            options(nomem, nostack),
        );
    }
    Row {
        begin,
        end,
        over,
        passes,
    }
}
