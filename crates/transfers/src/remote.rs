//! Remote storage: buckets of S3 and folders of WebDAV.
//!
//! Reading and removing go through `object_store`; sending files is in [`super::send`], listing them
//! in [`super::listed`].

use std::collections::HashSet;
use std::io::Read;
use std::ops::ControlFlow;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use bytes::Bytes;
use futures_util::StreamExt;
use futures_util::stream::BoxStream;
use object_store::aws::{AmazonS3, AmazonS3Builder};
use object_store::client::{HttpClient, HttpConnector};
use object_store::http::HttpBuilder;
use object_store::path::Path;
use object_store::{BackoffConfig, ClientOptions, ObjectStore, ObjectStoreExt, RetryConfig};
use parking_lot::Mutex;
use reqwest::header::{self, HeaderMap, HeaderValue};
use reqwest::{Method, StatusCode, Url};
use tokio::runtime::Runtime;

use super::allowed::{Allowed, Refused};
use super::credential::{Credential, is_encrypted};
use super::send::Sent;
use super::store::{self, Drafts, Error, Found, Plan, Store};
use crate::protocol::{Protocol, stays_below};

/// How long a connection may take to come about.
const CONNECT: Duration = Duration::from_secs(10);

/// How long a service may stay silent before it is given up.
pub(super) const SILENCE: Duration = Duration::from_secs(60);

/// What S3 takes in one piece.
const AT_ONCE: u64 = 5 << 30;

/// What kind of service a protocol leads to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    S3,
    Dav,
}

/// The kind of service, and whether the way to it is secured.
pub(super) fn kind(protocol: &Protocol) -> Option<(Kind, bool)> {
    let kind = if protocol.scheme.starts_with("s3") { Kind::S3 } else { Kind::Dav };
    Some((kind, is_encrypted(&protocol.scheme)?))
}

/// Where everything here is waited for: those who call have no runtime, or may not wait on theirs.
pub(super) fn runtime() -> Result<&'static Runtime, Error> {
    static RUNTIME: OnceLock<Result<Runtime, String>> = OnceLock::new();
    let started = RUNTIME.get_or_init(|| {
        let mut builder = tokio::runtime::Builder::new_multi_thread();
        let builder = builder.worker_threads(2).thread_name("storage").enable_all();
        builder.build().map_err(|error| error.to_string())
    });
    let failed = |why: &String| Error::Elsewhere { what: "threads".into(), why: why.clone() };
    started.as_ref().map_err(failed)
}

/// Waits for an answer, but not for ever.
pub(super) fn wait<T>(
    what: &str,
    answer: impl Future<Output = Result<T, object_store::Error>>,
) -> Result<T, Error> {
    let silent = || Error::Elsewhere { what: what.to_owned(), why: silence() };
    let waited = runtime()?.block_on(async { tokio::time::timeout(SILENCE, answer).await });
    waited.map_err(|_| silent())?.map_err(|error| meant(what, &error))
}

/// What an error means for who asked.
pub(super) fn meant(what: &str, error: &object_store::Error) -> Error {
    match error {
        object_store::Error::NotFound { .. } => Error::Missing(what.to_owned()),
        object_store::Error::AlreadyExists { .. } | object_store::Error::Precondition { .. } => {
            Error::There(what.to_owned())
        }
        other => Error::Elsewhere { what: what.to_owned(), why: causes(other) },
    }
}

pub(super) fn silence() -> String {
    format!("nothing was heard for {} seconds", SILENCE.as_secs())
}

/// An error and what caused it, in one line.
pub(super) fn causes(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(one) = cause {
        let more = one.to_string();
        if !text.contains(&more) {
            text = format!("{text}: {more}");
        }
        cause = one.source();
    }
    text
}

/// Storage elsewhere, opened.
#[derive(Debug)]
pub(super) struct Remote {
    inner: Arc<Inner>,
}

/// What drafts share with the storage they belong to.
#[derive(Debug)]
pub(super) struct Inner {
    /// What people know it by: the protocol's base.
    base: String,
    pub(super) objects: Arc<dyn ObjectStore>,
    pub(super) http: reqwest::Client,
    pub(super) way: Way,
}

/// What differs between the kinds.
#[derive(Debug)]
pub(super) enum Way {
    S3 { bucket: Arc<AmazonS3>, prefix: String, signs: bool, url: Url, at_once: u64 },
    Dav { url: Url, made: Mutex<HashSet<String>> },
}

