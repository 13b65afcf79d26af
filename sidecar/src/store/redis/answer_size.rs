//! The size of what Redis answers, known before it is in memory. Pure.
//!
//! Follows the answers of RESP 2 and 3 only as far as is needed to know where each ends. A length that an answer declares
//! counts at once. Bytes alone would not do as a measure: a value of three bytes takes 56 in memory.

/// Most bytes of an answer. The largest honest ones are all overrides, 4 MiB and their lengths, and CLUSTER SLOTS of a Cluster
/// in which each slot is a range of its own: about 6 MB.
pub const MAX_BYTES: u64 = 16 << 20;
/// Most values of an answer, nested ones included. That CLUSTER SLOTS has 300,000 with two replicas for each primary.
pub const MAX_VALUES: u64 = 1 << 19;
/// Most bytes of a line. The redis crate searches an unfinished one from its beginning whenever more of it arrives.
const MAX_LINE: u64 = 1 << 16;
/// Most bytes of a length that an answer declares. The redis crate reads longer ones, with blanks and zeros before a number.
const MAX_LENGTH: u64 = 32;

/// An answer that is not read.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum TooLarge {
    /// Bytes of one answer.
    #[error("an answer has {0} bytes or more, and at most {MAX_BYTES} are read")]
    Bytes(u64),
    /// Values of one answer.
    #[error("an answer has {0} values or more, and at most {MAX_VALUES} are read")]
    Values(u64),
    /// Bytes of one line of an answer.
    #[error("an answer has a line of more than {MAX_LINE} bytes")]
    Line,
    /// Bytes of a length.
    #[error("an answer declares a length in more than {MAX_LENGTH} bytes")]
    Length,
}

/// How much of an answer has come.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct AnswerSize {
    part: Part,
    /// Values that belong to the current answer and have not ended; 0 between two answers.
    missing: u64,
    /// Of the current answer, with those that are still to come of a string.
    bytes: u64,
    /// Of the current answer, without those that are missing.
    values: u64,
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
enum Part {
    /// A value begins with the next byte.
    #[default]
    Start,
    /// In the line that a value begins with.
    Line(Line),
    /// In a string; bytes that are to come, with the line's end.
    Text(u64),
    /// Not RESP, so that the redis crate ends the connection; all bytes count for one answer.
    Unreadable,
}

/// The line that a value begins with.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Line {
    kind: u8,
    /// Bytes after the kind.
    length: u64,
    /// The first of them: the whole length, where the kind declares one.
    text: [u8; MAX_LENGTH as usize],
    after_return: bool,
}

/// What follows a line.
enum Follows {
    Nothing,
    Text(u64),
    Values(u64),
    Unreadable,
}

impl Line {
    const fn new(kind: u8) -> Self {
        Self {
            kind,
            length: 0,
            text: [0; MAX_LENGTH as usize],
            after_return: false,
        }
    }

    /// Takes a byte; whether the line ends with it.
    fn take(&mut self, byte: u8) -> bool {
        if self.after_return && byte == b'\n' {
            self.length -= 1;
            return true;
        }
        self.after_return = byte == b'\r';
        let place = usize::try_from(self.length).ok();
        if let Some(place) = place.and_then(|place| self.text.get_mut(place)) {
            *place = byte;
        }
        self.length += 1;
        false
    }

    fn check(&self) -> Result<(), TooLarge> {
        let declares = matches!(
            self.kind,
            b'$' | b'*' | b'~' | b'>' | b'%' | b'|' | b'!' | b'='
        );
        // With a carriage return.
        if declares && self.length > MAX_LENGTH + 1 {
            return Err(TooLarge::Length);
        }
        if self.length > MAX_LINE {
            return Err(TooLarge::Line);
        }
        Ok(())
    }

    /// The number of a whole line, read as the redis crate reads it.
    fn number(&self) -> Option<i64> {
        let text = self.text.get(..usize::try_from(self.length).ok()?)?;
        str::from_utf8(text).ok()?.trim().parse().ok()
    }

