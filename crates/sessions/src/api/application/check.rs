//! Validation of Applications. Every violation names its field.

use std::collections::BTreeSet;

use mainstay_store::names;
use mainstay_store::registry::Violation;
use serde_json::Value;

use super::{
    Application, Container, EnvironmentVariable, ScalingPolicy, ScalingPolicyType, Standby,
    Threshold, ValueSource,
};

pub(super) fn check(new: &Application, _old: Option<&Application>) -> Vec<Violation> {
    let mut found = Vec::new();
    let spec = &new.spec;
    let short = spec.process != Container::default();
    match (spec.containers.len(), short) {
        (0, false) => found
            .push(Violation::required("spec.containers", "give one container, or spec.command")),
        (0, true) => check_process("spec", &spec.process, &mut found),
        (1, false) => check_process("spec.containers[0]", &spec.containers[0], &mut found),
        (_, true) => found.push(Violation::forbidden(
            "spec.command",
            "must not be set together with spec.containers",
        )),
        (many, false) => found.push(Violation::invalid(
            "spec.containers",
            &Value::from(many),
            "an instance is one process: give exactly one container",
        )),
    }
    check_policy(&spec.scaling_policy, &mut found);
    if let Some(volume) = &spec.volume
        && !volume.mount_path.is_empty()
        && !volume.mount_path.starts_with('/')
    {
        let path = Value::from(volume.mount_path.as_str());
        let why = "must be an absolute path, as /data";
        found.push(Violation::invalid("spec.volume.mountPath", &path, why));
    }
    for name in spec.config_data.keys() {
        let plain = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.');
        if name.is_empty() || name.len() > 253 || !name.chars().all(plain) || name.starts_with('.')
        {
            let why = "is used as a file name: must consist of letters, digits, -, _ and ., and must not begin with .";
            let name = Value::from(name.as_str());
            found.push(Violation::invalid("spec.configData", &name, why));
        }
    }
    found
}

/// Checks the source of an environment variable's value.
fn check_source(field: &str, value: &str, source: &ValueSource, found: &mut Vec<Violation>) {
    if !value.is_empty() {
        let why = "may not be specified when `value` is not empty";
        found.push(Violation::invalid(format!("{field}.valueFrom"), &Value::from(""), why));
    }
    let place = format!("{field}.valueFrom.secretKeyRef");
    let Some(reference) = &source.secret_key_ref else {
        found.push(Violation::required(place, "name a Secret and one of its keys"));
        return;
    };
    for (part, text, problems) in [
        ("name", &reference.name, names::subdomain_problems(&reference.name)),
        ("key", &reference.key, names::config_key_problems(&reference.key)),
    ] {
        let text = Value::from(text.as_str());
        let violation = |why: &String| Violation::invalid(format!("{place}.{part}"), &text, why);
        found.extend(problems.iter().map(violation));
    }
}

fn check_process(field: &str, process: &Container, found: &mut Vec<Violation>) {
    if process.image.is_some() {
        found.push(Violation::forbidden(
            format!("{field}.image"),
            "images are not supported: instances are processes of the node; give a command",
        ));
    } else if process.command.first().is_none_or(String::is_empty) {
        let why = "name the program to run, as [\"/usr/bin/game\", \"--fast\"]";
        found.push(Violation::required(format!("{field}.command"), why));
    }
    for (part, texts) in [("command", &process.command), ("args", &process.args)] {
        if texts.iter().any(|text| text.contains('\0')) {
            let why = "must not contain a null character";
            found.push(Violation::invalid(format!("{field}.{part}"), &Value::Null, why));
        }
    }
    for (index, variable) in process.env.iter().enumerate() {
        let EnvironmentVariable { name, value, value_from } = variable;
        if name.is_empty() || name.contains(['=', '\0']) || value.contains('\0') {
            let why = "must be a name without = and a value without null characters";
            let name = Value::from(name.as_str());
            found.push(Violation::invalid(format!("{field}.env[{index}]"), &name, why));
        }
        if let Some(source) = value_from {
            check_source(&format!("{field}.env[{index}]"), value, source, found);
        }
    }
    let mut names = BTreeSet::new();
    for (index, port) in process.ports.iter().enumerate() {
        let place = format!("{field}.ports[{index}].name");
        if !port.name.is_empty() && !names.insert(&port.name) {
            found.push(Violation::duplicate(&place, &Value::from(port.name.as_str())));
        }
        let plain = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '-';
        if port.name.len() > 15 || !port.name.chars().all(plain) {
            let why = "at most 15 lower-case letters, digits and -";
            found.push(Violation::invalid(&place, &Value::from(port.name.as_str()), why));
        }
    }
    for (part, amounts) in
        [("requests", &process.resources.requests), ("limits", &process.resources.limits)]
    {
        for (name, amount) in amounts {
            let place = format!("{field}.resources.{part}[{name}]");
            if !matches!(name.as_str(), "cpu" | "memory") {
                let known = ["cpu", "memory"];
                found.push(Violation::not_supported(&place, &Value::from(name.as_str()), &known));
            } else if amount.milli_value() < 0 {
                let why = "must be greater than or equal to 0";
                found.push(Violation::invalid(&place, &Value::from(amount.to_string()), why));
            }
        }
    }
    if let Some(readiness) = &process.readiness {
        let place = format!("{field}.readiness");
        match (&readiness.port, &readiness.file) {
            (Some(_), Some(_)) => {
                found.push(Violation::forbidden(&place, "give a port or a file, not both"));
            }
            (None, None) => found.push(Violation::required(&place, "give a port or a file")),
            (Some(port), None) => {
                let named = process.ports.iter().any(|known| known.name == *port);
                if !named && !port.parse::<u16>().is_ok_and(|port| port > 0) {
                    let why = "must be the name of one of the ports, or a port";
                    let port = Value::from(port.as_str());
                    found.push(Violation::invalid(format!("{place}.port"), &port, why));
                }
            }
            (None, Some(_)) => {}
        }
    }
}

