//! The page's server, as browsers and strangers see it.

#![allow(clippy::unwrap_used, clippy::expect_used)]

mod common;

use common::{Server, command, one_process, two_processes};
use memscope_ledger::event::{Body, Finding};
use memscope_rpc::fake;
use memscope_tests::limits::{Met, constant};
use memscope_tests::{Page, read};
use serde_json::{Value, json};
use std::io::{Read as _, Write as _};
use std::time::Duration;

fn page(server: &Server) -> Page {
    Page::start(command(&server.socket(), &["ui", "--no-open"]))
}

#[test]
fn the_address_lets_in_one_browser() {
    let server = Server::start(one_process());
    let page = Page::outside(command(&server.socket(), &["ui", "--no-open"]));
    assert!(
        page.address.starts_with("http://127.0.0.1:"),
        "{}",
        page.address
    );
    let token = page.address.split_once("token=").unwrap().1;
    assert!(token.len() >= 32, "{token}");
    for path in [
        "/",
        "/app.js",
        "/api/about",
        "/?token=",
        "/?token=0000",
        "/nothing",
    ] {
        let refused = page.get(path);
        assert_eq!(refused.status, 403, "{path}");
        assert!(
            refused.text().contains("memscope-ctl ui anew"),
            "{refused:?}"
        );
    }
    let entered = page.get(&page.path());
    assert_eq!(entered.status, 303);
    assert_eq!(entered.header("location"), Some("/"));
    let cookie = entered.header("set-cookie").unwrap();
    for part in [
        "HttpOnly",
        "SameSite=Strict",
        "Path=/",
        &page.port.to_string(),
    ] {
        assert!(cookie.contains(part), "{cookie}");
    }
    assert!(!format!("{entered:?}").contains(token));
    assert_eq!(page.get(&page.path()).status, 403, "it was used");
    let pair = cookie.split(';').next().unwrap();
    let mine = [("Cookie", pair)];
    assert_eq!(page.send("GET", "/", &mine, b"").status, 200);
    let other = [("Cookie", &pair[..pair.len() - 1])];
    assert_eq!(page.send("GET", "/", &other, b"").status, 403);
}

#[test]
fn files_come_with_strict_headers_and_once() {
    let server = Server::start(one_process());
    let page = page(&server);
    for (path, kind) in [
        ("/", "text/html"),
        ("/app.js", "text/javascript"),
        ("/app.css", "text/css"),
        ("/favicon.svg", "image/svg+xml"),
    ] {
        let file = page.get(path);
        assert_eq!(file.status, 200, "{path}");
        assert!(file.header("content-type").unwrap().starts_with(kind));
        assert_eq!(file.header("cache-control"), Some("no-cache"));
        assert_eq!(file.header("x-content-type-options"), Some("nosniff"));
        assert_eq!(file.header("referrer-policy"), Some("no-referrer"));
        for name in ["cross-origin-opener-policy", "cross-origin-resource-policy"] {
            assert_eq!(file.header(name), Some("same-origin"));
        }
        let policy = file.header("content-security-policy").unwrap();
        assert_eq!(
            policy,
            "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src 'self' data:; \
             base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
        );
        let tag = file.header("etag").unwrap();
        let again = page.send("GET", path, &[("If-None-Match", tag)], b"");
        assert_eq!((again.status, again.body.len()), (304, 0));
    }
}

#[test]
fn strangers_get_nothing() {
    let server = Server::start(one_process());
    let page = page(&server);
    let own = format!("http://{}", page.host());
    let with = |headers: &[(&str, &str)]| page.send("GET", "/api/about", headers, b"").status;
    assert_eq!(with(&[]), 200);
    assert_eq!(with(&[("Origin", &own)]), 200);
    let local = format!("localhost:{}", page.port);
    assert_eq!(with(&[("Host", &local)]), 200);
    let foreign = format!("evil.example:{}", page.port);
    for host in ["evil.example", "127.0.0.1", &foreign, ""] {
        assert_eq!(with(&[("Host", host)]), 403, "{host}");
    }
    let far = format!("http://{foreign}");
    for origin in [
        "null",
        "http://127.0.0.1",
        &far,
        &own.replace("http", "https"),
    ] {
        assert_eq!(with(&[("Origin", origin)]), 403, "{origin}");
    }
    assert_eq!(with(&[("Sec-Fetch-Site", "cross-site")]), 403);
    assert_eq!(with(&[("Sec-Fetch-Site", "same-site")]), 403);
    assert_eq!(with(&[("Cookie", "")]), 403);
    // Who follows a link comes without the cookie, and is led to the same place by a page of the server's own.
    let link = [("Cookie", ""), ("Sec-Fetch-Site", "cross-site")];
    let led = page.send("GET", "/", &link, b"");
    assert_eq!(led.status, 403);
    assert!(led.text().contains("url=/\""), "{led:?}");
}

