//! The same calls with Rust types in place of JSON: what controllers use.

use serde_json::{Map, Value};

use super::remote_write::Edited;
use super::{
    DeleteOptions, Deleted, Effect, Error, Origin, Reason, Resources, Subresource, WriteOptions,
    Written,
};
use crate::object::Record;
use crate::objects::At;
use crate::registry::{Kind, Typed};

/// The object as JSON, with its `apiVersion` and `kind`.
///
/// # Errors
/// If the type does not encode as an object.
pub fn encode<T: Typed>(kind: &Kind, object: &T) -> Result<Map<String, Value>, Error> {
    let encoded = serde_json::to_value(object).map_err(Error::internal)?;
    let Value::Object(mut encoded) = encoded else {
        return Err(Error::internal(format!("{} is not an object", T::KIND)));
    };
    encoded.insert("apiVersion".to_owned(), Value::from(kind.api_version()));
    encoded.insert("kind".to_owned(), Value::from(kind.kind));
    Ok(encoded)
}

/// A stored object as its Rust type.
///
/// # Errors
/// If its stored form does not fit the type.
pub fn decode<T: Typed>(record: &Record) -> Result<T, Error> {
    serde_json::from_slice(record.json())
        .map_err(|error| Error::internal(format!("{} cannot be read: {error}", record.key())))
}

impl Resources {
    /// One object as it is now; `None` if there is none.
    ///
    /// # Errors
    /// If the store cannot be read.
    pub async fn get_as<T: Typed>(
        &self,
        namespace: Option<&str>,
        name: &str,
    ) -> Result<Option<T>, Error> {
        let kind = self.kind_of::<T>()?;
        let key = kind.key(namespace, name);
        match self.get(kind, &key).await {
            Ok(record) => decode(&record).map(Some),
            Err(error) if error.reason == Reason::NotFound => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Every object of a namespace, or of all, as they are now.
    ///
    /// # Errors
    /// If the store cannot be read.
    pub async fn list_as<T: Typed>(&self, namespace: Option<&str>) -> Result<Vec<T>, Error> {
        let kind = self.kind_of::<T>()?;
        let all = self.list(kind, At::Latest).await?;
        all.range(namespace, None).map(|record| decode(record)).collect()
    }

    /// Creates an object in the namespace it names.
    ///
    /// # Errors
    /// As [`Resources::create`].
    pub async fn create_as<T: Typed>(
        &self,
        object: &T,
        options: &WriteOptions,
    ) -> Result<T, Error> {
        let kind = self.kind_of::<T>()?;
        let namespace = object.metadata().namespace.clone();
        let encoded = encode(kind, object)?;
        let written = self.create(kind, namespace.as_deref(), encoded, options).await?;
        decode(&written.record)
    }

    /// Replaces an object, but not its status. Says whether that changed anything.
    ///
    /// # Errors
    /// As [`Resources::replace`].
    pub async fn replace_as<T: Typed>(
        &self,
        object: &T,
        options: &WriteOptions,
    ) -> Result<(T, Effect), Error> {
        self.replace_part(object, None, options).await
    }

    /// Replaces the status of an object and nothing else. A status that is so already is not
    /// written.
    ///
    /// # Errors
    /// As [`Resources::replace`].
    pub async fn replace_status_as<T: Typed>(
        &self,
        object: &T,
        options: &WriteOptions,
    ) -> Result<(T, Effect), Error> {
        self.replace_part(object, Some(Subresource::Status), options).await
    }

    async fn replace_part<T: Typed>(
        &self,
        object: &T,
        subresource: Option<Subresource>,
        options: &WriteOptions,
    ) -> Result<(T, Effect), Error> {
        let kind = self.kind_of::<T>()?;
        let metadata = object.metadata();
        let key = kind.key(metadata.namespace.as_deref(), &metadata.name);
        let encoded = encode(kind, object)?;
        let Written { record, effect, .. } =
            self.replace(kind, &key, encoded, subresource, options).await?;
        Ok((decode(&record)?, effect))
    }

    /// Reads an object, lets `edit` change it, and writes it; again from the start after a
    /// conflict. With [`Subresource::Status`] only the status is written.
    ///
    /// # Errors
    /// As [`Resources::modify`].
    pub async fn modify_as<T: Typed>(
        &self,
        namespace: Option<&str>,
        name: &str,
        subresource: Option<Subresource>,
        options: &WriteOptions,
        mut edit: impl FnMut(&mut T) + Send,
    ) -> Result<(T, Effect), Error> {
        let kind = self.kind_of::<T>()?;
        let key = kind.key(namespace, name);
        let Written { record, effect, .. } = match self.remote(options, Origin::Update) {
            Some(remote) => {
                let edit = |record: &Record| {
                    let mut typed: T = decode(record)?;
                    let old = encode(kind, &typed)?;
                    edit(&mut typed);
                    let object = encode(kind, &typed)?;
                    Ok(Edited { differs: object != old, object })
                };
                self.modify_remotely(remote, kind, &key, subresource, edit).await?
            }
            None => {
                let edit = |old: &Map<String, Value>| {
                    let mut typed = T::deserialize(old).map_err(Error::internal)?;
                    edit(&mut typed);
                    encode(kind, &typed)
                };
                self.modify(kind, &key, subresource, options, edit).await?
            }
        };
        Ok((decode(&record)?, effect))
    }

    /// Deletes an object; one that is not there is deleted already.
    ///
    /// # Errors
    /// As [`Resources::delete`], except for [`Reason::NotFound`].
    pub async fn delete_as<T: Typed>(
        &self,
        namespace: Option<&str>,
        name: &str,
        delete: &DeleteOptions,
        options: &WriteOptions,
    ) -> Result<Option<Deleted>, Error> {
        let kind = self.kind_of::<T>()?;
        let key = kind.key(namespace, name);
        match self.delete(kind, &key, delete, options).await {
            Ok(deleted) => Ok(Some(deleted)),
            Err(error) if error.reason == Reason::NotFound => Ok(None),
            Err(error) => Err(error),
        }
    }
}
