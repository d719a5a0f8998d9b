//! Lines of text without `core::fmt`: its tables and indirect calls would be larger than all
//! messages of EL2, and the call-graph gate could not analyse them.

use bulkhead_abi::console::Sink;

/// Flag of [`TextLine::number`]; above all widths.
const BLANK: usize = 32;

/// Bytes of a line at most. All lines have one size: with several, EL2 had what writes them several times.
pub const SIZE: usize = 176;

/// A line of text of at most [`SIZE`] bytes; what does not fit is cut off. (`line` of a device is the
/// level of its interrupt output.)
#[derive(Clone, Copy, Debug)]
pub struct TextLine {
    bytes: [u8; SIZE],
    len: usize,
    /// Bytes in front of the first column.
    margin: usize,
}

impl Default for TextLine {
    fn default() -> Self {
        Self::new()
    }
}

impl TextLine {
    /// An empty line.
    pub const fn new() -> Self {
        Self {
            bytes: [0; SIZE],
            len: 0,
            margin: 0,
        }
    }

    /// Removes all bytes.
    pub fn clear(&mut self) {
        self.len = 0;
        self.margin = 0;
    }

    /// Appends a label. Columns are counted from behind it.
    pub fn label(&mut self, label: &str) {
        self.text(label);
        self.margin = self.len;
    }

    /// The bytes so far.
    pub fn as_bytes(&self) -> &[u8] {
        self.bytes.get(..self.len).unwrap_or(&[])
    }

    /// Appends one byte.
    pub fn byte(&mut self, byte: u8) -> &mut Self {
        if let Some(place) = self.bytes.get_mut(self.len) {
            *place = byte;
            self.len = self.len.saturating_add(1);
        }
        self
    }

    /// Appends text. Not inlined: there are hundreds of calls, each with a text of its own.
    #[inline(never)]
    pub fn text(&mut self, text: &str) -> &mut Self {
        self.all(text.as_bytes())
    }

    /// Appends bytes.
    pub fn all(&mut self, bytes: &[u8]) -> &mut Self {
        let room = self.bytes.get_mut(self.len..).unwrap_or_default();
        let fit = bytes.len().min(room.len());
        for (place, byte) in room.iter_mut().zip(bytes) {
            *place = *byte;
        }
        self.len = self.len.saturating_add(fit);
        self
    }

    /// Appends a name of fixed width that ends at the first 0.
    pub fn name(&mut self, name: &[u8]) -> &mut Self {
        for byte in name.iter().take_while(|byte| **byte != 0) {
            self.byte(*byte);
        }
        self
    }

    /// Appends `0x` and the hexadecimal digits of a number, without leading zeros.
    pub fn hex(&mut self, value: u64) -> &mut Self {
        self.text("0x");
        let digits = 16u32.saturating_sub(value.leading_zeros() / 4).max(1);
        for digit in (0..digits).rev() {
            let nibble = (value >> (digit.wrapping_mul(4) & 63)) & 15;
            self.byte(
                b"0123456789abcdef"
                    .get(nibble as usize)
                    .copied()
                    .unwrap_or(b'?'),
            );
        }
        self
    }

    /// Appends a number in decimal digits.
    pub fn decimal(&mut self, value: u64) -> &mut Self {
        self.padded(value, 0)
    }

    /// Appends a number in decimal digits, at least `width` characters wide, which is 20 at most.
    pub fn padded(&mut self, value: u64, width: usize) -> &mut Self {
        self.number(value, width)
    }

    /// Appends a blank and then what [`Self::padded`] appends: a column of a table.
    pub fn cell(&mut self, value: u64, width: usize) -> &mut Self {
        self.number(value, width | BLANK)
    }

    /// `form`: the least width, and whether a blank comes first. One argument, because numbers are written in many
    /// places.
    fn number(&mut self, value: u64, form: usize) -> &mut Self {
        let mut digits = [b' '; 21];
        let mut rest = value;
        let mut used = 0usize;
        for place in digits.iter_mut().rev() {
            *place = b'0'.wrapping_add((rest % 10) as u8);
            rest /= 10;
            used = used.saturating_add(1);
            if rest == 0 {
                break;
            }
        }
        let wide = used.max(form % BLANK).wrapping_add(form / BLANK);
        let start = digits.len().saturating_sub(wide);
        self.all(digits.get(start..).unwrap_or_default())
    }

    /// Appends blanks up to a column.
    pub fn column(&mut self, column: usize) -> &mut Self {
        let end = self.margin.saturating_add(column).min(SIZE);
        while self.len < end {
            self.byte(b' ');
        }
        self
    }
}

impl Sink for TextLine {
    #[inline(always)]
    fn text(&mut self, text: &str) {
        TextLine::text(self, text);
    }
    #[inline(always)]
    fn byte(&mut self, byte: u8) {
        TextLine::byte(self, byte);
    }
    #[inline(always)]
    fn name(&mut self, name: &[u8]) {
        TextLine::name(self, name);
    }
    #[inline(always)]
    fn decimal(&mut self, value: u64) {
        TextLine::decimal(self, value);
    }
    #[inline(always)]
    fn padded(&mut self, value: u64, width: usize) {
        TextLine::padded(self, value, width);
    }
    #[inline(always)]
    fn cell(&mut self, value: u64, width: usize) {
        TextLine::cell(self, value, width);
    }
    #[inline(always)]
    fn hex(&mut self, value: u64) {
        TextLine::hex(self, value);
    }
    #[inline(always)]
    fn column(&mut self, column: usize) {
        TextLine::column(self, column);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::{format, string::String};

    fn show(line: &TextLine) -> String {
        String::from_utf8(line.as_bytes().to_vec()).unwrap()
    }

    #[test]
    fn numbers_read_as_rust_prints_them() {
        for value in [0, 1, 9, 10, 15, 16, 255, 1 << 40, u64::MAX] {
            let mut line = TextLine::new();
            line.hex(value)
                .byte(b' ')
                .decimal(value)
                .byte(b' ')
                .padded(value, 8)
                .cell(value, 9);
            assert_eq!(
                show(&line),
                format!("{value:#x} {value} {value:8} {value:9}")
            );
        }
    }

    #[test]
    fn columns_begin_behind_the_label_and_what_does_not_fit_is_cut() {
        let mut line = TextLine::new();
        line.label("[el2] ");
        assert_eq!(show(line.text("a").column(3).text("b")), "[el2] a  b");
        line.clear();
        line.column(SIZE - 4).text("abcdef").column(SIZE + 9);
        assert!(show(&line).ends_with("  abcd"));
        assert_eq!(line.as_bytes().len(), SIZE);
        line.clear();
        assert_eq!(show(line.text("xy")), "xy");
    }
}
