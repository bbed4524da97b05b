//! Random histories on every backend, compared with the model.

use proptest::prelude::*;

use crate::conformance::{Step, both, replay, short, steps};
use crate::{Backend, Stage, block_on, quiet_cluster};

fn on(backend: Backend, steps: Vec<Step>) {
    block_on(async {
        let stage = Stage::on(backend, short(), quiet_cluster).await;
        replay(stage, steps, both()).await;
    });
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 24, ..ProptestConfig::default() })]

    #[test]
    fn etcd_behaves_as_the_model(steps in steps(both())) {
        on(Backend::Etcd, steps);
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 192, ..ProptestConfig::default() })]

    #[test]
    fn memory_behaves_as_the_model(steps in steps(both())) {
        on(Backend::Memory, steps);
    }

    #[test]
    fn sqlite_behaves_as_the_model(steps in steps(both())) {
        on(Backend::Sqlite, steps);
    }
}
