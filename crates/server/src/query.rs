//! The parameters of a request, parsed once. Those it does not know are ignored, as everywhere in
//! this dialect; those it knows must make sense.

use std::borrow::Cow;
use std::str::FromStr;

use mainstay_store::status::Error;

use crate::path::percent_decode;

/// Every parameter the dialect knows, as it was given.
#[derive(Clone, Debug, Default)]
pub(crate) struct Query<'a> {
    pub(crate) watch: bool,
    pub(crate) limit: Option<Cow<'a, str>>,
    pub(crate) continuation: Option<Cow<'a, str>>,
    pub(crate) resource_version: Option<Cow<'a, str>>,
    pub(crate) resource_version_match: Option<Cow<'a, str>>,
    pub(crate) send_initial_events: Option<bool>,
    pub(crate) allow_watch_bookmarks: bool,
    pub(crate) timeout_seconds: Option<Cow<'a, str>>,
    pub(crate) label_selector: Option<Cow<'a, str>>,
    pub(crate) field_selector: Option<Cow<'a, str>>,
    pub(crate) dry_run: Vec<Cow<'a, str>>,
    pub(crate) field_manager: Option<Cow<'a, str>>,
    pub(crate) field_validation: Option<Cow<'a, str>>,
    pub(crate) force: Option<bool>,
    pub(crate) grace_period_seconds: Option<Cow<'a, str>>,
    pub(crate) propagation_policy: Option<Cow<'a, str>>,
    pub(crate) orphan_dependents: Option<bool>,
    pub(crate) include_object: Option<Cow<'a, str>>,
    pub(crate) pretty: bool,
    pub(crate) verbose: bool,
}

impl<'a> Query<'a> {
    /// Parses what stands behind the question mark.
    ///
    /// # Errors
    /// 400 if it is not UTF-8.
    pub(crate) fn parse(query: Option<&'a str>) -> Result<Self, Error> {
        let mut parsed = Self::default();
        let Some(query) = query else {
            return Ok(parsed);
        };
        for pair in query.split('&').filter(|pair| !pair.is_empty()) {
            let (name, value) = pair.split_once('=').unwrap_or((pair, ""));
            let decode = |text| {
                percent_decode(text, true)
                    .ok_or_else(|| Error::bad_request("the query of the request is not UTF-8"))
            };
            parsed.set(&decode(name)?, decode(value)?);
        }
        Ok(parsed)
    }

    fn set(&mut self, name: &str, value: Cow<'a, str>) {
        let place = match name {
            "limit" => &mut self.limit,
            "continue" => &mut self.continuation,
            "resourceVersion" => &mut self.resource_version,
            "resourceVersionMatch" => &mut self.resource_version_match,
            "timeoutSeconds" => &mut self.timeout_seconds,
            "labelSelector" => &mut self.label_selector,
            "fieldSelector" => &mut self.field_selector,
            "fieldManager" => &mut self.field_manager,
            "fieldValidation" => &mut self.field_validation,
            "gracePeriodSeconds" => &mut self.grace_period_seconds,
            "propagationPolicy" => &mut self.propagation_policy,
            "includeObject" => &mut self.include_object,
            "watch" => return self.watch = truth(&value),
            "allowWatchBookmarks" => return self.allow_watch_bookmarks = truth(&value),
            "sendInitialEvents" => return self.send_initial_events = Some(truth(&value)),
            "orphanDependents" => return self.orphan_dependents = Some(truth(&value)),
            "force" => return self.force = Some(truth(&value)),
            "pretty" => return self.pretty = truth(&value),
            "verbose" => return self.verbose = truth(&value),
            "dryRun" => return self.dry_run.push(value),
            _ => return,
        };
        // The first one counts; an empty one is as good as none.
        if place.is_none() && !value.is_empty() {
            *place = Some(value);
        }
    }
}

/// A number given as a parameter.
///
/// # Errors
/// 400 that names the parameter.
pub(crate) fn number<T: FromStr>(name: &str, value: Option<&str>) -> Result<Option<T>, Error> {
    value
        .map(|text| {
            let wrong = || format!("invalid {name} {text:?}: must be a non-negative number");
            text.parse().map_err(|_| Error::bad_request(wrong()))
        })
        .transpose()
}

/// Kubernetes takes everything but `false` and `0` for true, even nothing.
fn truth(value: &str) -> bool {
    !matches!(value, "0" | "f" | "F" | "false" | "False" | "FALSE")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parameters_are_decoded_and_unknown_ones_ignored() {
        let text = "watch=1&labelSelector=a%3Db%2Cc+in+%28d%29&limit=5&limit=6&x=y&&dryRun=All";
        let query = Query::parse(Some(text)).unwrap();
        assert!(query.watch && !query.pretty);
        assert_eq!(query.label_selector.as_deref(), Some("a=b,c in (d)"));
        assert_eq!(query.limit.as_deref(), Some("5"));
        assert_eq!(query.dry_run, ["All"]);
        assert!(Query::parse(Some("limit=%ff")).is_err());
    }

    #[test]
    fn truth_is_as_kubernetes_has_it() {
        for (text, expected) in
            [("watch", true), ("watch=", true), ("watch=false", false), ("watch=0", false)]
        {
            assert_eq!(Query::parse(Some(text)).unwrap().watch, expected, "{text}");
        }
    }

    #[test]
    fn numbers_must_be_numbers() {
        assert_eq!(number::<u32>("limit", Some("7")).unwrap(), Some(7));
        assert_eq!(number::<u32>("limit", None).unwrap(), None);
        for text in ["-1", "x", "99999999999", "1e3"] {
            let refused = number::<u32>("limit", Some(text)).unwrap_err();
            assert!(refused.message.contains("limit"), "{}", refused.message);
        }
    }
}
