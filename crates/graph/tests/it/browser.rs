//! A Chromium without a window, driven over the DevTools protocol.
//!
//! The browser reads commands from its descriptor 3 and answers on descriptor 4; named pipes connect
//! them, so that neither a web socket nor a port is needed.

use std::fs::{File, OpenOptions};
use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{Receiver, sync_channel};
use std::time::Duration;

use serde_json::{Value as Json, json};

const DEADLINE: Duration = Duration::from_secs(60);

pub(crate) struct Browser {
    child: Child,
    commands: File,
    messages: Receiver<Json>,
    last: u64,
    session: Option<String>,
    /// Errors on the console: exceptions, and everything that the page's policy refused.
    pub(crate) complaints: Vec<String>,
    _folder: tempfile::TempDir,
}

/// The name of the browser on this machine.
fn program() -> Option<&'static str> {
    let works = |name: &&str| {
        let mut command = Command::new(name);
        let silent = command.arg("--version").stdout(Stdio::null()).stderr(Stdio::null());
        silent.status().is_ok_and(|status| status.success())
    };
    ["chromium", "chromium-browser", "google-chrome"].into_iter().find(works)
}

impl Browser {
    /// Starts a browser, if this machine has one.
    pub(crate) fn start() -> Option<Self> {
        let Some(program) = program() else {
            eprintln!("!!! NOT TESTED: the picture in a browser: there is no chromium !!!");
            let everything = std::env::var("CI").is_ok_and(|value| value == "true");
            assert!(!everything, "CI must test everything, but there is no chromium");
            return None;
        };
        let folder = tempfile::tempdir().unwrap();
        let [commands, answers] = ["commands", "answers"].map(|name| {
            let path = folder.path().join(name);
            assert!(Command::new("mkfifo").arg(&path).status().unwrap().success());
            path
        });
        let child = Command::new("sh")
            .args(["-c", r#"exec "$0" "$@" 3<"$COMMANDS" 4>"$ANSWERS""#, program])
            .args(["--headless=new", "--no-sandbox", "--disable-gpu", "--remote-debugging-pipe"])
            .args(["--no-first-run", "--disable-dev-shm-usage", "--disable-background-networking"])
            .args(["--disable-extensions", "--window-size=1400,900"])
            .arg(format!("--user-data-dir={}", folder.path().join("profile").display()))
            .env("COMMANDS", &commands)
            .env("ANSWERS", &answers)
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        let commands = OpenOptions::new().write(true).open(&commands).unwrap();
        let messages = read(&answers);
        let (session, complaints) = (None, Vec::new());
        Some(Self { child, commands, messages, last: 0, session, complaints, _folder: folder })
    }

    /// Sends a command and waits for its answer; events are looked through meanwhile.
    fn call(&mut self, method: &str, params: Json) -> Json {
        self.last += 1;
        let mut command = json!({"id": self.last, "method": method, "params": params});
        if let Some(session) = &self.session {
            command["sessionId"] = json!(session);
        }
        self.commands.write_all(format!("{command}\0").as_bytes()).unwrap();
        loop {
            let message = self.messages.recv_timeout(DEADLINE).expect("the browser answers");
            if message["id"] == self.last {
                assert!(message["error"].is_null(), "{method}: {}", message["error"]);
                return message["result"].clone();
            }
            let error = message["params"]["entry"]["level"] == "error";
            if message["method"] == "Runtime.exceptionThrown" || error {
                self.complaints.push(message["params"].to_string());
            }
        }
    }

    /// Opens a page and waits until its script has run.
    pub(crate) fn open(&mut self, url: &str) {
        let target = self.call("Target.createTarget", json!({"url": "about:blank"}));
        let arguments = json!({"targetId": target["targetId"], "flatten": true});
        let attached = self.call("Target.attachToTarget", arguments);
        self.session = attached["sessionId"].as_str().map(str::to_owned);
        for domain in ["Page.enable", "Runtime.enable", "Log.enable"] {
            self.call(domain, json!({}));
        }
        self.call("Page.navigate", json!({"url": url}));
        self.until("document.body && document.body.dataset.loads === '1'");
    }

    /// The value of an expression in the page.
    pub(crate) fn eval(&mut self, expression: &str) -> Json {
        let arguments =
            json!({"expression": expression, "returnByValue": true, "awaitPromise": true});
        let result = self.call("Runtime.evaluate", arguments);
        assert!(result["exceptionDetails"].is_null(), "{expression}: {result}");
        result["result"]["value"].clone()
    }

    /// Waits until an expression holds in the page.
    pub(crate) fn until(&mut self, expression: &str) {
        // A page that is being replaced takes the waiting along: ask again.
        for _ in 0..600 {
            let waited = format!(
                "new Promise((done) => {{ let left = 50; const look = () => \
                 (({expression}) || --left === 0) ? done(left > 0) : setTimeout(look, 20); look(); }})"
            );
            let arguments =
                json!({"expression": waited, "returnByValue": true, "awaitPromise": true});
            if self.call("Runtime.evaluate", arguments)["result"]["value"] == true {
                return;
            }
        }
        panic!("never true: {expression}; complaints: {:?}", self.complaints);
    }

    /// Clicks into the middle of the first element that matches.
    pub(crate) fn click(&mut self, selector: &str) {
        let (x, y) = self.middle(selector);
        for kind in ["mouseMoved", "mousePressed", "mouseReleased"] {
            let button = if kind == "mouseMoved" { "none" } else { "left" };
            let pressed = u8::from(kind == "mousePressed");
            self.call(
                "Input.dispatchMouseEvent",
                json!({"type": kind, "x": x, "y": y, "button": button, "buttons": pressed, "clickCount": 1}),
            );
        }
    }

    /// Moves the pointer over the first element that matches.
    pub(crate) fn hover(&mut self, selector: &str) {
        let (x, y) = self.middle(selector);
        self.call("Input.dispatchMouseEvent", json!({"type": "mouseMoved", "x": x, "y": y}));
    }

    fn middle(&mut self, selector: &str) -> (f64, f64) {
        let found = self.eval(&format!(
            "(() => {{ const box = document.querySelector({}).getBoundingClientRect(); \
             return [box.x + box.width / 2, box.y + box.height / 2]; }})()",
            json!(selector)
        ));
        (found[0].as_f64().unwrap(), found[1].as_f64().unwrap())
    }

    /// Presses a key, as `Enter` or `/`.
    pub(crate) fn press(&mut self, key: &str) {
        let text = match key {
            "Enter" => "\r",
            one if one.len() == 1 => one,
            _ => "",
        };
        let code = match key {
            "Enter" => 13,
            "Escape" => 27,
            "ArrowLeft" => 37,
            "ArrowUp" => 38,
            "ArrowRight" => 39,
            "ArrowDown" => 40,
            _ => 0,
        };
        for kind in ["keyDown", "keyUp"] {
            let mut event = json!({"type": kind, "key": key, "windowsVirtualKeyCode": code});
            if kind == "keyDown" && !text.is_empty() {
                event["text"] = json!(text);
            }
            self.call("Input.dispatchKeyEvent", event);
        }
    }

    pub(crate) fn write(&mut self, text: &str) {
        self.call("Input.insertText", json!({"text": text}));
    }
}

impl Drop for Browser {
    fn drop(&mut self) {
        self.session = None;
        let close = json!({"id": self.last + 1, "method": "Browser.close"});
        let _ = self.commands.write_all(format!("{close}\0").as_bytes());
        // Its pipe ends with it.
        while self.messages.recv_timeout(Duration::from_secs(10)).is_ok() {}
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Reads messages in a thread of its own.
fn read(path: &Path) -> Receiver<Json> {
    let (send, messages) = sync_channel(1024);
    let file = File::open(path).unwrap();
    std::thread::spawn(move || {
        let mut reader = BufReader::new(file);
        let mut text = Vec::new();
        while reader.read_until(0, &mut text).is_ok_and(|length| length > 0) {
            text.pop();
            let message = serde_json::from_slice(&text).unwrap_or(Json::Null);
            text.clear();
            if send.send(message).is_err() {
                return;
            }
        }
    });
    messages
}
