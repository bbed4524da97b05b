//! Uploads a file to S3 or WebDAV.
//!
//! `object_store` would hold a whole file in memory to put it on WebDAV, so files are streamed
//! here: on WebDAV to a temporary name that is the same for every attempt (a new attempt overwrites
//! the rest of a killed one), on S3 to the object itself through a signed address, in one piece up
//! to the limit of the service, and in parts beyond. The last piece is held back until the
//! file is sealed: a copy that is cancelled, or whose source is wrong, never becomes visible.

use std::io::Read;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use bytes::Bytes;
use futures_util::stream;
use object_store::path::Path;
use object_store::signer::{SignedUrlOptions, Signer};
use object_store::{MultipartUpload, ObjectStoreExt, PutPayload};
use reqwest::header::{CONTENT_LENGTH, HeaderValue, IF_NONE_MATCH};
use reqwest::{Method, StatusCode};
use tokio::sync::mpsc;
use tokio::task::JoinHandle;

use super::remote::{ANSWER_TIMEOUT, Inner, Service, causes, no_answer, refused, runtime, wait};
use super::store::{Draft, Error, Plan};

/// The lifetime of a signed address; an upload that has begun before it expires continues.
const SIGNATURE_LIFETIME: Duration = Duration::from_secs(3_600);

/// The longest time a service may take to acknowledge a complete upload.
const STORE_TIMEOUT: Duration = Duration::from_secs(600);

/// The size of parts, unless the limit of the service is lower. S3 requires at least 5 MiB, and
/// accepts ten thousand parts.
const PART: u64 = 64 << 20;
const LEAST_PART: u64 = 5 << 20;

/// The most pieces that wait to be sent.
const QUEUED_PIECES: usize = 4;

/// A file that is being uploaded.
pub(super) struct RemoteDraft {
    inner: Arc<Inner>,
    /// The final path of the file.
    path: String,
    /// Its path until it is kept.
    draft: String,
    object: Path,
    plan: Plan,
    last_piece: Option<Bytes>,
    upload_state: Upload,
    sealed: bool,
    rejected: bool,
    kept: bool,
}

enum Upload {
    NotStarted,
    Stream {
        feed: mpsc::Sender<Bytes>,
        whole: Arc<AtomicBool>,
        done: JoinHandle<Result<(), Error>>,
    },
    Parts {
        upload: Box<dyn MultipartUpload>,
        part: Vec<Bytes>,
        size: u64,
        full: u64,
    },
    Ended,
}

impl RemoteDraft {
    pub(super) fn new(inner: Arc<Inner>, path: &str, plan: &Plan) -> Result<Self, Error> {
        let draft = match inner.service {
            Service::S3 { .. } => path.to_owned(),
            Service::Dav { .. } => Inner::temporary(path),
        };
        let object = inner.object(&draft)?;
        Ok(Self {
            inner,
            path: path.to_owned(),
            draft,
            object,
            plan: plan.clone(),
            last_piece: None,
            upload_state: Upload::NotStarted,
            sealed: false,
            rejected: false,
            kept: false,
        })
    }

    fn what(&self) -> String {
        self.inner.name(&self.draft)
    }

    fn failed(&self, why: String) -> Error {
        Error::Elsewhere { what: self.what(), why }
    }

    /// Starts the upload.
    fn begin(&mut self) -> Result<(), Error> {
        let what = self.what();
        let mut options = SignedUrlOptions::new();
        if self.plan.new {
            options = options.with_signed_header(IF_NONE_MATCH, HeaderValue::from_static("*"));
        }
        let url = match &self.inner.service {
            Service::S3 { at_once, .. } if self.plan.bytes > *at_once => {
                if self.plan.new && self.inner.open(&self.path).is_ok() {
                    return Err(Error::There(what));
                }
                let upload = wait(&what, self.inner.objects.put_multipart(&self.object))?;
                let full = (*at_once).clamp(LEAST_PART, PART).max(self.plan.bytes / 9_000);
                self.upload_state = Upload::Parts { upload, part: Vec::new(), size: 0, full };
                return Ok(());
            }
            Service::S3 { bucket, signs: true, .. } => {
                let signed =
                    bucket.signed_url_opts(Method::PUT, &self.object, SIGNATURE_LIFETIME, &options);
                wait(&what, signed)?
            }
            Service::S3 { .. } => self.inner.url(&self.object),
            Service::Dav { .. } => {
                self.inner.make_folder(&self.path)?;
                self.inner.url(&self.object)
            }
        };
        let (feed, pieces) = mpsc::channel::<Bytes>(QUEUED_PIECES);
        let whole = Arc::new(AtomicBool::new(false));
        let ended = Arc::clone(&whole);
        let body = stream::unfold(pieces, move |mut pieces| {
            let ended = Arc::clone(&ended);
            async move {
                match pieces.recv().await {
                    Some(piece) => Some((Ok(piece), pieces)),
                    None if ended.load(Ordering::Acquire) => None,
                    // The service must not take an incomplete file for the whole.
                    None => Some((Err(std::io::Error::other("upload cancelled")), pieces)),
                }
            }
        });
        let mut request = self.inner.http.put(url).header(CONTENT_LENGTH, self.plan.bytes);
        if let (true, Service::S3 { .. }) = (self.plan.new, &self.inner.service) {
            request = request.header(IF_NONE_MATCH, "*");
        }
        let request = request.body(reqwest::Body::wrap_stream(body));
        let done = runtime()?.spawn(put(what, request));
        self.upload_state = Upload::Stream { feed, whole, done };
        Ok(())
    }