#[test]
fn what_makes_no_sense_is_refused() {
    let server = Server::start(one_process());
    let page = page(&server);
    let refused = |method: &str, path: &str, body: &[u8], status: u16, words: &str| {
        let reply = page.send(method, path, &[], body);
        assert_eq!(reply.status, status, "{method} {path}: {}", reply.text());
        let error = &reply.json()["error"];
        for field in ["code", "message", "hint"] {
            assert!(error[field].is_string(), "{error}");
        }
        assert!(error.to_string().contains(words), "{words}: {error}");
    };
    for path in [
        "/../../etc/passwd",
        "/%2e%2e/%2e%2e/etc/passwd",
        "//etc/passwd",
        "/app.js/..",
        "/built/index.html",
        "/api",
        "/api/",
        "/api/ask",
        "/api/other",
    ] {
        refused("GET", path, b"", 404, "there is nothing at");
    }
    refused("POST", "/", b"", 405, "use GET");
    refused("DELETE", "/api/about", b"", 405, "use GET");
    refused("GET", "/api/ask/Stats", b"", 405, "use POST");
    refused("GET", "/api/memory", b"", 405, "use POST");
    for method in [
        "Attach", "Detach", "Mark", "Record", "Export", "Events", "Snapshot", "stats", "",
    ] {
        refused(
            "POST",
            &format!("/api/ask/{method}"),
            b"{}",
            404,
            "there is nothing at",
        );
    }
    let ask = "/api/ask/Stats";
    refused("POST", ask, b"{\"pod\": 4242}", 400, "pod");
    refused("POST", ask, b"{", 400, "StatsRequest");
    refused("POST", ask, b"{\"pid\": 4242} 1", 400, "StatsRequest");
    refused("POST", ask, b"{\"pid\": 1}", 404, "1");
    refused("POST", "/api/ask/Stats?node=x", b"{}", 400, "no node x");
    refused("POST", "/api/ask/Ranks", b"{\"jib\": \"x\"}", 400, "jib");
    refused("POST", "/api/memory", b"{\"pid\": 1}", 404, "1");
    refused("GET", "/api/live?pids=a", b"", 400, "no list");
    let many = vec!["1"; 65].join(",");
    refused("GET", &format!("/api/live?pids={many}"), b"", 400, "65");
    let huge = vec![b' '; 4 << 20];
    refused("POST", ask, &huge, 413, "bytes");
    // It is as well as before.
    assert_eq!(page.get("/api/about").status, 200);
    Met {
        what: "bytes of the body of a request to the page's server",
        most: constant("memscope-ctl/src/commands/ui/routes.rs", "BODY_MOST"),
        beyond: "it is refused",
        told: "status 413, error `too_large` with the number",
        test: "what_makes_no_sense_is_refused",
    }
    .is_told();
    Met {
        what: "processes that one tab of the page follows",
        most: constant("memscope-ctl/src/commands/ui/routes.rs", "MOST_PIDS"),
        beyond: "they are refused",
        told: "error `usage` with the numbers",
        test: "what_makes_no_sense_is_refused",
    }
    .is_told();
}

