//! Storage that this process may touch: folders below storage roots, and endpoints on the network.
//!
//! Protocols of storage elements come from the catalog, and accounts of the catalog are not the
//! operator of this machine. A server or worker therefore uses a folder only below a root that its
//! operator named, and an endpoint only if the operator listed it or, without a list, if its address
//! is not one of this machine or its link. Protocols outside may be registered; using one is refused
//! with the reason, which the lock then shows. Commands that people run for themselves
//! ([`Allowed::anywhere`]) are bound by their own rights only.
//!
//! Names are resolved here, and the connection goes to the very address that was checked. Redirects
//! are followed only to endpoints that are allowed themselves.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::path::{Component, Path, PathBuf};
use std::sync::Arc;

use reqwest::Url;
use reqwest::dns::{Name, Resolve, Resolving};
use reqwest::redirect::Policy;

/// How many redirects are followed.
const REDIRECTS: usize = 5;

/// Why roots or endpoints cannot be as the operator said.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// A root cannot be opened.
    #[error("--storage-root {root}: {source}")]
    Root {
        /// The root.
        root: String,
        /// Why.
        source: std::io::Error,
    },
    /// A root is not a folder.
    #[error("--storage-root {0}: not a folder")]
    NotAFolder(String),
    /// A root would open files of the server itself to accounts of the catalog.
    #[error(
        "--storage-root {root}: {relation} {private}, which accounts of the rule engine must not reach; choose a folder elsewhere"
    )]
    Private {
        /// The root.
        root: String,
        /// `lies inside` or `contains`.
        relation: &'static str,
        /// What belongs to the server.
        private: String,
    },
    /// An endpoint is not written as a host and port.
    #[error("--storage-endpoint {0:?}: expected HOST or HOST:PORT")]
    Endpoint(String),
}

/// Why a folder or an endpoint is not used.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Refused {
    /// No folder is allowed at all.
    #[error(
        "folder {0}: no storage root is set; start the server or transfer worker with --storage-root DIR"
    )]
    NoRoots(String),
    /// The folder is elsewhere.
    #[error("folder {folder}: not below a storage root ({roots}); add one with --storage-root DIR")]
    Outside {
        /// The folder.
        folder: String,
        /// The roots.
        roots: String,
    },
    /// The address is one of this machine, of its link, or of no machine.
    #[error(
        "endpoint {host}: {address} is a {kind} address; allow it with --storage-endpoint {host}"
    )]
    Address {
        /// The endpoint's host.
        host: String,
        /// Its address.
        address: IpAddr,
        /// What kind of address that is.
        kind: &'static str,
    },
    /// The operator has listed others.
    #[error("endpoint {0}: not listed; allow it with --storage-endpoint {0}")]
    Unlisted(String),
    /// The keys to the RSE's storage are for another server.
    #[error(
        "endpoint {endpoint}: the credential of this RSE is bound to {bound} and is not sent elsewhere; correct the RSE's protocol, or the endpoint in the file of --credentials"
    )]
    Credential {
        /// Where the RSE's protocol leads.
        endpoint: String,
        /// The server that the credential is for.
        bound: String,
    },
    /// There is no host in the address, or more than a host.
    #[error("endpoint {0:?}: not a host name or address")]
    NoHost(String),
}

/// A folder below which storage may lie.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Root {
    /// As the operator wrote it, absolute.
    given: PathBuf,
    /// The same without links.
    real: PathBuf,
}

#[derive(Clone, Debug)]
enum Roots {
    Anywhere,
    Below(Vec<Root>),
}

/// A host, and perhaps a port.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Endpoint {
    host: String,
    port: Option<u16>,
}

#[derive(Clone, Debug)]
enum Endpoints {
    Anywhere,
    /// All but addresses of this machine and of its link.
    Others,
    Listed(Arc<[Endpoint]>),
}

/// Which storage may be touched. The default allows no folder.
#[derive(Clone, Debug)]
pub struct Allowed {
    roots: Roots,
    endpoints: Endpoints,
}

impl Default for Allowed {
    fn default() -> Self {
        Self { roots: Roots::Below(Vec::new()), endpoints: Endpoints::Others }
    }
}

