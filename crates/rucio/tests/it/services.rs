//! Test fixtures for remote storage: an S3 server in this process, nginx with WebDAV, and a small disk.
//! Each keeps its files in a folder that tests can inspect.

use std::io::{BufRead, BufReader, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use hyper_util::rt::{TokioExecutor, TokioIo};
use s3s::auth::SimpleAuth;
use s3s::service::S3ServiceBuilder;

pub(crate) const ACCESS_KEY: &str = "AKTEST";
pub(crate) const SECRET_KEY: &str = "a-secret-of-s3";
pub(crate) const USER: &str = "mover";
pub(crate) const PASSWORD: &str = "a-word-for-dav";

/// An S3 server with one bucket, `files`.
pub(crate) struct S3 {
    pub(crate) port: u16,
    root: PathBuf,
    _running: tokio::runtime::Runtime,
}

impl S3 {
    pub(crate) fn start(root: &Path) -> Self {
        std::fs::create_dir_all(root.join("files")).unwrap();
        let mut builder = S3ServiceBuilder::new(s3s_fs::FileSystem::new(root).unwrap());
        builder.set_auth(SimpleAuth::from_single(ACCESS_KEY, SECRET_KEY));
        let service = builder.build();
        let mut runtime = tokio::runtime::Builder::new_multi_thread();
        let runtime = runtime.worker_threads(1).enable_all().build().unwrap();
        let listener = runtime.block_on(tokio::net::TcpListener::bind("127.0.0.1:0")).unwrap();
        let port = listener.local_addr().unwrap().port();
        runtime.spawn(async move {
            while let Ok((socket, _)) = listener.accept().await {
                let service = service.clone();
                tokio::spawn(async move {
                    let http = hyper_util::server::conn::auto::Builder::new(TokioExecutor::new());
                    // A client may disconnect at any time.
                    drop(http.serve_connection(TokioIo::new(socket), service).await);
                });
            }
        });
        Self { port, root: root.to_owned(), _running: runtime }
    }

    /// Where the objects of the bucket are.
    pub(crate) fn bucket(&self) -> PathBuf {
        self.root.join("files")
    }
}

/// An nginx that serves a folder by WebDAV, protected by a password.
pub(crate) struct Nginx {
    pub(crate) port: u16,
    root: PathBuf,
    process: Child,
}

impl Nginx {
    /// Serves `root/files`. Returns the reason if nginx cannot be started.
    pub(crate) fn start(root: &Path) -> Result<Self, String> {
        Self::start_with(root, None)
    }

    /// The same, with TLS if the files of a certificate and its key are given.
    pub(crate) fn start_with(root: &Path, secured: Option<(&Path, &Path)>) -> Result<Self, String> {
        for folder in ["files", "body"] {
            std::fs::create_dir_all(root.join(folder)).unwrap();
        }
        std::fs::write(root.join("users"), format!("{USER}:{{PLAIN}}{PASSWORD}\n")).unwrap();
        let free = TcpListener::bind("127.0.0.1:0").unwrap();
        let port = free.local_addr().unwrap().port();
        drop(free);
        let at = root.display();
        let tls = secured.map_or(String::new(), |(certificate, key)| {
            let (certificate, key) = (certificate.display(), key.display());
            format!("ssl_certificate {certificate}; ssl_certificate_key {key};")
        });
        let ssl = if secured.is_some() { " ssl" } else { "" };
        let settings = format!(
            "daemon off; master_process off; pid {at}/pid; error_log {at}/log;
             events {{ worker_connections 64; }}
             http {{ access_log off; client_max_body_size 0; client_body_temp_path {at}/body;
               proxy_temp_path {at}/t1; fastcgi_temp_path {at}/t2; uwsgi_temp_path {at}/t3; scgi_temp_path {at}/t4;
               server {{ listen 127.0.0.1:{port}{ssl}; {tls} root {at}/files;
                 auth_basic files; auth_basic_user_file {at}/users;
                 dav_methods PUT DELETE MKCOL COPY MOVE; }} }}"
        );
        std::fs::write(root.join("nginx.conf"), settings).unwrap();
        let process = Command::new("nginx")
            .arg("-c")
            .arg(root.join("nginx.conf"))
            .arg("-p")
            .arg(root)
            .stdin(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .map_err(|error| format!("nginx cannot be started: {error}"))?;
        let mut nginx = Self { port, root: root.to_owned(), process };
        while TcpStream::connect(SocketAddr::from(([127, 0, 0, 1], port))).is_err() {
            if let Ok(Some(ended)) = nginx.process.try_wait() {
                let log = std::fs::read_to_string(root.join("log")).unwrap_or_default();
                return Err(format!("nginx {ended}: {log}"));
            }
            std::thread::yield_now();
        }
        Ok(nginx)
    }

    /// Where the files are.
    pub(crate) fn files(&self) -> PathBuf {
        self.root.join("files")
    }
}

impl Drop for Nginx {
    fn drop(&mut self) {
        // It may have exited already.
        drop(self.process.kill());
        drop(self.process.wait());
    }
}

/// A read-only WebDAV server in this process. It serves files and, if it `lists`, folders, until the
/// process ends.
pub(crate) struct Dav {
    pub(crate) port: u16,
    /// Where the files are.
    pub(crate) root: PathBuf,
}

impl Dav {
    pub(crate) fn start(root: &Path, lists: bool) -> Self {
        std::fs::create_dir_all(root).unwrap();
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let port = listener.local_addr().unwrap().port();
        let served = root.to_owned();
        std::thread::spawn(move || {
            for socket in listener.incoming() {
                let Ok(mut socket) = socket else { return };
                let (head, body) = answer_dav(&served, lists, &socket);
                // A client may disconnect at any time.
                drop(socket.write_all(head.as_bytes()).and_then(|()| socket.write_all(&body)));
            }
        });
        Self { port, root: root.to_owned() }
    }
}

fn answer_dav(root: &Path, lists: bool, socket: &TcpStream) -> (String, Vec<u8>) {
    let mut lines = BufReader::new(socket).lines().map_while(Result::ok);
    let first = lines.next().unwrap_or_default();
    let head: Vec<String> =
        lines.take_while(|line| !line.is_empty()).map(|line| line.to_ascii_lowercase()).collect();
    let mut words = first.split(' ');
    let (method, path) = (words.next().unwrap_or(""), words.next().unwrap_or("/"));
    let plain = decoded(path.trim_matches('/'));
    let place = root.join(&plain);
    let said = |status: &str, length: usize| {
        format!("HTTP/1.1 {status}\r\nContent-Length: {length}\r\nConnection: close\r\n\r\n")
    };
    let Ok(found) = std::fs::metadata(&place) else {
        return (said("404 Not Found", 0), Vec::new());
    };
    match method {
        "PROPFIND" if lists => {
            let mut told = vec![entry(&format!("/{plain}"), &found)];
            if found.is_dir() && head.contains(&"depth: 1".to_owned()) {
                for one in std::fs::read_dir(&place).unwrap().flatten() {
                    let name = format!("/{plain}/{}", one.file_name().to_str().unwrap());
                    told.push(entry(&name.replace("//", "/"), &one.metadata().unwrap()));
                }
            }
            let body = format!(
                "<?xml version=\"1.0\"?><D:multistatus xmlns:D=\"DAV:\">{}</D:multistatus>",
                told.concat()
            );
            (said("207 Multi-Status", body.len()), body.into_bytes())
        }
        "HEAD" if found.is_file() => (said("200 OK", found.len() as usize), Vec::new()),
        "GET" if found.is_file() => {
            let body = std::fs::read(&place).unwrap();
            (said("200 OK", body.len()), body)
        }
        "GET" | "HEAD" => (said("403 Forbidden", 0), Vec::new()),
        _ => (said("405 Method Not Allowed", 0), Vec::new()),
    }
}

fn entry(path: &str, found: &std::fs::Metadata) -> String {
    let encoded: String = path
        .bytes()
        .map(|byte| match byte {
            b'/' | b'.' | b'-' | b'_' | b'0'..=b'9' | b'A'..=b'Z' | b'a'..=b'z' => {
                char::from(byte).to_string()
            }
            byte => format!("%{byte:02X}"),
        })
        .collect();
    let (slash, kind) = if found.is_dir() { ("/", "<D:collection/>") } else { ("", "") };
    let changed = "Mon, 02 Nov 2026 10:00:00 GMT";
    let encoded = encoded.trim_end_matches('/');
    format!(
        "<D:response><D:href>{encoded}{slash}</D:href><D:propstat><D:prop><D:getlastmodified>{changed}</D:getlastmodified>\
         <D:getcontentlength>{}</D:getcontentlength><D:resourcetype>{kind}</D:resourcetype></D:prop>\
         <D:status>HTTP/1.1 200 OK</D:status></D:propstat></D:response>",
        found.len()
    )
}

fn decoded(path: &str) -> String {
    let mut bytes = Vec::new();
    let mut rest = path.as_bytes();
    while let Some((first, more)) = rest.split_first() {
        let code = std::str::from_utf8(more.get(..2).unwrap_or_default()).unwrap_or_default();
        match (first, u8::from_str_radix(code, 16)) {
            (b'%', Ok(byte)) => {
                bytes.push(byte);
                rest = &more[2..];
            }
            _ => {
                bytes.push(*first);
                rest = more;
            }
        }
    }
    String::from_utf8(bytes).unwrap()
}

/// A small file system in memory, unmounted when dropped.
pub(crate) struct SmallDisk {
    pub(crate) path: PathBuf,
}

impl SmallDisk {
    /// Mounts one of this size; none without the permission to mount.
    pub(crate) fn mount(path: &Path, bytes: u64) -> Option<Self> {
        let status = Command::new("mount")
            .args(["-t", "tmpfs", "-o", &format!("size={bytes}"), "mainstay-test"])
            .arg(path)
            .status();
        status.ok()?.success().then(|| Self { path: path.to_owned() })
    }

    /// Makes it larger.
    pub(crate) fn grow(&self, bytes: u64) {
        let options = format!("remount,size={bytes}");
        let status = Command::new("mount").args(["-o", &options]).arg(&self.path).status();
        assert!(status.unwrap().success());
    }
}

impl Drop for SmallDisk {
    fn drop(&mut self) {
        // Lazily: a server that is being killed may still have files open.
        drop(Command::new("umount").arg("-l").arg(&self.path).status());
    }
}
