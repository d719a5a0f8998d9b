//! Consoles that the command line of a Linux guest names.

use bulkhead_model::board::PassthroughDevice;
use bulkhead_model::describe::{Code, Finding, PayloadSpec, Placed, VmSpec};

/// Drivers of consoles: the name of their devices, what their compatible strings contain, and what the guest would need.
const DRIVERS: [(&str, &[&str], &str); 3] = [
    ("ttyAMA", &["pl011"], "a PL011"),
    ("ttyS", &["16550", "8250", "dw-apb-uart"], "an 8250"),
    ("hvc", &[], "a virtio-console"),
];

/// Warns of a command line whose consoles are all such as the guest does not have: its kernel would run unheard. Of names of
/// other drivers nothing is known.
pub(super) fn check(spec: &VmSpec, devices: &[PassthroughDevice], findings: &mut Vec<Finding>) {
    let (PayloadSpec::Linux { .. }, Some(cmdline)) = (&spec.payload, &spec.cmdline) else {
        return;
    };
    let passed = |words: &[&str]| {
        let mut compatible = devices
            .iter()
            .flat_map(|device| &device.properties)
            .filter(|(name, _)| name == "compatible")
            .map(|(_, value)| String::from_utf8_lossy(value).into_owned());
        compatible.any(|compatible| words.iter().any(|word| compatible.contains(word)))
    };
    let emulated = |name: &str| match name {
        "ttyAMA" => spec.console.is_some(),
        "hvc" => spec.virtio_console.is_some(),
        _ => false,
    };
    let mut absent = None;
    for word in cmdline.value.split_whitespace() {
        let Some(console) = word.strip_prefix("console=") else {
            continue;
        };
        let console = console.split(',').next().unwrap_or(console);
        let name = console.trim_end_matches(|c: char| c.is_ascii_digit());
        let driver = DRIVERS.iter().find(|(driver, ..)| *driver == name);
        match driver {
            Some((name, words, needs)) if !emulated(name) && !passed(words) => {
                absent.get_or_insert((word, *needs));
            }
            _ => return,
        }
    }
    if let Some((word, needs)) = absent {
        findings.push(unheard(spec, cmdline, word, needs));
    }
}

/// The finding that a guest does not have what `word` of its command line names.
fn unheard(spec: &VmSpec, cmdline: &Placed<String>, word: &str, needs: &str) -> Finding {
    let help = match (&spec.console, &spec.virtio_console) {
        (_, Some(_)) => "say console=hvc0, its virtio-console",
        (Some(_), None) => {
            "say console=ttyAMA0, its PL011; with console = \"virtio\" it has hvc0, too"
        }
        (None, None) => {
            "leave console = \"none\" out, and its PL011 is ttyAMA0; with console = \"virtio\" it has hvc0, too"
        }
    };
    let message = format!("nobody will hear the Linux of `{}`", spec.name.value);
    Finding::new(Code::ConsoleUnheard, message)
        .at(
            cmdline.span.clone(),
            format!("`{word}` is {needs}, and this VM has none"),
        )
        .help(help)
}
