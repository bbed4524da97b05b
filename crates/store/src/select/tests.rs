use std::collections::BTreeSet;

use proptest::prelude::*;
use serde_json::json;

use super::*;
use crate::builtin;
use crate::object::{Body, Revision};
use crate::registry::Registry;

fn record(kind: &Kind, object: &Value) -> Record {
    let object = object.as_object().unwrap();
    let namespace = kind.namespaced.then_some("default");
    let key = kind.key(namespace, object["metadata"]["name"].as_str().unwrap());
    Body::new(object).at(key, Revision(1), Revision(2))
}

fn kind_of(registry: &Registry, plural: &str) -> std::sync::Arc<Kind> {
    registry.iter().find(|kind| kind.plural == plural).unwrap().clone()
}

#[test]
fn labels_select() {
    let registry = Registry::new(builtin::kinds()).unwrap();
    let kind = kind_of(&registry, "configmaps");
    let object = json!({
        "metadata": {"name": "a", "labels": {"app": "web", "tier": "1", "x.io/y": "", "q\"\\": "\n"}},
        "data": {"labels": "none"},
    });
    let record = record(&kind, &object);
    for (selector, selects) in [
        ("", true),
        ("app=web", true),
        ("app==web,tier=1", true),
        (" app = web , tier != 2 ", true),
        ("app=other", false),
        ("none!=x", true),
        ("app in (web, db)", true),
        ("app notin (web)", false),
        ("none notin (web)", true),
        ("none in (web)", false),
        ("app", true),
        ("!app", false),
        ("!none", true),
        ("x.io/y=", true),
        ("x.io/y", true),
        ("x.io/y in (,a)", true),
        ("tier>0", true),
        ("tier<1", false),
        ("app>0", false),
        ("in=x", false),
        ("!in", true),
    ] {
        let selection = Selection::parse(&kind, selector, "").unwrap();
        assert_eq!(selection.matches(&record), selects, "{selector}");
        let object = object.as_object().unwrap();
        assert_eq!(selection.matches_object(object), selects, "{selector}");
    }
}

#[test]
fn bad_label_selectors_get_kubernetes_messages() {
    const NAME: &str = "must consist of alphanumeric characters, '-', '_' or '.', and must start and end with an alphanumeric character (e.g. 'MyName',  or 'my.name',  or '123-abc', regex used for validation is '([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9]')";
    for (selector, message) in [
        (",", "found ',', expected: !, identifier, or 'end of string'".to_owned()),
        ("a,", "found '', expected: identifier after ','".to_owned()),
        ("a b", "unable to parse requirement: found 'b', expected: in, notin, =, ==, !=, gt, lt".to_owned()),
        ("a=b c", "found 'c', expected: ',' or 'end of string'".to_owned()),
        ("a in b", "unable to parse requirement: found 'b' expected: '('".to_owned()),
        ("a in (b", "unable to parse requirement: found '', expected: ',' or ')'".to_owned()),
        ("a in (b c)", "unable to parse requirement: found 'c', expected: ',' or ')'".to_owned()),
        ("a in (=)", "unable to parse requirement: found '=', expected: ',', ')' or identifier".to_owned()),
        ("a=(", "unable to parse requirement: found '(', expected: identifier".to_owned()),
        ("!", "unable to parse requirement: found '', expected: identifier".to_owned()),
        ("a>b", "unable to parse requirement: values[0]: Invalid value: \"b\": for 'Gt', 'Lt' operators, the value must be an integer".to_owned()),
        ("-a=b", format!("unable to parse requirement: <nil>: Invalid value: \"-a\": name part {NAME}")),
    ] {
        let error = LabelSelector::parse(selector).unwrap_err();
        assert_eq!(error.to_string(), message, "{selector}");
    }
    let error = LabelSelector::parse(&format!("a={}", "b".repeat(64))).unwrap_err();
    assert!(error.to_string().contains("values[0][a]: Invalid value"), "{error}");
}

