//! Buffers: the data of a request, put by the sender and got by the receiver in the same order.
//!
//! What it is: numbers, arrays, text and blocks one after the other, without marks of their types, in the sender's format. What it is not: it
//! describes nothing, so both sides have to agree on the order.
//!
//! | item | bytes |
//! | --- | --- |
//! | number | 1, 2, 4 or 8; a `long` as many as the sender's C has |
//! | array, block, text | a count of elements (8 bytes), and the elements |

use crate::format::{Format, Malformed};
use std::ops::Range;

/// A type of numbers.
pub trait Element: Copy + Default + sealed::Number {
    /// Bytes of a number.
    const SIZE: usize;

    /// Appends numbers in this machine's format.
    fn append(numbers: &[Self], to: &mut Vec<u8>);

    /// Reads as many numbers as `into` holds, from as many bytes; swaps them if `swap`.
    fn read(bytes: &[u8], swap: bool, into: &mut [Self]);
}

mod sealed {
    pub trait Number {}
}

macro_rules! elements {
    ($($type:ident, $bits:ident, $of_bits:expr;)*) => {$(
        impl sealed::Number for $type {}

        impl Element for $type {
            const SIZE: usize = size_of::<$type>();

            #[inline]
            fn append(numbers: &[Self], to: &mut Vec<u8>) {
                to.reserve(size_of_val(numbers));
                for number in numbers {
                    to.extend_from_slice(&number.to_ne_bytes());
                }
            }

            #[inline]
            fn read(bytes: &[u8], swap: bool, into: &mut [Self]) {
                let (chunks, _) = bytes.as_chunks::<{ size_of::<$type>() }>();
                if swap {
                    for (number, chunk) in into.iter_mut().zip(chunks) {
                        *number = $of_bits($bits::from_ne_bytes(*chunk).swap_bytes());
                    }
                } else {
                    for (number, chunk) in into.iter_mut().zip(chunks) {
                        *number = $type::from_ne_bytes(*chunk);
                    }
                }
            }
        }
    )*};
}

elements! {
    u8, u8, |bits| bits;
    i8, i8, |bits| bits;
    u16, u16, |bits| bits;
    i16, i16, |bits| bits;
    u32, u32, |bits| bits;
    i32, i32, |bits| bits;
    u64, u64, |bits| bits;
    i64, i64, |bits| bits;
    f32, u32, f32::from_bits;
    f64, u64, f64::from_bits;
}

/// The data of a request that will be sent. Blocks are borrowed: they go from the program's memory to the receiver without a copy here.
#[derive(Debug, Clone, Default)]
pub struct Buffer<'a> {
    /// What was put by value.
    own: Vec<u8>,
    /// All pieces in order, but for what follows the last block in `own`.
    pieces: Vec<Piece<'a>>,
    /// From where on `own` is in no piece.
    open: usize,
    /// Bytes of all borrowed blocks.
    borrowed: usize,
}

#[derive(Debug, Clone)]
enum Piece<'a> {
    Own(Range<usize>),
    Borrowed(&'a [u8]),
}

impl<'a> Buffer<'a> {
    /// An empty buffer.
    pub fn new() -> Self {
        Self::default()
    }

    /// Bytes.
    pub fn len(&self) -> usize {
        self.own.len() + self.borrowed
    }

    /// Whether nothing was put.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Puts a number.
    #[inline]
    pub fn put<T: Element>(&mut self, number: T) -> &mut Self {
        T::append(&[number], &mut self.own);
        self
    }

    /// Puts a truth value.
    pub fn put_bool(&mut self, value: bool) -> &mut Self {
        self.put(u8::from(value))
    }

    /// Puts a number as C's `long` of this machine. The receiver gets it whatever the size of its own; a number that this machine's `long` cannot
    /// hold is cut as C does.
    pub fn put_long(&mut self, number: i64) -> &mut Self {
        if Format::HERE.long == 4 { self.put(number as i32) } else { self.put(number) }
    }

    /// Puts an array, by a copy: for short ones. [`Buffer::put_block`] takes long ones without.
    pub fn put_array<T: Element>(&mut self, numbers: &[T]) -> &mut Self {
        self.put(numbers.len() as u64);
        T::append(numbers, &mut self.own);
        self
    }

    /// Puts text.
    pub fn put_str(&mut self, text: &str) -> &mut Self {
        self.put_array(text.as_bytes())
    }

    /// Puts a block of bytes that stays where it is until the request is sent.
    pub fn put_block(&mut self, bytes: &'a [u8]) -> &mut Self {
        self.put(bytes.len() as u64);
        self.borrow(bytes)
    }

    /// Puts bytes as they are, without their count: numbers in this machine's format, of whatever types the receiver gets.
    pub fn put_raw(&mut self, bytes: &[u8]) -> &mut Self {
        self.own.extend_from_slice(bytes);
        self
    }

    /// Puts bytes that stay where they are, without their count; otherwise as [`Buffer::put_raw`].
    pub fn borrow(&mut self, bytes: &'a [u8]) -> &mut Self {
        if self.open < self.own.len() {
            self.pieces.push(Piece::Own(self.open..self.own.len()));
            self.open = self.own.len();
        }
        self.pieces.push(Piece::Borrowed(bytes));
        self.borrowed += bytes.len();
        self
    }

