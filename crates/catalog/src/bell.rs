//! Notifications between servers that share a PostgreSQL: work that one of them commits wakes the
//! daemons and workers of all.
//!
//! A NOTIFY inside a transaction would make all commits of the database wait for each other. So new
//! work is gathered as it is committed and announced shortly after, on a connection of its own. A lost
//! notification delays work until the next timer; no work is lost.

use std::future::poll_fn;
use std::sync::atomic::Ordering;
use std::time::Duration;

use tokio_postgres::AsyncMessage;
use tokio_util::sync::CancellationToken;

use super::{Backend, Catalog, Daemon};
use crate::error::{Error, Result};
use crate::values;

const CHANNEL: &str = "mainstay_judge";

/// Work that comes within this time is rung for once.
const GATHER: Duration = Duration::from_millis(20);

/// How long a lost connection is left alone.
const PAUSE: Duration = Duration::from_secs(1);

/// The workers, beside the daemons.
pub(super) const WORKERS: u8 = 1 << Daemon::ALL.len();

/// Everything that may have work.
const ALL: u8 = WORKERS | (WORKERS - 1);

impl Catalog {
    /// Rings for what transactions of this process left to others, if anybody else can hear.
    pub async fn ring(&self) {
        let rung = self.inner.rung.swap(0, Ordering::AcqRel);
        if rung == 0 || self.backend() != "postgres" {
            return;
        }
        let sql = "SELECT pg_notify(?1, ?2)";
        let payload = format!("{}:{rung}", self.inner.origin);
        let told = self.write(move |tx| tx.execute(sql, values![CHANNEL, &payload])).await;
        if let Err(error) = told {
            tracing::warn!(%error, "notification of other servers failed; they find new work by their timers");
        }
    }

    /// Rings and listens until told to stop. On SQLite there is nobody else.
    pub async fn attend(&self, stop: &CancellationToken) {
        let Backend::Postgres { address, .. } = &self.inner.backend else { return };
        while !stop.is_cancelled() {
            let ended = tokio::select! {
                () = stop.cancelled() => return,
                ended = self.attend_once(address) => ended,
            };
            if let Err(error) = ended {
                tracing::debug!(%error, "notification connection to PostgreSQL lost; reconnecting");
            }
            tokio::select! {
                () = stop.cancelled() => {}
                () = tokio::time::sleep(PAUSE) => {}
            }
        }
    }

    async fn attend_once(&self, address: &super::address::Address) -> Result<()> {
        let lost = |error: tokio_postgres::Error| Error::Unavailable(error.to_string());
        let (client, mut connection) = address.connect().await.map_err(lost)?;
        let hearing = async {
            while let Some(message) = poll_fn(|context| connection.poll_message(context)).await {
                if let AsyncMessage::Notification(told) = message.map_err(lost)? {
                    self.hear(told.payload());
                }
            }
            Ok(())
        };
        let ringing = async {
            client.batch_execute(&format!("LISTEN {CHANNEL}")).await.map_err(lost)?;
            // What was rung for while nobody listened.
            self.notify(ALL);
            loop {
                self.inner.bell.notified().await;
                tokio::time::sleep(GATHER).await;
                let rung = self.inner.rung.swap(0, Ordering::AcqRel);
                if rung != 0 {
                    let payload = format!("{}:{rung}", self.inner.origin);
                    let sql = "SELECT pg_notify($1, $2)";
                    client.query(sql, &[&CHANNEL, &payload]).await.map_err(lost)?;
                }
            }
        };
        tokio::select! {
            ended = hearing => ended,
            ended = ringing => ended,
        }
    }

    /// Wakes what others have rung for.
    fn hear(&self, payload: &str) {
        let Some((origin, rung)) = payload.split_once(':') else { return };
        if let (true, Ok(rung)) = (origin != self.inner.origin, rung.parse()) {
            self.notify(rung);
        }
    }

    fn notify(&self, rung: u8) {
        if rung & WORKERS != 0 {
            self.inner.moves.notify_one();
        }
        for daemon in Daemon::ALL.iter().filter(|daemon| rung & (1 << **daemon as u8) != 0) {
            self.inner.wakes[*daemon as usize].notify_one();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::private_postgres::PrivatePostgres;

    #[test]
    fn what_one_process_leaves_is_heard_by_another() {
        let server = match PrivatePostgres::start(&["fsync=off"]) {
            Ok(server) => server,
            Err(why) => {
                assert!(std::env::var_os("CI").is_none(), "PostgreSQL is needed: {why}");
                return;
            }
        };
        server.make_schema("bell").unwrap();
        let (here, there) = (
            Catalog::open_blocking(&server.url("bell")).unwrap(),
            Catalog::open_blocking(&server.url("bell")).unwrap(),
        );
        let runtime = tokio::runtime::Runtime::new().unwrap();
        runtime.block_on(async {
            let stop = CancellationToken::new();
            let (listener, until) = (there.clone(), stop.clone());
            let listening = tokio::spawn(async move { listener.attend(&until).await });
            // Whoever begins to listen looks at everything once.
            there.woken(Daemon::Finisher).await;
            here.wake(&[Daemon::Finisher]);
            here.ring().await;
            there.woken(Daemon::Finisher).await;
            there.transfers_woken().await;
            let wake = |tx: &mut crate::Tx<'_>| -> Result<()> {
                tx.wake_workers();
                Ok(())
            };
            here.write(wake).await.unwrap();
            here.ring().await;
            there.transfers_woken().await;
            stop.cancel();
            listening.await.unwrap();
        });
    }
}
