use std::collections::BTreeSet;

use proptest::prelude::*;

use super::*;
use crate::phase::Phase::{
    Formatting, Mounting, Provisioned, Provisioning, Unmounting, Unprovisioning,
};
use crate::phase::{Content, Ending, Fault, Input, Mount, Provisioner, Record, Retrigger};

const CONTENTS: [Content; 6] = [
    Content::Blank,
    Content::Ours,
    Content::Adoptable,
    Content::Foreign,
    Content::Partitioned,
    Content::Other,
];
const MOUNTS: [Mount; 5] =
    [Mount::Nowhere, Mount::Right, Mount::Elsewhere, Mount::Stacked, Mount::WrongSource];
const RECORDS: [Record; 5] =
    [Record::NoNode, Record::Missing, Record::Equal, Record::OtherPath, Record::OtherTags];
const INPUTS: [Input; 10] = [
    Input::Look,
    Input::Ended(Ending::Ok),
    Input::Ended(Ending::BadSuperblock),
    Input::Ended(Ending::Busy),
    Input::Ended(Ending::Timeout),
    Input::Ended(Ending::Error),
    Input::Ended(Ending::Conflict),
    Input::Ended(Ending::NodeGone),
    Input::Ended(Ending::ReplicasRemain),
    Input::Ended(Ending::Late),
];
const FAULTS: [Option<Fault>; 4] =
    [None, Some(Fault::FilesystemChanged), Some(Fault::FilesystemMissing), Some(Fault::ReadOnly)];
const RETRIGGERS: [Retrigger; 4] =
    [Retrigger::None, Retrigger::Retry, Retrigger::Repaired, Retrigger::Force];

fn phases() -> impl Strategy<Value = Option<Phase>> {
    prop::option::weighted(0.95, prop::sample::select(Phase::ALL.to_vec()))
}

fn facts() -> impl Strategy<Value = Facts> {
    let flags = prop::array::uniform10(any::<bool>());
    let words = (
        prop::sample::select(INPUTS.to_vec()),
        prop::sample::select(CONTENTS.to_vec()),
        prop::sample::select(MOUNTS.to_vec()),
        prop::sample::select(RECORDS.to_vec()),
        prop::sample::select(RETRIGGERS.to_vec()),
        prop::sample::select(FAULTS.to_vec()),
    );
    (flags, words).prop_map(|(flags, (input, content, mount, record, retrigger, fault))| {
        let [not_ours, active, want, request, auto, gate, lvm, corrupted, repaired, closed] = flags;
        Facts {
            input,
            not_ours: not_ours && corrupted,
            active: active || want,
            want,
            request,
            auto,
            gate,
            provisioner: if lvm { Provisioner::Lvm } else { Provisioner::Filesystem },
            content,
            mount,
            fault,
            adopt: auto,
            corrupted,
            repaired,
            record,
            replicas: repaired && closed,
            closed,
            retrigger,
            lease_free: !closed,
        }
    })
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 4096, ..ProptestConfig::default() })]

    #[test]
    fn every_phase_and_input_has_a_row(phase in phases(), facts in facts()) {
        let decision = decide(phase, &facts);
        prop_assert!(decision.row.on.covers(phase));
        let again = decide(phase, &facts);
        prop_assert_eq!(decision.row.id, again.row.id);
    }

    #[test]
    fn no_transition_to_formatting_bypasses_the_gate(phase in phases(), facts in facts()) {
        let decision = decide(phase, &facts);
        if decision.next == Phase::Formatting && phase != Some(Phase::Formatting) {
            prop_assert!(facts.gate && facts.request && facts.active && !facts.not_ours);
        }
        if decision.operation() == Some(Operation::Format) {
            prop_assert_eq!(decision.next, Phase::Formatting);
        }
    }

    #[test]
    fn an_operation_is_started_only_under_its_lock(phase in phases(), facts in facts()) {
        let decision = decide(phase, &facts);
        if let Some(operation) = decision.operation() {
            prop_assert!(!phase.is_some_and(Phase::is_lock));
            prop_assert_eq!(operation.lock().unwrap_or(Phase::Provisioned), decision.next);
            prop_assert_eq!(facts.input, Input::Look);
        }
    }

    #[test]
    fn a_lock_is_left_only_by_the_end_of_its_operation(facts in facts()) {
        for phase in Phase::ALL.into_iter().filter(|phase| phase.is_lock()) {
            let look = Facts { input: Input::Look, ..facts };
            prop_assert_eq!(decide(Some(phase), &look).next, phase);
        }
    }

    #[test]
    fn failed_is_left_only_by_a_person(facts in facts()) {
        let decision = decide(Some(Phase::Failed), &facts);
        if decision.next != Phase::Failed {
            prop_assert!(facts.retrigger != Retrigger::None && facts.lease_free);
            prop_assert!(!decision.next.is_lock());
        }
    }

    #[test]
    fn no_unmount_starts_while_a_pool_or_a_replica_is_on_the_disk(phase in phases(), facts in facts()) {
        let decision = decide(phase, &facts);
        let unmounts = decision.operation() == Some(Operation::Unmount);
        let other = facts.mount == Mount::WrongSource;
        prop_assert!(!unmounts || !facts.pooled() || other, "{} {:?}", decision.row.id, facts);
    }

    #[test]
    fn no_two_phases_alternate(phase in phases(), facts in facts()) {
        let mut world = World { phase, facts: Facts { input: Input::Look, ..facts } };
        let mut formats = 0;
        for _ in 0..32 {
            let decision = decide(world.phase, &world.facts);
            formats += usize::from(decision.operation() == Some(Operation::Format));
            if !world.step(&decision) {
                prop_assert!(formats <= 1, "formatted {} times", formats);
                return Ok(());
            }
        }
        prop_assert!(false, "never came to rest: {:?}", world);
    }
}