fn no_way(what: &str, error: &dyn std::error::Error) -> Error {
    Error::Elsewhere { what: what.to_owned(), why: causes(error) }
}

/// How often something is tried again here; more is up to the queue.
fn retries() -> RetryConfig {
    RetryConfig {
        backoff: BackoffConfig {
            init_backoff: Duration::from_millis(100),
            max_backoff: Duration::from_secs(2),
            base: 2.0,
        },
        max_retries: 2,
        retry_timeout: Duration::from_secs(30),
    }
}

/// Has `object_store` use a client that speaks to allowed endpoints alone.
#[derive(Clone, Debug)]
struct Connector(reqwest::Client);

impl HttpConnector for Connector {
    fn connect(&self, _: &ClientOptions) -> object_store::Result<HttpClient> {
        Ok(HttpClient::new(self.0.clone()))
    }
}

impl Remote {
    /// Opens what a protocol leads to, if it may be spoken to; nothing is asked of it yet.
    pub(super) fn open(
        protocol: &Protocol,
        credential: &Credential,
        allowed: &Allowed,
    ) -> Result<Self, Error> {
        let (kind, secure) =
            kind(protocol).ok_or_else(|| Error::Unknown(protocol.scheme.clone()))?;
        let base = protocol.base();
        let failed = |why: &str| Error::Elsewhere { what: base.clone(), why: why.to_owned() };
        let scheme = if secure { "https" } else { "http" };
        let port = if protocol.port == 0 { String::new() } else { format!(":{}", protocol.port) };
        let endpoint = format!("{scheme}://{}{port}", protocol.hostname);
        let server = Url::parse(&endpoint).map_err(|error| no_way(&base, &error))?;
        allowed.endpoint(&server)?;
        if !credential.is_for(&server) {
            let bound = credential.endpoint.clone().unwrap_or_else(|| "none".to_owned());
            return Err(Refused::Credential { endpoint, bound }.into());
        }
        // A redirect elsewhere loses the Authorization header, but not the tokens of S3's sessions.
        let stays = (kind == Kind::S3 && credential.has_secret()).then_some(server);
        let prefix = protocol.prefix.trim_matches('/');
        let headers = authorization(credential).ok_or_else(|| failed("the user cannot be sent"))?;
        let pem = match &credential.ca {
            Some(file) => std::fs::read(file).map_err(Error::at(file))?,
            None => Vec::new(),
        };
        let authorities = reqwest::Certificate::from_pem_bundle(&pem);
        let authorities = authorities.map_err(|error| no_way(&base, &error))?;
        let client = || {
            let client = allowed.client(stays.clone()).connect_timeout(CONNECT).https_only(secure);
            client.default_headers(headers.clone()).tls_certs_merge(authorities.clone())
        };
        let http = client().build().map_err(|error| no_way(&base, &error))?;
        // Compression would hide how long an object is.
        let plain = client().http1_only().no_gzip().no_brotli().no_zstd().no_deflate();
        let connector = Connector(plain.build().map_err(|error| no_way(&base, &error))?);
        let options = ClientOptions::new().with_allow_http(!secure);
        let (objects, way): (Arc<dyn ObjectStore>, Way) = match kind {
            Kind::S3 => {
                let (bucket, rest) = prefix.split_once('/').unwrap_or((prefix, ""));
                if bucket.is_empty() {
                    return Err(failed("the prefix of an S3 protocol begins with the bucket"));
                }
                let signs = credential.access_key.is_some();
                let mut builder = AmazonS3Builder::new()
                    .with_endpoint(&endpoint)
                    .with_bucket_name(bucket)
                    .with_region(credential.region.as_deref().unwrap_or("us-east-1"))
                    .with_disable_bulk_delete(true)
                    .with_skip_signature(!signs)
                    .with_client_options(options)
                    .with_http_connector(connector)
                    .with_retry(retries());
                if let (Some(key), Some(secret)) = (&credential.access_key, &credential.secret_key)
                {
                    builder = builder.with_access_key_id(key).with_secret_access_key(secret);
                }
                if let Some(token) = &credential.session_token {
                    builder = builder.with_token(token);
                }
                let built = builder.build().map_err(|error| no_way(&base, &error))?;
                let bucket_url = format!("{endpoint}/{bucket}");
                let url = Url::parse(&bucket_url).map_err(|error| no_way(&base, &error))?;
                let at_once = credential.single_put_bytes.unwrap_or(AT_ONCE);
                let bucket = Arc::new(built);
                let prefix = rest.to_owned();
                (bucket.clone(), Way::S3 { bucket, prefix, signs, url, at_once })
            }
            Kind::Dav => {
                let text = format!("{endpoint}/{prefix}");
                let text = text.trim_end_matches('/');
                let url = Url::parse(text).map_err(|error| no_way(&base, &error))?;
                let builder = HttpBuilder::new().with_url(text).with_client_options(options);
                let built = builder.with_http_connector(connector).with_retry(retries()).build();
                let built = built.map_err(|error| no_way(&base, &error))?;
                (Arc::new(built), Way::Dav { url, made: Mutex::default() })
            }
        };
        Ok(Self { inner: Arc::new(Inner { base, objects, http, way }) })
    }
}

