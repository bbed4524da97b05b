//! Protocols of storage elements, and the physical names of the files behind them.
//!
//! A physical name is `scheme://host:port/prefix/path`. The path is computed from the logical name
//! with a hash that spreads files over folders, or was given when the replica was registered. A
//! path never leads outside of the prefix: parts that are empty, `.` or `..` are refused on every
//! input.

use md5::{Digest, Md5};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};

use crate::did::Did;

/// The reason why the description of a protocol is invalid.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct Invalid(pub String);

/// A protocol to access the files of an RSE.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Protocol {
    /// `file`, `s3`, `davs`, …
    pub scheme: String,
    /// The host, by default `localhost`.
    pub hostname: String,
    /// The port, by default 0.
    pub port: i64,
    /// The folder or bucket with the RSE's files.
    pub prefix: String,
    /// The Python class that Rucio clients load for it.
    pub implementation: String,
    /// The permitted operations: domain → operation → rank; 0 or no rank means not permitted.
    pub domains: Value,
    /// Further attributes of the protocol.
    pub extended: Value,
}

/// Whether a path stays below its prefix: it is relative and has no part that is empty, `.` or
/// `..`.
#[must_use]
pub fn stays_below(path: &str) -> bool {
    !path.is_empty()
        && !path.contains(['\\', '\0'])
        && path.split('/').all(|part| !part.is_empty() && part != "." && part != "..")
}

/// Whether a path looks like that of a draft, which workers and the reaper remove.
#[must_use]
pub fn is_of_a_draft(path: &str) -> bool {
    let name = path.rsplit('/').next().unwrap_or(path);
    name.starts_with('.') && name.ends_with(".part")
}

/// The folders of a scope.
fn scope_path(scope: &str) -> String {
    let people = scope.starts_with("user") || scope.starts_with("group");
    if people { scope.replace('.', "/") } else { scope.to_owned() }
}

/// Whether a path can be computed from a logical name: not every legal name has one.
#[must_use]
pub fn has_place(did: &Did) -> bool {
    stays_below(&scope_path(&did.scope)) && stays_below(did.name.trim_start_matches('/'))
}

/// The end of the error for a name from which no path can be computed.
pub const NO_PLACE: &str = "is empty, . or .., so that it has no place in storage";

/// The path of a file below the prefix, from its logical name.
#[must_use]
pub fn hashed_path(did: &Did) -> String {
    let digest = Md5::digest(format!("{}:{}", did.scope, did.name).as_bytes());
    let scope = scope_path(&did.scope);
    format!("{scope}/{:02x}/{:02x}/{}", digest[0], digest[1], did.name.trim_start_matches('/'))
}

/// Whether an attribute name looks like that of a secret.
fn is_secret(key: &str) -> bool {
    // The space token of SRM names a storage area; it is not a secret.
    let key = key.to_ascii_lowercase().replace("space_token", "").replace("spacetoken", "");
    ["password", "secret", "token", "credential", "access_key", "access-key"]
        .iter()
        .any(|word| key.contains(word))
}

/// Whether a value has known domains only, with ranks that are numbers or null.
fn are_domains(value: &Value) -> bool {
    let ranks = |ranks: &Value| {
        ranks.as_object().is_some_and(|ranks| {
            ranks.values().all(|rank| rank.is_null() || rank.as_u64().is_some())
        })
    };
    value.as_object().is_some_and(|domains| {
        domains.iter().all(|(domain, of)| ["lan", "wan"].contains(&domain.as_str()) && ranks(of))
    })
}

