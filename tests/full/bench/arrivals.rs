//! A load generator with an open loop: requests arrive by chance, as from many independent clients, whether earlier ones have been
//! answered or not. The sum of the Poisson processes of many connections is one of all of them.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::time::{Duration, Instant};

use sluicegate_tests::noise::Noise;

use crate::variant::Keys;

/// Connections, each with a thread and its own part of the arrivals.
const CONNECTIONS: u32 = 64;
/// An answer later than this is a failure of what is measured.
const TIMEOUT: Duration = Duration::from_secs(5);

/// What clients saw.
#[derive(Clone, Debug, Default)]
pub struct Seen {
    /// Requests that arrived in the time of the measurement.
    pub arrived: usize,
    /// Those that were answered with 200 in that time.
    pub admitted: usize,
    /// Those that were answered otherwise.
    pub denied: usize,
    /// From the moment of each arrival to its whole answer, in microseconds, in ascending order.
    pub latencies_us: Vec<f64>,
}

impl Seen {
    /// Whether more than a hundredth of what arrived was not answered when the time was over.
    pub fn fell_behind(&self) -> bool {
        self.latencies_us.len() * 100 < self.arrived * 99
    }

    pub fn mean_us(&self) -> f64 {
        self.latencies_us.iter().sum::<f64>() / self.latencies_us.len().max(1) as f64
    }

    /// The latency that this part of the answers did not exceed.
    pub fn part_us(&self, part: f64) -> f64 {
        let index = (self.latencies_us.len() as f64 * part) as usize;
        self.latencies_us.get(index).copied().unwrap_or(f64::NAN)
    }
}

/// Sends so many requests a second to this port for so long. To be called outside of a runtime's threads.
///
/// # Panics
/// The connection is closed, or an answer takes longer than [`TIMEOUT`].
pub fn send(port: u16, per_second: u32, keys: Keys, length: Duration, seed: u64) -> Seen {
    let ranks = Ranks::of(keys);
    let each = f64::from(per_second) / f64::from(CONNECTIONS);
    // All threads have connected by then.
    let begin = Instant::now() + Duration::from_millis(100);
    let mut seen = std::thread::scope(|scope| {
        let client = |number| {
            let (ranks, noise) = (&ranks, Noise::new(seed * 1_000 + u64::from(number)));
            scope.spawn(move || one_connection(port, each, ranks, begin, length, noise))
        };
        let clients: Vec<_> = (0..CONNECTIONS).map(client).collect();
        clients.into_iter().fold(Seen::default(), |mut all, one| {
            let one = one.join().expect("a client");
            all.arrived += one.arrived;
            all.admitted += one.admitted;
            all.denied += one.denied;
            all.latencies_us.extend(one.latencies_us);
            all
        })
    });
    seen.latencies_us.sort_by(f64::total_cmp);
    seen
}

fn one_connection(
    port: u16,
    per_second: f64,
    ranks: &Ranks,
    begin: Instant,
    length: Duration,
    mut noise: Noise,
) -> Seen {
    let mut seen = Seen::default();
    let mut stream = TcpStream::connect(("127.0.0.1", port)).expect("it listens");
    stream.set_nodelay(true).expect("a socket");
    stream.set_read_timeout(Some(TIMEOUT)).expect("a socket");
    let mut answers = BufReader::new(stream.try_clone().expect("a socket"));
    let mut at = Duration::ZERO;
    loop {
        // The times between arrivals of a Poisson process are exponentially distributed.
        at += Duration::from_secs_f64(-noise.unit().ln() / per_second);
        if at >= length {
            return seen;
        }
        seen.arrived += 1;
        let arrival = begin + at;
        std::thread::sleep(arrival.saturating_duration_since(Instant::now()));
        // An arrival that found the connection busy for the rest of the time counts, and is not sent.
        if begin.elapsed() >= length {
            continue;
        }
        let key = ranks.pick(noise.unit());
        let request = format!("GET / HTTP/1.1\r\nhost: bench\r\nx-api-key: key-{key}\r\n\r\n");
        stream.write_all(request.as_bytes()).expect("a connection");
        let status = read_answer(&mut answers);
        if begin.elapsed() < length {
            seen.latencies_us
                .push(arrival.elapsed().as_secs_f64() * 1e6);
            match status {
                200 => seen.admitted += 1,
                _ => seen.denied += 1,
            }
        }
    }
}

/// Reads a response with a length; its status.
fn read_answer(answers: &mut BufReader<TcpStream>) -> u16 {
    let (mut status, mut length) = (0, 0);
    loop {
        let mut line = String::new();
        answers.read_line(&mut line).expect("an answer in time");
        let line = line.trim_ascii().to_ascii_lowercase();
        if line.is_empty() && status != 0 {
            break;
        } else if let Some(rest) = line.strip_prefix("http/1.1 ") {
            status = rest[..3].parse().expect("a status");
        } else if let Some(rest) = line.strip_prefix("content-length:") {
            length = rest.trim().parse().expect("a length");
        }
    }
    let mut body = vec![0; length];
    answers.read_exact(&mut body).expect("a body");
    status
}

/// Chooses keys by the sums of their frequencies.
struct Ranks(Vec<f64>);

impl Ranks {
    fn of(keys: Keys) -> Self {
        let weight = |rank: u32| match keys {
            Keys::Uniform(_) => 1.0,
            Keys::Zipf(_) => 1.0 / f64::from(rank),
        };
        let (Keys::Uniform(count) | Keys::Zipf(count)) = keys;
        let mut sum = 0.0;
        let sums = (1..=count).map(|rank| {
            sum += weight(rank);
            sum
        });
        Self(sums.collect())
    }

    /// The key at this part, from 0 to 1, of all requests.
    fn pick(&self, part: f64) -> usize {
        let sum = self.0.last().copied().unwrap_or(0.0) * part;
        self.0.partition_point(|up_to| *up_to < sum)
    }
}
