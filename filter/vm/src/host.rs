//! What the filter needs of its host, which is Envoy or a simulation of it.

use std::time::Duration;

use sluicegate_rules::{
    Headers, Reply, Request, VerdictError, callout_outcome, is_sluicegate_reply,
};

/// What a callback returns: whether the host continues with the request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Action {
    /// It does.
    Continue,
    /// It waits until the filter resumes or answers the request.
    Pause,
}

/// How serious a line of the log is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[expect(missing_docs, reason = "Envoy's names")]
pub enum Level {
    Info,
    Warn,
    Error,
    Critical,
}

/// The calls that a VM makes. None panics, whatever the host does: a panic ends the VM for all later requests of the worker.
///
/// Each acts in the current context, which the host chooses when it calls the filter: a root context or that of a request. A host
/// is passed by value and copied freely: all copies are the same one.
pub trait Host: Clone + 'static {
    /// The plugin's configuration, with a length of `size` bytes.
    fn plugin_configuration(&self, size: usize) -> Option<Vec<u8>>;
    /// A variable of the VM's environment.
    fn environment(&self, name: &str) -> Option<String>;
    /// All headers of the current request, in one call.
    fn request_headers(&self) -> Headers;
    /// An attribute by its path.
    fn property(&self, path: &[&str]) -> Option<Vec<u8>>;
    /// Sets a text in the current stream's filter state, for the access log: `%FILTER_STATE(wasm.sluicegate:PLAIN)%`.
    fn set_filter_state(&self, text: &str);
    /// Sets a header of the response, replacing all headers with its name.
    fn set_response_header(&self, name: &str, value: &str);
    /// Resumes the current request, when the call into the VM has returned.
    fn resume(&self);
    /// Sends a local reply to the current request, when the call into the VM has returned.
    fn reply(&self, reply: &Reply);
    /// Makes another context the current one. `false` if that no longer exists.
    fn enter(&self, context: u32) -> bool;

    /// Sends a request to a cluster on behalf of the current root context, which receives the response with the returned token.
    ///
    /// # Errors
    /// The host refuses to send it.
    fn call(
        &self,
        cluster: &str,
        headers: Vec<(&str, &str)>,
        body: Option<&[u8]>,
        timeout: Duration,
    ) -> Result<u32, VerdictError>;
    /// The status of the current response to a callout.
    fn callout_status(&self) -> Option<Vec<u8>>;
    /// As much of its body.
    fn callout_body(&self, size: usize) -> Option<Vec<u8>>;

    /// Sets the timer's period for the current root context.
    fn tick_every(&self, period: Duration);
    /// Registers a queue, which all VMs know by its name, for the current root context. A queue cannot be unregistered; to register
    /// it again moves its notifications to this root context.
    fn register_queue(&self, name: &str) -> Option<u32>;
    /// Adds an empty message, of which the root context is notified in the next turn of the event loop. `false` if that failed.
    fn enqueue(&self, queue: u32) -> bool;
    /// Removes a message.
    fn dequeue(&self, queue: u32);

    /// Defines a counter in Envoy's statistics, `wasmcustom.sluicegate.NAME`, unless it is known.
    fn define_counter(&self, name: &str);
    /// Adds to a counter. If that fails, the count is lost.
    fn add_to_counter(&self, name: &str, count: i64);
    /// Writes to the log.
    fn log(&self, level: Level, text: &str);

    /// Microseconds of a clock that does not step, from an arbitrary origin; 0 if it cannot be read.
    fn monotonic_us(&self) -> u64;
    /// Seconds since 1970 by a clock that may step; 0 if it cannot be read.
    fn system_s(&self) -> u64;
    /// Sixteen random bytes as hexadecimal digits.
    fn random(&self) -> Option<String>;
    /// The VM's memory in bytes, which never becomes less.
    fn memory(&self) -> usize;

    /// Reads the current request.
    fn current_request(&self) -> CurrentRequest<'_, Self> {
        CurrentRequest {
            host: self,
            headers: self.request_headers(),
        }
    }

    /// Whether the current response is the reply of another Sluicegate filter in the chain, whose header fields must stay.
    fn is_reply_of_another_filter(&self) -> bool {
        let details = self.property(&["response", "code_details"]);
        details.is_some_and(|details| is_sluicegate_reply(&details))
    }

    /// The name of this Envoy: `node.id` of its bootstrap.
    fn node(&self) -> String {
        let id = self.property(&["xds", "node", "id"]).unwrap_or_default();
        // It goes into a header.
        String::from_utf8_lossy(&id).chars().take(256).collect()
    }

    /// Why there is no memory to compile rules, if so.
    fn no_memory(&self) -> Option<String> {
        let bytes = self.memory();
        let mebibytes = bytes >> 20;
        (bytes > MAX_MEMORY).then(|| {
            format!("the VM has {mebibytes} MiB of memory already, which a restart of Envoy frees")
        })
    }

    /// The body of the response to a callout.
    ///
    /// # Errors
    /// Why there is none.
    fn answer(&self, headers: usize, body_size: usize) -> Result<Vec<u8>, VerdictError> {
        // Without headers there is no response.
        if headers == 0 {
            callout_outcome(None)?;
        }
        callout_outcome(Some(&self.callout_status().unwrap_or_default()))?;
        if body_size > MAX_ANSWER_BYTES {
            return Err(VerdictError::Body(format!(
                "it has {body_size} bytes, more than {MAX_ANSWER_BYTES}"
            )));
        }
        Ok(self.callout_body(body_size).unwrap_or_default())
    }

    /// Runs an action in another context, if that still exists, and restores the current one.
    fn in_context(&self, id: u32, current: u32, action: impl FnOnce()) {
        if self.enter(id) {
            action();
        }
        self.enter(current);
    }
}

/// Above this size of the VM nothing more is compiled: an allocation that fails would end the VM. It has at most 1 GiB in Envoy.
const MAX_MEMORY: usize = 512 << 20;

/// Longest answer that is read. The sidecar's answers have at most a few hundred bytes for each decision.
const MAX_ANSWER_BYTES: usize = sluicegate_protocol::MAX_BODY_BYTES;

/// The request of the current call.
pub struct CurrentRequest<'h, H> {
    host: &'h H,
    headers: Headers,
}

impl<H: Host> Request for CurrentRequest<'_, H> {
    fn headers(&self) -> &Headers {
        &self.headers
    }

    fn property(&self, path: &[&str]) -> Option<Vec<u8>> {
        self.host.property(path)
    }
}
