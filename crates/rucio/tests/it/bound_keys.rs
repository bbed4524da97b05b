//! Tests that storage keys are sent only to the endpoint they are bound to.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpListener;
use std::thread::JoinHandle;

use mainstay_transfers::allowed::Allowed;
use mainstay_transfers::credential::{Credential, Credentials};
use mainstay_transfers::protocol::Protocol;
use mainstay_transfers::store::Access;
use serde_json::json;

/// The keys of an RSE called R, to the server at this port.
fn keys(scheme: &str, port: u16, insecure: bool) -> Credentials {
    let endpoint = Some(format!("{scheme}://127.0.0.1:{port}"));
    let text = |text: &str| Some(text.to_owned());
    let plain = Credential { endpoint, insecure, ..Credential::default() };
    let key = match scheme.starts_with("s3") {
        true => Credential { access_key: text("a"), secret_key: text("hush"), ..plain },
        false => Credential { user: text("me"), password: text("hush"), ..plain },
    };
    Credentials::from([("R".to_owned(), key)])
}

/// Reads a file of R from this port.
fn read(keys: Credentials, scheme: &str, port: u16) -> Result<String, String> {
    let body = json!({"hostname": "127.0.0.1", "port": port, "prefix": "/bucket"});
    let protocol = Protocol::read(scheme, body.as_object().unwrap()).unwrap();
    let access = Access::new(keys, Allowed::anywhere());
    let store = access.open("R", &protocol).map_err(|error| error.to_string())?;
    let (mut file, _) = store.read("file").map_err(|error| error.to_string())?;
    let mut text = String::new();
    file.read_to_string(&mut text).map_err(|error| error.to_string())?;
    Ok(text)
}

fn listen() -> (TcpListener, u16) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    (listener, port)
}

/// Answers one request and returns its head.
fn answering(listener: TcpListener, answer: String) -> JoinHandle<String> {
    std::thread::spawn(move || {
        let (mut stream, _) = listener.accept().unwrap();
        let mut head = String::new();
        let mut lines = BufReader::new(stream.try_clone().unwrap());
        while lines.read_line(&mut head).unwrap() > 2 {}
        stream.write_all(answer.as_bytes()).unwrap();
        head.to_lowercase()
    })
}

/// Whether a client has connected.
fn was_asked(listener: &TcpListener) -> bool {
    listener.set_nonblocking(true).unwrap();
    listener.accept().is_ok()
}

#[test]
fn keys_are_not_sent_to_another_server_named_in_the_catalog() {
    for scheme in ["dav", "s3+http"] {
        let (listener, port) = listen();
        let refused = read(keys(scheme, port - 1, true), scheme, port).unwrap_err();
        let bound = format!("bound to {scheme}://127.0.0.1:{} and is not sent", port - 1);
        assert!(refused.contains(&bound) && !refused.contains("hush"), "{refused}");
        assert!(!was_asked(&listener));
    }
}

#[test]
fn keys_are_sent_unencrypted_only_if_the_operator_allows_it() {
    for (bound, scheme) in [("davs", "dav"), ("dav", "dav"), ("s3", "s3+http")] {
        let (listener, port) = listen();
        let refused = read(keys(bound, port, bound != "dav"), scheme, port).unwrap_err();
        assert!(refused.contains("is not sent"), "{bound} {scheme}: {refused}");
        assert!(!was_asked(&listener));
    }
}

#[test]
fn a_redirect_to_another_server_carries_no_keys() {
    let (door, at) = listen();
    let (pool, elsewhere) = listen();
    let content = "HTTP/1.1 200 OK\r\nContent-Length: 4\r\n\
        Last-Modified: Tue, 15 Nov 1994 12:45:26 GMT\r\nConnection: close\r\n\r\nfile";
    let pool = answering(pool, content.to_owned());
    let redirect = |to: u16| {
        format!(
            "HTTP/1.1 307 Temporary Redirect\r\nLocation: http://127.0.0.1:{to}/x\r\n\
             Content-Length: 0\r\nConnection: close\r\n\r\n"
        )
    };
    let door = answering(door, redirect(elsewhere));
    assert_eq!(read(keys("dav", at, true), "dav", at).unwrap(), "file");
    assert!(door.join().unwrap().contains("authorization: basic "));
    let shown = pool.join().unwrap();
    assert!(shown.contains("get /x") && !shown.contains("authorization"), "{shown}");

    let (door, at) = listen();
    let (pool, elsewhere) = listen();
    let answer = redirect(elsewhere);
    let door = answering(door, answer);
    let refused = read(keys("s3+http", at, true), "s3+http", at).unwrap_err();
    assert!(refused.contains("redirected to another server"), "{refused}");
    assert!(door.join().unwrap().contains("authorization: aws4"));
    assert!(!was_asked(&pool));
}
