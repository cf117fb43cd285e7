//! [`Browser`]: a page in a Chromium of its own, driven by its DevTools protocol. What the page says on its console, what
//! goes wrong in it, and every address that it asks for are kept.

use std::collections::VecDeque;
use std::fmt::Display;
use std::net::TcpStream;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;
use std::process::{Command, Stdio};
use std::thread::sleep;
use std::time::{Duration, Instant};

use data_encoding::BASE64;
use serde_json::{Value, json};
use tungstenite::{Message, WebSocket};

use crate::common::{Folder, Program, Running};

/// Far longer than anything takes: a test that fails must not hang.
const PATIENCE: Duration = Duration::from_secs(120);

const OPTIONS: &str = "--headless=new --no-sandbox --disable-gpu --disable-dev-shm-usage --disable-extensions \
    --disable-background-networking --disable-component-update --no-first-run --force-color-profile=srgb --hide-scrollbars \
    --remote-debugging-port=0";

/// How often a browser is started until it listens.
const STARTS: usize = 3;

/// The browser with its one page; killed when it is dropped.
pub struct Browser {
    socket: WebSocket<TcpStream>,
    session: String,
    calls: u64,
    loads: usize,
    /// Warnings, errors, exceptions and dialogs of the pages.
    complaints: Vec<String>,
    /// Addresses that the pages asked for.
    requests: VecDeque<String>,
    // Dropped last, and in this order.
    _program: Running,
    _profile: Folder,
}

impl Browser {
    /// Starts the browser with a blank page of 1280 by 900 pixels in a light theme.
    pub fn start() -> Self {
        let program = std::env::var("CHROMIUM").unwrap_or_else(|_| "chromium".into());
        let is_there = Command::new("sh")
            .args(["-c", "command -v \"$0\"", &program])
            .stdout(Stdio::null())
            .status();
        assert!(
            is_there.unwrap().success(),
            "there is no browser `{program}`: install the package `chromium`, or name a Chromium in the variable CHROMIUM"
        );
        let start = || {
            let profile = Folder::new();
            let line = format!("exec \"$CHROMIUM\" {OPTIONS} --user-data-dir=profile about:blank");
            let running = Program::shell(&profile.path(""), &line)
                .env("PATH", &std::env::var("PATH").unwrap_or_default())
                .env("CHROMIUM", &program)
                .start();
            let line = running.until_it_says("DevTools listening on ");
            (profile, running, line)
        };
        // Now and then Chromium crashes while it starts, if several start at once.
        let started = (1..STARTS).find_map(|_| catch_unwind(AssertUnwindSafe(start)).ok());
        let (profile, running, line) = started.unwrap_or_else(start);
        let address = line.rsplit(' ').next().unwrap().trim();
        let host = address.split('/').nth(2).unwrap();
        let stream = TcpStream::connect(host).unwrap();
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        let (socket, _) = tungstenite::client(address, stream).unwrap();
        let mut browser = Self {
            socket,
            session: String::new(),
            calls: 0,
            loads: 0,
            complaints: Vec::new(),
            requests: VecDeque::new(),
            _program: running,
            _profile: profile,
        };
        let target = browser.call("Target.createTarget", json!({"url": "about:blank"}));
        let target = json!({"targetId": target["targetId"], "flatten": true});
        let session = browser.call("Target.attachToTarget", target);
        browser.session = session["sessionId"].as_str().unwrap().to_owned();
        for domain in ["Page", "Runtime", "Log", "Network"] {
            browser.call(&format!("{domain}.enable"), json!({}));
        }
        browser.look(1280, 900, "light");
        // Only then the next load is that of a page.
        browser.until("document.readyState === 'complete'");
        browser
    }

    /// Sends a command and gives its result.
    #[track_caller]
    fn call(&mut self, method: &str, parameters: Value) -> Value {
        self.calls += 1;
        let id = self.calls;
        let mut command = json!({"id": id, "method": method, "params": parameters});
        if !self.session.is_empty() {
            command["sessionId"] = json!(self.session);
        }
        self.socket
            .send(Message::text(command.to_string()))
            .unwrap();
        loop {
            let mut message = self.hear();
            if message["id"] == id {
                assert!(message["error"].is_null(), "{method}: {}", message["error"]);
                return message["result"].take();
            }
        }
    }

    /// Waits for the next message, and keeps what it tells of the page.
    fn hear(&mut self) -> Value {
        let message = self.socket.read().expect("the browser says nothing");
        let message: Value = serde_json::from_str(message.to_text().unwrap()).unwrap();
        let told = &message["params"];
        match message["method"].as_str().unwrap_or_default() {
            "Page.loadEventFired" => self.loads += 1,
            "Network.requestWillBeSent" => {
                let url = told["request"]["url"].as_str().unwrap();
                self.requests.push_back(url.to_owned());
            }
            "Runtime.consoleAPICalled" if told["type"] == "error" || told["type"] == "warning" => {
                self.complaints.push(told["args"].to_string());
            }
            "Log.entryAdded"
                if told["entry"]["level"] == "error" || told["entry"]["level"] == "warning" =>
            {
                self.complaints.push(told["entry"].to_string());
            }
            "Runtime.exceptionThrown" | "Page.javascriptDialogOpening" => {
                self.complaints.push(told.to_string());
            }
            _ => {}
        }
        message
    }

    #[track_caller]
    fn loading(&mut self, begin: impl FnOnce(&mut Self)) {
        let before = self.loads;
        begin(self);
        while self.loads == before {
            self.hear();
        }
    }