/// What WebDAV is shown with every request.
fn authorization(credential: &Credential) -> Option<HeaderMap> {
    let mut headers = HeaderMap::new();
    let shown = match (&credential.user, &credential.password, &credential.token) {
        (Some(user), Some(password), _) => {
            let pair = STANDARD.encode(format!("{user}:{password}"));
            format!("Basic {pair}")
        }
        (_, _, Some(token)) => format!("Bearer {token}"),
        _ => return Some(headers),
    };
    let mut value = HeaderValue::from_str(&shown).ok()?;
    value.set_sensitive(true);
    headers.insert(header::AUTHORIZATION, value);
    Some(headers)
}

impl Inner {
    /// What people know a file by.
    pub(super) fn name(&self, path: &str) -> String {
        format!("{}{path}", self.base)
    }

    /// A file as `object_store` names it.
    pub(super) fn object(&self, path: &str) -> Result<Path, Error> {
        if !stays_below(path) {
            return Err(Error::Leaves(path.to_owned()));
        }
        let whole = match &self.way {
            Way::S3 { prefix, .. } if !prefix.is_empty() => format!("{prefix}/{path}"),
            _ => path.to_owned(),
        };
        Path::parse(whole).map_err(|error| no_way(&self.name(path), &error))
    }

    /// The address of a file, without anything that opens it.
    pub(super) fn url(&self, object: &Path) -> Url {
        let (Way::S3 { url, .. } | Way::Dav { url, .. }) = &self.way;
        let mut url = url.clone();
        // An address of HTTP always has segments.
        if let Ok(mut segments) = url.path_segments_mut() {
            segments.pop_if_empty().extend(object.parts().map(|part| part.as_ref().to_owned()));
        }
        url
    }

    /// Where a file is on WebDAV until it is whole.
    pub(super) fn temporary(path: &str) -> String {
        match path.rsplit_once('/') {
            Some((folder, name)) => format!("{folder}/.{name}.part"),
            None => format!(".{path}.part"),
        }
    }

    /// Opens a file for reading, and says how long it is.
    pub(super) fn open(&self, path: &str) -> Result<(Pieces, u64), Error> {
        let (what, object) = (self.name(path), self.object(path)?);
        let found = wait(&what, self.objects.get(&object))?;
        let length = found.meta.size;
        Ok((Pieces { stream: found.into_stream(), rest: Bytes::new() }, length))
    }

    /// Removes a file; one that is not there is removed.
    pub(super) fn delete(&self, path: &str) -> Result<(), Error> {
        let (what, object) = (self.name(path), self.object(path)?);
        match wait(&what, self.objects.delete(&object)) {
            Err(Error::Missing(_)) => Ok(()),
            other => other,
        }
    }

    /// Sends a request that has no body worth reading.
    pub(super) fn ask(
        &self,
        what: &str,
        request: reqwest::RequestBuilder,
    ) -> Result<StatusCode, Error> {
        let failed = |why: String| Error::Elsewhere { what: what.to_owned(), why };
        let sent =
            runtime()?.block_on(async { tokio::time::timeout(SILENCE, request.send()).await });
        let answer = sent.map_err(|_| failed(silence()))?;
        // The address is left out: it may hold a signature.
        let answer = answer.map_err(|error| failed(causes(&error.without_url())))?;
        Ok(answer.status())
    }

