//! What a VM of the filter has of a simulated Envoy: it keeps what the filter asks for until the call into the VM has returned, as
//! Envoy does.

use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, VecDeque};
use std::rc::Rc;
use std::time::Duration;

use sluicegate_rules::{Headers, Reply, VerdictError};
use sluicegate_vm::{Host, Level};

use super::determined;
use super::settling::Fate;

/// The root context's id.
pub const ROOT: u32 = 1;

/// What Envoy does when the call into the VM has returned.
pub enum Effect {
    Call(Call),
    Tick(Duration),
    Wake(u32),
    Resume(u32),
    Reply(u32, Reply),
}

/// A callout.
pub struct Call {
    pub token: u32,
    pub headers: Vec<(String, String)>,
    pub body: Vec<u8>,
    pub timeout: Duration,
}

impl Call {
    pub fn header(&self, name: &str) -> Option<&str> {
        let mut headers = self.headers.iter();
        let (_, value) = headers.find(|(known, _)| known == name)?;
        Some(value)
    }
}

/// A request in Envoy.
#[derive(Default)]
pub struct Request {
    pub headers: Headers,
    pub route: &'static str,
    /// The attribute `metadata`.
    pub metadata: Vec<u8>,
    pub filter_state: Option<String>,
    /// Others, by their paths.
    pub attributes: BTreeMap<&'static str, Vec<u8>>,
    pub ends: Option<Ends>,
}

/// How the stream of a request goes on if it passes, and the metadata of a response that tells its usage there.
pub type Ends = (Fate, Vec<u8>);

/// One life of a VM.
#[derive(Default)]
pub struct Life {
    configuration: String,
    is_over: Cell<bool>,
    current: Cell<u32>,
    pub requests: RefCell<BTreeMap<u32, Request>>,
    /// The response to the callout that is over.
    response: RefCell<(&'static str, Vec<u8>)>,
    effects: RefCell<VecDeque<Effect>>,
    /// Envoy refuses to send callouts.
    pub refuses_calls: Cell<bool>,
    pub has_refused: Cell<bool>,
    last_token: Cell<u32>,
    /// Digests, as the log has them: of the rules in force, and of those that it refused last.
    pub rules: RefCell<[Option<String>; 2]>,
}

thread_local! {
    /// Of ids and queues.
    static LAST: Cell<u32> = const { Cell::new(0) };
}

fn next_number() -> u32 {
    LAST.set(LAST.get() + 1);
    LAST.get()
}

/// Envoy, as a VM sees it.
#[derive(Clone)]
pub struct Envoy(pub Rc<Life>);

impl Envoy {
    pub fn new(configuration: String) -> Self {
        Self(Rc::new(Life {
            configuration,
            ..Life::default()
        }))
    }

    /// A call into the VM begins.
    pub fn begin(&self, context: u32) {
        self.0.current.set(context);
    }

    /// The VM ends: what it does in its last moments has no effect.
    pub fn end(&self) {
        self.0.is_over.set(true);
    }

    pub fn is_over(&self) -> bool {
        self.0.is_over.get()
    }

    pub fn next_effect(&self) -> Option<Effect> {
        self.0.effects.borrow_mut().pop_front()
    }

    pub fn responds(&self, status: &'static str, body: Vec<u8>) {
        self.0.response.replace((status, body));
    }

    fn after(&self, effect: Effect) {
        if !self.is_over() {
            self.0.effects.borrow_mut().push_back(effect);
        }
    }

    fn of_request<T>(&self, of: impl FnOnce(&mut Request) -> T) -> Option<T> {
        let mut requests = self.0.requests.borrow_mut();
        requests.get_mut(&self.0.current.get()).map(of)
    }
}

impl Host for Envoy {
    fn plugin_configuration(&self, _: usize) -> Option<Vec<u8>> {
        Some(self.0.configuration.clone().into_bytes())
    }

    fn environment(&self, _: &str) -> Option<String> {
        None
    }

    fn request_headers(&self) -> Headers {
        self.of_request(|request| request.headers.clone())
            .unwrap_or_default()
    }

    fn property(&self, path: &[&str]) -> Option<Vec<u8>> {
        match path {
            ["xds", "node", "id"] => Some(b"world".to_vec()),
            ["xds", "route_name"] => self.of_request(|request| request.route.into()),
            ["metadata"] => self.of_request(|request| request.metadata.clone()),
            _ => self
                .of_request(|request| request.attributes.get(path.join(".").as_str()).cloned())
                .flatten(),
        }
    }

    fn set_filter_state(&self, text: &str) {
        self.of_request(|request| request.filter_state = Some(text.to_owned()));
    }

    fn set_response_header(&self, _: &str, _: &str) {}

    fn resume(&self) {
        self.after(Effect::Resume(self.0.current.get()));
    }

    fn reply(&self, reply: &Reply) {
        self.after(Effect::Reply(self.0.current.get(), reply.clone()));
    }

    fn enter(&self, context: u32) -> bool {
        let exists = context == ROOT || self.0.requests.borrow().contains_key(&context);
        if exists {
            self.0.current.set(context);
        }
        exists
    }

    fn call(
        &self,
        _: &str,
        headers: Vec<(&str, &str)>,
        body: Option<&[u8]>,
        timeout: Duration,
    ) -> Result<u32, VerdictError> {
        assert_eq!(self.0.current.get(), ROOT, "only the root makes callouts");
        if self.0.refuses_calls.get() {
            self.0.has_refused.set(true);
            return Err(VerdictError::Unreachable);
        }
        let token = self.0.last_token.get() + 1;
        self.0.last_token.set(token);
        let owned = |(name, value): (&str, &str)| (name.to_owned(), value.to_owned());
        self.after(Effect::Call(Call {
            token,
            headers: headers.into_iter().map(owned).collect(),
            body: body.unwrap_or_default().to_vec(),
            timeout,
        }));
        Ok(token)
    }

    fn callout_status(&self) -> Option<Vec<u8>> {
        Some(self.0.response.borrow().0.into())
    }

    fn callout_body(&self, size: usize) -> Option<Vec<u8>> {
        let mut response = self.0.response.borrow_mut();
        assert_eq!(response.1.len(), size);
        Some(std::mem::take(&mut response.1))
    }

    fn tick_every(&self, period: Duration) {
        self.after(Effect::Tick(period));
    }

    fn register_queue(&self, _: &str) -> Option<u32> {
        Some(next_number())
    }

    fn enqueue(&self, queue: u32) -> bool {
        self.after(Effect::Wake(queue));
        true
    }

    fn dequeue(&self, _: u32) {}

    fn define_counter(&self, _: &str) {}

    fn add_to_counter(&self, _: &str, _: i64) {}

    fn log(&self, _: Level, text: &str) {
        let digest = text.strip_prefix("sluicegate: rules ");
        let Some((digest, what)) = digest.and_then(|rest| rest.split_once(' ')) else {
            return;
        };
        let index = usize::from(what.starts_with("refused"));
        self.0.rules.borrow_mut()[index] = Some(digest.to_owned());
    }

    fn monotonic_us(&self) -> u64 {
        determined::passed_us()
    }

    fn system_s(&self) -> u64 {
        determined::passed_us() / 1_000_000
    }

    fn random(&self) -> Option<String> {
        Some(format!("{:032x}", next_number()))
    }

    fn memory(&self) -> usize {
        0
    }
}
