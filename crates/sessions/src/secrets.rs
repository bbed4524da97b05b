//! Resolves environment variables that come from Secrets. Pure: spec and Secrets in, values out.
//!
//! The server reads the values and sends them with the command that starts an instance, only to the
//! node that runs it. They are written to no object, status or file, and debug output has only the
//! names.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use mainstay_store::builtin::Secret;

use crate::api::{ApplicationSpec, SecretKeyRef};

/// Values of environment variables, by name.
#[derive(Clone, Default, PartialEq, Eq)]
pub struct SecretValues(BTreeMap<String, Vec<u8>>);

impl std::fmt::Debug for SecretValues {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_set().entries(self.0.keys()).finish()
    }
}

impl SecretValues {
    /// The variables and their values.
    pub fn iter(&self) -> impl Iterator<Item = (&String, &Vec<u8>)> {
        self.0.iter()
    }

    /// The form in which they are sent.
    #[must_use]
    pub fn to_map(&self) -> HashMap<String, Vec<u8>> {
        self.0.iter().map(|(name, value)| (name.clone(), value.clone())).collect()
    }
}

impl FromIterator<(String, Vec<u8>)> for SecretValues {
    fn from_iter<I: IntoIterator<Item = (String, Vec<u8>)>>(values: I) -> Self {
        Self(values.into_iter().collect())
    }
}

/// The variables of an application that come from Secrets.
fn references(spec: &ApplicationSpec) -> impl Iterator<Item = (&String, &SecretKeyRef)> {
    spec.process().env.iter().filter_map(|variable| {
        let source = variable.value_from.as_ref()?.secret_key_ref.as_ref()?;
        Some((&variable.name, source))
    })
}

/// The Secrets that an application's instances need, by name in its namespace.
#[must_use]
pub fn needed(spec: &ApplicationSpec) -> BTreeSet<&str> {
    references(spec).map(|(_, source)| source.name.as_str()).collect()
}

/// The values that an application's instances start with.
///
/// # Errors
/// A message that names the Secret or key that is missing or cannot be a variable's value.
pub fn resolve<S: std::ops::Deref<Target = Secret>>(
    spec: &ApplicationSpec,
    secret: impl Fn(&str) -> Option<S>,
) -> Result<SecretValues, String> {
    let mut values = BTreeMap::new();
    for (variable, SecretKeyRef { name, key, optional }) in references(spec) {
        let found = secret(name);
        let missing = match &found {
            None => format!("secret {name:?} not found"),
            Some(_) => format!("key {key:?} not found in secret {name:?}"),
        };
        let value = found.and_then(|secret| secret.value(key));
        match value {
            Some(value) if value.contains(&0) => {
                return Err(format!(
                    "environment variable {variable}: key {key:?} of secret {name:?} contains a null character"
                ));
            }
            Some(value) => drop(values.insert(variable.clone(), value)),
            None if *optional == Some(true) => {}
            None => return Err(format!("environment variable {variable}: {missing}")),
        }
    }
    Ok(SecretValues(values))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn resolving_returns_values_or_names_what_is_missing() {
        let secret: Secret = serde_json::from_value(json!({
            "data": {"word": "aHVzaA==", "odd": "AA=="},
        }))
        .unwrap();
        let look = |name: &str| (name == "db").then_some(&secret);
        let spec = |name: &str, key: &str, optional: bool| -> ApplicationSpec {
            serde_json::from_value(json!({"command": ["/bin/true"], "scalingPolicy": {"maximumInstance": 1}, "env": [
                {"name": "PLAIN", "value": "x"},
                {"name": "WORD", "valueFrom": {"secretKeyRef": {"name": name, "key": key, "optional": optional}}},
            ]}))
            .unwrap()
        };
        let found = resolve(&spec("db", "word", false), look).unwrap();
        assert_eq!(found.to_map(), HashMap::from([("WORD".to_owned(), b"hush".to_vec())]));
        assert_eq!(format!("{found:?}"), "{\"WORD\"}");
        assert_eq!(needed(&spec("db", "word", false)), BTreeSet::from(["db"]));
        for (name, key, why) in [
            ("no", "word", "secret \"no\" not found"),
            ("db", "no", "key \"no\" not found in secret \"db\""),
        ] {
            let missing = resolve(&spec(name, key, false), look).unwrap_err();
            assert!(missing.contains("WORD") && missing.contains(why), "{missing}");
            assert_eq!(resolve(&spec(name, key, true), look), Ok(SecretValues::default()));
        }
        assert!(resolve(&spec("db", "odd", true), look).unwrap_err().contains("null character"));
    }
}
