//! `manages` of a VM: what it may do with others, through its control port.

use bulkhead_abi::control::right;
use toml::Spanned;
use toml::de::DeValue;

use super::code::Code;
use super::finding::{Finding, Span};
use super::keys::VM;
use super::reader::{Placed, Reader};
use super::suggest::nearest;

/// What stands for all VMs.
const ALL: &str = "*";

/// Rights of a VM over another one, or over all.
#[derive(Clone, Debug)]
pub struct ManagesSpec {
    /// Name of the other one; none: all, itself included.
    pub vm: Option<Placed<String>>,
    /// The rights: bits of [`right`].
    pub rights: u32,
    /// Where they stand.
    pub span: Span,
}

/// Reads `manages`. The place is that of the key.
pub(super) fn read(reader: &mut Reader) -> (Vec<ManagesSpec>, Option<Span>) {
    let key = const { VM.key("manages") };
    let Some(value) = reader.value(key) else {
        return (Vec::new(), None);
    };
    let place = Some(value.span());
    let Some(table) = value.get_ref().as_table() else {
        reader.report(
            Finding::new(
                Code::ValueType,
                "`manages` must be a table of VMs and rights",
            )
            .at(value.span(), "no table")
            .help("such as manages = { guest = [\"start\", \"stop\"], \"*\" = [\"list\"] }"),
        );
        return (Vec::new(), place);
    };
    if table.is_empty() {
        reader.report(
            Finding::new(Code::ManagesRight, "this VM manages nobody")
                .at(value.span(), "no VM here")
                .help("name a VM and its rights, such as { \"*\" = [\"list\"] }, or leave `manages` out"),
        );
    }
    let all = table.iter().filter_map(|(name, rights)| {
        let span = rights.span();
        let rights = of_one(rights, reader)?;
        let vm = (name.get_ref() != ALL).then(|| Placed {
            value: name.get_ref().to_string(),
            span: name.span(),
        });
        Some(ManagesSpec { vm, rights, span })
    });
    (all.collect(), place)
}

/// The rights over one VM. None: something else is there, or none, which is reported.
fn of_one(value: &Spanned<DeValue>, reader: &mut Reader) -> Option<u32> {
    let names = || right::ALL.iter().map(|(_, name)| *name);
    let help = || format!("rights are {}", names().collect::<Vec<_>>().join(", "));
    let words = value.get_ref().as_array().filter(|words| !words.is_empty());
    let Some(words) = words else {
        reader.report(
            Finding::new(Code::ManagesRight, "rights over a VM are a list of words")
                .at(value.span(), "no word here")
                .help(help()),
        );
        return None;
    };
    let mut rights = right::LIST;
    for word in words {
        let text = word.get_ref().as_str().unwrap_or_default();
        match right::ALL.iter().find(|(_, name)| *name == text) {
            Some((bit, _)) => rights |= bit,
            None => {
                let help = match nearest(text, names()) {
                    Some(name) => format!("did you mean \"{name}\"? {}", help()),
                    None => help(),
                };
                reader.report(
                    Finding::new(Code::ManagesRight, format!("there is no right `{text}`"))
                        .at(word.span(), "no right")
                        .help(help),
                );
            }
        }
    }
    Some(rights)
}
