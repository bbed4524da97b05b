use proptest::prelude::*;

use super::*;

const GIB: u64 = 1 << 30;

fn now() -> Timestamp {
    Timestamp::UNIX_EPOCH
}

fn later(seconds: i64) -> Timestamp {
    Timestamp::from_second(seconds).unwrap()
}

fn group(name: &str, gib: u64) -> LVMVolumeGroup {
    let size = mainstay_store::meta::Quantity::bytes(gib * GIB);
    let mut group = LVMVolumeGroup::default();
    group.metadata.name = name.to_owned();
    group.status.phase = "Ready".to_owned();
    group.status.vg_size = Some(size);
    group.status.vg_free = Some(size);
    group
}

fn ledger(groups: &[(&str, u64)]) -> CapacityLedger {
    let mut ledger = CapacityLedger::default();
    for (name, gib) in groups {
        ledger.set_group(name, Some(&group(name, *gib)));
    }
    ledger
}

fn claim(holder: &str, gib: u64) -> Claim {
    Claim { holder: holder.to_owned(), volume: String::new(), size: gib * GIB, replicated: false }
}

fn target(name: &str) -> Target {
    Target::new(name, "")
}

#[test]
fn equal_pools_fill_evenly() {
    for size in [1, 10] {
        let names = ["a", "b", "c"];
        let mut ledger = ledger(&names.map(|name| (name, 1000)));
        let targets = names.map(target);
        let mut used = [0_u64; 3];
        for index in 0..3 * (1000 / size) {
            let holder = format!("v{index}-0");
            let claim = claim(&holder, size);
            let scores =
                ledger.filter_and_score(&claim, &targets.each_ref(), (now(), later(2)), false);
            assert!(scores.iter().all(|score| (0..=100).contains(score)));
            let best = (0..3).max_by_key(|place| (scores[*place], std::cmp::Reverse(*place)));
            let best = best.unwrap();
            ledger.narrow(&holder, &targets[best], (now(), later(60))).unwrap();
            ledger.set_volume(&holder, Some(VolumeSize { size: size * GIB, replicated: false }));
            let volume = holder.clone();
            let placed = PlacedReplica { volume, target: targets[best].clone(), reported: false };
            ledger.set_replica(&holder, Some(placed));
            used[best] += size;
            let skew = used.iter().max().unwrap() - used.iter().min().unwrap();
            assert!(skew <= size, "after {index} volumes of {size} GiB: {used:?}");
        }
        assert_eq!(used, [1000; 3], "everything fits");
    }
}

#[test]
fn d7_a_reservation_never_counts_against_its_own_holder() {
    let mut ledger = ledger(&[("a", 10)]);
    let targets = [target("a")];
    for _ in 0..3 {
        let mine = claim("mine", 10);
        assert!(
            ledger.filter_and_score(&mine, &targets.each_ref(), (now(), later(2)), true)[0] > 0
        );
        ledger.narrow("mine", &targets[0], (now(), later(60))).unwrap();
        assert_eq!(
            ledger.filter_and_score(
                &claim("other", 1),
                &targets.each_ref(),
                (now(), later(2)),
                true
            ),
            [0]
        );
    }
}

#[test]
fn reservations_end_by_expiry_placement_and_report() {
    let mut ledger = ledger(&[("a", 10)]);
    let a = target("a");
    let targets = [a.clone()];
    let free = |ledger: &CapacityLedger, at| {
        ledger.balance(&a, &claim("x", 1), at).unwrap().available / GIB
    };
    ledger.filter_and_score(&claim("one", 4), &targets.each_ref(), (now(), later(2)), true);
    assert_eq!(free(&ledger, now()), 6);
    assert_eq!(free(&ledger, later(3)), 10, "a broad one expires after two seconds");
    assert_eq!(ledger.narrow("one", &a, (later(3), later(63))), Err(Error::Unknown));
    ledger.filter_and_score(&claim("one", 4), &targets.each_ref(), (later(3), later(5)), true);
    ledger.narrow("one", &a, (later(3), later(63))).unwrap();
    assert_eq!((free(&ledger, later(4)), free(&ledger, later(64))), (6, 10));
    assert_eq!(ledger.next_expiry(&targets, later(4)), Some(later(63)));
    ledger.set_volume("v", Some(VolumeSize { size: 4 * GIB, replicated: false }));
    let placed = |reported| PlacedReplica { volume: "v".to_owned(), target: a.clone(), reported };
    ledger.set_replica("one", Some(placed(false)));
    assert_eq!(free(&ledger, later(64)), 6, "placed, it counts permanently");
    ledger.set_replica("one", Some(placed(true)));
    let mut reported = group("a", 10);
    reported.status.vg_free = Some(mainstay_store::meta::Quantity::bytes(6 * GIB));
    ledger.set_group("a", Some(&reported));
    assert_eq!(free(&ledger, later(64)), 6, "reported, it counts once");
    ledger.set_replica("one", None);
    assert_eq!(free(&ledger, later(64)), 6, "until the group reports it as free");
}

