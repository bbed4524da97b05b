//! Tests that storage outside the operator's roots is never touched, and that logins are rate-limited.

use std::net::IpAddr;
use std::path::Path;

use axum::body::Body;
use axum::http::Request;
use mainstay_rucio::{Local, Service, router};
use mainstay_rules::api::{Grouping, SECOND};
use mainstay_rules::cli::Remote;
use mainstay_rules::identity::{self, Identity};
use mainstay_rules::queue;
use serde_json::{Value, json};
use tower::ServiceExt;

use crate::disks::Disks;
use crate::surface::service;
use crate::world::World;

fn count(at: &Path) -> usize {
    std::fs::read_dir(at).unwrap().count()
}

/// Sends a request to a server with this world's access to storage.
fn call(disks: &Disks, method: &str, path: &str, body: Value) -> (u16, String) {
    let local = Local::new(Service { access: disks.access(), ..service(&disks.world) });
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let body = (!body.is_null()).then_some(body);
    let answer = runtime.block_on(local.send(method, path, body)).unwrap();
    (answer.status, answer.body)
}

#[test]
fn folders_outside_the_roots_are_registered_and_never_touched() {
    for disks in Disks::each() {
        let (world, above) = (&disks.world, tempfile::tempdir().unwrap());
        let outside = above.path().join("outside");
        world.rse("OUT");
        let body = json!({"prefix": outside});
        let (status, said) = call(&disks, "POST", "/rses/OUT/protocols/file", body);
        assert_eq!(status, 201, "{said}");
        assert!(!outside.exists(), "registering makes no folder outside the roots");
        std::fs::create_dir(&outside).unwrap();
        // Writes fail.
        disks.file("f", "A", b"content", Some(b"content"));
        let rule = world.rule("f", 1, "OUT", Grouping::None);
        for _ in 0..=world.settings.transfer_retries {
            assert_eq!(disks.work("w"), 0);
            disks.finish();
            let (settings, now) = (&world.settings, world.now());
            for one in world.write(|tx| queue::show(tx, 10, settings, now)).1 {
                assert!(one.why.unwrap().contains("not below a storage root"));
            }
            world.advance(3600);
        }
        assert_eq!(world.state(&rule), "STUCK 0/0/1");
        let (status, said) =
            call(&disks, "GET", &format!("/mainstay/rules/{rule}/explain"), Value::Null);
        assert!(status == 200 && said.contains("not below a storage root"), "{said}");
        assert!(said.contains("--storage-root DIR"), "{said}");
        world.delete(&rule);
        assert_eq!(count(&outside), 0);
        // Reads, removals and listings fail too.
        disks.file("g", "A", b"content", None);
        let place = outside.join(mainstay_transfers::protocol::hashed_path(&World::did("g")));
        std::fs::create_dir_all(place.parent().unwrap()).unwrap();
        std::fs::write(&place, "content").unwrap();
        world.change("UPDATE replicas SET rse_id = (SELECT id FROM rses WHERE rse = 'OUT') WHERE did_id = (SELECT id FROM dids WHERE name = 'g')");
        world.rule("g", 1, "B", Grouping::None);
        assert_eq!(disks.work("w"), 0);
        assert_eq!(count(&disks.folder("B")), 0);
        world.change("DELETE FROM requests");
        world.change("DELETE FROM locks");
        world.change("DELETE FROM rules");
        world.change("UPDATE replicas SET tombstone = 0, lock_cnt = 0");
        disks.reap();
        assert!(place.exists(), "the reaper touches nothing outside the roots");
        let kept =
            "SELECT COUNT(*) FROM replicas p JOIN dids d ON d.id = p.did_id WHERE d.name = 'g'";
        assert!(world.sql(kept) > 0, "nor does it forget what it could not remove");
        let (status, said) =
            call(&disks, "GET", "/mainstay/check/storage?rse=OUT&checksums=true", Value::Null);
        assert!(status == 200 && said.contains("not below a storage root"), "{said}");
        assert!(!said.contains("ORPHAN"), "{said}");
    }
}

#[test]
fn an_account_without_a_name_is_not_privileged() {
    use mainstay_rucio::Caller;
    for world in World::each() {
        let mut request = Request::post("/rses/EVIL").body(Body::from("{}")).unwrap();
        let nameless = Caller { account: String::new(), privileged: false, read_only: false };
        request.extensions_mut().insert(nameless);
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        let answer = runtime.block_on(router(service(&world)).oneshot(request)).unwrap();
        assert_eq!(answer.status().as_u16(), 403);
    }
}

#[test]
fn wrong_passwords_lock_an_account_out_at_their_address_only() {
    for world in World::each() {
        let hash = identity::hash_password("a word").unwrap();
        let new = Identity { identity: "ann".to_owned(), kind: "USERPASS".to_owned(), email: None };
        world.write(|tx| identity::add(tx, "alice", &new, Some(&hash), true, SECOND));
        let (service, runtime) =
            (service(&world), tokio::runtime::Builder::new_current_thread().enable_all().build());
        let runtime = runtime.unwrap();
        let login = |user: &str, word: &str, from: u8| {
            let request = Request::get("/auth/userpass")
                .header("x-rucio-username", user)
                .header("x-rucio-password", word)
                .extension(IpAddr::from([10, 0, 0, from]));
            let request = request.body(Body::empty()).unwrap();
            let answer = runtime.block_on(router(service.clone()).oneshot(request)).unwrap();
            let after = answer.headers().get("retry-after").map(|value| value.to_str().unwrap());
            (answer.status().as_u16(), after.map(|text| text.parse::<u64>().unwrap()))
        };
        // The same holds for known and unknown accounts.
        for user in ["ann", "nobody-knows"] {
            let mut refused = None;
            for _ in 0..20 {
                let (status, after) = login(user, "wrong", 1);
                assert_eq!(status == 429, after.is_some());
                assert!([401, 429].contains(&status), "{status}");
                refused = refused.or(after);
            }
            assert!(refused.is_some(), "{user}");
        }
        // On a busy machine a lock-out may be over before the next login; then it is repeated.
        let locked_out = (0..20).any(|_| {
            while login("ann", "wrong", 1).0 != 429 {}
            login("ann", "a word", 1).0 == 429
        });
        assert!(locked_out, "also the right one, there");
        assert_eq!(login("ann", "a word", 2).0, 200, "another address is not the attacker's");
    }
}