/// A world in which every operation succeeds and no other actor changes anything.
#[derive(Debug)]
struct World {
    phase: Option<Phase>,
    facts: Facts,
}

impl World {
    /// Follows a decision; says whether anything moved.
    fn step(&mut self, decision: &Decision) -> bool {
        let moved = self.phase != Some(decision.next) || decision.operation().is_some();
        self.phase = Some(decision.next);
        self.effects(decision.row.effects);
        if let Some(operation) = decision.operation() {
            self.operate(operation);
        } else if let Some(operation) = Operation::of(decision.next) {
            // Found in a lock phase, as after a crash: its operation is run to its end.
            self.operate(operation);
            return true;
        }
        moved
    }

    fn operate(&mut self, operation: Operation) {
        match operation {
            Operation::Format => {
                self.facts.content = Content::Ours;
                self.facts.fault = None;
                (self.facts.request, self.facts.corrupted) = (false, false);
            }
            Operation::Mount => self.facts.mount = Mount::Right,
            Operation::Unmount => self.facts.mount = Mount::Nowhere,
            Operation::Register | Operation::Sync => self.facts.record = Record::Equal,
            Operation::Deregister => {
                (self.facts.record, self.facts.replicas) = (Record::Missing, false);
                self.facts.closed = true;
            }
        }
        if operation.lock().is_some() {
            let ended = Facts { input: Input::Ended(Ending::Ok), ..self.facts };
            let decision = decide(self.phase, &ended);
            self.phase = Some(decision.next);
            self.effects(decision.row.effects);
        }
    }

    fn effects(&mut self, effects: &[Effect]) {
        for effect in effects {
            match effect {
                Effect::Adopted => self.facts.content = Content::Ours,
                Effect::Forgotten if self.facts.fault != Some(Fault::ReadOnly) => {
                    self.facts.fault = None;
                    if self.facts.content == Content::Foreign {
                        self.facts.content = Content::Adoptable;
                    }
                }
                Effect::Cleared => self.facts.retrigger = Retrigger::None,
                _ => {}
            }
        }
    }
}

