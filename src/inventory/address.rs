//! Whether our token may be sent to the address that an inventory names.

use std::net::IpAddr;

use ipnet::IpNet;

use super::{
    ClusterNode, Error, Result,
    fields::{MAX_ADDRESS, text},
    lenient::Scalar,
};
use crate::api::NodeAddress;

/// Judges what an inventory, which anybody with the right to write one may have written, gives as its daemon's address.
///
/// An IP is good inside the configured networks, or when the Node of the same name says that it is its own; a name only in
/// the latter case. What [`NodeAddress`] refuses (a path, user information, a link-local IP) never gets that far.
///
/// # Errors
/// [`Error::NoAddress`], [`Error::InvalidAddress`], [`Error::ForeignAddress`].
pub(super) fn judge(
    published: Scalar,
    networks: &[IpNet],
    node: Option<&ClusterNode>,
) -> Result<NodeAddress> {
    let text = text(published, MAX_ADDRESS).map_err(|_| Error::NoAddress)?;
    let address: NodeAddress = text.parse()?;
    judge_known(&address, networks, node)?;
    Ok(address)
}

/// Judges an address again that was good once.
///
/// # Errors
/// [`Error::ForeignAddress`].
pub(super) fn judge_known(
    address: &NodeAddress,
    networks: &[IpNet],
    node: Option<&ClusterNode>,
) -> Result<()> {
    let good = match address.ip().map(|ip| ip.to_canonical()) {
        Some(ip) if !is_one_host(ip) => false,
        Some(ip) => {
            networks.iter().any(|net| net.contains(&ip)) || node.is_some_and(|node| node.has_ip(ip))
        }
        None => node.is_some_and(|node| node.has_name(address.host())),
    };
    if good {
        Ok(())
    } else {
        Err(Error::ForeignAddress(address.clone()))
    }
}

/// Whether the IP is one host's. The unspecified address would lead to this machine, whatever the networks say.
fn is_one_host(ip: IpAddr) -> bool {
    let broadcast = matches!(ip, IpAddr::V4(v4) if v4.is_broadcast());
    !(ip.is_unspecified() || ip.is_multicast() || broadcast)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[track_caller]
    fn check(address: &str, expected: bool) {
        let networks = [
            "10.0.0.0/8".parse().unwrap(),
            "fd00::/8".parse().unwrap(),
            "0.0.0.0/32".parse().unwrap(),
        ];
        let node = json!({"status": {"addresses": [
            {"type": "InternalIP", "address": "192.0.2.1"}, {"type": "Hostname", "address": "node-1"}]}});
        let node: ClusterNode = serde_json::from_value(node).unwrap();
        let judged = judge(Scalar::Text(address.into()), &networks, Some(&node));
        assert_eq!(judged.is_ok(), expected, "{address}: {judged:?}");
    }

    #[test]
    fn a_token_goes_to_the_nodes_own_address_only() {
        for good in [
            "10.1.2.3:7777",
            "http://[fd00::1]:7777",
            "192.0.2.1:1",
            "https://node-1",
            "NODE-1:80",
            "[::ffff:10.0.0.1]:1",
        ] {
            check(good, true);
        }
        for bad in [
            "192.0.2.2:7777",
            "node-2:7777",
            "node-1.example.org:80",
            "127.0.0.1:80",
            "localhost:80",
            "[::1]:80",
            "0.0.0.0:80",
            "[::ffff:127.0.0.1]:80",
            "169.254.169.254:80",
            "[::ffff:169.254.169.254]:80",
            "[fe80::1]:80",
            "224.0.0.1:80",
            "255.255.255.255:80",
            "10.0.0.1:80/path",
            "http://10.0.0.1@192.0.2.9:80",
            "167772161:80",
            "10.1:80",
            "",
            "10.0.0.1",
        ] {
            check(bad, false);
        }
    }

    #[test]
    fn without_a_node_object_only_networks_count() {
        let own = Scalar::Text("192.0.2.1:1".into());
        assert!(matches!(
            judge(own, &[], None),
            Err(Error::ForeignAddress(_))
        ));
        assert!(matches!(
            judge(Scalar::Number(1), &[], None),
            Err(Error::NoAddress)
        ));
        assert!(matches!(
            judge(Scalar::Absent, &[], None),
            Err(Error::InvalidAddress(_))
        ));
    }
}