#[test]
fn fields_select() {
    let registry = Registry::new(builtin::kinds()).unwrap();
    let kind = kind_of(&registry, "events");
    let object = json!({
        "metadata": {"name": "e", "namespace": "default"},
        "involvedObject": {"kind": "Node", "name": "n,1"},
        "type": "Warning",
    });
    let record = record(&kind, &object);
    for (selector, selects) in [
        ("", true),
        ("metadata.name=e", true),
        ("metadata.name==e,metadata.namespace=default", true),
        ("metadata.name!=e", false),
        ("metadata.namespace!=other", true),
        ("involvedObject.kind=Node,type=Warning", true),
        ("involvedObject.name=n\\,1", true),
        ("involvedObject.uid=", true),
        ("involvedObject.uid!=", false),
        ("reason=x", false),
    ] {
        let selection = Selection::parse(&kind, "", selector).unwrap();
        assert_eq!(selection.matches(&record), selects, "{selector}");
        let object = object.as_object().unwrap();
        assert_eq!(selection.matches_object(object), selects, "{selector}");
    }
    let named = Selection::parse(&kind, "", "metadata.name=e,metadata.namespace=x").unwrap();
    assert_eq!((named.name(), named.namespace()), (Some("e"), Some("x")));
    for (selector, message) in [
        ("spec.other=1", "field label not supported: spec.other"),
        ("nonsense", "invalid selector: 'nonsense'; can't understand 'nonsense'"),
        ("type=a=b", "invalid field selector: unescaped character in value: ="),
        ("type=\\a", "invalid field selector: invalid escape sequence: \\a"),
    ] {
        let error = Selection::parse(&kind, "", selector).unwrap_err();
        assert_eq!(error.to_string(), message);
        assert_eq!(status::Error::from(error).reason.code(), 400);
    }
}

#[test]
fn fields_that_are_not_texts_select_by_their_text() {
    let registry = Registry::new(builtin::kinds()).unwrap();
    let kind = kind_of(&registry, "nodes");
    let selection = Selection::parse(&kind, "", "spec.unschedulable=true").unwrap();
    let on = record(&kind, &json!({"metadata": {"name": "n"}, "spec": {"unschedulable": true}}));
    let off = record(&kind, &json!({"metadata": {"name": "n"}}));
    assert!(selection.matches(&on) && !selection.matches(&off));
}

fn any_requirement() -> impl Strategy<Value = Requirement> {
    let value = || "([a-z0-9]([-_.a-z0-9]{0,4}[a-z0-9])?)?";
    let values = prop::collection::btree_set(value(), 1..4).prop_map(|set: BTreeSet<String>| set);
    let operator = prop_oneof![
        value().prop_map(Operator::Equals),
        value().prop_map(Operator::NotEquals),
        values.clone().prop_map(Operator::In),
        values.prop_map(Operator::NotIn),
        Just(Operator::Exists),
        Just(Operator::DoesNotExist),
        (0_i64..100).prop_map(Operator::GreaterThan),
        (0_i64..100).prop_map(Operator::LessThan),
    ];
    ("([a-z]{1,3}\\.io/)?[a-z]([-_.a-z]{0,4}[a-z])?", operator)
        .prop_map(|(key, operator)| Requirement { key, operator })
}

proptest! {
    #[test]
    fn label_selectors_are_read_as_they_are_written(
        requirements in prop::collection::vec(any_requirement(), 0..5),
    ) {
        let selector = LabelSelector::new(requirements);
        let read = LabelSelector::parse(&selector.to_string());
        prop_assert_eq!(read.unwrap(), selector);
    }

    #[test]
    fn field_selectors_are_read_as_they_are_written(
        terms in prop::collection::vec(("[a-z.]{1,8}", any::<bool>(), "[a-z,=\\\\!]{0,8}"), 0..4),
    ) {
        let text: Vec<String> = terms
            .iter()
            .map(|(field, equals, value)| {
                let value = value.replace('\\', "\\\\").replace(',', "\\,").replace('=', "\\=");
                format!("{field}{}{value}", if *equals { "==" } else { "!=" })
            })
            .collect();
        let selector = FieldSelector::parse(&text.join(",")).unwrap();
        let read = FieldSelector::parse(&selector.to_string());
        prop_assert_eq!(read.unwrap(), selector);
    }

    #[test]
    fn no_text_makes_them_panic(text in "[-a-z=!,()<> \\\\./\u{e4}]{0,20}") {
        let _ = LabelSelector::parse(&text);
        let _ = FieldSelector::parse(&text);
    }
}
