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
    fn addresses_are_hexadecimal() {
        assert_eq!(parse_address("0x4000_0000"), Ok(0x4000_0000));
        assert!(parse_address("4000").is_err());
        assert!(parse_address("0x").is_err());
        assert!(parse_address("0x10000000000000000").is_err());
    }
}
