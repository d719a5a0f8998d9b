//! Sizes and addresses as people write them.

use std::fmt;

/// Units of sizes, largest first.
const UNITS: [(&str, u64); 3] = [("GiB", 1 << 30), ("MiB", 1 << 20), ("KiB", 1 << 10)];

/// Reads `768MiB`, `4KiB`, `2GiB`.
///
/// # Errors
/// Why the text is no size.
pub fn parse_size(text: &str) -> Result<u64, String> {
    let text = text.trim();
    let digits = text
        .find(|c: char| !c.is_ascii_digit())
        .unwrap_or(text.len());
    let (number, unit) = text.split_at(digits);
    let factor = UNITS
        .iter()
        .find(|(name, _)| *name == unit.trim())
        .map(|(_, factor)| factor);
    let Some(factor) = factor else {
        return Err("a size is a number and one of KiB, MiB, GiB".to_owned());
    };
    let number: u64 = number
        .parse()
        .map_err(|_| "a size starts with a number".to_owned())?;
    match number.checked_mul(*factor) {
        Some(0) => Err("the size is nothing".to_owned()),
        Some(size) if size <= 1 << 48 => Ok(size),
        _ => Err("that is more than any board has".to_owned()),
    }
}

/// Units of times in seconds.
const TIMES: [(&str, u64); 3] = [("h", 3600), ("min", 60), ("s", 1)];

/// Reads `60s`, `10min`, `1h`; gives seconds.
///
/// # Errors
/// Why the text is no time.
pub fn parse_time(text: &str) -> Result<u64, String> {
    let text = text.trim();
    let digits = text
        .find(|c: char| !c.is_ascii_digit())
        .unwrap_or(text.len());
    let (number, unit) = text.split_at(digits);
    let factor = TIMES.iter().find(|(name, _)| *name == unit.trim());
    let (_, factor) = factor.ok_or("a time is a number and one of s, min, h")?;
    let number: u64 = number.parse().map_err(|_| "a time starts with a number")?;
    number
        .checked_mul(*factor)
        .ok_or_else(|| "that is longer than anything lasts".to_owned())
}

/// Units of short times in nanoseconds, longest first.
const SHORT: [(&str, u64); 4] = [
    ("s", 1_000_000_000),
    ("ms", 1_000_000),
    ("us", 1000),
    ("ns", 1),
];

/// Reads `2ms`, `500us`, `1s`; gives nanoseconds.
///
/// # Errors
/// Why the text is no such time.
pub fn parse_duration(text: &str) -> Result<u64, String> {
    let text = text.trim();
    let digits = text
        .find(|c: char| !c.is_ascii_digit())
        .unwrap_or(text.len());
    let (number, unit) = text.split_at(digits);
    let factor = SHORT.iter().find(|(name, _)| *name == unit.trim());
    let (_, factor) = factor.ok_or("a short time is a whole number and one of us, ms, s")?;
    let number: u64 = number.parse().map_err(|_| "a time starts with a number")?;
    number
        .checked_mul(*factor)
        .ok_or_else(|| "that is longer than anything lasts".to_owned())
}

/// Shows nanoseconds in the longest unit in which there are at most three decimals.
#[derive(Clone, Copy, Debug)]
pub struct Duration(pub u64);

impl fmt::Display for Duration {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let fits = |factor: u64| self.0 >= factor && self.0.is_multiple_of((factor / 1000).max(1));
        let found = SHORT.iter().find(|(_, factor)| fits(*factor));
        let (name, factor) = found.copied().unwrap_or(("ns", 1));
        let (whole, rest) = (self.0 / factor, self.0 % factor);
        if rest == 0 {
            return write!(f, "{whole} {name}");
        }
        let decimals = format!("{:03}", rest / (factor / 1000));
        write!(f, "{whole}.{} {name}", decimals.trim_end_matches('0'))
    }
}

/// Reads `30%`: 1 to 100.
///
/// # Errors
/// Why the text is no such part.
pub fn parse_percent(text: &str) -> Result<u64, String> {
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

/// Shows a size with the largest unit that leaves no rest.
#[derive(Clone, Copy, Debug)]
pub struct Size(pub u64);

impl fmt::Display for Size {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (name, factor) in UNITS {
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
        assert_eq!(parse_time("60s"), Ok(60));
        assert_eq!(parse_time("2 min"), Ok(120));
        assert_eq!(parse_time("1h"), Ok(3600));
        assert!(parse_time("60").is_err());
        assert!(parse_time("s").is_err());
        assert!(parse_time("99999999999999999h").is_err());
    }

    #[test]
    fn short_times_are_nanoseconds() {
        assert_eq!(parse_duration("2ms"), Ok(2_000_000));
        assert_eq!(parse_duration("500 us"), Ok(500_000));
        assert_eq!(parse_duration("10s"), Ok(10_000_000_000));
        assert!(parse_duration("1min").is_err());
        assert!(parse_duration("2.5ms").is_err());
        assert!(parse_duration("99999999999999999s").is_err());
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
