//! The `mainstay` program: the command line, configuration, and `up`.
//!
//! Data goes to stdout, talk to stderr. Each command is a module in [`command`]; the client side
//! speaks to any server of the Kubernetes dialect through [`client`] and knows no kind by itself.
//! Enter at [`cli::Cli`].

mod backup_seal;
mod bench;
mod catalog_part;
mod cli;
mod client;
mod command;
mod connect;
mod credentials;
mod dry_run;
mod error;
mod jsonpath;
mod manifest;
mod ownership;
mod paths;
mod select;
mod store_key;

use std::process::ExitCode;

use clap::{CommandFactory, Parser};
use mainstay_terminal::output;

use cli::{Cli, Command};
use error::Error;

fn main() -> ExitCode {
    let cli = Cli::parse();
    let runtime = match tokio::runtime::Builder::new_multi_thread().enable_all().build() {
        Ok(runtime) => runtime,
        Err(source) => {
            Error::io("the asynchronous runtime cannot start")(source).tell();
            return ExitCode::from(1);
        }
    };
    let code = match runtime.block_on(run(cli.command)) {
        Ok(code) => code,
        Err(error) if error.is_broken_pipe() => 0,
        Err(error) => {
            error.tell();
            error.exit_code()
        }
    };
    // A thread that waits for the terminal must not keep a finished program alive.
    runtime.shutdown_background();
    ExitCode::from(code)
}

async fn run(command: Command) -> Result<u8, Error> {
    match command {
        Command::Up(command) => command.run().await,
        Command::Serve(command) => command.run().await,
        Command::Agent(command) => command.run().await,
        Command::Join(command) => command.run().await,
        Command::Get(command) => command.run().await,
        Command::Describe(command) => command.run().await,
        Command::Apply(command) => command.run().await,
        Command::Delete(command) => command.run().await,
        Command::Wait(command) => command.run().await,
        Command::Watch(command) => command.run().await,
        Command::Plan(command) => command.run().await,
        Command::Explain(command) => command.run().await,
        Command::Capacity(command) => command.run().await,
        Command::Disks(command) => command.run().await,
        Command::Sessions(command) => command.run().await,
        Command::Logs(command) => command.run().await,
        Command::Rules(command) => command.run().await,
        Command::TransferWorker(command) => command.run().await,
        Command::Token(command) => command.run().await,
        Command::Node(command) => command.run().await,
        Command::Authority(command) => command.run().await,
        Command::Backup(command) => command.run().await,
        Command::Restore(command) => command.run().await,
        Command::Store(command) => command.run().await,
        Command::Bench(command) => command.run().await,
        Command::Graph(command) => Ok(command::graph::run(command).await),
        Command::Version(command) => command.run().await,
        Command::Completions(command) => {
            let mut script = Vec::new();
            clap_complete::generate(command.shell, &mut Cli::command(), "mainstay", &mut script);
            output::print(&String::from_utf8_lossy(&script))?;
            Ok(0)
        }
        Command::Reference => {
            output::print(&command::reference::markdown(Cli::command()))?;
            Ok(0)
        }
    }
}
