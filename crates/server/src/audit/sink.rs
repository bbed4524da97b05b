//! Where lines go: a file that begins anew when it is large or old, stderr, or syslog.
//!
//! Everything here blocks, and runs in the thread of the audit log. A sink that fails keeps nothing:
//! [`Outlet`] keeps the lines it could not hand over and tries again, up to a bound.

use std::collections::VecDeque;
use std::fmt;
use std::fs::{File, OpenOptions, Permissions};
use std::io::{self, BufRead, BufReader, Write};
use std::net::{TcpStream, ToSocketAddrs, UdpSocket};
use std::os::unix::fs::{OpenOptionsExt, PermissionsExt};
use std::os::unix::net::UnixDatagram;
use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::time::Duration;

use jiff::{SignedDuration, Timestamp};

/// How long a connection to syslog may take, and a write to it.
const PATIENCE: Duration = Duration::from_secs(5);

/// How much is kept for a sink that fails, in bytes.
const KEPT: usize = 16 << 20;

/// The facility "log audit" of syslog.
const FACILITY: u8 = 13;

/// Where lines are to go.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Destination {
    /// This file, and numbered ones beside it.
    File(PathBuf),
    /// The error output of the server.
    Stderr,
    /// Syslog, by RFC 5424.
    Syslog(Syslog),
}

/// The way to syslog.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Syslog {
    /// A datagram socket of this machine.
    Unix(PathBuf),
    /// `HOST:PORT`, one datagram a line.
    Udp(String),
    /// `HOST:PORT`, with octet counts (RFC 6587).
    Tcp(String),
}

impl FromStr for Destination {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let (kind, rest) = text.split_once(':').map_or((text, None), |(a, b)| (a, Some(b)));
        let place = |rest: &str| Some(rest.to_owned()).filter(|rest| !rest.is_empty());
        let found = match (kind, rest) {
            ("file", Some(path)) => place(path).map(|path| Self::File(path.into())),
            ("stderr", None) => Some(Self::Stderr),
            ("syslog", None) => Some(Self::Syslog(Syslog::Unix("/dev/log".into()))),
            ("syslog", Some(url)) => match url.split_once("://") {
                Some(("unix", path)) => {
                    place(path).map(|path| Self::Syslog(Syslog::Unix(path.into())))
                }
                Some(("udp", host)) if has_port(host) => {
                    Some(Self::Syslog(Syslog::Udp(host.into())))
                }
                Some(("tcp", host)) if has_port(host) => {
                    Some(Self::Syslog(Syslog::Tcp(host.into())))
                }
                _ => None,
            },
            _ => None,
        };
        found.ok_or_else(|| {
            format!(
                "{text:?} is no sink; give file:PATH, stderr, syslog, syslog:unix:///PATH, \
                 syslog:udp://HOST:PORT or syslog:tcp://HOST:PORT"
            )
        })
    }
}

fn has_port(host: &str) -> bool {
    host.rsplit_once(':')
        .is_some_and(|(name, port)| !name.is_empty() && port.parse::<u16>().is_ok())
}

impl fmt::Display for Destination {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::File(path) => write!(f, "file:{}", path.display()),
            Self::Stderr => f.write_str("stderr"),
            Self::Syslog(Syslog::Unix(path)) => write!(f, "syslog:unix://{}", path.display()),
            Self::Syslog(Syslog::Udp(host)) => write!(f, "syslog:udp://{host}"),
            Self::Syslog(Syslog::Tcp(host)) => write!(f, "syslog:tcp://{host}"),
        }
    }
}

/// When a file begins anew, and what becomes of the older ones.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Rotation {
    pub(crate) size: u64,
    pub(crate) files: usize,
    pub(crate) age: Option<SignedDuration>,
    pub(crate) durable: bool,
}

/// One line, ready to be written.
#[derive(Clone, Debug)]
pub(crate) struct Line {
    pub(crate) time: Timestamp,
    /// Whether somebody should look at it.
    pub(crate) warns: bool,
    /// The JSON, with the end of the line.
    pub(crate) text: Vec<u8>,
}

