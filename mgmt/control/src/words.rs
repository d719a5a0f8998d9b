//! Times, shares and sets of pCPUs as people write and read them.

use std::fmt::Write;

/// A time in each period, in nanoseconds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Share {
    /// Budget or quota.
    pub amount: u64,
    /// Period.
    pub period: u64,
}

/// Units of times and their nanoseconds, the longest first.
const UNITS: [(&str, u64); 4] = [
    ("s", 1_000_000_000),
    ("ms", 1_000_000),
    ("us", 1_000),
    ("ns", 1),
];

/// Reads a time such as `3ms` or `1.5s`; gives nanoseconds.
///
/// # Errors
/// It is none; the error says what is wanted.
pub fn time(text: &str) -> Result<u64, String> {
    let wrong =
        || format!("`{text}` is no time; a number with a unit is wanted, such as 3ms, 500us or 1s");
    let digits = text
        .find(|c: char| !c.is_ascii_digit() && c != '.')
        .ok_or_else(wrong)?;
    let (number, unit) = text.split_at(digits);
    let (_, factor) = UNITS
        .iter()
        .find(|(name, _)| *name == unit)
        .ok_or_else(wrong)?;
    let (whole, fraction) = number.split_once('.').unwrap_or((number, "0"));
    let whole: u64 = whole.parse().map_err(|_| wrong())?;
    // To the last digit: 0.1 has no exact binary fraction.
    let mut nanos = whole.checked_mul(*factor).ok_or_else(wrong)?;
    let mut unit = *factor;
    if fraction.is_empty() {
        return Err(wrong());
    }
    for digit in fraction.chars() {
        let digit = digit.to_digit(10).ok_or_else(wrong)?;
        if unit % 10 != 0 && digit != 0 {
            return Err(format!("`{text}` is finer than a nanosecond"));
        }
        unit /= 10;
        nanos = nanos
            .checked_add(unit * u64::from(digit))
            .ok_or_else(wrong)?;
    }
    Ok(nanos)
}

/// Reads `3ms/10ms`.
///
/// # Errors
/// It is no share; the error says what is wanted.
pub fn share(text: &str) -> Result<Share, String> {
    let (amount, period) = text.split_once('/').ok_or_else(|| {
        format!("`{text}` has no period; TIME/PERIOD is wanted, such as 3ms/10ms")
    })?;
    let share = Share {
        amount: time(amount)?,
        period: time(period)?,
    };
    if share.amount == 0 || share.amount > share.period {
        return Err(format!(
            "{amount} is to be more than nothing and at most the period, {period}"
        ));
    }
    Ok(share)
}

/// Reads `0-2,5`; gives a bit for each.
///
/// # Errors
/// It is no list; the error says what is wanted.
pub fn cpus(text: &str) -> Result<u64, String> {
    let wrong =
        || format!("`{text}` is no list of pCPUs; numbers and ranges are wanted, such as 0-2,5");
    let number = |text: &str| {
        text.parse::<u32>()
            .ok()
            .filter(|number| *number < 64)
            .ok_or_else(wrong)
    };
    let mut all = 0;
    for part in text.split(',') {
        let (first, last) = part.split_once('-').unwrap_or((part, part));
        let (first, last) = (number(first)?, number(last)?);
        if first > last {
            return Err(wrong());
        }
        all |= (first..=last).fold(0, |bits, number| bits | 1 << number);
    }
    Ok(all)
}

/// Writes pCPUs as [`cpus`] reads them.
pub fn cpu_list(bits: u64) -> String {
    let is_in = |number: u32| number < 64 && bits >> number & 1 == 1;
    let mut text = String::new();
    let mut number = 0;
    while number < 64 {
        if !is_in(number) {
            number += 1;
            continue;
        }
        let first = number;
        while is_in(number) {
            number += 1;
        }
        let comma = if text.is_empty() { "" } else { "," };
        // Writing to a string does not fail.
        let _ = match number - first {
            1 => write!(text, "{comma}{first}"),
            _ => write!(text, "{comma}{first}-{}", number - 1),
        };
    }
    text
}

