//! Accepts TCP connections and makes their TLS handshakes.
//!
//! Owns: how many handshakes there are at a time, and how long each may take. They run beside the accepting, so that
//! nobody waits for another's. A handshake takes milliseconds of an honest client; when there are too many, the one
//! that has lasted longest is given up, first of the network that has the most.

use super::certificate::{self, Read};
use super::tls::now_unix;
use super::{Door, Tls};
use crate::accept::{Admission, PAUSE};
use crate::authority::Connection;
use crate::caller::Peer;
use crate::io::Io;
use std::collections::HashMap;
use std::io;
use std::net::{IpAddr, Ipv6Addr, SocketAddr};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tokio::sync::mpsc;
use tokio::task::{AbortHandle, Id, JoinSet};
use tokio::time::{Instant, sleep, timeout_at};
use tokio_rustls::TlsAcceptor;

/// Most handshakes of one port at a time.
const MOST_HANDSHAKES: usize = 256;
/// Most handshakes of one network at a time: of an IPv4 address, or of an IPv6 network of 64 bits.
const MOST_OF_NETWORK: usize = 64;
/// How long a handshake may take.
const HANDSHAKE_WITHIN: Duration = Duration::from_secs(5);
/// Shortest time between two lines of the log about failed handshakes.
const TELL_EVERY: Duration = Duration::from_secs(10);
/// Longest time after which a connection is closed because its certificate ends. Timers cannot be set for longer than
/// some years, and no connection lasts that long.
const LONGEST_TIMER: Duration = Duration::from_secs(365 * 24 * 3600);

/// Accepts connections until nobody takes them any more.
pub(crate) async fn accept(
    door: Door,
    admission: Arc<Admission>,
    out: mpsc::Sender<io::Result<Connection>>,
) {
    let Door { listener, tls, .. } = door;
    let failures = Arc::new(Failures::default());
    let mut running = JoinSet::new();
    let mut handshakes = Handshakes::default();
    loop {
        let accepted = tokio::select! {
            // The port is no reason to let handshakes wait that have ended.
            biased;
            () = out.closed() => return,
            Some(ended) = running.join_next_with_id() => {
                handshakes.ended(id_of(&ended));
                continue;
            }
            accepted = listener.accept() => accepted,
        };
        let (stream, address) = match accepted {
            Ok(accepted) => accepted,
            Err(error) => {
                tracing::warn!(%error, pause = ?PAUSE, "a TCP connection could not be accepted: trying again soon");
                sleep(PAUSE).await;
                continue;
            }
        };
        let network = network(address.ip());
        while let Some(oldest) = handshakes.too_many(network) {
            oldest.abort();
            failures.tell(address, "there are too many handshakes at a time; those that have lasted longest are given up");
            // It holds its connection until it has ended.
            match running.join_next_with_id().await {
                Some(ended) => handshakes.ended(id_of(&ended)),
                None => break,
            }
        }
        let handshake = Handshake {
            tls: tls.clone(),
            admission: Arc::clone(&admission),
            failures: Arc::clone(&failures),
            address,
        };
        let out = out.clone();
        let task = running.spawn(async move {
            if let Some(connection) = handshake.make(stream).await {
                // An error means that the server has ended.
                let _ = out.send(Ok(connection)).await;
            }
        });
        handshakes.open.push((network, task));
    }
}

fn id_of(ended: &Result<(Id, ()), tokio::task::JoinError>) -> Id {
    match ended {
        Ok((id, ())) => *id,
        Err(error) => error.id(),
    }
}

/// The network that an address is counted for.
fn network(address: IpAddr) -> IpAddr {
    match address.to_canonical() {
        IpAddr::V6(address) => {
            let mask = u128::MAX << 64;
            IpAddr::V6(Ipv6Addr::from_bits(address.to_bits() & mask))
        }
        address => address,
    }
}

/// The handshakes that run, oldest first.
#[derive(Default)]
struct Handshakes {
    open: Vec<(IpAddr, AbortHandle)>,
}

impl Handshakes {
    fn ended(&mut self, id: Id) {
        self.open.retain(|(_, task)| task.id() != id);
    }

    /// The handshake that must end before another one of `network` may begin; `None`: there is room.
    fn too_many(&self, network: IpAddr) -> Option<&AbortHandle> {
        let mut counts: HashMap<IpAddr, usize> = HashMap::new();
        for (one, _) in &self.open {
            *counts.entry(*one).or_default() += 1;
        }
        let own = counts.get(&network).copied().unwrap_or(0);
        let of = match (own >= MOST_OF_NETWORK, self.open.len() >= MOST_HANDSHAKES) {
            (true, _) => network,
            (false, true) => counts.into_iter().max_by_key(|(_, count)| *count)?.0,
            (false, false) => return None,
        };
        let mut oldest = self.open.iter().filter(|(one, _)| *one == of);
        oldest.next().map(|(_, task)| task)
    }
}

/// One handshake.
struct Handshake {
    tls: Tls,
    admission: Arc<Admission>,
    failures: Arc<Failures>,
    address: SocketAddr,
}

