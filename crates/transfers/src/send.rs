//! Sends a file to S3 or WebDAV.
//!
//! `object_store` would hold a whole file in memory to put it on WebDAV, so files are streamed here:
//! on WebDAV to a temporary name that is the same for every attempt (a new attempt overwrites what a
//! killed one has left), on S3 to the object itself through a signed address, in one piece up to the
//! limit of the service, and in parts beyond. The last piece is held back until the file is sealed: a
//! copy that is cancelled, or whose source turns out wrong, never becomes a file.

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

use super::remote::{Inner, SILENCE, Way, causes, refused, runtime, silence, wait};
use super::store::{Draft, Error, Plan};

/// How long a signed address is good for; a file that is under way by then goes on.
const SIGNED: Duration = Duration::from_secs(3_600);

/// How long a service may take to acknowledge a file it has all of.
const STORED: Duration = Duration::from_secs(600);

/// How large parts are unless a service takes less at once; S3 wants 5 MiB, and takes ten thousand.
const PART: u64 = 64 << 20;
const LEAST_PART: u64 = 5 << 20;

/// Pieces that wait to be sent.
const WAITING: usize = 4;

/// A file that is being sent.
pub(super) struct Sent {
    inner: Arc<Inner>,
    /// Where the file goes.
    path: String,
    /// Where it is until it is kept.
    draft: String,
    object: Path,
    plan: Plan,
    held: Option<Bytes>,
    sending: Sending,
    sealed: bool,
    rejected: bool,
    kept: bool,
}

enum Sending {
    NotYet,
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
    Over,
}

