//! Admission: the counters behind the rules of [`crate::fairness`], and the refusals.
//!
//! Everything that is bounded is a [`Pool`]. A [`Place`] in one is held until it is dropped. Places
//! are counted three times: for the class, for the [`Flow`] (a user, or the address of somebody who
//! is not known), and for the connection ([`Line`]). All three are atomics that are raised first and
//! lowered again if the verdict is no, so that a bound is never exceeded; two who meet at the last
//! place may both be told to come back.
//!
//! Requests do not look anybody up: a connection remembers the flow of its user ([`Visitor`]), so
//! that entering and leaving cost about ten atomic operations and no lock: 50 ns, or 80 ns where two
//! threads meet.
//! A flow lives as long as somebody holds it, and is forgotten with its last place and connection.

use std::collections::HashMap;
use std::net::{IpAddr, Ipv6Addr};
use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};
use std::sync::{Arc, Weak};

use arc_swap::ArcSwapOption;
use mainstay_store::status::{Error, Reason};
use parking_lot::{Mutex, MutexGuard};
use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::registry::Registry;
use tokio::sync::Notify;

use crate::fairness::{Bounds, CLASSES, Class, Met};
use crate::identity::{Role, SERVERS, User};
use crate::options::Limits;

/// Something there is only so much of.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Pool {
    /// Requests of known users under way, their bodies received.
    Requests,
    /// Watches, and other answers that stay open.
    Watches,
    /// Bodies of known users being received.
    Bodies,
    /// Bytes of bodies of known users in memory.
    BodyBytes,
    /// Bytes of answers to known users that were made and not yet taken.
    AnswerBytes,
    /// Connections of known users.
    Connections,
    /// Requests of those who are not known, their bodies included.
    Strangers,
    /// Bytes of bodies of those who are not known.
    StrangerBytes,
    /// Connections by the address they come from.
    Addresses,
    /// Connections that wait until another one of their address is closed.
    Arrivals,
}

const POOLS: usize = 10;

impl Pool {
    const ALL: [Self; POOLS] = [
        Self::Requests,
        Self::Watches,
        Self::Bodies,
        Self::BodyBytes,
        Self::AnswerBytes,
        Self::Connections,
        Self::Strangers,
        Self::StrangerBytes,
        Self::Addresses,
        Self::Arrivals,
    ];

    fn name(self) -> &'static str {
        match self {
            Self::Requests => "requests",
            Self::Watches => "watches",
            Self::Bodies => "bodies",
            Self::BodyBytes => "body-bytes",
            Self::AnswerBytes => "answer-bytes",
            Self::Connections => "user-connections",
            Self::Strangers => "unauthenticated",
            Self::StrangerBytes => "unauthenticated-body-bytes",
            Self::Addresses => "address-connections",
            Self::Arrivals => "waiting-connections",
        }
    }

    /// The thing that is counted, for people.
    fn noun(self) -> &'static str {
        match self {
            Self::Requests => "requests under way",
            Self::Watches => "watches",
            Self::Bodies => "request bodies on their way",
            Self::BodyBytes | Self::StrangerBytes => "bytes of request bodies in memory",
            Self::AnswerBytes => "bytes of answers that were not read yet",
            Self::Connections | Self::Addresses => "connections",
            Self::Strangers => "unauthenticated requests under way",
            Self::Arrivals => "connections waiting",
        }
    }

    /// The key in the configuration file.
    fn setting(self) -> &'static str {
        match self {
            Self::Requests => "limits.in-flight",
            Self::Watches => "limits.watches",
            Self::Bodies => "limits.bodies",
            Self::BodyBytes => "limits.body-memory",
            Self::AnswerBytes => "limits.answer-memory",
            Self::Strangers => "limits.unauthenticated",
            Self::StrangerBytes => "limits.unauthenticated-body-memory",
            Self::Connections | Self::Addresses | Self::Arrivals => "limits.connections",
        }
    }

    fn classes(self) -> &'static [Class] {
        match self {
            Self::Requests
            | Self::Watches
            | Self::Bodies
            | Self::BodyBytes
            | Self::AnswerBytes
            | Self::Connections => &Class::SHARED,
            Self::Strangers | Self::StrangerBytes => &[Class::TOKEN, Class::ANONYMOUS],
            Self::Addresses | Self::Arrivals => &[Class::LOOPBACK, Class::REMOTE],
        }
    }

    fn bounds(self, limits: &Limits) -> Bounds {
        // Sixteenths for administrators, the system, and users.
        let shared = [1, 2, 1];
        let strangers = [8, 1, 0];
        match self {
            Self::Requests => Bounds::new(limits.in_flight, shared),
            Self::Watches => Bounds::new(limits.watches, shared),
            Self::Bodies => Bounds::new(limits.bodies, shared),
            Self::BodyBytes => Bounds::new(limits.body_memory, shared),
            Self::AnswerBytes => Bounds::new(limits.answer_memory, shared),
            Self::Connections => Bounds::new(limits.connections, shared),
            Self::Strangers => Bounds::new(limits.strangers, strangers),
            Self::StrangerBytes => Bounds::new(limits.stranger_body_memory, strangers),
            Self::Addresses => {
                let each = limits.connections_per_address.unwrap_or(usize::MAX);
                Bounds { each, ..Bounds::new(limits.connections, [1, 0, 0]) }
            }
            Self::Arrivals => Bounds::new(ARRIVALS, [1, 0, 0]),
        }
    }
}

