//! The bytes of an input, taken apart into choices and values.

/// Takes values from the front of an input. When it is used up everything is zero.
#[derive(Debug)]
pub struct Input<'a> {
    rest: &'a [u8],
}

impl<'a> Input<'a> {
    /// All of `bytes`.
    pub fn new(bytes: &'a [u8]) -> Self {
        Self { rest: bytes }
    }

    /// Whether nothing is left.
    pub fn is_over(&self) -> bool {
        self.rest.is_empty()
    }

    /// Up to `len` bytes.
    pub fn bytes(&mut self, len: usize) -> &'a [u8] {
        let (taken, rest) = self.rest.split_at(len.min(self.rest.len()));
        self.rest = rest;
        taken
    }

    /// What is left.
    pub fn rest(&mut self) -> &'a [u8] {
        std::mem::take(&mut self.rest)
    }

    fn array<const N: usize>(&mut self) -> [u8; N] {
        let mut array = [0; N];
        let taken = self.bytes(N);
        array[..taken.len()].copy_from_slice(taken);
        array
    }

    /// One byte.
    pub fn byte(&mut self) -> u8 {
        self.array::<1>()[0]
    }

    /// Two bytes.
    pub fn u16(&mut self) -> u16 {
        u16::from_le_bytes(self.array())
    }

    /// Eight bytes.
    pub fn u64(&mut self) -> u64 {
        u64::from_le_bytes(self.array())
    }

    /// A number below `limit`, 0 if that is 0.
    pub fn below(&mut self, limit: usize) -> usize {
        let number = if limit <= 256 {
            usize::from(self.byte())
        } else {
            usize::from(self.u16()) | usize::from(self.byte()) << 16
        };
        number % limit.max(1)
    }

    /// One of `all`.
    pub fn pick<T: Copy>(&mut self, all: &[T]) -> T {
        all[self.below(all.len())]
    }

    /// A word made from what stands there now. Words that are nearly right do more harm than random
    /// ones, so most are that.
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
