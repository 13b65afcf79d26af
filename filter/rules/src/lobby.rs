//! One callout for all that wait: who goes alone, who waits, and when the next callout leaves. Pure.
//!
//! A request that finds nothing in flight goes alone, at once, in a callout of its own. One that finds a callout in
//! flight waits, and all that wait go together in the next. Nobody waits for a timer. If a callout is slow, those
//! behind it get another one before it is over; and since every callout is given up at the deadline of its first
//! passenger, everyone hears by their own.
//!
//! Times are microseconds of a clock that does not step.

use std::collections::VecDeque;

/// Passengers of one callout.
const MOST_TOGETHER: usize = 256;
/// Requests that wait; one more is answered as if there were no sidecar.
const MOST_WAITING: usize = 4_096;
/// Callouts in flight at once.
const MOST_FLIGHTS: usize = 4;
/// A callout is slow, and another may leave, after this part of the time that a request waits in all.
const SLOW: u64 = 4;
/// A passenger with less than this part of its time left is not taken along: the callout, which is given up at its
/// deadline, would be given up for all.
const HOPELESS: u64 = 8;

/// What a request that arrives is to do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Way {
    /// Make a callout of its own, and say [`Lobby::landed`] when it is over, however it ends.
    Alone(Flight),
    /// Wait. If `ring`, someone has to call [`Lobby::board`] soon.
    Wait {
        /// Nobody is coming to board yet.
        ring: bool,
    },
    /// There is no room.
    Full,
}

/// A callout in flight.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Flight(u64);

/// A callout that is to be made.
#[derive(Debug)]
pub struct Boarding<W> {
    /// Those whose time is up: they are answered without a verdict.
    pub late: Vec<W>,
    /// Those who go; none, and then no flight.
    pub passengers: Vec<W>,
    /// The callout, to be given to [`Lobby::landed`] when it is over, however it ends.
    pub flight: Flight,
    /// When it is to be given up: microseconds from now.
    pub timeout_us: u64,
}

/// Requests that wait, and callouts in flight.
#[derive(Debug)]
pub struct Lobby<W> {
    /// How long a request waits in all.
    timeout_us: u64,
    waiting: VecDeque<(u64, W)>,
    /// With the time of its leaving.
    flights: Vec<(Flight, u64)>,
    last: u64,
    /// Someone is coming to board.
    rung: bool,
}

impl<W> Lobby<W> {
    /// Nobody there yet; each will wait for at most `timeout_us`.
    pub const fn new(timeout_us: u64) -> Self {
        Self {
            timeout_us,
            waiting: VecDeque::new(),
            flights: Vec::new(),
            last: 0,
            rung: false,
        }
    }

    /// A request arrives. `who` is kept if it has to wait.
    pub fn arrive(&mut self, now_us: u64, who: W) -> (Way, Option<W>) {
        if self.flights.is_empty() && self.waiting.is_empty() {
            return (Way::Alone(self.leave(now_us)), Some(who));
        }
        if self.waiting.len() >= MOST_WAITING {
            return (Way::Full, Some(who));
        }
        self.waiting
            .push_back((now_us.saturating_add(self.timeout_us), who));
        let ring = self.should_ring(now_us);
        (Way::Wait { ring }, None)
    }

    /// Whether someone has to come and board; it counts as called.
    fn should_ring(&mut self, now_us: u64) -> bool {
        let youngest = self.flights.iter().map(|(_, left_us)| *left_us).max();
        let slow =
            youngest.is_none_or(|left_us| now_us.saturating_sub(left_us) >= self.timeout_us / SLOW);
        let ring =
            !self.rung && !self.waiting.is_empty() && slow && self.flights.len() < MOST_FLIGHTS;
        self.rung |= ring;
        ring
    }

    /// The bell could not be rung: whoever waits is taken out, to be answered without a verdict.
    pub fn abandon(&mut self) -> Vec<W> {
        self.rung = false;
        self.waiting.drain(..).map(|(_, who)| who).collect()
    }

