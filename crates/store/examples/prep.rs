use mainstay_store::{object::*, registry::*, schema, strategy::*};
use std::time::Instant;
#[expect(clippy::disallowed_methods)]
fn main() {
    let registry = Registry::new(builtin()).unwrap();
    let kind = registry.find("", "v1", "configmaps").unwrap();
    let body = format!(
        r#"{{"apiVersion":"v1","kind":"ConfigMap","metadata":{{"name":"bench-000001","namespace":"default","labels":{{"app":"bench","run":"1"}}}},"data":{{"payload":"{}"}}}}"#,
        "x".repeat(350)
    );
    let stamp = Stamp {
        now: "2026-03-01T12:00:00Z".parse().unwrap(),
        uid: "7b1f3f0e-8a8a-4b0e-9d0e-2f1a3b4c5d6e".into(),
        name_suffix: String::new(),
    };
    let n = 200_000u32;
    for round in 0..3 {
        let t = Instant::now();
        for _ in 0..n {
            std::hint::black_box(schema::decode(body.as_bytes()).unwrap());
        }
        let d = t.elapsed() / n;
        let t = Instant::now();
        for _ in 0..n {
            std::hint::black_box(
                serde_json::from_slice::<serde_json::Value>(body.as_bytes()).unwrap(),
            );
        }
        let s = t.elapsed() / n;
        let objects: Vec<_> =
            (0..n).map(|_| schema::decode(body.as_bytes()).unwrap().object).collect();
        let t = Instant::now();
        let mut prepared = Vec::with_capacity(n as usize);
        for o in objects {
            prepared.push(
                prepare_create(
                    kind,
                    Some("default"),
                    o,
                    &stamp,
                    Strictness { validation: Validation::Strict, duplicates: &[] },
                )
                .unwrap()
                .object,
            );
        }
        let p = t.elapsed() / n;
        let t = Instant::now();
        for o in &prepared {
            std::hint::black_box(Body::new(o));
        }
        let b = t.elapsed() / n;
        let key = kind.key(Some("default"), "bench-000001");
        let mut old = prepared[0].clone();
        old["metadata"]["resourceVersion"] = "7".into();
        let news: Vec<_> = (0..n).map(|_| old.clone()).collect();
        let t = Instant::now();
        for o in news {
            std::hint::black_box(
                prepare_update(kind, &key, &old, o, None, Strictness::default()).unwrap(),
            );
        }
        let u = t.elapsed() / n;
        let rec = Body::new(&old).at(key.clone(), Revision(1), Revision(7));
        let sel = mainstay_store::select::LabelSelector::parse("app=bench,run in (1,2)").unwrap();
        let t = Instant::now();
        for _ in 0..n {
            std::hint::black_box(sel.matches(&rec));
        }
        let l = t.elapsed() / n;
        println!(
            "{round}: decode {d:?} (serde {s:?}) prepare {p:?} body {b:?} noop update {u:?} labels {l:?}"
        );
    }
}