impl Protocol {
    /// Parses a protocol as clients send it.
    pub fn read(scheme: &str, body: &Map<String, Value>) -> Result<Self, Invalid> {
        let wrong = |what: &str| Invalid(format!("A protocol's {what}"));
        let text = |key: &str, otherwise: &str| match body.get(key) {
            None | Some(Value::Null) => Ok(otherwise.to_owned()),
            Some(Value::String(text)) if text.len() <= 1024 => Ok(text.clone()),
            Some(_) => Err(wrong(&format!("{key} is a text of at most 1024 letters"))),
        };
        let port = match body.get("port") {
            None | Some(Value::Null) => 0,
            Some(value) => value
                .as_i64()
                .or_else(|| value.as_str().and_then(|text| text.parse().ok()))
                .filter(|port| (0..=65_535).contains(port))
                .ok_or_else(|| wrong("port is a number up to 65535"))?,
        };
        let legal = |letter: char| letter.is_ascii_alphanumeric() || "+-.".contains(letter);
        let first = scheme.chars().next();
        let begins = first.is_some_and(|letter| letter.is_ascii_alphabetic());
        if !begins || scheme.len() > 32 || !scheme.chars().all(legal) {
            return Err(wrong("scheme is a short word such as file, s3 or davs"));
        }
        let prefix = text("prefix", "")?;
        if prefix.split('/').any(|part| part == "..") || prefix.contains(['\\', '\0']) {
            return Err(wrong("prefix has no part that leads up"));
        }
        let all = json!({"read": 1, "write": 1, "delete": 1});
        let domains = match body.get("domains") {
            None | Some(Value::Null) => json!({"lan": all, "wan": all}),
            Some(value) if are_domains(value) => value.clone(),
            Some(_) => {
                return Err(wrong(
                    "domains are lan and wan, and rank each operation by a number that is not negative",
                ));
            }
        };
        let extended = match body.get("extended_attributes") {
            None | Some(Value::Null) => Value::Null,
            Some(value @ Value::Object(_)) => value.clone(),
            Some(_) => return Err(wrong("extended_attributes are an object")),
        };
        if extended.as_object().is_some_and(|more| more.keys().any(|key| is_secret(key))) {
            return Err(wrong(
                "keys are not kept in the catalog, where everybody reads them: they belong into the file of --credentials",
            ));
        }
        let host = text("hostname", "")?;
        Ok(Self {
            scheme: scheme.to_owned(),
            hostname: if host.is_empty() { "localhost".to_owned() } else { host },
            port,
            prefix,
            implementation: text("impl", "rucio.rse.protocols.posix.Default")?,
            domains,
            extended,
        })
    }

    /// Fails if a `file` protocol has no folder, or names another host: an address with a slash too
    /// few would put files into the root folder of this machine.
    pub fn check_folder(&self) -> Result<(), Invalid> {
        let here = self.hostname == "localhost";
        let named = self.prefix.split('/').any(|part| !part.is_empty() && part != ".");
        if self.scheme != "file" || (here && named) {
            return Ok(());
        }
        let message = match here {
            true => "A file protocol needs a folder of its own: file:///FOLDER".to_owned(),
            false => format!(
                "A file protocol is a folder of this machine and has no host such as {:.60}: file:///FOLDER",
                self.hostname
            ),
        };
        Err(Invalid(message))
    }

    /// The protocol as clients receive it.
    #[must_use]
    pub fn show(&self) -> Value {
        json!({
            "scheme": self.scheme, "hostname": self.hostname, "port": self.port, "prefix": self.prefix,
            "impl": self.implementation, "domains": self.domains, "extended_attributes": self.extended,
        })
    }

    /// The rank of an operation within a domain; none if it is not permitted.
    #[must_use]
    pub fn rank(&self, domain: &str, operation: &str) -> Option<i64> {
        let rank = self.domains.get(domain)?.get(operation)?.as_i64()?;
        (rank > 0).then_some(rank)
    }

    /// The part of a physical name before the path, with a slash at its end.
    #[must_use]
    pub fn base(&self) -> String {
        let slash = if self.prefix.starts_with('/') { "" } else { "/" };
        let end = if self.prefix.ends_with('/') { "" } else { "/" };
        let (scheme, host, port) = (&self.scheme, &self.hostname, self.port);
        format!("{scheme}://{host}:{port}{slash}{}{end}", self.prefix)
    }

    /// The physical name of a path below the prefix.
    #[must_use]
    pub fn name(&self, path: &str) -> String {
        format!("{}{}", self.base(), path.trim_start_matches('/'))
    }

