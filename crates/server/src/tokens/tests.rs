use super::*;
use mainstay_store::cache::Retention;
use mainstay_store::clock::ManualClock;
use mainstay_store::memory::MemoryStore;

fn wish(role: Role) -> Wish {
    Wish::of(role)
}

pub(super) async fn with_tokens<F: Future<Output = ()>>(
    test: impl FnOnce(Arc<Tokens>, Arc<ManualClock>) -> F,
) {
    let clock = ManualClock::new("2026-11-16T00:00:00Z".parse().unwrap());
    let objects = MemoryStore::new(0, Retention::default(), 1 << 20, clock.clone());
    let tokens = Tokens::load(Arc::new(objects), clock.clone()).await.unwrap();
    let following = tokens.clone();
    tokio::select! {
        ended = following.follow() => panic!("the feed ended: {ended:?}"),
        () = test(tokens, clock) => {}
    }
}

#[tokio::test]
async fn a_token_of_another_server_works_before_its_event_arrives() {
    with_tokens(async |tokens, clock| {
        // This one does not follow the store.
        let other = Tokens::load(tokens.objects.clone(), clock.clone()).await.unwrap();
        let token = tokens.create(wish(Role::Editor)).await.unwrap().token;
        assert!(other.bearer(token.as_bytes()).is_none());
        let user = other.newcomer(token.as_bytes()).await.unwrap();
        assert_eq!(user.role, Some(Role::Editor));
    })
    .await;
}

#[tokio::test]
async fn a_token_works_from_its_creation_until_it_is_revoked() {
    with_tokens(async |tokens, _| {
        let created = tokens.create(wish(Role::Editor)).await.unwrap();
        let user = tokens.bearer(created.token.as_bytes()).unwrap();
        assert_eq!(user.role, Some(Role::Editor));
        assert!(tokens.bearer(b"mst_something-else").is_none());
        assert!(tokens.newcomer(b"mst_something-else").await.is_none());
        assert_eq!(tokens.list().len(), 1);
        tokens.revoke(&created.description.id).await.unwrap();
        assert!(tokens.bearer(created.token.as_bytes()).is_none());
        assert!(tokens.newcomer(created.token.as_bytes()).await.is_none());
        assert!(tokens.revoke(&created.description.id).await.is_err());
    })
    .await;
}

#[tokio::test]
async fn a_name_has_a_role_while_its_tokens_agree() {
    with_tokens(async |tokens, clock| {
        let named =
            |role, ttl| Wish { name: Some("ada".to_owned()), ttl_seconds: ttl, ..wish(role) };
        assert!(tokens.of_name("ada").is_none());
        tokens.create(named(Role::Viewer, None)).await.unwrap();
        tokens.create(named(Role::Viewer, None)).await.unwrap();
        assert_eq!(tokens.of_name("ada").unwrap().role, Some(Role::Viewer));
        tokens.create(named(Role::Editor, Some(60))).await.unwrap();
        assert!(tokens.of_name("ada").is_none(), "viewer or editor?");
        clock.advance(Duration::from_secs(60));
        assert_eq!(tokens.of_name("ada").unwrap().role, Some(Role::Viewer));
    })
    .await;
}

#[tokio::test]
async fn a_token_expires() {
    with_tokens(async |tokens, clock| {
        let mut wish = wish(Role::Viewer);
        wish.ttl_seconds = Some(60);
        let created = tokens.create(wish).await.unwrap();
        clock.advance(Duration::from_secs(59));
        assert!(tokens.bearer(created.token.as_bytes()).is_some());
        clock.advance(Duration::from_secs(1));
        assert!(tokens.bearer(created.token.as_bytes()).is_none());
    })
    .await;
}

#[tokio::test]
async fn tokens_are_made_and_revoked_after_an_expired_one_was_swept() {
    with_tokens(async |tokens, clock| {
        let viewer = tokens.create(wish(Role::Viewer)).await.unwrap();
        let short = Wish { ttl_seconds: Some(1), ..wish(Role::Viewer) };
        tokens.create(short).await.unwrap();
        while clock.sleepers() == 0 {
            tokio::task::yield_now().await;
        }
        clock.advance(SWEEP);
        while tokens.list().len() > 1 {
            tokio::task::yield_now().await;
        }
        let editor = tokens.create(wish(Role::Editor)).await.unwrap();
        assert!(tokens.bearer(editor.token.as_bytes()).is_some());
        tokens.revoke(&viewer.description.id).await.unwrap();
        assert!(tokens.bearer(viewer.token.as_bytes()).is_none());
    })
    .await;
}