    /// Makes up the next callout of those that wait and are not `gone`.
    pub fn board(&mut self, now_us: u64, gone: impl Fn(&W) -> bool) -> Boarding<W> {
        self.rung = false;
        let (mut late, mut passengers) = (Vec::new(), Vec::new());
        let mut first_deadline_us = now_us.saturating_add(self.timeout_us);
        while passengers.len() < MOST_TOGETHER
            && let Some((deadline_us, who)) = self.waiting.pop_front()
        {
            if gone(&who) {
                continue;
            }
            if deadline_us.saturating_sub(now_us) < self.timeout_us / HOPELESS {
                late.push(who);
                continue;
            }
            first_deadline_us = first_deadline_us.min(deadline_us);
            passengers.push(who);
        }
        let flight = if passengers.is_empty() {
            Flight(0)
        } else {
            self.leave(now_us)
        };
        Boarding {
            late,
            passengers,
            flight,
            timeout_us: first_deadline_us.saturating_sub(now_us),
        }
    }

    fn leave(&mut self, now_us: u64) -> Flight {
        self.last += 1;
        self.flights.push((Flight(self.last), now_us));
        Flight(self.last)
    }

    /// A callout is over. True: those who have come in the meantime need someone to board them.
    pub fn landed(&mut self, flight: Flight, now_us: u64) -> bool {
        self.flights.retain(|(other, _)| *other != flight);
        self.should_ring(now_us)
    }

