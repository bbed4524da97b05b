//! The memory of answers: counted while the client has not taken them.
//!
//! Over HTTP/2 a client decides how fast it takes each answer, and may take none of it. So an
//! answer that is all there counts its bytes in [`Pool::AnswerBytes`] from before it is made until
//! the last of them left, wherever they are meanwhile ([`Counted`]). Small answers are free.

use http::Method;
use http::Version;
use http::request::Parts;
use mainstay_store::status::Error;

use bytes::Bytes;

use crate::connection::Owed;
use crate::gate::{Place, Pool, Who};
use crate::reply::Reply;

/// Answers of up to so many bytes are not counted over HTTP/1: a connection has one at a time.
const SMALL: usize = 64 << 10;
/// The same where a connection has up to a thousand at a time.
const SMALL_OF_MANY: usize = 1 << 10;

/// Somebody who gets an answer.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Room<'a> {
    who: &'a Who,
    small: usize,
    reads: bool,
}

impl<'a> Room<'a> {
    pub(crate) fn new(who: &'a Who, parts: &Parts) -> Self {
        let small = if parts.version == Version::HTTP_2 { SMALL_OF_MANY } else { SMALL };
        Self { who, small, reads: matches!(parts.method, Method::GET | Method::HEAD) }
    }

    /// Room for an answer of about so many bytes, before it is made.
    ///
    /// # Errors
    /// 429 with the bound that was met.
    pub(crate) fn take(&self, bytes: usize) -> Result<Option<Place>, Error> {
        let large = bytes > self.small;
        large.then(|| self.who.enter_many(Pool::AnswerBytes, bytes)).transpose()
    }

    /// Refuses a change whose answer would find no room, before it is made.
    ///
    /// # Errors
    /// 429 with the bound that was met.
    pub(crate) fn check(&self) -> Result<(), Error> {
        if !self.reads && self.small < SMALL {
            self.who.enter_many(Pool::AnswerBytes, self.small)?;
        }
        Ok(())
    }

    /// Counts an answer that was made. A change that was made is answered in any case.
    ///
    /// # Errors
    /// 429 with the bound that was met.
    pub(crate) fn count(&self, mut reply: Reply) -> Result<Reply, Error> {
        let Some(bytes) = reply.body().known_len().filter(|bytes| *bytes > self.small) else {
            return Ok(reply);
        };
        if reply.body().room.is_none() {
            let place = match self.reads {
                true => self.who.enter_many(Pool::AnswerBytes, bytes)?,
                false => self.who.enter_anyway(Pool::AnswerBytes, bytes),
            };
            reply.body_mut().room = Some(place);
        }
        Ok(reply)
    }
}

/// The bytes of an answer, counted until the last part of them is gone.
struct Counted {
    bytes: Bytes,
    _place: Place,
    _owed: Option<Owed>,
}

impl AsRef<[u8]> for Counted {
    fn as_ref(&self) -> &[u8] {
        &self.bytes
    }
}

/// The same bytes, which hold their place until the last part of them is gone.
pub(crate) fn counted(bytes: Bytes, place: Place, owed: Option<Owed>) -> Bytes {
    Bytes::from_owner(Counted { bytes, _place: place, _owed: owed })
}