    fn follows(&self) -> Follows {
        if matches!(self.kind, b'+' | b'-' | b':' | b'_' | b',' | b'#' | b'(') {
            return Follows::Nothing;
        }
        let Some(number) = self.number() else {
            return Follows::Unreadable;
        };
        let count = u64::try_from(number).ok();
        match (self.kind, count) {
            // Absent.
            (b'$' | b'*' | b'~' | b'>', None) => Follows::Nothing,
            (b'$' | b'!' | b'=', Some(count)) => Follows::Text(count),
            // The crate waits for as many bytes as there can be.
            (b'!' | b'=', None) => Follows::Text(u64::MAX),
            (b'*' | b'~' | b'>', Some(count)) => Follows::Values(count),
            (b'%', Some(count)) => Follows::Values(count.saturating_mul(2)),
            // And the value that the attributes belong to.
            (b'|', Some(count)) => Follows::Values(count.saturating_mul(2).saturating_add(1)),
            _ => Follows::Unreadable,
        }
    }
}

impl AnswerSize {
    /// Follows what has come. Bytes of an error that are not ASCII become question marks: Redis repeats the arguments of a
    /// command that it does not know, and the redis crate ends the connection at what is not UTF-8.
    ///
    /// # Errors
    /// An answer is larger than what is read.
    pub fn read(&mut self, bytes: &mut [u8]) -> Result<(), TooLarge> {
        let (mut place, end) = (0, bytes.len());
        while let Some(first) = bytes.get_mut(place) {
            match &mut self.part {
                Part::Text(left) => {
                    let here = usize::try_from(*left).unwrap_or(usize::MAX);
                    let here = here.min(end - place);
                    *left = left.saturating_sub(u64::try_from(here).unwrap_or(u64::MAX));
                    place += here;
                    if *left == 0 {
                        self.end_value();
                    }
                    continue;
                }
                Part::Start => {
                    self.part = Part::Line(Line::new(*first));
                    self.missing = self.missing.max(1);
                }
                Part::Line(line) => {
                    if line.kind == b'-' && !first.is_ascii() {
                        *first = b'?';
                    }
                    if line.take(*first) {
                        let follows = line.follows();
                        self.end_line(follows)?;
                    } else {
                        line.check()?;
                    }
                }
                Part::Unreadable => {}
            }
            self.add_bytes(u64::from(self.missing > 0))?;
            place += 1;
        }
        Ok(())
    }

    /// Whether every answer that has begun has ended.
    pub const fn is_between(&self) -> bool {
        self.missing == 0
    }

    /// Whether what has come is not RESP.
    #[cfg(test)]
    const fn is_unreadable(&self) -> bool {
        matches!(self.part, Part::Unreadable)
    }

    fn end_line(&mut self, follows: Follows) -> Result<(), TooLarge> {
        match follows {
            Follows::Unreadable => self.part = Part::Unreadable,
            Follows::Nothing => self.end_value(),
            Follows::Text(length) => {
                let length = length.saturating_add(2);
                self.part = Part::Text(length);
                self.add_bytes(length)?;
            }
            Follows::Values(count) => {
                self.missing = self.missing.saturating_add(count);
                let values = self.values.saturating_add(self.missing);
                if values > MAX_VALUES {
                    return Err(TooLarge::Values(values));
                }
                self.end_value();
            }
        }
        Ok(())
    }

    fn end_value(&mut self) {
        self.part = Part::Start;
        self.missing = self.missing.saturating_sub(1);
        self.values += 1;
        if self.missing == 0 {
            (self.bytes, self.values) = (0, 0);
        }
    }