/// A sink, and what it has not taken yet.
#[derive(Debug)]
pub(crate) struct Outlet {
    pub(crate) destination: Destination,
    sink: Sink,
    waiting: VecDeque<Line>,
    bytes: usize,
}

#[derive(Debug)]
enum Sink {
    File(Log),
    Stderr,
    Syslog(Connection),
}

/// The outcome of handing lines over.
#[derive(Debug)]
pub(crate) struct Handed {
    /// How many lines are lost for good.
    pub(crate) lost: u64,
    /// Why lines are left, if any are.
    pub(crate) failure: Option<io::Error>,
}

impl Outlet {
    /// # Errors
    /// If a file cannot be opened; syslog is connected to when there is something to say.
    pub(crate) fn open(destination: Destination, rotation: Rotation) -> io::Result<Self> {
        let sink = match &destination {
            Destination::File(path) => Sink::File(Log::open(path.clone(), rotation)?),
            Destination::Stderr => Sink::Stderr,
            Destination::Syslog(address) => Sink::Syslog(Connection::new(address.clone())),
        };
        Ok(Self { destination, sink, waiting: VecDeque::new(), bytes: 0 })
    }

    /// Whether lines wait for the sink to work again.
    pub(crate) fn is_behind(&self) -> bool {
        !self.waiting.is_empty()
    }

    /// Hands over the lines that wait, then these. Lines that the sink does not take are kept, the oldest beyond a
    /// bound excepted.
    pub(crate) fn write(&mut self, lines: &[Line]) -> Handed {
        let mut lost = 0;
        let failure = if self.waiting.is_empty() {
            let (taken, unfit, failure) = self.sink.write(lines);
            lost += unfit;
            self.keep(&lines[taken..]);
            failure
        } else {
            self.keep(lines);
            let (taken, unfit, failure) = self.sink.write(self.waiting.make_contiguous());
            lost += unfit;
            let gone = self.waiting.drain(..taken);
            self.bytes -= gone.map(|line| line.text.len()).sum::<usize>();
            failure
        };
        while self.bytes > KEPT {
            let Some(line) = self.waiting.pop_front() else { break };
            self.bytes -= line.text.len();
            lost += 1;
        }
        Handed { lost, failure }
    }

    fn keep(&mut self, lines: &[Line]) {
        self.bytes += lines.iter().map(|line| line.text.len()).sum::<usize>();
        self.waiting.extend(lines.iter().cloned());
    }
}

impl Sink {
    /// Writes lines: how many are dealt with, how many of those the sink can never take, and why it
    /// stopped.
    fn write(&mut self, lines: &[Line]) -> (usize, u64, Option<io::Error>) {
        let whole = |written: io::Result<()>| match written {
            Ok(()) => (lines.len(), 0, None),
            Err(error) => (0, 0, Some(error)),
        };
        match self {
            Self::File(log) => whole(log.write(lines)),
            Self::Stderr => whole(io::stderr().lock().write_all(&joined(lines))),
            Self::Syslog(connection) => connection.write(lines),
        }
    }
}

fn joined(lines: &[Line]) -> Vec<u8> {
    let mut all = Vec::with_capacity(lines.iter().map(|line| line.text.len()).sum());
    for line in lines {
        all.extend_from_slice(&line.text);
    }
    all
}

/// A file that begins anew when it is large or old.
#[derive(Debug)]
struct Log {
    path: PathBuf,
    file: File,
    size: u64,
    begun: Option<Timestamp>,
    rotation: Rotation,
}

impl Log {
    fn open(path: PathBuf, rotation: Rotation) -> io::Result<Self> {
        let file = append_to(&path)?;
        let size = file.metadata()?.len();
        let begun = first_time(&path);
        Ok(Self { path, file, size, begun, rotation })
    }

