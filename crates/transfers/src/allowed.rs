//! Decides which storage this process may use: folders below storage roots, and network endpoints.
//!
//! Protocols of storage elements come from the catalog, and accounts of the catalog are not the
//! operator of this machine. A server or worker therefore uses a folder only below a root that its
//! operator named, and an endpoint only if the operator listed it or, without a list, if its
//! address is neither local to this machine nor link-local. Other protocols may be registered;
//! using one fails with the reason, which the lock then shows. Commands that people run for
//! themselves ([`Allowed::anywhere`]) are limited by the permissions of the user only.
//!
//! Names are resolved here, and the connection goes to the address that was checked. Redirects are
//! followed only to allowed endpoints.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::path::{Component, Path, PathBuf};
use std::sync::Arc;

use reqwest::Url;
use reqwest::dns::{Name, Resolve, Resolving};
use reqwest::redirect::Policy;

/// The most redirects that are followed.
const REDIRECTS: usize = 5;

/// An invalid option of the operator.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// A root cannot be opened.
    #[error("--storage-root {root}: {source}")]
    Root {
        /// The root.
        root: String,
        /// The cause.
        source: std::io::Error,
    },
    /// A root is not a folder.
    #[error("--storage-root {0}: not a folder")]
    NotAFolder(String),
    /// A root would make files of the server itself accessible to accounts of the catalog.
    #[error(
        "--storage-root {root}: {relation} {private}, which accounts of the rule engine must not reach; choose a folder elsewhere"
    )]
    Private {
        /// The root.
        root: String,
        /// `lies inside` or `contains`.
        relation: &'static str,
        /// The file or folder of the server.
        private: String,
    },
    /// An endpoint is not a host with an optional port.
    #[error("--storage-endpoint {0:?}: expected HOST or HOST:PORT")]
    Endpoint(String),
}

/// The reason why a folder or an endpoint is refused.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Refused {
    /// No storage root is configured, so no folder is allowed.
    #[error(
        "folder {0}: no storage root is set; start the server or transfer worker with --storage-root DIR"
    )]
    NoRoots(String),
    /// The folder is outside of the storage roots.
    #[error("folder {folder}: not below a storage root ({roots}); add one with --storage-root DIR")]
    Outside {
        /// The folder.
        folder: String,
        /// The roots.
        roots: String,
    },
    /// The address is local to this machine, link-local, multicast or unspecified.
    #[error(
        "endpoint {host}: {address} is a {kind} address; allow it with --storage-endpoint {host}"
    )]
    Address {
        /// The endpoint's host.
        host: String,
        /// Its address.
        address: IpAddr,
        /// The kind of the address.
        kind: &'static str,
    },
    /// The endpoint is not in the operator's list.
    #[error("endpoint {0}: not listed; allow it with --storage-endpoint {0}")]
    Unlisted(String),
    /// The credential of the RSE is bound to another server.
    #[error(
        "endpoint {endpoint}: the credential of this RSE is bound to {bound} and is not sent elsewhere; correct the RSE's protocol, or the endpoint in the file of --credentials"
    )]
    Credential {
        /// The endpoint of the RSE's protocol.
        endpoint: String,
        /// The server that the credential is bound to.
        bound: String,
    },
    /// The address has no host, or also a user.
    #[error("endpoint {0:?}: not a host name or address")]
    NoHost(String),
}

/// A folder below which storage is allowed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Root {
    /// The absolute path as the operator wrote it.
    given: PathBuf,
    /// The same path with symbolic links resolved.
    real: PathBuf,
}

#[derive(Clone, Debug)]
enum Roots {
    Anywhere,
    Below(Vec<Root>),
}

/// A host with an optional port.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Endpoint {
    host: String,
    port: Option<u16>,
}

#[derive(Clone, Debug)]
enum Endpoints {
    Anywhere,
    /// All except addresses that are local to this machine or link-local.
    Others,
    Listed(Arc<[Endpoint]>),
}

/// The storage that may be used. The default allows no folder.
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

/// How a folder is opened.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Opening {
    /// By its path, with the permissions of the user that runs the process.
    Path,
    /// By a path below a resolved root, without following a symbolic link.
    Below(PathBuf, String),
}

impl Allowed {
    /// All storage: for commands that people run with their own permissions.
    #[must_use]
    pub fn anywhere() -> Self {
        Self { roots: Roots::Anywhere, endpoints: Endpoints::Anywhere }
    }

    /// Folders below these roots, and these endpoints. A root must neither lie inside nor contain
    /// one of the `private` files and folders.
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

    /// Checks whether an endpoint may be used, as far as its URL shows; names are checked again
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

    /// An HTTP client that connects to allowed endpoints only. If `stays` is given, it follows
    /// redirects within that server only. It never sends the Authorization header to another
    /// server.
    pub(super) fn client(&self, stays: Option<Url>) -> reqwest::ClientBuilder {
        let builder = reqwest::Client::builder();
        let allowed = self.clone();
        let follow = Policy::custom(move |attempt| {
            let leaves = stays.as_ref().is_some_and(|own| attempt.url().origin() != own.origin());
            match allowed.endpoint(attempt.url()) {
                _ if attempt.previous().len() > REDIRECTS => attempt.error("too many redirects"),
                _ if leaves => attempt
                    .error("redirected to another server, which must not receive the credential"),
                Ok(()) => attempt.follow(),
                Err(refused) => attempt.error(refused),
            }
        });
        let builder = builder.redirect(follow);
        match self.endpoints {
            Endpoints::Anywhere => builder,
            // A proxy would resolve names itself, to addresses that were not checked.
            Endpoints::Others => builder.no_proxy().dns_resolver(Arc::new(CheckedResolver)),
            Endpoints::Listed(_) => builder.no_proxy(),
        }
    }
}

/// A path with symbolic links resolved, as far as it exists.
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

    /// Compares hosts in the normalised form of parsed URLs: lower case, no leading zeros.
    fn is(&self, host: &str, port: Option<u16>) -> bool {
        self.host == host && (self.port.is_none() || self.port == port)
    }
}

/// The kind of an address that is refused unless the operator allows it; none for all others.
#[must_use]
fn kind(address: IpAddr) -> Option<&'static str> {
    match address {
        IpAddr::V4(address) => kind_v4(address),
        IpAddr::V6(address) => kind_v6(address),
    }
}

fn kind_v4(address: Ipv4Addr) -> Option<&'static str> {
    /// Metadata services of clouds at addresses that are not link-local.
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
        // Addresses that embed an IPv4 address: mapped, compatible, translated and 6to4.
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

/// The allowed addresses among these; fails if all of them are refused.
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

/// Resolves names to allowed addresses only.
#[derive(Debug)]
struct CheckedResolver;

impl Resolve for CheckedResolver {
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
    fn roots_neither_lie_inside_nor_contain_private_folders() {
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
        // A data folder that does not exist yet is private too.
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
    fn local_and_link_local_addresses_are_refused_unless_listed() {
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
    fn resolved_names_and_redirect_targets_are_checked() {
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
