//! The gateway on loopback: real sockets, instances that echo, a manual clock.

use std::collections::BTreeSet;
use std::net::TcpListener as StdListener;

use jiff::Timestamp;
use mainstay_clock::ManualClock;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpSocket, TcpStream, UdpSocket};

use super::*;

/// A gateway on loopback, its clock, and its events.
struct Stand {
    gateway: Gateway,
    clock: Arc<ManualClock>,
    events: mpsc::Receiver<ClientEvent>,
}

fn options() -> Options {
    Options { address: Ipv4Addr::LOCALHOST.into(), ..Options::default() }
}

fn stand(options: Options) -> Stand {
    let clock = ManualClock::new(Timestamp::UNIX_EPOCH);
    let (gateway, events) = Gateway::start(options, clock.clone());
    Stand { gateway, clock, events }
}

fn key(name: &str) -> SessionKey {
    SessionKey(format!("default/{name}"))
}

fn local(port: u16) -> SocketAddr {
    SocketAddr::from((Ipv4Addr::LOCALHOST, port))
}

impl Stand {
    /// Opens some free port. If another program has just taken one, the next is tried.
    fn open(&self, protocol: Protocol, session: &str, target: SocketAddr) -> u16 {
        for _ in 0..50 {
            let port = StdListener::bind(local(0)).unwrap().local_addr().unwrap().port();
            match self.gateway.open(port, protocol, key(session), target) {
                Ok(()) => return port,
                Err(Error::PortInUse { .. }) => {}
                Err(error) => panic!("{error}"),
            }
        }
        panic!("no free port")
    }

    async fn event(&mut self) -> (String, u64, bool) {
        let event = self.events.recv().await.unwrap();
        (event.session.0, event.id, event.joined)
    }

    /// Advances the clock by `step` repeatedly until `done`, because a task may begin to sleep later.
    async fn pass_until(&self, step: Duration, done: impl Future) {
        let passing = async {
            loop {
                self.clock.advance(step);
                tokio::time::sleep(Duration::from_millis(2)).await;
            }
        };
        tokio::select! {
            _ = done => {}
            () = passing => {}
        }
    }
}

/// An instance that answers every connection with `greeting` and then echoes.
async fn echo(greeting: &'static str) -> SocketAddr {
    let listener = TcpListener::bind(local(0)).await.unwrap();
    let address = listener.local_addr().unwrap();
    tokio::spawn(async move {
        while let Ok((mut stream, _)) = listener.accept().await {
            tokio::spawn(async move {
                stream.write_all(greeting.as_bytes()).await.unwrap();
                let (mut read, mut write) = stream.split();
                // The peer may close at any time.
                let _ = tokio::io::copy(&mut read, &mut write).await;
                let _ = write.shutdown().await;
            });
        }
    });
    address
}

async fn udp_echo(mark: u8) -> SocketAddr {
    let socket = UdpSocket::bind(local(0)).await.unwrap();
    let address = socket.local_addr().unwrap();
    tokio::spawn(async move {
        let mut buffer = vec![0; 65_536];
        while let Ok((bytes, client)) = socket.recv_from(&mut buffer).await {
            let mut answer = vec![mark];
            answer.extend_from_slice(&buffer[..bytes]);
            socket.send_to(&answer, client).await.unwrap();
        }
    });
    address
}

/// Pseudo-random bytes, the same for the same seed.
fn noise(seed: u64, length: usize) -> Vec<u8> {
    let mut state = seed | 1;
    let mut next = || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state
    };
    (0..length).map(|_| (next() >> 32) as u8).collect()
}

async fn write_in_chunks(stream: &mut (impl AsyncWriteExt + Unpin), bytes: &[u8], seed: u64) {
    let sizes = noise(seed, 4_096);
    let mut rest = bytes;
    for pair in sizes.chunks(2).cycle() {
        if rest.is_empty() {
            break;
        }
        let size = (usize::from(pair[0]) << 8 | usize::from(pair[1])).clamp(1, rest.len());
        stream.write_all(&rest[..size]).await.unwrap();
        rest = &rest[size..];
    }
    stream.shutdown().await.unwrap();
}

