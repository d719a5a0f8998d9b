//! What lies in a flattened device tree: tokens, properties by their names, strings and numbers.

use zerocopy::{FromBytes, IntoBytes};

pub(super) const BEGIN_NODE: u32 = 1;
pub(super) const END_NODE: u32 = 2;
pub(super) const PROP: u32 = 3;
pub(super) const NOP: u32 = 4;

/// Number of properties that are read.
pub(super) const NAMES: usize = 11;
/// Number of names that are remembered, by where they lie in the strings block: some more than most trees have.
pub(super) const REMEMBERED: usize = 64;

/// A property that is read, by its name.
#[derive(Clone, Copy, Debug)]
pub(super) enum Name {
    Compatible,
    DeviceType,
    Reg,
    Interrupts,
    AddressCells,
    SizeCells,
    Ranges,
    EnableMethod,
    ReleaseAddress,
    Stdout,
    RngSeed,
}

impl Name {
    /// The one with which `text` begins, up to its terminating 0. Most are distinguished by their first letter.
    #[inline(never)]
    fn of(text: &[u8]) -> Option<Self> {
        let (wanted, name) = match text.first()? {
            b'c' if text.get(1) == Some(&b'p') => {
                (&b"cpu-release-addr\0"[..], Self::ReleaseAddress)
            }
            b'c' => (&b"compatible\0"[..], Self::Compatible),
            b'd' => (&b"device_type\0"[..], Self::DeviceType),
            b'e' => (&b"enable-method\0"[..], Self::EnableMethod),
            b'i' => (&b"interrupts\0"[..], Self::Interrupts),
            b'r' => match text.get(1)? {
                b'e' => (&b"reg\0"[..], Self::Reg),
                b'a' => (&b"ranges\0"[..], Self::Ranges),
                _ => (&b"rng-seed\0"[..], Self::RngSeed),
            },
            b's' => (&b"stdout-path\0"[..], Self::Stdout),
            b'#' if text.get(1) == Some(&b'a') => (&b"#address-cells\0"[..], Self::AddressCells),
            b'#' => (&b"#size-cells\0"[..], Self::SizeCells),
            _ => return None,
        };
        text.starts_with(wanted).then_some(name)
    }
}

/// The values of the properties of one node that are read, by [`Name`]: where each property begins in the structure block, in words behind its
/// token. A node without it has 0, where the root's token is.
#[derive(Clone, Copy, Debug)]
pub(super) struct Values<'a> {
    words: &'a [u32],
    places: [u32; NAMES],
}

impl<'a> Values<'a> {
    /// No values, of a node in a structure block.
    pub(super) const fn new(words: &'a [u32]) -> Self {
        Self {
            words,
            places: [0; NAMES],
        }
    }

    pub(super) fn has(&self, name: Name) -> bool {
        self.places
            .get(name as usize)
            .is_some_and(|place| *place != 0)
    }

    /// The value; empty if the node does not have it.
    #[inline(never)]
    pub(super) fn of(&self, name: Name) -> &'a [u8] {
        let place = self.places.get(name as usize).filter(|place| **place != 0);
        let property = place.and_then(|place| self.words.get(*place as usize..));
        let Some([length, _, value @ ..]) = property else {
            return &[];
        };
        let length = u32::from_be(*length) as usize;
        value.as_bytes().get(..length).unwrap_or_default()
    }

    pub(super) fn get(&self, name: Name) -> Option<&'a [u8]> {
        self.has(name).then(|| self.of(name))
    }

    pub(super) fn cells(&self, name: Name, default: u32) -> u32 {
        let value = self.get(name);
        value.map_or(default, |value| word(value, 0).unwrap_or(0))
    }
}

/// Names by their offsets in the strings block, which is the same for all properties of a name: a property costs one look here in place of a
/// comparison of its name.
pub(super) struct Names<'a> {
    strings: &'a [u8],
    /// Offsets, each with the number of the [`Name`], or [`NAMES`] if it is none.
    known: [(u32, u32); REMEMBERED],
}

impl<'a> Names<'a> {
    /// Names of which none is known yet.
    pub(super) const fn new(strings: &'a [u8]) -> Self {
        // An empty place has an offset whose place is another one.
        let mut known = [(0, 0); REMEMBERED];
        known[0].0 = 4;
        Self { strings, known }
    }

    /// The number of the name at an offset as [`Name`] has it, [`NAMES`] if it is none; `None` behind the end of the block.
    #[inline(always)]
    pub(super) fn number(&mut self, offset: u32) -> Option<u32> {
        let place = self.known.get_mut(offset as usize / 4 % REMEMBERED)?;
        if place.0 != offset {
            let text = self.strings.get(offset as usize..)?;
            let number = Name::of(text).map_or(NAMES, |name| name as usize);
            *place = (offset, number as u32);
        }
        Some(place.1)
    }

