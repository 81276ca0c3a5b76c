//! JSON read without trust: a value of another type than expected is noted and skipped, and what is around it still counts.
//!
//! One pass and no tree: an inventory may have a megabyte, and strings beyond [`MAX_TEXT`] are not even copied. Only what is
//! no JSON at all, or an object with a key twice, fails.

use std::{fmt, marker::PhantomData};

use compact_str::CompactString;
use serde::{
    Deserialize, Deserializer,
    de::{IgnoredAny, MapAccess, SeqAccess, Visitor, value::MapAccessDeserializer},
};

/// Longest string that is kept, in bytes.
pub(super) const MAX_TEXT: usize = 512;

/// A value where a string, a number or a truth value belongs.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) enum Scalar {
    /// Missing or null.
    #[default]
    Absent,
    Flag(bool),
    /// An integer; one beyond the type is cut to its end.
    Number(i64),
    Text(CompactString),
    /// A string of more than [`MAX_TEXT`] bytes.
    TooLong,
    /// A list, an object, or a number with a fraction.
    Other,
}

/// A value where an object or a list belongs.
#[derive(Debug, Default)]
pub(super) enum Shaped<T> {
    /// Missing or null.
    #[default]
    Absent,
    Is(T),
    /// Of another type.
    Other,
}

/// How a `T` is read from an object or from a list. The other one, or both, are skipped.
pub(super) trait Shape<'de>: Sized {
    fn of_map<A: MapAccess<'de>>(map: A) -> Result<Shaped<Self>, A::Error> {
        skip_map(map).map(|()| Shaped::Other)
    }

    fn of_seq<A: SeqAccess<'de>>(seq: A) -> Result<Shaped<Self>, A::Error> {
        skip_seq(seq).map(|()| Shaped::Other)
    }
}

/// A type that is read from an object, field by field, and whose fields are lenient themselves.
pub(super) trait Fields {}

impl<'de, T: Fields + Deserialize<'de>> Shape<'de> for T {
    fn of_map<A: MapAccess<'de>>(map: A) -> Result<Shaped<Self>, A::Error> {
        T::deserialize(MapAccessDeserializer::new(map)).map(Shaped::Is)
    }
}

fn skip_map<'de, A: MapAccess<'de>>(mut map: A) -> Result<(), A::Error> {
    while map.next_entry::<IgnoredAny, IgnoredAny>()?.is_some() {}
    Ok(())
}

fn skip_seq<'de, A: SeqAccess<'de>>(mut seq: A) -> Result<(), A::Error> {
    while seq.next_element::<IgnoredAny>()?.is_some() {}
    Ok(())
}

impl<'de> Deserialize<'de> for Scalar {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(ScalarVisitor)
    }
}

struct ScalarVisitor;

impl<'de> Visitor<'de> for ScalarVisitor {
    type Value = Scalar;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("any value")
    }

    fn visit_unit<E>(self) -> Result<Scalar, E> {
        Ok(Scalar::Absent)
    }

    fn visit_bool<E>(self, flag: bool) -> Result<Scalar, E> {
        Ok(Scalar::Flag(flag))
    }

    fn visit_i64<E>(self, number: i64) -> Result<Scalar, E> {
        Ok(Scalar::Number(number))
    }

    fn visit_u64<E>(self, number: u64) -> Result<Scalar, E> {
        Ok(Scalar::Number(i64::try_from(number).unwrap_or(i64::MAX)))
    }

    fn visit_f64<E>(self, _: f64) -> Result<Scalar, E> {
        Ok(Scalar::Other)
    }

    fn visit_str<E>(self, text: &str) -> Result<Scalar, E> {
        Ok(match text.len() {
            ..=MAX_TEXT => Scalar::Text(text.into()),
            _ => Scalar::TooLong,
        })
    }

    fn visit_map<A: MapAccess<'de>>(self, map: A) -> Result<Scalar, A::Error> {
        skip_map(map).map(|()| Scalar::Other)
    }

    fn visit_seq<A: SeqAccess<'de>>(self, seq: A) -> Result<Scalar, A::Error> {
        skip_seq(seq).map(|()| Scalar::Other)
    }
}

impl<'de, T: Shape<'de>> Deserialize<'de> for Shaped<T> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(ShapedVisitor(PhantomData))
    }
}

struct ShapedVisitor<T>(PhantomData<T>);

impl<'de, T: Shape<'de>> Visitor<'de> for ShapedVisitor<T> {
    type Value = Shaped<T>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("any value")
    }

    fn visit_unit<E>(self) -> Result<Shaped<T>, E> {
        Ok(Shaped::Absent)
    }

    fn visit_bool<E>(self, _: bool) -> Result<Shaped<T>, E> {
        Ok(Shaped::Other)
    }

    fn visit_i64<E>(self, _: i64) -> Result<Shaped<T>, E> {
        Ok(Shaped::Other)
    }

    fn visit_u64<E>(self, _: u64) -> Result<Shaped<T>, E> {
        Ok(Shaped::Other)
    }

    fn visit_f64<E>(self, _: f64) -> Result<Shaped<T>, E> {
        Ok(Shaped::Other)
    }

    fn visit_str<E>(self, _: &str) -> Result<Shaped<T>, E> {
        Ok(Shaped::Other)
    }

    fn visit_map<A: MapAccess<'de>>(self, map: A) -> Result<Shaped<T>, A::Error> {
        T::of_map(map)
    }

    fn visit_seq<A: SeqAccess<'de>>(self, seq: A) -> Result<Shaped<T>, A::Error> {
        T::of_seq(seq)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn scalar(json: &str, expected: Scalar) {
        assert_eq!(serde_json::from_str::<Scalar>(json).unwrap(), expected);
    }

    #[test]
    fn a_scalar_is_what_it_is_and_never_an_error() {
        scalar("null", Scalar::Absent);
        scalar("true", Scalar::Flag(true));
        scalar("-3", Scalar::Number(-3));
        scalar("18446744073709551615", Scalar::Number(i64::MAX));
        scalar("3.5", Scalar::Other);
        scalar("\"a\"", Scalar::Text("a".into()));
        scalar("[[1],{\"a\":2}]", Scalar::Other);
        scalar(&format!("\"{}\"", "x".repeat(513)), Scalar::TooLong);
    }

    #[test]
    fn depth_costs_no_stack() {
        let deep = "[".repeat(100_000) + &"]".repeat(100_000);
        scalar(&deep, Scalar::Other);
    }
}
