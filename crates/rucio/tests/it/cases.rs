//! Runs every case of `rules.jsonl` on every database.

mod adding;
mod changing;
mod judging;
mod select;

use mainstay_rules::rse::{self, RseSettings};
use serde_json::{Value, json};

use crate::world::World;

const CASES: &str = include_str!("../rules.jsonl");

/// Cases that need no catalog, or are about HTTP, have their own tests.
const ELSEWHERE: &[&str] = &["REST-01"];

#[test]
fn every_case_holds_on_every_database() {
    for line in CASES.lines() {
        let case: Value = serde_json::from_str(line).unwrap();
        let id = case["id"].as_str().unwrap();
        if ELSEWHERE.contains(&id) {
            continue;
        }
        if id.starts_with("EXPR") {
            for world in World::each() {
                expression(&world, &case);
            }
            continue;
        }
        let Some(run) = runner(id) else { panic!("no test for {id}") };
        for world in World::each() {
            eprintln!("{id} on {}", world.catalog.backend());
            run(&world);
            world.check();
        }
    }
}

fn expression(world: &World, case: &Value) {
    for (name, attributes, write) in [
        (
            "A",
            &[("tier", "1"), ("country", "at"), ("T1", "True"), ("a.b", "x"), ("num", "10")][..],
            true,
        ),
        ("B", &[("tier", "1"), ("country", "de"), ("T1", "true"), ("num", "20")][..], true),
        ("C", &[("tier", "2"), ("country", "fr"), ("T1", "true"), ("num", "abc")][..], true),
        ("D", &[("tier", "2"), ("country", "uk"), ("T2", "true"), ("num", "40.5")][..], true),
        ("E", &[("country", "us"), ("T2", "true")][..], false),
    ] {
        world.rse_with(name, &RseSettings { write, ..RseSettings::default() });
        for (key, value) in attributes {
            world.attribute(name, key, value);
        }
    }
    let action = case["action"].as_str().unwrap();
    let (verb, text) = action.split_once(' ').unwrap();
    let text: String = serde_json::from_str(text).unwrap();
    let found = world.catalog.write_blocking(|tx| -> mainstay_rules::Result<_> {
        let found = if verb == "resolve" {
            rse::resolve(tx, &text)
        } else {
            rse::resolve_writable(tx, &text)
        }?;
        let rses = rse::all(tx)?;
        Ok(rses
            .iter()
            .filter(|rse| found.contains(&rse.id))
            .map(|rse| rse.name.clone())
            .collect::<Vec<_>>())
    });
    let got = match found {
        Ok(rses) => json!({"rses": rses}),
        Err(error) => {
            json!({"error": error.class().unwrap().to_string(), "message": error.to_string()})
        }
    };
    assert_eq!(got, case["expect"], "{}", case["id"]);
}

fn runner(id: &str) -> Option<fn(&World)> {
    Some(match id {
        "SELE-01" => select::sele_01,
        "SELE-02" => select::sele_02,
        "SELE-03" => select::sele_03,
        "SELE-04" => select::sele_04,
        "SELE-06" => select::sele_06,
        "SELE-08" => select::sele_08,
        "SELE-09" => select::sele_09,
        "SELE-11" => select::sele_11,
        "SELE-12" => select::sele_12,
        "SELE-14" => select::sele_14,
        "SELE-15" => select::sele_15,
        "ADD_-01" => adding::add_01,
        "ADD_-02" => adding::add_02,
        "ADD_-03" => adding::add_03,
        "ADD_-05" => adding::add_05,
        "ADD_-06" => adding::add_06,
        "ADD_-07" => adding::add_07,
        "ADD_-08" => adding::add_08,
        "ADD_-10" => adding::add_10,
        "ADD_-12" => adding::add_12,
        "ADD_-13" => adding::add_13,
        "ADD_-14" => adding::add_14,
        "ADD_-15" => adding::add_15,
        "ADD_-17" => adding::add_17,
        "ADD_-18" => adding::add_18,
        "ADD_-20" => adding::add_20,
        "ADD_-21" => adding::add_21,
        "ADD_-23" => adding::add_23,
        "ADD_-24" => adding::add_24,
        "ADD_-25" => adding::add_25,
        "DELE-01" => judging::dele_01,
        "DELE-02" => judging::dele_02,
        "DELE-03" => judging::dele_03,
        "DELE-04" => judging::dele_04,
        "DELE-05" => judging::dele_05,
        "DELE-07" => judging::dele_07,
        "DELE-08" => judging::dele_08,
        "EVAL-01" => judging::eval_01,
        "EVAL-02" => judging::eval_02,
        "EVAL-04" => judging::eval_04,
        "EVAL-05" => judging::eval_05,
        "EVAL-07" => judging::eval_07,
        "EVAL-09" => judging::eval_09,
        "EVAL-10" => judging::eval_10,
        "EVAL-12" => judging::eval_12,
        "TRAN-01" => judging::tran_01,
        "TRAN-02" => judging::tran_02,
        "TRAN-04" => judging::tran_04,
        "REPA-01" => judging::repa_01,
        "REPA-02" => judging::repa_02,
        "REPA-03" => judging::repa_03,
        "REPA-05" => judging::repa_05,
        "REPA-07" => judging::repa_07,
        "INJE-01" => judging::inje_01,
        "INJE-02" => judging::inje_02,
        "INJE-03" => judging::inje_03,
        "INJE-04" => judging::inje_04,
        "CLEA-01" => judging::clea_01,
        "CLEA-02" => judging::clea_02,
        "UPDA-01" => changing::upda_01,
        "UPDA-02" => changing::upda_02,
        "UPDA-03" => changing::upda_03,
        "UPDA-05" => changing::upda_05,
        "MOVE-01" => changing::move_01,
        "MOVE-02" => changing::move_02,
        "MOVE-03" => changing::move_03,
        "REDU-01" => changing::redu_01,
        "DID-01" => changing::did_01,
        "DID-02" => changing::did_02,
        "DID-04" => changing::did_04,
        "REPL-01" => changing::repl_01,
        "REPL-02" => changing::repl_02,
        "REPL-03" => changing::repl_03,
        "REAP-01" => changing::reap_01,
        _ => return None,
    })
}
