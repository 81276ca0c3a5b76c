//! Values as Go writes them, where a text of the API shows one: FieldsV1 keys, conflicts, type errors.

use std::fmt::{self, Write};

use serde_json::{Number, Value};

/// JSON as Go's encoder writes it: `<`, `>` and `&` escaped, a float without fraction as an integer.
pub(super) struct Json<'a>(pub(super) &'a Value);

/// A text in double quotes: `%q`.
pub(super) struct Quoted<'a>(pub(super) &'a str);

/// A value in plain words: `%v`.
pub(super) struct Plain<'a>(pub(super) &'a Value);

/// A value as Go source: `%#v`.
pub(super) struct Source<'a>(pub(super) &'a Value);

impl fmt::Display for Json<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            Value::String(text) => json_text(text, f),
            Value::Number(number) => f.write_str(&json_number(number)),
            Value::Array(items) => {
                f.write_char('[')?;
                for (index, item) in items.iter().enumerate() {
                    let comma = if index == 0 { "" } else { "," };
                    write!(f, "{comma}{}", Json(item))?;
                }
                f.write_char(']')
            }
            Value::Object(fields) => {
                json_object(fields.iter().map(|(name, value)| (name.as_str(), value)), f)
            }
            other => write!(f, "{other}"),
        }
    }
}

/// A JSON object of these fields, in this order.
pub(super) fn json_object<'a>(
    fields: impl Iterator<Item = (&'a str, &'a Value)>,
    f: &mut impl Write,
) -> fmt::Result {
    f.write_char('{')?;
    for (index, (name, value)) in fields.enumerate() {
        if index > 0 {
            f.write_char(',')?;
        }
        json_text(name, f)?;
        write!(f, ":{}", Json(value))?;
    }
    f.write_char('}')
}

fn json_text(text: &str, f: &mut impl Write) -> fmt::Result {
    f.write_char('"')?;
    for char in text.chars() {
        match char {
            '"' => f.write_str("\\\"")?,
            '\\' => f.write_str("\\\\")?,
            '\n' => f.write_str("\\n")?,
            '\r' => f.write_str("\\r")?,
            '\t' => f.write_str("\\t")?,
            '<' | '>' | '&' | '\0'..'\u{20}' | '\u{2028}' | '\u{2029}' => {
                write!(f, "\\u{:04x}", u32::from(char))?
            }
            other => f.write_char(other)?,
        }
    }
    f.write_char('"')
}

fn json_number(number: &Number) -> String {
    match number.as_f64() {
        Some(float) if number.is_f64() => {
            let magnitude = float.abs();
            if float == 0.0 || (1e-6..1e21).contains(&magnitude) {
                float.to_string()
            } else {
                exponent(float, 0)
            }
        }
        _ => number.to_string(),
    }
}

/// Scientific notation with a sign and at least `digits` digits in the exponent.
fn exponent(float: f64, digits: usize) -> String {
    let text = format!("{float:e}");
    let (mantissa, exponent) = text.split_once('e').unwrap_or((&text, "0"));
    let (sign, exponent) = match exponent.strip_prefix('-') {
        Some(exponent) => ('-', exponent),
        None => ('+', exponent),
    };
    format!("{mantissa}e{sign}{exponent:0>digits$}")
}

impl fmt::Display for Quoted<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_char('"')?;
        for char in self.0.chars() {
            match char {
                '"' => f.write_str("\\\"")?,
                '\\' => f.write_str("\\\\")?,
                '\n' => f.write_str("\\n")?,
                '\r' => f.write_str("\\r")?,
                '\t' => f.write_str("\\t")?,
                '\u{7}' => f.write_str("\\a")?,
                '\u{8}' => f.write_str("\\b")?,
                '\u{b}' => f.write_str("\\v")?,
                '\u{c}' => f.write_str("\\f")?,
                other if u32::from(other) < 0x80 && other.is_control() => {
                    write!(f, "\\x{:02x}", u32::from(other))?
                }
                other if other.is_control() => write!(f, "\\u{:04x}", u32::from(other))?,
                other => f.write_char(other)?,
            }
        }
        f.write_char('"')
    }
}