fn check_policy(policy: &ScalingPolicy, found: &mut Vec<Violation>) {
    let at = |field: &str| format!("spec.scalingPolicy.{field}");
    if policy.maximum_instance <= 0 {
        let value = Value::from(policy.maximum_instance);
        found.push(Violation::invalid(at("maximumInstance"), &value, "must be greater than 0"));
    }
    if policy.maximum_instance < policy.minimum_instance {
        let value = Value::from(policy.maximum_instance);
        let why = format!("must be at least minimumInstance ({})", policy.minimum_instance);
        found.push(Violation::invalid(at("maximumInstance"), &value, &why));
    }
    let (field, threshold, top) = match policy.scaling_policy_type {
        ScalingPolicyType::IdleSessionNumber => {
            ("idleSessionNumThreshold", policy.idle_session_num_threshold, i32::MAX)
        }
        ScalingPolicyType::IdleSessionPercent => {
            ("idleSessionPercentThreshold", policy.idle_session_percent_threshold, 100)
        }
    };
    match threshold {
        None => {
            let why = "is required for this scalingPolicyType: give high and low";
            found.push(Violation::required(at(field), why));
        }
        Some(Threshold { high, low }) => {
            if low < 0 {
                let why = "must be greater than or equal to 0";
                found.push(Violation::invalid(at(&format!("{field}.low")), &low.into(), why));
            }
            let high_field = at(&format!("{field}.high"));
            if high < low {
                let why = format!("must be at least low ({low})");
                found.push(Violation::invalid(&high_field, &high.into(), &why));
            }
            if high > top {
                let why = format!("must be at most {top}");
                found.push(Violation::invalid(&high_field, &high.into(), &why));
            }
        }
    }
    if let Some(Standby { minimum, maximum }) = policy.standby {
        if minimum < 0 {
            let why = "must be greater than or equal to 0";
            found.push(Violation::invalid(at("standby.minimum"), &minimum.into(), why));
        }
        if maximum < minimum {
            let why = format!("must be at least minimum ({minimum})");
            found.push(Violation::invalid(at("standby.maximum"), &maximum.into(), &why));
        }
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use mainstay_store::registry::Typed;
    use serde_json::json;

    use super::*;

    fn violations(spec: &Value) -> Vec<String> {
        let application: Application =
            serde_json::from_value(json!({"metadata": {"name": "a"}, "spec": spec})).unwrap();
        check(&application, None).iter().map(|found| found.field.clone()).collect()
    }

    /// Every refusal names its field.
    pub(crate) fn refusals() {
        assert_eq!(Application::KIND, "Application");
        let policy = |change: Value| {
            let mut policy =
                json!({"maximumInstance": 5, "idleSessionNumThreshold": {"high": 3, "low": 1}});
            for (name, value) in change.as_object().unwrap() {
                policy[name] = value.clone();
            }
            json!({"command": ["x"], "scalingPolicy": policy})
        };
        let fine = policy(json!({}));
        assert_eq!(violations(&fine), Vec::<String>::new());
        let mut listed = fine.clone();
        listed.as_object_mut().unwrap().remove("command");
        listed["containers"] = json!([{"name": "game", "command": ["x"]}]);
        assert_eq!(violations(&listed), Vec::<String>::new());
        let mut nothing = fine.clone();
        nothing.as_object_mut().unwrap().remove("command");
        let (mut image, mut both, mut amounts) = (fine.clone(), fine.clone(), fine.clone());
        image["image"] = json!("game:1");
        both["containers"] = listed["containers"].clone();
        amounts["resources"] = json!({"requests": {"gpu": "1"}});
        let percent = |change: Value| {
            let mut spec = policy(json!({"scalingPolicyType": "idle_session_percent"}));
            spec["scalingPolicy"]["idleSessionPercentThreshold"] = change;
            spec
        };
        let cases = [
            (nothing, "spec.containers"),
            (image, "spec.image"),
            (both, "spec.command"),
            (amounts, "spec.resources.requests[gpu]"),
            (policy(json!({"maximumInstance": 0})), "spec.scalingPolicy.maximumInstance"),
            (policy(json!({"minimumInstance": 6})), "spec.scalingPolicy.maximumInstance"),
            (
                policy(json!({"idleSessionNumThreshold": null})),
                "spec.scalingPolicy.idleSessionNumThreshold",
            ),
            (percent(Value::Null), "spec.scalingPolicy.idleSessionPercentThreshold"),
            (
                policy(json!({"idleSessionNumThreshold": {"high": 1, "low": 2}})),
                "spec.scalingPolicy.idleSessionNumThreshold.high",
            ),
            (
                percent(json!({"high": 1, "low": 2})),
                "spec.scalingPolicy.idleSessionPercentThreshold.high",
            ),
            (
                percent(json!({"high": 101, "low": 2})),
                "spec.scalingPolicy.idleSessionPercentThreshold.high",
            ),
        ];
        for (spec, field) in cases {
            assert_eq!(violations(&spec), [field], "{spec}");
        }
    }
}