#[test]
fn idle_connections_keep_nobody_out() {
    let server = Server::start(one_process());
    let page = page(&server);
    let mut live = page.listen("/api/live?pids=4242");
    live.until(|kind, _| kind == "now");
    let idle: Vec<_> = (0..200).map(|_| page.connect()).collect();
    assert_eq!(page.get("/api/about").status, 200);
    let closed = idle.iter().filter(|stream| {
        stream
            .set_read_timeout(Some(Duration::from_millis(10)))
            .unwrap();
        matches!((&mut &**stream).read(&mut [0; 1]), Ok(0))
    });
    assert!(closed.count() >= 100);
    // A connection that is in use stays.
    memscope_tests::eventually("it follows events", || server.daemon.hub.readers() > 0);
    server
        .daemon
        .hub
        .publish(&fake::event(4242, 0, 1, Body::Exited));
    live.until(|kind, event| kind == "event" && event["kind"] == "exited");
    // Half a request is no reason to wait for ever, and does no harm meanwhile.
    let mut half = page.connect();
    half.write_all(b"POST /api/ask/Stats HTTP/1.1\r\nHost: x")
        .unwrap();
    assert_eq!(page.ask("List", &json!({})).status, 200);
    drop(half);
    let mut nonsense = page.connect();
    nonsense.write_all(b"\x16\x03\x01 no HTTP\r\n\r\n").unwrap();
    assert_eq!(read(&mut nonsense).status, 400);
}

/// The commands, and the questions that they ask.
fn questions() -> Vec<(&'static str, Value, Vec<&'static str>)> {
    let pid = 4242;
    let age = |ns: u64| json!({ "ago_ns": ns });
    vec![
        ("Stats", json!({ "pid": pid }), vec!["stats", "4242"]),
        ("List", json!({}), vec!["ps"]),
        ("Devices", json!({}), vec!["devices"]),
        (
            "Leaks",
            json!({"pid": pid, "limit": 20, "sure_after_steps": 100, "holders": true}),
            vec!["leaks", "4242"],
        ),
        (
            "Fluctuation",
            json!({"pid": pid, "window_ns": 60_000_000_000_u64, "intervals": 20}),
            vec!["fluctuation", "4242"],
        ),
        (
            "Steps",
            json!({"pid": pid, "limit": 10, "every": 1}),
            vec!["steps", "4242"],
        ),
        (
            "Marks",
            json!({"pid": pid, "limit": 50}),
            vec!["marks", "4242"],
        ),
        (
            "Stacks",
            json!({"pid": pid, "at": {"unix_ns": "1750000000000000000"}, "view": {"metric": "STACK_METRIC_LIVE",
                "unit": "STACK_UNIT_BYTES"}, "by": "STACK_GROUPING_STACK", "limit": 10}),
            vec!["top", "4242", "--at", "1750000000000000000"],
        ),
        (
            "Diff",
            json!({"pid": pid, "from": age(300_000_000_000)}),
            vec!["diff", "--pid", "4242", "--from", "-5m"],
        ),
        ("Pool", json!({ "pid": pid }), vec!["pool", "4242"]),
        ("Holders", json!({ "pid": pid }), vec!["holders", "4242"]),
        (
            "Owners",
            json!({"pid": pid, "rule_set": "memscope"}),
            vec!["owners", "4242"],
        ),
        ("Status", json!({}), vec!["status"]),
        ("Ranks", json!({}), vec!["ranks"]),
    ]
}

#[test]
fn answers_are_those_of_the_commands() {
    let server = Server::start(two_processes());
    let page = page(&server);
    for (method, question, words) in questions() {
        let told = server.ctl(&[&words[..], &["--json"]].concat());
        let reply = page.ask(method, &question);
        assert_eq!(
            (reply.status, told.code),
            (200, 0),
            "{method}: {}",
            reply.text()
        );
        assert_eq!(reply.header("content-type"), Some("application/json"));
        assert_eq!(reply.header("cache-control"), Some("no-store"));
        assert_eq!(reply.json(), told.json(), "{method}");
    }
}

#[test]
fn large_integers_are_exact_for_whoever_asks() {
    let server = Server::start(one_process());
    let page = page(&server);
    let exact = [("Accept", "application/json;numbers=exact")];
    let stats = page
        .send("POST", "/api/ask/Stats", &exact, b"{\"pid\": 4242}")
        .json();
    assert_eq!(stats["as_of"], "1750000000000000000");
    assert_eq!(stats["devices"][0]["allocated_bytes"], 1_320_702_444);
    let plain = page.ask("Stats", &json!({"pid": 4242})).json();
    assert_eq!(plain["as_of"], 1_750_000_000_000_000_000_u64);
}

