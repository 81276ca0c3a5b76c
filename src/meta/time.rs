//! Times at the precision of the Kubernetes API: whole seconds, UTC.

use std::{fmt, str::FromStr, time::Duration};

use compact_str::CompactString;
use serde::{Deserialize, Deserializer, Serialize, Serializer, de};

const EPOCH: jiff::civil::DateTime = jiff::civil::DateTime::constant(1970, 1, 1, 0, 0, 0, 0);

/// Whole seconds since 1970-01-01T00:00:00Z; RFC 3339 with a `Z` on the wire, as `metav1.Time`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct UnixTime(i64);

impl UnixTime {
    /// A time from its seconds since the epoch.
    pub const fn from_secs(seconds: i64) -> Self {
        Self(seconds)
    }

    /// Seconds since the epoch.
    pub const fn as_secs(self) -> i64 {
        self.0
    }

    /// This machine's clock. For the outermost callers: `store` and `fleet` take time as an argument.
    pub fn now() -> Self {
        Self(jiff::Timestamp::now().as_second())
    }

    /// The time from `earlier` to here, zero when `earlier` is later.
    pub fn since(self, earlier: Self) -> Duration {
        Duration::from_secs(u64::try_from(self.0.saturating_sub(earlier.0)).unwrap_or(0))
    }

    /// This time plus `delay`, saturating.
    #[must_use]
    pub fn after(self, delay: Duration) -> Self {
        Self(
            self.0
                .saturating_add(i64::try_from(delay.as_secs()).unwrap_or(i64::MAX)),
        )
    }

    /// The time as text, in place.
    pub fn rfc3339(self) -> CompactString {
        let time = match jiff::Timestamp::from_second(self.0) {
            Ok(time) => Ok(jiff::tz::Offset::UTC.to_datetime(time)),
            // jiff leaves out the last hours of the year 9999, so that every zone has them; as the end of time they are common.
            Err(_) => EPOCH.checked_add(jiff::SignedDuration::from_secs(self.0)),
        };
        // Without years of four digits there is no RFC 3339 text; the zero time is what Go prints.
        let time = time.ok().filter(|time| time.year() >= 0);
        time.map_or(CompactString::const_new("0001-01-01T00:00:00Z"), digits)
    }
}

/// Every list writes several of these for each object, so they are not left to the general printer.
fn digits(time: jiff::civil::DateTime) -> CompactString {
    let mut text = *b"0000-00-00T00:00:00Z";
    let mut put = |at: usize, number: i8| {
        text[at] += number.unsigned_abs() / 10;
        text[at + 1] += number.unsigned_abs() % 10;
    };
    let year = time.year();
    let (century, year) = (year / 100, year % 100);
    for (at, number) in [(0, century), (2, year)] {
        put(at, i8::try_from(number).unwrap_or_default());
    }
    put(5, time.month());
    put(8, time.day());
    put(11, time.hour());
    put(14, time.minute());
    put(17, time.second());
    CompactString::from_utf8_lossy(&text)
}

impl fmt::Display for UnixTime {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.rfc3339())
    }
}

impl FromStr for UnixTime {
    type Err = jiff::Error;

    /// Parses RFC 3339; fractions of a second are cut off. Any offset is taken, but in the last 26 hours of the year 9999
    /// `Z` alone.
    fn from_str(text: &str) -> Result<Self, Self::Err> {
        match text.parse::<jiff::Timestamp>() {
            Ok(time) => Ok(Self(time.as_second())),
            Err(error) => last_hours(text).ok_or(error),
        }
    }
}

/// A time in UTC that is later than jiff's timestamps go.
fn last_hours(text: &str) -> Option<UnixTime> {
    let text = text.strip_suffix(['Z', 'z'])?;
    let time: jiff::civil::DateTime = text.contains(['T', 't']).then(|| text.parse().ok())??;
    let seconds = EPOCH.duration_until(time).as_secs();
    (seconds > jiff::Timestamp::MAX.as_second()).then_some(UnixTime(seconds))
}

