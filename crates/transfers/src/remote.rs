//! Remote storage: S3 buckets and WebDAV folders.
//!
//! Reading and removing go through `object_store`; sending files is in [`super::send`], listing
//! them in [`super::listed`].

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
use super::send::RemoteDraft;
use super::store::{self, Drafts, Error, Found, Plan, Store};
use crate::protocol::{Protocol, stays_below};

/// The timeout for connecting.
const CONNECT: Duration = Duration::from_secs(10);

/// The longest time to wait for an answer, or for the next piece of one.
pub(super) const ANSWER_TIMEOUT: Duration = Duration::from_secs(60);

/// The largest object that S3 accepts in one request.
const AT_ONCE: u64 = 5 << 30;

/// The kind of a storage service.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    S3,
    Dav,
}

/// The kind of service that a protocol uses, and whether the connection is encrypted.
pub(super) fn kind(protocol: &Protocol) -> Option<(Kind, bool)> {
    let kind = if protocol.scheme.starts_with("s3") { Kind::S3 } else { Kind::Dav };
    Some((kind, is_encrypted(&protocol.scheme)?))
}

/// The runtime of all requests in this module: callers are blocking threads without a runtime.
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

/// Waits for an answer, for [`ANSWER_TIMEOUT`] at most.
pub(super) fn wait<T>(
    what: &str,
    answer: impl Future<Output = Result<T, object_store::Error>>,
) -> Result<T, Error> {
    let timed_out = || Error::Elsewhere { what: what.to_owned(), why: no_answer() };
    let waited = runtime()?.block_on(async { tokio::time::timeout(ANSWER_TIMEOUT, answer).await });
    waited.map_err(|_| timed_out())?.map_err(|error| classify(what, &error))
}

/// Converts an error of `object_store`.
pub(super) fn classify(what: &str, error: &object_store::Error) -> Error {
    match error {
        object_store::Error::NotFound { .. } => Error::Missing(what.to_owned()),
        object_store::Error::AlreadyExists { .. } | object_store::Error::Precondition { .. } => {
            Error::There(what.to_owned())
        }
        other => Error::Elsewhere { what: what.to_owned(), why: causes(other) },
    }
}

pub(super) fn no_answer() -> String {
    format!("no answer for {} seconds", ANSWER_TIMEOUT.as_secs())
}

/// An error and its causes, in one line.
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

/// An opened remote storage.
#[derive(Debug)]
pub(super) struct Remote {
    inner: Arc<Inner>,
}

/// The state that drafts share with the storage they belong to.
#[derive(Debug)]
pub(super) struct Inner {
    /// Its name in messages: the protocol's base.
    base: String,
    pub(super) objects: Arc<dyn ObjectStore>,
    pub(super) http: reqwest::Client,
    pub(super) service: Service,
}

/// The parts that differ between the kinds of service.
#[derive(Debug)]
pub(super) enum Service {
    S3 { bucket: Arc<AmazonS3>, prefix: String, signs: bool, url: Url, at_once: u64 },
    Dav { url: Url, made_folders: Mutex<HashSet<String>> },
}

fn with_causes(what: &str, error: &dyn std::error::Error) -> Error {
    Error::Elsewhere { what: what.to_owned(), why: causes(error) }
}

/// The retries of single requests; whole transfers are retried by the queue.
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

/// Makes `object_store` use a client that connects to allowed endpoints only.
#[derive(Clone, Debug)]
struct Connector(reqwest::Client);

impl HttpConnector for Connector {
    fn connect(&self, _: &ClientOptions) -> object_store::Result<HttpClient> {
        Ok(HttpClient::new(self.0.clone()))
    }
}

