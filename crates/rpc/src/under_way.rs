//! Requests that are under way.
//!
//! Owns: the rule that the work of a request runs to its end in a task of its own, although its client goes away. What
//! limits the work (turns, shares) is held by the work, so that a client who asks and cancels again and again cannot
//! have more of it at the same time than one who waits. Refuses: to end the work; the work itself looks from time to
//! time whether it is still wanted.

use crate::Refusal;
use crate::audit::{Audit, Entry};
use crate::caller::{Account, Caller, Denied, Peer};
use crate::flow::{InTime, Streamed};
use crate::rights;
use crate::share::{Place, Shares};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;
use tokio::sync::watch;
use tonic::body::Body;
use tonic::codegen::{Service, http};
use tonic::{Code, Request, Status};

/// Largest size of a request in bytes. All that requests contain is numbers, and names and conditions that people
/// write.
pub(crate) const LARGEST_REQUEST: usize = 64 << 10;

/// Whether somebody still waits for an answer.
#[derive(Clone, Debug)]
pub struct Wanted(Option<watch::Receiver<()>>);

impl Wanted {
    /// For answers that are always wanted.
    #[must_use]
    pub fn always() -> Wanted {
        Wanted(None)
    }

    /// Whether the client is still there. Cheap enough to be asked often during long work.
    #[must_use]
    pub fn is_wanted(&self) -> bool {
        self.0
            .as_ref()
            .is_none_or(|here| here.has_changed().is_ok())
    }

    /// Completes when the client is gone.
    pub(crate) async fn gone(&self) {
        match self.0.clone() {
            // Nothing is ever sent: the channel only closes.
            Some(mut here) => while here.changed().await.is_ok() {},
            None => std::future::pending().await,
        }
    }
}

/// A request that is under way. The work of the request holds it until it has ended.
#[derive(Clone, Debug)]
pub(crate) struct UnderWay {
    wanted: Wanted,
    /// The request counts as its user's until this is dropped.
    _place: Option<Arc<Place>>,
}

impl UnderWay {
    pub(crate) fn of<T>(request: &Request<T>) -> UnderWay {
        let found = request.extensions().get::<UnderWay>();
        found.cloned().unwrap_or_else(|| UnderWay {
            wanted: Wanted::always(),
            _place: None,
        })
    }

    pub(crate) fn wanted(&self) -> &Wanted {
        &self.wanted
    }
}

/// Runs every request of the service below it to its end.
#[derive(Clone)]
pub(crate) struct ToTheEnd<S> {
    pub(crate) service: S,
    /// How long a client may leave a piece of an answer untaken before the answer ends.
    pub(crate) patience: Duration,
    /// How long a client may take to send a request.
    pub(crate) sent_within: Duration,
    /// Where requests that change something are written down.
    pub(crate) audit: Option<Audit>,
    /// How many requests each user may have under way.
    pub(crate) requests: Arc<Shares>,
}

impl<S> ToTheEnd<S> {
    /// `counted` is the place of a request that a layer above has counted.
    fn admit(
        &self,
        peer: Option<&Peer>,
        counted: Option<Arc<Place>>,
    ) -> Result<Arc<Place>, Refusal> {
        if let Some(refused) = peer.and_then(|peer| peer.refused.as_ref()) {
            return Err(refused.duplicate());
        }
        if let Some(place) = counted {
            return Ok(place);
        }
        let account = peer.map_or(Account::Unknown, Peer::account);
        self.requests.take(account).map(Arc::new)
    }
}

/// Why a request may not be made with the roles of its caller's certificate, if so.
fn lacks_role(peer: Option<&Peer>, path: &str) -> Option<Denial> {
    let Some(Caller::Certified(certified)) = peer.and_then(|peer| peer.caller.as_ref()) else {
        return None;
    };
    let Some(method) = rights::of(path) else {
        return Some(Denial::NoSuchMethod);
    };
    if certified.roles.give(method.needs) {
        return None;
    }
    Some(Denial::Role(Refusal::RoleLacks {
        name: certified.certificate.clone(),
        action: path.trim_start_matches('/').to_owned(),
        needed: method.needs.role(),
        has: certified.roles.to_string(),
    }))
}

/// Why a certificate does not get an answer.
enum Denial {
    NoSuchMethod,
    Role(Refusal),
}

