//! The smallest server there is: built-in kinds, in the folder given, until interrupted.
//!
//! `cargo run --release --example serve -- DIR [ADDRESS] [STORE]`

use std::sync::Arc;

use mainstay_server::{Options, Server};
use mainstay_store::clock::SystemClock;
use mainstay_store::registry::{Registry, builtin};

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    tracing_subscriber::fmt().with_writer(std::io::stderr).init();
    let mut arguments = std::env::args().skip(1);
    let dir = arguments.next().ok_or("give a folder to keep everything in")?;
    let address = arguments.next().unwrap_or_else(|| "127.0.0.1:6443".to_owned());
    let registry = Arc::new(Registry::new(builtin())?);
    let mut options = Options::new(address.parse()?, dir.into(), registry, SystemClock::new());
    if let Some(store) = arguments.next() {
        options.store = store.parse()?;
    }
    let running = Server::start(options).await?;
    println!("{}\n{}", running.url(), running.kubeconfig().display());
    let handle = running.handle();
    let mut ended = std::pin::pin!(running.wait());
    tokio::select! {
        () = &mut ended => {}
        interrupted = tokio::signal::ctrl_c() => {
            interrupted?;
            handle.shut_down();
            ended.await;
        }
    }
    Ok(())
}
