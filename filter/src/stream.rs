//! One request: asks the sidecar, waits, and does what the verdict says.

use std::rc::Rc;

use proxy_wasm::traits::{Context, HttpContext};
use proxy_wasm::types::{Action, LogLevel};
use sluicegate_protocol::DECIDE_PATH;
use sluicegate_rules::{
    Conclusion, Evaluation, Question, Reply, Unusable, conclude, missing_part, question_body,
};

use crate::host::{self, CurrentRequest};
use crate::root::Shared;

/// A request, and what it is waiting for.
pub struct Stream {
    // Without one when Envoy runs a filter whose configuration it has refused: then nothing is metered.
    shared: Option<Rc<Shared>>,
    /// Asked and not yet answered.
    waiting: Option<Question>,
}

impl Stream {
    pub const fn new(shared: Option<Rc<Shared>>) -> Self {
        Self {
            shared,
            waiting: None,
        }
    }
}

impl HttpContext for Stream {
    fn on_http_request_headers(&mut self, _: usize, _: bool) -> Action {
        let Some(shared) = &self.shared else {
            return Action::Continue;
        };
        let question = match shared.rules.evaluate(&CurrentRequest) {
            Evaluation::Pass => return Action::Continue,
            Evaluation::Missing(limit) => return answer(&missing_part(&limit)),
            Evaluation::Ask(question) => question,
        };
        let sidecar = &shared.rules.sidecar;
        if host::post(
            &sidecar.cluster,
            DECIDE_PATH,
            &question_body(&[&question]),
            sidecar.timeout,
        ) {
            self.waiting = Some(question);
            return Action::Pause;
        }
        match shared.conclude(&question, Err(Unusable::NoAnswer)) {
            Conclusion::Continue => Action::Continue,
            Conclusion::Answer(reply) => answer(&reply),
        }
    }
}

impl Context for Stream {
    fn on_http_call_response(&mut self, _: u32, headers: usize, body_size: usize, _: usize) {
        let (Some(shared), Some(question)) = (&self.shared, self.waiting.take()) else {
            return;
        };
        let (status, body) = if headers == 0 {
            (Vec::new(), Vec::new())
        } else {
            host::callout_answer(body_size)
        };
        let usable = match status.as_slice() {
            _ if headers == 0 => Err(Unusable::NoAnswer),
            b"200" => Ok(body.as_slice()),
            status => Err(Unusable::Status(
                String::from_utf8_lossy(status).into_owned(),
            )),
        };
        match shared.conclude(&question, usable) {
            Conclusion::Continue => host::resume(),
            Conclusion::Answer(reply) => {
                answer(&reply);
            }
        }
    }
}

impl Shared {
    /// Concludes, and logs when verdicts cease to come and when they come again.
    fn conclude(&self, question: &Question, answer: Result<&[u8], Unusable>) -> Conclusion {
        let (conclusion, why) = conclude(question, answer);
        match (self.unavailable.replace(why.is_some()), why) {
            (false, Some(why)) => {
                host::log(LogLevel::Warn, &format!("sluicegate: no verdict: {why}"))
            }
            (true, None) => host::log(LogLevel::Warn, "sluicegate: verdicts come again"),
            _ => {}
        }
        conclusion
    }
}

fn answer(reply: &Reply) -> Action {
    host::reply(reply.status, &reply.headers, &reply.body);
    Action::Pause
}
