//! The transport of a connection: a TCP or Unix socket, with or without TLS, with the options by which the kernel detects
//! a dead peer.

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use rustix::net::sockopt;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpStream, UnixStream};
use tokio::time::timeout;
use tokio_rustls::TlsConnector;
use tokio_rustls::rustls::ClientConfig;
use tokio_rustls::rustls::pki_types::ServerName;

use crate::policy::Endpoint;
use crate::store::error::ConnectionError;

/// A resolver's own first retry comes after 5 s.
const RESOLVE_TIMEOUT: Duration = Duration::from_secs(10);
/// Per address. The kernel resends its SYN after a second; a new attempt comes sooner.
const CONNECT_TIMEOUT: Duration = Duration::from_millis(500);
/// The kernel closes a connection whose sent data was not acknowledged for this long.
const USER_TIMEOUT_MS: u32 = 2_000;
/// Keepalive, for idle connections.
const KEEPALIVE_IDLE: Duration = Duration::from_secs(5);
const KEEPALIVE_INTERVAL: Duration = Duration::from_secs(1);
const KEEPALIVE_PROBES: u32 = 3;

/// A byte stream.
pub trait Stream: AsyncRead + AsyncWrite + Unpin + Send {}
impl<T: AsyncRead + AsyncWrite + Unpin + Send> Stream for T {}

/// How to verify a peer: the configuration, and its name if that is not the host's.
pub type Tls<'a> = (Arc<ClientConfig>, Option<&'a str>);

/// Opens a transport. Resolves the host name each time, so that a changed address is followed.
pub async fn open(
    endpoint: &Endpoint,
    tls: Option<Tls<'_>>,
    answer_timeout: Duration,
) -> Result<Box<dyn Stream>, ConnectionError> {
    let (host, port) = match endpoint {
        Endpoint::Tcp(host, port) => (host, *port),
        Endpoint::Unix(path) => {
            let socket = UnixStream::connect(path).await.map_err(io)?;
            return Ok(Box::new(socket));
        }
    };
    let socket = tcp(&addresses(host, port).await?).await?;
    let Some(tls) = tls else {
        return Ok(Box::new(socket));
    };
    let encrypted = timeout(answer_timeout, encrypt(socket, tls, host)).await;
    encrypted.unwrap_or(Err(ConnectionError::Silent(answer_timeout)))
}

/// The addresses of a host name, with the port.
async fn addresses(host: &str, port: u16) -> Result<Vec<SocketAddr>, ConnectionError> {
    let found = tokio::net::lookup_host((host, port));
    let found = timeout(RESOLVE_TIMEOUT, found).await;
    let found = found.unwrap_or_else(|_| Err(io::ErrorKind::TimedOut.into()));
    let found = found.map_err(|error| ConnectionError::Resolve(Arc::new(error)))?;
    Ok(found.collect())
}

async fn tcp(addresses: &[SocketAddr]) -> Result<TcpStream, ConnectionError> {
    let mut last = ConnectionError::Resolve(Arc::new(io::ErrorKind::NotFound.into()));
    for address in addresses {
        match timeout(CONNECT_TIMEOUT, TcpStream::connect(address)).await {
            Ok(Ok(socket)) => {
                set_options(&socket).map_err(io)?;
                return Ok(socket);
            }
            Ok(Err(error)) => last = io(error),
            Err(_) => last = ConnectionError::Silent(CONNECT_TIMEOUT),
        }
    }
    Err(last)
}

fn set_options(socket: &TcpStream) -> io::Result<()> {
    socket.set_nodelay(true)?;
    sockopt::set_tcp_user_timeout(socket, USER_TIMEOUT_MS)?;
    sockopt::set_socket_keepalive(socket, true)?;
    sockopt::set_tcp_keepidle(socket, KEEPALIVE_IDLE)?;
    sockopt::set_tcp_keepintvl(socket, KEEPALIVE_INTERVAL)?;
    sockopt::set_tcp_keepcnt(socket, KEEPALIVE_PROBES)?;
    Ok(())
}

async fn encrypt(
    socket: TcpStream,
    (configuration, name): Tls<'_>,
    host: &str,
) -> Result<Box<dyn Stream>, ConnectionError> {
    let failed = |error| ConnectionError::Tls(Arc::new(error));
    let name = name.unwrap_or(host).to_owned();
    let name = ServerName::try_from(name).map_err(|error| failed(io::Error::other(error)))?;
    let stream = TlsConnector::from(configuration)
        .connect(name, socket)
        .await
        .map_err(failed)?;
    Ok(Box::new(stream))
}

fn io(error: io::Error) -> ConnectionError {
    ConnectionError::Io(Arc::new(error))
}
