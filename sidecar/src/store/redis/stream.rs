//! The transport of a connection: a TCP or Unix socket, with TLS or without, with the options that let the kernel notice
//! that nobody is there any more.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use socket2::{SockRef, TcpKeepalive};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpStream, UnixStream};
use tokio::time::timeout;
use tokio_rustls::TlsConnector;

use super::tls;
use crate::policy::{Endpoint, TlsFiles};
use crate::store::error::ConnectionError;

/// A resolver's own first retry comes after 5 s.
const RESOLVE_WITHIN: Duration = Duration::from_secs(10);
/// For one address. The kernel repeats its first packet after a second; a new attempt comes sooner.
const TCP_WITHIN: Duration = Duration::from_millis(500);
/// What was sent and not acknowledged for so long has nobody to acknowledge it.
const UNACKNOWLEDGED: Duration = Duration::from_secs(2);
/// For connections on which nothing is under way.
const KEEPALIVE: Duration = Duration::from_secs(5);
const KEEPALIVE_EVERY: Duration = Duration::from_secs(1);
const KEEPALIVE_MISSES: u32 = 3;

/// What bytes go through.
pub trait Stream: AsyncRead + AsyncWrite + Unpin + Send {}
impl<T: AsyncRead + AsyncWrite + Unpin + Send> Stream for T {}

/// Opens a transport. A name is resolved each time, so that it may move.
pub async fn open(
    endpoint: &Endpoint,
    tls: Option<&TlsFiles>,
    within: Duration,
) -> Result<Box<dyn Stream>, ConnectionError> {
    match endpoint {
        Endpoint::Unix(path) => Ok(Box::new(UnixStream::connect(path).await.map_err(io)?)),
        Endpoint::Tcp(host, port) => {
            let socket = tcp(host, *port).await?;
            let Some(files) = tls else {
                return Ok(Box::new(socket));
            };
            timeout(within, encrypt(socket, files, host))
                .await
                .unwrap_or(Err(ConnectionError::Silent(within)))
        }
    }
}

async fn tcp(host: &str, port: u16) -> Result<TcpStream, ConnectionError> {
    let resolve =
        |error: io::Error| -> ConnectionError { ConnectionError::Resolve(Arc::new(error)) };
    let addresses = timeout(RESOLVE_WITHIN, tokio::net::lookup_host((host, port)))
        .await
        .unwrap_or_else(|_| Err(io::ErrorKind::TimedOut.into()))
        .map_err(resolve)?;
    let mut last = resolve(io::ErrorKind::NotFound.into());
    for address in addresses {
        match timeout(TCP_WITHIN, TcpStream::connect(address)).await {
            Ok(Ok(socket)) => {
                set_options(&socket).map_err(io)?;
                return Ok(socket);
            }
            Ok(Err(error)) => last = io(error),
            Err(_) => last = ConnectionError::Silent(TCP_WITHIN),
        }
    }
    Err(last)
}

fn set_options(socket: &TcpStream) -> io::Result<()> {
    let socket = SockRef::from(socket);
    socket.set_tcp_nodelay(true)?;
    socket.set_tcp_user_timeout(Some(UNACKNOWLEDGED))?;
    socket.set_tcp_keepalive(
        &TcpKeepalive::new()
            .with_time(KEEPALIVE)
            .with_interval(KEEPALIVE_EVERY)
            .with_retries(KEEPALIVE_MISSES),
    )
}

async fn encrypt(
    socket: TcpStream,
    files: &TlsFiles,
    host: &str,
) -> Result<Box<dyn Stream>, ConnectionError> {
    let name = tls::expected_name(files, host)?;
    let files = files.clone();
    let configuration = tokio::task::spawn_blocking(move || tls::configuration(&files))
        .await
        .map_err(|error| io(error.into()))??;
    let stream = TlsConnector::from(Arc::new(configuration))
        .connect(name, socket)
        .await
        .map_err(|error| ConnectionError::Tls(Arc::new(error)))?;
    Ok(Box::new(stream))
}

fn io(error: io::Error) -> ConnectionError {
    ConnectionError::Io(Arc::new(error))
}
