//! Leader election: of several servers, one runs the controllers.
//!
//! The lease of the store decides ([`mainstay_store::lease`]); this is the task that keeps
//! claiming it. Being the leader is a belief, held between two looks at a clock, and a process
//! can be paused between any two instructions. So the belief only saves work, and safety rests
//! elsewhere: whatever a leader writes goes under its [`Fence`], and the store refuses it once
//! the lease has changed hands.
//!
//! Always true:
//! * Of two processes that believe to lead, at most one can write under its fence.
//! * A leader that cannot renew steps down [`Options::margin`] before others may take over. As long as
//!   clocks run at the same speed and no process is paused, no two believe to lead.
//! * Only steady time is used, each server's own: setting a clock changes nothing, and the clocks
//!   of two servers need not agree.
//! * A leader that shuts down gives the lease up, and the others, who watch it, need not wait.
//!
//! [`Election::run`] starts it; [`Handle::leadership`] is the current leader.

use std::sync::Arc;
use std::time::Duration;

use mainstay_clock::Clock;
use mainstay_store::cache::Watch;
use mainstay_store::lease::{self, Claim, Lease};
use mainstay_store::objects::{Error, Fence, Objects};
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use crate::meter::{Meter, NoMeter};
use crate::queue::sleep_until;
use crate::task::Owned;

/// How to stand for election.
#[derive(Clone, Debug)]
pub struct Options {
    /// The lease.
    pub name: String,
    /// The name of the candidate. No two live processes may use the same name.
    pub holder: String,
    /// Where the holder can be reached, for those who forward to it.
    pub address: String,
    /// How long the lease is good for after it was claimed or renewed.
    pub ttl: Duration,
    /// How long before that a leader that cannot renew steps down.
    pub margin: Duration,
    /// How long after one renewal the next is due.
    pub renew_every: Duration,
    /// How long to wait after the store failed.
    pub retry_every: Duration,
    /// Where it is counted.
    pub meter: Arc<dyn Meter>,
}

impl Options {
    /// A lease of 15 seconds, renewed every 5, given up after 10 without renewal.
    #[must_use]
    pub fn new(name: &str, holder: &str) -> Self {
        Self {
            name: name.to_owned(),
            holder: holder.to_owned(),
            address: String::new(),
            ttl: Duration::from_secs(15),
            margin: Duration::from_secs(5),
            renew_every: Duration::from_secs(5),
            retry_every: Duration::from_secs(1),
            meter: Arc::new(NoMeter),
        }
    }
}

/// The leader, as far as this process knows.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Leadership {
    /// Another process, or none: both fields are empty when it is not known.
    Following {
        /// Its name.
        holder: String,
        /// The address of the leader.
        address: String,
    },
    /// This process. Write under this fence; a different one is a different term.
    Leading(Fence),
}

impl Leadership {
    /// The fence to write under, if this process leads.
    #[must_use]
    pub fn fence(&self) -> Option<&Fence> {
        match self {
            Self::Leading(fence) => Some(fence),
            Self::Following { .. } => None,
        }
    }

    fn unknown() -> Self {
        Self::Following { holder: String::new(), address: String::new() }
    }
}

/// Stands for election.
#[derive(Debug)]
pub struct Election;

impl Election {
    /// Begins to claim the lease, again and again. Must be called within a tokio runtime.
    ///
    /// [`Handle::shutdown`] gives the lease up; when the last handle is dropped, claiming ends and
    /// the lease runs out by itself.
    #[must_use]
    pub fn run(options: Options, objects: Arc<dyn Objects>, clock: Arc<dyn Clock>) -> Handle {
        let leadership = watch::Sender::new(Leadership::unknown());
        let stop = CancellationToken::new();
        let receiver = leadership.subscribe();
        let candidate = Candidate {
            lease: Lease::new(
                objects.clone(),
                &options.name,
                &options.holder,
                &options.address,
                options.ttl,
            ),
            options,
            objects,
            clock,
            leadership,
            leading_until: None,
            news: None,
        };
        let task = Owned::spawn(candidate.run(stop.clone()));
        Handle { leadership: receiver, stop, task }
    }
}

/// The task's own state.
struct Candidate {
    options: Options,
    lease: Lease,
    objects: Arc<dyn Objects>,
    clock: Arc<dyn Clock>,
    leadership: watch::Sender<Leadership>,
    /// When to step down unless the lease is renewed before.
    leading_until: Option<Duration>,
    /// Reports changes of another process's lease.
    news: Option<Watch>,
}

impl Candidate {
    async fn run(mut self, stop: CancellationToken) {
        while let Some(next) = stop.run_until_cancelled(self.attempt()).await {
            if stop.run_until_cancelled(self.wait(next)).await.is_none() {
                break;
            }
        }
        self.follow(Leadership::unknown());
        let clock = self.clock.clone();
        tokio::select! {
            released = self.lease.release() => if let Err(error) = released {
                tracing::warn!(lease = self.options.name, %error, "releasing the leader lease failed");
            },
            () = clock.sleep(self.options.ttl) => {}
        }
    }

