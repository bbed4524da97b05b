//! `mainstay graph`: the commands of the graph engine, sent over HTTP or HTTPS.

use std::time::Duration;

use http::{Method, Uri};
use mainstay_client::tls::Trust;
use mainstay_client::{Access, Call, Client, JSON, Options};
use mainstay_graph::cli::{self, Fetch, Follow, GraphCommand, NoAnswer};
use rustls_pki_types::CertificateDer;
use rustls_pki_types::pem::PemObject;

use crate::client::kubeconfig::{Overrides, Target};

/// How long a request may take: a commit answers when its transaction has ended.
const PATIENCE: Duration = Duration::from_secs(600);

/// The longest pause between two lines of a watch. The engine sends one every ten seconds.
const LONGEST_PAUSE: Duration = Duration::from_secs(30);

/// Runs a command; the answer is the exit code.
pub(crate) async fn run(command: GraphCommand) -> u8 {
    u8::try_from(cli::run_with(command, &HttpsFetch).await).unwrap_or(1)
}

/// Sends the requests of the graph commands.
struct HttpsFetch;

impl Fetch for HttpsFetch {
    async fn fetch(
        &self,
        target: &cli::Target,
        method: &str,
        url: &str,
        body: Option<String>,
    ) -> Result<(u16, String), NoAnswer> {
        let (client, call) = prepared(target, method, url, body)?;
        let answer = client.send(&call).await;
        let answer = answer.map_err(|error| NoAnswer::Unreachable(at(&target.url, &error)))?;
        let body = String::from_utf8_lossy(&answer.body).into_owned();
        Ok((answer.code.as_u16(), body))
    }
}

impl Follow for HttpsFetch {
    async fn follow(
        &self,
        target: &cli::Target,
        url: &str,
        line: &mut (dyn FnMut(&str) -> bool + Send),
    ) -> Result<(u16, String), NoAnswer> {
        let broken = |error: mainstay_client::Error| NoAnswer::Unreachable(at(&target.url, &error));
        let (client, call) = prepared(target, "GET", url, None)?;
        let mut stream = client.open(&call).await.map_err(broken)?;
        let code = stream.code();
        if !code.is_success() {
            let mut body = Vec::new();
            while let Some(piece) = stream.piece_within(LONGEST_PAUSE).await.map_err(broken)? {
                body.extend_from_slice(&piece);
            }
            return Ok((code.as_u16(), String::from_utf8_lossy(&body).into_owned()));
        }
        while let Some(read) = stream.line_within(LONGEST_PAUSE).await.map_err(broken)? {
            if !line(&String::from_utf8_lossy(&read)) {
                break;
            }
        }
        Ok((code.as_u16(), String::new()))
    }
}

/// The client and the request for a URL.
fn prepared(
    target: &cli::Target,
    method: &str,
    url: &str,
    body: Option<String>,
) -> Result<(Client, Call), NoAnswer> {
    let reached = reached(target).map_err(NoAnswer::Usage)?;
    let access = reached.access();
    let access = access.map_err(|error| NoAnswer::Usage(at(&target.url, &error)))?;
    let access = Access { token: target.token.clone(), ..access };
    let wrong = |error: &dyn std::error::Error| NoAnswer::Usage(at(&target.url, error));
    let method = Method::from_bytes(method.as_bytes()).map_err(|error| wrong(&error))?;
    let uri: Uri = url.parse().map_err(|error| wrong(&error))?;
    let path = uri.path_and_query().map_or("/", |path| path.as_str());
    let path = path.strip_prefix(reached.server.prefix()).unwrap_or(path);
    let call = Call::with_body(method, path, JSON, body.unwrap_or_default());
    let options = Options { timeout: PATIENCE, ..Options::default() };
    Ok((Client::with_options(vec![reached.server], access, options), call))
}

/// The server that the flags name.
fn reached(target: &cli::Target) -> Result<Target, String> {
    let overrides = Overrides { insecure: target.insecure_skip_tls_verify, ..Overrides::default() };
    let mut reached =
        Target::bare(&overrides, &target.url).map_err(|error| at(&target.url, &error))?;
    if let Some(path) = target.ca.as_ref().filter(|_| !target.insecure_skip_tls_verify) {
        let unusable =
            |error: rustls_pki_types::pem::Error| at(&path.display().to_string(), &error);
        let authorities: Vec<CertificateDer<'static>> =
            CertificateDer::pem_file_iter(path).and_then(Iterator::collect).map_err(unusable)?;
        if authorities.is_empty() {
            return Err(format!("{} holds no certificate", path.display()));
        }
        reached.trust = Trust::Authorities(authorities);
    }
    Ok(reached)
}

/// An error with all its causes, after the place where it occurred.
fn at(place: &str, error: &dyn std::error::Error) -> String {
    format!("{place}: {}", mainstay_terminal::with_causes(error, None))
}
