//! Lists S3 buckets and WebDAV folders, and reads the metadata of many objects concurrently.
//!
//! S3 lists objects page by page. WebDAV is listed folder by folder (`PROPFIND` of depth 1: most
//! services refuse more), and some services do not support it. Only the names of the folders that
//! still have to be listed are held in memory.

use std::ops::ControlFlow;

use futures_util::{StreamExt, stream};
use object_store::path::Path;
use object_store::{ObjectMeta, ObjectStoreExt};
use reqwest::{Method, StatusCode};

use super::remote::{ANSWER_TIMEOUT, Inner, Service, classify, no_answer, refused, runtime, wait};
use super::store::{Error, Found};

/// The most metadata requests that run concurrently.
const TOGETHER: usize = 16;

fn found(path: String, meta: &ObjectMeta) -> Found {
    Found { path, bytes: meta.size, changed: meta.last_modified.timestamp_micros() }
}

impl Inner {
    /// Reads the metadata of files. If the service does not answer for one of them, the whole call
    /// fails: it is not asked for the others.
    pub(super) fn look(&self, paths: &[&str]) -> Result<Vec<Result<Found, Error>>, Error> {
        let look = async |path: &str| {
            let object = match self.object(path) {
                Err(error @ Error::Leaves(_)) => return Ok(Err(error)),
                object => object?,
            };
            let what = self.name(path);
            let answer = tokio::time::timeout(ANSWER_TIMEOUT, self.objects.head(&object)).await;
            let timed_out = |_| Error::Elsewhere { what: what.clone(), why: no_answer() };
            match answer.map_err(timed_out)? {
                Ok(meta) => Ok(Ok(found(path.to_owned(), &meta))),
                Err(error) => match classify(&what, &error) {
                    missing @ Error::Missing(_) => Ok(Err(missing)),
                    other => Err(other),
                },
            }
        };
        runtime()?.block_on(async {
            let mut all = Vec::with_capacity(paths.len());
            let mut answers = stream::iter(paths).map(|path| look(path)).buffered(TOGETHER);
            while let Some(answer) = answers.next().await {
                all.push(answer?);
            }
            Ok(all)
        })
    }

    /// Calls `each` for every file.
    pub(super) fn list(
        &self,
        each: &mut dyn FnMut(Result<Found, Error>) -> ControlFlow<()>,
    ) -> Result<(), Error> {
        match &self.service {
            Service::S3 { prefix, .. } => self.list_bucket(prefix, each),
            Service::Dav { url, .. } => {
                self.can_list()?;
                self.list_folders(url.path().trim_matches('/'), each)
            }
        }
    }

    fn list_bucket(
        &self,
        prefix: &str,
        each: &mut dyn FnMut(Result<Found, Error>) -> ControlFlow<()>,
    ) -> Result<(), Error> {
        let what = self.name("");
        let below = match prefix {
            "" => None,
            prefix => Some(Path::parse(prefix).map_err(|error| classify(&what, &error.into()))?),
        };
        let mut objects = self.objects.list(below.as_ref());
        let missing = |error| match error {
            Error::Missing(what) => Error::NoFolder(what),
            other => other,
        };
        loop {
            let next = wait(&what, async { objects.next().await.transpose() });
            let Some(meta) = next.map_err(missing)? else { return Ok(()) };
            let whole = meta.location.to_string();
            let path = match prefix {
                "" => Some(whole.as_str()),
                prefix => whole.strip_prefix(prefix).and_then(|rest| rest.strip_prefix('/')),
            };
            let Some(path) = path else { continue };
            if each(Ok(found(path.to_owned(), &meta))).is_break() {
                return Ok(());
            }
        }
    }

    /// Fails unless a WebDAV service supports listing.
    fn can_list(&self) -> Result<(), Error> {
        let Service::Dav { url, .. } = &self.service else { return Ok(()) };
        let what = self.name("");
        let at = format!("{}/", url.as_str().trim_end_matches('/'));
        let method = Method::from_bytes(b"PROPFIND").unwrap_or(Method::OPTIONS);
        let status = self.ask(&what, self.http.request(method, &at).header("Depth", "0"))?;
        match status {
            status if status.is_success() => Ok(()),
            StatusCode::NOT_FOUND => Err(Error::NoFolder(what)),
            StatusCode::METHOD_NOT_ALLOWED | StatusCode::NOT_IMPLEMENTED => {
                // Without listing, a HEAD request still shows whether the folder exists.
                match self.ask(&what, self.http.head(&at))? {
                    StatusCode::NOT_FOUND => Err(Error::NoFolder(what)),
                    StatusCode::UNAUTHORIZED => Err(refused(&what, StatusCode::UNAUTHORIZED, "")),
                    _ => Err(Error::Unlisted(what)),
                }
            }
            status => Err(refused(&what, status, "")),
        }
    }

    /// Lists folders recursively. The service returns whole paths, which begin with `base`.
    fn list_folders(
        &self,
        base: &str,
        each: &mut dyn FnMut(Result<Found, Error>) -> ControlFlow<()>,
    ) -> Result<(), Error> {
        let base = Path::from_url_path(base).map(|base| base.to_string()).unwrap_or_default();
        let below = |path: &Path| -> Option<String> {
            let path = path.as_ref();
            match base.as_str() {
                "" => Some(path.to_owned()),
                base => path.strip_prefix(base)?.strip_prefix('/').map(str::to_owned),
            }
        };
        let mut folders = vec![String::new()];
        while let Some(folder) = folders.pop() {
            let what = self.name(&folder);
            let object = match folder.as_str() {
                "" => None,
                folder => Some(self.object(folder)?),
            };
            let listed = wait(&what, self.objects.list_with_delimiter(object.as_ref()))?;
            let inside = |path: &str| match folder.as_str() {
                "" => !path.is_empty(),
                folder => path.strip_prefix(folder).is_some_and(|rest| rest.starts_with('/')),
            };
            for meta in &listed.objects {
                let Some(path) = below(&meta.location).filter(|path| inside(path)) else {
                    continue;
                };
                if each(Ok(found(path, meta))).is_break() {
                    return Ok(());
                }
            }
            // A service lists the folder itself among its content.
            folders.extend(
                listed.common_prefixes.iter().filter_map(below).filter(|path| inside(path)),
            );
        }
        Ok(())
    }
}