async fn bytes_go_through(pipes: usize) -> (u64, u64) {
    const LENGTH: usize = 6 << 20;
    let mut stand = stand(Options { pipes, ..options() });
    let listener = TcpListener::bind(local(0)).await.unwrap();
    let port = stand.open(Protocol::Tcp, "one", listener.local_addr().unwrap());
    let (up, down) = (noise(11, LENGTH), noise(22, LENGTH));
    let client = async {
        let (mut read, mut write) = TcpStream::connect(local(port)).await.unwrap().into_split();
        let mut got = Vec::new();
        tokio::join!(write_in_chunks(&mut write, &up, 3), async {
            read.read_to_end(&mut got).await.unwrap();
        });
        got
    };
    let instance = async {
        let (mut read, mut write) = listener.accept().await.unwrap().0.into_split();
        let mut got = Vec::new();
        tokio::join!(write_in_chunks(&mut write, &down, 4), async {
            read.read_to_end(&mut got).await.unwrap();
        });
        got
    };
    let (at_client, at_instance) = tokio::join!(client, instance);
    assert!(at_client == down, "the client received what the instance sent");
    assert!(at_instance == up, "the instance received what the client sent");
    assert_eq!(stand.event().await, ("default/one".to_owned(), 1, true));
    assert_eq!(stand.event().await, ("default/one".to_owned(), 1, false));
    let metrics = stand.gateway.metrics();
    assert_eq!(metrics.connections.get(), 1);
    assert_eq!(metrics.clients.get(), 0);
    let (spliced, copied) = (metrics.spliced.get(), metrics.copied.get());
    assert_eq!(spliced + copied, 2 * LENGTH as u64, "every byte was counted once");
    stand.gateway.shutdown().await;
    (spliced, copied)
}

#[tokio::test]
async fn bytes_go_through_unchanged_inside_the_kernel() {
    let (spliced, copied) = bytes_go_through(16).await;
    assert!(spliced > 0 && copied == 0, "{spliced} spliced, {copied} copied");
}

#[tokio::test]
async fn bytes_go_through_unchanged_when_there_is_no_pipe() {
    let (spliced, copied) = bytes_go_through(0).await;
    assert!(spliced == 0 && copied > 0, "{spliced} spliced, {copied} copied");
}

#[tokio::test]
async fn a_client_that_closed_its_side_still_receives_the_answer() {
    let stand = stand(options());
    let listener = TcpListener::bind(local(0)).await.unwrap();
    let port = stand.open(Protocol::Tcp, "one", listener.local_addr().unwrap());
    let mut client = TcpStream::connect(local(port)).await.unwrap();
    client.write_all(b"question").await.unwrap();
    client.shutdown().await.unwrap();
    let (mut instance, _) = listener.accept().await.unwrap();
    let mut received = String::new();
    instance.read_to_string(&mut received).await.unwrap();
    assert_eq!(received, "question");
    instance.write_all(b"answer").await.unwrap();
    drop(instance);
    let mut received = String::new();
    client.read_to_string(&mut received).await.unwrap();
    assert_eq!(received, "answer");
}

/// Opens a connection and reads the instance's greeting.
async fn greeting(port: u16) -> (TcpStream, String) {
    let mut stream = TcpStream::connect(local(port)).await.unwrap();
    let mut word = [0; 3];
    stream.read_exact(&mut word).await.unwrap();
    (stream, String::from_utf8(word.to_vec()).unwrap())
}

/// Reads until the connection ends, by a close or a reset.
async fn ends(stream: &mut TcpStream) {
    let mut rest = Vec::new();
    let _ = stream.read_to_end(&mut rest).await;
}

#[tokio::test]
async fn a_port_stays_bound_when_its_instance_changes() {
    let mut stand = stand(options());
    let (old, new) = (echo("old").await, echo("new").await);
    let port = stand.open(Protocol::Tcp, "one", old);
    let (mut first, word) = greeting(port).await;
    assert_eq!(word, "old");
    stand.gateway.open(port, Protocol::Tcp, key("one"), old).unwrap();
    first.write_all(b"x").await.unwrap();
    assert_eq!(first.read_u8().await.unwrap(), b'x', "opening again changes nothing");

    stand.gateway.open(port, Protocol::Tcp, key("one"), new).unwrap();
    StdListener::bind(local(port)).expect_err("the port stays bound");
    ends(&mut first).await;
    assert_eq!(greeting(port).await.1, "new");
    assert_eq!(stand.gateway.metrics().retargeted.get(), 1);
    let mut seen = Vec::new();
    for _ in 0..3 {
        let (_, id, joined) = stand.event().await;
        seen.push((id, joined));
    }
    seen.sort_unstable();
    assert_eq!(seen, [(1, false), (1, true), (2, true)]);
}

