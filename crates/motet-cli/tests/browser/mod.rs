//! A headless Chromium, driven by the Chrome DevTools Protocol over a pipe.
#![allow(dead_code)] // each test file uses its own part

use std::collections::VecDeque;
use std::fs::File;
use std::io::{BufRead, BufReader, Write};
use std::os::fd::AsRawFd;
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::time::{Duration, Instant};

use serde_json::{Value, json};

/// Nothing takes so long.
const LIMIT: Duration = Duration::from_secs(60);

/// A browser with one page.
pub struct Browser {
    child: Child,
    to: File,
    from: Receiver<Value>,
    session: String,
    next: u64,
    /// What the page has complained about: exceptions, violations of its policy, errors on the console.
    complaints: VecDeque<String>,
    _profile: tempfile::TempDir,
}

impl Browser {
    /// Starts a browser; `None` if there is none.
    pub fn start() -> Option<Self> {
        Command::new("chromium").arg("--version").output().ok()?;
        let profile = tempfile::tempdir().unwrap();
        // The browser reads descriptor 3 and writes descriptor 4.
        let (for_browser, to) = rustix::pipe::pipe().unwrap();
        let (from, of_browser) = rustix::pipe::pipe().unwrap();
        for own in [&to, &from] {
            rustix::io::fcntl_setfd(own, rustix::io::FdFlags::CLOEXEC).unwrap();
        }
        let script = format!("exec \"$@\" 3<&{} 4>&{}", for_browser.as_raw_fd(), of_browser.as_raw_fd());
        let child = Command::new("bash") // sh knows descriptors of one digit only
            .args(["-c", &script, "bash", "chromium", "--headless=new", "--remote-debugging-pipe", "--no-sandbox"])
            .args(["--no-first-run", "--disable-gpu", "--disable-dev-shm-usage", "--mute-audio", "--hide-scrollbars"])
            .args(["--disable-background-networking", "--disable-component-update", "--disable-sync", "about:blank"])
            .arg(format!("--user-data-dir={}", profile.path().display()))
            .env("HOME", profile.path())
            .env_remove("LD_PRELOAD")
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        drop((for_browser, of_browser));
        let (sender, receiver) = channel();
        std::thread::spawn(move || {
            for message in BufReader::new(File::from(from)).split(0) {
                let Ok(message) = message else { return };
                if sender.send(serde_json::from_slice(&message).unwrap()).is_err() {
                    return;
                }
            }
        });
        let (complaints, session) = (VecDeque::new(), String::new());
        let to = File::from(to);
        let mut browser = Self { child, to, from: receiver, session, next: 0, complaints, _profile: profile };
        let targets = browser.call("Target.getTargets", json!({}));
        let pages = targets["targetInfos"].as_array().unwrap();
        let page = pages.iter().find(|target| target["type"] == "page").unwrap()["targetId"].clone();
        let attached = browser.call("Target.attachToTarget", json!({ "targetId": page, "flatten": true }));
        browser.session = attached["sessionId"].as_str().unwrap().to_owned();
        for domain in ["Page", "Runtime", "Log", "Network"] {
            browser.call(&format!("{domain}.enable"), json!({}));
        }
        Some(browser)
    }

    /// Calls a method of the protocol.
    pub fn call(&mut self, method: &str, parameters: Value) -> Value {
        self.next += 1;
        let mut message = json!({ "id": self.next, "method": method, "params": parameters });
        if !self.session.is_empty() {
            message["sessionId"] = self.session.clone().into();
        }
        self.to.write_all(message.to_string().as_bytes()).unwrap();
        self.to.write_all(&[0]).unwrap();
        loop {
            let answer = self.from.recv_timeout(LIMIT).expect("the browser answers");
            if answer["id"] == self.next {
                assert!(answer["error"].is_null(), "{method}: {}", answer["error"]);
                return answer["result"].clone();
            }
            self.note(&answer);
        }
    }

    fn note(&mut self, event: &Value) {
        let parameters = &event["params"];
        match event["method"].as_str() {
            Some("Runtime.exceptionThrown") => self.complaints.push_back(parameters["exceptionDetails"].to_string()),
            Some("Log.entryAdded") if parameters["entry"]["level"] == "error" => {
                self.complaints.push_back(parameters["entry"].to_string());
            }
            _ => {}
        }
    }

