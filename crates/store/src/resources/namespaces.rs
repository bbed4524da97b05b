//! Whether objects may be created in a namespace.

use serde::Deserialize;

use crate::object::Record;
use crate::registry::Kind;
use crate::status::{Cause, Error};

use super::Resources;

impl Resources {
    /// Checks that objects may be created in a namespace.
    pub(super) async fn check_namespace(
        &self,
        kind: &Kind,
        namespace: &str,
        name: &str,
    ) -> Result<(), Error> {
        let Some(spaces) = self.registry.find("", "v1", "namespaces") else {
            return Ok(());
        };
        let key = spaces.key(None, namespace);
        let found = self.objects.get(&key).await;
        let found = found.map_err(|error| Error::from_store(spaces, namespace, error))?;
        let record = found.ok_or_else(|| Error::not_found(spaces, namespace))?;
        if is_record_marked(&record) {
            let why = format!(
                "unable to create new content in namespace {namespace} because it is being terminated"
            );
            let mut error = Error::forbidden(kind, name, &why);
            error.details.causes.push(Cause {
                reason: "NamespaceTerminating",
                message: format!("namespace {namespace} is being terminated"),
                field: "metadata.namespace".to_owned(),
            });
            return Err(error);
        }
        Ok(())
    }
}

fn is_record_marked(record: &Record) -> bool {
    #[derive(Deserialize)]
    #[serde(rename_all = "camelCase")]
    struct Metadata {
        deletion_timestamp: Option<serde::de::IgnoredAny>,
    }
    #[derive(Deserialize)]
    struct Shell {
        metadata: Metadata,
    }
    serde_json::from_slice::<Shell>(record.json())
        .is_ok_and(|shell| shell.metadata.deletion_timestamp.is_some())
}