impl Remote {
    /// Opens the storage of a protocol, if its endpoint is allowed. Sends no request yet.
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
        let server = Url::parse(&endpoint).map_err(|error| with_causes(&base, &error))?;
        allowed.endpoint(&server)?;
        if !credential.is_for(&server) {
            let bound = credential.endpoint.clone().unwrap_or_else(|| "none".to_owned());
            return Err(Refused::Credential { endpoint, bound }.into());
        }
        // A redirect to another server drops the Authorization header, but not S3's session token.
        let stays = (kind == Kind::S3 && credential.has_secret()).then_some(server);
        let prefix = protocol.prefix.trim_matches('/');
        let headers = authorization(credential)
            .ok_or_else(|| failed("user, password or token cannot be sent in an HTTP header"))?;
        let pem = match &credential.ca {
            Some(file) => std::fs::read(file).map_err(Error::at(file))?,
            None => Vec::new(),
        };
        let authorities = reqwest::Certificate::from_pem_bundle(&pem);
        let authorities = authorities.map_err(|error| with_causes(&base, &error))?;
        let client = || {
            let client = allowed.client(stays.clone()).connect_timeout(CONNECT).https_only(secure);
            client.default_headers(headers.clone()).tls_certs_merge(authorities.clone())
        };
        let http = client().build().map_err(|error| with_causes(&base, &error))?;
        // Compression would hide the length of an object.
        let plain = client().http1_only().no_gzip().no_brotli().no_zstd().no_deflate();
        let connector = Connector(plain.build().map_err(|error| with_causes(&base, &error))?);
        let options = ClientOptions::new().with_allow_http(!secure);
        let (objects, service): (Arc<dyn ObjectStore>, Service) = match kind {
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
                let built = builder.build().map_err(|error| with_causes(&base, &error))?;
                let bucket_url = format!("{endpoint}/{bucket}");
                let url = Url::parse(&bucket_url).map_err(|error| with_causes(&base, &error))?;
                let at_once = credential.single_put_bytes.unwrap_or(AT_ONCE);
                let bucket = Arc::new(built);
                let prefix = rest.to_owned();
                (bucket.clone(), Service::S3 { bucket, prefix, signs, url, at_once })
            }
            Kind::Dav => {
                let text = format!("{endpoint}/{prefix}");
                let text = text.trim_end_matches('/');
                let url = Url::parse(text).map_err(|error| with_causes(&base, &error))?;
                let builder = HttpBuilder::new().with_url(text).with_client_options(options);
                let built = builder.with_http_connector(connector).with_retry(retries()).build();
                let built = built.map_err(|error| with_causes(&base, &error))?;
                (Arc::new(built), Service::Dav { url, made_folders: Mutex::default() })
            }
        };
        Ok(Self { inner: Arc::new(Inner { base, objects, http, service }) })
    }
}

/// The headers with the WebDAV credential, sent with every request.
fn authorization(credential: &Credential) -> Option<HeaderMap> {
    let mut headers = HeaderMap::new();
    let text = match (&credential.user, &credential.password, &credential.token) {
        (Some(user), Some(password), _) => {
            let pair = STANDARD.encode(format!("{user}:{password}"));
            format!("Basic {pair}")
        }
        (_, _, Some(token)) => format!("Bearer {token}"),
        _ => return Some(headers),
    };
    let mut value = HeaderValue::from_str(&text).ok()?;
    value.set_sensitive(true);
    headers.insert(header::AUTHORIZATION, value);
    Some(headers)
}

impl Inner {
    /// The name of a file in messages.
    pub(super) fn name(&self, path: &str) -> String {
        format!("{}{path}", self.base)
    }

    /// The path of a file for `object_store`.
    pub(super) fn object(&self, path: &str) -> Result<Path, Error> {
        if !stays_below(path) {
            return Err(Error::Leaves(path.to_owned()));
        }
        let whole = match &self.service {
            Service::S3 { prefix, .. } if !prefix.is_empty() => format!("{prefix}/{path}"),
            _ => path.to_owned(),
        };
        Path::parse(whole).map_err(|error| with_causes(&self.name(path), &error))
    }

    /// The URL of a file, without a signature.
    pub(super) fn url(&self, object: &Path) -> Url {
        let (Service::S3 { url, .. } | Service::Dav { url, .. }) = &self.service;
        let mut url = url.clone();
        // An HTTP URL always has segments.
        if let Ok(mut segments) = url.path_segments_mut() {
            segments.pop_if_empty().extend(object.parts().map(|part| part.as_ref().to_owned()));
        }
        url
    }

    /// The temporary path of a file on WebDAV until it is complete.
    pub(super) fn temporary(path: &str) -> String {
        match path.rsplit_once('/') {
            Some((folder, name)) => format!("{folder}/.{name}.part"),
            None => format!(".{path}.part"),
        }
    }

    /// Opens a file for reading, and returns its length.
    pub(super) fn open(&self, path: &str) -> Result<(BodyReader, u64), Error> {
        let (what, object) = (self.name(path), self.object(path)?);
        let found = wait(&what, self.objects.get(&object))?;
        let length = found.meta.size;
        Ok((BodyReader { stream: found.into_stream(), rest: Bytes::new() }, length))
    }