impl Serialize for UnixTime {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(&self.rfc3339())
    }
}

impl<'de> Deserialize<'de> for UnixTime {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Visitor;
        impl de::Visitor<'_> for Visitor {
            type Value = UnixTime;
            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an RFC 3339 time")
            }
            fn visit_str<E: de::Error>(self, text: &str) -> Result<UnixTime, E> {
                text.parse().map_err(E::custom)
            }
        }
        deserializer.deserialize_str(Visitor)
    }
}

impl schemars::JsonSchema for UnixTime {
    fn schema_name() -> std::borrow::Cow<'static, str> {
        "Time".into()
    }

    fn inline_schema() -> bool {
        true
    }

    fn json_schema(_: &mut schemars::SchemaGenerator) -> schemars::Schema {
        schemars::json_schema!({ "type": "string", "format": "date-time" })
    }
}

/// A duration as kubectl's AGE column shows it: at most two units, the finer one dropped as the coarser grows.
pub fn human_duration(duration: Duration) -> String {
    let seconds = duration.as_secs();
    let (minutes, hours, days) = (seconds / 60, seconds / 3_600, seconds / 86_400);
    let with_rest = |whole: u64, unit: char, rest: u64, rest_unit: char| match rest {
        0 => format!("{whole}{unit}"),
        _ => format!("{whole}{unit}{rest}{rest_unit}"),
    };
    match seconds {
        0..120 => format!("{seconds}s"),
        120..600 => with_rest(minutes, 'm', seconds % 60, 's'),
        600..10_800 => format!("{minutes}m"),
        10_800..28_800 => with_rest(hours, 'h', minutes % 60, 'm'),
        28_800..172_800 => format!("{hours}h"),
        172_800..691_200 => with_rest(days, 'd', hours % 24, 'h'),
        691_200..63_072_000 => format!("{days}d"),
        63_072_000..252_288_000 => with_rest(days / 365, 'y', days % 365, 'd'),
        _ => format!("{}y", days / 365),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn age(seconds: u64, expected: &str) {
        assert_eq!(human_duration(Duration::from_secs(seconds)), expected);
    }

    #[test]
    fn ages_read_as_kubectl_prints_them() {
        age(0, "0s");
        age(119, "119s");
        age(120, "2m");
        age(121, "2m1s");
        age(599, "9m59s");
        age(600, "10m");
        age(10_799, "179m");
        age(10_800, "3h");
        age(11_000, "3h3m");
        age(28_800, "8h");
        age(172_800, "2d");
        age(176_400, "2d1h");
        age(691_200, "8d");
        age(63_072_000, "2y");
        age(63_072_000 + 86_400, "2y1d");
        age(252_288_000, "8y");
    }

    proptest::proptest! {
        #[test]
        fn times_are_printed_as_the_library_prints_them(seconds in -62_167_219_200_i64..=253_402_207_200) {
            let expected = jiff::Timestamp::from_second(seconds).unwrap().to_string();
            proptest::prop_assert_eq!(UnixTime::from_secs(seconds).to_string(), expected);
        }
    }

    #[test]
    fn times_round_trip_at_whole_seconds() {
        let time: UnixTime = "2026-11-29T23:10:02.987+01:00".parse().unwrap();
        assert_eq!(time.to_string(), "2026-11-29T22:10:02Z");
        assert_eq!(
            serde_json::to_string(&time).unwrap(),
            "\"2026-11-29T22:10:02Z\""
        );
        assert!("yesterday".parse::<UnixTime>().is_err());
        let end = "9999-12-31T23:59:59Z";
        assert_eq!(end.parse::<UnixTime>().unwrap().to_string(), end);
        for none in [i64::MIN, -62_167_219_201, 253_402_300_800, i64::MAX] {
            let none = UnixTime::from_secs(none).to_string();
            assert_eq!(none, "0001-01-01T00:00:00Z");
        }
        for none in ["9999-12-32T00:00:00Z", "9999-12-31Z"] {
            assert!(none.parse::<UnixTime>().is_err(), "{none}");
        }
    }
}
