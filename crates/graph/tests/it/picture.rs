//! The page of the picture, in a real browser and as text.

use axum::Router;
use axum::body::{Body, to_bytes};
use axum::http::{Request, header};
use mainstay_graph::rest;
use mainstay_graph::scenario::{Played, parse, play};
use serde_json::json;
use tower::ServiceExt;

use crate::browser::Browser;

const HOSTILE: &str =
    "/thing/<img src=x onerror=\"window.hacked=1\"></script><script>window.hacked=1</script>";

/// 60 things, one of them hostile and one that waits; then a change of one.
async fn played() -> Played {
    let mut things: Vec<String> =
        (0..58).map(|one| format!("/thing/{one:02}: {{of: {HOSTILE:?}}}")).collect();
    things.push(format!("{:?}: {{}}", HOSTILE));
    let scenario = format!(
        "descriptors:\n\
         \x20 - {{name: base, prefix: /base/, items: derive, metadata: true}}\n\
         \x20 - name: thing\n    prefix: /thing/\n    depends:\n\
         \x20     /thing/00: [{{key: /base/one}}]\n\
         \x20     /thing/01: [{{key: /base/one/part}}]\n\
         \x20     /thing/waits: [{{key: /nowhere}}, {{label: some, any-of: {{prefixes: [/base/]}}}}]\n\
         steps:\n\
         \x20 - txn: {{set: {{/base/one: {{items: [part], size: {{gib: 5}}}}}}, description: 'the base'}}\n\
         \x20 - advance: 1s\n\
         \x20 - txn: {{set: {{{}}}, description: '<b>things</b>'}}\n\
         \x20 - advance: 1s\n\
         \x20 - txn: {{set: {{/thing/waits: {{}}}}}}\n\
         \x20 - advance: 1s\n\
         \x20 - txn: {{set: {{/base/one: {{items: [part], size: {{gib: 7}}}}}}}}\n\
         \x20 - advance: 1s\n",
        things.join(", ")
    );
    play(&parse(&scenario).unwrap()).await.unwrap()
}

async fn get(played: &Played, path: &str, accept: &str) -> (axum::http::response::Parts, String) {
    let request = Request::builder().uri(path).header(header::ACCEPT, accept);
    let request = request.body(Body::empty()).unwrap();
    let answer = rest::router(played.engine.clone()).oneshot(request).await.unwrap();
    let (parts, body) = answer.into_parts();
    let body = to_bytes(body, usize::MAX).await.unwrap();
    (parts, String::from_utf8(body.to_vec()).unwrap())
}

#[tokio::test]
async fn browsers_get_a_page_and_programs_a_picture() {
    let played = played().await;
    let browser = "text/html,application/xhtml+xml,*/*;q=0.8";
    for (path, accept, kind, start) in [
        ("graph", browser, "text/html", "<!DOCTYPE html>"),
        ("graph", "*/*", "image/svg+xml", "<svg"),
        ("graph?format=svg", browser, "image/svg+xml", "<svg"),
        ("graph?format=html", "*/*", "text/html", "<!DOCTYPE html>"),
        ("graph?format=dot", browser, "text/vnd.graphviz", "digraph"),
        ("graph?txn=1&only=unwell", browser, "text/html", "<!DOCTYPE html>"),
        ("graph?open=/thing/00&open=/thing/01", "*/*", "image/svg+xml", "<svg"),
    ] {
        let (parts, body) = get(&played, &format!("/scheduler/{path}"), accept).await;
        assert_eq!(parts.status, 200, "{path}: {body}");
        let found = parts.headers[header::CONTENT_TYPE].to_str().unwrap();
        assert!(found.starts_with(kind) && body.starts_with(start), "{path}: {found}");
        let policy = parts.headers[header::CONTENT_SECURITY_POLICY].to_str().unwrap();
        assert!(policy.starts_with("default-src 'none'"), "{policy}");
        assert!(!policy.contains("script-src 'unsafe") && !policy.contains("eval"), "{policy}");
        assert_eq!(parts.headers[header::VARY], "accept");
        let marked_up = kind != "text/vnd.graphviz";
        let hostile = body.contains("<img src=x") || body.contains("<script>window.hacked");
        assert!(!(marked_up && hostile), "{path}");
        for outside in ["href=\"/", "src=", "href=\"http", "url(http", "@import"] {
            let body = body.replace("img src=x", "");
            assert!(!body.contains(outside), "{path} has {outside}");
        }
    }
    for path in ["graph?only=blue", "graph?format=png"] {
        let (parts, body) = get(&played, &format!("/scheduler/{path}"), browser).await;
        assert_eq!(parts.status, 400, "{path}: {body}");
    }
    played.stop().await;
}

#[tokio::test]
async fn an_any_of_dependency_has_one_arrow_however_many_values_meet_it() {
    let scenario = "descriptors:\n\
         \x20 - {name: base, prefix: /base/, items: none}\n\
         \x20 - name: thing\n    prefix: /thing/\n    items: none\n    depends:\n\
         \x20     /thing/1: [{label: some, any-of: {prefixes: [/base/]}}]\n\
         steps:\n\
         \x20 - txn: {set: {/base/1: {}, /base/2: {}, /base/3: {}, /thing/1: {}}}\n\
         \x20 - advance: 1s\n";
    let played = play(&parse(scenario).unwrap()).await.unwrap();
    for transaction in [None, Some(0)] {
        let dot = played.engine.picture(transaction).unwrap().dot();
        assert_eq!(dot.matches(" -> ").count(), 1, "{dot}");
    }
    played.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_page_works_in_a_browser_below_any_path() {
    let played = played().await;
    let app = Router::new().nest("/below/any", rest::router(played.engine.clone()));
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}/below/any/scheduler/graph", listener.local_addr().unwrap());
    let server = tokio::spawn(async move { axum::serve(listener, app).await });
    let done = tokio::task::spawn_blocking(move || {
        let Some(mut browser) = Browser::start() else { return };
        browser.open(&url);
        highlights(&mut browser);
        details(&mut browser);
        searches(&mut browser);
        filters(&mut browser);
        opens_tiles(&mut browser);
        travels(&mut browser);
        works_by_keyboard(&mut browser);
        assert_eq!(browser.eval("window.hacked === undefined"), true, "hostile text was run");
        assert!(browser.complaints.is_empty(), "{:#?}", browser.complaints);
    });
    done.await.unwrap();
    server.abort();
    played.stop().await;
}

