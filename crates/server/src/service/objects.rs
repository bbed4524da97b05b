//! Requests about objects: from a path to a kind and a verb, and on to the module that does it.

use std::sync::Arc;

use http::request::Parts;
use http::{Method, StatusCode};
use mainstay_store::registry::Kind;
use mainstay_store::resources::{Admission, Resources, Subresource};
use mainstay_store::status::Error;

use super::{App, Asked, accept, method_verb, no_such_resource, read_only, wrong_method};
use crate::admit::OwnOnly;
use crate::answers::Room;
use crate::authorize::{self, Attempt, Verb, Verdict};
use crate::body::{Incoming, Inside};
use crate::discovery::serves_delete_collection;
use crate::gate::{Pool, Who};
use crate::identity::User;
use crate::negotiate::{self, Form};
use crate::path::Target;
use crate::query::Query;
use crate::reply::{self, Body, Reply};
use crate::write::Writing;
use crate::{list, render, reviews, watch};

impl App {
    /// Objects of a kind.
    pub(super) async fn objects(
        &self,
        parts: &Parts,
        body: Incoming,
        target: &Target<'_>,
        user: &Arc<User>,
        who: &Who,
        asked: &mut Asked,
    ) -> Result<Reply, Error> {
        let query = Query::parse(parts.uri.query())?;
        let registry = self.resources.registry();
        let Some(kind) = registry.find(target.group, target.version, target.plural) else {
            if let Some(review) = reviews::named(target) {
                asked.verb = method_verb(&parts.method);
                asked.asks = true;
                let _inside = body.admit(who, Pool::Requests)?;
                return reviews::answer(self, parts, body, review, user).await;
            }
            return self.unknown_kind(parts, target, &query, user, asked);
        };
        let part = part(kind, target)?;
        let verb = verb(&parts.method, kind, target, &query)?;
        let (namespace, name) = (target.namespace.as_deref(), target.name.as_deref());
        asked.verb = verb.as_str();
        asked.resource = Some(kind.resource().clone());
        asked.changes = !verb.reads();
        if asked.changes {
            target.subresource.unwrap_or_default().clone_into(&mut asked.subresource);
            namespace.unwrap_or_default().clone_into(&mut asked.namespace);
            name.unwrap_or_default().clone_into(&mut asked.name);
        }
        let attempt = Attempt {
            verb,
            group: kind.group,
            plural: kind.plural,
            subresource: target.subresource.unwrap_or_default(),
            namespace,
            name,
            fields: query.field_selector.as_deref(),
        };
        let own = match authorize::judge(user, &attempt) {
            Verdict::Allowed => None,
            Verdict::IfOwn(rule) => {
                let note = asked.note.get_or_insert_default().clone();
                Some(Arc::new(OwnOnly::new(self, user, rule, kind, &attempt).noting(note)))
            }
            Verdict::Denied => return Err(authorize::forbidden(user, kind, &attempt)),
        };
        let form = negotiate::form(accept(parts))?;
        if verb == Verb::Watch {
            asked.lasting = true;
            let inside = who.enter(Pool::Watches)?;
            let watching = self.metrics.watching(kind.resource());
            let mut reply = watch::watch(self, kind, namespace, name, &query, form).await?;
            self.until_credential_ends(parts, &mut reply, Some(watch::error_line)).await;
            reply.body_mut().holding((inside, watching));
            return Ok(reply);
        }
        // A keeper may let a request wait: it must not stand in the way of those that do not.
        let pool = if self.resources.is_kept(kind) { Pool::Watches } else { Pool::Requests };
        let inside = match verb.reads() {
            true => Inside::Place(who.enter(pool)?),
            false => body.admit(who, pool)?,
        };
        let room = Room::new(who, parts);
        room.check()?;
        let writing = Writing {
            app: self,
            kind,
            namespace,
            subresource: part,
            query: &query,
            form,
            who,
            admission: own.clone().map(|own| own as Arc<dyn Admission>),
            patient: asked.patient.clone(),
        };
        let key = name.map(|name| kind.key(namespace, name));
        let mut reply = match (verb, &key) {
            (Verb::Get, Some(key)) => {
                check_version(&self.resources, kind, &query)?;
                let record = self.resources.read(kind, key).await?;
                if let Some(own) = &own {
                    own.find(&record.object()).await?;
                }
                let body = if form == Form::Plain && !query.pretty {
                    record.json().clone()
                } else {
                    render::one(kind, &record, form, &query, self.clock.now())?
                };
                reply::json(StatusCode::OK, Body::whole(body))
            }
            (Verb::Create, _) => writing.create(parts, body, &mut asked.name).await?,
            (Verb::Update, Some(key)) => writing.update(parts, body, key).await?,
            (Verb::Patch, Some(key)) => writing.patch(parts, body, key).await?,
            (Verb::Delete, Some(key)) => writing.delete(parts, body, key).await?,
            (Verb::DeleteCollection, _) => writing.delete_collection(parts, body).await?,
            _ => list::list(self, kind, namespace, &query, form, room).await?,
        };
        if !reply.body().is_whole() {
            reply.body_mut().holding(inside);
        }
        room.count(reply)
    }