#[tokio::test]
async fn a_change_that_the_feed_never_shows_is_answered_in_time() {
    let clock = ManualClock::new("2026-11-16T00:00:00Z".parse().unwrap());
    let objects = MemoryStore::new(0, Retention::default(), 1 << 20, clock.clone());
    // Its feed is not followed.
    let tokens = Tokens::load(Arc::new(objects), clock.clone()).await.unwrap();
    let mut creating = std::pin::pin!(tokens.create(wish(Role::Viewer)));
    while clock.sleepers() == 0 {
        assert!(futures_util::poll!(&mut creating).is_pending());
        tokio::task::yield_now().await;
    }
    clock.advance(PATIENCE);
    assert!(matches!(creating.await, Err(Error::Late)));
}

#[tokio::test]
async fn a_token_ends_for_those_who_wait_when_it_is_revoked_or_expires() {
    with_tokens(async |tokens, clock| {
        let short = Wish { ttl_seconds: Some(5), ..wish(Role::Viewer) };
        let short = tokens.create(short).await.unwrap();
        let viewer = tokens.create(wish(Role::Viewer)).await.unwrap();
        let over = tokens.end(short.token.as_bytes()).await;
        let revoked = tokens.end(viewer.token.as_bytes()).await;
        while clock.sleepers() == 0 {
            tokio::task::yield_now().await;
        }
        clock.advance(Duration::from_secs(5));
        over.cancelled().await;
        assert!(!revoked.is_cancelled());
        tokens.revoke(&viewer.description.id).await.unwrap();
        assert!(revoked.is_cancelled());
        assert!(tokens.end(b"mst_forged").await.is_cancelled());
    })
    .await;
}

#[tokio::test]
async fn the_end_of_a_token_of_another_server_is_followed() {
    with_tokens(async |tokens, clock| {
        let other = Tokens::load(tokens.objects.clone(), clock.clone()).await.unwrap();
        let created = tokens.create(wish(Role::Viewer)).await.unwrap();
        let end = other.end(created.token.as_bytes()).await;
        tokens.revoke(&created.description.id).await.unwrap();
        assert!(!end.is_cancelled());
        tokio::select! {
            _ = other.follow() => {}
            () = end.cancelled() => {}
        }
    })
    .await;
}

#[tokio::test]
async fn the_own_token_is_renewed_before_it_expires_and_no_other() {
    with_tokens(async |tokens, clock| {
        let own = tokens.create(wish(Role::Admin)).await.unwrap();
        let other = tokens.create(wish(Role::Admin)).await.unwrap();
        tokens.keep_own(&own.token).await;
        for _ in 0..100 {
            clock.advance(Duration::from_secs(24 * 3600));
            for _ in 0..20 {
                tokio::task::yield_now().await;
            }
        }
        assert!(tokens.bearer(own.token.as_bytes()).is_some());
        assert!(tokens.bearer(other.token.as_bytes()).is_none());
    })
    .await;
}

#[test]
fn tokens_of_older_versions_are_read_and_empty_names_have_no_user() {
    let old = serde_json::json!({"id": "a1", "name": "", "role": "editor",
        "created": "2026-01-01T00:00:00Z"});
    let body = internal::encode(&old).unwrap();
    let key = Key::new(&internal::resource("tokens"), None, &"0".repeat(64));
    let record = body.at(key, Revision(1), Revision(1));
    let (_, entry) = entry(&record).unwrap();
    assert_eq!(&*entry.user.name, "editor-a1");
    assert_eq!((entry.description.uses, entry.description.expires), (None, None));
}

#[test]
fn only_the_hash_is_stored() {
    let hash = Sha256::digest(b"mst_x");
    assert_eq!(unhex(&hex::encode(hash)), Some(hash.into()));
    assert_eq!(unhex("zz"), None);
}