#[test]
fn every_row_can_be_reached() {
    let mut reached = BTreeSet::new();
    let flags = [false, true];
    let mut try_all = |input, content, mount, record| {
        for bits in 0..1024_u32 {
            let flag = |n: u32| flags[usize::from(bits & (1 << n) != 0)];
            let facts = Facts {
                input,
                not_ours: flag(0) && flag(1) && flag(2),
                active: flag(1),
                want: flag(2),
                request: flag(3),
                auto: flag(4),
                gate: flag(5),
                provisioner: if flag(6) { Provisioner::Lvm } else { Provisioner::Filesystem },
                content,
                mount,
                fault: FAULTS[usize::from(flag(8)) + 2 * usize::from(flag(9))],
                adopt: flag(4),
                corrupted: flag(7),
                repaired: flag(8),
                record,
                replicas: false,
                closed: flag(9),
                retrigger: if flag(9) { Retrigger::Retry } else { Retrigger::None },
                lease_free: true,
            };
            for phase in Phase::ALL.into_iter().map(Some).chain([None]) {
                let row = decide(phase, &facts).row;
                reached.insert(std::ptr::from_ref(row));
            }
        }
    };
    for input in INPUTS {
        try_all(input, Content::Ours, Mount::Right, Record::Equal);
    }
    for content in CONTENTS {
        try_all(Input::Look, content, Mount::Nowhere, Record::Missing);
    }
    for mount in MOUNTS {
        for record in RECORDS {
            try_all(Input::Look, Content::Ours, mount, record);
        }
    }
    let unreached: Vec<_> = ROWS
        .iter()
        .filter(|row| !reached.contains(&std::ptr::from_ref(*row)))
        .map(|row| format!("{}: {}", row.id, row.guard))
        .collect();
    assert!(unreached.is_empty(), "{unreached:#?}");
}

/// A look in `phase` with `facts`: the phase and operation that follow.
fn look(phase: Phase, facts: Facts) -> (Phase, Option<Operation>) {
    let decision = decide(Some(phase), &facts);
    (decision.next, decision.operation())
}

#[test]
fn a_format_is_asked_for_explicitly() {
    let asked = Facts { request: true, gate: true, ..Facts::blank() };
    assert_eq!(look(Unprovisioned, asked), (Formatting, Some(Operation::Format)));
    assert_eq!(look(Unprovisioned, Facts::blank()), (Unprovisioned, None));
    let wanted = Facts { want: true, ..Facts::blank() };
    assert_eq!(look(Unprovisioned, wanted), (Unprovisioned, None));
    let refused = Facts { gate: false, ..asked };
    assert_eq!(look(Unprovisioned, refused), (Failed, None));
    assert_eq!(look(Unprovisioned, Facts { auto: true, ..refused }), (Unprovisioned, None));
}

#[test]
fn formatted_follows_mount_and_wish() {
    let cases = [
        (Mount::Nowhere, false, Formatted),
        (Mount::Nowhere, true, Mounting),
        (Mount::Right, false, Unmounting),
        (Mount::Right, true, Mounted),
        (Mount::Elsewhere, false, Formatted),
        (Mount::Elsewhere, true, Formatted),
    ];
    for (mount, want, expected) in cases {
        let facts = Facts { mount, want, content: Content::Ours, ..Facts::blank() };
        assert_eq!(look(Formatted, facts).0, expected, "{mount:?} {want}");
    }
}

#[test]
fn a_mount_of_another_program_is_taken_over_only_if_adopted() {
    let there = Facts { mount: Mount::Elsewhere, want: true, ..Facts::blank() };
    let cases = [
        (Unprovisioned, Content::Adoptable, Unprovisioned, Formatted),
        (Formatted, Content::Ours, Formatted, Unmounting),
        (Mounted, Content::Ours, Mounted, Unmounting),
    ];
    for (phase, content, refused, adopted) in cases {
        let facts = Facts { content, ..there };
        assert_eq!(look(phase, facts).0, refused, "{phase}");
        assert_eq!(look(phase, Facts { adopt: true, ..facts }).0, adopted, "{phase}");
    }
}

#[test]
fn mounted_follows_wish_mount_and_node() {
    let right = Facts { mount: Mount::Right, want: true, content: Content::Ours, ..Facts::blank() };
    let cases = [
        (right, Provisioning),
        (Facts { mount: Mount::Nowhere, ..right }, Formatted),
        (Facts { want: false, ..right }, Unmounting),
        (Facts { record: Record::NoNode, ..right }, Mounted),
        (Facts { mount: Mount::Stacked, ..right }, Unmounting),
    ];
    for (facts, expected) in cases {
        assert_eq!(look(Mounted, facts).0, expected, "{facts:?}");
    }
}

