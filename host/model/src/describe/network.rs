//! `[network.NAME]`, and `networks` of a VM.

use std::fmt;

use toml::de::DeTable;

use super::code::Code;
use super::finding::Finding;
use super::keys::{NETWORK, PORT, VM};
use super::reader::{Placed, Reader, check_name};
use super::suggest::nearest;

/// VLANs that there are (IEEE 802.1Q, 9.6): 0 is none, and 4095 is reserved.
const VLANS: std::ops::RangeInclusive<u32> = 1..=4094;
/// First byte of an address: the address of a group.
const GROUP: u8 = 1;

/// `[network.NAME]`.
#[derive(Clone, Debug)]
pub struct NetworkSpec {
    /// Name.
    pub name: Placed<String>,
}

/// An Ethernet address.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Mac(pub [u8; 6]);

impl Mac {
    /// Reads `02:00:00:00:00:01`.
    fn parse(text: &str) -> Option<Self> {
        let byte = |part: &str| {
            let digits = part.len() == 2 && part.bytes().all(|byte| byte.is_ascii_hexdigit());
            digits.then(|| u8::from_str_radix(part, 16).ok()).flatten()
        };
        let bytes: Option<Vec<u8>> = text.split(':').map(byte).collect();
        Some(Self(bytes?.try_into().ok()?))
    }
}

impl fmt::Display for Mac {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let [a, b, c, d, e, g] = self.0;
        write!(f, "{a:02x}:{b:02x}:{c:02x}:{d:02x}:{e:02x}:{g:02x}")
    }
}

/// A network card of a VM.
#[derive(Clone, Debug)]
pub struct PortSpec {
    /// Name of the network.
    pub network: Placed<String>,
    /// Its address, if the description says so.
    pub mac: Option<Placed<Mac>>,
    /// Its VLAN, if it is in one.
    pub vlan: Option<Placed<u16>>,
}

/// Reads `[network.NAME]`.
pub(super) fn read(
    name: Placed<String>,
    table: &DeTable,
    findings: &mut Vec<Finding>,
) -> NetworkSpec {
    check_name(&name, Code::NetworkName, "a network", findings);
    Reader::new(table, "a network", NETWORK, findings).finish();
    NetworkSpec { name }
}

/// Reads `networks`. One without a name is left out, which is reported.
pub(super) fn ports(reader: &mut Reader) -> Vec<PortSpec> {
    let mut ports = Vec::new();
    let mut found = Vec::new();
    for (table, span) in reader.tables(const { VM.key("networks") }) {
        let mut port = Reader::new(table, "a network card", PORT, &mut found);
        let network = port.read(const { PORT.text("name") });
        let mac = port.read(const { PORT.text("mac") });
        let vlan = port.read(const { PORT.number("vlan") });
        let missing = port.missing();
        port.finish();
        if !missing.is_empty() {
            found.push(
                Finding::new(Code::NetworkIncomplete, "a card belongs to a network")
                    .at(span, format!("needs {}", missing.join(", ")))
                    .help("such as { name = \"lan\" }, with a table [network.lan]"),
            );
        }
        let mac = mac.and_then(|text| address(&text, &mut found));
        let vlan = vlan.and_then(|number| vlan_of(&number, &mut found));
        ports.extend(network.map(|network| PortSpec { network, mac, vlan }));
    }
    found.into_iter().for_each(|finding| reader.report(finding));
    ports
}

/// The address of a card.
fn address(text: &Placed<String>, findings: &mut Vec<Finding>) -> Option<Placed<Mac>> {
    let mac = Mac::parse(&text.value);
    let why = match mac {
        None => "six bytes in hexadecimal digits, with colons between them",
        Some(mac) if mac.0[0] & GROUP != 0 => "the address of a group: its first byte is odd",
        Some(Mac([0, 0, 0, 0, 0, 0])) => "no address of anybody",
        Some(mac) => {
            let span = text.span.clone();
            return Some(Placed { value: mac, span });
        }
    };
    findings.push(
        Finding::new(
            Code::NetworkMac,
            format!("`{}` cannot be the address of a card", text.value),
        )
        .at(text.span.clone(), why)
        .help("such as mac = \"02:00:00:00:00:01\", or leave `mac` out and the planner makes one"),
    );
    None
}

