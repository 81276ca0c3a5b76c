//! Label and field selectors: their grammar and what they match.
//!
//! Source: the selector grammar of the Kubernetes API concepts pages ("Labels and Selectors", "Field Selectors").

use std::{fmt, str::FromStr};

use super::{validate_label_value, validate_qualified_name};

/// A selector's text that cannot be read, with the reason.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct SelectorError(pub String);

/// How a label requirement compares.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LabelOp {
    /// `key in (a, b)`, `key=a`.
    In,
    /// `key notin (a, b)`, `key!=a`: also matches when the label is absent.
    NotIn,
    /// `key`.
    Exists,
    /// `!key`.
    DoesNotExist,
    /// `key>1`: both sides are integers.
    GreaterThan,
    /// `key<1`: both sides are integers.
    LessThan,
}

/// One requirement of a [`LabelSelector`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LabelRequirement {
    /// The label's key.
    pub key: String,
    /// The comparison.
    pub op: LabelOp,
    /// The right-hand side: sorted, empty for the two existence operators.
    pub values: Vec<String>,
}

/// Requirements on labels that must all hold. The empty selector matches everything.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LabelSelector(Vec<LabelRequirement>);

/// How a field requirement compares.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FieldOp {
    /// `=` and `==`.
    Equal,
    /// `!=`.
    NotEqual,
}

/// One requirement of a [`FieldSelector`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FieldRequirement {
    /// The field's path, such as `metadata.name`.
    pub path: String,
    /// The comparison.
    pub op: FieldOp,
    /// The value compared with, unescaped.
    pub value: String,
}

/// Requirements on fields that must all hold. Which paths exist is the resource's affair.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct FieldSelector(Vec<FieldRequirement>);

impl LabelSelector {
    /// Whether every object matches.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// The requirements in the order they were written.
    pub fn requirements(&self) -> &[LabelRequirement] {
        &self.0
    }

    /// Whether labels, looked up through `label`, meet every requirement.
    pub fn matches<V: AsRef<str>>(&self, label: impl Fn(&str) -> Option<V>) -> bool {
        self.0.iter().all(|requirement| {
            requirement.matches(label(&requirement.key).as_ref().map(AsRef::as_ref))
        })
    }
}

impl LabelRequirement {
    fn matches(&self, value: Option<&str>) -> bool {
        let listed = |value: &str| self.values.iter().any(|wanted| wanted == value);
        let compared = |holds: fn(&i64, &i64) -> bool| {
            let pair = value
                .and_then(|value| value.parse().ok())
                .zip(self.values.first().and_then(|v| v.parse().ok()));
            pair.is_some_and(|(left, right)| holds(&left, &right))
        };
        match self.op {
            LabelOp::In => value.is_some_and(listed),
            LabelOp::NotIn => !value.is_some_and(listed),
            LabelOp::Exists => value.is_some(),
            LabelOp::DoesNotExist => value.is_none(),
            LabelOp::GreaterThan => compared(i64::gt),
            LabelOp::LessThan => compared(i64::lt),
        }
    }
}

impl FromStr for LabelSelector {
    type Err = SelectorError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let mut parser = Parser {
            tokens: tokenize(text),
        };
        if parser.peek().is_none() {
            return Ok(Self::default());
        }
        let mut requirements = Vec::new();
        loop {
            requirements.push(parser.requirement()?);
            match parser.next() {
                None => return Ok(Self(requirements)),
                Some(Token::Comma) => {}
                Some(token) => return Err(unexpected(Some(token), "',' or 'end of string'")),
            }
        }
    }
}

impl fmt::Display for LabelSelector {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, LabelRequirement { key, op, values }) in self.0.iter().enumerate() {
            if index > 0 {
                f.write_str(",")?;
            }
            let values = values.join(",");
            match op {
                LabelOp::In => write!(f, "{key} in ({values})")?,
                LabelOp::NotIn => write!(f, "{key} notin ({values})")?,
                LabelOp::Exists => write!(f, "{key}")?,
                LabelOp::DoesNotExist => write!(f, "!{key}")?,
                LabelOp::GreaterThan => write!(f, "{key}>{values}")?,
                LabelOp::LessThan => write!(f, "{key}<{values}")?,
            }
        }
        Ok(())
    }
}