impl Sent {
    pub(super) fn new(inner: Arc<Inner>, path: &str, plan: &Plan) -> Result<Self, Error> {
        let draft = match inner.way {
            Way::S3 { .. } => path.to_owned(),
            Way::Dav { .. } => Inner::temporary(path),
        };
        let object = inner.object(&draft)?;
        Ok(Self {
            inner,
            path: path.to_owned(),
            draft,
            object,
            plan: plan.clone(),
            held: None,
            sending: Sending::NotYet,
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

    /// Begins to send.
    fn begin(&mut self) -> Result<(), Error> {
        let what = self.what();
        let mut options = SignedUrlOptions::new();
        if self.plan.new {
            options = options.with_signed_header(IF_NONE_MATCH, HeaderValue::from_static("*"));
        }
        let url = match &self.inner.way {
            Way::S3 { at_once, .. } if self.plan.bytes > *at_once => {
                if self.plan.new && self.inner.open(&self.path).is_ok() {
                    return Err(Error::There(what));
                }
                let upload = wait(&what, self.inner.objects.put_multipart(&self.object))?;
                let full = (*at_once).clamp(LEAST_PART, PART).max(self.plan.bytes / 9_000);
                self.sending = Sending::Parts { upload, part: Vec::new(), size: 0, full };
                return Ok(());
            }
            Way::S3 { bucket, signs: true, .. } => {
                let signed = bucket.signed_url_opts(Method::PUT, &self.object, SIGNED, &options);
                wait(&what, signed)?
            }
            Way::S3 { .. } => self.inner.url(&self.object),
            Way::Dav { .. } => {
                self.inner.make_folder(&self.path)?;
                self.inner.url(&self.object)
            }
        };
        let (feed, pieces) = mpsc::channel::<Bytes>(WAITING);
        let whole = Arc::new(AtomicBool::new(false));
        let ended = Arc::clone(&whole);
        let body = stream::unfold(pieces, move |mut pieces| {
            let ended = Arc::clone(&ended);
            async move {
                match pieces.recv().await {
                    Some(piece) => Some((Ok(piece), pieces)),
                    None if ended.load(Ordering::Acquire) => None,
                    // The service must not take what was sent so far for the whole.
                    None => Some((Err(std::io::Error::other("given up")), pieces)),
                }
            }
        });
        let mut request = self.inner.http.put(url).header(CONTENT_LENGTH, self.plan.bytes);
        if let (true, Way::S3 { .. }) = (self.plan.new, &self.inner.way) {
            request = request.header(IF_NONE_MATCH, "*");
        }
        let request = request.body(reqwest::Body::wrap_stream(body));
        let done = runtime()?.spawn(put(what, request));
        self.sending = Sending::Stream { feed, whole, done };
        Ok(())
    }

    fn push(&mut self, piece: Bytes) -> Result<(), Error> {
        if let Sending::NotYet = self.sending {
            self.begin()?;
        }
        let what = self.what();
        match &mut self.sending {
            Sending::Stream { feed, .. } => {
                let taken = async { tokio::time::timeout(SILENCE, feed.send(piece)).await };
                match runtime()?.block_on(taken) {
                    Ok(Ok(())) => Ok(()),
                    // The service has answered before it had all: it says why.
                    Ok(Err(_)) => self.finish(SILENCE),
                    Err(_) => Err(self.failed(silence())),
                }
            }
            Sending::Parts { upload, part, size, full } => {
                *size += piece.len() as u64;
                part.push(piece);
                if size < full {
                    return Ok(());
                }
                *size = 0;
                let payload: PutPayload = part.drain(..).collect();
                within(&what, STORED, upload.put_part(payload))
            }
            Sending::NotYet | Sending::Over => Ok(()),
        }
    }

    /// Waits for what the service says of a file that was streamed.
    fn finish(&mut self, patience: Duration) -> Result<(), Error> {
        let Sending::Stream { feed, done, .. } =
            std::mem::replace(&mut self.sending, Sending::Over)
        else {
            return Ok(());
        };
        drop(feed);
        let answer = runtime()?.block_on(async { tokio::time::timeout(patience, done).await });
        match answer {
            Ok(Ok(answer)) => answer,
            Ok(Err(error)) => Err(self.failed(error.to_string())),
            Err(_) => Err(self.failed(silence())),
        }
    }
}

/// Waits longer than for an answer that nothing depends on.
fn within<T>(
    what: &str,
    patience: Duration,
    answer: impl Future<Output = Result<T, object_store::Error>>,
) -> Result<T, Error> {
    let failed = |why: String| Error::Elsewhere { what: what.to_owned(), why };
    let waited = runtime()?.block_on(async { tokio::time::timeout(patience, answer).await });
    waited.map_err(|_| failed(silence()))?.map_err(|error| failed(causes(&error)))
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
    let told = answer.text().await.unwrap_or_default();
    Err(refused(&what, status, &told))
}

impl Draft for Sent {
    fn add(&mut self, piece: &[u8]) -> Result<(), Error> {
        match self.held.replace(Bytes::copy_from_slice(piece)) {
            Some(before) => self.push(before),
            None => Ok(()),
        }
    }

    fn seal(&mut self) -> Result<(), Error> {
        match self.held.take() {
            Some(last) => self.push(last)?,
            None if self.plan.bytes == 0 => self.begin()?,
            None => {}
        }
        let what = self.what();
        let done = match &mut self.sending {
            Sending::Parts { upload, part, .. } => {
                let payload: PutPayload = part.drain(..).collect();
                within(&what, STORED, upload.put_part(payload))?;
                within(&what, STORED, upload.complete()).map(drop)
            }
            Sending::Stream { whole, .. } => {
                whole.store(true, Ordering::Release);
                self.finish(STORED)
            }
            Sending::NotYet | Sending::Over => Ok(()),
        };
        if matches!(&done, Err(Error::Elsewhere { why, .. }) if why.starts_with("409")) {
            self.inner.forget_folders();
        }
        done?;
        self.sending = Sending::Over;
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
        if let Way::Dav { .. } = self.inner.way {
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

impl Drop for Sent {
    fn drop(&mut self) {
        if self.kept || matches!(self.sending, Sending::NotYet) {
            return;
        }
        let what = self.what();
        if let Sending::Parts { upload, .. } = &mut self.sending {
            // Parts of what never became an object: where they cannot be removed now, the bucket's
            // own rule for unfinished uploads removes them.
            drop(within(&what, SILENCE, upload.abort()));
            return;
        }
        drop(self.finish(SILENCE));
        let goes = match self.inner.way {
            Way::Dav { .. } => true,
            // A worker that came after may have found the object, and the catalog may count it.
            Way::S3 { .. } => self.sealed && (self.plan.new || self.rejected),
        };
        if goes {
            // Whoever comes next writes over it, or the reaper removes it.
            drop(self.inner.delete(&self.draft));
        }
    }
}