    /// Claims once, and says when to claim again.
    async fn attempt(&mut self) -> Duration {
        let began = self.clock.elapsed();
        let scope = lease::scope(&self.options.name);
        let seen = self.objects.revision(&scope.resource);
        // A store that does not answer must not keep a leader in office.
        let patience = self.leading_until.unwrap_or(began + self.options.ttl);
        let clock = self.clock.clone();
        let claim = tokio::select! {
            biased;
            () = sleep_until(&*clock, patience) => Err(Error::Unavailable {
                reason: "it did not answer in time".to_owned(),
            }),
            claim = self.lease.claim(|| clock.elapsed()) => claim,
        };
        let now = self.clock.elapsed();
        match claim {
            Ok(Claim::Held(fence)) => {
                let until = (began + self.options.ttl).saturating_sub(self.options.margin);
                if now >= until {
                    // The answer took so long that little of the lease is left: renew at once.
                    self.follow(Leadership::unknown());
                    return now;
                }
                self.lead(fence, until);
                (began + self.options.renew_every).min(until)
            }
            Ok(Claim::Other { holder, address, retry_in }) => {
                const SOON: Duration = Duration::from_millis(100);
                self.follow(Leadership::Following { holder, address });
                if self.news.is_none() {
                    self.news = self.objects.watch(scope, seen).await.ok();
                }
                now + retry_in.max(SOON)
            }
            Err(error) => {
                tracing::warn!(lease = self.options.name, %error, "acquiring the leader lease failed; retrying");
                if self.leading_until.is_some_and(|until| now >= until) {
                    self.follow(Leadership::unknown());
                }
                now + self.options.retry_every
            }
        }
    }

    /// Waits until it is time to claim again, and steps down if that comes first.
    async fn wait(&mut self, next: Duration) {
        let clock = self.clock.clone();
        loop {
            let leading_until = self.leading_until.unwrap_or(Duration::MAX);
            let leading = self.leading_until.is_some();
            tokio::select! {
                biased;
                () = sleep_until(&*clock, leading_until), if leading => {
                    if clock.elapsed() >= leading_until {
                        self.follow(Leadership::unknown());
                    }
                }
                () = sleep_until(&*clock, next) => {
                    if clock.elapsed() >= next {
                        return;
                    }
                }
                heard = heard(self.news.as_mut()), if !leading => match heard {
                    Ok(()) => return,
                    // Without news the next attempt comes by the clock, and asks for news again.
                    Err(_) => self.news = None,
                },
            }
        }
    }

    fn lead(&mut self, fence: Fence, until: Duration) {
        self.leading_until = Some(until);
        self.tell(Leadership::Leading(fence));
    }

    fn follow(&mut self, leadership: Leadership) {
        self.leading_until = None;
        self.tell(leadership);
    }

    fn tell(&self, leadership: Leadership) {
        let leads = leadership.fence().is_some();
        let led = self.leadership.borrow().fence().is_some();
        if leads != led {
            let (lease, holder) = (&self.options.name, &self.options.holder);
            tracing::info!(lease, holder, leads, "leadership changed");
            self.options.meter.leading(lease, leads);
        }
        self.leadership.send_if_modified(|current| {
            let changed = *current != leadership;
            *current = leadership;
            changed
        });
    }
}

async fn heard(news: Option<&mut Watch>) -> Result<(), Error> {
    match news {
        Some(news) => news.next().await.map(drop),
        None => std::future::pending().await,
    }
}

/// Tells who leads, and ends the candidacy. Clones are the same candidate.
#[derive(Clone, Debug)]
pub struct Handle {
    leadership: watch::Receiver<Leadership>,
    stop: CancellationToken,
    task: Owned<()>,
}

impl Handle {
    /// The leader, now and as it changes.
    #[must_use]
    pub fn leadership(&self) -> watch::Receiver<Leadership> {
        self.leadership.clone()
    }

    /// The fence to write under, if this process leads.
    #[must_use]
    pub fn fence(&self) -> Option<Fence> {
        self.leadership.borrow().fence().cloned()
    }

    /// Waits until this process leads; `None` if it has shut down instead.
    pub async fn leading(&self) -> Option<Fence> {
        let mut leadership = self.leadership.clone();
        let leading = leadership.wait_for(|now| now.fence().is_some()).await;
        leading.ok().and_then(|now| now.fence().cloned())
    }

    /// Steps down, gives the lease up and waits until that is done. Calling it again is harmless.
    pub async fn shutdown(&self) {
        self.stop.cancel();
        self.task.end().await;
    }
}

#[cfg(test)]
mod tests;
