//! One request: asks the sidecar, waits, and does what the verdict says.

use std::rc::Rc;

use proxy_wasm::traits::{Context, HttpContext};
use proxy_wasm::types::Action;
use sluicegate_protocol::DECIDE_PATH;
use sluicegate_rules::{
    Conclusion, Evaluation, Header, OURS, Question, Reply, Unusable, read_answer,
};

use crate::host::{self, CurrentRequest};
use crate::root::Shared;

/// A request, and what it is waiting for.
pub struct Stream {
    // Without one when Envoy runs a filter whose configuration it has refused: then nothing is metered.
    shared: Option<Rc<Shared>>,
    /// Asked and not yet answered.
    waiting: Option<Question>,
    /// To be put into the upstream's answer.
    tell: Vec<Header>,
}

impl Stream {
    pub const fn new(shared: Option<Rc<Shared>>) -> Self {
        Self {
            shared,
            waiting: None,
            tell: Vec::new(),
        }
    }

    /// What an answer, or its absence, means for this request.
    fn conclude(&mut self, question: &Question, answer: Result<&[u8], Unusable>) -> Conclusion {
        let Some(shared) = &self.shared else {
            return Conclusion::Continue(Vec::new());
        };
        let verdicts = answer.and_then(|body| read_answer(body, question.decisions()));
        let verdicts = verdicts.as_deref().map_err(Unusable::clone);
        let (conclusion, why) = shared
            .rules
            .conclude(question, verdicts, &mut |place| shared.count(place));
        shared.note(why.as_ref());
        conclusion
    }
}

impl HttpContext for Stream {
    fn on_http_request_headers(&mut self, _: usize, _: bool) -> Action {
        let Some(shared) = &self.shared else {
            return Action::Continue;
        };
        let request = CurrentRequest::read();
        let evaluation = shared
            .rules
            .evaluate(&request, &mut |place| shared.count(place));
        request.remove(&OURS);
        let question = match evaluation {
            Evaluation::Pass => return Action::Continue,
            Evaluation::Refuse(reply) => return answer(&reply),
            Evaluation::Ask(question) => question,
        };
        let sidecar = &shared.rules.sidecar;
        let body = shared.rules.question_body(&[&question]);
        if host::post(&sidecar.cluster, DECIDE_PATH, &body, sidecar.timeout) {
            self.waiting = Some(question);
            return Action::Pause;
        }
        match self.conclude(&question, Err(Unusable::NoAnswer)) {
            Conclusion::Continue(tell) => {
                self.tell = tell;
                Action::Continue
            }
            Conclusion::Answer(reply) => answer(&reply),
        }
    }

    fn on_http_response_headers(&mut self, _: usize, _: bool) -> Action {
        for (name, value) in self.tell.drain(..) {
            host::set_response_header(name, &value);
        }
        Action::Continue
    }
}

impl Context for Stream {
    fn on_http_call_response(&mut self, _: u32, headers: usize, body_size: usize, _: usize) {
        let Some(question) = self.waiting.take() else {
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
        match self.conclude(&question, usable) {
            Conclusion::Continue(tell) => {
                self.tell = tell;
                host::resume();
            }
            Conclusion::Answer(reply) => {
                answer(&reply);
            }
        }
    }
}

fn answer(reply: &Reply) -> Action {
    host::reply(reply);
    Action::Pause
}
