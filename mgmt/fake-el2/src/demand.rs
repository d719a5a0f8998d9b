//! A VM whose CPU time follows from its weight.

/// What a VM wants of its CPU, and what it has had so far.
#[derive(Clone, Copy, Debug, Default)]
pub struct Demand {
    /// Thousandths of the time that it would run.
    pub wants: u64,
    /// Weight of those beside it, who always want more.
    pub rivals: u64,
    /// Overruns in each millisecond.
    pub overruns: u64,
    /// Milliseconds; each question about CPU time adds one.
    pub asked: u64,
    /// CPU time, and time for which it waited, in microseconds.
    pub had: [u64; 2],
}

impl Demand {
    /// What a vCPU of this weight does in a millisecond.
    pub(crate) fn go_on(&mut self, weight: u64) -> [u64; 3] {
        let share = 1000 * weight / (weight + self.rivals).max(1);
        let cpu = self.wants.min(share);
        let waited = if cpu < self.wants { 1000 - cpu } else { 0 };
        self.asked += 1;
        self.had = [self.had[0] + cpu, self.had[1] + waited];
        let ns = 1000;
        [self.had[0] * ns, self.asked * 1000 * ns, self.had[1] * ns]
    }
}