/// Where a folder is opened from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Opening {
    /// By its path, with the rights of whoever runs this.
    Path,
    /// From a root without links, by a path below it, without following a link.
    Below(PathBuf, String),
}

impl Allowed {
    /// Everything: for commands that people run with their own rights.
    #[must_use]
    pub fn anywhere() -> Self {
        Self { roots: Roots::Anywhere, endpoints: Endpoints::Anywhere }
    }

    /// Folders below these roots, and these endpoints. A root must neither lie inside nor contain one
    /// of the `private` files and folders.
    pub fn new(
        roots: &[PathBuf],
        endpoints: &[String],
        private: &[PathBuf],
    ) -> Result<Self, Error> {
        let private: Vec<PathBuf> = private.iter().map(|place| real(place)).collect();
        let root = |given: &PathBuf| {
            let shown = given.display().to_string();
            let failed = |source| Error::Root { root: shown.clone(), source };
            let given = std::path::absolute(given).map_err(failed)?;
            let real = given.canonicalize().map_err(failed)?;
            if !real.is_dir() {
                return Err(Error::NotAFolder(shown));
            }
            for place in &private {
                let relation = match (real.starts_with(place), place.starts_with(&real)) {
                    (true, _) => "lies inside",
                    (_, true) => "contains",
                    _ => continue,
                };
                let private = place.display().to_string();
                return Err(Error::Private { root: shown, relation, private });
            }
            Ok(Root { given, real })
        };
        let roots = roots.iter().map(root).collect::<Result<Vec<_>, _>>()?;
        let listed = endpoints.iter().map(|text| Endpoint::parse(text));
        let listed = listed.collect::<Result<Vec<_>, _>>()?;
        let endpoints = match listed.is_empty() {
            true => Endpoints::Others,
            false => Endpoints::Listed(listed.into()),
        };
        Ok(Self { roots: Roots::Below(roots), endpoints })
    }

    /// How a folder may be opened.
    pub fn folder(&self, folder: &Path) -> Result<Opening, Refused> {
        let Roots::Below(roots) = &self.roots else { return Ok(Opening::Path) };
        let shown = || folder.display().to_string();
        let plain = |part: Component<'_>| matches!(part, Component::RootDir | Component::Normal(_));
        let below = |root: &Root| {
            let rest =
                folder.strip_prefix(&root.given).or_else(|_| folder.strip_prefix(&root.real));
            Some(Opening::Below(root.real.clone(), rest.ok()?.to_str()?.to_owned()))
        };
        let found = roots.iter().find_map(below);
        match found.filter(|_| folder.components().all(plain)) {
            Some(opening) => Ok(opening),
            None if roots.is_empty() => Err(Refused::NoRoots(shown())),
            None => {
                let roots: Vec<String> =
                    roots.iter().map(|root| root.given.display().to_string()).collect();
                Err(Refused::Outside { folder: shown(), roots: roots.join(", ") })
            }
        }
    }

    /// Whether an endpoint may be spoken to, as far as its address tells; names are checked again
    /// when they are resolved.
    pub fn endpoint(&self, url: &Url) -> Result<(), Refused> {
        let wrong = || Refused::NoHost(url.to_string());
        let host = url.host_str().filter(|_| url.username().is_empty()).ok_or_else(wrong)?;
        let port = url.port_or_known_default();
        match &self.endpoints {
            Endpoints::Anywhere => Ok(()),
            Endpoints::Listed(listed) => match listed.iter().any(|one| one.is(host, port)) {
                true => Ok(()),
                false => Err(Refused::Unlisted(match port {
                    Some(port) => format!("{host}:{port}"),
                    None => host.to_owned(),
                })),
            },
            Endpoints::Others => match host.trim_start_matches('[').trim_end_matches(']').parse() {
                Ok(address) => check(host, address),
                Err(_) => Ok(()),
            },
        }
    }

