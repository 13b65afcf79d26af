//! One attempt to connect: transport, then user and password, then the database.

use std::hash::{DefaultHasher, Hasher};
use std::io;
use std::path::PathBuf;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use redis::aio::MultiplexedConnection;
use redis::{AsyncConnectionConfig, Cmd, RedisConnectionInfo, RedisResult, Value};
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio::time::timeout;
use tokio_rustls::rustls::ClientConfig;
use tokio_util::io::InspectReader;

use super::{stream, tls};
use crate::lock::lock;
use crate::policy::{CredentialFiles, Endpoint, RedisStore, TlsFiles};
use crate::store::error::{ConnectionError, Heard, MAX_HEARD, StoreError};

/// The lower bound of the timeout for TLS and for a peer's first answers.
const MIN_ANSWER_TIMEOUT: Duration = Duration::from_secs(1);

/// For how long a configuration of TLS is used while its files stay the same: those of the system may change too. Meanwhile
/// connections resume sessions: an RSA signature for each of them would cost an idle sidecar's Redis a third more.
const CONFIGURED_FOR: Duration = Duration::from_secs(600);

/// A configuration of TLS, since when it is used, and the [`Dialer::credentials`] of then.
type Configured = (Arc<ClientConfig>, Instant, Option<u64>);

/// How to connect to every Redis of a store, or to every sentinel.
pub struct Dialer {
    tls: Option<TlsFiles>,
    configured: Mutex<Option<Configured>>,
    /// User and password of the URL; the policy has them there or in files.
    given: (Option<String>, Option<String>),
    files: CredentialFiles,
    database: u32,
    /// Timeout for a peer's answers while connecting.
    pub answer_timeout: Duration,
    /// The deadline of decisions.
    pub store_timeout: Duration,
}

/// A connection that has just been opened. It closes when this is dropped.
pub struct Dialled {
    /// The connection.
    pub connection: MultiplexedConnection,
    /// The credentials with which it was opened: see [`Dialer::credentials`].
    pub credentials: Option<u64>,
    /// The first bytes that came on it.
    pub heard: Heard,
    /// Loses its sender when the connection closes.
    pub closed: watch::Receiver<()>,
    _driver: JoinSet<()>,
}

impl Dialer {
    /// A dialer for Redis.
    pub fn new(store: &RedisStore, store_timeout: Duration) -> Self {
        let RedisStore { url, options } = store;
        Self {
            tls: url.tls.then(|| options.tls.clone()),
            configured: Mutex::default(),
            given: (url.username.clone(), url.password.clone()),
            files: options.credentials.clone(),
            database: url.database,
            answer_timeout: MIN_ANSWER_TIMEOUT.max(store_timeout),
            store_timeout,
        }
    }

    /// A dialer for the sentinels, which have their own users.
    pub fn to_sentinels(store: &RedisStore, store_timeout: Duration) -> Self {
        Self {
            given: (None, None),
            files: store.options.sentinel.clone(),
            database: 0,
            ..Self::new(store, store_timeout)
        }
    }

    /// Connects. Every wait in it has a deadline.
    pub async fn dial(&self, endpoint: &Endpoint) -> Result<Dialled, StoreError> {
        let credentials = self.credentials().await;
        let identity = self.identity().await?;
        let tls = match &self.tls {
            Some(files) => {
                let configuration = self.configuration(files, credentials).await?;
                Some((configuration, files.server_name.as_deref()))
            }
            None => None,
        };
        let stream = stream::open(endpoint, tls, self.answer_timeout).await?;
        let heard = Heard::default();
        let hears = Arc::clone(&heard);
        let stream = InspectReader::new(stream, move |bytes: &[u8]| {
            let mut heard = lock(&hears);
            let left = MAX_HEARD.saturating_sub(heard.len());
            heard.extend(bytes.iter().take(left));
        });
        // The caller's deadline is the only timeout.
        let config = AsyncConnectionConfig::new()
            .set_connection_timeout(None)
            .set_response_timeout(None);
        let setup = MultiplexedConnection::new_with_config(&identity, stream, config);
        let (connection, task) = self
            .answer(setup)
            .await
            .map_err(|error| error.on_new_connection(&heard))?;
        let (open, closed) = watch::channel(());
        let mut driver = JoinSet::new();
        driver.spawn(async move {
            task.await;
            drop(open);
        });
        Ok(Dialled {
            connection,
            credentials,
            heard,
            closed,
            _driver: driver,
        })
    }