    fn push(&mut self, piece: Bytes) -> Result<(), Error> {
        if let Upload::NotStarted = self.upload_state {
            self.begin()?;
        }
        let what = self.what();
        match &mut self.upload_state {
            Upload::Stream { feed, .. } => {
                let taken = async { tokio::time::timeout(ANSWER_TIMEOUT, feed.send(piece)).await };
                match runtime()?.block_on(taken) {
                    Ok(Ok(())) => Ok(()),
                    // The service answered before it had the whole file: its answer has the reason.
                    Ok(Err(_)) => self.finish(ANSWER_TIMEOUT),
                    Err(_) => Err(self.failed(no_answer())),
                }
            }
            Upload::Parts { upload, part, size, full } => {
                *size += piece.len() as u64;
                part.push(piece);
                if size < full {
                    return Ok(());
                }
                *size = 0;
                let payload: PutPayload = part.drain(..).collect();
                within(&what, STORE_TIMEOUT, upload.put_part(payload))
            }
            Upload::NotStarted | Upload::Ended => Ok(()),
        }
    }

    /// Waits for the service's answer to a streamed upload.
    fn finish(&mut self, timeout: Duration) -> Result<(), Error> {
        let Upload::Stream { feed, done, .. } =
            std::mem::replace(&mut self.upload_state, Upload::Ended)
        else {
            return Ok(());
        };
        drop(feed);
        let answer = runtime()?.block_on(async { tokio::time::timeout(timeout, done).await });
        match answer {
            Ok(Ok(answer)) => answer,
            Ok(Err(error)) => Err(self.failed(error.to_string())),
            Err(_) => Err(self.failed(no_answer())),
        }
    }
}

/// Waits for an answer with this timeout.
fn within<T>(
    what: &str,
    timeout: Duration,
    answer: impl Future<Output = Result<T, object_store::Error>>,
) -> Result<T, Error> {
    let failed = |why: String| Error::Elsewhere { what: what.to_owned(), why };
    let waited = runtime()?.block_on(async { tokio::time::timeout(timeout, answer).await });
    waited.map_err(|_| failed(no_answer()))?.map_err(|error| failed(causes(&error)))
}

async fn put(what: String, request: reqwest::RequestBuilder) -> Result<(), Error> {
    let failed = |error: reqwest::Error| Error::Elsewhere {
        what: what.clone(),
        // The address is left out: it may hold a signature.
        why: causes(&error.without_url()),
    };
    let answer = request.send().await.map_err(failed)?;
    let status = answer.status();
    if status.is_success() {
        return Ok(());
    }
    let body = answer.text().await.unwrap_or_default();
    Err(refused(&what, status, &body))
}

impl Draft for RemoteDraft {
    fn add(&mut self, piece: &[u8]) -> Result<(), Error> {
        match self.last_piece.replace(Bytes::copy_from_slice(piece)) {
            Some(before) => self.push(before),
            None => Ok(()),
        }
    }

    fn seal(&mut self) -> Result<(), Error> {
        match self.last_piece.take() {
            Some(last) => self.push(last)?,
            None if self.plan.bytes == 0 => self.begin()?,
            None => {}
        }
        let what = self.what();
        let done = match &mut self.upload_state {
            Upload::Parts { upload, part, .. } => {
                let payload: PutPayload = part.drain(..).collect();
                within(&what, STORE_TIMEOUT, upload.put_part(payload))?;
                within(&what, STORE_TIMEOUT, upload.complete()).map(drop)
            }
            Upload::Stream { whole, .. } => {
                whole.store(true, Ordering::Release);
                self.finish(STORE_TIMEOUT)
            }
            Upload::NotStarted | Upload::Ended => Ok(()),
        };
        if matches!(&done, Err(Error::Elsewhere { why, .. }) if why.starts_with("409")) {
            self.inner.forget_folders();
        }
        done?;
        self.upload_state = Upload::Ended;
        self.sealed = true;
        Ok(())
    }

    fn read_back(&self) -> Result<Box<dyn Read + Send>, Error> {
        Ok(Box::new(self.inner.open(&self.draft)?.0))
    }

    fn reject(&mut self) {
        self.rejected = true;
    }

    fn keep(mut self: Box<Self>) -> Result<(), Error> {
        if let Service::Dav { .. } = self.inner.service {
            let what = self.inner.name(&self.path);
            let place = self.inner.url(&self.inner.object(&self.path)?);
            let method = Method::from_bytes(b"MOVE").unwrap_or(Method::PUT);
            let overwrite = if self.plan.new { "F" } else { "T" };
            let request = self
                .inner
                .http
                .request(method, self.inner.url(&self.object))
                .header("Destination", place.as_str())
                .header("Overwrite", overwrite);
            let status = self.inner.ask(&what, request)?;
            if !matches!(status, StatusCode::CREATED | StatusCode::NO_CONTENT | StatusCode::OK) {
                return Err(refused(&what, status, ""));
            }
        }
        self.kept = true;
        Ok(())
    }
}

impl Drop for RemoteDraft {
    fn drop(&mut self) {
        if self.kept || matches!(self.upload_state, Upload::NotStarted) {
            return;
        }
        let what = self.what();
        if let Upload::Parts { upload, .. } = &mut self.upload_state {
            // If the parts cannot be removed now, the bucket's lifecycle rule for unfinished
            // uploads removes them.
            drop(within(&what, ANSWER_TIMEOUT, upload.abort()));
            return;
        }
        drop(self.finish(ANSWER_TIMEOUT));
        let remove = match self.inner.service {
            Service::Dav { .. } => true,
            // A later worker may have found the object, and the catalog may count it.
            Service::S3 { .. } => self.sealed && (self.plan.new || self.rejected),
        };
        if remove {
            // If this fails, the next attempt overwrites the draft, or the reaper removes it.
            drop(self.inner.delete(&self.draft));
        }
    }
}