    /// A client that speaks to allowed endpoints alone. It follows redirects within the server of
    /// `stays` only, if that is given; to another server it never sends the Authorization header.
    pub(super) fn client(&self, stays: Option<Url>) -> reqwest::ClientBuilder {
        let builder = reqwest::Client::builder();
        let allowed = self.clone();
        let follow = Policy::custom(move |attempt| {
            let leaves = stays.as_ref().is_some_and(|own| attempt.url().origin() != own.origin());
            match allowed.endpoint(attempt.url()) {
                _ if attempt.previous().len() > REDIRECTS => attempt.error("too many redirects"),
                _ if leaves => attempt.error("redirected to another server, which gets no keys"),
                Ok(()) => attempt.follow(),
                Err(refused) => attempt.error(refused),
            }
        });
        let builder = builder.redirect(follow);
        match self.endpoints {
            Endpoints::Anywhere => builder,
            // A proxy would resolve names by itself, to addresses that were not checked.
            Endpoints::Others => builder.no_proxy().dns_resolver(Arc::new(Checked)),
            Endpoints::Listed(_) => builder.no_proxy(),
        }
    }
}

/// A path without links, as far as it is there.
fn real(path: &Path) -> PathBuf {
    let path = std::path::absolute(path).unwrap_or_else(|_| path.to_owned());
    for there in path.ancestors() {
        if let (Ok(real), Ok(rest)) = (there.canonicalize(), path.strip_prefix(there)) {
            return match rest.as_os_str().is_empty() {
                true => real,
                false => real.join(rest),
            };
        }
    }
    path
}

impl Endpoint {
    fn parse(text: &str) -> Result<Self, Error> {
        let wrong = || Error::Endpoint(text.to_owned());
        let (host, port) = match text.rsplit_once(':') {
            Some((host, port)) if !host.contains(':') || host.ends_with(']') => {
                (host, Some(port.parse().map_err(|_| wrong())?))
            }
            _ => (text, None),
        };
        let bracketed = match host.contains(':') && !host.starts_with('[') {
            true => format!("[{host}]"),
            false => host.to_owned(),
        };
        let url = Url::parse(&format!("http://{bracketed}/")).map_err(|_| wrong())?;
        let only_host = url.path() == "/" && url.username().is_empty() && url.port().is_none();
        let host = url.host_str().filter(|_| only_host && !host.is_empty()).ok_or_else(wrong)?;
        Ok(Self { host: host.to_owned(), port })
    }

    /// Hosts are compared as parsed addresses write them: lower case, without leading zeros.
    fn is(&self, host: &str, port: Option<u16>) -> bool {
        self.host == host && (self.port.is_none() || self.port == port)
    }
}

/// What kind of address it is, if it is one that strangers must not make us speak to.
#[must_use]
fn kind(address: IpAddr) -> Option<&'static str> {
    match address {
        IpAddr::V4(address) => kind_v4(address),
        IpAddr::V6(address) => kind_v6(address),
    }
}

fn kind_v4(address: Ipv4Addr) -> Option<&'static str> {
    /// Where clouds without a link-local one have theirs.
    const METADATA: [Ipv4Addr; 2] =
        [Ipv4Addr::new(100, 100, 100, 200), Ipv4Addr::new(192, 0, 0, 192)];
    match address {
        one if one.is_loopback() => Some("loopback"),
        one if one.is_link_local() => Some("link-local"),
        one if one.is_multicast() || one.is_broadcast() => Some("multicast"),
        one if one.octets()[0] == 0 => Some("unspecified"),
        one if METADATA.contains(&one) => Some("metadata"),
        _ => None,
    }
}

fn kind_v6(address: Ipv6Addr) -> Option<&'static str> {
    const METADATA: Ipv6Addr = Ipv6Addr::new(0xfd00, 0xec2, 0, 0, 0, 0, 0, 0x254);
    let parts = address.segments();
    let v4 = |high: u16, low: u16| {
        let ([a, b], [c, d]) = (high.to_be_bytes(), low.to_be_bytes());
        kind_v4(Ipv4Addr::new(a, b, c, d))
    };
    match parts {
        _ if address.is_loopback() => Some("loopback"),
        _ if address.is_unspecified() => Some("unspecified"),
        _ if address.is_multicast() => Some("multicast"),
        _ if parts[0] & 0xffc0 == 0xfe80 => Some("link-local"),
        _ if address == METADATA => Some("metadata"),
        // Addresses that stand for one of IPv4: mapped, compatible, translated and 6to4.
        [0, 0, 0, 0, 0, 0 | 0xffff, high, low] | [0x64, 0xff9b, 0, 0, 0, 0, high, low] => {
            v4(high, low)
        }
        [0x2002, high, low, ..] => v4(high, low),
        _ => None,
    }
}

