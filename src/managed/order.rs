//! Equality and order of JSON values as field ownership knows them: numbers by value, so that 1 and 1.0 are the same.

use std::cmp::Ordering;

use serde_json::{Number, Value};

/// Magnitude below which a float's integer part fits into an `i128`.
const MAX_INTEGRAL: f64 = 1e38;

/// Whether two values are the same.
pub(super) fn same(left: &Value, right: &Value) -> bool {
    match (left, right) {
        (Value::Number(left), Value::Number(right)) => compare_numbers(left, right).is_eq(),
        (Value::Array(left), Value::Array(right)) => {
            left.len() == right.len()
                && left
                    .iter()
                    .zip(right)
                    .all(|(left, right)| same(left, right))
        }
        (Value::Object(left), Value::Object(right)) => {
            left.len() == right.len()
                && left
                    .iter()
                    .all(|(name, value)| right.get(name).is_some_and(|other| same(value, other)))
        }
        _ => left == right,
    }
}

/// A total order: numbers, texts, booleans, lists, objects, null.
pub(super) fn compare(left: &Value, right: &Value) -> Ordering {
    match (left, right) {
        (Value::Number(left), Value::Number(right)) => compare_numbers(left, right),
        (Value::String(left), Value::String(right)) => left.cmp(right),
        (Value::Bool(left), Value::Bool(right)) => left.cmp(right),
        (Value::Array(left), Value::Array(right)) => {
            left.iter().map(Ranked).cmp(right.iter().map(Ranked))
        }
        (Value::Object(left), Value::Object(right)) => {
            let ranked = |(name, value)| (name, Ranked(value));
            left.iter().map(ranked).cmp(right.iter().map(ranked))
        }
        _ => rank(left).cmp(&rank(right)),
    }
}

struct Ranked<'a>(&'a Value);

impl Ord for Ranked<'_> {
    fn cmp(&self, other: &Self) -> Ordering {
        compare(self.0, other.0)
    }
}

impl PartialOrd for Ranked<'_> {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl PartialEq for Ranked<'_> {
    fn eq(&self, other: &Self) -> bool {
        self.cmp(other).is_eq()
    }
}

impl Eq for Ranked<'_> {}

fn rank(value: &Value) -> u8 {
    match value {
        Value::Number(_) => 0,
        Value::String(_) => 1,
        Value::Bool(_) => 2,
        Value::Array(_) => 3,
        Value::Object(_) => 4,
        Value::Null => 5,
    }
}

/// Exact also between integers and floats: comparing both as floats would not be transitive, and a sort may panic then.
fn compare_numbers(left: &Number, right: &Number) -> Ordering {
    if let (Some(left), Some(right)) = (left.as_i64(), right.as_i64()) {
        return left.cmp(&right);
    }
    let ((left, left_rest), (right, right_rest)) = (parts(left), parts(right));
    left.cmp(&right).then(left_rest.total_cmp(&right_rest))
}

/// The integer below a number, and how far the number is above it.
fn parts(number: &Number) -> (i128, f64) {
    match (number.as_i128(), number.as_f64()) {
        (Some(integer), _) => (integer, 0.0),
        (None, Some(float)) if float.abs() < MAX_INTEGRAL => {
            (float.floor() as i128, float - float.floor())
        }
        // Saturated, so the float itself decides.
        (None, float) => {
            let float = float.unwrap_or(0.0);
            (float as i128, float)
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[track_caller]
    fn check(left: Value, right: Value, expected: Ordering) {
        assert_eq!(compare(&left, &right), expected);
        assert_eq!(compare(&right, &left), expected.reverse());
        assert_eq!(same(&left, &right), expected.is_eq());
    }

    #[test]
    fn numbers_compare_by_value() {
        check(json!(1), json!(1.0), Ordering::Equal);
        check(json!(0.0), json!(-0.0), Ordering::Equal);
        check(json!(1), json!(1.5), Ordering::Less);
        check(json!(-2), json!(-1.5), Ordering::Less);
        check(
            json!(9_007_199_254_740_993_i64),
            json!(9_007_199_254_740_992.0),
            Ordering::Greater,
        );
        check(json!(u64::MAX), json!(i64::MAX), Ordering::Greater);
        check(json!(1e300), json!(1e301), Ordering::Less);
        check(json!(-1e300), json!(-1e301), Ordering::Greater);
    }

    #[test]
    fn kinds_have_an_order() {
        let kinds = [
            json!(9),
            json!("a"),
            json!(false),
            json!([1]),
            json!({"a": 1}),
            json!(null),
        ];
        assert!(kinds.is_sorted_by(|left, right| compare(left, right).is_lt()));
        check(json!([1, 2]), json!([1.0, 2]), Ordering::Equal);
        check(json!({"a": 1}), json!({"a": 2}), Ordering::Less);
    }
}
