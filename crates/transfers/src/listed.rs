//! Listing S3 buckets and WebDAV folders, and looking at many objects together.
//!
//! S3 lists objects page by page. WebDAV is listed folder by folder (`PROPFIND` of depth 1: most
//! services refuse more), and some services do not support it. Only the names of the folders that
//! are still to be listed are held in memory.

use std::ops::ControlFlow;

use futures_util::{StreamExt, stream};
use object_store::path::Path;
use object_store::{ObjectMeta, ObjectStoreExt};
use reqwest::{Method, StatusCode};

use super::remote::{Inner, SILENCE, Way, meant, refused, runtime, silence, wait};
use super::store::{Error, Found};

/// How many objects are looked at together.
const TOGETHER: usize = 16;

fn found(path: String, meta: &ObjectMeta) -> Found {
    Found { path, bytes: meta.size, changed: meta.last_modified.timestamp_micros() }
}

impl Inner {
    /// Looks at files. What a service does not answer is an error of the whole: it is not asked for
    /// the others.
    pub(super) fn look(&self, paths: &[&str]) -> Result<Vec<Result<Found, Error>>, Error> {
        let look = async |path: &str| {
            let object = match self.object(path) {
                Err(error @ Error::Leaves(_)) => return Ok(Err(error)),
                object => object?,
            };
            let what = self.name(path);
            let answer = tokio::time::timeout(SILENCE, self.objects.head(&object)).await;
            let silent = |_| Error::Elsewhere { what: what.clone(), why: silence() };
            match answer.map_err(silent)? {
                Ok(meta) => Ok(Ok(found(path.to_owned(), &meta))),
                Err(error) => match meant(&what, &error) {
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

    /// Hands over every file there is.
    pub(super) fn list(
        &self,
        each: &mut dyn FnMut(Result<Found, Error>) -> ControlFlow<()>,
    ) -> Result<(), Error> {
        match &self.way {
            Way::S3 { prefix, .. } => self.list_bucket(prefix, each),
            Way::Dav { url, .. } => {
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
            prefix => Some(Path::parse(prefix).map_err(|error| meant(&what, &error.into()))?),
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

    /// Fails unless a WebDAV service lists what it holds.
    fn can_list(&self) -> Result<(), Error> {
        let Way::Dav { url, .. } = &self.way else { return Ok(()) };
        let what = self.name("");
        let at = format!("{}/", url.as_str().trim_end_matches('/'));
        let method = Method::from_bytes(b"PROPFIND").unwrap_or(Method::OPTIONS);
        let status = self.ask(&what, self.http.request(method, &at).header("Depth", "0"))?;
        match status {
            status if status.is_success() => Ok(()),
            StatusCode::NOT_FOUND => Err(Error::NoFolder(what)),
            StatusCode::METHOD_NOT_ALLOWED | StatusCode::NOT_IMPLEMENTED => {
                // Whether anything is there at all can still be asked.
                match self.ask(&what, self.http.head(&at))? {
                    StatusCode::NOT_FOUND => Err(Error::NoFolder(what)),
                    StatusCode::UNAUTHORIZED => Err(refused(&what, StatusCode::UNAUTHORIZED, "")),
                    _ => Err(Error::Unlisted(what)),
                }
            }
            status => Err(refused(&what, status, "")),
        }
    }

    /// Folders are named by their whole address, `base` included.
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
            // A service names the folder itself among what is in it.
            folders.extend(
                listed.common_prefixes.iter().filter_map(below).filter(|path| inside(path)),
            );
        }
        Ok(())
    }
}
