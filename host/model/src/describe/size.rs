//! Sizes, times and addresses as people write them.

use std::fmt;

use super::code::Code;

/// Notation of a quantity.
#[derive(Debug)]
pub struct Notation {
    /// Name of the quantity, for editors.
    pub title: &'static str,
    /// Example of a value.
    pub example: &'static str,
    /// Regular expression of the texts that the reader takes, apart from limits.
    pub pattern: &'static str,
    /// Code of the finding for a text that is not such a quantity.
    pub code: Code,
    /// Reads a quantity, or says why the text is none.
    pub parse: fn(&str) -> Result<u64, String>,
}

/// Bytes.
pub const SIZE: Notation = Notation {
    title: "size",
    example: "64MiB",
    pattern: r"^\s*[0-9]*[1-9][0-9]*\s*(KiB|MiB|GiB)\s*$",
    code: Code::ValueSize,
    parse: parse_size,
};
/// An address.
pub const ADDRESS: Notation = Notation {
    title: "address",
    example: "0x40000000",
    pattern: r"^\s*0x[0-9a-fA-F_]*[0-9a-fA-F][0-9a-fA-F_]*\s*$",
    code: Code::ValueAddress,
    parse: parse_address,
};
/// Seconds.
pub const TIME: Notation = Notation {
    title: "time",
    example: "60s",
    pattern: r"^\s*[0-9]+\s*(s|min|h)\s*$",
    code: Code::ValueTime,
    parse: |text| TIMES.parse(text),
};
/// Nanoseconds.
pub const DURATION: Notation = Notation {
    title: "duration",
    example: "2ms",
    pattern: r"^\s*[0-9]+\s*(s|ms|us|ns)\s*$",
    code: Code::ValueTime,
    parse: |text| DURATIONS.parse(text),
};
/// Hundredths.
pub const PERCENT: Notation = Notation {
    title: "share",
    example: "30%",
    pattern: r"^\s*0*([1-9][0-9]?|100)\s*%\s*$",
    code: Code::ValuePart,
    parse: parse_percent,
};

/// Units of one kind of quantity.
struct Scale {
    /// Name of the quantity, for messages.
    what: &'static str,
    /// Required form, for messages.
    rule: &'static str,
    /// Message for a value that does not fit 64 bits.
    too_much: &'static str,
    /// Names of units and what each is, largest first.
    units: &'static [(&'static str, u64)],
}

const SIZES: Scale = Scale {
    what: "a size",
    rule: "a size is a number and one of KiB, MiB, GiB",
    too_much: "that is more than any board has",
    units: &[("GiB", 1 << 30), ("MiB", 1 << 20), ("KiB", 1 << 10)],
};
const TIMES: Scale = Scale {
    what: "a time",
    rule: "a time is a number and one of s, min, h",
    too_much: "that is longer than anything lasts",
    units: &[("h", 3600), ("min", 60), ("s", 1)],
};
const DURATIONS: Scale = Scale {
    what: "a time",
    rule: "a short time is a whole number and one of us, ms, s",
    too_much: "that is longer than anything lasts",
    units: &[
        ("s", 1_000_000_000),
        ("ms", 1_000_000),
        ("us", 1000),
        ("ns", 1),
    ],
};

impl Scale {
    /// Reads a whole number with a unit behind it, such as `2ms` or `4 KiB`.
    fn parse(&self, text: &str) -> Result<u64, String> {
        let text = text.trim();
        let digits = text.find(|c: char| !c.is_ascii_digit());
        let (number, unit) = text.split_at(digits.unwrap_or(text.len()));
        let mut units = self.units.iter();
        let unit = units.find(|(name, _)| *name == unit.trim());
        let (_, factor) = unit.ok_or(self.rule)?;
        let number = number.parse::<u64>();
        let number = number.map_err(|_| format!("{} starts with a number", self.what))?;
        let quantity = number.checked_mul(*factor);
        quantity.ok_or_else(|| self.too_much.to_owned())
    }
}

/// Reads `768MiB`, `4KiB`, `2GiB`.
///
/// # Errors
/// Why the text is no size.
pub fn parse_size(text: &str) -> Result<u64, String> {
    match SIZES.parse(text)? {
        0 => Err("the size is nothing".to_owned()),
        size if size <= 1 << 48 => Ok(size),
        _ => Err(SIZES.too_much.to_owned()),
    }
}

