//! Which of the forms a client accepts it will get, and in which form it speaks.

use mainstay_store::status::{Error, Reason};

use crate::openapi::binary;

/// The form of an answer about objects.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Form {
    /// The objects themselves.
    Plain,
    /// A table for people; the version is that of `meta.k8s.io`.
    Table(&'static str),
    /// Metadata only.
    Metadata(&'static str),
}

/// The format of a request's body.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Format {
    Json,
    Yaml,
    Protobuf,
    JsonPatch,
    MergePatch,
    /// A configuration to be applied, as YAML, which JSON is too.
    Apply,
    StrategicMergePatch,
}

const ACCEPTED: &str = "application/json, application/json;as=Table;g=meta.k8s.io;v=v1, \
     application/json;as=PartialObjectMetadata;g=meta.k8s.io;v=v1, \
     application/json;as=PartialObjectMetadataList;g=meta.k8s.io;v=v1";

/// Chooses the form of an answer, by the client's preference.
///
/// # Errors
/// 406 if the client accepts nothing that can be made.
pub(crate) fn form(accept: Option<&str>) -> Result<Form, Error> {
    let Some(accept) = accept.filter(|accept| !accept.is_empty()) else {
        return Ok(Form::Plain);
    };
    if matches!(accept, "application/json" | "*/*") {
        return Ok(Form::Plain);
    }
    clauses(accept).into_iter().find_map(|clause| clause.form()).ok_or_else(|| {
        let message = format!("only the following media types are accepted: {ACCEPTED}");
        Error::new(Reason::NotAcceptable, message)
    })
}

/// Whether an answer that exists only as plain JSON will do.
///
/// # Errors
/// 406 if it will not.
pub(crate) fn plain(accept: Option<&str>) -> Result<(), Error> {
    let Some(accept) = accept.filter(|accept| !accept.is_empty()) else {
        return Ok(());
    };
    if clauses(accept).iter().any(|clause| clause.is_json()) {
        return Ok(());
    }
    let message = "only the following media types are accepted: application/json";
    Err(Error::new(Reason::NotAcceptable, message))
}

/// The aggregated form of discovery a client prefers, if it prefers one to the plain one.
pub(crate) fn aggregated_discovery(accept: Option<&str>) -> Option<&'static str> {
    for clause in clauses(accept?) {
        if !clause.is_json() {
            continue;
        }
        return match (clause.group, clause.version, clause.kind) {
            (Some("apidiscovery.k8s.io"), Some("v2"), Some("APIGroupDiscoveryList")) => Some("v2"),
            (Some("apidiscovery.k8s.io"), Some("v2beta1"), Some("APIGroupDiscoveryList")) => {
                Some("v2beta1")
            }
            (_, _, None) => None,
            _ => continue,
        };
    }
    None
}

/// Whether a client wants OpenAPI v2 in protobuf rather than in JSON.
pub(crate) fn binary_openapi(accept: Option<&str>) -> bool {
    let known = [binary::MEDIA, binary::OLD_MEDIA];
    let clauses = accept.map(clauses).unwrap_or_default();
    let mut choices = clauses.iter().filter_map(|clause| {
        let binary = known.iter().any(|known| clause.media.eq_ignore_ascii_case(known));
        (binary || clause.is_json()).then_some(binary)
    });
    choices.next() == Some(true)
}

struct Clause<'a> {
    media: &'a str,
    kind: Option<&'a str>,
    group: Option<&'a str>,
    version: Option<&'a str>,
    quality: u16,
}

impl Clause<'_> {
    fn is_json(&self) -> bool {
        ["application/json", "application/*", "*/*"]
            .iter()
            .any(|known| self.media.eq_ignore_ascii_case(known))
    }

    fn form(&self) -> Option<Form> {
        if !self.is_json() {
            return None;
        }
        let version = match self.version {
            Some("v1") => "v1",
            Some("v1beta1") => "v1beta1",
            _ => "",
        };
        match (self.kind, self.group) {
            (None, _) => Some(Form::Plain),
            (Some(_), Some("meta.k8s.io")) if version.is_empty() => None,
            (Some("Table"), Some("meta.k8s.io")) => Some(Form::Table(version)),
            (Some("PartialObjectMetadata" | "PartialObjectMetadataList"), Some("meta.k8s.io")) => {
                Some(Form::Metadata(version))
            }
            _ => None,
        }
    }
}

/// The clauses of an Accept header, the best first.
fn clauses(accept: &str) -> Vec<Clause<'_>> {
    let mut clauses: Vec<Clause<'_>> = accept
        .split(',')
        .filter_map(|text| {
            let mut parts = text.split(';').map(str::trim);
            let media = parts.next()?;
            let mut clause =
                Clause { media, kind: None, group: None, version: None, quality: 1000 };
            for part in parts {
                match part.split_once('=') {
                    Some(("as", kind)) => clause.kind = Some(kind),
                    Some(("g", group)) => clause.group = Some(group),
                    Some(("v", version)) => clause.version = Some(version),
                    Some(("q", quality)) => {
                        let quality = quality.parse().unwrap_or(1.0_f32).clamp(0.0, 1.0);
                        clause.quality = (quality * 1000.0) as u16;
                    }
                    _ => {}
                }
            }
            (clause.quality > 0).then_some(clause)
        })
        .collect();
    clauses.sort_by_key(|clause| std::cmp::Reverse(clause.quality));
    clauses
}

fn media(content_type: &str) -> &str {
    content_type.split(';').next().unwrap_or("").trim()
}