    /// Makes the folder a file goes to on WebDAV, and those that hold it.
    pub(super) fn make_folder(&self, path: &str) -> Result<(), Error> {
        let Way::Dav { url, made } = &self.way else { return Ok(()) };
        let known = |folder: &str| made.lock().contains(folder);
        let Some((folder, _)) = path.rsplit_once('/') else { return Ok(()) };
        let mut missing = vec![folder];
        while let Some(folder) = missing.last().copied().filter(|folder| !known(folder)) {
            let at = self.url(&self.object(folder)?);
            let method = Method::from_bytes(b"MKCOL").unwrap_or(Method::PUT);
            let what = format!("the folder {}", self.name(folder));
            let status = self.ask(&what, self.http.request(method, format!("{at}/")))?;
            match (status, folder.rsplit_once('/')) {
                // There already.
                (StatusCode::METHOD_NOT_ALLOWED | StatusCode::MOVED_PERMANENTLY, _) => {}
                (status, _) if status.is_success() => {}
                (StatusCode::CONFLICT | StatusCode::NOT_FOUND, Some((above, _)))
                    if !known(above) =>
                {
                    missing.push(above);
                    continue;
                }
                (status, _) => return Err(refused(&what, status, url.as_str())),
            }
            made.lock().insert(folder.to_owned());
            missing.pop();
        }
        Ok(())
    }

    /// A folder that was there is gone: it is looked for again.
    pub(super) fn forget_folders(&self) {
        if let Way::Dav { made, .. } = &self.way {
            made.lock().clear();
        }
    }
}

/// A status that means no.
pub(super) fn refused(what: &str, status: StatusCode, told: &str) -> Error {
    match status {
        StatusCode::INSUFFICIENT_STORAGE => Error::Full(what.to_owned()),
        StatusCode::PRECONDITION_FAILED => Error::There(what.to_owned()),
        status => {
            let told: String = told.chars().take(200).collect();
            Error::Elsewhere { what: what.to_owned(), why: format!("{status} {told}") }
        }
    }
}

impl Store for Remote {
    fn read(&self, path: &str) -> Result<(Box<dyn Read + Send>, u64), Error> {
        let (pieces, length) = self.inner.open(path)?;
        Ok((Box::new(pieces), length))
    }

    /// What a killed attempt has left is written over by the next, or removed with the file.
    fn write(&self, path: &str, plan: &Plan) -> Result<Box<dyn store::Draft>, Error> {
        Ok(Box::new(Sent::new(Arc::clone(&self.inner), path, plan)?))
    }

    fn remove(&self, path: &str) -> Result<(), Error> {
        if let Way::Dav { .. } = self.inner.way {
            self.inner.delete(&Inner::temporary(path))?;
        }
        self.inner.delete(path)
    }

    /// Both kinds of service have what they have acknowledged.
    fn sync(&self) -> Result<(), Error> {
        Ok(())
    }

    fn look(&self, paths: &[&str]) -> Result<Vec<Result<Found, Error>>, Error> {
        self.inner.look(paths)
    }

    fn list(
        &self,
        each: &mut dyn FnMut(Result<Found, Error>) -> ControlFlow<()>,
    ) -> Result<(), Error> {
        self.inner.list(each)
    }

    fn drafts(&self) -> Drafts {
        match self.inner.way {
            Way::S3 { .. } => Drafts::Unseen,
            Way::Dav { .. } => Drafts::Plain,
        }
    }
}

/// A file as it comes in.
pub(super) struct Pieces {
    stream: BoxStream<'static, Result<Bytes, object_store::Error>>,
    rest: Bytes,
}

impl Read for Pieces {
    fn read(&mut self, into: &mut [u8]) -> std::io::Result<usize> {
        while self.rest.is_empty() {
            let runtime = runtime().map_err(std::io::Error::other)?;
            let next = async { tokio::time::timeout(SILENCE, self.stream.next()).await };
            match runtime.block_on(next) {
                Ok(None) => return Ok(0),
                Ok(Some(Ok(piece))) => self.rest = piece,
                Ok(Some(Err(error))) => return Err(std::io::Error::other(causes(&error))),
                Err(_) => return Err(std::io::Error::other(silence())),
            }
        }
        let length = self.rest.len().min(into.len());
        into[..length].copy_from_slice(&self.rest.split_to(length));
        Ok(length)
    }
}
