//! What is needed of a Kubernetes Node: its own addresses, and whether it is cordoned.

use std::net::IpAddr;

use compact_str::CompactString;
use k8s_openapi::{api::core::v1::Node, apimachinery::pkg::apis::meta::v1::ObjectMeta};
use serde::{Deserialize, Deserializer, de::SeqAccess};

use super::{
    fields::{MAX_ADDRESS, word},
    lenient::{Fields, Scalar, Shape, Shaped},
    publication::Metadata,
};
use crate::api::{NodeName, partial};

/// Addresses kept of one Node; it has a handful.
const MAX_ADDRESSES: usize = 32;

/// A Kubernetes Node, its addresses and its cordon; the rest is not even kept while it is read.
#[derive(Clone, Debug, Default)]
pub struct ClusterNode {
    metadata: ObjectMeta,
    pub(super) cordoned: bool,
    ips: Vec<IpAddr>,
    /// In lower case.
    names: Vec<CompactString>,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct Object {
    metadata: Shaped<Metadata>,
    spec: Shaped<Spec>,
    status: Shaped<Status>,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct Spec {
    unschedulable: Scalar,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct Status {
    addresses: Shaped<Addresses>,
}

#[derive(Default)]
struct Addresses {
    ips: Vec<IpAddr>,
    names: Vec<CompactString>,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct Address {
    r#type: Scalar,
    address: Scalar,
}

impl Fields for Object {}
impl Fields for Spec {}
impl Fields for Status {}
impl Fields for Address {}

impl ClusterNode {
    pub(super) fn name(&self) -> NodeName {
        self.metadata.name.as_deref().unwrap_or_default().into()
    }

    /// Whether the Node says that this IP is its own.
    pub(super) fn has_ip(&self, ip: IpAddr) -> bool {
        self.ips.contains(&ip)
    }

    /// Whether the Node says that this is its host name or its internal DNS name.
    pub(super) fn has_name(&self, name: &str) -> bool {
        self.names.iter().any(|own| own.eq_ignore_ascii_case(name))
    }
}

impl<'de> Shape<'de> for Addresses {
    fn of_seq<A: SeqAccess<'de>>(mut seq: A) -> Result<Shaped<Self>, A::Error> {
        let mut own = Self::default();
        while let Some(address) = seq.next_element::<Shaped<Address>>()? {
            if let Shaped::Is(address) = address
                && own.ips.len() + own.names.len() < MAX_ADDRESSES
            {
                own.add(address);
            }
        }
        Ok(Shaped::Is(own))
    }
}

impl Addresses {
    fn add(&mut self, address: Address) {
        let (Ok(kind), Ok(value)) = (
            word(address.r#type, MAX_ADDRESS),
            word(address.address, MAX_ADDRESS),
        ) else {
            return;
        };
        match value.parse::<IpAddr>() {
            Ok(ip) => self.ips.push(ip.to_canonical()),
            // An external name is resolved by whoever owns its zone.
            Err(_) if matches!(kind.as_str(), "Hostname" | "InternalDNS") => self.names.push(value),
            Err(_) => {}
        }
    }
}

impl<'de> Deserialize<'de> for ClusterNode {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let Shaped::Is(object) = Shaped::<Object>::deserialize(deserializer)? else {
            return Ok(Self::default());
        };
        let addresses = match object.status {
            Shaped::Is(Status {
                addresses: Shaped::Is(addresses),
            }) => addresses,
            _ => Addresses::default(),
        };
        Ok(Self {
            metadata: match &object.metadata {
                Shaped::Is(metadata) => metadata.object_meta(),
                _ => ObjectMeta::default(),
            },
            cordoned: matches!(&object.spec, Shaped::Is(spec) if spec.unschedulable == Scalar::Flag(true)),
            ips: addresses.ips,
            names: addresses.names,
        })
    }
}

partial!(ClusterNode, of Node);

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn addresses_and_cordon_are_all_that_is_kept() {
        let addresses = json!([
            {"type": "InternalIP", "address": "10.0.0.1"}, {"type": "InternalIP", "address": "fd00::1"},
            {"type": "Hostname", "address": "Node-1"}, {"type": "ExternalDNS", "address": "node-1.example.org"},
            {"type": 7, "address": "10.0.0.9"}, "10.0.0.8"]);
        let object = json!({"metadata": {"name": "node-1", "labels": {"a": "b"}}, "spec": {"unschedulable": true},
            "status": {"addresses": addresses, "images": [{}]}});
        let node: ClusterNode = serde_json::from_value(object).unwrap();
        assert!(node.cordoned && node.metadata.labels.is_none());
        assert!(
            node.has_ip("10.0.0.1".parse().unwrap()) && node.has_ip("fd00::1".parse().unwrap())
        );
        assert!(
            !node.has_ip("10.0.0.9".parse().unwrap()) && !node.has_ip("10.0.0.8".parse().unwrap())
        );
        assert!(node.has_name("node-1") && !node.has_name("node-1.example.org"));
    }

    #[test]
    fn a_node_of_wrong_types_has_no_addresses() {
        for object in [
            json!([]),
            json!({"status": {"addresses": {"a": 1}}}),
            json!({"status": [], "spec": "x"}),
        ] {
            let node: ClusterNode = serde_json::from_value(object).unwrap();
            assert!(node.ips.is_empty() && node.names.is_empty() && !node.cordoned);
        }
    }
}
