//! `mainstay graph`: the graph's own commands, asked over HTTP or TLS like every other server.

use bytes::Bytes;
use http_body_util::{BodyExt, Full};
use hyper::Request;
use mainstay_graph::cli::{self, Fetch, GraphCommand, NoAnswer};
use rustls_pki_types::CertificateDer;
use rustls_pki_types::pem::PemObject;

use crate::client::connection::Dialer;
use crate::client::kubeconfig::{Overrides, Target, Trust};

/// Runs a command; the answer is the exit code.
pub(crate) async fn run(command: GraphCommand) -> u8 {
    u8::try_from(cli::run_with(command, &Dialed).await).unwrap_or(1)
}

/// Fetches over a connection of its own, encrypted if the address says so.
struct Dialed;

impl Fetch for Dialed {
    async fn fetch(
        &self,
        target: &cli::Target,
        method: &str,
        url: &str,
        body: Option<String>,
    ) -> Result<(u16, String), NoAnswer> {
        let wrong = |error: &dyn std::error::Error| NoAnswer::Usage(told(&target.url, error));
        let problem =
            |error: &dyn std::error::Error| NoAnswer::Unreachable(told(&target.url, error));
        let reached = reached(target).map_err(NoAnswer::Usage)?;
        let dialer = Dialer::new(&reached).map_err(|error| wrong(&error))?;
        let uri: hyper::Uri = url.parse().map_err(|error| wrong(&error))?;
        let path = uri.path_and_query().map_or("/", |path| path.as_str());
        let mut request = Request::builder()
            .method(method)
            .uri(path)
            .header("host", dialer.authority())
            .header("content-type", "application/json");
        if let Some(token) = &target.token {
            request = request.header("authorization", format!("Bearer {token}"));
        }
        let request = request
            .body(Full::new(Bytes::from(body.unwrap_or_default())))
            .map_err(|error| wrong(&error))?;
        let mut sender = dialer.dial().await.map_err(|error| problem(&error))?;
        let answer = sender.send_request(request).await.map_err(|error| problem(&error))?;
        let status = answer.status().as_u16();
        let body = answer.into_body().collect().await.map_err(|error| problem(&error))?;
        Ok((status, String::from_utf8_lossy(&body.to_bytes()).into_owned()))
    }
}

/// The server that the flags name.
fn reached(target: &cli::Target) -> Result<Target, String> {
    let overrides = Overrides { insecure: target.insecure_skip_tls_verify, ..Overrides::default() };
    let mut reached =
        Target::bare(&overrides, &target.url).map_err(|error| told(&target.url, &error))?;
    if let Some(path) = target.ca.as_ref().filter(|_| !target.insecure_skip_tls_verify) {
        let unusable =
            |error: rustls_pki_types::pem::Error| told(&path.display().to_string(), &error);
        let authorities: Vec<CertificateDer<'static>> =
            CertificateDer::pem_file_iter(path).and_then(Iterator::collect).map_err(unusable)?;
        if authorities.is_empty() {
            return Err(format!("{} holds no certificate", path.display()));
        }
        reached.trust = Trust::Authorities(authorities);
    }
    Ok(reached)
}

/// An error with everything behind it.
fn told(place: &str, error: &dyn std::error::Error) -> String {
    let mut text = format!("{place}: {error}");
    let mut source = error.source();
    while let Some(error) = source {
        text.push_str(": ");
        text.push_str(&error.to_string());
        source = error.source();
    }
    text
}