#[test]
fn thin_pools_follow_their_limit() {
    let mut thin = group("a", 100);
    let size = mainstay_store::meta::Quantity::bytes(10 * GIB);
    thin.status.thin_pools.push(crate::api::ThinPoolStatus {
        name: "t".to_owned(),
        actual_size: Some(size),
        allocation_limit: Some("200%".to_owned()),
        ready: true,
        ..Default::default()
    });
    let mut ledger = CapacityLedger::default();
    ledger.set_group("a", Some(&thin));
    let targets = [Target::new("a", "t")];
    let times = (now(), later(2));
    assert!(ledger.filter_and_score(&claim("one", 20), &targets.each_ref(), times, false)[0] > 0);
    assert_eq!(ledger.filter_and_score(&claim("one", 21), &targets.each_ref(), times, false), [0]);
    thin.status.thin_pools[0].ready = false;
    ledger.set_group("a", Some(&thin));
    assert_eq!(ledger.filter_and_score(&claim("one", 1), &targets.each_ref(), times, false), [0]);
}

#[test]
fn a_replica_takes_whole_extents_and_its_metadata() {
    assert_eq!(backing_size(GIB, false, DEFAULT_EXTENT), GIB);
    assert_eq!(backing_size(GIB + 1, false, DEFAULT_EXTENT), GIB + DEFAULT_EXTENT);
    assert_eq!(backing_size(GIB, true, DEFAULT_EXTENT), GIB + DEFAULT_EXTENT);
    let size = 100 * GIB;
    let overhead = 36 * 1024 + size * 214 / 1_000_000;
    let backing = backing_size(size, true, DEFAULT_EXTENT);
    assert!(backing >= size + overhead && backing < size + overhead + DEFAULT_EXTENT);
    assert_eq!(backing_size(u64::MAX, true, DEFAULT_EXTENT), u64::MAX);
}

#[derive(Clone, Debug)]
enum Op {
    Score { holder: u8, gib: u64, hold: bool },
    Narrow { holder: u8, pool: usize },
    Place { holder: u8, pool: usize },
    Release { holder: u8 },
    Wait { seconds: i64 },
}

fn ops() -> impl Strategy<Value = Op> {
    prop_oneof![
        (0_u8..6, 1_u64..8, any::<bool>()).prop_map(|(holder, gib, hold)| Op::Score {
            holder,
            gib,
            hold
        }),
        (0_u8..6, 0_usize..2).prop_map(|(holder, pool)| Op::Narrow { holder, pool }),
        (0_u8..6, 0_usize..2).prop_map(|(holder, pool)| Op::Place { holder, pool }),
        (0_u8..6).prop_map(|holder| Op::Release { holder }),
        (1_i64..90).prop_map(|seconds| Op::Wait { seconds }),
    ]
}

proptest! {
    #[test]
    fn promised_bytes_never_exceed_a_pool(ops in proptest::collection::vec(ops(), 1..60)) {
        let pools = [target("a"), target("b")];
        let mut ledger = ledger(&[("a", 10), ("b", 7)]);
        let mut clock = 0;
        let mut narrowed: BTreeMap<u8, (usize, u64, i64)> = BTreeMap::new();
        let mut sizes: BTreeMap<u8, u64> = BTreeMap::new();
        let mut placed: BTreeMap<u8, (usize, u64)> = BTreeMap::new();
        for op in ops {
            match op {
                Op::Score { holder, gib, hold } => {
                    let claim = claim(&holder.to_string(), gib);
                    let times = (later(clock), later(clock + 2));
                    let scores = ledger.filter_and_score(&claim, &pools.each_ref(), times, hold);
                    if scores.iter().any(|score| *score > 0) {
                        sizes.insert(holder, gib);
                    }
                }
                Op::Narrow { holder, pool } if !placed.contains_key(&holder) => {
                    let times = (later(clock), later(clock + 60));
                    match ledger.narrow(&holder.to_string(), &pools[pool], times) {
                        Ok(entry) => {
                            narrowed.insert(holder, (pool, entry.bytes / GIB, clock + 60));
                        }
                        Err(_) => {
                            narrowed.retain(|other, (_, _, until)| *other != holder || *until > clock);
                        }
                    }
                }
                Op::Place { holder, pool } => {
                    // Only narrowed claims may be placed, as scheduling does.
                    let held = narrowed.get(&holder).copied();
                    if let Some((at, gib, until)) = held
                        && at == pool && until > clock
                    {
                        let name = holder.to_string();
                        let size = VolumeSize { size: gib * GIB, replicated: false };
                        ledger.set_volume(&name, Some(size));
                        let target = pools[pool].clone();
                        let place = PlacedReplica { volume: name.clone(), target, reported: false };
                        ledger.set_replica(&name, Some(place));
                        narrowed.remove(&holder);
                        placed.insert(holder, (pool, gib));
                    }
                }
                Op::Release { holder } => {
                    ledger.release(&holder.to_string());
                    narrowed.remove(&holder);
                }
                Op::Wait { seconds } => {
                    clock += seconds;
                    ledger.sweep(later(clock));
                }
                Op::Narrow { .. } => {}
            }
            for (index, capacity) in [10, 7].into_iter().enumerate() {
                let reserved: u64 = narrowed
                    .values()
                    .filter(|(pool, _, until)| *pool == index && *until > clock)
                    .map(|(_, gib, _)| *gib)
                    .sum();
                let taken: u64 = placed
                    .values()
                    .filter(|(pool, _)| *pool == index)
                    .map(|(_, gib)| *gib)
                    .sum();
                prop_assert!(reserved + taken <= capacity, "{reserved} + {taken} in {index}");
            }
        }
    }
}