#[test]
fn provisioned_follows_wish_mount_and_record() {
    let fine = Facts {
        mount: Mount::Right,
        want: true,
        content: Content::Ours,
        record: Record::Equal,
        ..Facts::blank()
    };
    let cases = [
        (fine, Provisioned),
        (Facts { mount: Mount::Nowhere, ..fine }, Formatted),
        (Facts { want: false, ..fine }, Unprovisioning),
        (Facts { record: Record::Missing, ..fine }, Mounted),
        (Facts { record: Record::OtherPath, ..fine }, Unprovisioning),
        (Facts { record: Record::NoNode, ..fine }, Provisioned),
        (Facts { active: false, mount: Mount::Nowhere, ..fine }, Provisioned),
        (Facts { request: true, gate: true, ..fine }, Provisioned),
    ];
    for (facts, expected) in cases {
        assert_eq!(look(Provisioned, facts).0, expected, "{facts:?}");
    }
}

#[test]
fn a_pool_whose_filesystem_was_replaced_is_failed_and_never_adopted() {
    let changed = Facts {
        want: true,
        content: Content::Foreign,
        fault: Some(Fault::FilesystemChanged),
        ..Facts::blank()
    };
    for phase in [Unprovisioned, Formatted, Mounted, Provisioned] {
        for mount in MOUNTS {
            let decision = decide(Some(phase), &Facts { mount, ..changed });
            assert_eq!(decision.next, Failed, "{phase} {mount:?}");
            assert!(decision.row.effects.contains(&Effect::Faulty));
        }
    }
    let unwanted = Facts { want: false, ..changed };
    assert_eq!(look(Formatted, unwanted), (Unprovisioned, None));
    let requested = Facts { request: true, gate: true, ..changed };
    assert_eq!(look(Formatted, requested), (Formatting, Some(Operation::Format)));
}

#[test]
fn a_disk_that_is_not_wanted_is_deregistered_from_every_stable_phase() {
    let left = Facts { record: Record::Equal, ..Facts::blank() };
    for phase in [Unprovisioned, Formatted, Mounted, Provisioned] {
        let expected = (Unprovisioning, Some(Operation::Deregister));
        assert_eq!(look(phase, left), expected, "{phase}");
    }
    let failed = Facts { retrigger: Retrigger::Retry, ..left };
    for mount in MOUNTS {
        let next = look(Failed, Facts { mount, ..failed });
        assert_eq!(next, (Formatted, None), "from where it is deregistered: {mount:?}");
    }
}

#[test]
fn results_lead_to_the_documented_phases() {
    use Ending::{BadSuperblock, Busy, Conflict, Error, NodeGone, Ok, ReplicasRemain, Timeout};
    let cases = [
        (Formatting, Ok, Formatted, "FG1"),
        (Formatting, Timeout, Failed, "FG2"),
        (Mounting, Ok, Mounted, "MG1"),
        (Mounting, BadSuperblock, Failed, "MG2"),
        (Mounting, Error, Failed, "MG3"),
        (Provisioning, Ok, Provisioned, "PG1"),
        (Provisioning, Conflict, Provisioning, "PG2"),
        (Provisioning, NodeGone, Mounted, "PG3"),
        (Provisioning, Timeout, Failed, "PG4"),
        (Unprovisioning, ReplicasRemain, Unprovisioning, "UG1"),
        (Unprovisioning, Ok, Mounted, "UG2"),
        (Unmounting, Ok, Formatted, "NG1"),
        (Unmounting, Busy, Failed, "NG2"),
        (Failed, Ok, Failed, "X3"),
        (Mounted, Error, Mounted, "A4"),
    ];
    for (phase, ending, expected, id) in cases {
        let facts = Facts { input: Input::Ended(ending), ..Facts::blank() };
        let decision = decide(Some(phase), &facts);
        assert_eq!((decision.next, decision.row.id), (expected, id), "{phase} {ending:?}");
    }
    let pulled = Facts { active: false, closed: true, input: Input::Ended(Ok), ..Facts::blank() };
    assert_eq!(decide(Some(Unprovisioning), &pulled).next, Unprovisioned);
}

#[test]
fn the_document_and_the_diagram_show_every_row() {
    let text = text();
    assert_eq!(text.lines().count(), ROWS.len() + 2);
    let diagram = diagram();
    assert!(diagram.contains("Unprovisioned --> Formatting: U2"), "{diagram}");
    assert!(diagram.contains("Failed --> Mounted: X2"), "{diagram}");
}
