//! The TCP door: ports at which holders of certificates connect.
//!
//! Owns: binding the ports, and who comes in through them. Refuses: to serve anything without mutual TLS. What is asked
//! and answered is the same as at the Unix socket.

#[cfg(feature = "tls")]
mod certificate;
mod files;
#[cfg(feature = "tls")]
mod handshakes;
#[cfg(feature = "tls")]
mod tls;
#[cfg(not(feature = "tls"))]
mod without;

pub use files::TlsFiles;
#[cfg(feature = "tls")]
pub(crate) use handshakes::accept;
#[cfg(feature = "tls")]
pub use tls::{Tls, TlsError};
#[cfg(not(feature = "tls"))]
pub(crate) use without::accept;
#[cfg(not(feature = "tls"))]
pub use without::{Tls, TlsError};

use std::io;
use std::net::{SocketAddr, TcpListener as StdListener, ToSocketAddrs};
use tokio::net::TcpListener;

/// Why a port could not be opened.
#[derive(Debug, thiserror::Error)]
pub enum DoorError {
    /// The address is of no known host, or has no port.
    #[error(
        "{address} is no address to listen on — give HOST:PORT, such as 0.0.0.0:9465 or [::]:9465"
    )]
    Address {
        /// What was given as an address.
        address: String,
        /// What the system said.
        source: io::Error,
    },
    /// The port could not be opened.
    #[error(
        "listening on {address} failed — is it an address of this machine, and is the port free?"
    )]
    Listen {
        /// Address at which listening failed.
        address: String,
        /// What the system said.
        source: io::Error,
    },
}

/// An open port.
#[derive(Debug)]
#[cfg_attr(not(feature = "tls"), expect(dead_code, reason = "there is none"))]
pub struct Door {
    listener: TcpListener,
    address: SocketAddr,
    tls: Tls,
}

impl Door {
    /// Opens a port, the first of the addresses that `HOST:PORT` means where that works. Port 0 means any free one.
    /// Must be called inside a tokio runtime.
    ///
    /// # Errors
    /// If there is no such address, or it cannot be listened on.
    pub fn open(address: &str, tls: &Tls) -> Result<Door, DoorError> {
        let found = Door::addresses(address)?;
        let failed = |source| DoorError::Listen {
            address: address.to_owned(),
            source,
        };
        let listener = StdListener::bind(found.as_slice()).map_err(failed)?;
        listener.set_nonblocking(true).map_err(failed)?;
        let listener = TcpListener::from_std(listener).map_err(failed)?;
        let address = listener.local_addr().map_err(failed)?;
        Ok(Door {
            listener,
            address,
            tls: tls.clone(),
        })
    }

    /// The addresses that `HOST:PORT` means, in the order in which they are tried.
    ///
    /// # Errors
    /// If there is no such address.
    pub fn addresses(address: &str) -> Result<Vec<SocketAddr>, DoorError> {
        let found = address.to_socket_addrs();
        let found = found.map_err(|source| DoorError::Address {
            address: address.to_owned(),
            source,
        })?;
        Ok(found.collect())
    }

    /// The address at which it listens, with its real port.
    #[must_use]
    pub fn address(&self) -> SocketAddr {
        self.address
    }
}
