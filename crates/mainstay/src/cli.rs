//! The command line: all commands, in the order of the help.

use clap::{Args, Parser, Subcommand};

use crate::bench::Bench;
use crate::command::agent::Agent;
use crate::command::apply::Apply;
use crate::command::authority::Authority;
use crate::command::backup::Backup;
use crate::command::capacity::Capacity;
use crate::command::delete::Delete;
use crate::command::describe::Describe;
use crate::command::disks::Disks;
use crate::command::explain::Explain;
use crate::command::get::Get;
use crate::command::join::Join;
use crate::command::logs::Logs;
use crate::command::node::Node;
use crate::command::plan::Plan;
use crate::command::restore::Restore;
use crate::command::rules::Rules;
use crate::command::serve::Serve;
use crate::command::sessions::Sessions;
use crate::command::store::Store;
use crate::command::token::Token;
use crate::command::transfer_worker::TransferWorker;
use crate::command::up::Up;
use crate::command::version::Version;
use crate::command::wait::Wait;
use crate::command::watch::Watch;

/// Mainstay places volumes, files and sessions on machines and keeps them running.
#[derive(Debug, Parser)]
#[command(
    name = "mainstay",
    version,
    arg_required_else_help = true,
    after_help = "Start here:
  mainstay up                     a server on this machine, ready to use
  mainstay get nodes              ask it something
  mainstay apply -f FILE          tell it something

Exit codes: 0 success, 1 a negative finding, 2 bad usage or input."
)]
pub(crate) struct Cli {
    #[command(subcommand)]
    pub(crate) command: Command,
}

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    Up(Box<Up>),
    Serve(Box<Serve>),
    Agent(Box<Agent>),
    Join(Box<Join>),
    Get(Box<Get>),
    Describe(Box<Describe>),
    Apply(Box<Apply>),
    Delete(Box<Delete>),
    Wait(Box<Wait>),
    Watch(Box<Watch>),
    Plan(Box<Plan>),
    Explain(Box<Explain>),
    Capacity(Box<Capacity>),
    Disks(Box<Disks>),
    Sessions(Box<Sessions>),
    Logs(Box<Logs>),
    Rules(Box<Rules>),
    TransferWorker(Box<TransferWorker>),
    Token(Box<Token>),
    Node(Box<Node>),
    Authority(Box<Authority>),
    Backup(Box<Backup>),
    Restore(Box<Restore>),
    Store(Box<Store>),
    Bench(Box<Bench>),
    /// Run a graph scenario, or inspect the graph of a node
    #[command(subcommand)]
    Graph(mainstay_graph::cli::GraphCommand),
    Version(Box<Version>),
    Completions(Completions),
    /// Print the reference of all commands as Markdown
    #[command(hide = true)]
    Reference,
}

/// Print a completion script for a shell
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  mainstay completions bash > ~/.local/share/bash-completion/completions/mainstay
  mainstay completions fish > ~/.config/fish/completions/mainstay.fish")]
pub(crate) struct Completions {
    /// The shell
    pub(crate) shell: clap_complete::Shell,
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    use super::*;

    #[test]
    fn every_flag_is_well_formed_and_documented() {
        let mut root = Cli::command();
        root.build();
        root.clone().debug_assert();
        let mut commands = vec![&root];
        while let Some(command) = commands.pop() {
            for argument in command.get_arguments() {
                let help = argument.get_help().map(ToString::to_string).unwrap_or_default();
                assert!(!help.is_empty(), "{} {}", command.get_name(), argument.get_id());
            }
            commands.extend(command.get_subcommands());
        }
    }
}
