//! `mainstay sessions top`: the pools of all applications as bars.

use std::io::IsTerminal;
use std::time::Duration;

use mainstay_client::{Call, Client};
use mainstay_terminal::{Error, output};

use crate::api::InstancePool;
use crate::engine::ApplicationView;

/// The pools of all applications.
const POOLS: &str = "/mainstay/v1/sessions/pools";
/// The width of a bar.
const BAR: usize = 40;

/// Prints the pools once, or in a terminal again and again.
pub(super) async fn top(client: &Client, once: bool, every: Duration) -> Result<u8, Error> {
    let terminal = std::io::stdout().is_terminal();
    loop {
        let pools = client.json(Call::get(POOLS)).await?;
        let pools: Vec<ApplicationView> = serde_json::from_value(pools)
            .map_err(|error| Error::negative(format!("{POOLS} cannot be read: {error}")))?;
        let text = bars(&pools);
        if once || !terminal {
            output::print(&text)?;
            return Ok(0);
        }
        // Cursor home, the bars, and clear to the end of the screen.
        output::print(&format!("\u{1b}[H{}\u{1b}[J", text.replace('\n', "\u{1b}[K\n")))?;
        tokio::time::sleep(every).await;
    }
}

/// The pools of every application, drawn as a bar of its maximum.
fn bars(applications: &[ApplicationView]) -> String {
    use std::fmt::Write;
    const MARKS: [(InstancePool, char); 5] = [
        (InstancePool::Active, '█'),
        (InstancePool::Ready, '▒'),
        (InstancePool::Standby, '░'),
        (InstancePool::Pending, '·'),
        (InstancePool::Deleting, '×'),
    ];
    let mut text = String::new();
    if applications.is_empty() {
        return "No applications found.\n".to_owned();
    }
    let widest = applications.iter().map(|one| one.application.len()).max();
    let widest = widest.unwrap_or(0).max(11);
    for application in applications {
        let of = |wanted: InstancePool| -> u64 {
            let found = application.pools.iter().find(|pool| pool.pool == wanted);
            found.and_then(|pool| u64::try_from(pool.instances).ok()).unwrap_or(0)
        };
        let all: u64 = MARKS.iter().map(|(pool, _)| of(*pool)).sum();
        let maximum = u64::try_from(application.maximum).unwrap_or(1).max(all).max(1);
        let mut bar = String::new();
        let (mut seen, mut drawn) = (0, 0);
        for (pool, mark) in MARKS {
            seen += of(pool);
            let end = usize::try_from(seen * BAR as u64 / maximum).unwrap_or(BAR);
            bar.extend(std::iter::repeat_n(mark, end - drawn));
            drawn = end;
        }
        bar.extend(std::iter::repeat_n(' ', BAR - drawn));
        let (name, waiting) = (&application.application, application.waiting);
        let _ = writeln!(
            text,
            "{name:widest$} [{bar}] {:>6} in use {:>6} ready {:>5} standby {:>5} pending {waiting:>5} waiting, at most {maximum}",
            of(InstancePool::Active),
            of(InstancePool::Ready),
            of(InstancePool::Standby),
            of(InstancePool::Pending),
        );
    }
    text.push_str("█ in use  ▒ ready  ░ standby  · pending  × ending\n");
    text
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn the_length_of_a_bar_is_the_size_of_its_pool() {
        let pools = json!([{
            "application": "t/game",
            "pools": [
                {"pool": "Active", "instances": 10},
                {"pool": "Ready", "instances": 5},
                {"pool": "Standby", "instances": 0},
                {"pool": "Pending", "instances": 5},
                {"pool": "Deleting", "instances": 0},
            ],
            "waiting": 2,
            "maximum": 40,
        }]);
        let text = bars(&serde_json::from_value::<Vec<_>>(pools).unwrap());
        let count = |mark: char| text.lines().next().unwrap().matches(mark).count();
        assert_eq!((count('█'), count('▒'), count('·'), count('░')), (10, 5, 5, 0), "{text}");
        assert!(text.contains("2 waiting, at most 40"), "{text}");
        assert_eq!(bars(&[]), "No applications found.\n");
    }
}