    /// What the page has complained about since the last call.
    pub fn complaints(&mut self) -> Vec<String> {
        self.value("0"); // whatever was said before this answer has come
        self.complaints.drain(..).collect()
    }

    /// Sets the size of the window and the colours that the user prefers.
    pub fn shape(&mut self, width: u32, height: u32, scheme: &str, mobile: bool) {
        let scale = if mobile { 2 } else { 1 };
        let metrics = json!({ "width": width, "height": height, "deviceScaleFactor": scale, "mobile": mobile });
        self.call("Emulation.setDeviceMetricsOverride", metrics);
        let features = json!([{ "name": "prefers-color-scheme", "value": scheme }]);
        self.call("Emulation.setEmulatedMedia", json!({ "features": features }));
    }

    /// Opens an address. A page that differs in the fragment only is loaded as well.
    pub fn open(&mut self, address: &str) {
        self.call("Page.navigate", json!({ "url": "about:blank" }));
        self.call("Page.navigate", json!({ "url": address }));
    }

    /// The value of an expression in the page.
    pub fn value(&mut self, expression: &str) -> Value {
        let parameters = json!({ "expression": expression, "returnByValue": true, "awaitPromise": true });
        let result = self.call("Runtime.evaluate", parameters);
        assert!(result["exceptionDetails"].is_null(), "{expression}: {}", result["exceptionDetails"]);
        result["result"]["value"].clone()
    }

    /// The text of the first element that a selector finds.
    pub fn text(&mut self, selector: &str) -> String {
        let expression = format!("(document.querySelector({selector:?})?.innerText ?? '')");
        self.value(&expression).as_str().unwrap_or_default().to_owned()
    }

    /// Waits until an expression in the page is true.
    #[track_caller]
    pub fn until(&mut self, expression: &str) {
        let began = Instant::now();
        let tried = format!("(() => {{ try {{ return {expression} }} catch {{ return false }} }})()"); // the page is being loaded
        while self.value(&tried) != json!(true) {
            if began.elapsed() > LIMIT {
                let page = self.value("document.body.innerText");
                panic!("never true: {expression}\n{page}\n{:?}", self.complaints);
            }
            std::thread::sleep(Duration::from_millis(20));
        }
    }

    /// Presses a key, as a user does.
    pub fn press(&mut self, key: &str) {
        for kind in ["rawKeyDown", "keyUp"] {
            let code = match key {
                "Tab" => 9,
                "Enter" => 13,
                "Escape" => 27,
                _ => 0,
            };
            let event = json!({ "type": kind, "key": key, "windowsVirtualKeyCode": code });
            self.call("Input.dispatchKeyEvent", event);
            if key == "Enter" && kind == "rawKeyDown" {
                self.call("Input.dispatchKeyEvent", json!({ "type": "char", "key": key, "text": "\r" }));
            }
        }
    }

    /// Types text.
    pub fn type_text(&mut self, text: &str) {
        self.call("Input.insertText", json!({ "text": text }));
    }

    /// A picture of the page, PNG.
    pub fn picture(&mut self) -> Vec<u8> {
        let picture = self.call("Page.captureScreenshot", json!({ "format": "png" }));
        let text = picture["data"].as_str().unwrap();
        decode_base64(text)
    }
}

impl Drop for Browser {
    fn drop(&mut self) {
        // Its own processes end with it, before the profile is removed.
        let _ = self.to.write_all(b"{\"id\":0,\"method\":\"Browser.close\"}\0");
        let began = Instant::now();
        while began.elapsed() < LIMIT && matches!(self.child.try_wait(), Ok(None)) {
            std::thread::sleep(Duration::from_millis(10));
        }
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn decode_base64(text: &str) -> Vec<u8> {
    const DIGITS: &[u8] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    let digits = text.bytes().filter_map(|byte| DIGITS.iter().position(|digit| *digit == byte));
    let digits: Vec<u32> = digits.map(|digit| digit as u32).collect();
    let whole = |part: &[u32]| {
        let bits = (0..4).fold(0, |bits, at| bits << 6 | part.get(at).copied().unwrap_or(0));
        bits.to_be_bytes()[1..part.len()].to_vec()
    };
    digits.chunks(4).flat_map(whole).collect()
}
