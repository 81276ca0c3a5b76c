//! What may be a name, a label or an annotation key, and names made by the server.

use rand::Rng;

/// Longest part of `generateName` that is kept, so that the five random characters fit a DNS label.
pub const MAX_GENERATED_BASE: usize = 58;

/// Characters of a generated suffix: consonants and digits, so that it spells no word and no digit looks like a letter.
const SUFFIX_ALPHABET: &[u8] = b"bcdfghjklmnpqrstvwxz2456789";
const SUFFIX_LENGTH: usize = 5;

const DNS1123_LABEL_RULE: &str = "a lowercase RFC 1123 label must consist of lower case alphanumeric characters or '-', and must start and end with an alphanumeric character (e.g. 'my-name',  or '123-abc', regex used for validation is '[a-z0-9]([-a-z0-9]*[a-z0-9])?')";
const DNS1123_SUBDOMAIN_RULE: &str = "a lowercase RFC 1123 subdomain must consist of lower case alphanumeric characters, '-' or '.', and must start and end with an alphanumeric character (e.g. 'example.com', regex used for validation is '[a-z0-9]([-a-z0-9]*[a-z0-9])?(\\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*')";
const QUALIFIED_NAME_RULE: &str = "name part must consist of alphanumeric characters, '-', '_' or '.', and must start and end with an alphanumeric character (e.g. 'MyName',  or 'my.name',  or '123-abc', regex used for validation is '([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9]')";

/// `base` cut to [`MAX_GENERATED_BASE`] characters plus five random ones.
pub fn generate_name(base: &str) -> String {
    let mut rng = rand::rng();
    let mut name: String = base.chars().take(MAX_GENERATED_BASE).collect();
    name.extend(
        (0..SUFFIX_LENGTH)
            .map(|_| char::from(SUFFIX_ALPHABET[rng.random_range(0..SUFFIX_ALPHABET.len())])),
    );
    name
}

/// 32-bit FNV-1a, by which upstream names what a label selects on.
pub fn fnv1a(bytes: &[u8]) -> u32 {
    bytes.iter().fold(0x811c_9dc5, |hash, byte| {
        (hash ^ u32::from(*byte)).wrapping_mul(0x0100_0193)
    })
}

/// Whether `text` is a DNS-1123 label: 1-63 of `[a-z0-9-]`, alphanumeric at both ends.
pub fn is_dns1123_label(text: &str) -> bool {
    text.len() <= 63
        && edges_are(
            text,
            |byte| byte.is_ascii_lowercase() || byte.is_ascii_digit(),
            |byte| byte == b'-',
        )
}

/// Whether `text` is a DNS-1123 subdomain: 1-253 characters, labels joined by dots.
pub fn is_dns1123_subdomain(text: &str) -> bool {
    let part = |label: &str| {
        edges_are(
            label,
            |byte| byte.is_ascii_lowercase() || byte.is_ascii_digit(),
            |byte| byte == b'-',
        )
    };
    text.len() <= 253 && text.split('.').all(part)
}

/// The reason why `text` is no DNS-1123 label, if it is none.
pub fn validate_dns1123_label(text: &str) -> Result<(), String> {
    if text.len() > 63 {
        return Err("must be no more than 63 characters".to_owned());
    }
    is_dns1123_label(text)
        .then_some(())
        .ok_or_else(|| DNS1123_LABEL_RULE.to_owned())
}

/// The reason why `text` is no DNS-1123 subdomain, if it is none.
pub fn validate_dns1123_subdomain(text: &str) -> Result<(), String> {
    if text.len() > 253 {
        return Err("must be no more than 253 characters".to_owned());
    }
    is_dns1123_subdomain(text)
        .then_some(())
        .ok_or_else(|| DNS1123_SUBDOMAIN_RULE.to_owned())
}

/// The reason why `key` is no label or annotation key: an optional DNS subdomain and `/`, then a name of 1-63 characters.
pub fn validate_qualified_name(key: &str) -> Result<(), String> {
    let name = match key.split_once('/') {
        Some(("", _)) => {
            return Err("prefix part must be non-empty".to_owned());
        }
        Some((prefix, name)) => {
            validate_dns1123_subdomain(prefix).map_err(|reason| format!("prefix part {reason}"))?;
            name
        }
        None => key,
    };
    match name.len() {
        0 => Err("name part must be non-empty".to_owned()),
        64.. => Err("name part must be no more than 63 characters".to_owned()),
        _ => is_name_part(name)
            .then_some(())
            .ok_or_else(|| QUALIFIED_NAME_RULE.to_owned()),
    }
}

/// The reason why `value` is no label value: empty, or 1-63 of `[A-Za-z0-9._-]`, alphanumeric at both ends.
pub fn validate_label_value(value: &str) -> Result<(), String> {
    if value.len() > 63 {
        return Err("must be no more than 63 characters".to_owned());
    }
    (value.is_empty() || is_name_part(value)).then_some(()).ok_or_else(|| {
        "a valid label must be an empty string or consist of alphanumeric characters, '-', '_' or '.', and must start and end with an alphanumeric character (e.g. 'MyValue',  or 'my_value',  or '12345', regex used for validation is '(([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9])?')".to_owned()
    })
}

fn is_name_part(text: &str) -> bool {
    edges_are(
        text,
        |byte| byte.is_ascii_alphanumeric(),
        |byte| matches!(byte, b'-' | b'_' | b'.'),
    )
}

/// Non-empty, every byte `edge` or `inner`, and both ends `edge`.
fn edges_are(text: &str, edge: impl Fn(u8) -> bool, inner: impl Fn(u8) -> bool) -> bool {
    let bytes = text.as_bytes();
    match (bytes.first(), bytes.last()) {
        (Some(&first), Some(&last)) => {
            // Without an early end, so that it is looked at many bytes at a time.
            let are_known = |known: bool, &byte: &u8| known & (edge(byte) | inner(byte));
            edge(first) && edge(last) && bytes.iter().fold(true, are_known)
        }
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn labels_and_subdomains_end_alphanumeric() {
        for good in ["a", "a-b", "0", &"x".repeat(63)] {
            assert!(is_dns1123_label(good), "{good:?}");
        }
        for bad in ["", "-a", "a-", "A", "a.b", "a_b", &"x".repeat(64)] {
            assert!(!is_dns1123_label(bad), "{bad:?}");
        }
        assert!(is_dns1123_subdomain("a.b-c.d"));
        assert!(is_dns1123_subdomain(&"x".repeat(253)));
        for bad in ["a..b", ".a", "a.", "a/b", &"x".repeat(254)] {
            assert!(!is_dns1123_subdomain(bad), "{bad:?}");
        }
    }

    #[test]
    fn label_keys_may_have_a_domain() {
        for good in [
            "a",
            "A_b.c",
            "example.org/a",
            "agents.x-k8s.io/sandbox-name-hash",
        ] {
            assert_eq!(validate_qualified_name(good), Ok(()), "{good:?}");
        }
        for bad in ["", "/a", "a/", "Ex.org/a", "a/b/c", "-a", &"x".repeat(64)] {
            assert!(validate_qualified_name(bad).is_err(), "{bad:?}");
        }
    }

    #[test]
    fn generated_names_keep_at_most_58_characters_of_the_base() {
        let name = generate_name(&"x".repeat(100));
        assert_eq!(name.len(), 63);
        assert!(is_dns1123_label(&name));
        assert_ne!(generate_name("a-"), generate_name("a-"));
    }
}