fn check(host: &str, address: IpAddr) -> Result<(), Refused> {
    match kind(address) {
        None => Ok(()),
        Some(kind) => Err(Refused::Address { host: host.to_owned(), address, kind }),
    }
}

/// The addresses among these that may be spoken to; fails if there are some and none may.
fn checked(host: &str, found: Vec<SocketAddr>) -> Result<Vec<SocketAddr>, Refused> {
    let (mut good, mut refused) = (Vec::new(), Ok(()));
    for address in found {
        match check(host, address.ip()) {
            Ok(()) => good.push(address),
            failed => refused = failed,
        }
    }
    if good.is_empty() {
        refused?;
    }
    Ok(good)
}

/// Resolves names to addresses that were checked.
#[derive(Debug)]
struct Checked;

impl Resolve for Checked {
    fn resolve(&self, name: Name) -> Resolving {
        let host = name.as_str().to_owned();
        Box::pin(async move {
            let found = tokio::net::lookup_host((host.as_str(), 0)).await?.collect();
            let good = checked(&host, found)?;
            Ok(Box::new(good.into_iter()) as reqwest::dns::Addrs)
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn url(text: &str) -> Url {
        Url::parse(text).unwrap()
    }

    #[test]
    fn roots_neither_lie_inside_nor_contain_what_is_private() {
        let folder = tempfile::tempdir().unwrap();
        let at = |path: &str| folder.path().join(path);
        for path in ["data/inner", "storage", "elsewhere"] {
            std::fs::create_dir_all(at(path)).unwrap();
        }
        std::os::unix::fs::symlink(at("data"), at("link")).unwrap();
        let private = [at("data"), at("elsewhere/objects.db")];
        for (root, allowed) in [
            ("storage", true),
            ("", false),
            ("data", false),
            ("data/inner", false),
            ("link", false),
            ("link/inner", false),
            ("elsewhere", false),
            ("storage/../data", false),
            ("missing", false),
        ] {
            let made = Allowed::new(&[at(root)], &[], &private);
            assert_eq!(made.is_ok(), allowed, "{root}: {made:?}");
        }
        // A data folder that is not there yet is as private.
        let private = [at("storage/later/data")];
        let error = Allowed::new(&[at("storage")], &[], &private).unwrap_err().to_string();
        assert!(error.contains("contains") && error.contains("later/data"), "{error}");
    }

    #[test]
    fn folders_are_allowed_below_roots_only() {
        let folder = tempfile::tempdir().unwrap();
        let real = folder.path().canonicalize().unwrap();
        std::fs::create_dir(real.join("disk")).unwrap();
        std::os::unix::fs::symlink("disk", real.join("named")).unwrap();
        let allowed = Allowed::new(&[real.join("named")], &[], &[]).unwrap();
        let below = |rest: &str| Ok(Opening::Below(real.join("disk"), rest.to_owned()));
        assert_eq!(allowed.folder(&real.join("named/a/b")), below("a/b"));
        assert_eq!(allowed.folder(&real.join("disk/a")), below("a"));
        assert_eq!(allowed.folder(&real.join("named")), below(""));
        for outside in ["namedx", "named/../x", "", "x"] {
            let refused = allowed.folder(&real.join(outside)).unwrap_err().to_string();
            assert!(refused.contains("not below a storage root"), "{outside}: {refused}");
        }
        let refused = Allowed::default().folder(&real).unwrap_err().to_string();
        assert!(refused.contains("--storage-root DIR"), "{refused}");
        assert_eq!(Allowed::anywhere().folder(Path::new("/etc")), Ok(Opening::Path));
    }

    #[test]
    fn addresses_of_this_machine_and_its_link_are_refused_unless_listed() {
        let allowed = Allowed::default();
        for host in [
            "127.0.0.1",
            "127.8.9.1",
            "2130706433",
            "0x7f.1",
            "0.0.0.0",
            "169.254.169.254",
            "224.0.0.1",
            "255.255.255.255",
            "100.100.100.200",
            "[::1]",
            "[::]",
            "[fe80::1]",
            "[febf::1]",
            "[ff02::1]",
            "[fd00:ec2::254]",
            "[::ffff:127.0.0.1]",
            "[::127.0.0.1]",
            "[64:ff9b::a9fe:a9fe]",
            "[2002:7f00:1::]",
            "store@10.0.0.1",
        ] {
            let refused = allowed.endpoint(&url(&format!("http://{host}/")));
            assert!(refused.is_err(), "{host}");
        }
        for host in
            ["10.0.0.1", "192.168.1.1", "8.8.8.8", "[2001:db8::1]", "[fd12::1]", "s3.example"]
        {
            let answer = allowed.endpoint(&url(&format!("http://{host}/")));
            assert_eq!(answer, Ok(()), "{host}");
        }
        let at = |text: &str| SocketAddr::new(text.parse().unwrap(), 0);
        assert_eq!(checked("h", vec![at("127.0.0.1"), at("10.0.0.1")]), Ok(vec![at("10.0.0.1")]));
        assert!(checked("h", vec![at("127.0.0.1"), at("::1")]).is_err());
    }

    #[test]
    fn only_listed_endpoints_are_allowed_once_there_is_a_list() {
        let list = ["LocalHost:9000", "10.0.0.1", "[::1]:443", "::2"].map(str::to_owned);
        let allowed = Allowed::new(&[], &list, &[]).unwrap();
        for (text, good) in [
            ("http://localhost:9000/b", true),
            ("http://localhost:9001/b", false),
            ("http://localhost/b", false),
            ("http://10.0.0.1/", true),
            ("https://10.0.0.1:8443/", true),
            ("https://[::1]/", true),
            ("http://[::1]/", false),
            ("http://[::2]:7/", true),
            ("http://s3.example/", false),
            ("http://localhost:9000@s3.example/", false),
        ] {
            assert_eq!(allowed.endpoint(&url(text)).is_ok(), good, "{text}");
        }
        for wrong in ["", ":80", "a:b", "a:70000", "a/b", "u@h", "http://h"] {
            assert!(Allowed::new(&[], &[wrong.to_owned()], &[]).is_err(), "{wrong}");
        }
    }

    /// A name that resolves to this machine is refused when it is resolved, and a redirect when it
    /// is followed.
    #[test]
    fn names_and_redirects_are_checked_where_they_lead() {
        let runtime = tokio::runtime::Runtime::new().unwrap();
        let asked = |allowed: &Allowed, url: String| {
            let client = allowed.client(None).build().unwrap();
            let sent = runtime.block_on(async move { client.get(url).send().await });
            sent.map(|answer| answer.status().as_u16())
                .map_err(|error| super::super::remote::causes(&error))
        };
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let port = listener.local_addr().unwrap().port();
        let refused = asked(&Allowed::default(), format!("http://localhost:{port}/"));
        assert!(refused.as_ref().is_err_and(|why| why.contains("loopback")), "{refused:?}");
        let there = std::thread::spawn(move || {
            use std::io::{Read, Write};
            let (mut stream, _) = listener.accept().unwrap();
            let mut head = [0; 1024];
            let _ = stream.read(&mut head).unwrap();
            let answer = "HTTP/1.1 302 Found\r\nLocation: http://169.254.169.254/latest\r\nContent-Length: 0\r\n\r\n";
            stream.write_all(answer.as_bytes()).unwrap();
        });
        let listed = Allowed::new(&[], &[format!("127.0.0.1:{port}")], &[]).unwrap();
        let refused = asked(&listed, format!("http://127.0.0.1:{port}/"));
        assert!(refused.as_ref().is_err_and(|why| why.contains("169.254.169.254")), "{refused:?}");
        there.join().unwrap();
    }
}
