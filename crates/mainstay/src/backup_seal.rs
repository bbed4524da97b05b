//! Encrypted backups, in the format of age: with a passphrase, or for the holders of keys.

use std::fs::File;
use std::io::{self, BufRead, BufReader, Read, Write};
use std::path::{Path, PathBuf};

use age::secrecy::SecretString;
use age::{Decryptor, Encryptor, IdentityFile};
use clap::Args;
use mainstay_store::backup::{self, Source};

use crate::error::Error;

/// The first bytes of an encrypted file.
const MARK: &[u8] = b"age-encryption.org/";

/// Flags for encrypting a backup.
#[derive(Debug, Clone, Default, Args)]
pub(crate) struct Seal {
    /// Encrypt with the passphrase in the first line of this file
    #[arg(long, value_name = "FILE", conflicts_with = "recipient")]
    pub(crate) passphrase_file: Option<PathBuf>,
    /// Encrypt for the holder of this age key (age1…); may be given several times
    #[arg(long, value_name = "KEY")]
    recipient: Vec<String>,
}

/// Flags for decrypting a backup.
#[derive(Debug, Clone, Default, Args)]
pub(crate) struct Unseal {
    /// Decrypt with the passphrase in the first line of this file
    #[arg(long, value_name = "FILE", conflicts_with = "identity")]
    passphrase_file: Option<PathBuf>,
    /// Decrypt with the age identities in this file
    #[arg(long, value_name = "FILE")]
    identity: Option<PathBuf>,
}

/// A writer that may encrypt.
pub(crate) enum Sealing<W: Write> {
    Plain(W),
    Sealed(Box<age::stream::StreamWriter<W>>),
}

impl<W: Write> Sealing<W> {
    /// Writes the remaining bytes.
    pub(crate) fn finish(self) -> io::Result<()> {
        match self {
            Self::Plain(mut out) => out.flush(),
            Self::Sealed(out) => out.finish()?.flush(),
        }
    }
}

impl<W: Write> Write for Sealing<W> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        match self {
            Self::Plain(out) => out.write(bytes),
            Self::Sealed(out) => out.write(bytes),
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        match self {
            Self::Plain(out) => out.flush(),
            Self::Sealed(out) => out.flush(),
        }
    }
}

fn passphrase(path: &Path) -> Result<SecretString, Error> {
    let shown = path.display();
    let text = std::fs::read_to_string(path).map_err(|error| {
        Error::usage(format!("--passphrase-file: cannot read {shown}: {error}"))
    })?;
    match text.lines().next() {
        Some(line) if !line.trim().is_empty() => Ok(SecretString::from(line.to_owned())),
        _ => Err(Error::usage(format!("--passphrase-file: the first line of {shown} is empty"))),
    }
}

impl Seal {
    /// Whether anything is encrypted.
    pub(crate) fn is_asked_for(&self) -> bool {
        self.passphrase_file.is_some() || !self.recipient.is_empty()
    }

    /// The way to decrypt with the same flags, if there is one.
    pub(crate) fn opened_with(&self) -> Option<Unseal> {
        self.recipient
            .is_empty()
            .then(|| Unseal { passphrase_file: self.passphrase_file.clone(), identity: None })
    }

    /// A writer to `out`.
    pub(crate) fn wrap<W: Write>(&self, out: W) -> Result<Sealing<W>, Error> {
        if !self.is_asked_for() {
            return Ok(Sealing::Plain(out));
        }
        let encryptor = match &self.passphrase_file {
            Some(file) => Encryptor::with_user_passphrase(passphrase(file)?),
            None => {
                let recipients = self.recipients()?;
                let recipients = recipients.iter().map(|key| key as &dyn age::Recipient);
                Encryptor::with_recipients(recipients)
                    .map_err(|error| Error::usage(format!("--recipient: {error}")))?
            }
        };
        let out = encryptor.wrap_output(out).map_err(Error::io("cannot begin to encrypt"))?;
        Ok(Sealing::Sealed(Box::new(out)))
    }

    fn recipients(&self) -> Result<Vec<age::x25519::Recipient>, Error> {
        let parse = |key: &String| {
            key.parse().map_err(|error| Error::usage(format!("--recipient {key}: {error}")))
        };
        self.recipient.iter().map(parse).collect()
    }
}

impl Unseal {
    pub(crate) fn new(passphrase_file: Option<PathBuf>, identity: Option<PathBuf>) -> Self {
        Self { passphrase_file, identity }
    }

    /// The backup at `path`, whether it is encrypted or not.
    pub(crate) fn source(&self, path: &Path) -> Source {
        let (path, keys) = (path.to_owned(), self.clone());
        Source::new(move || keys.open(&path, File::open(&path)?))
    }

    /// The backup that comes in by the standard input, which can be read once.
    pub(crate) fn input(&self) -> Source {
        let keys = self.clone();
        Source::new(move || keys.open(Path::new("the standard input"), std::io::stdin()))
    }

    fn open(
        &self,
        path: &Path,
        file: impl Read + Send + 'static,
    ) -> Result<Box<dyn BufRead + Send>, backup::Error> {
        let mut file = BufReader::with_capacity(256 << 10, file);
        if !file.fill_buf()?.starts_with(MARK) {
            return Ok(Box::new(file));
        }
        let sealed = |what: String| backup::Error::Sealed(format!("{}: {what}", path.display()));
        let decryptor = Decryptor::new_buffered(file).map_err(|error| sealed(error.to_string()))?;
        let decrypted: Box<dyn Read + Send> = match (&self.passphrase_file, &self.identity) {
            (None, None) => {
                let needed = match decryptor.is_scrypt() {
                    true => "it is encrypted with a passphrase: give --passphrase-file FILE",
                    false => "it is encrypted for an age key: give --identity FILE",
                };
                return Err(sealed(needed.to_owned()));
            }
            (Some(file), _) => {
                let secret = passphrase(file).map_err(|error| sealed(error.to_string()))?;
                let identity = age::scrypt::Identity::new(secret);
                let opened = decryptor.decrypt(std::iter::once(&identity as &dyn age::Identity));
                Box::new(opened.map_err(|error| sealed(error.to_string()))?)
            }
            (None, Some(file)) => {
                let identities = identities(file).map_err(sealed)?;
                let opened = decryptor.decrypt(identities.iter().map(AsRef::as_ref));
                Box::new(opened.map_err(|error| sealed(error.to_string()))?)
            }
        };
        Ok(Box::new(BufReader::with_capacity(256 << 10, decrypted)))
    }
}

fn identities(path: &Path) -> Result<Vec<Box<dyn age::Identity>>, String> {
    let wrong = |error: String| format!("--identity: {}: {error}", path.display());
    let file = File::open(path).map_err(|error| wrong(error.to_string()))?;
    let file = IdentityFile::from_buffer(BufReader::new(file)).map_err(|e| wrong(e.to_string()))?;
    file.into_identities().map_err(|error| wrong(error.to_string()))
}
