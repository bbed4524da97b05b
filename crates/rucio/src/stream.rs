//! Streams lists: each row becomes a line as the database yields it, with a bounded buffer.

use axum::body::{Body, Bytes};
use futures_util::stream;
use mainstay_catalog::Catalog;
use mainstay_rules::error::{Error, Result};
use tokio::sync::mpsc;

use super::Lines;

/// The size of a chunk in bytes.
const CHUNK: usize = 32 << 10;

/// The most chunks buffered for a slow reader.
const AHEAD: usize = 8;

/// The body of a streamed list. An error before the first chunk is returned; a later one cuts the
/// connection, so that no client takes a part of a list for the whole.
pub(super) async fn body(catalog: Catalog, lines: Lines) -> Result<Body> {
    let (sender, mut receiver) = mpsc::channel::<Result<Bytes>>(AHEAD);
    let reader = tokio::task::spawn_blocking(move || {
        let read = catalog.read_blocking(|tx| {
            let mut chunk = String::with_capacity(CHUNK);
            let begun = std::cell::Cell::new(false);
            let gone = || Error::Internal("the client disconnected".to_owned());
            let read = lines(tx, &mut |line| {
                chunk.push_str(&line);
                chunk.push('\n');
                if chunk.len() >= CHUNK {
                    begun.set(true);
                    sender
                        .blocking_send(Ok(Bytes::from(std::mem::take(&mut chunk))))
                        .map_err(|_| gone())?;
                }
                Ok(())
            });
            match read {
                // `Internal` is not retried: the client has a part of the list already.
                Err(error) if begun.get() => Err(Error::Internal(error.to_string())),
                Err(error) => Err(error),
                Ok(()) if chunk.is_empty() => Ok(()),
                Ok(()) => sender.blocking_send(Ok(Bytes::from(chunk))).map_err(|_| gone()),
            }
        });
        if let Err(error) = read {
            // Fails only if the client disconnected.
            let _ = sender.blocking_send(Err(error));
        }
    });
    let first = receiver.recv().await;
    let first = match first {
        None => {
            return match reader.await {
                Ok(_) => Ok(Body::empty()),
                Err(error) => Err(Error::Internal(error.to_string())),
            };
        }
        Some(first) => first?,
    };
    let rest = stream::unfold((Some(first), receiver), |(first, mut receiver)| async move {
        match first {
            Some(first) => Some((Ok(first), (None, receiver))),
            None => receiver.recv().await.map(|next| (next, (None, receiver))),
        }
    });
    Ok(Body::from_stream(rest))
}