#[tokio::test]
async fn a_closed_port_accepts_no_connection_and_drains() {
    let mut stand = stand(options());
    let port = stand.open(Protocol::Tcp, "one", echo("hey").await);
    let (mut staying, _) = greeting(port).await;
    let (mut leaving, _) = greeting(port).await;
    stand.gateway.close(port, Protocol::Tcp, Duration::from_secs(30));
    stand.gateway.close(port, Protocol::Tcp, Duration::ZERO);
    TcpStream::connect(local(port)).await.expect_err("no new connection");
    for stream in [&mut staying, &mut leaving] {
        stream.write_all(b"x").await.unwrap();
        assert_eq!(stream.read_u8().await.unwrap(), b'x', "existing connections continue");
    }
    drop(leaving);
    stand.clock.advance(Duration::from_secs(29));
    staying.write_all(b"y").await.unwrap();
    assert_eq!(staying.read_u8().await.unwrap(), b'y');
    stand.pass_until(Duration::from_secs(1), ends(&mut staying)).await;
    let mut left = 0;
    while left < 2 {
        left += usize::from(!stand.event().await.2);
    }
    stand.gateway.shutdown().await;
}

#[tokio::test]
async fn a_port_is_free_as_soon_as_it_is_closed() {
    let stand = stand(options());
    let tcp = echo("hey").await;
    let udp = udp_echo(b'u').await;
    let port = stand.open(Protocol::Tcp, "s", tcp);
    let packets = stand.open(Protocol::Udp, "s", udp);
    for round in 0..50 {
        let (_stream, _) = greeting(port).await;
        stand.gateway.close(port, Protocol::Tcp, Duration::from_secs(30));
        drop(StdListener::bind(local(port)).unwrap());
        stand.gateway.open(port, Protocol::Tcp, key(&format!("s{round}")), tcp).unwrap();
        stand.gateway.close(packets, Protocol::Udp, Duration::from_secs(30));
        stand.gateway.open(packets, Protocol::Udp, key(&format!("s{round}")), udp).unwrap();
        asked(packets, b"ping", b"uping").await;
    }
    stand.gateway.shutdown().await;
}

/// Sends a UDP packet until an answer comes: packets may be lost.
async fn asked(port: u16, question: &[u8], expected: &[u8]) -> UdpSocket {
    let client = UdpSocket::bind(local(0)).await.unwrap();
    client.connect(local(port)).await.unwrap();
    ask(&client, question, expected).await;
    client
}

async fn ask(client: &UdpSocket, question: &[u8], expected: &[u8]) {
    let mut buffer = vec![0; 65_536];
    loop {
        // The error may be about an earlier packet.
        let _ = client.send(question).await;
        let answer = tokio::time::timeout(Duration::from_millis(100), client.recv(&mut buffer));
        if let Ok(Ok(bytes)) = answer.await
            && &buffer[..bytes] == expected
        {
            return;
        }
    }
}

#[tokio::test]
async fn udp_answers_reach_their_client() {
    let mut stand = stand(Options { flows_per_port: 3, ..options() });
    let port = stand.open(Protocol::Udp, "one", udp_echo(b'a').await);
    // The first packet must arrive: loopback loses none.
    let first = UdpSocket::bind(local(0)).await.unwrap();
    first.connect(local(port)).await.unwrap();
    first.send(b"hello").await.unwrap();
    let mut answer = [0; 16];
    let answered = tokio::time::timeout(Duration::from_secs(60), first.recv(&mut answer)).await;
    assert_eq!(&answer[..answered.expect("an answer").unwrap()], b"ahello");
    let large = noise(5, 40_000);
    let mut answer = vec![b'a'];
    answer.extend_from_slice(&large);
    ask(&first, &large, &answer).await;
    assert_eq!(stand.event().await, ("default/one".to_owned(), 1, true));
    let metrics = stand.gateway.metrics().clone();
    assert!(metrics.packets_in.get() >= 2 && metrics.packets_out.get() >= 2);
    assert_eq!(metrics.flows.get(), 1, "one client, one flow");

    // After the port has another instance, the client's next packets go there.
    stand.gateway.open(port, Protocol::Udp, key("one"), udp_echo(b'b').await).unwrap();
    ask(&first, b"hello", b"bhello").await;

    // More clients than flows: the flow idle for longest is replaced.
    let mut others = Vec::new();
    for _ in 0..3 {
        stand.clock.advance(Duration::from_secs(1));
        others.push(asked(port, b"x", b"bx").await);
    }
    assert_eq!(metrics.evicted.get(), 1);

    // Idle flows end with a `left` event.
    let mut present = BTreeSet::new();
    let (gateway, clock) = (stand.gateway.clone(), stand.clock.clone());
    let mut all = 1;
    while all < 5 || !present.is_empty() {
        if all == 5 {
            clock.advance(Duration::from_mins(2));
        }
        let waiting = tokio::time::timeout(Duration::from_millis(20), stand.event());
        if let Ok((_, id, joined)) = waiting.await {
            all += usize::from(joined);
            if joined {
                present.insert(id)
            } else {
                present.remove(&id)
            };
        }
    }
    gateway.shutdown().await;
    assert_eq!(metrics.clients.get(), 0);
}

