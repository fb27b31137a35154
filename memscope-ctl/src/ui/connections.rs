//! Connections: how many there may be, and how long they may be silent.
//!
//! Owns: accepting, limits, HTTP/1.1. All connections are part of the one task of the program, so that none outlives it.

use super::reply::Reply;
use futures_util::stream::{FuturesUnordered, StreamExt as _};
use http::Request;
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::convert::Infallible;
use std::pin::pin;
use std::rc::Rc;
use std::time::Duration;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Notify;
use tonic::codegen::http;

/// Most connections at a time. A browser makes six for all its tabs.
const MOST_CONNECTIONS: usize = 64;
/// Time that a client has for the headers of a request, and between two requests.
const HEADERS_WITHIN: Duration = Duration::from_secs(15);
/// Most bytes that a connection holds of requests that are not yet read: also the most of the headers of a request.
const BUFFER_MOST: usize = 32 << 10;
/// Time to wait after a connection could not be accepted, as where too many files are open.
const PAUSE: Duration = Duration::from_millis(100);

/// One connection, as others see it.
#[derive(Default)]
pub(crate) struct Guest {
    /// Somebody who may ask has used it.
    known: Cell<bool>,
    ended: Cell<bool>,
    leave: Notify,
}

impl Guest {
    /// Says that whoever uses this connection may ask. It is no longer closed to make room for others.
    pub(crate) fn is_known(&self) {
        self.known.set(true);
    }
}

/// What answers requests.
pub(crate) trait Answers {
    /// The answer to one request, which came over this guest's connection.
    async fn answer(&self, request: Request<Incoming>, guest: &Guest) -> Reply;
}

/// Answers requests for ever.
pub(crate) async fn serve(listener: &TcpListener, answers: &impl Answers) -> Infallible {
    let guests = Guests::default();
    let mut connections = FuturesUnordered::new();
    loop {
        let accepted = tokio::select! {
            accepted = listener.accept() => accepted,
            Some(()) = connections.next() => continue,
        };
        match accepted {
            Ok((stream, _)) => {
                if let Some(guest) = guests.admit() {
                    connections.push(connection(stream, guest, answers));
                }
            }
            Err(_) => tokio::time::sleep(PAUSE).await,
        }
    }
}

async fn connection(stream: TcpStream, guest: Rc<Guest>, answers: &impl Answers) {
    // Small answers are sent at once. Where that cannot be set, they only come later.
    let _ = stream.set_nodelay(true);
    let service = service_fn(|request| {
        let guest = Rc::clone(&guest);
        async move { Ok::<Reply, Infallible>(answers.answer(request, &guest).await) }
    });
    let connection = http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(HEADERS_WITHIN)
        .max_buf_size(BUFFER_MOST)
        .serve_connection(TokioIo::new(stream), service);
    let mut connection = pin!(connection);
    tokio::select! {
        // A connection that broke concerns only its client, which notices by itself.
        _ = &mut connection => {}
        () = guest.leave.notified() => {}
    }
    guest.ended.set(true);
}

/// The connections that there are, oldest first.
#[derive(Default)]
struct Guests(RefCell<VecDeque<Rc<Guest>>>);

impl Guests {
    /// Makes room for one more: where there are too many, the oldest that nobody who may ask has used is closed. `None`: all are in use.
    fn admit(&self) -> Option<Rc<Guest>> {
        let mut guests = self.0.borrow_mut();
        guests.retain(|guest| !guest.ended.get());
        if guests.len() >= MOST_CONNECTIONS {
            let place = guests.iter().position(|guest| !guest.known.get())?;
            let oldest = guests.remove(place)?;
            oldest.leave.notify_one();
        }
        let guest = Rc::new(Guest::default());
        guests.push_back(Rc::clone(&guest));
        Some(guest)
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use memscope_tests::limits::{Met, constant};

    #[test]
    fn strangers_make_room_and_known_ones_stay() {
        let guests = Guests::default();
        let all: Vec<_> = (0..MOST_CONNECTIONS)
            .map(|_| guests.admit().unwrap())
            .collect();
        all[0].is_known();
        assert!(guests.admit().is_some());
        assert_eq!(guests.0.borrow().len(), MOST_CONNECTIONS);
        assert!(
            !guests
                .0
                .borrow()
                .iter()
                .any(|guest| Rc::ptr_eq(guest, &all[1]))
        );
        for guest in guests.0.borrow().iter() {
            guest.is_known();
        }
        assert!(guests.admit().is_none());
        all[2].ended.set(true);
        assert!(guests.admit().is_some());
        Met {
            what: "connections to the page's server",
            most: constant("memscope-ctl/src/ui/connections.rs", "MOST_CONNECTIONS"),
            beyond: "the oldest that nobody with the cookie has used is closed; where all have been used, the new one is",
            told: "to whoever is at its other end",
            test: "strangers_make_room_and_known_ones_stay",
        }
        .is_told();
    }
}
