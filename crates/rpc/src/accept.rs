//! Accepts connections.
//!
//! Owns: who is at the other end of the Unix socket, how many connections each user may have through either door, and
//! what happens when the daemon has no file descriptors left. A connection too many is answered, with the reason, and closed soon after: a client that only
//! sees its connection closed cannot tell its user why.

use crate::Identify;
use crate::authority::Connection;
use crate::caller::Peer;
use crate::io::Io;
use crate::options::ServeOptions;
use crate::share::{Limits, Place, Shares};
use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;
use tokio::net::{UnixListener, UnixStream};
use tokio::time::{Sleep, sleep};
use tokio_stream::Stream;
use tonic::transport::server::Connected as _;

/// How long nothing is accepted after accepting failed. Usually the daemon has no file descriptors left then, and the
/// next attempt would fail at once.
pub(crate) const PAUSE: Duration = Duration::from_millis(100);
/// How long a connection too many stays open for its answer.
const ANSWERED_WITHIN: Duration = Duration::from_secs(2);
/// Connections too many that are answered at the same time. Those beyond are closed at once.
const ANSWERED: Limits = Limits {
    of_root: 8,
    of_others: 32,
    of_a_user: 4,
};

/// Where connections come from.
pub(crate) trait Accept {
    fn poll_accept(&mut self, context: &mut Context<'_>) -> Poll<io::Result<UnixStream>>;
}

impl Accept for UnixListener {
    fn poll_accept(&mut self, context: &mut Context<'_>) -> Poll<io::Result<UnixStream>> {
        UnixListener::poll_accept(self, context).map(|accepted| Ok(accepted?.0))
    }
}

/// Decides which connections are served. Both doors have the same.
pub(crate) struct Admission {
    connections: Arc<Shares>,
    answered: Arc<Shares>,
}

impl Admission {
    pub(crate) fn new(options: &ServeOptions) -> Arc<Admission> {
        Arc::new(Admission {
            connections: Shares::new("connections", options.connections),
            answered: Shares::new("connections too many", ANSWERED),
        })
    }

    /// `None`: the connection is closed. `within`: the time after which it is closed, whatever becomes of it.
    pub(crate) fn admit(
        &self,
        io: Io,
        mut peer: Peer,
        within: Option<Duration>,
    ) -> Option<Connection> {
        match self.connections.take(peer.account()) {
            Ok(place) => Some(Connection::new(io, peer, place, within)),
            Err(refusal) => {
                tracing::debug!(%refusal, "a connection is refused");
                let place: Place = self.answered.take(peer.account()).ok()?;
                peer.refused = Some(Arc::new(refusal));
                Some(Connection::new(io, peer, place, Some(ANSWERED_WITHIN)))
            }
        }
    }
}

/// The connections that come to the Unix socket.
pub(crate) struct Incoming<A> {
    listener: A,
    identify: Identify,
    admission: Arc<Admission>,
    /// Set while nothing is accepted.
    pause: Option<Pin<Box<Sleep>>>,
}

impl<A: Accept + Unpin> Incoming<A> {
    pub(crate) fn new(
        listener: A,
        options: &ServeOptions,
        admission: Arc<Admission>,
    ) -> Incoming<A> {
        Incoming {
            listener,
            identify: Arc::clone(&options.identify),
            admission,
            pause: None,
        }
    }

    fn admit(&self, stream: UnixStream) -> Option<Connection> {
        let peer = Peer {
            caller: (self.identify)(Some(&stream.connect_info())),
            refused: None,
            address: None,
        };
        self.admission.admit(Io::Unix(stream), peer, None)
    }
}

impl<A: Accept + Unpin> Stream for Incoming<A> {
    type Item = io::Result<Connection>;

    fn poll_next(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        let this = self.get_mut();
        loop {
            if let Some(pause) = &mut this.pause {
                ready!(pause.as_mut().poll(context));
                this.pause = None;
            }
            match ready!(this.listener.poll_accept(context)) {
                Ok(stream) => {
                    if let Some(connection) = this.admit(stream) {
                        return Poll::Ready(Some(Ok(connection)));
                    }
                }
                Err(error) => {
                    tracing::warn!(%error, pause = ?PAUSE, "a connection could not be accepted: trying again soon");
                    this.pause = Some(Box::pin(sleep(PAUSE)));
                }
            }
        }
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use tokio_stream::StreamExt as _;

    /// Fails so many times before a connection comes.
    struct Failing {
        left: usize,
        attempts: usize,
    }

    impl Accept for Failing {
        fn poll_accept(&mut self, _: &mut Context<'_>) -> Poll<io::Result<UnixStream>> {
            self.attempts += 1;
            if self.left == 0 {
                return Poll::Ready(UnixStream::pair().map(|(one, _)| one));
            }
            self.left -= 1;
            // Too many open files.
            Poll::Ready(Err(io::Error::from_raw_os_error(24)))
        }
    }

    #[tokio::test]
    async fn without_file_descriptors_it_waits_and_goes_on() {
        let failing = Failing {
            left: 2,
            attempts: 0,
        };
        let mut incoming = {
            let options = ServeOptions::default();
            Incoming::new(failing, &options, Admission::new(&options))
        };
        let polled = std::future::poll_fn(|context| {
            Poll::Ready(Pin::new(&mut incoming).poll_next(context).is_pending())
        });
        assert!(polled.await, "it waits");
        assert_eq!(incoming.listener.attempts, 1);
        assert!(incoming.next().await.unwrap().is_ok());
        assert_eq!(incoming.listener.attempts, 3);
    }
}
