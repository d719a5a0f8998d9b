//! The values between the fixed words of a line.

use super::Sink;

/// A part of a line that is a value.
pub trait Field<'a>: Sized {
    /// Appends it.
    fn write(&self, to: &mut impl Sink);
    /// Takes it from the start of `text`; `None` if something else stands there.
    fn parse(text: &mut &'a str) -> Option<Self>;
}

/// Takes the text before the first character that `ends` accepts.
fn take<'a>(text: &mut &'a str, ends: impl Fn(char) -> bool) -> &'a str {
    let (taken, rest) = text.split_at(text.find(ends).unwrap_or(text.len()));
    *text = rest;
    taken
}

/// A decimal number.
impl Field<'_> for u64 {
    #[inline(always)]
    fn write(&self, to: &mut impl Sink) {
        to.decimal(*self);
    }
    fn parse(text: &mut &str) -> Option<Self> {
        take(text, |c| !c.is_ascii_digit()).parse().ok()
    }
}

/// A hexadecimal number behind `0x`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Hex(pub u64);

impl Field<'_> for Hex {
    #[inline(always)]
    fn write(&self, to: &mut impl Sink) {
        to.hex(self.0);
    }
    fn parse(text: &mut &str) -> Option<Self> {
        *text = text.strip_prefix("0x")?;
        let digits = take(text, |c| !c.is_ascii_hexdigit());
        u64::from_str_radix(digits, 16).ok().map(Self)
    }
}

/// The name of a VM; what is written ends at the first 0.
#[derive(Clone, Copy, Debug)]
pub struct Name<'a>(pub &'a [u8]);

impl<'a> Name<'a> {
    /// The name without zeros; empty if it is not text.
    pub fn as_str(&self) -> &'a str {
        let mut parts = self.0.split(|byte| *byte == 0);
        core::str::from_utf8(parts.next().unwrap_or_default()).unwrap_or_default()
    }
}

impl PartialEq for Name<'_> {
    fn eq(&self, other: &Self) -> bool {
        self.as_str() == other.as_str()
    }
}

impl<'a> Field<'a> for Name<'a> {
    #[inline(always)]
    fn write(&self, to: &mut impl Sink) {
        to.name(self.0);
    }
    fn parse(text: &mut &'a str) -> Option<Self> {
        let name = take(text, |c| !c.is_ascii_alphanumeric() && c != '-');
        (!name.is_empty()).then_some(Self(name.as_bytes()))
    }
}

/// A word that ends before a blank, a comma or a colon.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Word<'a>(pub &'a str);

impl<'a> Field<'a> for Word<'a> {
    #[inline(always)]
    fn write(&self, to: &mut impl Sink) {
        to.text(self.0);
    }
    fn parse(text: &mut &'a str) -> Option<Self> {
        let word = take(text, |c| matches!(c, ' ' | ',' | ':'));
        (!word.is_empty()).then_some(Self(word))
    }
}

/// All that is left of a line.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rest<'a>(pub &'a str);

impl<'a> Field<'a> for Rest<'a> {
    #[inline(always)]
    fn write(&self, to: &mut impl Sink) {
        to.text(self.0);
    }
    fn parse(text: &mut &'a str) -> Option<Self> {
        Some(Self(core::mem::take(text)))
    }
}

/// A value with blanks behind it, up to a column of the line.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Padded<T, const COLUMN: usize>(pub T);

impl<'a, T: Field<'a>, const COLUMN: usize> Field<'a> for Padded<T, COLUMN> {
    #[inline(always)]
    fn write(&self, to: &mut impl Sink) {
        self.0.write(to);
        to.column(COLUMN);
    }
    fn parse(text: &mut &'a str) -> Option<Self> {
        let value = T::parse(text)?;
        // One blank is the next words'.
        let blanks = text.len() - text.trim_start_matches(' ').len();
        *text = text.get(blanks.saturating_sub(1)..)?;
        Some(Self(value))
    }
}

/// A part of a whole, written in percent with two decimals. Equal are those that are written alike.
#[derive(Clone, Copy, Debug)]
pub struct Percent {
    /// The part.
    pub part: u64,
    /// The whole.
    pub of: u64,
}

impl Percent {
    /// Parts of ten thousand.
    #[inline(always)]
    pub fn hundredths(&self) -> u64 {
        let Self { part, of } = *self;
        let scaled = u128::from(part).wrapping_mul(10_000);
        // Both are sums of cycle counts; the quotient of two of them fits as long as part <= of.
        match (scaled >> 64, of) {
            (_, 0) => 0,
            (0, _) => (scaled as u64) / of,
            _ => (part / (of / 10_000).max(1)).min(10_000),
        }
    }
}

impl PartialEq for Percent {
    fn eq(&self, other: &Self) -> bool {
        self.hundredths() == other.hundredths()
    }
}

/// Not inlined: lines of several kinds have one.
#[inline(never)]
fn percent(to: &mut impl Sink, part: u64, of: u64) {
    let share = Percent { part, of }.hundredths();
    to.padded(share / 100, 3);
    to.byte(b'.');
    to.decimal(share / 10 % 10);
    to.decimal(share % 10);
}

impl Field<'_> for Percent {
    #[inline(always)]
    fn write(&self, to: &mut impl Sink) {
        percent(to, self.part, self.of);
    }
    fn parse(text: &mut &str) -> Option<Self> {
        *text = text.trim_start_matches(' ');
        let whole = u64::parse(text)?.checked_mul(100)?;
        let mut hundredths = 0;
        if let Some(rest) = text.strip_prefix('.') {
            *text = rest;
            let digits = take(text, |c| !c.is_ascii_digit()).bytes();
            let digits = digits.map(|digit| u64::from(digit.wrapping_sub(b'0')));
            for (digit, weight) in digits.zip([10, 1]) {
                hundredths += digit * weight;
            }
        }
        Some(Self {
            part: whole.checked_add(hundredths)?,
            of: 10_000,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shares_do_not_overflow() {
        let share = |part, of| Percent { part, of }.hundredths();
        assert_eq!(share(u64::MAX / 2, u64::MAX), 5_000);
        assert_eq!(share(1, 0), 0);
        assert_eq!(share(1, 3), 3_333);
    }
}