/// In which format an object is sent.
///
/// # Errors
/// 415 if it cannot be read.
pub(crate) fn object_format(content_type: Option<&str>) -> Result<Format, Error> {
    match content_type.map(media) {
        None | Some("" | "application/json" | "text/json" | "*/*") => Ok(Format::Json),
        Some("application/yaml" | "application/x-yaml" | "text/yaml") => Ok(Format::Yaml),
        Some("application/vnd.kubernetes.protobuf") => Ok(Format::Protobuf),
        Some(other) => Err(unsupported(other, "application/json, application/yaml")),
    }
}

/// In which format a patch is sent. Strategic merge is for well-known kinds alone: clients expect
/// to be refused elsewhere.
///
/// # Errors
/// 415 if it cannot be applied.
pub(crate) fn patch_format(content_type: Option<&str>, well_known: bool) -> Result<Format, Error> {
    const KNOWN: &str = "application/json-patch+json, application/merge-patch+json, \
         application/apply-patch+yaml";
    const KNOWN_TO_ALL: &str = "application/json-patch+json, application/merge-patch+json, \
         application/apply-patch+yaml, application/strategic-merge-patch+json";
    match content_type.map(media) {
        Some("application/json-patch+json") => Ok(Format::JsonPatch),
        Some("application/merge-patch+json") => Ok(Format::MergePatch),
        Some("application/apply-patch+yaml") => Ok(Format::Apply),
        Some("application/strategic-merge-patch+json") if well_known => {
            Ok(Format::StrategicMergePatch)
        }
        other => {
            let known = if well_known { KNOWN_TO_ALL } else { KNOWN };
            Err(unsupported(other.unwrap_or(""), known))
        }
    }
}

fn unsupported(given: &str, known: &str) -> Error {
    let message = format!(
        "the body of the request was in an unknown format ({given:?}) - \
         accepted media types include: {known}"
    );
    Error::new(Reason::UnsupportedMediaType, message)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn openapi_is_sent_in_protobuf_if_asked_for() {
        let (new, old) = (binary::MEDIA, binary::OLD_MEDIA);
        let cases = [
            (old.to_owned(), true),
            (new.to_owned(), true),
            (format!("{old},application/json"), true),
            (format!("application/json,{old};q=0.5"), false),
            ("*/*".to_owned(), false),
            ("application/vnd.kubernetes.protobuf".to_owned(), false),
        ];
        for (accept, expected) in cases {
            assert_eq!(binary_openapi(Some(&accept)), expected, "{accept}");
        }
        assert!(!binary_openapi(None));
    }

    #[test]
    fn the_best_form_that_can_be_made_is_chosen() {
        let table = "application/json;as=Table;v=v1;g=meta.k8s.io";
        let cases = [
            ("", Some(Form::Plain)),
            ("*/*", Some(Form::Plain)),
            ("application/json", Some(Form::Plain)),
            ("application/json;stream=watch", Some(Form::Plain)),
            ("application/*", Some(Form::Plain)),
            (table, Some(Form::Table("v1"))),
            (
                "application/json;as=Table;v=v1;g=meta.k8s.io,application/json;as=Table;v=v1beta1;g=meta.k8s.io,application/json",
                Some(Form::Table("v1")),
            ),
            (
                "application/vnd.kubernetes.protobuf;as=PartialObjectMetadataList;g=meta.k8s.io;v=v1,application/json;as=PartialObjectMetadataList;g=meta.k8s.io;v=v1,application/json",
                Some(Form::Metadata("v1")),
            ),
            ("application/vnd.kubernetes.protobuf, */*", Some(Form::Plain)),
            (
                "application/json;q=0.1, application/json;as=Table;v=v1;g=meta.k8s.io",
                Some(Form::Table("v1")),
            ),
            ("text/html,application/xhtml+xml,*/*;q=0.8", Some(Form::Plain)),
            ("application/vnd.kubernetes.protobuf", None),
            ("application/json;as=Table;v=v9;g=meta.k8s.io", None),
            ("application/json;as=Chair;v=v1;g=meta.k8s.io", None),
            ("application/json;q=0", None),
            ("text/html", None),
        ];
        for (accept, expected) in cases {
            let chosen = form(Some(accept));
            assert_eq!(chosen.as_ref().ok(), expected.as_ref(), "{accept}");
            if let Err(error) = chosen {
                assert_eq!(error.reason, Reason::NotAcceptable);
            }
        }
    }

    #[test]
    fn aggregated_discovery_is_sent_if_preferred() {
        let kubectl = "application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList,application/json;g=apidiscovery.k8s.io;v=v2beta1;as=APIGroupDiscoveryList,application/json";
        assert_eq!(aggregated_discovery(Some(kubectl)), Some("v2"));
        assert_eq!(aggregated_discovery(Some("application/json")), None);
        assert_eq!(aggregated_discovery(Some("*/*")), None);
        assert_eq!(aggregated_discovery(None), None);
    }

    #[test]
    fn bodies_come_in_known_formats_only() {
        let objects = [
            (None, Some(Format::Json)),
            (Some("application/json; charset=utf-8"), Some(Format::Json)),
            (Some("application/yaml"), Some(Format::Yaml)),
            (Some("application/vnd.kubernetes.protobuf"), Some(Format::Protobuf)),
        ];
        for (given, expected) in objects {
            assert_eq!(object_format(given).ok(), expected, "{given:?}");
        }
        let patches = [
            (Some("application/merge-patch+json"), Some(Format::MergePatch)),
            (Some("application/json-patch+json"), Some(Format::JsonPatch)),
            (Some("application/strategic-merge-patch+json"), None),
            (Some("application/apply-patch+yaml"), Some(Format::Apply)),
            (None, None),
        ];
        for (given, expected) in patches {
            assert_eq!(patch_format(given, false).ok(), expected, "{given:?}");
        }
        let strategic = patch_format(Some("application/strategic-merge-patch+json"), true);
        assert_eq!(strategic.ok(), Some(Format::StrategicMergePatch));
    }
}
