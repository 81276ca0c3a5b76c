//! Formats of texts that the API checks.

use crate::meta::UnixTime;

/// Whether `text` is an RFC 3339 time: date, `T`, time, optional fraction, and `Z` or an offset.
pub(super) fn is_date_time(text: &str) -> bool {
    const SHAPE: &[u8] = b"dddd-dd-ddTdd:dd:dd";
    let Some((head, tail)) = text.as_bytes().split_at_checked(SHAPE.len()) else {
        return false;
    };
    let shaped = head.iter().zip(SHAPE).all(|(byte, shape)| match shape {
        b'd' => byte.is_ascii_digit(),
        b'T' => matches!(byte, b'T' | b't'),
        exact => byte == exact,
    });
    // The parser knows the calendar, but takes other notations and leap seconds, too.
    shaped
        && &head[17..] < b"60".as_slice()
        && is_fraction_and_zone(tail)
        && text.parse::<UnixTime>().is_ok()
}

fn is_fraction_and_zone(tail: &[u8]) -> bool {
    let zone = match tail.strip_prefix(b".") {
        Some(fraction) => {
            let digits = fraction
                .iter()
                .take_while(|byte| byte.is_ascii_digit())
                .count();
            if digits == 0 {
                return false;
            }
            &fraction[digits..]
        }
        None => tail,
    };
    match zone {
        b"Z" | b"z" => true,
        [b'+' | b'-', hours @ .., b':', tens, ones] => {
            hours.len() == 2 && hours.iter().chain([tens, ones]).all(u8::is_ascii_digit)
        }
        _ => false,
    }
}

/// Whether `text` is base64 with padding.
pub(super) fn is_base64(text: &str) -> bool {
    use base64::{Engine, engine::general_purpose::STANDARD};
    STANDARD.decode(text).is_ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_rfc_3339_and_nothing_else() {
        for good in [
            "2026-11-29T23:10:02Z",
            "2026-11-29t23:10:02z",
            "2026-11-29T23:10:02.987654321+01:00",
            "2024-02-29T00:00:00-00:30",
        ] {
            assert!(is_date_time(good), "{good}");
        }
        for bad in [
            "",
            "2026-11-29",
            "2026-11-29 23:10:02Z",
            "2026-11-29T23:10:02",
            "2026-11-29T23:10:60Z",
            "2026-11-29T23:10:02.Z",
            "2026-13-29T23:10:02Z",
            "2025-02-29T00:00:00Z",
            "2026-11-29T23:10:02+0100",
            "20261129T231002Z",
            "2026-11-29T23:10:02Z[UTC]",
            "2026-11-29T23:10:0éZ",
        ] {
            assert!(!is_date_time(bad), "{bad}");
        }
    }

    #[test]
    fn bytes_are_padded_base64() {
        assert!(is_base64("") && is_base64("aGk="));
        assert!(!is_base64("aGk") && !is_base64("a b="));
    }
}