    /// All lines or none: a batch that is cut short is taken back.
    fn write(&mut self, lines: &[Line]) -> io::Result<()> {
        let Some(now) = lines.last().map(|line| line.time) else { return Ok(()) };
        let all = joined(lines);
        let large = self.size + all.len() as u64 > self.rotation.size;
        let old = match (self.rotation.age, self.begun) {
            (Some(age), Some(begun)) => now.duration_since(begun) > age,
            _ => false,
        };
        if self.size > 0 && (large || old) {
            self.rotate(now)?;
        }
        let written = self.file.write_all(&all).and_then(|()| match self.rotation.durable {
            true => self.file.sync_data(),
            false => Ok(()),
        });
        if let Err(error) = written {
            // Best effort: the reader of a half line sees that it is none.
            drop(self.file.set_len(self.size));
            return Err(error);
        }
        self.size += all.len() as u64;
        self.begun = self.begun.or(Some(now));
        Ok(())
    }

    fn numbered(&self, number: usize) -> PathBuf {
        let mut name = self.path.clone().into_os_string();
        name.push(format!(".{number}"));
        PathBuf::from(name)
    }

    fn rotate(&mut self, now: Timestamp) -> io::Result<()> {
        for number in (1..self.rotation.files).rev() {
            rename_if_there(&self.numbered(number), &self.numbered(number + 1))?;
        }
        if self.rotation.files > 0 {
            rename_if_there(&self.path, &self.numbered(1))?;
        } else {
            std::fs::remove_file(&self.path)?;
        }
        self.file = append_to(&self.path)?;
        (self.size, self.begun) = (0, None);
        self.expire(now);
        Ok(())
    }

    /// Removes older files whose first line is older than all that shall be kept: as many ages as
    /// there are files.
    fn expire(&self, now: Timestamp) {
        let Some(age) = self.rotation.age else { return };
        for number in 1..=self.rotation.files {
            let kept = age * i32::try_from(number).unwrap_or(i32::MAX).saturating_add(1);
            let path = self.numbered(number);
            if first_time(&path).is_some_and(|begun| now.duration_since(begun) > kept) {
                // It is tried again with the next file.
                drop(std::fs::remove_file(path));
            }
        }
    }
}

/// The time of the first line of a file, if it has one.
fn first_time(path: &Path) -> Option<Timestamp> {
    let mut line = String::new();
    BufReader::new(File::open(path).ok()?).read_line(&mut line).ok()?;
    let line: serde_json::Value = serde_json::from_str(&line).ok()?;
    line.get("time")?.as_str()?.parse().ok()
}

fn append_to(path: &Path) -> io::Result<File> {
    let file = OpenOptions::new().create(true).append(true).mode(0o600).open(path)?;
    // One that was there before may have been readable by others.
    if file.metadata()?.is_file() {
        file.set_permissions(Permissions::from_mode(0o600))?;
    }
    Ok(file)
}

fn rename_if_there(from: &Path, to: &Path) -> io::Result<()> {
    match std::fs::rename(from, to) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        other => other,
    }
}

/// A way to syslog that is made when it is needed, and made again when it breaks.
#[derive(Debug)]
struct Connection {
    address: Syslog,
    host: String,
    open: Option<Open>,
}

#[derive(Debug)]
enum Open {
    Unix(UnixDatagram),
    Udp(UdpSocket),
    Tcp(TcpStream),
}

impl Connection {
    fn new(address: Syslog) -> Self {
        let host = std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
        let host: String = host.trim().chars().filter(char::is_ascii_graphic).take(255).collect();
        let host = if host.is_empty() { "-".to_owned() } else { host };
        Self { address, host, open: None }
    }

    fn write(&mut self, lines: &[Line]) -> (usize, u64, Option<io::Error>) {
        let mut unfit = 0;
        for (taken, line) in lines.iter().enumerate() {
            let message = message(line, &self.host);
            match self.send(&message) {
                Ok(()) => {}
                // A datagram has a largest size: waiting does not make this one smaller.
                Err(error) if is_too_long(&error) => unfit += 1,
                Err(error) => {
                    self.open = None;
                    return (taken, unfit, Some(error));
                }
            }
        }
        (lines.len(), unfit, None)
    }