impl Handshake {
    /// The connection, if the client has proven who it is and there is room for it.
    async fn make(self, stream: TcpStream) -> Option<Connection> {
        // Small answers must not wait for more to come. If it fails, they wait.
        let _ = stream.set_nodelay(true);
        let acceptor = TlsAcceptor::from(self.tls.config());
        let end = Instant::now() + HANDSHAKE_WITHIN;
        let accepted = timeout_at(end, acceptor.accept(stream).into_fallible()).await;
        let stream = match accepted {
            Ok(Ok(stream)) => stream,
            Ok(Err((error, stream))) => {
                self.failures.tell(self.address, &error.to_string());
                // Whoever does not end in time has had time to read why it was refused.
                let _ = timeout_at(end, leave(stream)).await;
                return None;
            }
            Err(_) => {
                self.failures
                    .tell(self.address, "it did not end within its time");
                return None;
            }
        };
        let chain = stream.get_ref().1.peer_certificates();
        let Some(own) = chain.and_then(|chain| chain.first()) else {
            self.failures.tell(self.address, "there is no certificate");
            return None;
        };
        let Read {
            caller,
            refused,
            not_after,
        } = certificate::read(own, &self.tls.default_roles);
        let left = u64::try_from(not_after.saturating_sub(now_unix())).unwrap_or(0);
        let left = Some(Duration::from_secs(left)).filter(|left| *left < LONGEST_TIMER);
        let peer = Peer {
            caller,
            refused: refused.map(Arc::new),
            address: Some(self.address),
        };
        self.admission.admit(Io::Tls(Box::new(stream)), peer, left)
    }
}

/// Ends a connection so that the alert which says why arrives: what comes in after a socket is closed makes the kernel reset it, and
/// then the other side loses what it has not read yet. A client of TLS 1.3 sends its first question before it knows that it is refused.
async fn leave(mut stream: TcpStream) {
    if stream.shutdown().await.is_ok() {
        let mut unread = [0; 1024];
        while let Ok(1..) = stream.read(&mut unread).await {}
    }
}

/// Tells of handshakes that failed, at a bounded rate: strangers make as many of them as they like.
#[derive(Default)]
struct Failures(Mutex<Told>);

#[derive(Default)]
struct Told {
    last: Option<Instant>,
    untold: u64,
}

impl Failures {
    fn tell(&self, address: SocketAddr, why: &str) {
        let untold = {
            let mut told = self.0.lock().unwrap_or_else(PoisonError::into_inner);
            let now = Instant::now();
            if told.last.is_some_and(|last| now - last < TELL_EVERY) {
                told.untold = told.untold.saturating_add(1);
                return;
            }
            told.last = Some(now);
            std::mem::take(&mut told.untold)
        };
        tracing::warn!(%address, why, untold, "a client got no TLS connection");
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use memscope_tests::limits::{Met, constant};

    #[test]
    fn networks_of_addresses() {
        let of = |text: &str| network(text.parse().unwrap()).to_string();
        assert_eq!(of("10.0.0.7"), "10.0.0.7");
        assert_eq!(of("::ffff:10.0.0.7"), "10.0.0.7");
        assert_eq!(of("2001:db8:1:2:3:4:5:6"), "2001:db8:1:2::");
        assert_eq!(of("2001:db8:1:2:ffff::1"), "2001:db8:1:2::");
    }

    #[tokio::test]
    async fn whoever_has_most_handshakes_loses_the_oldest() {
        let mut running = JoinSet::new();
        let mut all = Handshakes::default();
        let mut begin = |all: &mut Handshakes, last: u8| {
            let task = running.spawn(std::future::pending::<()>());
            let id = task.id();
            all.open.push((IpAddr::from([10, 0, 0, last]), task));
            id
        };
        let first = begin(&mut all, 1);
        let of = |last: u8| IpAddr::from([10, 0, 0, last]);
        for _ in 1..MOST_OF_NETWORK {
            assert!(all.too_many(of(1)).is_none());
            begin(&mut all, 1);
        }
        assert_eq!(all.too_many(of(1)).unwrap().id(), first);
        assert!(all.too_many(of(2)).is_none(), "others have room");
        for last in 2.. {
            if all.open.len() == MOST_HANDSHAKES {
                break;
            }
            for _ in 0..MOST_OF_NETWORK - 1 {
                if all.open.len() < MOST_HANDSHAKES {
                    begin(&mut all, last);
                }
            }
        }
        assert_eq!(all.too_many(of(99)).unwrap().id(), first);
        all.ended(first);
        assert!(all.too_many(of(99)).is_none());
        let file = "crates/rpc/src/door/handshakes.rs";
        Met {
            what: "TLS handshakes at the same time",
            most: format!(
                "{} of a port, {} of one network",
                constant(file, "MOST_HANDSHAKES"),
                constant(file, "MOST_OF_NETWORK")
            ),
            beyond: "the one that has lasted longest is closed, of the network that has the most",
            told: "the log, at most every ten seconds",
            test: "whoever_has_most_handshakes_loses_the_oldest",
        }
        .is_told();
    }
}
