//! Tests of `upload` and `download`: they never remove or overwrite a registered file, and refuse
//! impossible requests before they write.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use clap::Parser;
use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use mainstay_rucio::Local;
use mainstay_rules::api::{DidType, Grouping};
use mainstay_rules::cli::{self, Answer, Command, Error, Format, Remote};
use mainstay_transfers::allowed::Allowed;
use mainstay_transfers::credential::Credentials;
use mainstay_transfers::store::Access;
use serde_json::{Value, json};

use crate::disks::Disks;
use crate::surface::service;

#[derive(Parser)]
struct Tree {
    #[command(subcommand)]
    command: Command,
}

/// An event during the registration of a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Meanwhile {
    Nothing,
    /// Another client registers the same file first.
    Registered,
    /// A rule wants the file there, and its transfer is under way.
    Asked,
    /// The catalog registers it, and the answer is lost.
    AnswerLost,
    /// The registration is refused.
    Refused,
    /// The server is down and stays down.
    Gone,
}

struct Meddled {
    local: Local,
    meanwhile: Meanwhile,
    gone: std::sync::atomic::AtomicBool,
}

impl Meddled {
    async fn register(&self, body: Value) -> Result<Answer, Error> {
        let gone = || Error::Unreachable("nobody is there".to_owned());
        let send = |body: Value| self.local.send("POST", "/replicas", Some(body));
        match self.meanwhile {
            Meanwhile::Nothing => send(body).await,
            Meanwhile::Registered => {
                assert_eq!(send(body.clone()).await?.status, 201);
                send(body).await
            }
            Meanwhile::Asked => {
                let mut asked = body.clone();
                asked["files"][0]["state"] = json!("C");
                assert_eq!(send(asked).await?.status, 201);
                send(body).await
            }
            Meanwhile::AnswerLost => {
                send(body).await?;
                Err(gone())
            }
            Meanwhile::Refused => {
                let body = json!({"ExceptionClass": "AccessDenied", "ExceptionMessage": "no"});
                Ok(Answer { status: 403, body: body.to_string() })
            }
            Meanwhile::Gone => {
                self.gone.store(true, std::sync::atomic::Ordering::Release);
                Err(gone())
            }
        }
    }
}

impl Remote for Meddled {
    fn send<'a>(
        &'a self,
        method: &'a str,
        path: &'a str,
        body: Option<Value>,
    ) -> BoxFuture<'a, Result<Answer, Error>> {
        async move {
            match (method, path, body) {
                _ if self.gone.load(std::sync::atomic::Ordering::Acquire) => {
                    Err(Error::Unreachable("nobody is there".to_owned()))
                }
                ("POST", "/replicas", Some(body)) => self.register(body).await,
                (_, _, body) => self.local.send(method, path, body).await,
            }
        }
        .boxed()
    }
}

/// The output of a command and its exit code, or its error.
fn run_with(disks: &Disks, line: &str, meanwhile: Meanwhile) -> Result<(u8, String), String> {
    let words = std::iter::once("rules").chain(line.split_whitespace());
    let tree = Tree::try_parse_from(words).unwrap_or_else(|error| panic!("{line}: {error}"));
    let remote =
        Meddled { local: Local::new(service(&disks.world)), meanwhile, gone: Default::default() };
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let mut out = Vec::new();
    let access = Arc::new(Access::new(Credentials::new(), Allowed::anywhere()));
    let done = cli::run(tree.command, &remote, access, Format::Table, &mut out);
    let code = runtime.block_on(done).map_err(|error| error.to_string())?;
    Ok((code, String::from_utf8(out).unwrap()))
}

fn run(disks: &Disks, line: &str) -> Result<(u8, String), String> {
    run_with(disks, line, Meanwhile::Nothing)
}

fn local(folder: &Path, name: &str, content: &str) -> PathBuf {
    let place = folder.join(name);
    std::fs::write(&place, content).unwrap();
    place
}