/// How many connections may wait for a place at once.
const ARRIVALS: usize = 256;

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct Held {
    pool: &'static str,
    class: &'static str,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct Refused {
    pool: &'static str,
    class: &'static str,
    bound: &'static str,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
enum Key {
    User(Arc<str>),
    Address(IpAddr),
}

type Counts = [AtomicUsize; POOLS];

/// All pools of a server.
#[derive(Debug)]
pub(crate) struct Gate {
    bounds: [Bounds; POOLS],
    held: [[AtomicUsize; CLASSES]; POOLS],
    flows: Mutex<HashMap<Key, Weak<Flow>>>,
    refused: Family<Refused, Counter>,
    levels: Family<Held, Gauge>,
    /// Told when a connection has gone.
    departed: Notify,
}

impl Gate {
    pub(crate) fn new(limits: &Limits) -> Arc<Self> {
        Arc::new(Self {
            bounds: Pool::ALL.map(|pool| pool.bounds(limits)),
            held: Default::default(),
            flows: Mutex::default(),
            refused: Family::default(),
            levels: Family::default(),
            departed: Notify::new(),
        })
    }

    pub(crate) fn register(&self, registry: &mut Registry) {
        let http = registry.sub_registry_with_prefix("mainstay_http");
        http.register("held", "Places taken, by what is bounded and class", self.levels.clone());
        let help = "Refusals for want of a place, by what is bounded, class and bound";
        http.register("refused", help, self.refused.clone());
    }

    /// Shows how much is taken of everything.
    pub(crate) fn observe(&self) {
        for pool in Pool::ALL {
            for class in pool.classes() {
                let held = self.held[pool as usize][class.index].load(SeqCst);
                let label = Held { pool: pool.name(), class: class.name };
                self.levels.get_or_create(&label).set(i64::try_from(held).unwrap_or(i64::MAX));
            }
        }
    }

    /// How many places of a pool are taken.
    pub(crate) fn held(&self, pool: Pool) -> usize {
        self.held[pool as usize].iter().map(|held| held.load(SeqCst)).sum()
    }

    /// Waits until a connection has gone, once enabled.
    pub(crate) fn departed(&self) -> tokio::sync::futures::Notified<'_> {
        self.departed.notified()
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<Key, Weak<Flow>>> {
        self.flows.lock()
    }

    fn flow(self: &Arc<Self>, key: Key) -> Arc<Flow> {
        let mut flows = self.lock();
        if let Some(flow) = flows.get(&key).and_then(Weak::upgrade) {
            return flow;
        }
        let flow = Flow { gate: self.clone(), key: key.clone(), held: Counts::default() };
        let flow = Arc::new(flow);
        flows.insert(key, Arc::downgrade(&flow));
        flow
    }

    /// The places that an address holds. The addresses of one IPv6 network count as one: a host there
    /// can use them all.
    pub(crate) fn address(self: &Arc<Self>, address: IpAddr) -> Arc<Flow> {
        self.flow(Key::Address(source(address)))
    }

    fn user(self: &Arc<Self>, user: &User) -> Arc<Flow> {
        self.flow(Key::User(user.name.clone()))
    }

    /// Counts `more` places, or says which bound is in the way.
    fn take(&self, who: &Who, pool: Pool, more: usize) -> Result<(), Met> {
        let (at, class) = (pool as usize, who.class);
        let classes = &self.held[at];
        let mine = classes[class.index].fetch_add(more, SeqCst);
        let by_flow = who.flow.held[at].fetch_add(more, SeqCst);
        let by_line = who.line.0[at].fetch_add(more, SeqCst);
        let mut held = [0; CLASSES];
        for (index, held) in held.iter_mut().enumerate() {
            *held = if index == class.index { mine } else { classes[index].load(SeqCst) };
        }
        // A collection may be larger than the bound: one such answer for each class at a time.
        let alone = pool == Pool::AnswerBytes && mine == 0;
        let verdict = match alone {
            true => Ok(()),
            false => self.bounds[at].admit(held, class, by_flow, by_line, more),
        };
        if let Err(met) = verdict {
            self.give_back(who, pool, more);
            let label = Refused { pool: pool.name(), class: class.name, bound: met.as_str() };
            self.refused.get_or_create(&label).inc();
        }
        verdict
    }

    fn add(&self, who: &Who, pool: Pool, more: usize) {
        let at = pool as usize;
        self.held[at][who.class.index].fetch_add(more, SeqCst);
        who.flow.held[at].fetch_add(more, SeqCst);
        who.line.0[at].fetch_add(more, SeqCst);
    }

    fn give_back(&self, who: &Who, pool: Pool, less: usize) {
        let at = pool as usize;
        who.line.0[at].fetch_sub(less, SeqCst);
        who.flow.held[at].fetch_sub(less, SeqCst);
        self.held[at][who.class.index].fetch_sub(less, SeqCst);
    }
}

fn source(address: IpAddr) -> IpAddr {
    match address.to_canonical() {
        IpAddr::V6(address) if !address.is_loopback() => {
            let network = address.to_bits() >> 64 << 64;
            IpAddr::V6(Ipv6Addr::from_bits(network))
        }
        address => address,
    }
}

/// The places that one user, or one address, holds.
#[derive(Debug)]
pub(crate) struct Flow {
    gate: Arc<Gate>,
    key: Key,
    held: Counts,
}

impl Flow {
    fn is(&self, user: &User) -> bool {
        matches!(&self.key, Key::User(name) if *name == user.name)
    }

    fn name(&self) -> String {
        match &self.key {
            Key::User(name) => format!("user \"{name}\""),
            Key::Address(address) => format!("address {address}"),
        }
    }
}

impl Drop for Flow {
    fn drop(&mut self) {
        let mut flows = self.gate.lock();
        // Another flow of the same name may have begun meanwhile.
        if flows.get(&self.key).is_some_and(|flow| flow.strong_count() == 0) {
            flows.remove(&self.key);
        }
    }
}

/// The places that one connection holds.
#[derive(Debug, Default)]
pub(crate) struct Line(Counts);

/// Somebody who asks for a place.
#[derive(Clone, Debug)]
pub(crate) struct Who {
    flow: Arc<Flow>,
    line: Arc<Line>,
    class: Class,
}

impl Who {
    /// A place, or the refusal that names the bound.
    pub(crate) fn enter(&self, pool: Pool) -> Result<Place, Error> {
        self.clone().enter_with(pool, 1).map_err(|(who, met)| who.refusal(pool, met))
    }

    /// So many places at once.
    pub(crate) fn enter_many(&self, pool: Pool, count: usize) -> Result<Place, Error> {
        self.clone().enter_with(pool, count).map_err(|(who, met)| who.refusal(pool, met))
    }

    /// So many places, whether there are as many or not: for the answer to a change that was made.
    pub(crate) fn enter_anyway(&self, pool: Pool, count: usize) -> Place {
        self.flow.gate.add(self, pool, count);
        Place { who: self.clone(), pool, count }
    }

    /// Whether it is one of the ordinary users, neither an administrator nor a part of the cluster.
    pub(crate) fn is_ordinary(&self) -> bool {
        self.class == Class::USERS
    }

    /// A number for the user, or the address, which no other has at the same time.
    pub(crate) fn flow_id(&self) -> usize {
        Arc::as_ptr(&self.flow).addr()
    }

    pub(crate) fn enter_with(self, pool: Pool, count: usize) -> Result<Place, (Self, Met)> {
        match self.flow.gate.take(&self, pool, count) {
            Ok(()) => Ok(Place { who: self, pool, count }),
            Err(met) => Err((self, met)),
        }
    }

    /// The pool that the bytes of this one's bodies count in.
    pub(crate) fn bytes(&self) -> Pool {
        match self.flow.key {
            Key::User(_) => Pool::BodyBytes,
            Key::Address(_) => Pool::StrangerBytes,
        }
    }

    fn refusal(&self, pool: Pool, met: Met) -> Error {
        let at = pool as usize;
        let Bounds { total, .. } = self.flow.gate.bounds[at];
        let (noun, name, setting) = (pool.noun(), self.flow.name(), pool.setting());
        let message = match met {
            Met::All => format!(
                "Too many {noun}: the server has no place left for {} ({setting} is {total}); retry later",
                self.class.name
            ),
            Met::Share => format!(
                "Too many {noun}: {name} has {}, which is its share of {setting} ({total}); retry later, or with fewer at once",
                self.flow.held[at].load(SeqCst)
            ),
            Met::Connection => format!(
                "Too many {noun}: this connection of {name} has {}, which is its share of {setting} ({total}); retry later, or use more connections",
                self.line.0[at].load(SeqCst)
            ),
        };
        let mut error = Error::new(Reason::TooManyRequests, message);
        error.retry_after = Some(1);
        error
    }
}

/// Places taken, until dropped.
#[derive(Debug)]
pub(crate) struct Place {
    who: Who,
    pool: Pool,
    count: usize,
}

impl Place {
    /// Takes `more` of the same. If that is refused, what was taken stays.
    pub(crate) fn grow(&mut self, more: usize) -> Result<(), Error> {
        let taken = self.who.flow.gate.take(&self.who, self.pool, more);
        taken.map_err(|met| self.who.refusal(self.pool, met))?;
        self.count += more;
        Ok(())
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let gate = &self.who.flow.gate;
        gate.give_back(&self.who, self.pool, self.count);
        if self.pool == Pool::Addresses {
            gate.departed.notify_waiters();
        }
    }
}

/// The other end of one connection: where it comes from, and whose it turned out to be.
#[derive(Debug)]
pub(crate) struct Visitor {
    origin: Arc<Flow>,
    line: Arc<Line>,
    known: ArcSwapOption<Known>,
    _connection: Place,
}

/// The user of a connection; the connection counts as one of theirs.
#[derive(Debug)]
struct Known {
    flow: Arc<Flow>,
    class: Class,
    _connection: Place,
}

impl Visitor {
    /// Somebody who comes from an address.
    ///
    /// # Errors
    /// The bound that is in the way of one more connection.
    pub(crate) fn new(gate: &Arc<Gate>, address: IpAddr) -> Result<Self, Met> {
        let who = arriving(gate, address);
        let (origin, line) = (who.flow.clone(), who.line.clone());
        let connection = who.enter_with(Pool::Addresses, 1).map_err(|(_, met)| met)?;
        Ok(Self { origin, line, known: ArcSwapOption::empty(), _connection: connection })
    }

    /// The connection as one of this user, who is remembered.
    ///
    /// # Errors
    /// 429 if the user has too many connections.
    pub(crate) fn known(&self, user: &User) -> Result<Who, Error> {
        let class = class(user);
        if let Some(known) = &*self.known.load()
            && known.flow.is(user)
            && known.class == class
        {
            return Ok(Who { flow: known.flow.clone(), line: self.line.clone(), class });
        }
        let who = Who { line: self.line.clone(), ..self.acting(user) };
        // A connection that changes hands belongs to nobody meanwhile.
        self.known.store(None);
        let connection = who.enter(Pool::Connections)?;
        let known = Known { flow: who.flow.clone(), class, _connection: connection };
        self.known.store(Some(Arc::new(known)));
        Ok(who)
    }

    /// Somebody on whose behalf the user of this connection acts. A server forwards the requests of
    /// many on one connection, so none of them is held to the share of a connection.
    pub(crate) fn acting(&self, user: &User) -> Who {
        let flow = self.origin.gate.user(user);
        Who { flow, line: Arc::default(), class: class(user) }
    }

    /// Somebody who is not known, perhaps with a token that means something to others.
    pub(crate) fn stranger(&self, has_token: bool) -> Who {
        let class = if has_token { Class::TOKEN } else { Class::ANONYMOUS };
        Who { flow: self.origin.clone(), line: self.line.clone(), class }
    }
}

/// Somebody at the door.
pub(crate) fn arriving(gate: &Arc<Gate>, address: IpAddr) -> Who {
    let loopback = address.to_canonical().is_loopback();
    let class = if loopback { Class::LOOPBACK } else { Class::REMOTE };
    Who { flow: gate.address(address), line: Arc::default(), class }
}

fn class(user: &User) -> Class {
    let server = || user.claims.groups.iter().any(|group| group == SERVERS);
    match user.role {
        Some(Role::Admin) if server() => Class::SYSTEM,
        Some(Role::Admin) => Class::ADMINISTRATORS,
        Some(Role::Node) => Class::SYSTEM,
        Some(Role::Editor | Role::Viewer) | None => Class::USERS,
    }
}

#[cfg(test)]
mod tests;
