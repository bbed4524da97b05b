use proptest::prelude::*;

use super::*;

const MIB: i64 = 1 << 20;

fn machines(of: &[(&str, i64, i64)]) -> Machines {
    let mut machines = Machines::default();
    for (name, cpu, memory) in of {
        let name = Arc::from(*name);
        machines.join(&name, Amount { cpu: *cpu, memory: *memory }, BTreeMap::new());
        machines.set_schedulable(&name, true);
    }
    machines
}

fn needs(cpu: i64, memory: i64) -> Needs<'static> {
    Needs { amount: Amount { cpu, memory }, ..Needs::default() }
}

fn names(placed: &[Arc<str>]) -> Vec<&str> {
    placed.iter().map(|name| &**name).collect()
}

#[test]
fn a_batch_goes_to_the_most_available_machines_in_turn() {
    let mut machines = machines(&[("a", 4000, MIB), ("b", 3000, MIB), ("c", 2000, MIB)]);
    let placed = machines.place(&needs(1000, 0), 10);
    assert_eq!(names(&placed), ["a", "b", "a", "c", "b", "a", "c", "b", "a"]);
    for name in ["a", "b", "c"] {
        assert_eq!(machines.left(name).unwrap().cpu, 0, "an exact fit fits: {name}");
    }
}

#[test]
fn memory_limits_placement_and_no_request_reserves_nothing() {
    let mut two = machines(&[("a", 8000, 256 * MIB), ("b", 1000, 4096 * MIB)]);
    assert_eq!(names(&two.place(&needs(500, 512 * MIB), 1)), ["b"]);
    let mut small = machines(&[("a", 500, 256 * MIB)]);
    assert_eq!(small.place(&needs(0, 0), 3).len(), 3);
    assert_eq!(small.left("a"), Some(Amount { cpu: 500, memory: 256 * MIB }));
}

#[test]
fn selectors_and_preferences_are_respected_and_explained() {
    let mut machines =
        machines(&[("a", 4000, MIB), ("b", 3000, MIB), ("c", 2000, MIB), ("d", 9000, MIB)]);
    let labels = BTreeMap::from([("disk".to_owned(), "fast".to_owned())]);
    for name in ["b", "c"] {
        let has = machines.has(name).unwrap();
        machines.join(&Arc::from(name), has, labels.clone());
    }
    machines.set_schedulable(&Arc::from("d"), false);
    let preferred = HashSet::from([Arc::from("c")]);
    let needs = Needs { selector: Some(&labels), preferred: Some(&preferred), ..needs(1000, 0) };
    let before = machines.explain(&needs);
    let seen: Vec<_> = before.iter().map(|one| (&*one.node, one.because.as_str())).collect();
    assert_eq!(
        seen,
        [
            ("c", ""),
            ("b", ""),
            ("d", "the node is not ready or cordoned"),
            ("a", "lacks the labels disk=fast"),
        ]
    );
    let placed = machines.place(&needs, 9);
    assert_eq!(names(&placed), ["c", "c", "b", "b", "b"]);
    let after = machines.explain(&needs);
    let full: Vec<_> = after.iter().filter(|one| one.because.contains("0m of processor")).collect();
    assert_eq!(full.len(), 2, "{after:?}");
    assert_eq!(machines.schedulable(), 3, "machines that were set aside are in the ranking again");
}

#[test]
fn an_overloaded_machine_takes_no_instances() {
    let mut machines = machines(&[("a", 1000, MIB)]);
    let a = Arc::from("a");
    machines.reserve(&a, Amount { cpu: 2000, memory: 0 });
    assert_eq!(machines.left("a").unwrap().cpu, -1000);
    assert!(machines.place(&needs(1, 0), 1).is_empty());
    machines.release(&a, Amount { cpu: 2000, memory: 0 });
    assert_eq!(machines.place(&needs(1000, 0), 2).len(), 1);
}

proptest! {
    /// For every item, the ranking chooses the machine that a full scan would choose.
    #[test]
    fn the_ranking_chooses_the_machine_of_a_full_scan(
        has in proptest::collection::vec((0_i64..9, 0_i64..9, any::<bool>()), 1..12),
        asked in proptest::collection::vec((0_i64..4, 0_i64..4, 1_usize..5), 1..8),
    ) {
        let mut machines = Machines::default();
        for (index, (cpu, memory, schedulable)) in has.iter().enumerate() {
            let name = Arc::from(format!("n{index:02}"));
            machines.join(&name, Amount { cpu: *cpu, memory: *memory }, BTreeMap::new());
            machines.set_schedulable(&name, *schedulable);
        }
        for (cpu, memory, count) in asked {
            let needs = needs(cpu, memory);
            let mut model = machines.clone();
            let mut expected = Vec::new();
            for _ in 0..count {
                let best = model.machines.iter()
                    .filter(|(_, machine)| machine.schedulable && refusal(machine, &needs).is_none())
                    .map(|(name, machine)| rank(name, machine))
                    .min();
                let Some((_, _, name)) = best else { break };
                model.take(&name, needs.amount);
                expected.push(name);
            }
            let placed = machines.place(&needs, count);
            prop_assert_eq!(&placed, &expected);
            for (name, machine) in &machines.machines {
                prop_assert!(machine.left.cpu >= 0 && machine.left.memory >= 0);
                prop_assert_eq!(machines.ranking.contains(&rank(name, machine)), machine.schedulable);
            }
            let up = machines.machines.values().filter(|machine| machine.schedulable).count();
            prop_assert_eq!(machines.schedulable(), up);
        }
    }
}
