//! Opens the store that a data folder belongs to, and joins the election where several servers share
//! one.

use std::sync::Arc;

use mainstay_controller::election::{self, Election};
use mainstay_store::clock::Clock;
use mainstay_store::identity::{self, Marker};
use mainstay_store::memory::MemoryStore;
use mainstay_store::objects::Objects;
use mainstay_store::registry::{Durability, Kind};
use mainstay_store::resources::{Identities, RandomIdentities};
use mainstay_store::tiered::{self, Tiered};
use mainstay_store::{Location, Settings, backup};

use super::Error;
use crate::options::Options;

async fn must_be_whole(objects: &dyn Objects) -> Result<(), Error> {
    if backup::unfinished(objects).await? { Err(Error::HalfRestored) } else { Ok(()) }
}

/// Opens the store that this data folder belongs to.
async fn open_own(options: &Options) -> Result<Arc<dyn Objects>, Error> {
    let (dir, meant) = (&options.data_dir, options.new_cluster);
    let marker = match Marker::read(dir) {
        Err(identity::Error::Marker { .. }) if meant => Marker::default(),
        read => read?,
    };
    if let (Location::Sqlite(path), false) = (&options.store, meant) {
        marker.expects(dir, path)?;
    }
    let settings = Settings { new_database: meant, ..options.settings.clone() };
    let objects = mainstay_store::open(&options.store, &settings, options.clock.clone()).await?;
    let settled = async {
        must_be_whole(&*objects).await?;
        if options.store != Location::Memory {
            let (place, fresh) = (options.store.to_string(), RandomIdentities.uid());
            marker.settle(dir, &place, &*objects, &fresh, meant).await?;
        }
        Ok(())
    };
    match settled.await {
        Ok(()) => Ok(objects),
        Err(error) => {
            objects.close().await;
            Err(error)
        }
    }
}

/// Opens the store, with memory beside it for kinds that need not survive.
pub(super) async fn open(options: &Options) -> Result<Arc<dyn Objects>, Error> {
    let (settings, clock) = (&options.settings, options.clock.clone());
    let durable = open_own(options).await?;
    let in_memory = |kind: &&Arc<Kind>| kind.durability == Durability::Memory;
    let in_memory: Vec<_> =
        options.registry.iter().filter(in_memory).map(|kind| kind.resource().clone()).collect();
    if in_memory.is_empty() {
        return Ok(durable);
    }
    let epoch = match tiered::next_epoch(&*durable).await {
        Ok(epoch) => epoch,
        Err(error) => {
            durable.close().await;
            return Err(error.into());
        }
    };
    let memory = MemoryStore::new(epoch, settings.retention, settings.largest_object, clock);
    Ok(Arc::new(Tiered::new(durable, memory, in_memory)))
}

/// Stands for election where several servers share a store; elsewhere this one is alone, and leads.
pub(super) fn stand(
    store: &Location,
    url: &str,
    objects: &Arc<dyn Objects>,
    clock: &Arc<dyn Clock>,
) -> Option<election::Handle> {
    let Location::Etcd(_) = store else { return None };
    let holder = format!("{url} {}", RandomIdentities.uid());
    let options =
        election::Options { address: url.to_owned(), ..election::Options::new("servers", &holder) };
    Some(Election::run(options, objects.clone(), clock.clone()))
}
