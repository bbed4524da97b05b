//! Streams of nodes: messages in both directions, and logs that are read through them.

use std::collections::HashMap;

use tokio::sync::mpsc;

use super::super::streams::UNREAD;
use super::Actor;
use crate::engine::{Key, Moment, key, parts};
use crate::protocol::{FromNode, LogChunk, ReadLog, ToNode, from_node, to_node};
use crate::secrets::SecretValues;

/// The open stream of a node.
#[derive(Debug)]
pub(super) struct NodeStream {
    pub(super) connection: u64,
    pub(super) outgoing: mpsc::Sender<ToNode>,
    /// Readers of instances' logs, by request number.
    pub(super) log_readers: HashMap<u64, mpsc::Sender<Result<LogChunk, String>>>,
}

/// The first request number of ReadLog commands, far above the engine's own numbers.
pub(super) const LOG_REQUESTS: u64 = 1 << 62;

impl Actor {
    /// Processes one message of a node.
    pub(super) fn receive(&mut self, node: &Key, message: FromNode, now: Moment) {
        let Some(stream) = self.streams.get_mut(node) else { return };
        match &message.body {
            Some(from_node::Body::Log(chunk)) => {
                let (request, last) = (chunk.request, chunk.last);
                if let Some(reader) = stream.log_readers.get(&request) {
                    // Drop readers that cannot keep up.
                    let keeps_up = reader.try_send(Ok(chunk.clone())).is_ok();
                    if last || !keeps_up {
                        stream.log_readers.remove(&request);
                    }
                }
            }
            Some(from_node::Body::Failed(failed)) if failed.request >= LOG_REQUESTS => {
                if let Some(reader) = stream.log_readers.remove(&failed.request) {
                    let _ = reader.try_send(Err(failed.message.clone()));
                }
            }
            _ => self.parts.engine.receive(node, message, now),
        }
    }

    /// Asks the node of an instance for its log; chunks go to `chunks` as they arrive.
    pub(super) fn read_log(
        &mut self,
        instance: &Key,
        tail: u64,
        follow: bool,
        chunks: mpsc::Sender<Result<LogChunk, String>>,
    ) {
        let view = self.parts.engine.instance_view(instance);
        let node: Option<Key> = view
            .map(|(spec, ..)| spec.node_name.as_str().into())
            .filter(|node: &Key| !node.is_empty());
        let stream = node.as_ref().and_then(|node| self.streams.get_mut(node));
        let Some(stream) = stream else {
            let why = match node {
                Some(node) => format!("the node {node} is not connected"),
                None => format!("there is no instance {instance} on any node"),
            };
            let _ = chunks.try_send(Err(why));
            return;
        };
        self.log_requests += 1;
        let (namespace, name) = parts(instance);
        let body = to_node::Body::ReadLog(ReadLog {
            namespace: namespace.to_owned(),
            instance: name.to_owned(),
            tail,
            follow,
        });
        let message =
            ToNode { epoch: self.parts.epoch, request: self.log_requests, body: Some(body) };
        if stream.outgoing.try_send(message).is_ok() {
            stream.log_readers.insert(self.log_requests, chunks);
        }
    }

    /// Sends a message to a node. A node that does not read its stream is disconnected.
    pub(super) fn send(&mut self, node: &Key, request: u64, mut body: to_node::Body, now: Moment) {
        let Some(stream) = self.streams.get(node) else { return };
        if let to_node::Body::Create(create) = &mut body {
            let application = key(&create.namespace, &create.application);
            create.secrets =
                self.secrets.get(&application).map(SecretValues::to_map).unwrap_or_default();
        }
        let message = ToNode { epoch: self.parts.epoch, request, body: Some(body) };
        self.parts.handle.metrics.sent.inc();
        if stream.outgoing.try_send(message).is_err() {
            tracing::warn!(%node, limit = UNREAD, "node does not read its stream; disconnecting it");
            self.parts.handle.metrics.disconnected.inc();
            self.streams.remove(node);
            self.parts.engine.disconnect(node, now);
        }
    }
}
