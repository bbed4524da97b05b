//! Starting programs: the server under test, and clients that speak to it.

use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::thread::JoinHandle;

use tempfile::TempDir;

/// The program under test.
pub(crate) const MAINSTAY: &str = env!("CARGO_BIN_EXE_mainstay");

/// A folder for data that outlives the servers started on it.
pub(crate) fn folder() -> TempDir {
    tempfile::tempdir().expect("a temporary folder")
}

/// A server in a process of its own; killed when dropped.
pub(crate) struct TestServer {
    child: Child,
    data_dir: PathBuf,
    listening: Option<JoinHandle<()>>,
    _folder: Option<TempDir>,
}

impl TestServer {
    /// A server on SQLite in a folder of its own.
    pub(crate) fn start() -> Self {
        let folder = folder();
        let mut server = Self::start_in(folder.path(), &[]);
        server._folder = Some(folder);
        server
    }

    /// A server on an existing folder. Returns once it says that it is ready.
    pub(crate) fn start_in(data_dir: &Path, arguments: &[&str]) -> Self {
        let (child, said) = Self::try_start_in(data_dir, arguments);
        said.map(|listening| Self {
            child,
            data_dir: data_dir.to_owned(),
            listening: Some(listening),
            _folder: None,
        })
        .unwrap_or_else(|said| panic!("the server did not start:\n{said}"))
    }

    /// Starts, and gives what it said if it ended before it was ready.
    pub(crate) fn try_start_in(
        data_dir: &Path,
        arguments: &[&str],
    ) -> (Child, Result<JoinHandle<()>, String>) {
        let free: &[&str] = match arguments.contains(&"--listen") {
            true => &[],
            false => &["--listen", "127.0.0.1:0"],
        };
        let mut child = Command::new(MAINSTAY)
            .arg("serve")
            .args(free)
            .arg("--data-dir")
            .arg(data_dir)
            .args(arguments)
            .env_remove("MAINSTAY_DATA_DIR")
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .spawn()
            .expect("the program under test starts");
        let mut lines = BufReader::new(child.stderr.take().expect("a pipe")).lines();
        let mut said = String::new();
        for line in lines.by_ref() {
            let line = line.expect("text");
            if line.starts_with("mainstay is ready at") {
                let echo = std::thread::spawn(move || {
                    for line in lines.map_while(Result::ok) {
                        eprintln!("server: {line}");
                    }
                });
                return (child, Ok(echo));
            }
            said.push_str(&line);
            said.push('\n');
        }
        child.wait().expect("an exit status");
        (child, Err(said))
    }

    pub(crate) fn kubeconfig(&self) -> PathBuf {
        self.data_dir.join("kubeconfig")
    }

    /// The address as the kubeconfig has it.
    pub(crate) fn address(&self) -> String {
        let text = std::fs::read_to_string(self.kubeconfig()).expect("a kubeconfig");
        let line = text.lines().find_map(|line| line.trim().strip_prefix("server:"));
        line.expect("an address").trim().trim_matches('"').to_owned()
    }

    /// A client program that will speak to this server.
    pub(crate) fn client(&self, program: &str) -> Command {
        let mut command = Command::new(program);
        command.env("KUBECONFIG", self.kubeconfig());
        command.env_remove("MAINSTAY_DATA_DIR").env_remove("MAINSTAY_TOKEN");
        // kubectl caches discovery under the home folder: every server has its own.
        command.env("HOME", &self.data_dir);
        command
    }

    pub(crate) fn mainstay(&self, arguments: &[&str]) -> Output {
        let output = self.client(MAINSTAY).args(arguments).stdin(Stdio::null()).output();
        output.expect("mainstay runs")
    }

    pub(crate) fn pid(&self) -> u32 {
        self.child.id()
    }

    /// SIGKILL: what is not on disk is lost.
    pub(crate) fn kill(mut self) {
        self.end();
    }

    /// SIGTERM, and waits for the orderly end.
    pub(crate) fn terminate(mut self) -> std::process::ExitStatus {
        signal(self.pid(), "TERM");
        let status = self.child.wait().expect("an exit status");
        self.end();
        status
    }

    fn end(&mut self) {
        // It may have ended by itself already.
        drop(self.child.kill());
        drop(self.child.wait());
        if let Some(listening) = self.listening.take() {
            drop(listening.join());
        }
    }
}

impl Drop for TestServer {
    fn drop(&mut self) {
        self.end();
    }
}

/// Sends a signal by name.
pub(crate) fn signal(pid: u32, name: &str) {
    let status = Command::new("kill").arg(format!("-{name}")).arg(pid.to_string()).status();
    assert!(status.expect("kill runs").success());
}

/// Says loudly that something is not tested here; where everything must be tested, fails.
pub(crate) fn cannot_test(what: &str) {
    eprintln!("!!! NOT TESTED: {what} !!!");
    let everything = std::env::var("CI").is_ok_and(|value| value == "true");
    assert!(!everything, "CI must test everything, but cannot: {what}");
}

/// Both outputs and the exit code, as text.
pub(crate) fn text_of(output: &Output) -> String {
    let mut text = String::from_utf8_lossy(&output.stdout).into_owned();
    text.push_str(&String::from_utf8_lossy(&output.stderr));
    if !output.status.success() {
        text.push_str(&format!("[exit code {}]\n", output.status.code().unwrap_or(-1)));
    }
    text
}

/// Starts a server that must not start; returns its output.
pub(crate) fn refused(data_dir: &Path, arguments: &[&str]) -> String {
    match TestServer::try_start_in(data_dir, arguments) {
        (_, Err(said)) => said,
        (mut child, Ok(_)) => {
            drop(child.kill());
            drop(child.wait());
            panic!("a server started in {}", data_dir.display());
        }
    }
}

/// Runs a command without the settings of the environment.
pub(crate) fn offline(arguments: &[&str]) -> Output {
    let mut command = Command::new(MAINSTAY);
    for name in ["MAINSTAY_DATA_DIR", "MAINSTAY_STORE", "MAINSTAY_CATALOG", "KUBECONFIG"] {
        command.env_remove(name);
    }
    command.args(arguments).stdin(Stdio::null()).output().unwrap()
}

/// The output of a command that must exit with `expected`.
#[track_caller]
pub(crate) fn code(output: &Output, expected: i32) -> String {
    let text = text_of(output);
    assert_eq!(output.status.code(), Some(expected), "{text}");
    text
}