#[test]
fn about_says_what_is_shown() {
    let server = Server::start(one_process());
    let words = ["ui", "--no-open", "--pid", "4242,99"];
    let page = Page::start(command(&server.socket(), &words));
    let about = page.get("/api/about").json();
    assert_eq!(about["source"]["kind"], "daemon");
    assert_eq!(about["source"]["live"], true);
    let name = about["source"]["name"].as_str().unwrap();
    assert!(name.contains(server.socket().to_str().unwrap()), "{name}");
    assert_eq!(about["pids"], json!([4242, 99]));
    assert!(about["nodes"].is_null());
    assert!(about["user"].is_string());
    assert!(about["boot_offset_ns"].is_u64());
    assert_eq!(about["version"], env!("CARGO_PKG_VERSION"));
}

#[test]
fn blocks_come_in_columns() {
    let mut process = fake::process(4242, 0);
    process.snapshot = (3, 10_000, 9_000);
    let server = Server::start(memscope_rpc::fake::FakeDaemon::with([process]));
    let page = page(&server);
    let reply = page.send("POST", "/api/memory", &[], b"{\"pid\": 4242}");
    assert_eq!(reply.status, 200, "{}", reply.text());
    let memory = reply.json();
    assert_eq!(memory["pid"], 4242);
    assert_eq!(memory["as_of"], "1750000000000000000");
    assert_eq!(memory["coverage"][0]["code"], "attached_late");
    for (of, rows) in [("segments", 3), ("blocks", 30_000)] {
        for (name, column) in memory[of].as_object().unwrap() {
            assert_eq!(column.as_array().unwrap().len(), rows, "{of}.{name}");
        }
    }
    assert_eq!(memory["blocks"]["segment"][10_000], 1);
}

fn finding(number: u64) -> Finding {
    Finding {
        number,
        withdrawn: false,
        device: Some(0),
        space: "pool".to_owned(),
        live_bytes: 1 << 30,
        growth_bytes_per_s: 0.5,
        growth_bytes_per_step: None,
        first_step: None,
        confidence: None,
        file: "train.py".to_owned(),
        line: 7,
        name: "step".to_owned(),
        reason: "it grows".to_owned(),
    }
}

#[test]
fn tabs_are_told_numbers_and_findings() {
    let server = Server::start(two_processes());
    let page = page(&server);
    let mut first = page.listen("/api/live?pids=4242");
    let now = first.until(|kind, _| kind == "now");
    assert_eq!(now["list"]["processes"].as_array().unwrap().len(), 2);
    assert!(now["devices"]["devices"].is_array());
    assert_eq!(now["stats"]["4242"]["devices"][0]["live_blocks"], 12);
    assert_eq!(now["stats"]["4242"]["as_of"], "1750000000000000000");
    assert!(now["stats"].get("99").is_none());
    memscope_tests::eventually("it follows events", || server.daemon.hub.readers() > 0);
    let found = fake::event(4242, 0, 1, Body::Finding(Box::new(finding(1))));
    server.daemon.hub.publish(&found);
    let is_finding = |kind: &str, event: &Value| kind == "event" && event["kind"] == "finding";
    let event = first.until(is_finding);
    assert_eq!(event["body"]["file"], "train.py");
    assert_eq!(event["pid"], 4242);
    // A tab that comes later is told what stands.
    let mut second = page.listen("/api/live");
    assert_eq!(second.until(is_finding), event);
    assert_eq!(server.daemon.hub.readers(), 1, "all tabs share one");
    // Numbers that change are told without a question.
    server.daemon.processes.lock().unwrap().remove(&99);
    let one = |kind: &str, now: &Value| {
        kind == "now" && now["list"]["processes"].as_array().unwrap().len() == 1
    };
    first.until(one);
    second.until(one);
}

#[test]
fn a_daemon_that_goes_and_comes_back() {
    let mut server = Server::start(one_process());
    let page = page(&server);
    let mut tab = page.listen("/api/live?pids=4242");
    tab.until(|kind, _| kind == "now");
    server.stop();
    let gone = tab.until(|kind, _| kind == "gone");
    assert!(gone["error"]["message"].is_string(), "{gone}");
    let refused = page.ask("Stats", &json!({"pid": 4242}));
    assert_eq!(refused.status, 503, "{}", refused.text());
    let mut late = page.listen("/api/live");
    late.until(|kind, _| kind == "gone");
    server.serve_again();
    for tab in [&mut tab, &mut late] {
        tab.until(|kind, _| kind == "back");
        tab.until(|kind, _| kind == "now");
    }
    assert_eq!(page.ask("Stats", &json!({"pid": 4242})).status, 200);
}