    /// Finds the values of a node, whose properties come before its children and begin at word `at` of the structure block. Returns where the
    /// last one ends. `None`: the block is broken there, or ends.
    #[inline(always)]
    pub(super) fn find_values(&mut self, mut at: usize, values: &mut Values<'_>) -> Option<usize> {
        values.places = [0; NAMES];
        loop {
            let value = at.wrapping_add(PROPERTY);
            match values.words.get(at..value) {
                Some(&[token, length, name]) if token == PROP.to_be() => {
                    let number = self.number(u32::from_be(name))?;
                    if let Some(place) = values.places.get_mut(number as usize) {
                        // That its value ends before the block does shows when the next token is looked for.
                        *place = at.wrapping_add(1) as u32;
                    }
                    at = value.wrapping_add(words_of(u32::from_be(length)));
                }
                _ if *values.words.get(at)? == NOP.to_be() => at = at.wrapping_add(1),
                _ => return Some(at),
            }
        }
    }
}

/// Words of a property before its value: token, length, offset of its name.
const PROPERTY: usize = 3;

/// The number of words that so many bytes take.
#[inline(always)]
const fn words_of(bytes: u32) -> usize {
    (bytes as usize).wrapping_add(3) / 4
}

#[inline(never)]
pub(super) fn word(bytes: &[u8], at: usize) -> Option<u32> {
    Some(u32::from_be_bytes(*bytes.get(at..)?.first_chunk()?))
}

/// The length of the string at the beginning of some words, without its terminating 0; `None` if it does not end. A load of a word costs a
/// quarter of four loads of bytes.
pub(super) fn length(words: &[u32]) -> Option<usize> {
    const ONES: u32 = 0x0101_0101;
    let mut whole = 0usize;
    for four in words {
        let four = u32::from_le(*four);
        // The lowest of these bits is in the first byte that is 0.
        let zeros = four.wrapping_sub(ONES) & !four & ONES << 7;
        if zeros != 0 {
            return Some(whole.wrapping_add(zeros.trailing_zeros() as usize / 8));
        }
        whole = whole.wrapping_add(4);
    }
    None
}

/// Where the property ends whose token is in front of word `at`, of which there may be less.
pub(super) fn behind_property(words: &[u32], at: usize) -> Option<usize> {
    let length = words_of(u32::from_be(*words.get(at)?));
    Some(at.wrapping_add(PROPERTY - 1).wrapping_add(length))
}

/// Takes the property off the front whose token came before: the offset of its name in the strings block, and its value.
#[inline(always)]
pub(super) fn take_property<'a>(words: &mut &'a [u32]) -> Option<(u32, &'a [u8])> {
    let [length, name, rest @ ..] = *words else {
        return None;
    };
    let length = u32::from_be(*length);
    let (value, rest) = rest.split_at_checked(words_of(length))?;
    *words = rest;
    Some((
        u32::from_be(*name),
        value.as_bytes().get(..length as usize)?,
    ))
}

/// Takes a number of `cells` 32-bit words off the front; `None` if it could have more than 64 bits.
#[inline(never)]
pub(super) fn take(bytes: &mut &[u8], cells: u32) -> Option<u64> {
    let mut value = 0u64;
    if cells > 2 {
        return None;
    }
    for _ in 0..cells {
        let (four, rest) = bytes.split_first_chunk()?;
        value = value << 32 | u64::from(u32::from_be_bytes(*four));
        *bytes = rest;
    }
    Some(value)
}

/// The bytes up to the first 0.
#[inline(never)]
pub(super) fn string(bytes: &[u8]) -> &[u8] {
    let mut len = 0;
    while bytes.get(len).is_some_and(|byte| *byte != 0) {
        len = len.wrapping_add(1);
    }
    bytes.get(..len).unwrap_or(&[])
}