#[test]
fn a_failed_upload_removes_only_unregistered_files() {
    let cases = [
        (Meanwhile::Nothing, "", true),
        (Meanwhile::Registered, "", true),
        (Meanwhile::AnswerLost, "", true),
        (Meanwhile::Asked, "s:f on A is registered already, and is COPYING", true),
        (Meanwhile::Refused, "AccessDenied", false),
        (Meanwhile::Gone, "is left", true),
    ];
    for disks in Disks::each().into_iter().take(1) {
        let folder = tempfile::tempdir().unwrap();
        for (at, (meanwhile, why, stays)) in cases.iter().enumerate() {
            let name = format!("f{at}");
            let from = local(folder.path(), &name, "content");
            let line = format!("upload A --scope s {}", from.display());
            let done = run_with(&disks, &line, *meanwhile);
            match why.is_empty() {
                true => assert_eq!(done, Ok((0, format!("s:{name}\n"))), "{meanwhile:?}"),
                false => {
                    let why = why.replace("s:f", &format!("s:{name}"));
                    let said = done.unwrap_err();
                    assert!(said.contains(&why), "{meanwhile:?}: {said}");
                }
            }
            assert_eq!(disks.place("A", &name).exists(), *stays, "{meanwhile:?}");
        }
        // A repeated upload finds the file that was left when the server went down.
        let line = format!("upload A --scope s {}", folder.path().join("f5").display());
        assert_eq!(run(&disks, &line), Ok((0, "s:f5\n".to_owned())));
    }
}

#[test]
fn repeated_uploads_skip_finished_files() {
    for disks in Disks::each() {
        let world = &disks.world;
        let folder = tempfile::tempdir().unwrap();
        world.collection("ds", DidType::Dataset);
        let files = ["one", "two", "three"].map(|name| local(folder.path(), name, name));
        let [one, two, three] = files.map(|place| place.display().to_string());
        let attached = || world.sql("SELECT COUNT(*) FROM contents");
        assert_eq!(run(&disks, &format!("upload A --scope s {one}")).unwrap().0, 0);
        let both = format!("upload A --scope s --dataset s:ds {one} {two}");
        assert_eq!(run(&disks, &both), Ok((0, "s:one\ns:two\n".to_owned())));
        assert_eq!(attached(), 2);
        assert_eq!(run(&disks, &both).unwrap().0, 0);
        assert_eq!(attached(), 2);
        // A file with other content is refused; the others go on, and no file is overwritten.
        std::fs::write(&one, "ONE").unwrap();
        let all = format!("upload A --scope s --dataset s:ds {one} {three}");
        assert_eq!(run(&disks, &all), Ok((1, "s:three\n".to_owned())));
        assert_eq!(attached(), 3);
        let said = run(&disks, &format!("upload A --scope s {one}")).unwrap_err();
        assert!(said.contains("s:one is registered with another content"), "{said}");
        let said = run(&disks, &format!("upload B --scope s {one}")).unwrap_err();
        assert!(said.contains("s:one is registered with another content"), "{said}");
        // A further copy of a file known on another RSE is accepted.
        assert_eq!(run(&disks, &format!("upload B --scope s {two}")).unwrap().0, 0);
        // A file that is being copied there is left to its worker.
        world.rule("two", 1, "C", Grouping::None);
        let said = run(&disks, &format!("upload C --scope s {two}")).unwrap_err();
        assert!(said.contains("s:two on C is registered already, and is COPYING"), "{said}");
        assert_eq!(disks.work("w"), 1);
        disks.check();
    }
}

