//! Kubernetes quantities (`500m`, `2Gi`, `1e3`), as far as comparing them needs.

use std::str::FromStr;

/// An amount in thousandths of its unit: `500m` is 500, `1` is 1 000, `1Ki` is 1 024 000.
///
/// Saturates at the ends of `i128`, which no valid amount reaches.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Quantity(i128);

/// The text is no quantity.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "quantities must match the regular expression '^([+-]?[0-9.]+)([eEinumkKMGTP]*[-+]?[0-9]*)$'"
)]
pub struct InvalidQuantity;

impl Quantity {
    /// `units` whole units.
    pub const fn from_units(units: i64) -> Self {
        Self(units as i128 * 1_000)
    }

    /// How often `unit` whole units fit in; 0 for less than one or for a unit that is none.
    pub fn multiples_of(self, unit: i64) -> u64 {
        let unit = i128::from(unit) * 1_000;
        let multiples = self.0.checked_div(unit).unwrap_or(0).max(0);
        u64::try_from(multiples).unwrap_or(u64::MAX)
    }
}

impl FromStr for Quantity {
    type Err = InvalidQuantity;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let digits_end = text
            .char_indices()
            .find(|&(index, c)| {
                !(c.is_ascii_digit() || c == '.' || (index == 0 && matches!(c, '+' | '-')))
            })
            .map_or(text.len(), |(index, _)| index);
        let (number, suffix) = text.split_at(digits_end);
        let (numerator, denominator) = scale(suffix).ok_or(InvalidQuantity)?;
        let (mantissa, decimals) = decimal(number).ok_or(InvalidQuantity)?;
        let divisor = 10_i128
            .checked_pow(decimals)
            .and_then(|d| d.checked_mul(denominator))
            .ok_or(InvalidQuantity)?;
        let scaled = mantissa.saturating_mul(numerator).saturating_mul(1_000);
        // Rounded up, as the API does for more precision than it keeps.
        Ok(Self(scaled / divisor + i128::from(scaled % divisor > 0)))
    }
}

/// The number without its point, and how many of its digits stood behind the point.
fn decimal(number: &str) -> Option<(i128, u32)> {
    let (whole, fraction) = number.split_once('.').unwrap_or((number, ""));
    if fraction.contains('.')
        || !(whole
            .bytes()
            .chain(fraction.bytes())
            .any(|byte| byte.is_ascii_digit()))
    {
        return None;
    }
    let digits: String = [whole, fraction].concat();
    Some((digits.parse().ok()?, u32::try_from(fraction.len()).ok()?))
}

/// The suffix as a fraction.
fn scale(suffix: &str) -> Option<(i128, i128)> {
    let decimal = |power: u32| Some((10_i128.pow(power), 1));
    let binary = |power: u32| Some((1_024_i128.pow(power), 1));
    match suffix {
        "" => Some((1, 1)),
        "n" => Some((1, 1_000_000_000)),
        "u" => Some((1, 1_000_000)),
        "m" => Some((1, 1_000)),
        "k" => decimal(3),
        "M" => decimal(6),
        "G" => decimal(9),
        "T" => decimal(12),
        "P" => decimal(15),
        "E" => decimal(18),
        "Ki" => binary(1),
        "Mi" => binary(2),
        "Gi" => binary(3),
        "Ti" => binary(4),
        "Pi" => binary(5),
        "Ei" => binary(6),
        _ => {
            let power: i32 = suffix.strip_prefix(['e', 'E'])?.parse().ok()?;
            let factor = 10_i128.checked_pow(power.unsigned_abs().min(30))?;
            Some(if power < 0 { (1, factor) } else { (factor, 1) })
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn same(text: &str, other: &str) {
        assert_eq!(
            text.parse::<Quantity>().unwrap(),
            other.parse::<Quantity>().unwrap(),
            "{text} {other}"
        );
    }

    #[test]
    fn multiples_are_rounded_down() {
        let multiples = |text: &str, unit| text.parse::<Quantity>().unwrap().multiples_of(unit);
        assert_eq!(multiples("65970860Ki", 1 << 30), 62);
        assert_eq!(multiples("500m", 1), 0);
        assert_eq!(multiples("-1", 1), 0);
        assert_eq!(multiples("1", 0), 0);
    }

    #[test]
    fn suffixes_are_units() {
        same("1", "1000m");
        same("0.5", "500m");
        same("1Ki", "1024");
        same("1e3", "1k");
        same("1.5Gi", "1536Mi");
        same("2E0", "2");
        assert!("8Gi".parse::<Quantity>().unwrap() > "8G".parse().unwrap());
        assert_eq!("4".parse(), Ok(Quantity::from_units(4)));
        assert!("1n".parse::<Quantity>().unwrap() > Quantity::from_units(0));
    }

    #[test]
    fn nonsense_is_refused() {
        for bad in [
            "",
            "m",
            ".",
            "1.2.3",
            "1 Gi",
            "1gi",
            "--1",
            "1e",
            "0x1",
            "1e999999999999",
        ] {
            assert!(bad.parse::<Quantity>().is_err(), "{bad:?}");
        }
    }
}
