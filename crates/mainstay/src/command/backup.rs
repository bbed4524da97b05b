//! `mainstay backup`: saves the objects and the catalog of a running server in one file.

use std::io::{self, BufRead, IsTerminal, Read, Write};
use std::path::{Path, PathBuf};

use bytes::{Buf, Bytes};
use clap::Args;
use mainstay_server::engines::CATALOG;
use mainstay_store::backup::{self, Reader, Summary, check};
use tokio::sync::mpsc;

use crate::backup_seal::{Seal, Unseal};
use crate::catalog_part::Checking;
use crate::client::{Call, Client};
use crate::connect::Connect;
use crate::error::Error;

/// Save the objects and the catalog of a running server in one file, or check such a file
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  mainstay backup mainstay.backup             while the server runs, at one moment
  mainstay backup mainstay.backup --recipient age1…     only its holder can restore it
  mainstay backup mainstay.backup --passphrase-file F
  mainstay backup --check mainstay.backup     whole, undamaged, and of a version this one restores?
  ssh vault cat mainstay.backup | mainstay backup --check -

The file holds all objects and the rule catalog. Secrets are among them (the certificate
authority's key, password hashes): it is readable by its owner alone. It restores into any store:
see `mainstay restore --help`.")]
pub(crate) struct Backup {
    /// The file to write, or with --check to read; - is the standard output or input
    #[arg(value_name = "FILE")]
    file: PathBuf,
    /// Check FILE instead: read all of it and print a summary; exit code 2 if it could not be
    /// restored
    #[arg(long, conflicts_with = "recipient")]
    check: bool,
    /// With --check: decrypt with the age identities in this file
    #[arg(long, value_name = "FILE", requires = "check", conflicts_with = "passphrase_file")]
    identity: Option<PathBuf>,
    #[command(flatten)]
    seal: Seal,
    #[command(flatten)]
    connect: Connect,
}

impl Backup {
    pub(crate) async fn run(&self) -> Result<u8, Error> {
        if self.check {
            let keys = Unseal::new(self.seal.passphrase_file.clone(), self.identity.clone());
            let said = checked(self.file.clone(), keys).await?;
            let name = match self.file.as_os_str() == "-" {
                true => "the standard input".into(),
                false => self.file.display().to_string(),
            };
            mainstay_terminal::output::print(&format!("{name}: {said}\n"))?;
            return Ok(0);
        }
        let client = self.connect.client()?;
        if self.file.as_os_str() == "-" {
            let out = io::stdout();
            if out.is_terminal() && !self.seal.is_asked_for() {
                return Err(Error::usage(
                    "a backup holds secrets and is not written to a terminal; name a file",
                ));
            }
            self.copy(&client, "the standard output", out).await?;
        } else {
            self.save(&client, &self.file).await?;
        }
        Ok(0)
    }

    /// Writes the file under another name until it is whole, checked and safe on disk.
    async fn save(&self, client: &Client, path: &Path) -> Result<(), Error> {
        let shown = path.display().to_string();
        let failed = || Error::io(format!("cannot write {shown}"));
        let folder = match path.parent() {
            Some(folder) if !folder.as_os_str().is_empty() => folder.to_owned(),
            _ => PathBuf::from("."),
        };
        if path.is_dir() {
            return Err(Error::usage(format!("{shown} is a folder; name a file")));
        }
        let part = tempfile::Builder::new().prefix(".mainstay-backup-").tempfile_in(&folder);
        let part = part.map_err(failed())?;
        let said = self.copy(client, &shown, part.as_file()).await?;
        part.as_file().sync_all().map_err(failed())?;
        // A file that only another person can decrypt was checked while it was written.
        if let Some(keys) = self.seal.opened_with() {
            checked(part.path().to_owned(), keys).await?;
        }
        part.persist(path).map_err(|error| failed()(error.error))?;
        let synced = std::fs::File::open(&folder).and_then(|folder| folder.sync_all());
        synced.map_err(failed())?;
        anstream::eprintln!("{shown}: {said}");
        Ok(())
    }

    /// Writes the backup that the server sends, encrypted if asked to, and checks it meanwhile.
    async fn copy(&self, client: &Client, name: &str, out: impl Write) -> Result<String, Error> {
        let failed = || Error::io(format!("cannot write {name}"));
        let mut out = self.seal.wrap(out)?;
        let mut body = client.stream(&Call::get("/mainstay/v1/backup")).await?;
        let (sender, receiver) = mpsc::channel(16);
        let checking = tokio::task::spawn_blocking(move || {
            let mut parts = Checking::default();
            let mut reader = Reader::new(Pieces { receiver, piece: Bytes::new() })?;
            backup::read_all(&mut reader, &mut parts, |_| true)?;
            Ok::<_, backup::Error>(said(&reader.finish()?, &parts))
        });
        while let Some(piece) = body.piece_within(client.timeout()).await? {
            out.write_all(&piece).map_err(failed())?;
            if sender.send(piece).await.is_err() {
                // The check has failed; its error is reported below.
                break;
            }
        }
        drop(sender);
        let checked = checking.await.map_err(|error| Error::negative(error.to_string()))?;
        let said = checked.map_err(|error| {
            Error::negative(format!("the server did not send a whole backup: {error}"))
        })?;
        out.finish().map_err(failed())?;
        Ok(said)
    }
}

/// Reads a whole backup and returns its summary.
async fn checked(path: PathBuf, keys: Unseal) -> Result<String, Error> {
    let checking = tokio::task::spawn_blocking(move || {
        let mut parts = Checking::default();
        let source = match path.as_os_str() == "-" {
            true => keys.input(),
            false => keys.source(&path),
        };
        let summary = check(&source, &mut parts)?;
        Ok::<_, backup::Error>(said(&summary, &parts))
    });
    Ok(checking.await.map_err(|error| Error::negative(error.to_string()))??)
}

/// The summary of a backup, in one line.
fn said(summary: &Summary, parts: &Checking) -> String {
    let (objects, head) = (summary.objects, &summary.head);
    let (revision, time) = (head.revision, head.time);
    let mut said = format!("{objects} objects at revision {revision} as of {time}");
    match parts.counted() {
        Some((rows, tables)) => {
            said.push_str(&format!(", catalog: {rows} rows in {tables} tables"))
        }
        None => said.push_str(", no rule catalog"),
    }
    let catalog = summary.parts.iter().find(|part| part.name == CATALOG);
    if catalog.is_some_and(|part| part.about["oneMoment"] == false) {
        said.push_str(" (of about the same moment: a long transaction could not be waited for)");
    }
    said
}

/// The received pieces as a reader.
struct Pieces {
    receiver: mpsc::Receiver<Bytes>,
    piece: Bytes,
}

impl Read for Pieces {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        let from = self.fill_buf()?;
        let length = from.len().min(into.len());
        into[..length].copy_from_slice(&from[..length]);
        self.consume(length);
        Ok(length)
    }
}

impl BufRead for Pieces {
    fn fill_buf(&mut self) -> io::Result<&[u8]> {
        while self.piece.is_empty() {
            match self.receiver.blocking_recv() {
                Some(piece) => self.piece = piece,
                None => break,
            }
        }
        Ok(&self.piece)
    }

    fn consume(&mut self, length: usize) {
        self.piece.advance(length);
    }
}