/// Writes nanoseconds with three digits that say something, and the unit that fits.
pub fn duration(nanos: u64) -> String {
    if nanos == 0 {
        return "0".to_owned();
    }
    // What would be rounded to 1000 of a unit is 1 of the next.
    let (unit, factor) = UNITS
        .iter()
        .find(|(_, factor)| nanos as f64 >= 0.9995 * *factor as f64)
        .unwrap_or(&UNITS[3]);
    let value = nanos as f64 / *factor as f64;
    let digits = match value {
        _ if *factor == 1 => 0,
        value if value < 9.995 => 2,
        value if value < 99.95 => 1,
        _ => 0,
    };
    let text = format!("{value:.digits$}");
    let text = if digits > 0 {
        text.trim_end_matches('0').trim_end_matches('.')
    } else {
        &text
    };
    format!("{text}{unit}")
}

/// Writes `3ms/10ms`.
pub fn share_text(amount: u64, period: u64) -> String {
    format!("{}/{}", duration(amount), duration(period))
}

/// A part in hundredths, as `12.3%`.
pub fn percent(part: f64) -> String {
    format!("{:.1}%", part * 100.0)
}

/// A count of at most five characters: 12345, 1234k, 12.3M.
pub fn count(number: f64) -> String {
    let (value, unit) = match number {
        number if number < 99_999.5 => return format!("{number:.0}"),
        number if number < 9_999_500.0 => (number / 1e3, "k"),
        number if number < 9_999_500_000.0 => (number / 1e6, "M"),
        number => (number / 1e9, "G"),
    };
    if value < 99.95 {
        return format!("{value:.1}{unit}");
    }
    format!("{value:.0}{unit}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_read_to_the_nanosecond() {
        for (text, nanos) in [
            ("3ms", 3_000_000),
            ("500us", 500_000),
            ("1.5s", 1_500_000_000),
            ("0.1ms", 100_000),
            ("7ns", 7),
            ("0.001us", 1),
        ] {
            assert_eq!(time(text), Ok(nanos), "{text}");
        }
        for text in [
            "",
            "3",
            "ms",
            "3 ms",
            "1.2.3s",
            ".5s",
            "5.s",
            "0.5ns",
            "-1ms",
            "99999999999s",
            "3m",
        ] {
            assert!(time(text).is_err(), "{text}");
        }
    }

    #[test]
    fn a_share_is_part_of_its_period() {
        let whole = Share {
            amount: 10_000_000,
            period: 10_000_000,
        };
        assert_eq!(share("10ms/10ms"), Ok(whole));
        for text in ["3ms", "0ms/10ms", "11ms/10ms", "3ms/", "/10ms"] {
            assert!(share(text).is_err(), "{text}");
        }
    }

    #[test]
    fn pcpus_are_read_and_written_as_ranges() {
        for (text, bits) in [
            ("0", 1),
            ("0-2,5", 0b10_0111),
            ("63", 1 << 63),
            ("0-63", u64::MAX),
            ("1,3", 0b1010),
        ] {
            assert_eq!(cpus(text), Ok(bits), "{text}");
            assert_eq!(cpu_list(bits), text);
        }
        assert_eq!(cpu_list(0), "");
        for text in ["", "64", "2-1", "a", "1,,2", "1-", "-1"] {
            assert!(cpus(text).is_err(), "{text}");
        }
    }

    #[test]
    fn durations_and_counts_are_short() {
        for (nanos, text) in [
            (0, "0"),
            (999, "999ns"),
            (1_000, "1us"),
            (1_234, "1.23us"),
            (12_340_000, "12.3ms"),
            (999_999, "1ms"),
            (61_000_000_000, "61s"),
            (123_456_000_000, "123s"),
        ] {
            assert_eq!(duration(nanos), text);
        }
        for (number, text) in [
            (0.4, "0"),
            (99_999.0, "99999"),
            (100_000.0, "100k"),
            (12_345_678.0, "12.3M"),
        ] {
            assert_eq!(count(number), text);
        }
        for exponent in 0..14 {
            for factor in [1.0, 9.99, 9.9999] {
                assert!(count(factor * 10f64.powi(exponent)).len() <= 5 || exponent > 11);
            }
        }
    }
}