const WAITS: &str = "a.box.pending";

fn highlights(browser: &mut Browser) {
    browser.hover(WAITS);
    browser.until("document.querySelector('#picture.focus')");
    let lit = browser.eval("document.querySelectorAll('.box.lit').length");
    let all = browser.eval("document.querySelectorAll('.box[data-box]').length");
    assert!(lit.as_u64() >= Some(3) && lit.as_u64() < all.as_u64(), "{lit} of {all}");
    assert_eq!(browser.eval("document.querySelectorAll('.line.unmet.lit').length"), 1);
    browser.hover("h1");
    browser.until("!document.querySelector('#picture.focus')");
}

fn details(browser: &mut Browser) {
    browser.click(WAITS);
    browser.until("document.querySelector('#panel').dataset.of === '/thing/waits'");
    let text = browser.eval("document.querySelector('#panel').innerText");
    let text = text.as_str().unwrap();
    assert!(
        text.contains("/nowhere") && text.contains("pending") && text.contains("create"),
        "{text}"
    );
    assert!(!text.contains('{'), "no raw JSON: {text}");
    browser.press("Escape");
    browser.until("document.querySelector('#panel').hidden");
}

fn searches(browser: &mut Browser) {
    browser.press("/");
    browser.write("onerror");
    browser.until("document.querySelectorAll('#found [role=option]').length === 1");
    let shown = browser.eval("document.querySelector('#found [role=option]').textContent");
    assert!(shown.as_str().unwrap().starts_with(&HOSTILE["/thing/".len()..]), "{shown}");
    // It is inside a tile: choosing it opens the tile.
    browser.press("Enter");
    browser.until(&format!("document.querySelector('#panel').dataset.of === {}", json!(HOSTILE)));
    browser.until("document.querySelector('.box.chosen')");
    assert_eq!(browser.eval("document.querySelectorAll('.box.tile').length"), 0);
    browser.click(".close");
    browser.until("document.querySelectorAll('.box.tile').length === 1");
    browser.press("Escape");
}

fn filters(browser: &mut Browser) {
    let count = browser.eval("document.querySelector('[data-only=unwell] b').textContent");
    assert_eq!(count, "1");
    browser.click("[data-only=unwell]");
    browser.until(
        "document.querySelector('[data-only=unwell]').getAttribute('aria-current') === 'true'",
    );
    assert_eq!(browser.eval("document.querySelectorAll('.box[data-box]').length"), 2);
    assert_eq!(browser.eval("location.search"), "?only=unwell");
    browser.click("[data-only='']");
    browser.until("document.querySelectorAll('.box.tile').length === 1");
}

fn opens_tiles(browser: &mut Browser) {
    let label = browser.eval("document.querySelector('.box.tile text').textContent");
    assert_eq!(label, "59 configured");
    browser.click(".box.tile .face");
    browser.until("document.querySelectorAll('.box[data-box]').length > 59");
    browser.click(".close");
    browser.until("document.querySelectorAll('.box.tile').length === 1");
}

fn travels(browser: &mut Browser) {
    let size = "document.querySelector('#value').innerText.includes('7')";
    browser.click("a.box.configured:not(.tile):not(.derived)");
    browser.until("document.querySelector('#panel').dataset.of === '/base/one'");
    browser.until(size);
    browser.eval("document.querySelector('#slider').focus()");
    for expected in ["3", "2", "1", "0"] {
        browser.press("ArrowLeft");
        browser.until(&format!("location.search === '?txn={expected}'"));
    }
    browser.until("document.querySelector('#title').textContent.startsWith('2 keys - SeqNum: 0')");
    assert_eq!(browser.eval("document.querySelectorAll('.box.touched').length"), 2);
    browser.until("document.querySelector('#value') && document.querySelector('#value').innerText.includes('5')");
    let moment = browser.eval("document.querySelector('#moment').textContent");
    assert!(moment.as_str().unwrap().contains("the base"), "{moment}");
    for _ in 0..4 {
        browser.click("#later");
    }
    browser
        .until("location.search === '' && document.querySelector('#moment').textContent === 'Now'");
    browser.eval("history.back()");
    browser.until("document.querySelector('#title').textContent.includes('SeqNum')");
    browser.eval("history.forward()");
    browser.until("document.querySelector('#title').textContent.includes('current')");
    browser.eval("document.activeElement.blur()");
    browser.press("Escape");
}

fn works_by_keyboard(browser: &mut Browser) {
    browser.eval("document.querySelector('a.box.configured:not(.tile):not(.derived)').focus()");
    let at = "document.activeElement.dataset.box";
    let first = browser.eval(at);
    browser.press("ArrowRight");
    assert_ne!(browser.eval(at), first);
    browser.press("ArrowLeft");
    assert_eq!(browser.eval(at), first);
    browser.press("Enter");
    browser.until("!document.querySelector('#panel').hidden");
    browser.press("Escape");
    browser.press("n");
    browser.until("location.search === '?only=unwell'");
    browser.press("n");
    browser.until("location.search === ''");
}
