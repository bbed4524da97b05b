//! The background tasks of a server: each is restarted after a failure, and some run only on the
//! leader of several servers.

use std::sync::Arc;
use std::time::Duration;

use mainstay_controller::election;
use mainstay_store::clock::Clock;
use mainstay_store::resources::Resources;
use mainstay_store::status;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use super::Error;
use crate::certificates::Certificates;
use crate::connection::Connections;
use crate::readiness::Readiness;
use crate::store_watch;
use crate::tls::{Authorities, Authority, Tls};

/// How long a background task rests after a failure before it is started again.
const REST: Duration = Duration::from_secs(1);

/// The parts that tasks need which only the leader of several servers runs.
#[derive(Clone, Debug)]
pub(super) struct Led {
    pub(super) election: Option<election::Handle>,
    pub(super) resources: Resources,
    pub(super) clock: Arc<dyn Clock>,
}

/// The tasks that keep a server in order, and the way to end them.
#[derive(Debug)]
pub(super) struct House {
    pub(super) tasks: TaskTracker,
    pub(super) stop: CancellationToken,
}

impl House {
    /// Runs a background task; after a failure it rests and starts again.
    pub(super) fn keep<E, F>(
        &self,
        name: &'static str,
        clock: Arc<dyn Clock>,
        work: impl Fn() -> F + Send + 'static,
    ) where
        E: std::fmt::Display + Send,
        F: Future<Output = Result<(), E>> + Send,
    {
        let stop = self.stop.clone();
        let work = async move {
            while let Err(error) = work().await {
                tracing::warn!(%error, name, "a background task failed; restarting it");
                clock.sleep(REST).await;
            }
        };
        self.tasks.spawn(async move { stop.run_until_cancelled(work).await });
    }

    /// Runs a background task while this server leads, writing under its fence.
    pub(super) fn keep_led<F>(
        &self,
        name: &'static str,
        led: &Led,
        work: impl Fn(Resources) -> F + Send + Sync + 'static,
    ) where
        F: Future<Output = Result<(), status::Error>> + Send,
    {
        let Led { election, resources, clock } = led.clone();
        let work = Arc::new(work);
        self.keep(name, clock, move || {
            let (election, resources) = (election.clone(), resources.clone());
            let work = work.clone();
            async move {
                let Some(election) = election else { return work(resources).await };
                while let Some(fence) = election.leading().await {
                    let mut leadership = election.leadership();
                    let lost = leadership.wait_for(|now| now.fence() != Some(&fence));
                    tokio::select! {
                        done = work(resources.fenced(fence.clone())) => return done,
                        _ = lost => {}
                    }
                }
                Ok(())
            }
        });
    }

    pub(super) fn sweep(&self, connections: Arc<Connections>) {
        let stop = self.stop.clone();
        self.tasks.spawn(async move { stop.run_until_cancelled(connections.sweep()).await });
    }

    pub(super) fn check(&self, readiness: Arc<Readiness>) {
        let stop = self.stop.clone();
        self.tasks.spawn(async move { stop.run_until_cancelled(readiness.run()).await });
    }

    pub(super) fn watch_store(&self, resources: Resources, clock: Arc<dyn Clock>) {
        let stop = self.stop.clone();
        let watching = store_watch::run(resources, clock);
        self.tasks.spawn(async move { stop.run_until_cancelled(watching).await });
    }

    /// Follows the authority and the certificates of nodes.
    pub(super) fn keep_trust(
        &self,
        authority: &Arc<Authorities>,
        certificates: &Arc<Certificates>,
        tls: Option<&Arc<Tls>>,
        clock: &Arc<dyn Clock>,
        write: impl Fn(&Authority) -> Result<(), Error> + Send + Sync + 'static,
    ) {
        let all = certificates.clone();
        self.keep("certificates", clock.clone(), move || {
            let all = all.clone();
            async move { all.follow().await }
        });
        let all = certificates.clone();
        self.keep("deleted nodes", clock.clone(), move || {
            let all = all.clone();
            async move { all.follow_nodes().await }
        });
        let all = certificates.clone();
        self.keep("revoked nodes", clock.clone(), move || {
            let all = all.clone();
            async move { all.keep_swept().await }
        });
        let (authority, certificates, tls) =
            (authority.clone(), certificates.clone(), tls.cloned());
        let changed = Arc::new(move |next: &Arc<Authority>| {
            if let Some(tls) = &tls {
                tls.exchange(next)?;
            }
            if next.previous().is_none() {
                certificates.cut_others(next.name());
            }
            if let Err(error) = write(next) {
                tracing::error!(%error, "the authority was exchanged, but a file was not written");
            }
            Ok(())
        });
        self.keep("authority", clock.clone(), move || {
            let (authority, changed) = (authority.clone(), changed.clone());
            async move { authority.follow(&*changed).await }
        });
    }

    pub(super) fn fresh(&self, tls: Arc<Tls>, clock: Arc<dyn Clock>) {
        let stop = self.stop.clone();
        self.tasks.spawn(async move { stop.run_until_cancelled(tls.keep_fresh(clock)).await });
    }

    pub(super) async fn end(&self) {
        self.stop.cancel();
        self.tasks.close();
        self.tasks.wait().await;
    }
}
