//! An engine with the descriptors of a scenario, outside of any play: `graph serve`.

use std::path::Path;
use std::sync::Arc;

use super::file::Scenario;
use super::south::{MadeUp, South};
use crate::engine::{Builder, Engine, Options};
use crate::worker::Service;

/// Makes an engine with every descriptor of a scenario, late ones included. Its steps are ignored.
/// With a folder, the simulated south is kept there: after a restart it is as it was, and the values
/// under `south` of the scenario no longer count.
///
/// # Errors
/// Fails if a descriptor is refused, or if the journal or the south cannot be read.
pub fn live(
    scenario: &Scenario,
    options: Options,
    folder: Option<&Path>,
) -> Result<(Engine, Service), super::Error> {
    let south = South::new(scenario, Arc::clone(&options.clock));
    if let Some(folder) = folder {
        let path = folder.join("south.jsonl");
        south.keep(&path).map_err(|source| super::Error::South { path, source })?;
    }
    let parallel = scenario.parallel.unwrap_or(1);
    let mut builder = Builder::new(options.parallel(parallel).verify(scenario.verify));
    for spec in &scenario.descriptors {
        builder = builder.register(MadeUp::new(spec.clone(), south.clone()))?;
    }
    Ok(builder.build()?)
}
