//! Chooses ports for instances from a range, and never one that another process of the machine
//! uses.

use std::io;
use std::net::{Ipv4Addr, TcpListener, UdpSocket};
use std::ops::RangeInclusive;

use mainstay_sessions::api::Protocol;

/// The ports that are free, as far as this agent knows.
#[derive(Debug)]
pub(super) struct Ports {
    first: u16,
    count: usize,
    taken: Vec<u64>,
    /// Where to look next: a port that was just given back is not given out again at once.
    next: usize,
}

/// Whether a process of the machine uses the port.
fn in_use(port: u16, protocol: Protocol) -> bool {
    let at = (Ipv4Addr::UNSPECIFIED, port);
    let bound = match protocol {
        Protocol::Tcp => TcpListener::bind(at).map(|_| ()),
        Protocol::Udp => UdpSocket::bind(at).map(|_| ()),
    };
    // A port that the agent may not bind may still be free for the instance.
    bound.is_err_and(|error| error.kind() == io::ErrorKind::AddrInUse)
}

impl Ports {
    pub(super) fn new(range: &RangeInclusive<u16>) -> Self {
        let count = usize::from(range.end().saturating_sub(*range.start())) + 1;
        Self { first: *range.start(), count, taken: vec![0; count.div_ceil(64)], next: 0 }
    }

    fn bit(&mut self, port: u16) -> Option<(&mut u64, u64)> {
        let at = usize::from(port.checked_sub(self.first)?);
        if at >= self.count {
            return None;
        }
        self.taken.get_mut(at / 64).map(|word| (word, 1 << (at % 64)))
    }

    /// Marks a port as taken; says whether it was free. One outside the range always is.
    pub(super) fn mark(&mut self, port: u16) -> bool {
        match self.bit(port) {
            Some((word, bit)) if *word & bit != 0 => false,
            Some((word, bit)) => {
                *word |= bit;
                true
            }
            None => true,
        }
    }

    /// Gives a port back.
    pub(super) fn free(&mut self, port: u16) {
        if let Some((word, bit)) = self.bit(port) {
            *word &= !bit;
        }
    }

    /// Takes a certain port, unless it is in use.
    pub(super) fn take(&mut self, port: u16, protocol: Protocol) -> bool {
        !in_use(port, protocol) && self.mark(port)
    }

    /// Takes the next free one.
    pub(super) fn any(&mut self, protocol: Protocol) -> Option<u16> {
        for step in 0..self.count {
            let at = (self.next + step) % self.count;
            let port = self.first.checked_add(u16::try_from(at).ok()?)?;
            if self.take(port, protocol) {
                self.next = (at + 1) % self.count;
                return Some(port);
            }
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_port_in_use_is_never_allocated() {
        let mine = TcpListener::bind((Ipv4Addr::UNSPECIFIED, 0)).unwrap();
        let busy = mine.local_addr().unwrap().port();
        let mut ports = Ports::new(&(busy..=busy));
        assert_eq!(ports.any(Protocol::Tcp), None);
        assert!(!ports.take(busy, Protocol::Tcp));
    }

    #[test]
    fn each_is_given_once_until_it_is_back() {
        let mut ports = Ports::new(&(20_000..=20_099));
        let mut given = std::collections::BTreeSet::new();
        while let Some(port) = ports.any(Protocol::Udp) {
            assert!(given.insert(port), "{port} twice");
        }
        assert!(given.len() > 50, "only {} of a hundred are free on this machine", given.len());
        let one = *given.first().unwrap();
        assert!(!ports.mark(one));
        ports.free(one);
        assert_eq!(ports.any(Protocol::Udp), Some(one));
        assert!(ports.mark(9) && ports.mark(9), "a port outside the range is not ours to count");
    }
}