#[test]
fn it_ends_with_the_signal_and_with_it_all_connections() {
    let server = Server::start(one_process());
    let mut page = page(&server);
    let mut tab = page.connect();
    let idle = page.connect();
    write!(
        tab,
        "GET /api/live HTTP/1.1\r\nHost: {}\r\nCookie: {}\r\n\r\n",
        page.host(),
        page.cookie
    )
    .unwrap();
    assert!(tab.read(&mut [0; 16]).unwrap() > 0);
    let pid = rustix::process::Pid::from_raw(i32::try_from(page.pid()).unwrap()).unwrap();
    rustix::process::kill_process(pid, rustix::process::Signal::INT).unwrap();
    assert_eq!(page.wait().code(), Some(0));
    assert_eq!(tab.read_to_end(&mut Vec::new()).ok().map(|_| ()), Some(()));
    drop(idle);
}

#[test]
fn what_cannot_be_shown_is_told_at_once() {
    let server = Server::start(one_process());
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("x.pickle");
    // A pickle that would make a file, if anybody ran it.
    let made = folder.path().join("made");
    let hostile = format!("cos\nsystem\n(S'touch {}'\ntR.", made.display());
    std::fs::write(&file, hostile).unwrap();
    let refused = server.ctl(&["ui", "--no-open", file.to_str().unwrap(), "--json"]);
    assert_ne!(refused.code, 0);
    assert!(refused.json()["error"]["message"].is_string());
    assert!(!made.exists());
    let both = server.ctl(&["--recording", "a", "ui", "--no-open", "b"]);
    assert_eq!(both.code, 2, "{}", both.err);
    assert!(both.err.contains("give FILE, or"), "{}", both.err);
}

#[test]
fn nodes_are_asked_by_name() {
    let (one, other) = (Server::start(one_process()), Server::start(two_processes()));
    let list = one.folder.path().join("nodes");
    let absent = one.folder.path().join("absent.sock");
    let text = format!(
        "one unix:{}\nthe other unix:{}\n",
        one.socket().display(),
        other.socket().display()
    );
    let text = text.replace("the other", "other") + &format!("absent unix:{}\n", absent.display());
    std::fs::write(&list, text).unwrap();
    let words = ["--fleet", list.to_str().unwrap(), "ui", "--no-open"];
    let page = Page::start(command(&one.socket(), &words));
    let about = page.get("/api/about").json();
    assert_eq!(about["source"]["kind"], "fleet");
    assert_eq!(about["nodes"], json!(["one", "other", "absent"]));
    let of = |node: &str| page.send("POST", &format!("/api/ask/List?node={node}"), &[], b"");
    assert_eq!(of("one").json(), one.ctl(&["ps", "--json"]).json());
    assert_eq!(of("other").json(), other.ctl(&["ps", "--json"]).json());
    assert_eq!(of("absent").status, 503);
    assert_eq!(of("none").status, 400);
    let all = page.ask("List", &json!({})).json();
    let told = common::ctl(
        &one.socket(),
        &["--fleet", list.to_str().unwrap(), "ps", "--json"],
    );
    assert_eq!(all, told.json());
    assert_eq!(all["unanswered"], 1);
    let blocks = page.send("POST", "/api/memory?node=other", &[], b"{\"pid\": 99}");
    assert_eq!(blocks.json()["pid"], 99);
    let mut tab = page.listen("/api/live");
    let now = tab.until(|kind, _| kind == "now");
    assert_eq!(
        now["fleet"]["nodes"][1]["answer"]["list"],
        of("other").json()
    );
    memscope_tests::eventually("it follows events", || other.daemon.hub.readers() > 0);
    let found = fake::event(99, 0, 1, Body::Finding(Box::new(finding(3))));
    other.daemon.hub.publish(&found);
    let event = tab.until(|kind, event| kind == "event" && event["kind"] == "finding");
    assert_eq!(event["node"], "other");
}