/// Reads `30%`: 1 to 100.
fn parse_percent(text: &str) -> Result<u64, String> {
    let number = text.trim().strip_suffix('%');
    let number = number.and_then(|number| number.trim_end().parse().ok());
    let part = number.filter(|part| (1..=100).contains(part));
    part.ok_or_else(|| "a part of a CPU is a whole number from 1% to 100%".to_owned())
}

/// Reads `0x40000000`.
///
/// # Errors
/// Why the text is no address.
pub fn parse_address(text: &str) -> Result<u64, String> {
    let digits = text
        .trim()
        .strip_prefix("0x")
        .ok_or("an address starts with 0x")?
        .replace('_', "");
    u64::from_str_radix(&digits, 16)
        .map_err(|_| "an address has hexadecimal digits behind 0x, 16 at most".to_owned())
}

/// Shows nanoseconds in the longest unit in which there are at most three decimals.
#[derive(Clone, Copy, Debug)]
pub struct Duration(pub u64);

impl fmt::Display for Duration {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let fits = |factor: u64| self.0 >= factor && self.0.is_multiple_of((factor / 1000).max(1));
        let found = DURATIONS.units.iter().find(|(_, factor)| fits(*factor));
        let (name, factor) = found.copied().unwrap_or(("ns", 1));
        let (whole, rest) = (self.0 / factor, self.0 % factor);
        if rest == 0 {
            return write!(f, "{whole} {name}");
        }
        let decimals = format!("{:03}", rest / (factor / 1000));
        write!(f, "{whole}.{} {name}", decimals.trim_end_matches('0'))
    }
}

/// Shows a size with the largest unit that leaves no rest.
#[derive(Clone, Copy, Debug)]
pub struct Size(pub u64);

impl fmt::Display for Size {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for &(name, factor) in SIZES.units {
            if self.0 >= factor && self.0.is_multiple_of(factor) {
                return write!(f, "{} {name}", self.0 / factor);
            }
        }
        write!(f, "{} bytes", self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_read_and_shown() {
        assert_eq!(parse_size("768MiB"), Ok(768 << 20));
        assert_eq!(parse_size("2 GiB"), Ok(2 << 30));
        assert!(parse_size("768MB").is_err());
        assert!(parse_size("MiB").is_err());
        assert!(parse_size("0KiB").is_err());
        assert!(parse_size("99999999999GiB").is_err());
        assert_eq!(Size(1536 << 20).to_string(), "1536 MiB");
        assert_eq!(Size(2 << 30).to_string(), "2 GiB");
        assert_eq!(Size(5).to_string(), "5 bytes");
    }

    #[test]
    fn times_are_seconds() {
        assert_eq!((TIME.parse)("60s"), Ok(60));
        assert_eq!((TIME.parse)("2 min"), Ok(120));
        assert_eq!((TIME.parse)("1h"), Ok(3600));
        assert!((TIME.parse)("60").is_err());
        assert!((TIME.parse)("s").is_err());
        assert!((TIME.parse)("99999999999999999h").is_err());
    }

    #[test]
    fn short_times_are_nanoseconds() {
        assert_eq!((DURATION.parse)("2ms"), Ok(2_000_000));
        assert_eq!((DURATION.parse)("500 us"), Ok(500_000));
        assert_eq!((DURATION.parse)("10s"), Ok(10_000_000_000));
        assert!((DURATION.parse)("1min").is_err());
        assert!((DURATION.parse)("2.5ms").is_err());
        assert!((DURATION.parse)("99999999999999999s").is_err());
        let shown = |time| Duration(time).to_string();
        assert_eq!(shown(2_000_000), "2 ms");
        assert_eq!(shown(500_900), "500.9 us");
        assert_eq!(shown(1_050_000), "1.05 ms");
        assert_eq!(shown(1_000_450), "1000.45 us");
        assert_eq!(shown(0), "0 ns");
        assert_eq!(shown(999), "999 ns");
    }

    #[test]
    fn parts_are_percent() {
        assert_eq!(parse_percent("30%"), Ok(30));
        assert_eq!(parse_percent("100 %"), Ok(100));
        assert!(parse_percent("0%").is_err());
        assert!(parse_percent("101%").is_err());
        assert!(parse_percent("30").is_err());
    }

    #[test]
    fn addresses_are_hexadecimal() {
        assert_eq!(parse_address("0x4000_0000"), Ok(0x4000_0000));
        assert!(parse_address("4000").is_err());
        assert!(parse_address("0x").is_err());
        assert!(parse_address("0x10000000000000000").is_err());
    }
}
