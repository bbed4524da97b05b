//! Reads manifests from files, folders and stdin: YAML or JSON, any number of documents each.

use std::fs;
use std::io::Read;
use std::path::{Path, PathBuf};

use serde_json::{Map, Value};

/// Why a manifest cannot be used. Correct the manifest.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Error {
    #[error("cannot read {place}")]
    Read { place: String, source: std::io::Error },
    #[error("{place} is not valid YAML: {why}")]
    Yaml { place: String, why: String },
    #[error("{place} is not valid JSON")]
    Json { place: String, source: serde_json::Error },
    #[error(
        "{place}: document {number} has no {field}; every manifest needs apiVersion, kind and metadata.name"
    )]
    Missing { place: String, number: usize, field: &'static str },
    #[error("{place}: document {number} is not an object")]
    NotAnObject { place: String, number: usize },
    #[error("{place} holds no .yaml, .yml or .json file")]
    EmptyFolder { place: String },
}

/// One object of a manifest.
#[derive(Debug, Clone)]
pub(crate) struct Document {
    /// Where it was read: `file.yaml` or `stdin`.
    pub(crate) place: String,
    pub(crate) api_version: String,
    pub(crate) kind: String,
    pub(crate) object: Map<String, Value>,
}

impl Document {
    fn metadata(&self, field: &str) -> Option<&str> {
        self.object.get("metadata")?.get(field)?.as_str().filter(|text| !text.is_empty())
    }

    pub(crate) fn name(&self) -> Option<&str> {
        self.metadata("name")
    }

    /// `Kind/name`, for messages.
    pub(crate) fn label(&self) -> String {
        format!("{}/{}", self.kind, self.name().unwrap_or("?"))
    }

    pub(crate) fn namespace(&self) -> Option<&str> {
        self.metadata("namespace")
    }
}

/// Reads everything the paths name; `-` is stdin, folders are read recursively, in order of names.
pub(crate) fn read(paths: &[PathBuf]) -> Result<Vec<Document>, Error> {
    let mut documents = Vec::new();
    for path in paths {
        if path.as_os_str() == "-" {
            let mut text = String::new();
            let place = "stdin".to_owned();
            if let Err(source) = std::io::stdin().read_to_string(&mut text) {
                return Err(Error::Read { place, source });
            }
            documents.extend(parse(&place, &text)?);
            continue;
        }
        for file in files(path)? {
            let place = file.display().to_string();
            let text = match fs::read_to_string(&file) {
                Ok(text) => text,
                Err(source) => return Err(Error::Read { place, source }),
            };
            documents.extend(parse(&place, &text)?);
        }
    }
    Ok(documents)
}

fn files(path: &Path) -> Result<Vec<PathBuf>, Error> {
    let place = || path.display().to_string();
    let failed = |source| Error::Read { place: place(), source };
    if !fs::metadata(path).map_err(failed)?.is_dir() {
        return Ok(vec![path.to_owned()]);
    }
    let mut found = Vec::new();
    let mut folders = vec![path.to_owned()];
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(&folder).map_err(failed)? {
            let entry = entry.map_err(failed)?;
            let path = entry.path();
            let extension = path.extension().and_then(|extension| extension.to_str());
            // Links to folders are not followed, so that a loop of links ends.
            if entry.file_type().map_err(failed)?.is_dir() {
                folders.push(path);
            } else if matches!(extension, Some("yaml" | "yml" | "json")) {
                found.push(path);
            }
        }
    }
    found.sort();
    if found.is_empty() {
        return Err(Error::EmptyFolder { place: place() });
    }
    Ok(found)
}

/// The documents of one text. Lists are split into their items; empty documents are skipped.
pub(crate) fn parse(place: &str, text: &str) -> Result<Vec<Document>, Error> {
    let mut documents = Vec::new();
    for (index, value) in values(place, text)?.into_iter().enumerate() {
        let place = place.to_owned();
        let number = index + 1;
        match value {
            Value::Null => {}
            Value::Object(mut object) => {
                let is_list = object
                    .get("kind")
                    .and_then(Value::as_str)
                    .is_some_and(|kind| kind == "List" || kind.ends_with("List"));
                match object.get_mut("items") {
                    Some(Value::Array(items)) if is_list => {
                        for item in std::mem::take(items) {
                            match item {
                                Value::Object(item) => {
                                    documents.push(document(&place, number, item)?)
                                }
                                _ => return Err(Error::NotAnObject { place, number }),
                            }
                        }
                    }
                    _ => documents.push(document(&place, number, object)?),
                }
            }
            _ => return Err(Error::NotAnObject { place, number }),
        }
    }
    Ok(documents)
}

