//! The Redis protocol by hand, so that the bench's client costs as little as possible.

use std::io::{BufReader, Read, Write};
use std::net::TcpStream;

/// Connections, and commands in flight on each, as `redis-benchmark -c 4 -P 16` has them.
const CONNECTIONS: usize = 4;
const PIPELINE: usize = 16;

/// A reply of Redis; the bench reads only integers.
#[derive(Debug)]
pub enum Reply {
    Integer(i64),
    Text(String),
    Many,
    Nothing,
}

impl Reply {
    pub fn integer(&self) -> i64 {
        match self {
            Reply::Integer(value) => *value,
            other => panic!("not an integer: {other:?}"),
        }
    }

    pub fn text(&self) -> &str {
        match self {
            Reply::Text(text) => text,
            other => panic!("not text: {other:?}"),
        }
    }
}

#[derive(Debug)]
struct Connection {
    stream: BufReader<TcpStream>,
}

/// A command, encoded.
pub fn command(parts: &[&[u8]]) -> Vec<u8> {
    let mut bytes = format!("*{}\r\n", parts.len()).into_bytes();
    for part in parts {
        bytes.extend_from_slice(format!("${}\r\n", part.len()).as_bytes());
        bytes.extend_from_slice(part);
        bytes.extend_from_slice(b"\r\n");
    }
    bytes
}

impl Connection {
    fn send(&mut self, bytes: &[u8]) {
        self.stream
            .get_mut()
            .write_all(bytes)
            .expect("Redis listens");
    }

    fn line(&mut self, line: &mut Vec<u8>) {
        line.clear();
        let mut byte = [0];
        while !line.ends_with(b"\r\n") {
            self.stream.read_exact(&mut byte).expect("Redis answers");
            line.push(byte[0]);
        }
        line.truncate(line.len() - 2);
    }

    fn reply(&mut self, line: &mut Vec<u8>) -> Reply {
        self.line(line);
        let rest = std::str::from_utf8(&line[1..]).expect("a line of text");
        let number = || rest.parse::<i64>().expect("a number");
        match line[0] {
            b':' => Reply::Integer(number()),
            b'+' => Reply::Text(rest.to_owned()),
            b'-' => panic!("Redis says: {rest}"),
            b'$' if number() < 0 => Reply::Nothing,
            b'$' => {
                let length = usize::try_from(number()).expect("a length");
                let mut text = vec![0; length + 2];
                self.stream.read_exact(&mut text).expect("Redis answers");
                text.truncate(length);
                Reply::Text(String::from_utf8_lossy(&text).into_owned())
            }
            b'*' => {
                let count = usize::try_from(number()).expect("a count");
                (0..count).for_each(|_| drop(self.reply(line)));
                Reply::Many
            }
            other => panic!("not a reply: {other}"),
        }
    }
}

/// Connections to one Redis.
#[derive(Debug)]
pub struct Wire {
    connections: Vec<Connection>,
}

impl Wire {
    pub fn connect(address: &str) -> Self {
        let connection = |_| {
            let stream = TcpStream::connect(address).expect("Redis listens");
            stream.set_nodelay(true).expect("a socket");
            Connection {
                stream: BufReader::with_capacity(1 << 16, stream),
            }
        };
        Wire {
            connections: (0..CONNECTIONS).map(connection).collect(),
        }
    }

    /// One command, and its reply.
    pub fn ask(&mut self, parts: &[&[u8]]) -> Reply {
        let connection = &mut self.connections[0];
        connection.send(&command(parts));
        connection.reply(&mut Vec::new())
    }

    /// Sends `count` of the commands, over and over, with as many in flight as Redis likes.
    pub fn flood(&mut self, commands: &[Vec<u8>], count: usize) {
        let mut commands = commands.iter().cycle();
        let mut waiting = [0; CONNECTIONS];
        let (mut left, mut line, mut bytes) = (count, Vec::new(), Vec::new());
        while left > 0 || waiting.iter().any(|n| *n > 0) {
            for (connection, waiting) in self.connections.iter_mut().zip(&mut waiting) {
                for _ in 0..*waiting {
                    connection.reply(&mut line);
                }
                *waiting = left.min(PIPELINE);
                left -= *waiting;
                bytes.clear();
                for _ in 0..*waiting {
                    bytes.extend_from_slice(commands.next().expect("some commands"));
                }
                connection.send(&bytes);
            }
        }
    }
}
