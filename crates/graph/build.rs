//! Generates the messages, client and server of `proto/graph.proto` for the feature `grpc`. Needs no
//! protoc: `protox` compiles the file.

use std::error::Error;

fn main() -> Result<(), Box<dyn Error>> {
    println!("cargo::rerun-if-changed=proto");
    #[cfg(feature = "grpc")]
    {
        let files = protox::compile(["graph.proto"], ["proto"])?;
        // Callers bring their own channel.
        tonic_prost_build::configure().build_transport(false).compile_fds(files)?;
    }
    Ok(())
}
