//! Requests on their way from their clients, and answers on their way to them.
//!
//! Owns: the time within which a request must have come, and the time within which a client must take what is there for
//! it. What an answer holds (the copy of a process's
//! state, a thread that writes) is given back when that time is over, whether or not the client ever reads on. Refuses:
//! to judge an answer that has nothing to send at the moment.

use crate::Refusal;
use http_body::{Frame, SizeHint};
use std::any::Any;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::task::{Context, Poll, ready};
use std::time::Duration;
use tokio::task::AbortHandle;
use tokio::time::{Instant, Sleep, sleep, sleep_until};
use tonic::Status;
use tonic::body::Body;
use tonic::codegen::http::HeaderMap;

/// A request on its way from the client, which must be there within a time.
pub(crate) struct InTime {
    body: Body,
    within: Duration,
    end: Pin<Box<Sleep>>,
}

impl InTime {
    pub(crate) fn new(body: Body, within: Duration) -> InTime {
        InTime {
            body,
            within,
            end: Box::pin(sleep(within)),
        }
    }
}

impl http_body::Body for InTime {
    type Data = <Body as http_body::Body>::Data;
    type Error = Status;

    fn poll_frame(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Self::Data>, Status>>> {
        let this = self.get_mut();
        match Pin::new(&mut this.body).poll_frame(context) {
            Poll::Ready(frame) => Poll::Ready(frame),
            Poll::Pending => {
                ready!(this.end.as_mut().poll(context));
                let within = this.within;
                Poll::Ready(Some(Err(Refusal::TooSlow { within }.into())))
            }
        }
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

/// The answer on its way to the client. Dropped when the client has it, or is gone.
pub(crate) struct Streamed {
    flow: Arc<Mutex<Flow>>,
    /// How long a piece may wait to be taken; `None`: for ever.
    patience: Option<Duration>,
    /// Watches the flow from the first piece on.
    watch: Option<AbortHandle>,
    /// Whether the end says why the answer was given up, as answers of gRPC do. Others break off.
    has_status: bool,
    /// The transport keeps a piece of an answer that was given up until the client reads on or closes the stream, so
    /// the request counts until then.
    _counted: Box<dyn Any + Send>,
}

struct Flow {
    /// `None`: the answer has been given up.
    held: Option<Held>,
    /// When the last piece was handed to the transport. The transport asks for the next one when the client has room.
    handed: Option<Instant>,
    /// Whether the client has been told that the answer was given up.
    told: bool,
}

/// What an answer holds.
struct Held {
    body: Body,
    _beside: Box<dyn Any + Send>,
}

impl Streamed {
    /// `beside` is dropped together with the body, and `counted` when the transport is done with the answer.
    pub(crate) fn new(
        body: Body,
        beside: impl Send + 'static,
        counted: impl Send + 'static,
        patience: Option<Duration>,
    ) -> Streamed {
        let held = Held {
            body,
            _beside: Box::new(beside),
        };
        let flow = Flow {
            held: Some(held),
            handed: None,
            told: false,
        };
        Streamed {
            flow: Arc::new(Mutex::new(flow)),
            patience,
            watch: None,
            has_status: true,
            _counted: Box::new(counted),
        }
    }

    /// The answer breaks off where it is given up, so that it does not look whole: outside of gRPC no status stands behind it.
    pub(crate) fn without_status(mut self) -> Streamed {
        self.has_status = false;
        self
    }
}

impl Drop for Streamed {
    fn drop(&mut self) {
        if let Some(watch) = &self.watch {
            watch.abort();
        }
    }
}

fn lock(flow: &Mutex<Flow>) -> MutexGuard<'_, Flow> {
    // The flow is still usable if making a piece of the answer panicked.
    flow.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Gives the answer up when the client has taken nothing of what is there for it within `patience`.
async fn give_up_when_late(flow: Weak<Mutex<Flow>>, patience: Duration) {
    let mut next = Instant::now() + patience;
    loop {
        sleep_until(next).await;
        let Some(flow) = flow.upgrade() else {
            return;
        };
        let mut flow = lock(&flow);
        let now = Instant::now();
        next = flow.handed.unwrap_or(now) + patience;
        if next <= now {
            let held = flow.held.take();
            // Dropped without the lock, since a large report takes a while.
            drop(flow);
            drop(held);
            tracing::warn!(
                ?patience,
                "an answer was given up: its client takes nothing of it"
            );
            return;
        }
    }
}

impl http_body::Body for Streamed {
    type Data = <Body as http_body::Body>::Data;
    type Error = Status;

    fn poll_frame(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Self::Data>, Status>>> {
        let this = self.get_mut();
        let mut flow = lock(&this.flow);
        flow.handed = None;
        let Some(held) = &mut flow.held else {
            let is_new = !std::mem::replace(&mut flow.told, true);
            let patience = this.patience.unwrap_or_default();
            let refusal = Status::from(Refusal::NotTaken { patience });
            return Poll::Ready(is_new.then(|| match this.has_status {
                true => given_up(&refusal),
                false => Err(refusal),
            }));
        };
        let frame = ready!(Pin::new(&mut held.body).poll_frame(context));
        if let (Some(Ok(frame)), Some(patience)) = (&frame, this.patience)
            && frame.is_data()
        {
            flow.handed = Some(Instant::now());
            this.watch.get_or_insert_with(|| {
                let flow = Arc::downgrade(&this.flow);
                tokio::spawn(give_up_when_late(flow, patience)).abort_handle()
            });
        }
        Poll::Ready(frame)
    }

    fn is_end_stream(&self) -> bool {
        let flow = lock(&self.flow);
        let held = flow.held.as_ref();
        held.map_or(flow.told, |held| held.body.is_end_stream())
    }

    fn size_hint(&self) -> SizeHint {
        let flow = lock(&self.flow);
        let held = flow.held.as_ref();
        held.map_or_else(SizeHint::default, |held| held.body.size_hint())
    }
}

/// The end of an answer that was given up.
fn given_up<D>(refusal: &Status) -> Result<Frame<D>, Status> {
    let mut trailers = HeaderMap::new();
    refusal.add_header(&mut trailers)?;
    Ok(Frame::trailers(trailers))
}