#[tokio::test]
async fn a_closed_udp_port_drains() {
    let stand = stand(options());
    let port = stand.open(Protocol::Udp, "one", udp_echo(b'a').await);
    let staying = asked(port, b"x", b"ax").await;
    stand.gateway.close(port, Protocol::Udp, Duration::from_secs(30));
    ask(&staying, b"y", b"ay").await;
    let stranger = UdpSocket::bind(local(0)).await.unwrap();
    stranger.send_to(b"z", local(port)).await.unwrap();
    ask(&staying, b"z", b"az").await;
    assert_eq!(stand.gateway.metrics().flows.get(), 1, "no flow for a new client");
    let freed = async {
        while std::net::UdpSocket::bind(local(port)).is_err() {
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
    };
    stand.pass_until(Duration::from_secs(5), freed).await;
    assert_eq!(stand.gateway.metrics().ports.get(), 0);
}

#[tokio::test]
async fn many_connections_at_once() {
    let mut stand = stand(Options { pipes: 32, ..options() });
    let port = stand.open(Protocol::Tcp, "busy", echo("hey").await);
    let clients: Vec<_> = (0..300_u64)
        .map(|seed| {
            tokio::spawn(async move {
                let (stream, _) = greeting(port).await;
                let (mut read, mut write) = stream.into_split();
                let sent = noise(seed, 50_000);
                let mut got = Vec::new();
                tokio::join!(write_in_chunks(&mut write, &sent, seed + 7), async {
                    read.read_to_end(&mut got).await.unwrap();
                });
                got == sent
            })
        })
        .collect();
    for client in clients {
        assert!(client.await.unwrap());
    }
    let mut present = BTreeSet::new();
    let (mut joins, mut leaves) = (0, 0);
    while leaves < 300 {
        let (_, id, joined) = stand.event().await;
        if joined {
            joins += 1;
            assert!(present.insert(id));
        } else {
            leaves += 1;
            assert!(present.remove(&id), "every left event follows its joined event");
        }
    }
    assert_eq!((joins, present.len()), (300, 0));
    stand.gateway.shutdown().await;
    assert_eq!(stand.gateway.metrics().connections.get(), 300);
}

#[tokio::test]
async fn a_refused_connection_emits_no_event() {
    let mut stand = stand(options());
    let nobody = StdListener::bind(local(0)).unwrap().local_addr().unwrap();
    let port = stand.open(Protocol::Tcp, "one", nobody);
    ends(&mut TcpStream::connect(local(port)).await.unwrap()).await;
    assert_eq!(stand.gateway.metrics().unreachable.get(), 1);
    stand.gateway.open(port, Protocol::Tcp, key("one"), echo("hey").await).unwrap();
    let (_stream, _) = greeting(port).await;
    assert!(stand.event().await.2, "the first event is of the connection that worked");
}

#[tokio::test]
async fn connecting_to_an_unresponsive_instance_times_out() {
    let stand = stand(options());
    let socket = TcpSocket::new_v4().unwrap();
    socket.bind(local(0)).unwrap();
    let full = socket.listen(1).unwrap();
    let target = full.local_addr().unwrap();
    let mut waiting = Vec::new();
    // The kernel accepts connections until the backlog is full.
    while let Ok(stream) =
        tokio::time::timeout(Duration::from_millis(300), TcpStream::connect(target)).await
    {
        waiting.push(stream.unwrap());
    }
    let port = stand.open(Protocol::Tcp, "one", target);
    let mut client = TcpStream::connect(local(port)).await.unwrap();
    stand.pass_until(Duration::from_secs(1), ends(&mut client)).await;
    assert_eq!(stand.gateway.metrics().unreachable.get(), 1);
    stand.gateway.shutdown().await;
}

#[tokio::test]
async fn connections_beyond_the_limit_are_refused() {
    for (limits, allowed) in [((2, 100), 2), ((100, 3), 3)] {
        let options =
            Options { connections_per_session: limits.0, connections: limits.1, ..options() };
        let mut stand = stand(options);
        let port = stand.open(Protocol::Tcp, "one", echo("hey").await);
        let mut there = Vec::new();
        for _ in 0..allowed {
            there.push(greeting(port).await.0);
        }
        ends(&mut TcpStream::connect(local(port)).await.unwrap()).await;
        assert_eq!(stand.gateway.metrics().refused.get(), 1);
        drop(there.pop());
        while stand.event().await.2 {}
        // The permit is returned when the task ends, after its event.
        while stand.gateway.shared.connections.load(Ordering::Acquire) == allowed {
            tokio::task::yield_now().await;
        }
        there.push(greeting(port).await.0);
        stand.gateway.shutdown().await;
    }
}

#[tokio::test]
async fn a_slow_reader_slows_no_other_connection() {
    let stand = stand(Options { pipes: 1, ..options() });
    let listener = TcpListener::bind(local(0)).await.unwrap();
    let port = stand.open(Protocol::Tcp, "slow", listener.local_addr().unwrap());
    let _deaf = TcpStream::connect(local(port)).await.unwrap();
    let (instance, _) = listener.accept().await.unwrap();
    // Until the buffers are full and the instance can send no more.
    let chunk = vec![7; 1 << 16];
    let mut pressed = 0_u64;
    while let Ok(ready) =
        tokio::time::timeout(Duration::from_millis(300), instance.writable()).await
    {
        ready.unwrap();
        pressed += instance.try_write(&chunk).map_or(0, |bytes| bytes as u64);
        assert!(pressed < 256 << 20, "unread data is not buffered without bound");
    }
    let other = stand.open(Protocol::Tcp, "fast", echo("hey").await);
    let (mut stream, _) = greeting(other).await;
    stream.write_all(b"x").await.unwrap();
    assert_eq!(stream.read_u8().await.unwrap(), b'x');
    assert!(stand.gateway.metrics().copied.get() > 0, "the only pipe is in use");
    stand.gateway.shutdown().await;
}

#[tokio::test]
async fn errors_name_the_port_and_the_reason() {
    let stand = stand(options());
    for (protocol, port) in [
        (Protocol::Tcp, StdListener::bind(local(0)).map(|s| (s.local_addr(), Some(s), None))),
        (
            Protocol::Udp,
            std::net::UdpSocket::bind(local(0)).map(|s| (s.local_addr(), None, Some(s))),
        ),
    ] {
        let (address, _tcp, _udp) = port.unwrap();
        let port = address.unwrap().port();
        let error = stand.gateway.open(port, protocol, key("one"), local(1)).unwrap_err();
        assert!(matches!(error, Error::PortInUse { .. }), "{error}");
    }
    let port = stand.open(Protocol::Tcp, "one", local(1));
    let error = stand.gateway.open(port, Protocol::Tcp, key("two"), local(1)).unwrap_err();
    assert_eq!(error.to_string(), format!("port {port}/TCP is open for session default/one"));
    let denied = Error::of(80, Protocol::Udp, io::ErrorKind::PermissionDenied.into());
    assert!(denied.to_string().contains("port 80/UDP may not be opened"), "{denied}");
    stand.gateway.shutdown().await;
    let error = stand.gateway.open(port, Protocol::Tcp, key("one"), local(1)).unwrap_err();
    assert!(matches!(error, Error::Stopped), "{error}");
}

#[tokio::test]
async fn shutdown_completes_even_if_events_are_not_received() {
    let stand = stand(Options { events: 1, ..options() });
    let port = stand.open(Protocol::Tcp, "one", echo("hey").await);
    let mut streams = Vec::new();
    for _ in 0..3 {
        // The greeting depends on room for events; the connection itself does not.
        streams.push(TcpStream::connect(local(port)).await.unwrap());
    }
    stand.gateway.close(port, Protocol::Tcp, Duration::from_hours(1));
    stand.gateway.shutdown().await;
    stand.gateway.shutdown().await;
    for stream in &mut streams {
        ends(stream).await;
    }
    assert_eq!(stand.gateway.metrics().clients.get(), 0);
    assert_eq!(stand.gateway.shared.connections.load(Ordering::Acquire), 0);
}