    async fn configuration(
        &self,
        files: &TlsFiles,
        credentials: Option<u64>,
    ) -> Result<Arc<ClientConfig>, ConnectionError> {
        if let Some((known, since, of)) = &*lock(&self.configured)
            && (since.elapsed() < CONFIGURED_FOR && credentials.is_some() && *of == credentials)
        {
            return Ok(Arc::clone(known));
        }
        let files = files.clone();
        let read = tokio::task::spawn_blocking(move || tls::configuration(&files)).await;
        let read = read.map_err(|error| ConnectionError::Io(Arc::new(error.into())))?;
        let new = Arc::new(read?);
        *lock(&self.configured) = Some((Arc::clone(&new), Instant::now(), credentials));
        Ok(new)
    }

    /// A hash of the files that are read to connect; `None` where one cannot be read.
    pub async fn credentials(&self) -> Option<u64> {
        let tls = self.tls.iter();
        let tls = tls.flat_map(|files| [&files.ca, &files.certificate, &files.key]);
        let own = [&self.files.username, &self.files.password];
        let paths: Vec<PathBuf> = tls.chain(own).flatten().cloned().collect();
        let hash = move || {
            let mut hasher = DefaultHasher::new();
            for path in paths {
                hasher.write(&std::fs::read(path).ok()?);
            }
            Some(hasher.finish())
        };
        tokio::task::spawn_blocking(hash).await.ok()?
    }

    /// Sends one command, on a connection of its own.
    pub async fn ask(&self, endpoint: &Endpoint, command: &Cmd) -> Result<Value, StoreError> {
        let mut dialled = self.dial(endpoint).await?;
        let answer = self.answer(command.query_async(&mut dialled.connection));
        let answer = answer.await;
        answer.map_err(|error| error.on_new_connection(&dialled.heard))
    }

    async fn answer<T>(&self, call: impl Future<Output = RedisResult<T>>) -> Result<T, StoreError> {
        let answer = timeout(self.answer_timeout, call).await;
        Ok(answer.map_err(|_| ConnectionError::Silent(self.answer_timeout))??)
    }

    async fn identity(&self) -> Result<RedisConnectionInfo, ConnectionError> {
        let username = read("username_file", self.files.username.as_ref()).await?;
        let password = read("password_file", self.files.password.as_ref()).await?;
        let mut identity = RedisConnectionInfo::default()
            .set_db(i64::from(self.database))
            .set_lib_name("sluicegate", env!("CARGO_PKG_VERSION"));
        if let Some(username) = username.or_else(|| self.given.0.clone()) {
            identity = identity.set_username(username);
        }
        if let Some(password) = password.or_else(|| self.given.1.clone()) {
            identity = identity.set_password(password);
        }
        Ok(identity)
    }
}

/// The text of a file, without the trailing newline that an editor leaves.
async fn read(
    field: &'static str,
    path: Option<&PathBuf>,
) -> Result<Option<String>, ConnectionError> {
    let Some(path) = path.cloned() else {
        return Ok(None);
    };
    let read = tokio::task::spawn_blocking(move || std::fs::read_to_string(path)).await;
    match read.unwrap_or_else(|error| Err(io::Error::other(error))) {
        Ok(text) => Ok(Some(text.trim_end_matches(['\r', '\n']).to_owned())),
        Err(error) => Err(ConnectionError::File {
            field,
            source: Arc::new(error),
        }),
    }
}
