//! Rules that settle what requests have used: how the streams of a world end, and what that costs by the words of `docs/settle.md`.

use super::determined;
use super::script::CONSUMERS;

/// The largest cost there is.
const MAX_COST: u64 = 2_147_483_648;

/// What tells the usage.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Tells {
    Header,
    Metadata,
    Bytes,
    Milliseconds,
    Status,
    /// One, and twice what the header says.
    Sum,
}

/// How the rules of a world settle, all of them alike.
#[derive(Clone, Debug)]
pub struct Settling {
    /// The limits that requests ask for whose units are settled.
    pub asked: Vec<usize>,
    /// The part of the quota that is reserved at most, in percent.
    pub most: u64,
    pub tells: Tells,
    /// What costs a request that tells no usage, if its response was whole, failed, or was cut before the first byte or later; none if
    /// it keeps what it has reserved.
    pub otherwise: [Option<u64>; 4],
}

impl Settling {
    /// The units of the request's header, rounded up to seven bits.
    pub fn reserved(units: u64) -> u64 {
        let step = 1 << units.max(1).ilog2().saturating_sub(6);
        units.next_multiple_of(step).min(MAX_COST)
    }

    /// The cost of a rule.
    pub fn yaml(&self, asked: usize) -> String {
        let from = match self.tells {
            Tells::Header => "header: x-used, trusted: true",
            Tells::Metadata => {
                "metadata: { namespace: envoy.filters.http.jwt_authn, name: [w, used] }"
            }
            Tells::Bytes => "bytes: true",
            Tells::Milliseconds => "milliseconds: true",
            Tells::Status => "status: { 2xx: 3, 503: 0, default: 1 }",
            Tells::Sum => "sum: [1, { header: x-used, trusted: true, weight: 2 }]",
        };
        let word = |units: Option<u64>| match units {
            None => "keep".to_owned(),
            Some(0) => "return".to_owned(),
            Some(units) => units.to_string(),
        };
        let [unknown, failed, first, cut] = self.otherwise.map(word);
        format!(
            "{{ reserve: {{ header: u{asked}, trusted: true }}, most: {}%, settle: {{ from: {{ {from} }}, unknown: {unknown}, \
             failed: {failed}, cut_before_first_byte: {first}, cut: {cut}, within: 16s }} }}",
            self.most
        )
    }

    /// Whether a limit may be among those that it settles, in whichever policy.
    pub fn is_of(&self, limit: usize) -> bool {
        let renamed = limit == super::script::RENAMED;
        renamed || self.asked.contains(&CONSUMERS) || self.asked.contains(&limit)
    }
}

/// How a stream ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum End {
    /// Another filter has answered.
    NotReached,
    NotConnected,
    Failed,
    /// The upstream said 429.
    Refused,
    HungUpBefore,
    HungUp,
    /// The upstream ended in the middle.
    BrokeOff,
    Whole,
}

/// A stream: how long it takes until its response begins, and until it ends, how it does, and what it has used, if it says so.
#[derive(Clone, Copy, Debug)]
pub struct Fate {
    pub end: End,
    pub begins_ms: u64,
    pub lasts_ms: u64,
    pub used: u64,
    pub tells: bool,
}

/// An attribute of a stream, by its path.
pub type Attribute = (&'static str, Vec<u8>);

impl Fate {
    /// That of a request of a world, which costs so much. `short`: slots are not all in use by streams that last.
    pub fn of(seed: u64, number: u32, cost: u64, short: bool) -> Self {
        use End::*;
        let mut state = seed ^ 0x57_4EA4 ^ (u64::from(number) << 32);
        let mut below = |most: usize| determined::next(&mut state) as usize % most;
        let ends = [
            Whole,
            Whole,
            Whole,
            Whole,
            Whole,
            HungUp,
            HungUpBefore,
            BrokeOff,
            Failed,
            Refused,
            NotReached,
            NotConnected,
        ];
        let begins_ms = [0, 0, 20, 300][below(4)];
        let longest_ms = if short { 8_000 } else { 25_000 };
        let used = [0, cost / 2, cost, cost, cost * 2, cost * 5 + 3][below(6)];
        Self {
            end: ends[below(ends.len())],
            begins_ms,
            lasts_ms: begins_ms + [0, 0, 30, 400, 3_000, longest_ms][below(6)],
            used: used.min(MAX_COST / 4),
            tells: below(5) > 0,
        }
    }

    fn reaches_upstream(&self) -> bool {
        !matches!(self.end, End::NotReached | End::NotConnected)
    }

    /// The upstream's response has begun.
    pub fn has_headers(&self) -> bool {
        self.reaches_upstream() && self.end != End::HungUpBefore
    }

    fn code(&self) -> u64 {
        match self.end {
            End::NotReached => 404,
            End::NotConnected | End::Failed => 503,
            End::Refused => 429,
            End::HungUpBefore => 0,
            End::HungUp | End::BrokeOff | End::Whole => 200,
        }
    }

    fn bytes(&self) -> u64 {
        match self.end {
            End::HungUp | End::BrokeOff => self.used.max(1),
            End::Whole => self.used,
            End::Failed | End::Refused => 9,
            End::NotReached | End::NotConnected | End::HungUpBefore => 0,
        }
    }

    /// A header of its response.
    pub fn header(&self) -> Option<Attribute> {
        let tells = self.tells && self.has_headers();
        tells.then(|| {
            (
                "response.headers.x-used",
                self.used.to_string().into_bytes(),
            )
        })
    }

    /// What Envoy knows of it when it ends.
    pub fn attributes(&self) -> Vec<Attribute> {
        let number = |number: u64| number.to_le_bytes().to_vec();
        let (flags, details) = match self.end {
            End::NotReached => (1 << 8, "direct_response"),
            End::NotConnected => (1 << 5, "upstream_reset_before_response_started"),
            End::HungUpBefore => (1 << 14, "downstream_remote_disconnect"),
            End::HungUp => (1 << 28, "downstream_remote_reset"),
            End::BrokeOff => (1 << 6, "upstream_reset_after_response_started"),
            End::Failed | End::Refused | End::Whole => (0, "via_upstream"),
        };
        let mut all = vec![
            ("response.flags", number(flags)),
            ("response.code", number(self.code())),
            ("response.code_details", details.into()),
            ("response.size", number(self.bytes())),
            ("request.duration", number(self.lasts_ms * 1_000_000 + 1)),
        ];
        if self.end != End::NotReached {
            all.push(("upstream.address", b"192.0.2.1:80".to_vec()));
            all.push(("upstream.request_attempt_count", number(1)));
        }
        all
    }

    /// What it has used; none if it keeps what it has reserved.
    pub fn used(&self, settling: &Settling) -> Option<u64> {
        let in_header = (self.tells && self.has_headers()).then_some(self.used);
        let told = match settling.tells {
            Tells::Status => match self.code() {
                0 => None,
                200 => Some(3),
                503 => Some(0),
                _ => Some(1),
            },
            _ if !self.reaches_upstream() => None,
            Tells::Header => in_header,
            Tells::Metadata => self.tells.then_some(self.used),
            Tells::Bytes => Some(self.bytes()),
            Tells::Milliseconds => Some(self.lasts_ms + 1),
            Tells::Sum => in_header.map(|used| 1 + 2 * used),
        };
        let [unknown, failed, first, cut] = settling.otherwise;
        told.or(match self.end {
            End::NotReached | End::NotConnected => Some(0),
            End::Failed | End::Refused => failed,
            End::HungUpBefore => first,
            End::HungUp | End::BrokeOff => cut,
            End::Whole => unknown,
        })
    }
}
