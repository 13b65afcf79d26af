//! Listening addresses: an IP address and port, or a Unix socket.

use std::fmt;
use std::fs::Permissions;
use std::io;
use std::net::SocketAddr;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::str::FromStr;

use rustix::fs::Mode;
use rustix::process::umask;
use tokio::net::{TcpListener, TcpSocket, UnixListener, UnixSocket, UnixStream};

const UNIX: &str = "unix:";

/// Connections that may wait to be accepted. tokio's own is 128, which one client can fill within milliseconds; the system then
/// loses the requests of others to connect, which they repeat after a second. Linux's limit (net.core.somaxconn) is 4096.
const BACKLOG: u32 = 4_096;

/// The value of `--listen` or `--admin-listen`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Address {
    /// `127.0.0.1:9180`.
    Tcp(SocketAddr),
    /// `unix:/run/sluicegate/decisions.sock`.
    Unix(PathBuf),
}

impl FromStr for Address {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text.strip_prefix(UNIX) {
            Some(path) if path.starts_with('/') => Ok(Self::Unix(path.into())),
            Some(_) => Err("a Unix socket requires an absolute path: unix:/run/sluicegate.sock".to_owned()),
            None => text.parse().map(Self::Tcp).map_err(|_| {
                "neither an address with a port (127.0.0.1:9180, [::1]:9180) nor a Unix socket (unix:/run/sluicegate.sock)"
                    .to_owned()
            }),
        }
    }
}

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Tcp(address) => address.fmt(f),
            Self::Unix(path) => write!(f, "{UNIX}{}", path.display()),
        }
    }
}

impl Address {
    /// Whether only this machine can reach it.
    pub const fn is_local(&self) -> bool {
        match self {
            Self::Tcp(address) => address.ip().is_loopback(),
            Self::Unix(_) => true,
        }
    }

    /// Binds the address. Replaces the socket file of a dead process. A Unix socket gets these permissions, whatever the
    /// umask; write permission allows a process to connect.
    ///
    /// # Errors
    /// The address is in use, or binding is not permitted.
    pub async fn bind(&self, socket_mode: u32) -> io::Result<Listener> {
        match self {
            Self::Tcp(address) => {
                let socket = if address.is_ipv4() {
                    TcpSocket::new_v4()
                } else {
                    TcpSocket::new_v6()
                }?;
                // The port of a process that has just ended can be used at once.
                socket.set_reuseaddr(true)?;
                socket.bind(*address)?;
                socket.listen(BACKLOG).map(Listener::Tcp)
            }
            Self::Unix(path) => {
                if is_socket(path) && UnixStream::connect(path).await.is_err() {
                    std::fs::remove_file(path)?;
                }
                // No other user can connect before the permissions are set.
                let socket = UnixSocket::new_stream()?;
                let before = umask(Mode::RWXG | Mode::RWXO);
                let bound = socket.bind(path);
                umask(before);
                bound?;
                let file = SocketFile(path.clone());
                let listener = socket.listen(BACKLOG)?;
                std::fs::set_permissions(path, Permissions::from_mode(socket_mode))?;
                Ok(Listener::Unix(file, listener))
            }
        }
    }
}

fn is_socket(path: &Path) -> bool {
    use std::os::unix::fs::FileTypeExt;
    std::fs::symlink_metadata(path).is_ok_and(|file| file.file_type().is_socket())
}

/// The file of a Unix socket; it outlives the socket, so it is removed on drop.
#[derive(Debug)]
pub struct SocketFile(PathBuf);

impl Drop for SocketFile {
    fn drop(&mut self) {
        // If this fails, the next process that binds replaces it.
        let _ = std::fs::remove_file(&self.0);
    }
}

/// A bound listener.
#[derive(Debug)]
pub enum Listener {
    /// On an address.
    Tcp(TcpListener),
    /// On a Unix socket. Its file is dropped first: once the socket is closed, the file may be the successor's.
    Unix(SocketFile, UnixListener),
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_are_read_and_what_is_none_is_refused_with_an_example() {
        for text in ["127.0.0.1:9180", "[::1]:1", "unix:/run/s.sock"] {
            assert_eq!(text.parse::<Address>().unwrap().to_string(), text);
        }
        for text in ["9180", "localhost:9180", "unix:s.sock", "/run/s.sock", ""] {
            let why = text.parse::<Address>().unwrap_err();
            assert!(why.contains("unix:/run/"), "{why}");
        }
        assert!("[::1]:1".parse::<Address>().unwrap().is_local());
        assert!(!"0.0.0.0:1".parse::<Address>().unwrap().is_local());
    }

    #[tokio::test]
    async fn a_dead_sockets_file_is_replaced_and_a_living_one_is_not() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("s.sock");
        let address = Address::Unix(path.clone());
        drop(std::os::unix::net::UnixListener::bind(&path).unwrap());
        assert!(path.exists(), "its file is left");
        let living = address.bind(0o660).await.unwrap();
        let refused = address.bind(0o660).await.unwrap_err();
        assert_eq!(refused.kind(), io::ErrorKind::AddrInUse);
        let mode = std::fs::metadata(&path).unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o660, "S20: whatever the umask");
        drop(living);
        assert!(!path.exists());
        std::fs::write(&path, "not a socket").unwrap();
        assert!(address.bind(0o660).await.is_err());
        assert_eq!(std::fs::read_to_string(&path).unwrap(), "not a socket");
    }
}