impl FieldSelector {
    /// Whether every object matches.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// The requirements in the order they were written.
    pub fn requirements(&self) -> &[FieldRequirement] {
        &self.0
    }

    /// Whether fields, looked up through `field`, meet every requirement. An absent field counts as the empty string.
    pub fn matches<V: AsRef<str>>(&self, field: impl Fn(&str) -> Option<V>) -> bool {
        self.0.iter().all(|requirement| {
            let value = field(&requirement.path);
            let equal = value.as_ref().map_or("", AsRef::as_ref) == requirement.value;
            equal == (requirement.op == FieldOp::Equal)
        })
    }

    /// The value that `path` must equal, when the selector says so.
    pub fn required_value(&self, path: &str) -> Option<&str> {
        self.0
            .iter()
            .find(|requirement| requirement.path == path && requirement.op == FieldOp::Equal)
            .map(|requirement| requirement.value.as_str())
    }
}

impl FromStr for FieldSelector {
    type Err = SelectorError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        split_unescaped(text)
            .into_iter()
            .filter(|term| !term.is_empty())
            .map(field_requirement)
            .collect::<Result<_, _>>()
            .map(Self)
    }
}

/// Cuts at commas that no backslash escapes.
fn split_unescaped(text: &str) -> Vec<&str> {
    let (mut terms, mut start, mut escaped) = (Vec::new(), 0, false);
    for (index, c) in text.char_indices() {
        match c {
            _ if escaped => escaped = false,
            '\\' => escaped = true,
            ',' => {
                terms.push(&text[start..index]);
                start = index + 1;
            }
            _ => {}
        }
    }
    terms.push(&text[start..]);
    terms
}

fn field_requirement(term: &str) -> Result<FieldRequirement, SelectorError> {
    let invalid = || {
        SelectorError(format!(
            "invalid selector: '{term}'; can't understand '{term}'"
        ))
    };
    let at = term.find(['=', '!']).ok_or_else(invalid)?;
    let (path, rest) = term.split_at(at);
    let (op, value) = if let Some(value) = rest.strip_prefix("!=") {
        (FieldOp::NotEqual, value)
    } else if let Some(value) = rest.strip_prefix("==").or_else(|| rest.strip_prefix('=')) {
        (FieldOp::Equal, value)
    } else {
        return Err(invalid());
    };
    Ok(FieldRequirement {
        path: path.to_owned(),
        op,
        value: unescape(value).ok_or_else(invalid)?,
    })
}

/// Resolves `\\`, `\,` and `\=`; anything else behind a backslash, or a bare `=`, is an error.
fn unescape(value: &str) -> Option<String> {
    let mut chars = value.chars();
    let mut plain = String::with_capacity(value.len());
    while let Some(c) = chars.next() {
        match c {
            '\\' => plain.push(chars.next().filter(|c| matches!(c, '\\' | ',' | '='))?),
            '=' => return None,
            c => plain.push(c),
        }
    }
    Some(plain)
}

/// Bytes of a selector that a message repeats.
const MAX_SHOWN: usize = 128;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Token<'a> {
    Word(&'a str),
    Comma,
    Open,
    Close,
    Not,
    Equals,
    NotEquals,
    Greater,
    Less,
}

impl<'a> Token<'a> {
    fn text(self) -> &'a str {
        match self {
            Self::Word(word) => word,
            Self::Comma => ",",
            Self::Open => "(",
            Self::Close => ")",
            Self::Not => "!",
            Self::Equals => "=",
            Self::NotEquals => "!=",
            Self::Greater => ">",
            Self::Less => "<",
        }
    }
}