    /// Nobody waits and nothing is in flight.
    pub fn is_idle(&self) -> bool {
        self.waiting.is_empty() && self.flights.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::{BTreeMap, BTreeSet};

    const TIMEOUT_US: u64 = 50_000;

    #[test]
    fn the_first_goes_alone_and_those_behind_it_together() {
        let mut lobby = Lobby::new(TIMEOUT_US);
        let (Way::Alone(first), Some('a')) = lobby.arrive(0, 'a') else {
            panic!()
        };
        for who in ['b', 'c', 'd'] {
            assert_eq!(lobby.arrive(10, who), (Way::Wait { ring: false }, None));
        }
        assert!(lobby.landed(first, 300), "they need someone to board them");
        assert!(!lobby.landed(first, 300), "who has been called already");
        let boarding = lobby.board(310, |who| *who == 'c');
        assert_eq!(boarding.passengers, ['b', 'd']);
        assert_eq!(
            boarding.timeout_us,
            TIMEOUT_US - 300,
            "until the deadline of the first of them"
        );
        assert!(!lobby.landed(boarding.flight, 600));
        assert!(lobby.is_idle());
    }

    #[test]
    fn behind_a_slow_callout_another_leaves() {
        let mut lobby = Lobby::new(TIMEOUT_US);
        let (Way::Alone(_), _) = lobby.arrive(0, 0) else {
            panic!()
        };
        assert_eq!(
            lobby.arrive(TIMEOUT_US / 4 - 1, 1).0,
            Way::Wait { ring: false }
        );
        assert_eq!(lobby.arrive(TIMEOUT_US / 4, 2).0, Way::Wait { ring: true });
        assert_eq!(lobby.arrive(TIMEOUT_US / 4, 3).0, Way::Wait { ring: false });
        assert_eq!(lobby.board(TIMEOUT_US / 4, |_| false).passengers, [1, 2, 3]);
    }

    #[test]
    fn past_the_bound_there_is_no_room() {
        let mut lobby = Lobby::new(TIMEOUT_US);
        lobby.arrive(0, 0);
        for n in 0..MOST_WAITING {
            assert!(matches!(lobby.arrive(1, n).0, Way::Wait { .. }));
        }
        assert_eq!(lobby.arrive(1, 0), (Way::Full, Some(0)));
        assert_eq!(lobby.board(1, |_| false).passengers.len(), MOST_TOGETHER);
    }

    #[derive(Clone, Debug)]
    enum Event {
        Arrive,
        /// The n-th callout in flight is answered, or ends without an answer.
        Land(prop::sample::Index),
        /// The n-th request that has no verdict yet hangs up.
        Vanish(prop::sample::Index),
        /// The bell, if it was rung, is heard.
        Hear,
        Pass(u64),
    }

    fn event() -> impl Strategy<Value = Event> {
        prop_oneof![
            6 => Just(Event::Arrive),
            3 => any::<prop::sample::Index>().prop_map(Event::Land),
            1 => any::<prop::sample::Index>().prop_map(Event::Vanish),
            3 => Just(Event::Hear),
            3 => (1..20_000_u64).prop_map(Event::Pass),
        ]
    }

    proptest! {
        /// In whatever order things happen, each request that stays gets exactly one verdict, none that left is asked
        /// for, nobody waits past a deadline, and in the end nothing is left.
        #[test]
        fn every_waiter_gets_one_verdict_in_time(events in prop::collection::vec(event(), 1..200)) {
            let mut lobby = Lobby::new(TIMEOUT_US);
            let mut now_us = 0;
            // Callouts in flight: when they are given up, and who is told then.
            let mut air: BTreeMap<Flight, (u64, Vec<usize>)> = BTreeMap::new();
            let mut arrived = Vec::new();
            let mut told: BTreeMap<usize, u64> = BTreeMap::new();
            let mut gone = BTreeSet::new();
            let mut ringing = false;
            let drain = [Event::Hear, Event::Pass(TIMEOUT_US), Event::Hear, Event::Pass(TIMEOUT_US)];
            for event in events.into_iter().chain(drain) {
                let mut over = Vec::new();
                match event {
                    Event::Arrive => {
                        let who = arrived.len();
                        arrived.push(now_us);
                        match lobby.arrive(now_us, who) {
                            (Way::Alone(flight), _) => { air.insert(flight, (now_us + TIMEOUT_US, vec![who])); }
                            (Way::Wait { ring }, _) => ringing |= ring,
                            (Way::Full, _) => { told.insert(who, now_us); }
                        }
                    }
                    Event::Land(index) if !air.is_empty() => {
                        over.push(*index.get(&air.keys().copied().collect::<Vec<_>>()));
                    }
                    Event::Vanish(index) => {
                        let open: Vec<_> = (0..arrived.len()).filter(|w| !told.contains_key(w)).collect();
                        if !open.is_empty() {
                            let who = *index.get(&open);
                            gone.insert(who);
                            // Envoy ends the callout of a request that went alone.
                            over.extend(air.iter().filter(|(_, (_, w))| *w == [who]).map(|(f, _)| *f));
                        }
                    }
                    Event::Hear => {}
                    Event::Pass(us) => {
                        // Envoy gives callouts up in time, and the bell is heard in the next turn of its loop.
                        let end_us = now_us + us;
                        while let Some((flight, at)) = air.iter().map(|(f, (at, _))| (*f, *at)).min_by_key(|(_, at)| *at)
                            && at <= end_us
                        {
                            now_us = at;
                            let (_, passengers) = air.remove(&flight).unwrap_or_default();
                            for who in passengers {
                                prop_assert!(told.insert(who, now_us).is_none(), "told twice");
                            }
                            ringing |= lobby.landed(flight, now_us);
                            if ringing {
                                ringing = hear(&mut lobby, now_us, &gone, &mut air, &mut told)?;
                            }
                        }
                        now_us = end_us;
                    }
                    Event::Land(_) => {}
                }
                for flight in over {
                    let (_, passengers) = air.remove(&flight).unwrap_or_default();
                    for who in passengers {
                        prop_assert!(told.insert(who, now_us).is_none(), "told twice");
                    }
                    ringing |= lobby.landed(flight, now_us);
                }
                if ringing {
                    ringing = hear(&mut lobby, now_us, &gone, &mut air, &mut told)?;
                }
            }
            prop_assert!(lobby.is_idle(), "{lobby:?}");
            for (who, at) in arrived.iter().enumerate() {
                match told.get(&who) {
                    Some(when) => prop_assert!(when - at <= TIMEOUT_US, "{who} waited for {} us", when - at),
                    None => prop_assert!(gone.contains(&who), "{who} was forgotten"),
                }
            }
        }
    }

    /// The root context boards.
    fn hear(
        lobby: &mut Lobby<usize>,
        now_us: u64,
        gone: &BTreeSet<usize>,
        air: &mut BTreeMap<Flight, (u64, Vec<usize>)>,
        told: &mut BTreeMap<usize, u64>,
    ) -> Result<bool, TestCaseError> {
        let boarding = lobby.board(now_us, |who| gone.contains(who));
        for who in boarding.late {
            prop_assert!(told.insert(who, now_us).is_none(), "told twice");
        }
        for who in &boarding.passengers {
            prop_assert!(!gone.contains(who), "{who} had left");
        }
        if !boarding.passengers.is_empty() {
            air.insert(
                boarding.flight,
                (now_us + boarding.timeout_us, boarding.passengers),
            );
        }
        Ok(false)
    }
}
