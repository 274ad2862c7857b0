//! Splits the bytes of a fuzz input into choices and values.

/// Takes values from the front of an input. Once the input is used up, every value is zero.
#[derive(Debug)]
pub struct Input<'a> {
    rest: &'a [u8],
}

impl<'a> Input<'a> {
    /// Creates an input of all of `bytes`.
    pub fn new(bytes: &'a [u8]) -> Self {
        Self { rest: bytes }
    }

    /// Returns whether the input is used up.
    pub fn is_over(&self) -> bool {
        self.rest.is_empty()
    }

    /// Takes `len` bytes, or all that are left if they are fewer.
    pub fn bytes(&mut self, len: usize) -> &'a [u8] {
        let (taken, rest) = self.rest.split_at(len.min(self.rest.len()));
        self.rest = rest;
        taken
    }

    /// Takes all bytes that are left.
    pub fn rest(&mut self) -> &'a [u8] {
        std::mem::take(&mut self.rest)
    }

    fn array<const N: usize>(&mut self) -> [u8; N] {
        let mut array = [0; N];
        let taken = self.bytes(N);
        array[..taken.len()].copy_from_slice(taken);
        array
    }

    /// Takes one byte.
    pub fn byte(&mut self) -> u8 {
        self.array::<1>()[0]
    }

    /// Takes two bytes, little-endian.
    pub fn u16(&mut self) -> u16 {
        u16::from_le_bytes(self.array())
    }

    /// Takes eight bytes, little-endian.
    pub fn u64(&mut self) -> u64 {
        u64::from_le_bytes(self.array())
    }

    /// Takes a number below `limit`; 0 if `limit` is 0.
    pub fn below(&mut self, limit: usize) -> usize {
        let number = if limit <= 256 {
            usize::from(self.byte())
        } else {
            usize::from(self.u16()) | usize::from(self.byte()) << 16
        };
        number % limit.max(1)
    }

    /// Takes one of `all`.
    pub fn pick<T: Copy>(&mut self, all: &[T]) -> T {
        all[self.below(all.len())]
    }

    /// Takes a word to store in place of `now`. Words that are nearly valid find more faults than random ones, so
    /// most results are small changes of `now`.
    pub fn word(&mut self, now: u64) -> u64 {
        let kind = self.byte();
        let more = self.byte();
        let bits = u32::from(more) % 64;
        match kind % 12 {
            0 => more.into(),
            1 => now ^ 1 << bits,
            2 => now.wrapping_add(more.into()),
            3 => now.wrapping_sub(more.into()),
            4 => 1 << bits,
            5 => u64::MAX.wrapping_shr(bits),
            6 => now & !0xffff_ffff | u64::from(more),
            7 => now & 0xffff_ffff | u64::from(more) << 32,
            8 => now | 0xffff_ffff << (bits & 32),
            9 => now.rotate_left(bits),
            10 => 0,
            _ => self.u64(),
        }
    }
}