    fn send(&mut self, message: &[u8]) -> io::Result<()> {
        if self.open.is_none() {
            self.open = Some(open(&self.address)?);
        }
        match &mut self.open {
            Some(Open::Unix(socket)) => socket.send(message).map(drop),
            Some(Open::Udp(socket)) => socket.send(message).map(drop),
            Some(Open::Tcp(stream)) => {
                let mut framed = format!("{} ", message.len()).into_bytes();
                framed.extend_from_slice(message);
                stream.write_all(&framed)
            }
            None => Err(io::ErrorKind::NotConnected.into()),
        }
    }
}

fn is_too_long(error: &io::Error) -> bool {
    error.raw_os_error() == Some(rustix::io::Errno::MSGSIZE.raw_os_error())
}

fn open(address: &Syslog) -> io::Result<Open> {
    match address {
        Syslog::Unix(path) => {
            let socket = UnixDatagram::unbound()?;
            socket.connect(path)?;
            socket.set_write_timeout(Some(PATIENCE))?;
            Ok(Open::Unix(socket))
        }
        Syslog::Udp(host) => {
            let to = resolved(host)?;
            let any = if to.is_ipv4() { "0.0.0.0:0" } else { "[::]:0" };
            let socket = UdpSocket::bind(any)?;
            socket.connect(to)?;
            socket.set_write_timeout(Some(PATIENCE))?;
            Ok(Open::Udp(socket))
        }
        Syslog::Tcp(host) => {
            let stream = TcpStream::connect_timeout(&resolved(host)?, PATIENCE)?;
            stream.set_write_timeout(Some(PATIENCE))?;
            Ok(Open::Tcp(stream))
        }
    }
}

fn resolved(host: &str) -> io::Result<std::net::SocketAddr> {
    let none = || io::Error::new(io::ErrorKind::NotFound, format!("{host} has no address"));
    host.to_socket_addrs()?.next().ok_or_else(none)
}

/// A line as RFC 5424 has it.
fn message(line: &Line, host: &str) -> Vec<u8> {
    let severity = if line.warns { 4 } else { 5 };
    let priority = FACILITY * 8 + severity;
    let head = format!("<{priority}>1 {:.3} {host} mainstay - audit - ", line.time);
    let mut message = head.into_bytes();
    message.extend_from_slice(line.text.trim_ascii_end());
    message
}

#[cfg(test)]
mod tests {
    use std::io::Read;

    use super::*;

    const ROTATION: Rotation = Rotation { size: 1 << 20, files: 2, age: None, durable: false };

    fn line(second: i64, text: &str) -> Line {
        let time = Timestamp::from_second(second).unwrap();
        let text = format!("{{\"time\":\"{time}\",\"is\":\"{text}\"}}\n").into_bytes();
        Line { time, warns: false, text }
    }

    fn read(path: &Path) -> String {
        let text = std::fs::read_to_string(path).unwrap_or_default();
        let is = |line: &str| line.split('"').rev().nth(1).unwrap_or_default().to_owned();
        text.lines().map(is).collect::<Vec<_>>().join(" ")
    }

    #[test]
    fn sinks_are_named_as_the_flag_says() {
        for (text, shown) in [
            ("file:/a/b:c", Some("file:/a/b:c")),
            ("stderr", Some("stderr")),
            ("syslog", Some("syslog:unix:///dev/log")),
            ("syslog:unix:///run/log", Some("syslog:unix:///run/log")),
            ("syslog:udp://[::1]:514", Some("syslog:udp://[::1]:514")),
            ("syslog:tcp://logs:601", Some("syslog:tcp://logs:601")),
            ("file:", None),
            ("file", None),
            ("stderr:x", None),
            ("syslog:tcp://logs", None),
            ("syslog:http://logs:1", None),
            ("", None),
        ] {
            let parsed = text.parse::<Destination>();
            assert_eq!(parsed.ok().map(|sink| sink.to_string()).as_deref(), shown, "{text}");
        }
    }

