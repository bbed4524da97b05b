//! `mainstay backup`: everything a running server keeps, as one file.

use std::io::{IsTerminal, Write};
use std::path::{Path, PathBuf};

use bytes::Bytes;
use clap::Args;
use http_body_util::BodyExt;
use hyper::body::Incoming;
use mainstay_store::backup::verify;

use crate::client::{self, Call, Client};
use crate::connect::Connect;
use crate::error::Error;

/// Save everything a running server keeps in one file
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  mainstay backup mainstay.backup             while the server runs, at one moment
  mainstay backup - | gpg -e -r ops > backup.gpg

The file holds secrets (the certificate authority's key among them) and is readable by its owner
alone. It restores into any store: see `mainstay restore --help`.")]
pub(crate) struct Backup {
    /// Where to write it; - is the standard output
    #[arg(value_name = "FILE")]
    file: PathBuf,
    #[command(flatten)]
    connect: Connect,
}

impl Backup {
    pub(crate) async fn run(&self) -> Result<u8, Error> {
        let client = self.connect.client()?;
        if self.file.as_os_str() == "-" {
            let out = std::io::stdout();
            if out.is_terminal() {
                return Err(Error::usage("a backup is full of secrets: not shown on a terminal"));
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
        self.copy(client, &shown, part.as_file()).await?;
        part.as_file().sync_all().map_err(failed())?;
        let summary = verify(part.path())?;
        part.persist(path).map_err(|error| failed()(error.error))?;
        let synced = std::fs::File::open(&folder).and_then(|folder| folder.sync_all());
        synced.map_err(failed())?;
        let (objects, revision) = (summary.objects, summary.head.revision);
        anstream::eprintln!("{shown}: {objects} objects at revision {revision}");
        Ok(())
    }

    async fn copy(&self, client: &Client, name: &str, mut out: impl Write) -> Result<(), Error> {
        let failed = || Error::io(format!("cannot write {name}"));
        let mut body = client.stream(&Call::get("/mainstay/v1/backup")).await?;
        while let Some(piece) = self.next(client, &mut body).await? {
            out.write_all(&piece).map_err(failed())?;
        }
        out.flush().map_err(failed())
    }

    /// The next piece, unless the server falls silent.
    async fn next(&self, client: &Client, body: &mut Incoming) -> Result<Option<Bytes>, Error> {
        let timeout = self.connect.request_timeout;
        loop {
            let frame = tokio::time::timeout(timeout, body.frame()).await;
            let frame = frame.map_err(|_| {
                let server = client.server().to_owned();
                client::Error::Timeout { server, timeout }
            })?;
            match frame {
                None => return Ok(None),
                Some(frame) => {
                    if let Ok(data) = frame.map_err(client::Error::Broken)?.into_data() {
                        return Ok(Some(data));
                    }
                }
            }
        }
    }
}