#[test]
fn impossible_uploads_are_refused_before_any_write() {
    for disks in Disks::each().into_iter().take(1) {
        let world = &disks.world;
        let folder = tempfile::tempdir().unwrap();
        world.collection("closed", DidType::Dataset);
        world.collection("box", DidType::Container);
        world.change("UPDATE dids SET is_open = FALSE WHERE name = 'closed'");
        let file = local(folder.path(), "f", "content").display().to_string();
        let fifo = folder.path().join("fifo");
        assert!(std::process::Command::new("mkfifo").arg(&fifo).status().unwrap().success());
        std::fs::create_dir(folder.path().join("again")).unwrap();
        let again = local(&folder.path().join("again"), "f", "content").display().to_string();
        let (fifo, folder) = (fifo.display(), folder.path().display());
        for (line, why) in [
            (format!("upload A --scope s {file} {fifo}"), "fifo is not a file"),
            (format!("upload A --scope s {file} {folder}"), "is not a file"),
            (format!("upload A --scope s {file} /dev/zero"), "/dev/zero is not a file"),
            (format!("upload A --scope s {file} {folder}/none"), "none: No such file"),
            (format!("upload A --scope s {file} {again}"), "would be called s:f"),
            (format!("upload A --scope s --dataset s:none {file}"), "'s:none' not found"),
            (format!("upload A --scope s --dataset s:closed {file}"), "s:closed is closed"),
            (format!("upload A --scope s --dataset s:box {file}"), "s:box is not a dataset"),
        ] {
            let said = run(&disks, &line).unwrap_err();
            assert!(said.contains(why), "{line}: {said}");
        }
        run(&disks, "rse availability A write=false").unwrap();
        let said = run(&disks, &format!("upload A --scope s {file}")).unwrap_err();
        let how = "A is closed for writing; open it: mainstay rules rse availability A write=true";
        assert_eq!(said, how);
        run(&disks, "rse availability A write=true").unwrap();
        disks.check();
        assert_eq!(run(&disks, &format!("upload A --scope s {file}")).unwrap().0, 0);
    }
}

#[test]
fn a_download_replaces_files_only_with_force() {
    for disks in Disks::each().into_iter().take(1) {
        let folder = tempfile::tempdir().unwrap();
        disks.file("f", "A", b"content", Some(b"content"));
        let line = format!("download s:f --into {}", folder.path().display());
        let place = folder.path().join("s/f");
        let said = format!("{}\n", place.display());
        assert_eq!(run(&disks, &line), Ok((0, said.clone())));
        // The same file again is found, not fetched.
        std::fs::remove_file(disks.place("A", "f")).unwrap();
        assert_eq!(run(&disks, &line), Ok((0, said.clone())));
        std::fs::write(disks.place("A", "f"), "content").unwrap();
        for mine in ["CONTENT", "my notes"] {
            std::fs::write(&place, mine).unwrap();
            assert_eq!(run(&disks, &line), Ok((1, String::new())));
            assert_eq!(std::fs::read_to_string(&place).unwrap(), mine);
        }
        assert_eq!(run(&disks, &format!("{line} --force")), Ok((0, said)));
        assert_eq!(std::fs::read_to_string(&place).unwrap(), "content");
    }
}

#[test]
fn the_table_of_transfers_shortens_only_very_long_names() {
    for disks in Disks::each().into_iter().take(1) {
        let long = "x".repeat(200);
        for name in ["f", &long] {
            disks.file(name, "A", b"content", Some(b"content"));
            disks.world.rule(name, 1, "B", Grouping::None);
        }
        let (_, said) = run(&disks, "transfers").unwrap();
        assert!(said.contains("\ns:f  "), "{said}");
        assert!(said.contains("\ns:xxx") && said.contains("xxx…xxx"), "{said}");
        assert!(!said.contains(&long), "{said}");
    }
}

#[test]
fn judge_daemons_from_the_command_line_need_once() {
    let error = Tree::try_parse_from(["rules", "judge", "reaper"]).err().unwrap();
    assert!(error.to_string().contains("--once"), "{error}");
    assert!(Tree::try_parse_from(["rules", "judge", "reaper", "--once"]).is_ok());
}