    /// Empties it; its memory is used again.
    pub fn clear(&mut self) {
        self.own.clear();
        self.pieces.clear();
        (self.open, self.borrowed) = (0, 0);
    }

    /// Hands its pieces to `with`, after `before`.
    #[inline]
    pub fn with_pieces<R>(&self, before: &[u8], with: impl FnOnce(&[&[u8]]) -> R) -> R {
        if self.pieces.is_empty() {
            return if self.own.is_empty() { with(&[before]) } else { with(&[before, &self.own]) };
        }
        let mut all: Vec<&[u8]> = Vec::with_capacity(self.pieces.len() + 2);
        all.push(before);
        all.extend(self.pieces.iter().map(|piece| match piece {
            Piece::Own(range) => &self.own[range.clone()],
            Piece::Borrowed(bytes) => *bytes,
        }));
        all.push(&self.own[self.open..]);
        all.retain(|piece| !piece.is_empty());
        with(&all)
    }

    /// Writes all bytes to `into`, which has as many.
    #[inline]
    pub(crate) fn copy_to(&self, into: &mut [u8]) {
        let mut rest = into;
        let mut put = |bytes: &[u8]| {
            let (here, after) = std::mem::take(&mut rest).split_at_mut(bytes.len());
            here.copy_from_slice(bytes);
            rest = after;
        };
        for piece in &self.pieces {
            match piece {
                Piece::Own(range) => put(&self.own[range.clone()]),
                Piece::Borrowed(bytes) => put(bytes),
            }
        }
        put(&self.own[self.open..]);
    }

    /// All bytes, as they are sent.
    pub fn to_vec(&self) -> Vec<u8> {
        self.with_pieces(&[], |pieces| pieces.concat())
    }
}

/// Gets the data of a request. Each call fails where the data end, or are not what is asked for; it then takes nothing.
#[derive(Debug, Clone)]
pub struct Reader<'a> {
    rest: &'a [u8],
    format: Format,
}

/// The data end before the item.
const ENDS: Malformed = Malformed("the data end too early");

impl<'a> Reader<'a> {
    /// Reads these bytes, which are in this format.
    pub fn new(bytes: &'a [u8], format: Format) -> Self {
        Self { rest: bytes, format }
    }

    /// Bytes that are left.
    pub fn remaining(&self) -> usize {
        self.rest.len()
    }

    /// The sender's format.
    pub fn format(&self) -> Format {
        self.format
    }

    /// Gets a number.
    #[inline]
    pub fn get<T: Element>(&mut self) -> Result<T, Malformed> {
        let (bytes, rest) = self.rest.split_at_checked(T::SIZE).ok_or(ENDS)?;
        let mut number = [T::default()];
        T::read(bytes, self.format.is_foreign(), &mut number);
        self.rest = rest;
        Ok(number[0])
    }

    /// Gets a truth value.
    pub fn get_bool(&mut self) -> Result<bool, Malformed> {
        match self.rest.first() {
            Some(0 | 1) => self.get::<u8>().map(|value| value == 1),
            Some(_) => Err(Malformed("no truth value")),
            None => Err(ENDS),
        }
    }

    /// Gets a C `long` of the sender.
    pub fn get_long(&mut self) -> Result<i64, Malformed> {
        if self.format.long == 4 { self.get::<i32>().map(i64::from) } else { self.get() }
    }

    /// The elements of the next array, as bytes, and what follows.
    fn split_array(&self, size: usize) -> Result<(&'a [u8], &'a [u8]), Malformed> {
        let mut after = self.clone();
        let count = usize::try_from(after.get::<u64>()?).map_err(|_| ENDS)?;
        let bytes = count.checked_mul(size).ok_or(ENDS)?;
        after.rest.split_at_checked(bytes).ok_or(ENDS)
    }

    /// Gets an array. Its memory is bounded by the data that are there.
    pub fn get_array<T: Element>(&mut self) -> Result<Vec<T>, Malformed> {
        let (bytes, rest) = self.split_array(T::SIZE)?;
        let mut numbers = vec![T::default(); bytes.len() / T::SIZE];
        T::read(bytes, self.format.is_foreign(), &mut numbers);
        self.rest = rest;
        Ok(numbers)
    }

    /// Gets an array into `numbers`, which it has to fill.
    pub fn get_array_into<T: Element>(&mut self, numbers: &mut [T]) -> Result<(), Malformed> {
        let (bytes, rest) = self.split_array(T::SIZE)?;
        if bytes.len() != size_of_val(numbers) {
            return Err(Malformed("an array of another length"));
        }
        T::read(bytes, self.format.is_foreign(), numbers);
        self.rest = rest;
        Ok(())
    }

    /// Gets a block of bytes, where they are.
    pub fn get_block(&mut self) -> Result<&'a [u8], Malformed> {
        let (bytes, rest) = self.split_array(1)?;
        self.rest = rest;
        Ok(bytes)
    }

    /// Gets text.
    pub fn get_str(&mut self) -> Result<&'a str, Malformed> {
        let (bytes, rest) = self.split_array(1)?;
        let text = std::str::from_utf8(bytes).map_err(|_| Malformed("text that is not UTF-8"))?;
        self.rest = rest;
        Ok(text)
    }

    /// Fails if anything is left.
    pub fn end(&self) -> Result<(), Malformed> {
        if self.rest.is_empty() { Ok(()) } else { Err(Malformed("more data than expected")) }
    }
}