    /// The path below the prefix, if a physical name belongs to this protocol.
    #[must_use]
    pub fn path_of(&self, name: &str) -> Option<String> {
        let (scheme, rest) = name.split_once("://")?;
        let (host, path) = rest.split_at(rest.find('/')?);
        let (host, port) = host.split_once(':').unwrap_or((host, "0"));
        let same_host = self.hostname == host || (host.is_empty() && self.hostname == "localhost");
        if scheme != self.scheme || !same_host || port.parse() != Ok(self.port) {
            return None;
        }
        let single = |text: &str| {
            let parts: Vec<&str> = text.split('/').filter(|part| !part.is_empty()).collect();
            parts.join("/")
        };
        let (path, prefix) = (single(path), single(&self.prefix));
        let below = if prefix.is_empty() {
            path
        } else {
            path.strip_prefix(&prefix)?.strip_prefix('/')?.to_owned()
        };
        stays_below(&below).then_some(below)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn folder(prefix: &str) -> Protocol {
        let Value::Object(body) = json!({"prefix": prefix}) else { unreachable!() };
        Protocol::read("file", &body).unwrap()
    }

    #[test]
    fn hashed_paths_are_those_of_rucio_clients() {
        for (scope, name, path) in [
            ("user.alice", "f0", "user/alice/c0/c8/f0"),
            ("data17", "a/b.root", "data17/34/c4/a/b.root"),
        ] {
            assert_eq!(hashed_path(&Did::new(scope, name)), path);
        }
    }

    #[test]
    fn a_name_has_a_place_if_its_path_stays_below_the_prefix() {
        for (scope, name, has) in [
            ("s", "a", true),
            ("s", "/a/b", true),
            ("user.alice", "a", true),
            ("s", "a/", false),
            ("s", "a//b", false),
            ("s", "/", false),
            ("s", "a/./b", false),
            ("s", "a/..", false),
            ("user..alice", "a", false),
            ("data..x", "a", true),
        ] {
            let did = Did::new(scope, name);
            assert_eq!(has_place(&did), has, "{did}");
            assert_eq!(stays_below(&hashed_path(&did)), has, "{did}");
        }
    }

    #[test]
    fn paths_with_parts_that_lead_outside_are_refused() {
        for (path, stays) in [
            ("a/b", true),
            ("a", true),
            ("", false),
            ("/a", false),
            ("a//b", false),
            ("../a", false),
            ("a/../b", false),
            ("a/..", false),
            ("./a", false),
            ("a\\..\\b", false),
            ("a..b/c", true),
        ] {
            assert_eq!(stays_below(path), stays, "{path:?}");
        }
    }

    #[test]
    fn protocols_with_secrets_are_refused() {
        for (key, taken) in [
            ("web_service_path", true),
            ("secret_key", false),
            ("Password", false),
            ("x-token", false),
        ] {
            let body = json!({"prefix": "/", "extended_attributes": {key: "x"}});
            let read = Protocol::read("s3", body.as_object().unwrap());
            assert_eq!(read.is_ok(), taken, "{key}");
        }
    }

    #[test]
    fn a_physical_name_is_parsed_only_if_it_belongs_to_the_protocol() {
        let protocol = folder("/data/rse1");
        assert_eq!(protocol.name("a/b"), "file://localhost:0/data/rse1/a/b");
        for (name, path) in [
            ("file://localhost:0/data/rse1/a/b", Some("a/b")),
            ("file:///data/rse1//a/b", Some("a/b")),
            ("file://localhost/data/rse1/a", Some("a")),
            ("file://localhost/data/rse10/a", None),
            ("file://localhost/data/rse1/../rse2/a", None),
            ("file://localhost/data/rse1/", None),
            ("file://elsewhere/data/rse1/a", None),
            ("s3://localhost/data/rse1/a", None),
            ("nothing", None),
        ] {
            assert_eq!(protocol.path_of(name).as_deref(), path, "{name}");
        }
    }
}