    fn add_bytes(&mut self, bytes: u64) -> Result<(), TooLarge> {
        self.bytes = self.bytes.saturating_add(bytes);
        match self.bytes {
            0..=MAX_BYTES => Ok(()),
            bytes => Err(TooLarge::Bytes(bytes)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(size: &mut AnswerSize, bytes: &[u8]) -> Result<(), TooLarge> {
        size.read(&mut bytes.to_vec())
    }

    /// The redis crate ends the connection at an error that is not UTF-8, and Redis repeats what it was sent.
    #[test]
    fn an_error_has_no_bytes_that_the_redis_crate_cannot_read_and_a_string_keeps_them() {
        let mut answers = b"-ERR unknown 'X', with '\x80\xff'\r\n$2\r\n\x80\xff\r\n".to_vec();
        AnswerSize::default().read(&mut answers).unwrap();
        let expected = b"-ERR unknown 'X', with '??'\r\n$2\r\n\x80\xff\r\n";
        assert_eq!(answers, expected);
    }

    /// The offsets at which an answer ends, and what ended the reading.
    fn ends(bytes: &[u8]) -> (Vec<usize>, Result<(), TooLarge>) {
        let (mut size, mut ends) = (AnswerSize::default(), Vec::new());
        for (index, byte) in bytes.iter().enumerate() {
            if let Err(error) = read(&mut size, &[*byte]) {
                return (ends, Err(error));
            }
            if size.is_between() {
                ends.push(index + 1);
            }
        }
        let mut at_once = AnswerSize::default();
        assert_eq!(read(&mut at_once, bytes), Ok(()));
        assert_eq!(at_once, size, "in one piece");
        (ends, Ok(()))
    }

    #[test]
    fn every_kind_of_answer_ends_where_the_redis_crate_ends_it() {
        // A new line for each `/`.
        let answers = "+OK/ -ERR:no/ :1/ $-1/ $0// $4//// *-1/ *0/ *2/*1/:1/$1/a/ _/ ,1.5/ #t/ (12/ !3/ERR/ =5/txt:a/
            %1/+k/*1/:1/ ~1/:1/ |1/+a/+b/:1/ >2/+push/:1/";
        let answers = answers
            .split_whitespace()
            .map(|answer| answer.replace('/', "\r\n"));
        for answer in answers.chain(["+a\rb\r\n".to_owned(), "* 1 \r\n:1\r\n".to_owned()]) {
            let two = answer.repeat(2);
            let length = answer.len();
            assert_eq!(ends(two.as_bytes()), (vec![length, 2 * length], Ok(())));
            redis::parse_redis_value(answer.as_bytes()).unwrap();
            let cut = redis::parse_redis_value(&answer.as_bytes()[..length - 1]);
            assert!(cut.is_err(), "{answer:?}");
        }
    }

    #[test]
    fn what_an_answer_declares_counts_before_it_comes() {
        let of = |text: &str| ends(text.as_bytes());
        let (_, result) = of("+OK\r\n$400000000\r\n");
        assert!(matches!(result, Err(TooLarge::Bytes(400_000_002..))));
        let (whole, result) = of("+OK\r\n*2000000000\r\n");
        assert_eq!(whole, [5]);
        assert_eq!(result, Err(TooLarge::Values(2_000_000_001)));
        for text in ["%9223372036854775807\r\n", "|9223372036854775807\r\n"] {
            assert!(matches!(of(text).1, Err(TooLarge::Values(_))), "{text}");
        }
        assert!(matches!(of("!-1\r\n").1, Err(TooLarge::Bytes(u64::MAX))));
    }

    #[test]
    fn many_small_parts_count_together_and_each_answer_alone() {
        let mut size = AnswerSize::default();
        let of = |length: u64| {
            let length = usize::try_from(length).unwrap();
            format!("${length}\r\n{}\r\n", "x".repeat(length))
        };
        let half = of(MAX_BYTES / 2 + 1);
        for _ in 0..3 {
            read(&mut size, half.as_bytes()).unwrap();
        }
        read(&mut size, b"*2\r\n").unwrap();
        read(&mut size, half.as_bytes()).unwrap();
        let result = read(&mut size, half.as_bytes());
        assert!(matches!(result, Err(TooLarge::Bytes(_))));
        // Arrays in arrays: few in each.
        let mut size = AnswerSize::default();
        read(&mut size, b"*500000\r\n").unwrap();
        let result = (0..30_000).try_for_each(|_| read(&mut size, b"*1\r\n:1\r\n"));
        assert!(matches!(result, Err(TooLarge::Values(_))), "{result:?}");
        let mut size = AnswerSize::default();
        let line = vec![b'+'; usize::try_from(MAX_LINE).unwrap() + 2];
        assert_eq!(read(&mut size, &line), Err(TooLarge::Line));
    }

    /// The redis crate reads any number of zeros and blanks before a number.
    #[test]
    fn a_length_is_counted_however_it_is_written() {
        let of = |zeros: usize| ends(format!("*{}5000000\r\n", "0".repeat(zeros)).as_bytes()).1;
        assert_eq!(of(25), Err(TooLarge::Values(5_000_001)));
        assert_eq!(of(26), Err(TooLarge::Length));
        for kind in ["$", "*", "~", ">", "%", "|", "!", "="] {
            let text = format!("{kind}{}", " ".repeat(34));
            assert_eq!(ends(text.as_bytes()).1, Err(TooLarge::Length), "{kind}");
        }
    }

    #[test]
    fn what_is_not_resp_counts_until_it_is_too_much() {
        let mut size = AnswerSize::default();
        read(&mut size, b"HTTP/1.1 400 Bad Request\r\n").unwrap();
        assert!(size.is_unreadable());
        let much = vec![b'x'; usize::try_from(MAX_BYTES).unwrap()];
        assert!(matches!(read(&mut size, &much), Err(TooLarge::Bytes(_))));
    }
}
