//! How many connections of strangers one address has.

use std::{
    collections::HashMap,
    net::{IpAddr, Ipv6Addr},
    sync::Arc,
};

use parking_lot::Mutex;

/// The strangers of every address: connections on which nobody has shown a good credential.
#[derive(Clone, Debug)]
pub(super) struct Peers {
    max_strangers: usize,
    // Held to count one up or down. No larger than the number of connections.
    n_strangers: Arc<Mutex<HashMap<IpAddr, usize>>>,
}

/// A stranger's place, given back when dropped.
#[derive(Debug)]
pub(super) struct Place {
    peers: Peers,
    address: IpAddr,
}

impl Peers {
    pub(super) fn new(max_strangers: usize) -> Self {
        Self {
            max_strangers,
            n_strangers: Arc::default(),
        }
    }

    /// A place for a connection from `address`; `None` when its strangers have all there are.
    pub(super) fn enter(&self, address: IpAddr) -> Option<Place> {
        let address = origin(address);
        let mut n_strangers = self.n_strangers.lock();
        let n = n_strangers.entry(address).or_default();
        if *n >= self.max_strangers {
            return None;
        }
        *n += 1;
        let peers = self.clone();
        Some(Place { peers, address })
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let mut n_strangers = self.peers.n_strangers.lock();
        if let Some(n) = n_strangers.get_mut(&self.address) {
            *n -= 1;
            if *n == 0 {
                n_strangers.remove(&self.address);
            }
        }
    }
}

/// What one client has one of: an IPv4 address, or the 64 bits of an IPv6 network, in which a host may take any address.
fn origin(address: IpAddr) -> IpAddr {
    match address.to_canonical() {
        IpAddr::V6(v6) => Ipv6Addr::from_bits(v6.to_bits() >> 64 << 64).into(),
        v4 => v4,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_has_so_many_places_and_another_has_its_own() {
        let peers = Peers::new(2);
        let enter = |address: &str| peers.enter(address.parse().unwrap());
        let held = [enter("10.0.0.1"), enter("::ffff:10.0.0.1")];
        assert!(held.iter().all(Option::is_some));
        assert!(
            enter("10.0.0.1").is_none(),
            "an IPv4 address in IPv6 is the same one"
        );
        let others = [
            enter("10.0.0.2"),
            enter("2001:db8::1"),
            enter("2001:db8::2"),
        ];
        assert!(others.iter().all(Option::is_some));
        assert!(
            enter("2001:db8::3").is_none(),
            "a network of IPv6 is one origin"
        );
        drop(held);
        assert!(enter("10.0.0.1").is_some());
        drop(others);
        assert!(peers.n_strangers.lock().is_empty());
    }
}
