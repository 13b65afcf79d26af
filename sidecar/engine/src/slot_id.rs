//! The names of slots. A name says all that a store needs to renew or free them.

/// Names slots that are taken together: it renews and frees them. Nobody can guess one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct SlotId(pub [u8; 24]);

/// Most slots that one id can name.
pub const MAX_SLOTS: u64 = 64;

impl SlotId {
    /// So many slots, 1 to [`MAX_SLOTS`], taken by `by` at this time of its clock, which last so many microseconds.
    #[must_use]
    pub fn new(units: u64, at_us: u64, by: u32, lasts_us: u64, secret: u128) -> Self {
        let first = units << 56 | at_us & (u64::MAX >> 8);
        let lasts_s = lasts_us / 1_000_000;
        let second = u64::from(by) << 32 | (lasts_s & 0xff_ffff) << 8 | (secret as u64 & 0xff);
        let third = (secret >> 64) as u64;
        let mut id = [0; 24];
        let parts = [first, second, third].map(u64::to_be_bytes);
        id.iter_mut()
            .zip(parts.as_flattened())
            .for_each(|(to, from)| *to = *from);
        Self(id)
    }

    fn part(self, number: usize) -> u64 {
        let bytes = self.0.iter().skip(8 * number).take(8);
        bytes.fold(0, |part, byte| part << 8 | u64::from(*byte))
    }

    /// How many slots it names.
    #[must_use]
    pub fn units(self) -> u64 {
        self.part(0) >> 56
    }

    /// When they were taken.
    #[must_use]
    pub fn at_us(self) -> u64 {
        self.part(0) & (u64::MAX >> 8)
    }

    /// Who took them.
    #[must_use]
    pub fn by(self) -> u32 {
        (self.part(1) >> 32) as u32
    }

    /// How long they last after a renewal, as it was when they were taken, in microseconds.
    #[must_use]
    pub fn lasts_us(self) -> u64 {
        (self.part(1) >> 8 & 0xff_ffff) * 1_000_000
    }
}
