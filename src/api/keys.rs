//! Identifiers, a type each, so that none is taken for another.

use std::{fmt, net::IpAddr, str::FromStr, sync::Arc};

use compact_str::CompactString;
use serde::{Deserialize, Serialize};

/// A string identifier of its own kind: compared, hashed and printed as the text it holds.
macro_rules! identifier {
    ($(#[$doc:meta])* $name:ident($inner:ty)) => {
        $(#[$doc])*
        #[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
        #[serde(transparent)]
        pub struct $name($inner);

        impl $name {
            /// The identifier's text.
            pub fn as_str(&self) -> &str {
                &self.0
            }
        }

        impl From<&str> for $name {
            fn from(text: &str) -> Self {
                Self(text.into())
            }
        }

        impl From<String> for $name {
            fn from(text: String) -> Self {
                Self(text.into())
            }
        }

        impl std::borrow::Borrow<str> for $name {
            fn borrow(&self) -> &str {
                self.as_str()
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.pad(self.as_str())
            }
        }
    };
}

identifier! {
    /// The name of a node, and of its `NodeInventory`.
    NodeName(Arc<str>)
}
identifier! {
    /// A daemon's id for one claim (`sb_…`). Never used twice, also not by another node.
    ClaimId(CompactString)
}
identifier! {
    /// A daemon's id for one checkpoint (`ck_…`).
    SnapshotId(CompactString)
}

/// A credential. Prints as `***`, so that it cannot reach a log by accident.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Token(String);

impl Token {
    /// The secret itself, for the one header or field that it is meant for.
    pub fn expose(&self) -> &str {
        &self.0
    }
}

impl From<String> for Token {
    fn from(secret: String) -> Self {
        Self(secret)
    }
}

impl fmt::Debug for Token {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("***")
    }
}

/// Namespace and name of a Sandbox, ordered as lists are.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct SandboxKey {
    /// The namespace.
    pub namespace: CompactString,
    /// The name within it.
    pub name: CompactString,
}

impl SandboxKey {
    /// The key of `name` in `namespace`.
    pub fn new(namespace: impl Into<CompactString>, name: impl Into<CompactString>) -> Self {
        Self {
            namespace: namespace.into(),
            name: name.into(),
        }
    }
}

impl fmt::Display for SandboxKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.namespace, self.name)
    }
}

/// Which warm VMs are alike: image or promoted template, network lane, size.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct PoolKey {
    /// Image reference or the name of a promoted template.
    pub template: CompactString,
    /// Network lane: `none` or `egress`.
    #[serde(default = "PoolKey::default_net")]
    pub net: CompactString,
    /// Size class: `small`, `medium`, `large` and larger ones that only the daemon names.
    #[serde(default = "PoolKey::default_size")]
    pub size: CompactString,
}

impl PoolKey {
    /// The lane of a key that names none.
    pub const DEFAULT_NET: &str = "none";
    /// The size of a key that names none.
    pub const DEFAULT_SIZE: &str = "small";
    /// Longest template name, in bytes; a longer one is no image reference.
    pub const MAX_TEMPLATE: usize = 512;
    /// Longest name of a lane or a size, in bytes.
    const MAX_WORD: usize = 128;

    /// Whether it names a template and every part is within its bound.
    pub fn is_sound(&self) -> bool {
        (1..=Self::MAX_TEMPLATE).contains(&self.template.len())
            && self.net.len() <= Self::MAX_WORD
            && self.size.len() <= Self::MAX_WORD
    }

    fn default_net() -> CompactString {
        Self::DEFAULT_NET.into()
    }

    fn default_size() -> CompactString {
        Self::DEFAULT_SIZE.into()
    }
}

impl fmt::Display for PoolKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}|{}|{}", self.template, self.net, self.size)
    }
}

/// Where a node's daemon listens: a scheme, a host and a port, and nothing more.
///
/// Parsed from `host:port` (plain HTTP) or `http(s)://host[:port]`. A path, a query, user information or a link-local
/// host is refused: a token is sent to this address, so it may be nothing but an address.
#[derive(Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct NodeAddress {
    tls: bool,
    host: CompactString,
    port: u16,
}

/// Why a text is no [`NodeAddress`].
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("invalid node address {text:?}: {reason}")]
pub struct InvalidAddress {
    text: String,
    reason: &'static str,
}

impl NodeAddress {
    /// Whether the daemon is behind TLS.
    pub fn is_tls(&self) -> bool {
        self.tls
    }

    /// Host name or IP, without brackets.
    pub fn host(&self) -> &str {
        &self.host
    }

    /// TCP port.
    pub fn port(&self) -> u16 {
        self.port
    }

    /// The host as an IP, unless it is a name.
    pub fn ip(&self) -> Option<IpAddr> {
        self.host.parse().ok()
    }