fn tokenize(text: &str) -> std::iter::Peekable<std::vec::IntoIter<Token<'_>>> {
    let is_special = |c: char| matches!(c, ',' | '(' | ')' | '!' | '=' | '>' | '<');
    let mut tokens = Vec::new();
    let mut rest = text.trim_start();
    while let Some(first) = rest.chars().next() {
        let (token, length) = match first {
            ',' => (Token::Comma, 1),
            '(' => (Token::Open, 1),
            ')' => (Token::Close, 1),
            '>' => (Token::Greater, 1),
            '<' => (Token::Less, 1),
            '!' if rest.starts_with("!=") => (Token::NotEquals, 2),
            '!' => (Token::Not, 1),
            '=' if rest.starts_with("==") => (Token::Equals, 2),
            '=' => (Token::Equals, 1),
            _ => {
                let end = rest
                    .find(|c: char| is_special(c) || c.is_whitespace())
                    .unwrap_or(rest.len());
                (Token::Word(&rest[..end]), end)
            }
        };
        tokens.push(token);
        rest = rest[length..].trim_start();
    }
    tokens.into_iter().peekable()
}

struct Parser<'a> {
    tokens: std::iter::Peekable<std::vec::IntoIter<Token<'a>>>,
}

impl<'a> Parser<'a> {
    fn peek(&mut self) -> Option<Token<'a>> {
        self.tokens.peek().copied()
    }

    fn next(&mut self) -> Option<Token<'a>> {
        self.tokens.next()
    }

    fn requirement(&mut self) -> Result<LabelRequirement, SelectorError> {
        let absent = self.tokens.next_if_eq(&Token::Not).is_some();
        let key = match self.next() {
            Some(Token::Word(word)) => word.to_owned(),
            token => return Err(unexpected(token, "identifier")),
        };
        validate_qualified_name(&key)
            .map_err(|reason| SelectorError(format!("key: Invalid value: {key:?}: {reason}")))?;
        if absent {
            return Ok(LabelRequirement {
                key,
                op: LabelOp::DoesNotExist,
                values: Vec::new(),
            });
        }
        let (op, values) = match self.peek() {
            None | Some(Token::Comma) => (LabelOp::Exists, Vec::new()),
            Some(Token::Equals) => (LabelOp::In, vec![self.value()?]),
            Some(Token::NotEquals) => (LabelOp::NotIn, vec![self.value()?]),
            Some(Token::Greater) => (LabelOp::GreaterThan, vec![self.integer()?]),
            Some(Token::Less) => (LabelOp::LessThan, vec![self.integer()?]),
            Some(Token::Word("in")) => (LabelOp::In, self.set()?),
            Some(Token::Word("notin")) => (LabelOp::NotIn, self.set()?),
            token => {
                return Err(unexpected(token, "in, notin, =, ==, !=, gt, lt"));
            }
        };
        for value in &values {
            validate_label_value(value).map_err(|reason| {
                SelectorError(format!("values: Invalid value: {value:?}: {reason}"))
            })?;
        }
        Ok(LabelRequirement { key, op, values })
    }

    /// The operator that was peeked, then one value, which may be empty (`key=`).
    fn value(&mut self) -> Result<String, SelectorError> {
        self.next();
        match self.peek() {
            None | Some(Token::Comma) => Ok(String::new()),
            Some(Token::Word(word)) => {
                self.next();
                Ok(word.to_owned())
            }
            token => Err(unexpected(token, "identifier")),
        }
    }

    fn integer(&mut self) -> Result<String, SelectorError> {
        let value = self.value()?;
        match value.parse::<i64>() {
            Ok(_) => Ok(value),
            Err(_) => Err(SelectorError(format!(
                "for 'Gt', 'Lt' operators, the value must be an integer, not {value:?}"
            ))),
        }
    }

    /// The operator that was peeked, then `( value, … )`.
    fn set(&mut self) -> Result<Vec<String>, SelectorError> {
        self.next();
        match self.next() {
            Some(Token::Open) => {}
            token => return Err(unexpected(token, "'('")),
        }
        let mut values = Vec::new();
        loop {
            values.push(match self.peek() {
                Some(Token::Word(word)) => {
                    self.next();
                    word.to_owned()
                }
                Some(Token::Comma | Token::Close) => String::new(),
                token => return Err(unexpected(token, "',', ')' or identifier")),
            });
            match self.next() {
                Some(Token::Comma) => {}
                Some(Token::Close) => break,
                token => return Err(unexpected(token, "',' or ')'")),
            }
        }
        values.sort();
        values.dedup();
        Ok(values)
    }
}

