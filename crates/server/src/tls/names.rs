//! The names and addresses that a server's certificate is made out to.

use std::collections::BTreeSet;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

/// Every name this machine is reached by when it listens on `address`: those that were given, its
/// host name, and its addresses (all of them where it listens everywhere).
#[must_use]
pub fn names(address: IpAddr, given: &[String]) -> Vec<String> {
    let mut names: BTreeSet<String> =
        ["localhost", "127.0.0.1", "::1"].map(str::to_owned).into_iter().collect();
    names.extend(given.iter().cloned());
    let uname = rustix::system::uname();
    if let Ok(host) = uname.nodename().to_str()
        && !host.is_empty()
    {
        names.insert(host.to_owned());
    }
    if !address.is_unspecified() {
        names.insert(address.to_string());
        return names.into_iter().collect();
    }
    let read = |path: &str| std::fs::read_to_string(path).unwrap_or_default();
    let four = ipv4_addresses(&read("/proc/net/fib_trie"));
    names.extend(four.into_iter().map(|address| address.to_string()));
    if address.is_ipv6() {
        let six = ipv6_addresses(&read("/proc/net/if_inet6"));
        names.extend(six.into_iter().map(|address| address.to_string()));
    }
    names.into_iter().collect()
}

/// The local addresses in the kernel's routing table, `/proc/net/fib_trie`.
fn ipv4_addresses(table: &str) -> BTreeSet<Ipv4Addr> {
    let mut last: Option<Ipv4Addr> = None;
    let mut found = BTreeSet::new();
    for line in table.lines().map(str::trim) {
        if let Some(leaf) = line.strip_prefix("|-- ") {
            last = leaf.parse().ok();
        } else if line == "/32 host LOCAL" {
            found.extend(last);
        }
    }
    found
}

/// The addresses of interfaces in `/proc/net/if_inet6` that are good beyond their own link.
fn ipv6_addresses(table: &str) -> BTreeSet<Ipv6Addr> {
    let address = |line: &str| {
        let digits = line.split_whitespace().next()?;
        let bits = u128::from_str_radix(digits, 16).ok().filter(|_| digits.len() == 32)?;
        Some(Ipv6Addr::from(bits)).filter(|address| !address.is_unicast_link_local())
    };
    table.lines().filter_map(address).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_kernels_tables_give_the_addresses_of_all_interfaces() {
        let table = "Main:
  +-- 0.0.0.0/0 3 0 5
     |-- 0.0.0.0
        /0 universe UNICAST
     +-- 127.0.0.0/8 2 0 2
        |-- 127.0.0.1
           /32 host LOCAL
        |-- 127.255.255.255
           /32 link BROADCAST
Local:
     |-- 192.0.2.7
        /32 host LOCAL
";
        let found: Vec<_> = ipv4_addresses(table).iter().map(ToString::to_string).collect();
        assert_eq!(found, ["127.0.0.1", "192.0.2.7"]);
        let table = "00000000000000000000000000000001 01 80 10 80       lo
fe80000000000000021122fffe334455 02 40 20 80     eth0
20010db8000000000000000000000007 02 40 00 80     eth0
nonsense
";
        let found: Vec<_> = ipv6_addresses(table).iter().map(ToString::to_string).collect();
        assert_eq!(found, ["::1", "2001:db8::7"]);
    }

    #[test]
    fn names_that_were_given_are_among_them_and_an_address_of_its_own_is_enough() {
        let given = ["api.example.com".to_owned()];
        let names = super::names("192.0.2.7".parse().unwrap(), &given);
        for expected in ["api.example.com", "192.0.2.7", "localhost"] {
            assert!(names.contains(&expected.to_owned()), "{names:?}");
        }
        let everywhere = super::names("0.0.0.0".parse().unwrap(), &[]);
        assert!(!everywhere.contains(&"0.0.0.0".to_owned()), "{everywhere:?}");
        assert!(everywhere.contains(&"127.0.0.1".to_owned()), "{everywhere:?}");
    }
}
