//! Starts a private PostgreSQL server for benchmarks and tests: in a temporary folder, with a Unix
//! socket there, and stopped when the process that started it ends.

use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, Command, Stdio};
use std::time::Duration;

/// A private PostgreSQL server.
#[derive(Debug)]
pub struct PrivatePostgres {
    folder: PathBuf,
    port: u16,
    child: Child,
    control: Option<ChildStdin>,
}

/// A shell script that starts the server, restarts it at each line of its input, and at the end of
/// the input stops it and removes the folder: so no file is left behind, however this process ends.
/// A server that is just starting ignores signals, so the signal is repeated.
const SUPERVISOR: &str = r#"
folder="$1"; shift
start() { "$@" -D "$folder/data" -k "$folder" >>"$folder/log" 2>&1 & pid=$!; }
stop() { (while kill -"$1" $pid 2>/dev/null; do sleep 0.1; done) & wait $pid; }
start "$@"
while read -r line; do stop QUIT; rm -f "$folder/data/postmaster.pid"; start "$@"; done
stop INT; rm -rf "$folder"
"#;

/// The folder with PostgreSQL's programs, if there is one on this machine.
#[must_use]
pub fn find_programs() -> Option<PathBuf> {
    let mut places: Vec<PathBuf> = std::env::var_os("PATH")
        .map(|path| std::env::split_paths(&path).collect())
        .unwrap_or_default();
    let debian = std::fs::read_dir("/usr/lib/postgresql").into_iter().flatten().flatten();
    places.extend(debian.map(|entry| entry.path().join("bin")));
    places
        .into_iter()
        .find(|place| place.join("initdb").exists() && place.join("postgres").exists())
}

/// The command prefix that switches to an unprivileged user, which PostgreSQL requires.
fn unprivileged() -> Option<Vec<String>> {
    let own =
        std::fs::metadata("/proc/self").ok().map(|meta| std::os::unix::fs::MetadataExt::uid(&meta));
    if own != Some(0) {
        return Some(Vec::new());
    }
    let users = std::fs::read_to_string("/etc/passwd").ok()?;
    let user = ["postgres", "nobody"].into_iter().find_map(|name| {
        let line = users.lines().find(|line| line.starts_with(&format!("{name}:")))?;
        let mut fields = line.split(':').skip(2);
        Some((fields.next()?.to_owned(), fields.next()?.to_owned()))
    })?;
    let (user, group) = user;
    Some(
        [
            "setpriv".to_owned(),
            format!("--reuid={user}"),
            format!("--regid={group}"),
            "--clear-groups".to_owned(),
            "--".to_owned(),
        ]
        .into(),
    )
}

impl PrivatePostgres {
    /// Starts a server with these settings (`name=value`).
    ///
    /// # Errors
    /// A sentence that names the missing program, user or folder.
    pub fn start(settings: &[&str]) -> Result<Self, String> {
        let programs =
            find_programs().ok_or("there is no PostgreSQL (initdb, postgres) on this machine")?;
        let user = unprivileged().ok_or("there is no unprivileged user to run PostgreSQL as")?;
        let seed: u32 = rand::random();
        let folder =
            std::env::temp_dir().join(format!("mainstay-pg-{}-{seed:x}", std::process::id()));
        let failed = |error: std::io::Error| format!("a folder for PostgreSQL: {error}");
        std::fs::create_dir(&folder).map_err(failed)?;
        if let [_, uid, gid, ..] = user.as_slice() {
            let number =
                |text: &str| text.split('=').nth(1).and_then(|text| text.parse::<u32>().ok());
            std::os::unix::fs::chown(&folder, number(uid), number(gid)).map_err(failed)?;
        }
        let command = |program: &str| {
            let mut words = user.clone();
            words.push(programs.join(program).display().to_string());
            words
        };
        let words = command("initdb");
        let made = Command::new(&words[0])
            .args(&words[1..])
            .args(["-U", "mainstay", "-A", "trust", "-E", "UTF8", "--locale=C", "--no-sync", "-D"])
            .arg(folder.join("data"))
            .current_dir(&folder)
            .output()
            .map_err(|error| format!("initdb: {error}"))?;
        if !made.status.success() {
            return Err(format!("initdb: {}", String::from_utf8_lossy(&made.stderr)));
        }
        let mut words = command("postgres");
        words.extend(["-c".to_owned(), "listen_addresses=".to_owned()]);
        for setting in settings {
            words.extend(["-c".to_owned(), (*setting).to_owned()]);
        }
        let mut child = Command::new("sh")
            .args(["-c", SUPERVISOR, "sh"])
            .arg(&folder)
            .args(words)
            .current_dir(&folder)
            .stdin(Stdio::piped())
            .spawn()
            .map_err(|error| format!("postgres: {error}"))?;
        let control = child.stdin.take();
        let port = settings.iter().find_map(|setting| setting.strip_prefix("port=")?.parse().ok());
        let server = Self { folder, port: port.unwrap_or(5432), child, control };
        server.wait()?;
        Ok(server)
    }

    /// The address of a schema of the server.
    #[must_use]
    pub fn url(&self, schema: &str) -> String {
        let folder = self.folder.display().to_string().replace('/', "%2F");
        let port = self.port;
        format!(
            "postgresql://mainstay@{folder}:{port}/postgres?options=-c%20search_path%3D{schema}"
        )
    }

    /// The folder of the server.
    #[must_use]
    pub fn folder(&self) -> &Path {
        &self.folder
    }

    /// Kills the server as a power cut would, and starts it again. Does not wait for the start.
    pub fn crash(&mut self) -> std::io::Result<()> {
        match &mut self.control {
            Some(control) => control.write_all(b"crash\n").and_then(|()| control.flush()),
            None => Ok(()),
        }
    }

    /// Makes an empty schema.
    pub fn make_schema(&self, schema: &str) -> Result<(), String> {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
        runtime.map_err(|error| error.to_string())?.block_on(async {
            let connected =
                tokio_postgres::connect(&self.url("public"), tokio_postgres::NoTls).await;
            let (client, connection) = connected.map_err(|error| error.to_string())?;
            let driver = tokio::spawn(connection);
            let made = client.batch_execute(&format!("CREATE SCHEMA {schema}")).await;
            drop(client);
            // The connection ends with its client; its result does not matter.
            let _ = driver.await;
            made.map_err(|error| error.to_string())
        })
    }

    /// Waits until the server answers.
    fn wait(&self) -> Result<(), String> {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
        runtime.map_err(|error| error.to_string())?.block_on(async {
            let mut last = String::new();
            for _ in 0..400 {
                match tokio_postgres::connect(&self.url("public"), tokio_postgres::NoTls).await {
                    Ok(_) => return Ok(()),
                    Err(error) => last = error.to_string(),
                }
                tokio::time::sleep(Duration::from_millis(25)).await;
            }
            let log = std::fs::read_to_string(self.folder.join("log")).unwrap_or_default();
            Err(format!("postgres does not answer: {last}\n{log}"))
        })
    }
}

impl Drop for PrivatePostgres {
    fn drop(&mut self) {
        drop(self.control.take());
        // The script ends at the end of its input.
        let _ = self.child.wait();
    }
}