/// An answer that needed no work: a refusal. It is written down first, also if the client is gone meanwhile.
async fn refused<E>(status: Status, entry: Option<Entry>) -> Result<http::Response<Body>, E> {
    let response = status.into_http();
    if let Some(entry) = entry {
        let headers = response.headers().clone();
        let written = tokio::spawn(async move { entry.finish(&headers).await });
        if let Err(error) = written.await {
            tracing::error!(%error, "an entry of the audit log was not written");
        }
    }
    Ok(response)
}

/// In the extensions of a response: its client may take what it wants when it wants, because what waits for it is
/// bounded.
#[derive(Clone, Copy)]
pub(crate) struct Unhurried;

impl<S> Service<http::Request<Body>> for ToTheEnd<S>
where
    S: Service<http::Request<Body>, Response = http::Response<Body>>,
    S::Future: Send + 'static,
    S::Error: Send + 'static,
{
    type Response = http::Response<Body>;
    type Error = S::Error;
    type Future = Pin<Box<dyn Future<Output = Result<Self::Response, Self::Error>> + Send>>;

    fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<Result<(), Self::Error>> {
        self.service.poll_ready(context)
    }

    fn call(&mut self, mut request: http::Request<Body>) -> Self::Future {
        let peer = request.extensions().get::<Peer>().cloned();
        let counted = request.extensions_mut().remove::<Arc<Place>>();
        let path = request.uri().path();
        let action = rights::of(path).and_then(|method| method.action);
        let noted = self.audit.as_ref().zip(action);
        let entry = noted.map(|(audit, action)| Entry::new(audit, action, peer.clone()));
        let place = match self.admit(peer.as_ref(), counted) {
            Ok(place) => place,
            Err(refusal) => return Box::pin(refused(refusal.into(), entry)),
        };
        match (lacks_role(peer.as_ref(), path), &entry) {
            (None, _) => {}
            (Some(Denial::NoSuchMethod), _) => {
                let status = Status::unimplemented(
                    "this daemon has no such method — is the client newer than the daemon?",
                );
                return Box::pin(refused(status, entry));
            }
            // The handler reads what the request is about, so that it can be written down, and gets no further.
            (Some(Denial::Role(refusal)), Some(_)) => {
                request.extensions_mut().insert(Denied(Arc::new(refusal)));
            }
            (Some(Denial::Role(refusal)), None) => {
                return Box::pin(refused(refusal.into(), entry));
            }
        }
        if let Some(entry) = &entry {
            request.extensions_mut().insert(entry.target());
        }
        // Reflection is asked in a stream of requests, which lasts as long as the client likes.
        if path_of_memscope(&request) {
            let within = self.sent_within;
            request = request.map(|body| Body::new(InTime::new(body, within)));
        }
        let (here, wanted) = watch::channel(());
        let under_way = UnderWay {
            wanted: Wanted(Some(wanted)),
            _place: Some(place),
        };
        request.extensions_mut().insert(under_way.clone());
        let patience = self.patience;
        let work = self.service.call(request);
        Box::pin(async move {
            let held = under_way.clone();
            let to_the_end = async move {
                let outcome = tokio::spawn(work).await;
                let response = match outcome {
                    Ok(Ok(response)) => in_our_words(response),
                    Ok(Err(error)) => {
                        if let Some(entry) = entry {
                            entry.broke().await;
                        }
                        return Err(error);
                    }
                    Err(error) => Status::internal(format!(
                        "the request could not be answered: {error} — this is a fault of memscope: please report it \
                         with the daemon's log"
                    ))
                    .into_http(),
                };
                if let Some(entry) = entry {
                    entry.finish(response.headers()).await;
                }
                drop(held);
                Ok(response)
            };
            let response = match tokio::spawn(to_the_end).await {
                Ok(response) => response?,
                Err(error) => Status::internal(format!("writing down the request failed: {error}"))
                    .into_http(),
            };
            let is_hurried = response.extensions().get::<Unhurried>().is_none();
            let patience = is_hurried.then_some(patience);
            Ok(response.map(|body| Body::new(Streamed::new(body, here, under_way, patience))))
        })
    }
}

fn path_of_memscope(request: &http::Request<Body>) -> bool {
    request.uri().path().starts_with("/memscope.v1.")
}

/// The transport refuses large requests by itself, with a code and words of its own.
fn in_our_words(response: http::Response<Body>) -> http::Response<Body> {
    let status = Status::from_header_map(response.headers());
    if status.is_some_and(|status| status.code() == Code::OutOfRange) {
        let most = LARGEST_REQUEST;
        return Status::from(Refusal::TooLarge { most }).into_http();
    }
    response
}
