//! Join tokens: which node may join with one, and how its uses are counted.
//!
//! A use is counted by compare-and-swap before a certificate is made, so that of two joins at once
//! a single-use token lets one in. The same key may ask again for as long as the token lives: an
//! agent whose answer was lost is answered once more, and nobody else gains anything by it.

use serde::{Deserialize, Serialize};

use mainstay_store::names;
use mainstay_store::object::Key;
use mainstay_store::objects::{Change, Error as StoreError, Write};
use sha2::{Digest, Sha256};

use super::{Description, Error, Tokens};
use crate::identity::Role;
use crate::internal;

/// How often a use is tried while others use the same token.
const ATTEMPTS: u32 = 100;

/// A join with a token.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Use {
    /// The node that joined.
    pub node: String,
    /// The SHA-256 of its public key, in hexadecimal.
    pub key: String,
}

impl Description {
    /// The node that joins with this token when it asks to be `asked`.
    pub(crate) fn node_for(&self, asked: Option<&str>) -> Result<String, String> {
        if self.role != Role::Node {
            return Err(format!("a token of role {} does not join nodes", self.role));
        }
        match (&self.node, &self.node_prefix, asked) {
            (Some(node), _, Some(asked)) if node != asked => {
                Err(format!("the token is for node {node}"))
            }
            (Some(node), _, _) => Ok(node.clone()),
            (None, Some(prefix), None) => Err(format!(
                "the token is for nodes whose names begin with {prefix}: give the node's name"
            )),
            (None, Some(prefix), Some(asked))
                if asked.len() <= prefix.len() || !asked.starts_with(prefix.as_str()) =>
            {
                Err(format!("the token is for nodes whose names begin with {prefix}"))
            }
            (None, Some(_), Some(asked)) => match names::subdomain_problems(asked).pop() {
                Some(problem) => Err(format!("node {asked:?}: {problem}")),
                None => Ok(asked.to_owned()),
            },
            (None, None, _) => Err("the token names no node".to_owned()),
        }
    }

    /// The token after a join: `None` if nothing has to be counted.
    fn used_by(&self, node: &str, key: &str) -> Result<Option<Self>, Error> {
        let Some(most) = self.uses else { return Ok(None) };
        if self.used.iter().any(|used| used.node == node && used.key == key) {
            return Ok(None);
        }
        if self.used.len() >= most as usize {
            return Err(Error::Spent);
        }
        let mut next = self.clone();
        next.used.push(Use { node: node.to_owned(), key: key.to_owned() });
        Ok(Some(next))
    }
}

impl Tokens {
    /// Counts a join. Counting the same key of the same node again changes nothing.
    pub(crate) async fn consume(&self, token: &[u8], node: &str, key: &str) -> Result<(), Error> {
        let name = hex::encode(Sha256::digest(token));
        let stored = Key::new(&self.resource, None, &name);
        for _ in 0..ATTEMPTS {
            let record = self.objects.get(&stored).await?.ok_or(Error::Ended)?;
            let description: Description = internal::decode(&record).ok_or(Error::Ended)?;
            if description.expires.is_some_and(|end| end <= self.clock.now()) {
                return Err(Error::Ended);
            }
            let Some(next) = description.used_by(node, key)? else { return Ok(()) };
            let body = internal::encode(&next).map_err(|_| Error::Ended)?;
            let change = Change::Update(record.revision(), body);
            match self.objects.write(Write { key: stored.clone(), change, fence: None }).await {
                Ok(_) => return Ok(()),
                Err(StoreError::Conflict { .. } | StoreError::NotFound { .. }) => {}
                Err(error) => return Err(error.into()),
            }
        }
        Err(StoreError::Busy { waiting: ATTEMPTS as usize }.into())
    }
}

#[cfg(test)]
mod tests {
    use super::super::tests::with_tokens;
    use super::super::{Uses, Wish};
    use super::*;

    #[tokio::test]
    async fn a_token_is_for_its_node_or_for_names_that_begin_like_its_prefix() {
        with_tokens(async |tokens, _| {
            let wish = |node: Option<&str>, prefix: Option<&str>| Wish {
                node: node.map(str::to_owned),
                node_prefix: prefix.map(str::to_owned),
                ..Wish::of(Role::Node)
            };
            let one = tokens.create(wish(Some("n1"), None)).await.unwrap().description;
            let many = tokens.create(wish(None, Some("sim."))).await.unwrap().description;
            let editor = tokens.create(Wish::of(Role::Editor)).await.unwrap().description;
            let cases = [
                (&one, None, Some("n1")),
                (&one, Some("n1"), Some("n1")),
                (&one, Some("n2"), None),
                (&many, Some("sim.7"), Some("sim.7")),
                (&many, Some("sim."), None),
                (&many, Some("sim.A"), None),
                (&many, Some("other"), None),
                (&many, None, None),
                (&editor, Some("n1"), None),
            ];
            for (token, asked, expected) in cases {
                let node = token.node_for(asked).ok();
                assert_eq!(node.as_deref(), expected, "{token:?} {asked:?}");
            }
        })
        .await;
    }

    #[tokio::test]
    async fn a_single_use_token_lets_one_of_many_in_and_the_same_key_again() {
        with_tokens(async |tokens, _| {
            let wish = Wish { node: Some("n1".to_owned()), ..Wish::of(Role::Node) };
            let token = tokens.create(wish).await.unwrap().token;
            let keys: Vec<String> = (0..8).map(|number| format!("key{number}")).collect();
            let all = keys.iter().map(|key| tokens.consume(token.as_bytes(), "n1", key));
            let done = futures_util::future::join_all(all).await;
            let won: Vec<_> = (0..8).filter(|at| done[*at].is_ok()).collect();
            assert_eq!(won.len(), 1, "{done:?}");
            for (key, result) in keys.iter().zip(&done) {
                let again = tokens.consume(token.as_bytes(), "n1", key).await;
                assert_eq!(again.is_ok(), result.is_ok(), "{key}");
                assert!(matches!(again, Ok(()) | Err(Error::Spent)));
            }
        })
        .await;
    }

    #[tokio::test]
    async fn a_token_for_several_joins_counts_them() {
        with_tokens(async |tokens, _| {
            let prefix = Some("sim.".to_owned());
            let uses = Some(Uses::Count(2));
            let wish = Wish { node_prefix: prefix, uses, ..Wish::of(Role::Node) };
            let token = tokens.create(wish).await.unwrap().token;
            for (node, fine) in
                [("sim.0", true), ("sim.1", true), ("sim.0", true), ("sim.2", false)]
            {
                let used = tokens.consume(token.as_bytes(), node, "key").await;
                assert_eq!(used.is_ok(), fine, "{node}");
            }
        })
        .await;
    }
}
