//! The simulator's only source of chance: a small generator (`SplitMix64`) that gives the same numbers for the same
//! seed on every machine. It is no source of secrets.

#[derive(Clone, Debug)]
pub(crate) struct Rng(u64);

impl Rng {
    pub(crate) const fn new(seed: u64) -> Self {
        Self(seed ^ 0x5bf0_3635_d1c2_a94b)
    }

    pub(crate) const fn draw(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    /// A number below `n`, which is not 0.
    pub(crate) const fn below(&mut self, n: u64) -> u64 {
        self.draw() % n
    }

    /// A number from `low` to `high`, both included.
    pub(crate) const fn between(&mut self, low: u64, high: u64) -> u64 {
        low + self.below(high - low + 1)
    }

    pub(crate) const fn percent(&mut self, share: u64) -> bool {
        self.below(100) < share
    }

    /// True once in so many times; never for 0.
    pub(crate) const fn once_in(&mut self, times: u64) -> bool {
        times != 0 && self.below(times) == 0
    }

    pub(crate) fn pick<T: Copy>(&mut self, list: &[T]) -> T {
        list[usize::try_from(self.below(list.len() as u64)).unwrap_or(0)]
    }

    pub(crate) fn index(&mut self, length: usize) -> usize {
        usize::try_from(self.below(length as u64)).unwrap_or(0)
    }

    /// A generator of its own for somebody, so that what others draw does not change what it draws.
    pub(crate) const fn fork(&mut self) -> Self {
        Self(self.draw())
    }

    pub(crate) fn fill(&mut self, bytes: &mut [u8]) {
        for part in bytes.chunks_mut(8) {
            let drawn = self.draw().to_le_bytes();
            part.copy_from_slice(&drawn[..part.len()]);
        }
    }
}
