//! Findings of the sanitizer, and the rules of the architecture that they break.

use std::collections::BTreeSet;
use std::fmt;

use serde::{Deserialize, Serialize};

/// A rule that EL2 can break. `docs/internals/sanitizer.md` says more about each.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Rule {
    /// A valid descriptor that TLBs may hold becomes another without break-before-make.
    BreakBeforeMake,
    /// A new descriptor is used before DSB and ISB.
    NewEntry,
    /// A dropped or narrowed descriptor may still be in TLBs when it matters.
    StaleEntry,
    /// A TLBI does not wait for the store that it is about.
    TlbiOrder,
    /// A TLBI is not completed by DSB and synchronised.
    TlbiCompletion,
    /// A map or VMID is used whose old entries were never dropped.
    OldEntries,
    /// A register is relied on before the write of it is synchronised.
    RegisterWrite,
    /// PAR_EL1 is read before the translation is synchronised.
    TranslationResult,
    /// HPFAR_EL2 is read behind an exit that leaves it UNKNOWN.
    FaultAddress,
    /// Memory that EL2 wrote is given to a guest, or to table walks past the caches, without cleaning.
    Clean,
    /// Memory that EL2 wrote is given to a guest without dropping old instructions.
    Instructions,
    /// Memory that was written past the caches is used through them, or the other way round.
    PastCaches,
    /// Another pCPU is told of data that it may not see yet.
    Signal,
    /// Memory that another pCPU stored to before an SGI may be read as it was before that.
    Acknowledge,
    /// A write to the active states of the GIC may still be under way when a guest runs.
    PostedWrite,
    /// An SError of one guest may come while another runs.
    Serror,
    /// A vCPU may use what the TLB holds of its sibling.
    Siblings,
    /// A vCPU goes on elsewhere before what it has begun is complete.
    Migration,
    /// A core that walks by speculation may mix registers of two vCPUs.
    SpeculativeAt,
    /// The sanitizer cannot follow what EL2 does.
    Unfollowed,
}

impl Rule {
    /// All rules.
    pub const ALL: [Self; 20] = [
        Self::BreakBeforeMake,
        Self::NewEntry,
        Self::StaleEntry,
        Self::TlbiOrder,
        Self::TlbiCompletion,
        Self::OldEntries,
        Self::RegisterWrite,
        Self::TranslationResult,
        Self::FaultAddress,
        Self::Clean,
        Self::Instructions,
        Self::PastCaches,
        Self::Signal,
        Self::Acknowledge,
        Self::PostedWrite,
        Self::Serror,
        Self::Siblings,
        Self::Migration,
        Self::SpeculativeAt,
        Self::Unfollowed,
    ];

    /// Its name.
    pub const fn name(self) -> &'static str {
        match self {
            Self::BreakBeforeMake => "break-before-make",
            Self::NewEntry => "new-entry",
            Self::StaleEntry => "stale-entry",
            Self::TlbiOrder => "tlbi-order",
            Self::TlbiCompletion => "tlbi-completion",
            Self::OldEntries => "old-entries",
            Self::RegisterWrite => "register-write",
            Self::TranslationResult => "translation-result",
            Self::FaultAddress => "fault-address",
            Self::Clean => "clean",
            Self::Instructions => "instructions",
            Self::PastCaches => "past-caches",
            Self::Signal => "signal",
            Self::Acknowledge => "acknowledge",
            Self::PostedWrite => "posted-write",
            Self::Serror => "serror",
            Self::Siblings => "siblings",
            Self::Migration => "migration",
            Self::SpeculativeAt => "speculative-at",
            Self::Unfollowed => "unfollowed",
        }
    }

    /// Returns the source in the architecture: DDI 0487 with the tag of the rule or the title of the
    /// section, because numbers of sections differ between issues.
    pub const fn source(self) -> &'static str {
        match self {
            Self::BreakBeforeMake => "DDI 0487, TLB maintenance, R_WHZWS and R_DDMVT",
            Self::NewEntry => "DDI 0487, TLB maintenance, I_WZCBG; R_DDMVT step 6",
            Self::StaleEntry => "DDI 0487, TLB maintenance, R_GPPYH",
            Self::TlbiOrder => {
                "DDI 0487, Barrier litmus tests, Ensuring the visibility of updates to translation tables"
            }
            Self::TlbiCompletion => {
                "DDI 0487, Ordering and completion of TLB maintenance instructions"
            }
            Self::OldEntries => "DDI 0487, TLB maintenance, R_VNRFW",
            Self::RegisterWrite => {
                "DDI 0487, Synchronization requirements for AArch64 System registers"
            }
            Self::TranslationResult => {
                "DDI 0487, Synchronization requirements for AArch64 System registers; PAR_EL1"
            }
            Self::FaultAddress => "DDI 0487, HPFAR_EL2, Hypervisor IPA Fault Address Register",
            Self::Clean => "DDI 0487, Caches and memory hierarchy, Cache maintenance to the PoC",
            Self::Instructions => {
                "DDI 0487, Synchronization and coherency issues between data and instruction accesses"
            }
            Self::PastCaches => "DDI 0487, Mismatched memory attributes",
            Self::Signal => "DDI 0487, Barrier litmus tests; IHI 0069, 12.1.6",
            Self::Acknowledge => "IHI 0069, ICC_IAR1_EL1; DDI 0487, Data Synchronization Barrier",
            Self::PostedWrite => {
                "DDI 0487, Device memory, Early Write Acknowledgement; IHI 0069, 12.1.6"
            }
            Self::Serror => "DDI 0487, Prioritization and recognition of interrupts; ISR_EL1",
            Self::Siblings => {
                "DDI 0487, Use of ASIDs and VMIDs to reduce TLB maintenance requirements"
            }
            Self::Migration => {
                "DDI 0487, Ordering and completion of TLB maintenance instructions; Data Synchronization Barrier"
            }
            Self::SpeculativeAt => {
                "Cortex-A55 1530923, Cortex-A57 1319537, Cortex-A72 1319367, Cortex-A76 1165522"
            }
            Self::Unfollowed => "this is the sanitizer's own limit",
        }
    }

    /// Returns the remedy.
    pub const fn remedy(self) -> &'static str {
        match self {
            Self::BreakBeforeMake => "write 0, DSB, TLBI, DSB, and only then the new descriptor",
            Self::NewEntry => "put DSB ISHST and ISB between the store and the first use",
            Self::StaleEntry => "after the store: DSB, TLBI, DSB, before the memory is used again",
            Self::TlbiOrder => "put DSB ISHST between the store and the TLBI",
            Self::TlbiCompletion => "put DSB (NSH; ISH for a broadcast) and ISB behind the TLBI",
            Self::OldEntries => "drop the old entries by TLBI, DSB, ISB first",
            Self::RegisterWrite => "put ISB behind the write",
            Self::TranslationResult => "put ISB behind AT",
            Self::FaultAddress => {
                "look at ESR_EL2 first; behind a permission fault translate FAR_EL2 by AT"
            }
            Self::Clean => "DC CVAC over what was written, then DSB",
            Self::Instructions => {
                "after the clean and its DSB: IC IALLU on each pCPU that enters, or IC IALLUIS; then DSB"
            }
            Self::PastCaches => {
                "DC IVAC over what was written past the caches, DC CIVAC over what will be; then DSB"
            }
            Self::Signal => "put DSB ISHST between the data and the signal",
            Self::Acknowledge => "put DSB between the read of IAR and the load",
            Self::PostedWrite => "read the register back, then DSB",
            Self::Serror => "at the switch: DSB, ISB, and a look at ISR_EL1",
            Self::Siblings => "TLBI VMALLE1, DSB, ISB before another vCPU of the VM runs",
            Self::Migration => {
                "put DSB ISH on the pCPU that the vCPU leaves, before another one may run it"
            }
            Self::SpeculativeAt => {
                "walks off, ISB, stage 1 on, ISB; the registers of the next vCPU, ISB; its SCTLR_EL1, ISB, its TCR_EL1"
            }
            Self::Unfollowed => "teach lab/sanitizer to follow it",
        }
    }
}

