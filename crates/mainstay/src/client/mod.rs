//! The command line's view of a server: the one that a kubeconfig names.
//!
//! Requests go through `mainstay-client`. The command line knows no kinds: [`discovery`] asks the
//! server which there are, and tables are printed as the server lays them out. Enter at
//! [`Connect::client`](crate::connect::Connect::client).

pub(crate) mod discovery;
pub(crate) mod kubeconfig;

use std::ops::Deref;
use std::time::Duration;

pub(crate) use mainstay_client::{
    APPLY_PATCH, Call, Error, JSON, JSON_PATCH, Status, encode, tls, watch, with_query,
};

use kubeconfig::Target;

/// How long a connection may take to open.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);
/// The largest answer that is read whole. Lists are read in pages, so a larger one is a defect.
const LARGEST_ANSWER: usize = 256 << 20;

/// A client of one server as one user, with the namespace of the kubeconfig's context.
#[derive(Debug)]
pub(crate) struct Client {
    http: mainstay_client::Client,
    namespace: String,
}

impl Client {
    /// A client of `target` whose requests take at most `timeout` each.
    pub(crate) fn new(target: Target, timeout: Duration) -> Result<Self, Error> {
        let access = target.access()?;
        let namespace = target.namespace.unwrap_or_else(|| "default".to_owned());
        let options = mainstay_client::Options {
            connect_timeout: CONNECT_TIMEOUT,
            timeout,
            largest: LARGEST_ANSWER,
            on_warning: Some(|text| anstream::eprintln!("Warning: {text}")),
            ..mainstay_client::Options::default()
        };
        let http = mainstay_client::Client::with_options(vec![target.server], access, options);
        Ok(Self { http, namespace })
    }

    /// The namespace of the kubeconfig's context.
    pub(crate) fn namespace(&self) -> &str {
        &self.namespace
    }
}

impl Deref for Client {
    type Target = mainstay_client::Client;

    fn deref(&self) -> &Self::Target {
        &self.http
    }
}