    /// Kinds that are not served. `kubectl describe node` insists on asking for pods, though, and
    /// is content to hear that there are none.
    fn unknown_kind(
        &self,
        parts: &Parts,
        target: &Target<'_>,
        query: &Query<'_>,
        user: &User,
        asked: &mut Asked,
    ) -> Result<Reply, Error> {
        asked.verb = method_verb(&parts.method);
        if (target.group, target.plural) != ("", "pods") || target.name.is_some() {
            return Err(no_such_resource());
        }
        read_only(&parts.method)?;
        let verb = if query.watch { Verb::Watch } else { Verb::List };
        asked.verb = verb.as_str();
        let attempt = Attempt {
            verb,
            group: "",
            plural: "pods",
            subresource: "",
            namespace: target.namespace.as_deref(),
            name: None,
            fields: None,
        };
        if authorize::judge(user, &attempt) != Verdict::Allowed {
            return Err(authorize::forbidden_path(user, verb.as_str(), parts.uri.path()));
        }
        if verb == Verb::Watch {
            return Err(wrong_method());
        }
        let none = r#"{"kind":"PodList","apiVersion":"v1","metadata":{},"items":[]}"#;
        Ok(reply::json(StatusCode::OK, Body::whole(none)))
    }
}

/// Which part of an object a path names; refuses places where there is nothing.
fn part(kind: &Kind, target: &Target<'_>) -> Result<Option<Subresource>, Error> {
    let placed = match (kind.namespaced, &target.namespace, &target.name) {
        (true, None, Some(_)) | (false, Some(_), _) => false,
        (true, Some(_), _) | (_, None, None) | (false, None, Some(_)) => true,
    };
    match target.subresource {
        _ if !placed => Err(no_such_resource()),
        None => Ok(None),
        Some("status") if kind.has_status => Ok(Some(Subresource::Status)),
        Some("finalize") if kind.has_finalize => Ok(Some(Subresource::Finalize)),
        Some(_) => Err(no_such_resource()),
    }
}

fn verb(
    method: &Method,
    kind: &Kind,
    target: &Target<'_>,
    query: &Query<'_>,
) -> Result<Verb, Error> {
    let one = target.name.is_some();
    let whole = target.subresource.is_none();
    let everywhere = kind.namespaced && target.namespace.is_none();
    match (method.as_str(), one) {
        ("GET", _) if query.watch && whole => Ok(Verb::Watch),
        ("GET" | "HEAD", true) if target.subresource != Some("finalize") => Ok(Verb::Get),
        ("GET" | "HEAD", false) => Ok(Verb::List),
        ("POST", false) if !everywhere => Ok(Verb::Create),
        ("PUT", true) => Ok(Verb::Update),
        ("PATCH", true) if target.subresource != Some("finalize") => Ok(Verb::Patch),
        ("DELETE", true) if whole => Ok(Verb::Delete),
        ("DELETE", false) if !everywhere && serves_delete_collection(kind) => {
            Ok(Verb::DeleteCollection)
        }
        _ => Err(wrong_method()),
    }
}

/// Refuses to read at a version that is not there yet.
fn check_version(resources: &Resources, kind: &Kind, query: &Query<'_>) -> Result<(), Error> {
    let Some(version) = query.resource_version.as_deref() else {
        return Ok(());
    };
    let requested = list::parse_version(version)?;
    let current = resources.objects().revision(kind.resource());
    if requested <= current {
        return Ok(());
    }
    let too_new = mainstay_store::objects::Error::TooNew { requested, current };
    Err(Error::from_store(kind, "", too_new))
}
