//! Choices out of a fuzzer's bytes. Any input is a whole story: where it ends every further choice is the first one, so cutting an
//! input makes the story simpler, which is what a fuzzer's minimiser does.

/// Takes choices off the front of an input.
#[derive(Clone, Debug)]
pub struct Reader<'a>(&'a [u8]);

impl<'a> Reader<'a> {
    /// From the first byte on.
    pub fn new(bytes: &'a [u8]) -> Self {
        Self(bytes)
    }
    /// Nothing is left.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
    /// One byte.
    pub fn byte(&mut self) -> u8 {
        let Some((first, rest)) = self.0.split_first() else { return 0 };
        self.0 = rest;
        *first
    }
    /// One of two.
    pub fn flag(&mut self) -> bool {
        self.byte() & 1 == 1
    }
    /// A number below `n`; 0 if there is none. Two bytes where one is not enough, four where two are not.
    pub fn below(&mut self, n: usize) -> usize {
        let wide = match n {
            0..=0x100 => 1,
            0x101..=0x1_0000 => 2,
            _ => 4,
        };
        usize::try_from(self.wide(wide)).unwrap_or(0).checked_rem(n).unwrap_or(0)
    }
    /// One of these.
    pub fn one<T: Copy>(&mut self, of: &[T]) -> Option<T> {
        let at = self.below(of.len());
        of.get(at).copied()
    }
    /// Any number; short ones take few bytes.
    pub fn number(&mut self) -> u64 {
        let width = self.below(9);
        self.wide(width)
    }
    /// Up to 255 bytes.
    pub fn bytes(&mut self) -> &'a [u8] {
        let n = usize::from(self.byte()).min(self.0.len());
        let (taken, rest) = self.0.split_at(n);
        self.0 = rest;
        taken
    }
    /// Up to 255 bytes as text; what is none becomes the replacement character.
    pub fn text(&mut self) -> String {
        String::from_utf8_lossy(self.bytes()).into_owned()
    }
    /// All that is left.
    pub fn rest(&mut self) -> &'a [u8] {
        std::mem::take(&mut self.0)
    }
    fn wide(&mut self, bytes: usize) -> u64 {
        (0..bytes).fold(0, |n, _| n << 8 | u64::from(self.byte()))
    }
}