    /// Removes a file; a missing file is not an error.
    pub(super) fn delete(&self, path: &str) -> Result<(), Error> {
        let (what, object) = (self.name(path), self.object(path)?);
        match wait(&what, self.objects.delete(&object)) {
            Err(Error::Missing(_)) => Ok(()),
            other => other,
        }
    }

    /// Sends a request and returns the status of its answer.
    pub(super) fn ask(
        &self,
        what: &str,
        request: reqwest::RequestBuilder,
    ) -> Result<StatusCode, Error> {
        let failed = |why: String| Error::Elsewhere { what: what.to_owned(), why };
        let sent = runtime()?
            .block_on(async { tokio::time::timeout(ANSWER_TIMEOUT, request.send()).await });
        let answer = sent.map_err(|_| failed(no_answer()))?;
        // The address is left out: it may hold a signature.
        let answer = answer.map_err(|error| failed(causes(&error.without_url())))?;
        Ok(answer.status())
    }

    /// Creates the folder of a file on WebDAV, and the folders above it.
    pub(super) fn make_folder(&self, path: &str) -> Result<(), Error> {
        let Service::Dav { url, made_folders } = &self.service else { return Ok(()) };
        let known = |folder: &str| made_folders.lock().contains(folder);
        let Some((folder, _)) = path.rsplit_once('/') else { return Ok(()) };
        let mut missing = vec![folder];
        while let Some(folder) = missing.last().copied().filter(|folder| !known(folder)) {
            let at = self.url(&self.object(folder)?);
            let method = Method::from_bytes(b"MKCOL").unwrap_or(Method::PUT);
            let what = format!("the folder {}", self.name(folder));
            let status = self.ask(&what, self.http.request(method, format!("{at}/")))?;
            match (status, folder.rsplit_once('/')) {
                // It exists already.
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
            made_folders.lock().insert(folder.to_owned());
            missing.pop();
        }
        Ok(())
    }

    /// Clears the cache of existing folders, because one of them was removed.
    pub(super) fn forget_folders(&self) {
        if let Service::Dav { made_folders, .. } = &self.service {
            made_folders.lock().clear();
        }
    }
}

/// The error for an unsuccessful status; `body` is the start of the answer.
pub(super) fn refused(what: &str, status: StatusCode, body: &str) -> Error {
    match status {
        StatusCode::INSUFFICIENT_STORAGE => Error::Full(what.to_owned()),
        StatusCode::PRECONDITION_FAILED => Error::There(what.to_owned()),
        status => {
            let body: String = body.chars().take(200).collect();
            Error::Elsewhere { what: what.to_owned(), why: format!("{status} {body}") }
        }
    }
}

impl Store for Remote {
    fn read(&self, path: &str) -> Result<(Box<dyn Read + Send>, u64), Error> {
        let (pieces, length) = self.inner.open(path)?;
        Ok((Box::new(pieces), length))
    }

    /// The draft of a killed attempt is overwritten by the next attempt, or removed with the file.
    fn write(&self, path: &str, plan: &Plan) -> Result<Box<dyn store::Draft>, Error> {
        Ok(Box::new(RemoteDraft::new(Arc::clone(&self.inner), path, plan)?))
    }

    fn remove(&self, path: &str) -> Result<(), Error> {
        if let Service::Dav { .. } = self.inner.service {
            self.inner.delete(&Inner::temporary(path))?;
        }
        self.inner.delete(path)
    }

    /// Does nothing: both kinds of service store a file durably before they acknowledge it.
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
        match self.inner.service {
            Service::S3 { .. } => Drafts::Unseen,
            Service::Dav { .. } => Drafts::Plain,
        }
    }
}

/// Reads a file from the body of an answer.
pub(super) struct BodyReader {
    stream: BoxStream<'static, Result<Bytes, object_store::Error>>,
    rest: Bytes,
}

impl Read for BodyReader {
    fn read(&mut self, into: &mut [u8]) -> std::io::Result<usize> {
        while self.rest.is_empty() {
            let runtime = runtime().map_err(std::io::Error::other)?;
            let next = async { tokio::time::timeout(ANSWER_TIMEOUT, self.stream.next()).await };
            match runtime.block_on(next) {
                Ok(None) => return Ok(0),
                Ok(Some(Ok(piece))) => self.rest = piece,
                Ok(Some(Err(error))) => return Err(std::io::Error::other(causes(&error))),
                Err(_) => return Err(std::io::Error::other(no_answer())),
            }
        }
        let length = self.rest.len().min(into.len());
        into[..length].copy_from_slice(&self.rest.split_to(length));
        Ok(length)
    }
}