/// Takes a string and its terminating 0 off the front of a list of them.
#[inline(never)]
pub(super) fn take_string<'a>(list: &mut &'a [u8]) -> &'a [u8] {
    // The first one of a property is aligned, and most lists have no other.
    let words = <[u32]>::ref_from_prefix_with_elems(list, list.len() / 4);
    let end = words.ok().and_then(|(words, _)| length(words));
    let end = end.unwrap_or_else(|| string(list).len());
    let (first, rest) = list.split_at_checked(end).unwrap_or_default();
    *list = rest.get(1..).unwrap_or(&[]);
    first
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::vec::Vec;

    #[test]
    fn a_name_ends_at_its_first_zero_wherever_that_is_in_a_word() {
        for length in 0..10 {
            let mut bytes = [0xff_u8; 16];
            bytes[4..4 + length].copy_from_slice(&b"\x80a\x01b@\xff789\x7f"[..length]);
            bytes[4 + length] = 0;
            let words: Vec<u32> = bytes
                .as_chunks()
                .0
                .iter()
                .copied()
                .map(u32::from_ne_bytes)
                .collect();
            assert_eq!(super::length(&words[1..]), Some(length));
        }
        // A name without a terminating zero up to the end of the block is no name.
        assert_eq!(super::length(&[u32::MAX; 2]), None);
        assert_eq!(super::length(&[]), None);
    }

    #[test]
    fn a_property_ends_with_its_words() {
        let words = [
            6,
            0x12,
            u32::from_ne_bytes(*b"abcd"),
            u32::from_ne_bytes(*b"efgh"),
            1,
        ];
        let [length, name, ref value @ ..] = words;
        let words = [&[length.to_be(), name.to_be()][..], value].concat();
        let mut rest = &words[..];
        assert_eq!(
            super::take_property(&mut rest),
            Some((0x12, &b"abcdef"[..]))
        );
        assert_eq!(rest, &[1]);
        for short in 0..4 {
            assert_eq!(super::take_property(&mut &words[..short]), None);
        }
        let mut empty = &[0, 0x3_u32.to_be()][..];
        assert_eq!(super::take_property(&mut empty), Some((3, &[][..])));
        // So long that its end, rounded up, would be 0.
        assert_eq!(super::take_property(&mut &[u32::MAX, 0, 0][..]), None);
    }

    #[test]
    fn a_name_is_found_by_its_offset_however_many_there_are() {
        let all = [
            ("compatible", Some(Name::Compatible)),
            ("device_type", Some(Name::DeviceType)),
            ("reg", Some(Name::Reg)),
            ("interrupts", Some(Name::Interrupts)),
            ("#address-cells", Some(Name::AddressCells)),
            ("#size-cells", Some(Name::SizeCells)),
            ("ranges", Some(Name::Ranges)),
            ("enable-method", Some(Name::EnableMethod)),
            ("cpu-release-addr", Some(Name::ReleaseAddress)),
            ("stdout-path", Some(Name::Stdout)),
            ("rng-seed", Some(Name::RngSeed)),
            ("regs", None),
            ("re", None),
            ("rng", None),
            ("range", None),
            ("compatibl", None),
            ("cp", None),
            ("#interrupt-cells", None),
            ("#a", None),
            ("status", None),
            ("interrupts-extended", None),
            ("", None),
        ];
        // Names that have the same place, with others between them.
        let mut strings = Vec::new();
        let mut offsets = Vec::new();
        for (name, number) in all {
            offsets.push((strings.len() as u32, number));
            strings.extend_from_slice(name.as_bytes());
            strings.push(0);
            strings.resize(strings.len().next_multiple_of(256), b'x');
        }
        let mut names = Names::new(&strings);
        for far in 0..256 {
            assert_eq!(names.number(u32::MAX - far), None);
        }
        for _ in 0..2 {
            for (offset, name) in &offsets {
                let number = name.map_or(NAMES, |name| name as usize) as u32;
                for _ in 0..2 {
                    assert_eq!(names.number(*offset), Some(number), "{offset}");
                }
                // The end of a name is another name.
                assert_eq!(names.number(*offset + 1), Some(NAMES as u32), "{offset}");
            }
        }
        let end = strings.len() as u32;
        assert_eq!(names.number(end), Some(NAMES as u32));
        assert_eq!(names.number(end + 1), None);
        for far in 0..256 {
            assert_eq!(names.number(u32::MAX - far), None);
        }
    }

    #[test]
    fn each_name_that_is_read_has_a_value() {
        assert_eq!(Name::RngSeed as usize + 1, NAMES);
    }

    #[test]
    fn a_list_has_whole_strings() {
        for (list, there) in [
            (&b"arm,pl011\0"[..], true),
            (b"arm,pl011", true),
            (b"arm,pl011\0arm,primecell\0", true),
            (b"vendor,uart\0arm,pl011\0arm,primecell\0", true),
            (b"\0arm,pl011\0", true),
            (b"arm,pl0110\0arm,pl011\0", true),
            (b"arm,pl0110\0", false),
            (b"arm,pl01\0", false),
            (b"my-arm,pl011\0", false),
            (b"arm,pl01", false),
            (b"\0", false),
            (b"", false),
        ] {
            // Of a property, and where the compiler may have put it: only the first is aligned.
            let mut words = [0u32; 16];
            for at in [0, 1] {
                let place = &mut words.as_mut_bytes()[at..at + list.len()];
                place.copy_from_slice(list);
                let mut rest = &*place;
                let mut found = false;
                while !rest.is_empty() {
                    found |= super::take_string(&mut rest) == b"arm,pl011";
                }
                assert_eq!(found, there, "{list:?} at {at}");
            }
        }
    }
}