    /// `http://host:port`, with brackets around an IPv6 host.
    pub fn origin(&self) -> String {
        format!(
            "{}://{}",
            if self.tls { "https" } else { "http" },
            self.authority()
        )
    }

    /// `host:port`, with brackets around an IPv6 host.
    pub fn authority(&self) -> String {
        if self.host.contains(':') {
            format!("[{}]:{}", self.host, self.port)
        } else {
            format!("{}:{}", self.host, self.port)
        }
    }
}

impl FromStr for NodeAddress {
    type Err = InvalidAddress;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let invalid = |reason| InvalidAddress {
            text: text.chars().take(128).collect(),
            reason,
        };
        if text.len() > 300 {
            return Err(invalid("longer than 300 characters"));
        }
        let (tls, default_port, authority) = match text.split_once("://") {
            Some(("http", rest)) => (false, Some(80), rest),
            Some(("https", rest)) => (true, Some(443), rest),
            Some(_) => return Err(invalid("the scheme is neither http nor https")),
            None => (false, None, text),
        };
        if authority.contains(['/', '?', '#', '@', '\\', '%']) {
            return Err(invalid("more than a host and a port"));
        }
        let (host, port) = split_authority(authority).ok_or_else(|| invalid("no host"))?;
        let port = match port {
            Some(port) => port.parse().ok().filter(|&port| port > 0),
            None => default_port,
        };
        let port = port.ok_or_else(|| invalid("no port between 1 and 65535"))?;
        match host.parse::<IpAddr>() {
            Ok(ip) if is_link_local(ip) => return Err(invalid("a link-local address")),
            Ok(_) => {}
            Err(_) if crate::meta::is_dns1123_subdomain(&host.to_ascii_lowercase()) => {}
            Err(_) => return Err(invalid("the host is neither an IP nor a DNS name")),
        }
        Ok(Self {
            tls,
            host: host.into(),
            port,
        })
    }
}

/// Host and port text of `host`, `host:port`, `[v6]` or `[v6]:port`.
fn split_authority(authority: &str) -> Option<(&str, Option<&str>)> {
    if let Some(rest) = authority.strip_prefix('[') {
        let (host, rest) = rest.split_once(']')?;
        host.parse::<std::net::Ipv6Addr>().ok()?;
        return match rest.strip_prefix(':') {
            Some(port) => Some((host, Some(port))),
            None => rest.is_empty().then_some((host, None)),
        };
    }
    let (host, port) = match authority.split_once(':') {
        Some((host, port)) => (host, Some(port)),
        None => (authority, None),
    };
    (!host.is_empty()).then_some((host, port))
}

/// Link-local, also when written as an IPv4-mapped IPv6 address: where clouds serve instance credentials.
fn is_link_local(ip: IpAddr) -> bool {
    match ip.to_canonical() {
        IpAddr::V4(v4) => v4.is_link_local(),
        IpAddr::V6(v6) => v6.is_unicast_link_local(),
    }
}

impl fmt::Display for NodeAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.origin())
    }
}

impl fmt::Debug for NodeAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn address(text: &str, expected: Option<&str>) {
        assert_eq!(
            text.parse::<NodeAddress>()
                .ok()
                .map(|address| address.origin())
                .as_deref(),
            expected,
            "{text}"
        );
    }

    #[test]
    fn an_address_is_a_scheme_a_host_and_a_port() {
        address("10.0.0.1:7777", Some("http://10.0.0.1:7777"));
        address(
            "node-1.example.org:80",
            Some("http://node-1.example.org:80"),
        );
        address("https://node-1", Some("https://node-1:443"));
        address("http://[fd00::1]:7777", Some("http://[fd00::1]:7777"));
        address("[fd00::1]:7777", Some("http://[fd00::1]:7777"));
    }

    #[test]
    fn anything_more_is_refused() {
        for bad in [
            "",
            ":7777",
            "10.0.0.1",
            "10.0.0.1:0",
            "10.0.0.1:99999",
            "10.0.0.1:80/path",
            "http://a/",
            "http://u@a:1",
            "http://a:1?q",
            "ftp://a:1",
            "http://",
            "a b:1",
            "http://[::1",
            "[::1]x:1",
            "a:1:2",
            "http://a#f",
            "http://a\\b:1",
        ] {
            address(bad, None);
        }
        address(&format!("{}:1", "a".repeat(300)), None);
    }

    #[test]
    fn link_local_targets_are_refused_in_every_spelling() {
        for bad in [
            "169.254.169.254:80",
            "http://[fe80::1]:80",
            "[::ffff:169.254.169.254]:80",
        ] {
            address(bad, None);
        }
    }

    #[test]
    fn a_token_does_not_print() {
        assert_eq!(format!("{:?}", Token::from("secret".to_owned())), "***");
    }
}