impl fmt::Display for Plain<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            Value::Null => f.write_str("<nil>"),
            Value::String(text) => f.write_str(text),
            Value::Number(number) => f.write_str(&plain_number(number)),
            Value::Bool(flag) => write!(f, "{flag}"),
            Value::Array(items) => {
                f.write_char('[')?;
                joined(f, " ", items, |f, item| Plain(item).fmt(f))?;
                f.write_char(']')
            }
            Value::Object(fields) => {
                f.write_str("map[")?;
                joined(f, " ", fields, |f, (name, value)| {
                    write!(f, "{name}:{}", Plain(value))
                })?;
                f.write_char(']')
            }
        }
    }
}

fn joined<'f, T>(
    f: &mut fmt::Formatter<'f>,
    separator: &str,
    items: impl IntoIterator<Item = T>,
    write: impl Fn(&mut fmt::Formatter<'f>, T) -> fmt::Result,
) -> fmt::Result {
    for (index, item) in items.into_iter().enumerate() {
        if index > 0 {
            f.write_str(separator)?;
        }
        write(f, item)?;
    }
    Ok(())
}

/// Every number that comes with a request or out of FieldsV1 is a float there: from a million on it has an exponent.
fn plain_number(number: &Number) -> String {
    match number.as_f64() {
        Some(float) if float != 0.0 && !(1e-4..1e6).contains(&float.abs()) => exponent(float, 2),
        Some(float) => float.to_string(),
        None => number.to_string(),
    }
}

impl fmt::Display for Source<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            Value::Null => f.write_str("interface {}(nil)"),
            Value::String(text) => Quoted(text).fmt(f),
            Value::Array(items) => {
                f.write_str("[]interface {}{")?;
                joined(f, ", ", items, |f, item| Source(item).fmt(f))?;
                f.write_char('}')
            }
            Value::Object(fields) => {
                f.write_str("map[string]interface {}{")?;
                joined(f, ", ", fields, |f, (name, value)| {
                    write!(f, "{}:{}", Quoted(name), Source(value))
                })?;
                f.write_char('}')
            }
            other => Plain(other).fmt(f),
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[track_caller]
    fn check(value: Value, json: &str, plain: &str, source: &str) {
        assert_eq!(Json(&value).to_string(), json);
        assert_eq!(Plain(&value).to_string(), plain);
        assert_eq!(Source(&value).to_string(), source);
    }

    #[test]
    fn values_read_as_go_prints_them() {
        check(json!(null), "null", "<nil>", "interface {}(nil)");
        check(json!(true), "true", "true", "true");
        check(
            json!("a<\u{1}\"b"),
            r#""a\u003c\u0001\"b""#,
            "a<\u{1}\"b",
            r#""a<\x01\"b""#,
        );
        check(
            json!([1, "a"]),
            r#"[1,"a"]"#,
            "[1 a]",
            r#"[]interface {}{1, "a"}"#,
        );
        check(
            json!({"b": 1.5, "a": {}}),
            r#"{"a":{},"b":1.5}"#,
            "map[a:map[] b:1.5]",
            r#"map[string]interface {}{"a":map[string]interface {}{}, "b":1.5}"#,
        );
    }

    #[test]
    fn numbers_take_exponents_where_go_gives_them() {
        check(json!(8080), "8080", "8080", "8080");
        check(json!(8080.0), "8080", "8080", "8080");
        check(json!(1_234_567), "1234567", "1.234567e+06", "1.234567e+06");
        check(json!(1e-7), "1e-7", "1e-07", "1e-07");
        check(json!(1e21), "1e+21", "1e+21", "1e+21");
    }
}