    /// Opens an address and waits until the page is there.
    #[track_caller]
    pub fn open(&mut self, address: impl Display) {
        let address = address.to_string();
        self.loading(|browser| {
            let opened = browser.call("Page.navigate", json!({"url": address}));
            assert!(opened["errorText"].is_null(), "{address}: {opened}");
        });
    }

    /// Clicks on the first element of a selector, which leads to another page, and waits for that.
    #[track_caller]
    pub fn follow(&mut self, selector: &str) {
        self.loading(|browser| browser.click(selector));
    }

    /// Clicks on the first element of a selector.
    #[track_caller]
    pub fn click(&mut self, selector: &str) {
        let place = format!(
            "(() => {{ const e = document.querySelector({selector:?}); e.scrollIntoView({{block: 'center'}});
             const r = e.getClientRects()[0]; return [r.x + r.width / 2, r.y + r.height / 2]; }})()"
        );
        let place = self.ask(&place);
        for kind in ["mousePressed", "mouseReleased"] {
            let event = json!({"type": kind, "x": place[0], "y": place[1], "button": "left", "clickCount": 1});
            self.call("Input.dispatchMouseEvent", event);
        }
    }

    /// Presses a key that leads to another page, and waits for that.
    #[track_caller]
    pub fn follow_key(&mut self, key: &str) {
        self.loading(|browser| browser.press(key));
    }

    /// Presses a key, such as `n` or `Enter`.
    #[track_caller]
    pub fn press(&mut self, key: &str) {
        let text = if key == "Enter" { "\r" } else { key };
        let code = if key == "Enter" { 13 } else { 0 };
        let event =
            json!({"type": "keyDown", "key": key, "text": text, "windowsVirtualKeyCode": code});
        self.call("Input.dispatchKeyEvent", event);
        self.call(
            "Input.dispatchKeyEvent",
            json!({"type": "keyUp", "key": key}),
        );
    }

    /// Types a text where the focus is.
    pub fn write(&mut self, text: &str) {
        self.call("Input.insertText", json!({"text": text}));
    }

    /// Gives the value of an expression in the page, or of its promise.
    #[track_caller]
    pub fn ask(&mut self, expression: &str) -> Value {
        let question =
            json!({"expression": expression, "returnByValue": true, "awaitPromise": true});
        let mut answer = self.call("Runtime.evaluate", question);
        let failed = &answer["exceptionDetails"];
        assert!(failed.is_null(), "{expression}: {failed}");
        answer["result"]["value"].take()
    }

    /// The text of all elements of a selector, as it is shown.
    #[track_caller]
    pub fn texts(&mut self, selector: &str) -> Vec<String> {
        let all = format!(
            "[...document.querySelectorAll({selector:?})].map(e => e.innerText ?? e.textContent)"
        );
        serde_json::from_value(self.ask(&all)).unwrap()
    }

    /// The text of the whole page.
    #[track_caller]
    pub fn text(&mut self) -> String {
        self.texts("body").concat()
    }

    /// Waits until an expression is true.
    #[track_caller]
    pub fn until(&mut self, condition: &str) {
        let deadline = Instant::now() + PATIENCE;
        while self.ask(condition) != true {
            assert!(
                Instant::now() < deadline,
                "never {condition}, but:\n{}",
                self.text()
            );
            // Only spares the processor; nothing depends on it.
            sleep(Duration::from_millis(20));
        }
    }

    /// Sets the size of the window, and the theme: `light` or `dark`.
    pub fn look(&mut self, width: u32, height: u32, theme: &str) {
        let size =
            json!({"width": width, "height": height, "deviceScaleFactor": 1, "mobile": false});
        self.call("Emulation.setDeviceMetricsOverride", size);
        let theme = json!({"features": [{"name": "prefers-color-scheme", "value": theme}]});
        self.call("Emulation.setEmulatedMedia", theme);
    }

    /// Forbids or allows the scripts of the pages that are opened from now on.
    pub fn allow_scripts(&mut self, allowed: bool) {
        self.call(
            "Emulation.setScriptExecutionDisabled",
            json!({"value": !allowed}),
        );
    }

    /// Cuts the connection to every network.
    pub fn go_offline(&mut self) {
        let conditions = json!({"offline": true, "latency": 0, "downloadThroughput": -1, "uploadThroughput": -1});
        self.call("Network.emulateNetworkConditions", conditions);
    }

    /// Writes what the window shows to a PNG file.
    pub fn screenshot(&mut self, path: &Path) {
        let shot = self.call(
            "Page.captureScreenshot",
            json!({"format": "png", "optimizeForSpeed": false}),
        );
        std::fs::write(
            path,
            BASE64
                .decode(shot["data"].as_str().unwrap().as_bytes())
                .unwrap(),
        )
        .unwrap();
    }

    /// The addresses that were asked for since the last time.
    pub fn requests(&mut self) -> Vec<String> {
        // What was sent before this question has been told before its answer.
        self.ask("0");
        self.requests.drain(..).collect()
    }

    /// Nothing was said on the console, nothing failed, no dialog came up, and nothing was asked for but of `origin`.
    #[track_caller]
    pub fn is_clean(&mut self, origin: &str) {
        let is_foreign = |url: &String| !url.starts_with(origin) && !url.starts_with("data:");
        let foreign: Vec<String> = self.requests().into_iter().filter(is_foreign).collect();
        assert!(foreign.is_empty(), "it asked for {foreign:?}");
        assert!(self.complaints.is_empty(), "{:#?}", self.complaints);
    }
}
