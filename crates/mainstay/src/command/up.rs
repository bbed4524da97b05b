//! `mainstay up`: starts a server on this machine with defaults, and prints how to use it.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::time::Duration;

use clap::Args;
use mainstay_terminal::output;

use super::serve::{
    DEFAULT_LISTEN, Log, READY, Signals, all_engines, options, start, until_signalled,
};
use crate::client::kubeconfig::{Kubeconfig, Overrides};
use crate::client::{Call, Client};
use crate::credentials::{Bounds, FileBounds, Keys};
use crate::error::Error;
use crate::paths;

/// Start a server on this machine with sensible defaults, and print how to use it
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  mainstay up                                 data in the user's data folder, port 7443 or a free one
  mainstay up --data-dir /tmp/try             somewhere else")]
pub(crate) struct Up {
    /// The data folder [default: mainstay in the user's data folder]
    #[arg(long, value_name = "DIR", env = "MAINSTAY_DATA_DIR")]
    data_dir: Option<PathBuf>,
    /// The address to listen on [default: 127.0.0.1:7443, or a free port if that is taken]
    #[arg(long, value_name = "ADDR:PORT", env = "MAINSTAY_LISTEN")]
    listen: Option<SocketAddr>,
    #[command(flatten)]
    bounds: Bounds,
    /// Accept an empty or different store although the data folder belongs to another cluster
    #[arg(long)]
    new_cluster: bool,
    /// The log level: error, warn, info, debug, trace, or a filter
    #[arg(long = "log", value_name = "FILTER", env = "MAINSTAY_LOG", default_value = "warn")]
    log: String,
}

impl Up {
    pub(crate) async fn run(&self) -> Result<u8, Error> {
        Log::of(&self.log).start()?;
        let Some(data_dir) = self.data_dir.clone().or_else(paths::data_dir) else {
            return Err(Error::usage("no data folder found; name one with --data-dir DIR"));
        };
        let listen = match self.listen {
            Some(listen) => listen,
            None => free(DEFAULT_LISTEN),
        };
        let kubeconfig = data_dir.join("kubeconfig");
        let allowed = self.bounds.allowed(&FileBounds::default(), &[Some(data_dir.clone())])?;
        let engines = all_engines(Keys::default().access(None, allowed)?);
        let mut options = options(listen, data_dir)?;
        options.new_cluster = self.new_cluster;
        let mut signals = Signals::new()?;
        let service = match signals.unless_signalled(start(options, engines)).await {
            Ok(service) => service,
            Err(error) => {
                if let Some(url) = already_up(&kubeconfig).await {
                    anstream::eprintln!(
                        "A server with this data folder is already running at {url}."
                    );
                }
                return Err(error);
            }
        };
        let server = service.server();
        anstream::eprintln!("\x1b[1m{READY} {}\x1b[0m", server.url());
        output::print(&welcome(server.kubeconfig(), on_path("kubectl"), &own_name()))?;
        let ended = until_signalled(service, signals).await;
        anstream::eprintln!(
            "Mainstay has stopped; `mainstay up` starts it again with all its data."
        );
        ended
    }
}

/// The address of the server of this kubeconfig, if it is ready.
async fn already_up(kubeconfig: &Path) -> Option<String> {
    let file = Kubeconfig::load(&[kubeconfig.to_owned()]).ok()?;
    let target = file.target(&Overrides::default()).ok()?;
    let client = Client::new(target, Duration::from_secs(3)).ok()?;
    client.bytes(Call::get("/readyz")).await.ok()?;
    Some(client.server().to_owned())
}

/// The address itself when it is free, else the same with a port the machine chooses.
fn free(wanted: SocketAddr) -> SocketAddr {
    match std::net::TcpListener::bind(wanted) {
        Ok(_) => wanted,
        Err(_) => SocketAddr::new(wanted.ip(), 0),
    }
}

fn on_path(program: &str) -> bool {
    let path = std::env::var_os("PATH").unwrap_or_default();
    std::env::split_paths(&path).any(|folder| folder.join(program).is_file())
}

/// The command to run this program: its name if it is on the PATH, else its path.
fn own_name() -> String {
    match std::env::current_exe() {
        Ok(path) if !on_path("mainstay") => path.display().to_string(),
        _ => "mainstay".to_owned(),
    }
}

/// The first steps, for new users.
fn welcome(kubeconfig: &Path, kubectl: bool, own: &str) -> String {
    let kubeconfig = kubeconfig.display().to_string();
    let kubeconfig = if kubeconfig.contains([' ', '\'']) {
        format!("'{}'", kubeconfig.replace('\'', "'\\''"))
    } else {
        kubeconfig
    };
    let export = format!("export KUBECONFIG={kubeconfig}");
    let tries: [(String, &str); 3] = if kubectl {
        [
            ("kubectl get namespaces".to_owned(), "what is there"),
            (
                "kubectl create configmap hello --from-literal=who=world".to_owned(),
                "make something",
            ),
            ("kubectl get configmap hello -o yaml".to_owned(), "look at it"),
        ]
    } else {
        [
            (format!("{own} get namespaces"), "what is there"),
            (format!("{own} describe namespace default"), "look closer"),
            (format!("{own} watch namespaces,configmaps -A"), "see things change"),
        ]
    };
    let first = (export, "in another terminal; then try:");
    let lines: Vec<(String, &str)> = std::iter::once(first).chain(tries).collect();
    let width = lines.iter().map(|(command, _)| command.len()).max().unwrap_or_default();
    let mut text = String::from("\n");
    for (command, why) in &lines {
        text.push_str(&format!("  \x1b[36m{command:<width$}\x1b[0m   \x1b[2m# {why}\x1b[0m\n"));
    }
    text.push_str("\nCtrl-C ends it; nothing is lost.\n");
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_welcome_can_be_pasted() {
        let text = welcome(Path::new("/data/it's mine/kubeconfig"), true, "mainstay");
        assert!(text.contains(r"export KUBECONFIG='/data/it'\''s mine/kubeconfig'"), "{text}");
        assert!(text.contains("kubectl get namespaces"));
        let text = welcome(Path::new("/d/kubeconfig"), false, "/opt/mainstay");
        assert!(text.contains("export KUBECONFIG=/d/kubeconfig"));
        assert!(text.contains("/opt/mainstay get namespaces") && !text.contains("kubectl"));
    }
}
