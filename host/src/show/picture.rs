//! A plan as a picture: CPUs on top, each VM with its IPA space below, the board's memory at the side.

use std::fmt::Write;

use super::{access, cpus, crash, memory_map};
use bulkhead_abi::plan::DeviceKind;

use crate::describe::{Size, class_name};
use crate::planner::Planned;

/// Colours of VMs, in their order; dark enough for white text.
const COLOURS: [&str; 8] = [
    "#2f6db5", "#b5482f", "#3c8a4e", "#7a4fa3", "#a8791c", "#2b8a93", "#a33f78", "#5b6670",
];
/// Colour of what is not a VM's.
const GREY: &str = "#44505c";
/// Widths and heights in pixels.
const COLUMN: usize = 300;
const ROW: usize = 44;
const LEFT: usize = 24;
const TOP: usize = 84;

/// Colour of a VM.
fn colour(vm: usize) -> &'static str {
    COLOURS[vm % COLOURS.len()]
}

/// Text that SVG takes.
fn escape(text: &str) -> String {
    text.replace('&', "&amp;")
        .replace('<', "&lt;")
        .replace('>', "&gt;")
}

/// A box with two lines.
fn tile(out: &mut String, (x, y): (usize, usize), fill: &str, first: &str, second: &str) {
    let (width, height) = (COLUMN - 16, ROW - 4);
    let _ = writeln!(
        out,
        "<rect x=\"{x}\" y=\"{y}\" width=\"{width}\" height=\"{height}\" rx=\"5\" fill=\"{fill}\"/>\
         <text x=\"{}\" y=\"{}\" fill=\"#fff\" font-weight=\"600\">{}</text>\
         <text x=\"{}\" y=\"{}\" fill=\"#fff\" opacity=\".85\">{}</text>",
        x + 10,
        y + 17,
        escape(first),
        x + 10,
        y + 33,
        escape(second)
    );
}

/// A heading of a column.
fn heading(out: &mut String, (x, y): (usize, usize), text: &str) {
    let _ = writeln!(
        out,
        "<text x=\"{x}\" y=\"{y}\" font-size=\"14\" font-weight=\"700\" fill=\"#222\">{}</text>",
        escape(text)
    );
}

/// The plan as SVG.
pub fn svg(planned: &Planned) -> String {
    let map = memory_map(planned);
    let rows = planned
        .vms
        .iter()
        .map(|vm| {
            let crash = usize::from(crash(vm).is_some());
            vm.regions.len() + vm.emulated.len() + crash + vm.deviations.len()
        })
        .chain([map.len()])
        .max()
        .unwrap_or(1);
    let width = LEFT * 2 + COLUMN * (planned.vms.len() + 1);
    let height = TOP + ROW * (rows + 1) + 24;
    let mut out = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {width} {height}\" width=\"{width}\" \
         height=\"{height}\" font-family=\"ui-monospace, monospace\" font-size=\"11\">\n\
         <rect width=\"100%\" height=\"100%\" fill=\"#f7f8fa\"/>\n"
    );
    heading(
        &mut out,
        (LEFT, 32),
        &format!("{} on {}", planned.name, planned.board.name),
    );
    heading(&mut out, (LEFT, TOP - 14), "physical memory");
    for (row, owned) in map.iter().enumerate() {
        let fill = owned.owners.first().map_or(GREY, |vm| colour(*vm));
        let size = Size(owned.size.next_multiple_of(1024));
        let place = format!("{:#x} to {:#x}", owned.start, owned.start + owned.size);
        tile(
            &mut out,
            (LEFT, TOP + row * ROW),
            fill,
            &format!("{} · {size}", owned.what),
            &place,
        );
        for (number, other) in owned.owners.iter().enumerate().skip(1) {
            let x = LEFT + COLUMN - 16 - 14 * number;
            let _ = writeln!(
                out,
                "<rect x=\"{x}\" y=\"{}\" width=\"12\" height=\"{}\" fill=\"{}\" stroke=\"#fff\"/>",
                TOP + row * ROW,
                ROW - 4,
                colour(*other)
            );
        }
    }
    for (index, vm) in planned.vms.iter().enumerate() {
        let x = LEFT + COLUMN * (index + 1);
        heading(
            &mut out,
            (x, TOP - 14),
            &format!("{} · {} · {}", vm.name, class_name(vm.class), cpus(vm)),
        );
        let mut y = TOP;
        for mapped in &vm.regions {
            let region = &mapped.region;
            let first = format!(
                "{} · {} · {}",
                mapped.what,
                Size(region.size),
                access(region)
            );
            let second = format!("IPA {:#x} → PA {:#x}", region.ipa, region.pa);
            tile(&mut out, (x, y), colour(index), &first, &second);
            y += ROW;
        }
        for device in &vm.emulated {
            let name = match device.kind {
                DeviceKind::Pl011 => "PL011 · emulated",
                DeviceKind::Pl031 => "PL031 · emulated",
                DeviceKind::Watchdog => "SBSA watchdog · emulated",
            };
            let second = format!("IPA {:#x}, INTID {}", device.ipa, device.intid);
            tile(&mut out, (x, y), GREY, name, &second);
            y += ROW;
        }
        if let Some(crash) = crash(vm) {
            tile(&mut out, (x, y), GREY, "after a crash", &crash);
            y += ROW;
        }
        for deviation in &vm.deviations {
            tile(&mut out, (x, y), "#c0392b", "deviation", deviation.stated);
            y += ROW;
        }
    }
    out.push_str("</svg>\n");
    out
}
