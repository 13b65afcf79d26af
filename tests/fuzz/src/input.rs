//! Numbers, texts and choices from the fuzzer's bytes, from the front. Where there are no more bytes, all is zero.
//!
//! Written here and not taken from a crate, so that the files of the corpus keep their meaning when crates change.

/// What is left of the bytes.
#[derive(Clone, Debug)]
pub struct Input<'a> {
    rest: &'a [u8],
}

impl<'a> Input<'a> {
    pub fn new(bytes: &'a [u8]) -> Self {
        Self { rest: bytes }
    }

    pub fn is_empty(&self) -> bool {
        self.rest.is_empty()
    }

    /// Everything that is left.
    pub fn rest(self) -> &'a [u8] {
        self.rest
    }

    /// At most so many bytes.
    pub fn take(&mut self, count: usize) -> &'a [u8] {
        let (taken, rest) = self.rest.split_at(count.min(self.rest.len()));
        self.rest = rest;
        taken
    }

    pub fn byte(&mut self) -> u8 {
        self.take(1).first().copied().unwrap_or(0)
    }

    pub fn flag(&mut self) -> bool {
        self.byte() & 1 == 1
    }

    /// A number below `bound`, which is at most 2^16 and not 0.
    pub fn below(&mut self, bound: usize) -> usize {
        let number = if bound <= 256 {
            usize::from(self.byte())
        } else {
            usize::from(self.byte()) << 8 | usize::from(self.byte())
        };
        number % bound
    }

    pub fn pick<T: Copy>(&mut self, from: &[T]) -> T {
        from[self.below(from.len())]
    }

    /// Any number; small ones and those at edges more often.
    pub fn number(&mut self) -> u64 {
        const EDGES: [u64; 8] = [
            0,
            1,
            1 << 31,
            (1 << 32) - 1,
            1 << 53,
            i64::MAX.unsigned_abs(),
            u64::MAX - 1,
            u64::MAX,
        ];
        match self.byte() % 8 {
            0..=2 => self.big_endian(1),
            3 => self.big_endian(2),
            4 => self.big_endian(3),
            5 => self.big_endian(4),
            6 => self.big_endian(8),
            _ => self.pick(&EDGES),
        }
    }

    /// A number from 0 to `most`.
    pub fn up_to(&mut self, most: u64) -> u64 {
        match self.number() {
            number if number <= most => number,
            number => number % most.saturating_add(1).max(1),
        }
    }

    /// A duration of some microseconds to minutes.
    pub fn microseconds(&mut self) -> u64 {
        match self.byte() % 4 {
            0 => self.big_endian(1),
            1 => self.big_endian(2),
            2 => self.big_endian(3),
            _ => self.big_endian(2) * 1_000,
        }
    }

    fn big_endian(&mut self, bytes: usize) -> u64 {
        let bytes = self.take(bytes).iter();
        bytes.fold(0, |number, byte| number << 8 | u64::from(*byte))
    }

    /// Fewer than 256 bytes, and at most so many.
    pub fn bytes(&mut self, most: usize) -> &'a [u8] {
        let count = usize::from(self.byte()) % (most + 1);
        self.take(count)
    }

    pub fn text(&mut self, most: usize) -> String {
        String::from_utf8_lossy(self.bytes(most)).into_owned()
    }

    /// Nothing, in half of all cases.
    pub fn maybe<T>(&mut self, read: impl FnOnce(&mut Self) -> T) -> Option<T> {
        self.flag().then(|| read(self))
    }

    /// Fewer than `bound` of them.
    pub fn list<T>(&mut self, bound: usize, mut read: impl FnMut(&mut Self) -> T) -> Vec<T> {
        (0..self.below(bound)).map(|_| read(self)).collect()
    }
}
