//! `graph watch`: prints the status of values and every change of it.

use serde_json::Value as Json;

use super::{Follow, NoAnswer, Output, Target, client, print, show};

/// Print the status of values, then every change of it, until interrupted
#[derive(Debug, Clone, clap::Args)]
#[expect(missing_docs, reason = "the flattened field shows the documentation of Target")]
#[non_exhaustive]
pub struct WatchCommand {
    #[command(flatten)]
    pub target: Target,
    /// Only this value
    pub key: Option<String>,
    /// Only values whose keys begin with this
    #[arg(long, conflicts_with = "key")]
    pub key_prefix: Option<String>,
    /// End after this many lines
    #[arg(long, value_name = "COUNT")]
    pub limit: Option<u64>,
    /// Output format; json prints one object per line
    #[arg(short, long, value_enum, default_value_t)]
    pub output: Output,
}

pub(super) async fn run(command: WatchCommand, fetch: &impl Follow) -> Result<i32, String> {
    let WatchCommand { target, key, key_prefix, limit, output } = command;
    let arguments = [("key", key), ("key-prefix", key_prefix)];
    let url = client::url(&target.url, "watch", &arguments);
    let mut left = limit.unwrap_or(u64::MAX);
    let mut each = |line: &str| {
        let Ok(event) = serde_json::from_str::<Json>(line) else {
            return true;
        };
        // An empty object only shows that the connection lives.
        if event.as_object().is_some_and(serde_json::Map::is_empty) || left == 0 {
            return left > 0;
        }
        match output {
            Output::Text => print(&show::change(&event)),
            Output::Json => print(line),
        }
        left -= 1;
        left > 0
    };
    let (status, body) = match fetch.follow(&target, &url, &mut each).await {
        Ok(followed) => followed,
        Err(NoAnswer::Usage(problem)) => return Err(problem),
        Err(NoAnswer::Unreachable(problem)) => {
            eprintln!("error: {problem}");
            return Ok(1);
        }
    };
    match status {
        200..300 if left == 0 => Ok(0),
        200..300 => {
            eprintln!("error: the engine has stopped");
            Ok(1)
        }
        400 => Err(show::problem(status, &body)),
        _ => {
            eprintln!("error: {}", show::problem(status, &body));
            Ok(1)
        }
    }
}
