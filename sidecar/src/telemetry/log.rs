//! The log: text or JSON on standard error, filtered by `RUST_LOG`.

use std::io::{IsTerminal, stderr};

use tracing::Metadata;
use tracing::level_filters::LevelFilter;
use tracing_appender::non_blocking::{NonBlockingBuilder, WorkerGuard};
use tracing_subscriber::filter::{FilterExt, filter_fn};
use tracing_subscriber::layer::SubscriberExt;
use tracing_subscriber::util::SubscriberInitExt;
use tracing_subscriber::{EnvFilter, Layer};

/// The environment variable that selects what is logged, in the syntax of `tracing`.
pub const FILTER: &str = "RUST_LOG";

/// Lines that may wait for a slow standard error; further lines are dropped. Decisions never wait for the log.
const MAX_QUEUED_LINES: usize = 1_024;

/// A crate that logs what it sends and receives, which may hold a secret. Our own code logs its errors.
const SILENCED_CRATE: &str = "redis";

/// The format of lines.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum Format {
    /// For people.
    Text,
    /// One JSON object per line, for collectors.
    Json,
}

/// Starts the log with `filter`; an empty filter means `info`. Dropping the guard writes the lines that still wait.
///
/// # Errors
/// The filter is invalid, or the log has been started already.
pub fn start(format: Format, filter: &str) -> Result<WorkerGuard, String> {
    let parser = EnvFilter::builder().with_default_directive(LevelFilter::INFO.into());
    let filter = parser.parse(filter).map_err(|error| {
        format!(
            "{FILTER} is not a filter such as `warn` or `info,sluicegate::store=debug`: {error}"
        )
    })?;
    let (writer, guard) = NonBlockingBuilder::default()
        .lossy(true)
        .buffered_lines_limit(MAX_QUEUED_LINES)
        .thread_name("log")
        .finish(stderr());
    // https://no-color.org
    let no_color = std::env::var_os("NO_COLOR").is_some_and(|value| !value.is_empty());
    let layer = tracing_subscriber::fmt::layer()
        .with_writer(writer)
        .with_ansi(format == Format::Text && stderr().is_terminal() && !no_color)
        // Otherwise it reports a failed write on standard error itself, and panics there.
        .log_internal_errors(false);
    let layer = match format {
        Format::Text => layer.boxed(),
        Format::Json => layer.json().flatten_event(true).boxed(),
    };
    let layer = layer.with_filter(filter.and(filter_fn(is_allowed)));
    let started = tracing_subscriber::registry().with(layer).try_init();
    started.map_err(|error| format!("the log was started twice: {error}"))?;
    Ok(guard)
}

/// Whether a crate may log at all, whatever `RUST_LOG` says.
fn is_allowed(metadata: &Metadata<'_>) -> bool {
    metadata.target().split("::").next() != Some(SILENCED_CRATE)
}
