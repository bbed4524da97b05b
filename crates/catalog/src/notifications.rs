//! Notifications between servers that share a PostgreSQL: work that one of them commits wakes the
//! daemons and workers of all.
//!
//! A NOTIFY inside a transaction would make all commits of the database wait for each other. So new
//! work is gathered as it is committed and announced shortly after, on a connection of its own. A
//! lost notification delays work until the next timer; no work is lost.

use std::future::poll_fn;
use std::sync::atomic::Ordering;
use std::time::Duration;

use tokio_postgres::AsyncMessage;
use tokio_util::sync::CancellationToken;

use super::{Backend, Catalog, Daemon};
use crate::error::{Error, Result};
use crate::values;

const CHANNEL: &str = "mainstay_judge";

/// Work that is committed within this time is announced in one notification.
const GATHER: Duration = Duration::from_millis(20);

/// The wait before a lost connection is opened again.
const PAUSE: Duration = Duration::from_secs(1);

/// The bit of the transfer workers, after those of the daemons.
pub(super) const WORKERS: u8 = 1 << Daemon::ALL.len();

/// The bits of all daemons and workers.
const ALL: u8 = WORKERS | (WORKERS - 1);

impl Catalog {
    /// Notifies the other servers of new work that this process has committed. Does nothing on
    /// SQLite, which has no other servers.
    pub async fn notify_servers(&self) {
        let daemons = self.inner.unsent.swap(0, Ordering::AcqRel);
        if daemons == 0 || self.backend() != "postgres" {
            return;
        }
        let sql = "SELECT pg_notify(?1, ?2)";
        let payload = format!("{}:{daemons}", self.inner.origin);
        let sent = self.write(move |tx| tx.execute(sql, values![CHANNEL, &payload])).await;
        if let Err(error) = sent {
            tracing::warn!(%error, "notification of other servers failed; they find new work by their timers");
        }
    }

    /// Sends and receives notifications until `stop` is cancelled. Returns at once on SQLite, which
    /// has no other servers.
    pub async fn exchange_notifications(&self, stop: &CancellationToken) {
        let Backend::Postgres { address, .. } = &self.inner.backend else { return };
        while !stop.is_cancelled() {
            let ended = tokio::select! {
                () = stop.cancelled() => return,
                ended = self.notify_and_listen(address) => ended,
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

    async fn notify_and_listen(&self, address: &super::address::Address) -> Result<()> {
        let lost = |error: tokio_postgres::Error| Error::Unavailable(error.to_string());
        let (client, mut connection) = address.connect().await.map_err(lost)?;
        let receiving = async {
            while let Some(message) = poll_fn(|context| connection.poll_message(context)).await {
                if let AsyncMessage::Notification(received) = message.map_err(lost)? {
                    self.receive(received.payload());
                }
            }
            Ok(())
        };
        let sending = async {
            client.batch_execute(&format!("LISTEN {CHANNEL}")).await.map_err(lost)?;
            // Notifications sent before LISTEN were missed: look at everything once.
            self.notify(ALL);
            loop {
                self.inner.unsent_changed.notified().await;
                tokio::time::sleep(GATHER).await;
                let daemons = self.inner.unsent.swap(0, Ordering::AcqRel);
                if daemons != 0 {
                    let payload = format!("{}:{daemons}", self.inner.origin);
                    let sql = "SELECT pg_notify($1, $2)";
                    client.query(sql, &[&CHANNEL, &payload]).await.map_err(lost)?;
                }
            }
        };
        tokio::select! {
            ended = receiving => ended,
            ended = sending => ended,
        }
    }

    /// Wakes the daemons and workers that another server's notification names.
    fn receive(&self, payload: &str) {
        let Some((origin, daemons)) = payload.split_once(':') else { return };
        if let (true, Ok(daemons)) = (origin != self.inner.origin, daemons.parse()) {
            self.notify(daemons);
        }
    }

    fn notify(&self, daemons: u8) {
        if daemons & WORKERS != 0 {
            self.inner.moves.notify_one();
        }
        for daemon in Daemon::ALL.iter().filter(|daemon| daemons & (1 << **daemon as u8) != 0) {
            self.inner.wakes[*daemon as usize].notify_one();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::private_postgres::PrivatePostgres;

    #[test]
    fn work_committed_by_one_process_wakes_the_daemons_of_another() {
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
            let listening =
                tokio::spawn(async move { listener.exchange_notifications(&until).await });
            // A new listener wakes everything once.
            there.woken(Daemon::Finisher).await;
            here.wake(&[Daemon::Finisher]);
            here.notify_servers().await;
            there.woken(Daemon::Finisher).await;
            there.transfers_woken().await;
            let wake = |tx: &mut crate::Tx<'_>| -> Result<()> {
                tx.wake_workers();
                Ok(())
            };
            here.write(wake).await.unwrap();
            here.notify_servers().await;
            there.transfers_woken().await;
            stop.cancel();
            listening.await.unwrap();
        });
    }
}