/// A defect.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Finding {
    /// The broken rule.
    pub rule: Rule,
    /// MPIDR_EL1 of the pCPU.
    pub cpu: u64,
    /// Address of the instruction.
    pub pc: u64,
    /// Its function and offset.
    pub place: String,
    /// Description of the defect.
    pub what: String,
}

impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            rule,
            cpu,
            pc,
            place,
            what,
        } = self;
        let (name, remedy, source) = (rule.name(), rule.remedy(), rule.source());
        write!(
            f,
            "{name}: pCPU {cpu:#x} in {place} (pc {pc:#x}): {what}; {remedy} ({source})"
        )
    }
}

/// Content of a line of the output, as JSON.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Record {
    /// The sanitizer watches. The first line.
    Watching,
    /// A pCPU has entered a guest of this VMID for the first time.
    Entered(u16),
    /// A rule was broken.
    Broken(Finding),
}

/// Reads the output of a run: the number of VMIDs that were entered, and the findings.
///
/// # Errors
///
/// Message to the user: there is no output, or it is not one.
pub fn read(text: &str) -> Result<(usize, Vec<Finding>), String> {
    let records = serde_json::Deserializer::from_str(text).into_iter::<Record>();
    let records: Result<Vec<_>, _> = records.collect();
    let records = records.map_err(|error| error.to_string())?;
    if records.first() != Some(&Record::Watching) {
        return Err("the sanitizer did not watch".to_owned());
    }
    let mut entered = BTreeSet::new();
    let mut findings = Vec::new();
    for record in records {
        match record {
            Record::Watching => {}
            Record::Entered(vmid) => drop(entered.insert(vmid)),
            Record::Broken(finding) => findings.push(finding),
        }
    }
    Ok((entered.len(), findings))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_output_is_read_as_it_was_written() {
        let finding = Finding {
            rule: Rule::Clean,
            cpu: 0x8000_0001,
            pc: 0x20_0000_1000,
            place: "copy+0x10".to_owned(),
            what: "w".to_owned(),
        };
        let records = [
            Record::Watching,
            Record::Entered(3),
            Record::Broken(finding.clone()),
        ];
        let text = records.map(|record| serde_json::to_string(&record).unwrap());
        let text = text.join("\n");
        assert_eq!(read(&text), Ok((1, vec![finding])));
        assert!(read("").unwrap_err().contains("did not watch"));
        assert!(
            read("{\"entered\":1}")
                .unwrap_err()
                .contains("did not watch")
        );
    }

    #[test]
    fn names_are_those_of_the_json() {
        for rule in Rule::ALL {
            let json = serde_json::to_string(&rule).unwrap();
            assert_eq!(json, format!("\"{}\"", rule.name()));
        }
    }
}
