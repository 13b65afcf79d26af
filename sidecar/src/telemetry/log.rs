//! The log: text or JSON on standard error, filtered by `RUST_LOG`.

use std::io::{IsTerminal, stderr};
use std::str::FromStr;

use tracing::Metadata;
use tracing::level_filters::LevelFilter;
use tracing_appender::non_blocking::{NonBlockingBuilder, WorkerGuard};
use tracing_subscriber::filter::{FilterExt, ParseError, filter_fn};
use tracing_subscriber::layer::SubscriberExt;
use tracing_subscriber::util::{SubscriberInitExt, TryInitError};
use tracing_subscriber::{EnvFilter, Layer};

/// The environment variable that says what is logged, as all programs with `tracing` read it.
pub const FILTER: &str = "RUST_LOG";

/// Lines that wait for a standard error that is slow; later ones are lost. Deciding never waits for it.
const MOST_LINES: usize = 1_024;

/// Crates that log what they send or receive: a secret may be in it. We tell errors ourselves.
const SILENT: [&str; 1] = ["redis"];

/// How lines look.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Format {
    /// For people.
    Text,
    /// An object a line, for collectors.
    Json,
}

impl FromStr for Format {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text {
            "text" => Ok(Self::Text),
            "json" => Ok(Self::Json),
            _ => Err("either `text` or `json`".to_owned()),
        }
    }
}

/// Why there is no log.
#[derive(Debug, thiserror::Error)]
pub enum LogError {
    /// The filter cannot be read.
    #[error("{FILTER} is not a filter such as `warn` or `info,sluicegate::store=debug`: {0}")]
    Filter(#[from] ParseError),
    /// There is one already.
    #[error("the log: {0}")]
    Twice(#[from] TryInitError),
}

/// Begins to log what `filter` lets through, from `info` up if it says nothing. Lines that wait are written when what it
/// gives is dropped.
///
/// # Errors
/// The filter cannot be read, or there is a log already.
pub fn start(format: Format, filter: &str) -> Result<WorkerGuard, LogError> {
    let filter = EnvFilter::builder()
        .with_default_directive(LevelFilter::INFO.into())
        .parse(filter)?;
    let (writer, guard) = NonBlockingBuilder::default()
        .lossy(true)
        .buffered_lines_limit(MOST_LINES)
        .thread_name("log")
        .finish(stderr());
    let layer = tracing_subscriber::fmt::layer()
        .with_writer(writer)
        .with_ansi(format == Format::Text && stderr().is_terminal())
        // It would tell on standard error that it cannot write there, and panic.
        .log_internal_errors(false);
    let layer = match format {
        Format::Text => layer.boxed(),
        Format::Json => layer.json().flatten_event(true).boxed(),
    };
    let layer = layer.with_filter(filter.and(filter_fn(may_be_told)));
    tracing_subscriber::registry().with(layer).try_init()?;
    Ok(guard)
}

/// Whatever the filter says.
fn may_be_told(metadata: &Metadata<'_>) -> bool {
    let (name, _) = metadata
        .target()
        .split_once("::")
        .unwrap_or((metadata.target(), ""));
    !SILENT.contains(&name)
}
