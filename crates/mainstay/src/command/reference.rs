//! The reference of every command and flag as Markdown, made from the definitions themselves.

use clap::Command;

/// The whole page. The same definitions always give the same text.
pub(crate) fn markdown(mut root: Command) -> String {
    root.build();
    let mut text = String::from(
        "# Command line reference\n\n\
         Made by `cargo xtask docs` from the program itself; do not edit by hand.\n\n\
         Exit codes: 0 success, 1 a negative finding (not found, refused, timed out, no connection), \
         2 bad usage or input.\n",
    );
    section(&root, &[], &mut text);
    text
}

fn section(command: &Command, above: &[&str], text: &mut String) {
    let mut path = above.to_vec();
    path.push(command.get_name());
    let name = path.join(" ");
    let level = "#".repeat(path.len() + 1);
    // Values from the environment of this machine must not show up in the page.
    let own = command.clone().term_width(96);
    let mut own = own.mut_args(|argument| argument.hide_env_values(true));
    let help = own.render_long_help().to_string();
    // The help of one command names its path only when it is run through its parents.
    let usage = format!("Usage: {}", command.get_name());
    let help = help.replace(&usage, &format!("Usage: {name}"));
    let help: Vec<&str> = help.trim_end().lines().map(str::trim_end).collect();
    text.push_str(&format!("\n{level} `{name}`\n\n```text\n{}\n```\n", help.join("\n")));
    for inner in command.get_subcommands() {
        if !inner.is_hide_set() && inner.get_name() != "help" {
            section(inner, &path, text);
        }
    }
}
