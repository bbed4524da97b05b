//! The messages by hand are those of the file.

use std::collections::BTreeSet;

/// `Message.field = number` for every field in the file, one-of fields included.
fn fields_of_the_file() -> BTreeSet<String> {
    let mut fields = BTreeSet::new();
    let mut message = String::new();
    for line in include_str!("../../proto/agents.proto").lines() {
        let line = line.split("//").next().unwrap_or_default().trim();
        if let Some(rest) = line.strip_prefix("message ").or_else(|| line.strip_prefix("enum ")) {
            message = rest.split_whitespace().next().unwrap_or_default().to_owned();
        } else if let Some((left, number)) = line.trim_end_matches(';').split_once(" = ") {
            if line.starts_with("syntax") {
                continue;
            }
            let name = left.split_whitespace().last().unwrap_or_default();
            let name = name.replace('_', "").to_lowercase();
            fields.insert(format!("{message}.{name} = {number}"));
        }
    }
    fields
}

/// The same, from the Rust types.
fn fields_of_the_types() -> BTreeSet<String> {
    let mut fields = BTreeSet::new();
    let (mut message, mut tag) = (String::new(), String::new());
    for line in include_str!("messages.rs").lines() {
        let line = line.trim();
        let named = |word: &str| line.strip_prefix(word).and_then(|rest| rest.split(' ').next());
        match line {
            "pub mod from_node {" => "FromNode".clone_into(&mut message),
            "pub mod to_node {" => "ToNode".clone_into(&mut message),
            "pub enum Body {" => {}
            _ => {}
        }
        if let Some(name) = named("pub struct ").or_else(|| named("pub enum "))
            && name != "Body"
        {
            name.clone_into(&mut message);
        } else if let Some((_, rest)) = line.split_once("tag = \"") {
            rest.split('"').next().unwrap_or_default().clone_into(&mut tag);
        } else if !tag.is_empty() {
            let name = line.trim_start_matches("pub ");
            let name = name.split([':', '(']).next().unwrap_or_default();
            let name = name.replace('_', "").to_lowercase();
            fields.insert(format!("{message}.{name} = {tag}"));
            tag.clear();
        } else if let Some((name, number)) = line.trim_end_matches(',').split_once(" = ")
            && number.parse::<u32>().is_ok()
        {
            fields.insert(format!("{message}.{} = {number}", name.to_lowercase()));
        }
    }
    fields
}

#[test]
fn the_messages_are_those_of_the_file() {
    let file = fields_of_the_file();
    assert!(file.len() > 60, "{file:#?}");
    assert_eq!(file, fields_of_the_types());
}

#[test]
fn a_template_is_told_from_another_by_its_hash() {
    use super::Template;
    let mut one = Template::default();
    let other = one.hash();
    assert_eq!(other, Template::default().hash());
    one.process.command = vec!["sleep".to_owned()];
    assert_ne!(one.hash(), other);
    assert_eq!(one.hash().len(), 10);
    let back: Template = serde_json::from_slice(&one.to_json()).unwrap();
    assert_eq!(back, one);
}
