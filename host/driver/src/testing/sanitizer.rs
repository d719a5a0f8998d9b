//! The architecture sanitizer on a run of QEMU: a run in which it finds something has failed.

use std::ffi::OsString;
use std::mem::offset_of;
use std::path::{Path, PathBuf};

use bulkhead_abi::plan::{Board, Header};
use bulkhead_plugin::sanitizer::{Active, Code, Config, Finding, read};

use bulkhead_model::failure::Failure;
use bulkhead_runner::profile::{Program, build_plugin, configure};
use bulkhead_runner::run::System;

/// Offset of GICD_SGIR (IHI 0048B, 4.3.15).
const SGIR: u64 = 0xf00;
/// Offset of GICC_IAR (IHI 0048B, 4.4.4).
const IAR: u64 = 0x0c;
/// Offset of GICD_ISACTIVER0, and of GICR_ISACTIVER0 in its half of a redistributor.
const ACTIVE: u64 = 0x300;
/// Bytes from one redistributor to the next.
const GICR_STRIDE: u64 = 0x2_0000;

/// The sanitizer, ready for one run of QEMU.
#[derive(Debug)]
pub struct Sanitizer {
    /// Value for QEMU's `-plugin`.
    pub argument: OsString,
    output: PathBuf,
}

impl Sanitizer {
    /// Builds the plugin if needed and leaves its configuration in `folder`, which exists.
    ///
    /// # Errors
    ///
    /// The plugin can't be built, EL2 lacks a symbol, or the folder can't be written.
    pub fn attach(folder: &Path, system: &System) -> Result<Self, Failure> {
        let plugin = build_plugin("sanitizer")?;
        let el2 = Program::read(&system.el2)?.el2()?;
        let size = el2.text_end - el2.text_start;
        // The first instructions run where the image was loaded.
        let code = [el2.text_start, system.base].map(|start| Code {
            start,
            end: start + size,
            linked: el2.text_start,
        });
        let output = folder.join("sanitizer.jsonl");
        let config = Config {
            output: output.clone(),
            code: code.to_vec(),
            symbols: el2.symbols,
            sgir: sgir(&system.plan),
            iar: iar(&system.plan),
            active: active(&system.plan),
        };
        Ok(Self {
            argument: configure(&plugin, folder, "sanitizer", &config, &output)?,
            output,
        })
    }

    /// Returns the number of VMs that were entered, if nothing was found.
    ///
    /// # Errors
    ///
    /// The findings, a line each; or there is no output.
    pub fn verdict(&self) -> Result<usize, Vec<String>> {
        let text = std::fs::read_to_string(&self.output);
        let text = text.map_err(|error| vec![format!("the sanitizer left nothing: {error}")])?;
        let (entered, findings) = read(&text).map_err(|why| vec![why])?;
        if findings.is_empty() {
            return Ok(entered);
        }
        let line = |finding: &Finding| format!("sanitizer: {finding}");
        Err(findings.iter().map(line).collect())
    }
}

/// A field of the plan's board.
fn field<const N: usize>(plan: &[u8], offset: usize) -> Option<[u8; N]> {
    let board = plan.get(offset_of!(Header, board)..)?;
    board.get(offset..)?.first_chunk().copied()
}

/// The frames of the GIC with active states: GICD, and GICR_ISACTIVER0 in the second half of each redistributor
/// (IHI 0069H, 12.8 and 12.10).
fn active(plan: &[u8]) -> Vec<Active> {
    let word = |offset| field(plan, offset).map_or(0, u64::from_le_bytes);
    let gicd = Active {
        base: word(offset_of!(Board, gicd)),
        size: word(offset_of!(Board, gicd_size)),
        offset: ACTIVE,
    };
    let gicr = word(offset_of!(Board, gicr));
    let redistributors = (0..word(offset_of!(Board, gicr_size)) / GICR_STRIDE).map(|n| Active {
        base: gicr + n * GICR_STRIDE,
        size: GICR_STRIDE,
        offset: GICR_STRIDE / 2 + ACTIVE,
    });
    std::iter::once(gicd).chain(redistributors).collect()
}

/// Physical address of GICD_SGIR, if the board has a GICv2.
fn sgir(plan: &[u8]) -> Option<u64> {
    of_gicv2(plan, offset_of!(Board, gicd), SGIR)
}

/// Physical address of GICC_IAR, if the board has a GICv2.
fn iar(plan: &[u8]) -> Option<u64> {
    of_gicv2(plan, offset_of!(Board, gicc), IAR)
}

/// Physical address of a register in the frame whose address is at `frame` in the plan's board, if that has a GICv2.
fn of_gicv2(plan: &[u8], frame: usize, offset: u64) -> Option<u64> {
    let frame = field(plan, frame)?;
    let version = field(plan, offset_of!(Board, gic_version))?;
    (u32::from_le_bytes(version) == 2).then(|| u64::from_le_bytes(frame) + offset)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sanitizer(text: &str) -> (tempfile::TempDir, Sanitizer) {
        let folder = tempfile::tempdir().unwrap();
        let output = folder.path().join("x.jsonl");
        std::fs::write(&output, text).unwrap();
        let argument = OsString::new();
        (folder, Sanitizer { argument, output })
    }

    #[test]
    fn a_finding_fails_a_run_and_silence_of_a_plugin_that_did_not_watch_does_too() {
        let (_folder, quiet) = sanitizer("\"watching\"\n{\"entered\":1}\n{\"entered\":2}\n");
        assert_eq!(quiet.verdict(), Ok(2));
        let (_folder, absent) = sanitizer("");
        assert!(absent.verdict().unwrap_err()[0].contains("did not watch"));
        let finding = r#"{"broken":{"rule":"clean","cpu":1,"pc":16,"place":"f+0x4","what":"w"}}"#;
        let (_folder, broken) = sanitizer(&format!("\"watching\"\n{finding}\n"));
        let lines = broken.verdict().unwrap_err();
        assert_eq!(lines.len(), 1);
        assert!(lines[0].starts_with("sanitizer: clean: pCPU 0x1 in f+0x4 (pc 0x10): w; DC CVAC"));
    }

    #[test]
    fn only_a_board_with_a_gicv2_has_an_sgir() {
        let mut plan = vec![0; size_of::<Header>()];
        let board = offset_of!(Header, board);
        plan[board + offset_of!(Board, gicd) + 3] = 8;
        assert_eq!(sgir(&plan), None);
        plan[board + offset_of!(Board, gic_version)] = 2;
        assert_eq!(sgir(&plan), Some(0x800_0f00));
        assert_eq!(sgir(&[]), None);
    }
}