/// The VLAN of a card.
fn vlan_of(number: &Placed<u32>, findings: &mut Vec<Finding>) -> Option<Placed<u16>> {
    if VLANS.contains(&number.value) {
        let value = u16::try_from(number.value).ok()?;
        let span = number.span.clone();
        return Some(Placed { value, span });
    }
    findings.push(
        Finding::new(Code::NetworkVlan, "VLANs are 1 to 4094")
            .at(number.span.clone(), format!("{} here", number.value))
            .help("leave `vlan` out for none"),
    );
    None
}

/// The remedy for a network that is not described.
fn instead<'a>(wanted: &str, names: impl Iterator<Item = &'a str>) -> String {
    let known: Vec<&str> = names.collect();
    match known[..] {
        [] => format!("add a table [network.{wanted}]"),
        _ => format!(
            "add a table [network.{wanted}]; those here are {}",
            known.join(", ")
        ),
    }
}

/// Checks cards of all VMs against networks, and against each other.
pub(super) fn check(networks: &[NetworkSpec], all: &[&PortSpec], findings: &mut Vec<Finding>) {
    let ports = || all.iter().copied();
    for port in ports() {
        let wanted = &port.network;
        if networks
            .iter()
            .any(|known| known.name.value == wanted.value)
        {
            continue;
        }
        let finding = Finding::new(
            Code::NetworkUnknown,
            format!("there is no network `{}`", wanted.value),
        )
        .at(wanted.span.clone(), "not described here");
        let names = networks.iter().map(|network| network.name.value.as_str());
        findings.push(match nearest(&wanted.value, names.clone()) {
            Some(known) => finding.help(format!("did you mean `{known}`?")),
            None => finding.help(instead(&wanted.value, names)),
        });
    }
    for network in networks {
        let name = &network.name.value;
        let mut members = ports().filter(|port| port.network.value == *name);
        match (members.next(), members.next()) {
            (None, _) => findings.push(
                Finding::new(
                    Code::NetworkUnused,
                    format!("no VM has a card in network `{name}`"),
                )
                .at(network.name.span.clone(), "nobody here")
                .help(format!(
                    "say networks = [{{ name = \"{name}\" }}] in VMs, or leave the table out"
                )),
            ),
            (Some(only), None) => findings.push(
                Finding::new(
                    Code::NetworkAlone,
                    format!("network `{name}` has one card only"),
                )
                .at(only.network.span.clone(), "reaches nobody")
                .at(network.name.span.clone(), "the network")
                .help("give a second VM a card in it"),
            ),
            _ => {}
        }
    }
    let mut known: Vec<&Placed<Mac>> = Vec::new();
    for mac in ports().filter_map(|port| port.mac.as_ref()) {
        if let Some(first) = known.iter().find(|first| first.value == mac.value) {
            findings.push(
                Finding::new(
                    Code::NetworkMacTwice,
                    format!("two cards have the address {}", mac.value),
                )
                .at(mac.span.clone(), "again")
                .at(first.span.clone(), "the first")
                .help("leave one of them out, and the planner makes another"),
            );
        }
        known.push(mac);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_are_six_bytes() {
        let mac = Mac([2, 0, 0x1a, 0xff, 0, 1]);
        assert_eq!(Mac::parse("02:00:1A:ff:00:01"), Some(mac));
        assert_eq!(Mac::parse(&mac.to_string()), Some(mac));
        for wrong in [
            "",
            "02:00:00:00:00",
            "02:00:00:00:00:00:00",
            "02:00:00:00:00:0g",
            "2:0:0:0:0:1",
            "02:00:00:00:00:+1",
            "020000000001",
        ] {
            assert_eq!(Mac::parse(wrong), None, "{wrong}");
        }
    }
}