/// In the words of Kubernetes' own parser.
fn unexpected(token: Option<Token<'_>>, expected: &str) -> SelectorError {
    let found = token.map_or("", Token::text);
    let found = &found[..found.floor_char_boundary(MAX_SHOWN)];
    SelectorError(format!(
        "unable to parse requirement: found '{found}', expected: {expected}"
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn matches(selector: &str, expected: bool) {
        let labels = [
            ("a", "x"),
            ("n", "7"),
            ("example.org/team", "red"),
            ("empty", ""),
        ];
        let selector: LabelSelector = selector.parse().unwrap();
        let found = selector.matches(|key| labels.iter().find(|(k, _)| *k == key).map(|(_, v)| *v));
        assert_eq!(found, expected, "{selector}");
        assert_eq!(
            selector.to_string().parse::<LabelSelector>().unwrap(),
            selector,
            "printing loses nothing"
        );
    }

    #[test]
    fn label_requirements_all_hold() {
        matches("", true);
        matches("a=x", true);
        matches("a==x,n=7", true);
        matches("a = y", false);
        matches("a!=y", true);
        matches("missing!=y", true);
        matches("a in (x, y),!z", true);
        matches("a notin (x)", false);
        matches("missing notin (x)", true);
        matches("a,example.org/team=red", true);
        matches("!a", false);
        matches("n>6,n<8", true);
        matches("a>6", false);
        matches("empty=", true);
        matches("empty in ()", true);
        matches("in in (x)", false);
    }

    #[test]
    fn malformed_label_selectors_are_refused() {
        for bad in [
            "a=b=c",
            "a in x",
            "a in (x",
            "a in (x y)",
            ",",
            "a,,b",
            "=x",
            "a=-",
            "a>b",
            "!",
            "!a=b",
            "a b",
            "a/b/c=d",
            "()",
            "a in (x))",
        ] {
            assert!(bad.parse::<LabelSelector>().is_err(), "{bad:?}");
        }
    }

    #[test]
    fn field_requirements_all_hold() {
        let fields = |path: &str| match path {
            "metadata.name" => Some("a"),
            "odd" => Some("x,y=z\\"),
            _ => None,
        };
        let check = |selector: &str, expected: bool| {
            assert_eq!(
                selector.parse::<FieldSelector>().unwrap().matches(fields),
                expected,
                "{selector}"
            );
        };
        check("", true);
        check("metadata.name=a", true);
        check("metadata.name==a,metadata.namespace!=b", true);
        check("metadata.name!=a", false);
        check("odd=x\\,y\\=z\\\\", true);
        check("status.nodeName=", true);
    }

    #[test]
    fn malformed_field_selectors_are_refused() {
        for bad in ["=", "metadata.name", "a=b=c", "a=\\x", "a!b", "a=\\"] {
            let parsed = bad.parse::<FieldSelector>();
            assert!(parsed.is_err() || bad == "=", "{bad:?} {parsed:?}");
        }
    }

    #[test]
    fn a_required_name_is_found() {
        let selector: FieldSelector = "metadata.namespace!=b,metadata.name=x".parse().unwrap();
        assert_eq!(selector.required_value("metadata.name"), Some("x"));
        assert_eq!(selector.required_value("metadata.namespace"), None);
    }
}