    #[test]
    fn a_log_begins_a_new_file_when_it_is_large() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("audit.log");
        let rotation = Rotation { size: 60, ..ROTATION };
        let mut log = Log::open(path.clone(), rotation).unwrap();
        for text in ["first", "second", "third", "fourth"] {
            log.write(&[line(0, text)]).unwrap();
        }
        assert_eq!(read(&path), "fourth");
        assert_eq!(read(&log.numbered(1)), "third");
        assert_eq!(read(&log.numbered(2)), "second");
        for entry in std::fs::read_dir(dir.path()).unwrap() {
            assert_eq!(entry.unwrap().metadata().unwrap().permissions().mode() & 0o777, 0o600);
        }
        assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 3);
    }

    #[test]
    fn a_log_begins_a_new_file_when_it_is_old_also_after_a_restart() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("audit.log");
        let rotation = Rotation { age: Some(SignedDuration::from_secs(100)), ..ROTATION };
        let mut log = Log::open(path.clone(), rotation).unwrap();
        log.write(&[line(0, "a")]).unwrap();
        log.write(&[line(100, "b")]).unwrap();
        let mut log = Log::open(path.clone(), rotation).unwrap();
        log.write(&[line(101, "c")]).unwrap();
        assert_eq!((read(&path), read(&log.numbered(1))), ("c".into(), "a b".into()));
        log.write(&[line(1000, "d")]).unwrap();
        let (one, two) = (read(&log.numbered(1)), read(&log.numbered(2)));
        assert_eq!((read(&path), one, two), ("d".into(), String::new(), String::new()));
    }

    #[test]
    fn a_sink_that_fails_gets_its_lines_when_it_works_again() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("socket");
        let destination = Destination::Syslog(Syslog::Unix(path.clone()));
        let mut outlet = Outlet::open(destination, ROTATION).unwrap();
        let handed = outlet.write(&[line(0, "a")]);
        assert!(handed.failure.is_some() && handed.lost == 0 && outlet.is_behind());
        let socket = UnixDatagram::bind(&path).unwrap();
        let handed = outlet.write(&[line(1, "b")]);
        assert!(handed.failure.is_none() && !outlet.is_behind());
        let mut text = [0; 1000];
        let mut next = || {
            let length = socket.recv(&mut text).unwrap();
            String::from_utf8_lossy(&text[..length]).into_owned()
        };
        let first = next();
        assert!(first.starts_with("<109>1 1970-01-01T00:00:00.000Z "), "{first}");
        assert!(first.contains(" mainstay - audit - {\"time\"") && first.ends_with("\"a\"}"));
        assert!(next().ends_with("\"b\"}"));
    }

    #[test]
    fn no_more_is_kept_for_a_sink_that_fails_than_the_bound() {
        let destination = Destination::Syslog(Syslog::Unix("/nowhere/at/all".into()));
        let mut outlet = Outlet::open(destination, ROTATION).unwrap();
        let large = line(0, &"x".repeat(1 << 20));
        let lost: u64 = (0..40).map(|_| outlet.write(std::slice::from_ref(&large)).lost).sum();
        assert_eq!(lost + outlet.waiting.len() as u64, 40);
        assert!(outlet.bytes <= KEPT && outlet.waiting.len() == 15);
    }

    #[test]
    fn over_tcp_each_message_says_its_length() {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap().to_string();
        let destination = Destination::Syslog(Syslog::Tcp(address));
        let mut outlet = Outlet::open(destination, ROTATION).unwrap();
        let warning = Line { warns: true, ..line(0, "a") };
        assert!(outlet.write(&[warning, line(1, "b")]).failure.is_none());
        drop(outlet);
        let mut text = String::new();
        listener.accept().unwrap().0.read_to_string(&mut text).unwrap();
        let mut rest = text.as_str();
        for (priority, end) in [("<108>1 ", "\"a\"}"), ("<109>1 ", "\"b\"}")] {
            let (length, message) = rest.split_once(' ').unwrap();
            let (message, after) = message.split_at(length.parse().unwrap());
            assert!(message.starts_with(priority) && message.ends_with(end), "{message}");
            rest = after;
        }
        assert_eq!(rest, "");
    }
}