fn values(place: &str, text: &str) -> Result<Vec<Value>, Error> {
    let text = text.strip_prefix('\u{feff}').unwrap_or(text);
    if text.trim_start().starts_with('{') {
        let values: Result<Vec<Value>, _> =
            serde_json::Deserializer::from_str(text).into_iter().collect();
        match values {
            Ok(values) => return Ok(values),
            // A flow mapping is valid YAML too; only a .json file must be JSON.
            Err(source) if place.ends_with(".json") => {
                let place = place.to_owned();
                return Err(Error::Json { place, source });
            }
            Err(_) => {}
        }
    }
    serde_saphyr::from_multiple(text)
        .map_err(|error| Error::Yaml { place: place.to_owned(), why: error.to_string() })
}

fn document(place: &str, number: usize, object: Map<String, Value>) -> Result<Document, Error> {
    let text = |field: &'static str| match object.get(field).and_then(Value::as_str) {
        Some(text) if !text.is_empty() => Ok(text.to_owned()),
        _ => Err(Error::Missing { place: place.to_owned(), number, field }),
    };
    Ok(Document {
        place: place.to_owned(),
        api_version: text("apiVersion")?,
        kind: text("kind")?,
        object,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names(text: &str) -> Vec<String> {
        parse("x.yaml", text)
            .unwrap()
            .iter()
            .map(|document| document.name().unwrap_or("?").to_owned())
            .collect()
    }

    #[test]
    fn documents_are_read_from_yaml_json_and_lists() {
        let one = "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: a}\n";
        let json = r#"{"apiVersion":"v1","kind":"ConfigMap","metadata":{"name":"b"}}"#;
        let list = format!(r#"{{"apiVersion":"v1","kind":"List","items":[{json},{json}]}}"#);
        let cases = [
            (one.to_owned(), vec!["a"]),
            (format!("---\n# only a comment\n---\n{one}---\n{one}"), vec!["a", "a"]),
            (json.to_owned(), vec!["b"]),
            (format!("{json}\n{json}"), vec!["b", "b"]),
            (list.clone(), vec!["b", "b"]),
            (format!("{one}---\n{json}"), vec!["a", "b"]),
            ("{apiVersion: v1, kind: ConfigMap, metadata: {name: c}}".to_owned(), vec!["c"]),
            (String::new(), vec![]),
        ];
        for (text, expected) in cases {
            assert_eq!(names(&text), expected, "{text}");
        }
    }

    #[test]
    fn numbers_and_keys_keep_their_meaning() {
        let text = "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: a}\ndata: {1: '01', b: \"yes\", c: 3, d: |\n  x\n  }";
        assert!(parse("x", text).is_err());
        let text = "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: a}\ndata: {1: '01', b: \"yes\", c: 3}";
        let object = &parse("x", text).unwrap()[0].object;
        assert_eq!(object["data"], serde_json::json!({"1": "01", "b": "yes", "c": 3}));
    }

    #[test]
    fn errors_name_the_missing_field() {
        for (text, expected) in [
            ("kind: ConfigMap", "no apiVersion"),
            ("apiVersion: v1", "no kind"),
            ("- a", "not an object"),
            ("a: b: c", "not valid YAML"),
            ("a: 1\na: 2\napiVersion: v1", "not valid YAML"),
        ] {
            let error = parse("x.yaml", text).unwrap_err().to_string();
            assert!(error.contains(expected), "{error}");
        }
    }

    #[test]
    fn folders_are_read_recursively() {
        let folder = tempfile::tempdir().unwrap();
        fs::create_dir(folder.path().join("deep")).unwrap();
        for name in ["b.yaml", "deep/a.json", "note.txt"] {
            fs::write(folder.path().join(name), "").unwrap();
        }
        let found = files(folder.path()).unwrap();
        assert_eq!(found, [folder.path().join("b.yaml"), folder.path().join("deep/a.json")]);
        let empty = tempfile::tempdir().unwrap();
        assert!(files(empty.path()).is_err());
    }
}
