//! Where the uids and generated names of new objects come from.

use std::fmt;

/// Where new identities come from.
pub trait Identities: Send + Sync + fmt::Debug {
    /// An identity that was never used.
    fn uid(&self) -> String;

    /// A random ending for a name: five characters that cannot spell a word.
    fn name_suffix(&self) -> String;
}

/// Identities as they should be: unpredictable.
#[derive(Clone, Copy, Debug, Default)]
pub struct RandomIdentities;

impl Identities for RandomIdentities {
    #[expect(clippy::disallowed_methods, reason = "this is where identities are made")]
    fn uid(&self) -> String {
        uuid::Uuid::new_v4().to_string()
    }

    #[expect(clippy::disallowed_methods, reason = "this is where identities are made")]
    fn name_suffix(&self) -> String {
        const ALPHABET: &[u8; 27] = b"bcdfghjklmnpqrstvwxz2456789";
        let mut random = uuid::Uuid::new_v4().as_u128();
        let mut suffix = String::with_capacity(5);
        for _ in 0..5 {
            let at = usize::try_from(random % 27).unwrap_or(0);
            suffix.push(char::from(ALPHABET[at]));
            random /= 27;
        }
        suffix
    }
}

/// Identities for tests: they count.
#[derive(Debug, Default)]
pub struct CountingIdentities {
    next: std::sync::atomic::AtomicU64,
}

impl CountingIdentities {
    fn count(&self) -> u64 {
        self.next.fetch_add(1, std::sync::atomic::Ordering::Relaxed)
    }
}

impl Identities for CountingIdentities {
    fn uid(&self) -> String {
        format!("00000000-0000-4000-8000-{:012x}", self.count())
    }

    fn name_suffix(&self) -> String {
        format!("{:05}", self.count() % 100_000)
    }
}
