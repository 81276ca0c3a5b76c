//! Reading a request's body without losing what a client wrote twice.
//!
//! `serde_json::Value` keeps the last of two equal keys in silence; the API must tell. One pass builds the value and
//! notes the path of every key that comes again. Depth is bounded by the parsers: 127 levels of JSON, 64 of YAML.

use std::{cell::RefCell, fmt};

use serde::de::{self, DeserializeSeed, Deserializer, MapAccess, SeqAccess, Visitor};
use serde_json::{Map, Number, Value};

use super::{Result, path::Path};

/// Duplicates whose paths are reported.
pub const MAX_DUPLICATES: usize = 100;

/// Largest magnitude up to which every integral float is one integer.
pub(super) const MAX_EXACT_FLOAT: f64 = 9_007_199_254_740_991.0;

/// A body as it was sent.
#[derive(Debug, Clone, PartialEq)]
pub struct Decoded {
    /// The value; of two equal keys the last.
    pub value: Value,
    /// Paths of the keys that came more than once, in the order of their coming again, each once, at most
    /// [`MAX_DUPLICATES`].
    pub duplicates: Vec<String>,
}

/// Reads a JSON body. A number without fraction is an integer however it is written: `1e2` is `100`, as Go prints it, whose
/// clients read nothing else into an integer.
///
/// # Errors
/// When it is not exactly one JSON value, or nested deeper than 127 levels.
pub fn decode_json(body: &[u8]) -> Result<Decoded> {
    let duplicates = RefCell::default();
    let mut deserializer = serde_json::Deserializer::from_slice(body);
    let value = Seed {
        path: Path::Root,
        duplicates: &duplicates,
    }
    .deserialize(&mut deserializer)?;
    deserializer.end()?;
    Ok(Decoded {
        value,
        duplicates: duplicates.into_inner(),
    })
}

/// Reads a YAML body.
///
/// Plain words take the types of YAML 1.1, as in all of Kubernetes: `yes` and `on` are booleans, `010` is eight.
///
/// # Errors
/// When it is not exactly one YAML document, nested deeper than 64 levels, or grown by aliases past the parser's bounds.
pub fn decode_yaml(body: &[u8]) -> Result<Decoded> {
    let duplicates = RefCell::default();
    let options = serde_saphyr::options! {
        duplicate_keys: serde_saphyr::DuplicateKeyPolicy::PassThrough,
        legacy_octal_numbers: true,
    };
    let value =
        serde_saphyr::with_deserializer_from_slice_with_options(body, options, |deserializer| {
            Seed {
                path: Path::Root,
                duplicates: &duplicates,
            }
            .deserialize(deserializer)
        })?;
    Ok(Decoded {
        value,
        duplicates: duplicates.into_inner(),
    })
}

#[derive(Clone, Copy)]
struct Seed<'a> {
    path: Path<'a>,
    duplicates: &'a RefCell<Vec<String>>,
}

impl Seed<'_> {
    fn note(&self, key: &str) {
        let mut duplicates = self.duplicates.borrow_mut();
        if duplicates.len() < MAX_DUPLICATES {
            let path = self.path.field(key).to_string();
            if !duplicates.contains(&path) {
                duplicates.push(path);
            }
        }
    }
}

impl<'de> DeserializeSeed<'de> for Seed<'_> {
    type Value = Value;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<Value, D::Error> {
        deserializer.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for Seed<'_> {
    type Value = Value;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a JSON value")
    }

    fn visit_bool<E>(self, value: bool) -> Result<Value, E> {
        Ok(Value::Bool(value))
    }

    fn visit_i64<E>(self, value: i64) -> Result<Value, E> {
        Ok(Value::Number(value.into()))
    }

    fn visit_u64<E>(self, value: u64) -> Result<Value, E> {
        Ok(Value::Number(value.into()))
    }

    fn visit_f64<E: de::Error>(self, value: f64) -> Result<Value, E> {
        if value.trunc() == value && value.abs() <= MAX_EXACT_FLOAT {
            return Ok(Value::from(value as i64));
        }
        let number = Number::from_f64(value).map(Value::Number);
        number.ok_or_else(|| E::custom("JSON has no infinity and no NaN"))
    }

    fn visit_str<E>(self, value: &str) -> Result<Value, E> {
        Ok(Value::String(value.to_owned()))
    }

    fn visit_string<E>(self, value: String) -> Result<Value, E> {
        Ok(Value::String(value))
    }

    fn visit_unit<E>(self) -> Result<Value, E> {
        Ok(Value::Null)
    }

    fn visit_none<E>(self) -> Result<Value, E> {
        Ok(Value::Null)
    }

    fn visit_some<D: Deserializer<'de>>(self, deserializer: D) -> Result<Value, D::Error> {
        deserializer.deserialize_any(self)
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut items: A) -> Result<Value, A::Error> {
        let mut list = Vec::new();
        loop {
            let seed = Seed {
                path: self.path.item(list.len()),
                ..self
            };
            match items.next_element_seed(seed)? {
                Some(item) => list.push(item),
                None => return Ok(Value::Array(list)),
            }
        }
    }

    fn visit_map<A: MapAccess<'de>>(self, mut entries: A) -> Result<Value, A::Error> {
        let mut map = Map::new();
        while let Some(key) = entries.next_key::<String>()? {
            if map.contains_key(&key) {
                self.note(&key);
            }
            let seed = Seed {
                path: self.path.field(&key),
                ..self
            };
            let value = entries.next_value_seed(seed)?;
            map.insert(key, value);
        }
        Ok(Value::Object(map))
    }
}
