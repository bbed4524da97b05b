//! The instances of the agent: processes, and the stream on which servers send commands for them.

use std::collections::HashMap;
use std::io;
use std::net::{IpAddr, Ipv4Addr, ToSocketAddrs, UdpSocket};
use std::sync::Arc;

use mainstay_client::Client;
use mainstay_clock::Clock;
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

use crate::Options;
use crate::instances::{self, Processes, Revision, Runtime};
use crate::link::{Link, Registration, Revisions};

/// Starts the runtime of instances and the connection to the servers.
pub(crate) fn start(
    options: &Options,
    client: &Arc<Client>,
    boot_id: &str,
    clock: &Arc<dyn Clock>,
    stop: &CancellationToken,
    tasks: &mut JoinSet<()>,
) -> io::Result<Arc<dyn Runtime>> {
    let address = options.address.clone().unwrap_or_else(|| own_address(&options.servers));
    let folder = options.state_dir.join("instances");
    let settings = instances::Options::new(folder.clone(), &address);
    let (processes, events) = Processes::open(settings, clock.clone())?;
    let (cpu_milli, memory_bytes) = capacity(options);
    let mut labels = HashMap::from([("kubernetes.io/hostname".to_owned(), options.node.clone())]);
    labels
        .extend(options.zone.clone().map(|zone| ("topology.kubernetes.io/zone".to_owned(), zone)));
    let runtime: Arc<dyn Runtime> = Arc::new(processes);
    let who = Arc::clone(client);
    let link = Link {
        servers: options.servers.clone(),
        credentials: Arc::new(move || who.access()),
        registration: Registration {
            node: options.node.clone(),
            boot_id: boot_id.to_owned(),
            cpu_milli,
            memory_bytes,
            labels,
            address,
        },
        runtime: runtime.clone(),
        events,
        revisions: Revisions::Durable(Revision::open(&folder)?),
        clock: clock.clone(),
    };
    tasks.spawn(link.run(stop.clone()));
    Ok(runtime)
}

/// The processor time and memory for instances: as configured, or everything the machine has.
fn capacity(options: &Options) -> (u64, u64) {
    let cpus = std::thread::available_parallelism().map_or(1, usize::from);
    let memory = rustix::system::sysinfo();
    let total = memory.totalram * u64::from(memory.mem_unit);
    let cpu = options.cpu_milli.unwrap_or(u64::try_from(cpus).unwrap_or(1) * 1000);
    (cpu, options.memory_bytes.unwrap_or(total))
}

/// The address from which this machine reaches its servers.
fn own_address(servers: &[String]) -> String {
    let towards = |server: &String| {
        let uri: http::Uri = server.parse().ok()?;
        let host = uri.host()?.trim_start_matches('[').trim_end_matches(']');
        let there = (host, uri.port_u16().unwrap_or(443)).to_socket_addrs().ok()?.next()?;
        let here = if there.is_ipv4() { "0.0.0.0:0" } else { "[::]:0" };
        let socket = UdpSocket::bind(here).ok()?;
        // Connecting a UDP socket sends no packet; it only selects the route.
        socket.connect(there).ok()?;
        Some(socket.local_addr().ok()?.ip())
    };
    let found = servers.iter().find_map(towards);
    found.unwrap_or(IpAddr::V4(Ipv4Addr::LOCALHOST)).to_string()
}
