//! Cases drawn from bytes: the same bytes always draw the same case, and when they run out the
//! smallest choices are made.

use serde_json::{Map, Value};

/// The bytes that are left.
#[derive(Clone, Debug)]
pub struct Draw<'a> {
    rest: &'a [u8],
}

impl<'a> Draw<'a> {
    /// Draws from these bytes.
    #[must_use]
    pub fn new(bytes: &'a [u8]) -> Self {
        Self { rest: bytes }
    }

    /// The bytes that were not drawn yet.
    #[must_use]
    pub fn rest(&self) -> &'a [u8] {
        self.rest
    }

    /// Whether there are no more.
    #[must_use]
    pub fn is_over(&self) -> bool {
        self.rest.is_empty()
    }

    /// A byte, or 0.
    pub fn byte(&mut self) -> u8 {
        let Some((first, rest)) = self.rest.split_first() else { return 0 };
        self.rest = rest;
        *first
    }

    /// A number below `bound`, which is not 0.
    pub fn below(&mut self, bound: usize) -> usize {
        usize::from(self.byte()) % bound.max(1)
    }

    /// One of several.
    ///
    /// # Panics
    /// If there are none.
    pub fn pick<'t, T>(&mut self, of: &'t [T]) -> &'t T {
        &of[self.below(of.len())]
    }

    /// Any whole number.
    pub fn number(&mut self) -> i64 {
        match self.below(4) {
            0 => 0,
            1 => i64::from(self.byte()),
            2 => -i64::from(self.byte()),
            _ => i64::from_be_bytes(std::array::from_fn(|_| self.byte())),
        }
    }

    /// A short text, now and then an odd one.
    pub fn text(&mut self) -> String {
        const ODD: [&str; 10] =
            ["", "a", "b", "x/y", "~0~1", "é", "\u{10ffff}", "\"\\\n", "0", "true"];
        match self.below(3) {
            0 | 1 => (*self.pick(&ODD)).to_owned(),
            _ => (0..self.below(5)).map(|_| char::from(self.byte() & 0x7f)).collect(),
        }
    }

    /// Any JSON value no deeper than `depth`, whose fields have these names or texts.
    pub fn value(&mut self, names: &[&str], depth: usize) -> Value {
        let kinds = if depth == 0 { 5 } else { 8 };
        match self.below(kinds) {
            0 => Value::Null,
            1 => Value::Bool(self.byte() & 1 == 1),
            2 => Value::from(self.number()),
            3 => Value::from(self.text()),
            4 => Value::from(*self.pick(names)),
            5 => (0..self.below(4)).map(|_| self.value(names, depth - 1)).collect(),
            _ => Value::Object(self.object(names, depth - 1)),
        }
    }

    /// An object whose fields are no deeper than `depth`.
    pub fn object(&mut self, names: &[&str], depth: usize) -> Map<String, Value> {
        let count = self.below(5);
        (0..count)
            .map(|_| {
                let odd = self.below(16) == 15;
                let name = if odd { self.text() } else { (*self.pick(names)).to_owned() };
                (name, self.value(names, depth))
            })
            .collect()
    }
}
