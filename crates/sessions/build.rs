//! Generates the messages, client and server of `proto/agents.proto`. Needs no protoc: `protox`
//! compiles the file.

use std::error::Error;

fn main() -> Result<(), Box<dyn Error>> {
    println!("cargo::rerun-if-changed=proto");
    let files = protox::compile(["agents.proto"], ["proto"])?;
    tonic_prost_build::configure()
        // Its own `connect` would collide with the method of that name.
        .build_transport(false)
        // Values of Secrets must not be printed; `protocol.rs` implements Debug.
        .skip_debug(["mainstay.agents.v1.CreateInstance"])
        .compile_fds(files)?;
    Ok(())
}
