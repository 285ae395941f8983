//! The arithmetic of remote atomics.
//!
//! The operations and types that MPI and libfabric share ([`Operation`], [`Datatype`]), a request ([`Atomic`]) and its check
//! ([`Atomic::check`]), and the result: of one element as bits ([`Atomic::element`]), on memory that other threads or processes write
//! too ([`Atomic::apply_shared`]), or on private bytes ([`Atomic::apply`]). Only [`Atomic::apply_shared`] changes elements atomically.
//!
//! Values are little-endian. Integers wrap. A NaN is neither less than, greater than nor equal to anything. The comparisons are
//! libfabric's (fi_atomic(3)): the *given* value is on the left, the target's on the right.

use motet_wire::shared_memory::SharedBytes;

/// The operation on each element of the target.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub enum Operation {
    /// target + operand
    Sum = 0,
    /// target * operand
    Product = 1,
    /// The smaller of target and operand.
    Minimum = 2,
    /// The larger of target and operand.
    Maximum = 3,
    /// 1 if neither is 0, else 0.
    LogicalAnd = 4,
    /// 1 if at least one is not 0, else 0.
    LogicalOr = 5,
    /// 1 if exactly one is not 0, else 0.
    LogicalXor = 6,
    /// target & operand; integers only, like all operations on bits.
    BitAnd = 7,
    /// target | operand
    BitOr = 8,
    /// target ^ operand
    BitXor = 9,
    /// operand
    Replace = 10,
    /// target: nothing is changed, and there is no operand.
    Read = 11,
    /// operand if compare == target
    SwapEqual = 12,
    /// operand if compare != target
    SwapUnequal = 13,
    /// operand if compare <= target
    SwapLessOrEqual = 14,
    /// operand if compare < target
    SwapLess = 15,
    /// operand if compare >= target
    SwapGreaterOrEqual = 16,
    /// operand if compare > target
    SwapGreater = 17,
    /// The bits of the operand that are set in compare, the other bits of the target; integers only.
    SwapMasked = 18,
}

impl Operation {
    /// All operations, each at the index of its number.
    pub const ALL: [Operation; 19] = [
        Operation::Sum,
        Operation::Product,
        Operation::Minimum,
        Operation::Maximum,
        Operation::LogicalAnd,
        Operation::LogicalOr,
        Operation::LogicalXor,
        Operation::BitAnd,
        Operation::BitOr,
        Operation::BitXor,
        Operation::Replace,
        Operation::Read,
        Operation::SwapEqual,
        Operation::SwapUnequal,
        Operation::SwapLessOrEqual,
        Operation::SwapLess,
        Operation::SwapGreaterOrEqual,
        Operation::SwapGreater,
        Operation::SwapMasked,
    ];

    /// Whether the operation takes a value to compare with (or a mask) beside the operand.
    pub fn compares(self) -> bool {
        self as u8 >= Operation::SwapEqual as u8
    }

    /// Whether the operation is on bits, which floating-point types do not support.
    fn is_of_bits(self) -> bool {
        matches!(self, Operation::BitAnd | Operation::BitOr | Operation::BitXor | Operation::SwapMasked)
    }
}

/// The type of an element.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
#[allow(missing_docs)]
pub enum Datatype {
    I8 = 0,
    U8 = 1,
    I16 = 2,
    U16 = 3,
    I32 = 4,
    U32 = 5,
    I64 = 6,
    U64 = 7,
    F32 = 8,
    F64 = 9,
}

impl Datatype {
    /// All types, each at the index of its number.
    pub const ALL: [Datatype; 10] = [
        Datatype::I8,
        Datatype::U8,
        Datatype::I16,
        Datatype::U16,
        Datatype::I32,
        Datatype::U32,
        Datatype::I64,
        Datatype::U64,
        Datatype::F32,
        Datatype::F64,
    ];

    /// Bytes of an element.
    #[inline]
    pub fn size(self) -> usize {
        match self {
            Datatype::I8 | Datatype::U8 => 1,
            Datatype::I16 | Datatype::U16 => 2,
            Datatype::I32 | Datatype::U32 | Datatype::F32 => 4,
            Datatype::I64 | Datatype::U64 | Datatype::F64 => 8,
        }
    }

    fn is_integer(self) -> bool {
        !matches!(self, Datatype::F32 | Datatype::F64)
    }
}

/// A malformed atomic: a wrong length, an offset that is no multiple of the element's size, an operation on bits of a floating-point
/// type, or a read that fetches nothing.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct InvalidAtomic;

/// One operation on a row of elements.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Atomic<'a> {
    /// The operation.
    pub operation: Operation,
    /// The type of the elements.
    pub datatype: Datatype,
    /// Number of elements, at least one.
    pub count: u32,
    /// A value for each element; empty for [`Operation::Read`].
    pub operand: &'a [u8],
    /// A value to compare with for each element, for operations that compare; else empty.
    pub compare: &'a [u8],
}

impl Atomic<'_> {
    /// Bytes of the target.
    pub fn length(&self) -> usize {
        self.count as usize * self.datatype.size()
    }

    /// Checks the atomic for offset `at` of a target that begins at a multiple of every element size. `fetch`: the previous values
    /// are to be fetched.
    pub fn check(&self, at: u64, fetch: bool) -> Result<(), InvalidAtomic> {
        let (length, reads) = (self.length(), self.operation == Operation::Read);
        let operand = if reads { 0 } else { length };
        let compare = if self.operation.compares() { length } else { 0 };
        let fits = self.count > 0
            && (self.operand.len(), self.compare.len()) == (operand, compare)
            && at.is_multiple_of(self.datatype.size() as u64)
            && (self.datatype.is_integer() || !self.operation.is_of_bits())
            && (fetch || !reads);
        if fits { Ok(()) } else { Err(InvalidAtomic) }
    }

    /// The new bits of element `index` when its bits are `target`. Bits above the element's size are ignored, and zero in the
    /// result.
    #[inline]
    pub fn element(&self, index: usize, target: u64) -> u64 {
        let value = |bytes: &[u8]| bits(bytes, index, self.datatype.size());
        let (operand, compare) = (value(self.operand), value(self.compare));
        let operation = self.operation;
        match self.datatype {
            Datatype::I8 => one::<i8>(operation, target, operand, compare),
            Datatype::U8 => one::<u8>(operation, target, operand, compare),
            Datatype::I16 => one::<i16>(operation, target, operand, compare),
            Datatype::U16 => one::<u16>(operation, target, operand, compare),
            Datatype::I32 => one::<i32>(operation, target, operand, compare),
            Datatype::U32 => one::<u32>(operation, target, operand, compare),
            Datatype::I64 => one::<i64>(operation, target, operand, compare),
            Datatype::U64 => one::<u64>(operation, target, operand, compare),
            Datatype::F32 => one::<f32>(operation, target, operand, compare),
            Datatype::F64 => one::<f64>(operation, target, operand, compare),
        }
    }

    /// Applies the operation to bytes that nothing else writes. `result` receives the previous values, or is empty. Fails, and does
    /// nothing, when a length is wrong.
    pub fn apply(&self, target: &mut [u8], result: &mut [u8]) -> Result<(), InvalidAtomic> {
        self.check(0, !result.is_empty())?;
        if target.len() != self.length() || !(result.is_empty() || result.len() == target.len()) {
            return Err(InvalidAtomic);
        }
        if !result.is_empty() {
            result.copy_from_slice(target);
        }
        let size = self.datatype.size();
        for (index, element) in target.chunks_exact_mut(size).enumerate() {
            let new = self.element(index, bits(element, 0, size));
            element.copy_from_slice(&new.to_le_bytes()[..size]);
        }
        Ok(())
    }

    /// Applies the operation at `at` in memory that other threads or processes load, store and update, too: each element in one
    /// step, not all of them together. `result` receives the previous values, or is empty. Fails, and does nothing, where the
    /// target does not fit or is not aligned.
    pub fn apply_shared(&self, memory: &SharedBytes, at: usize, result: &mut [u8]) -> Result<(), InvalidAtomic> {
        self.check(memory.base().addr().wrapping_add(at) as u64, !result.is_empty())?;
        let (length, size) = (self.length(), self.datatype.size());
        let end = at.checked_add(length).filter(|&end| end <= memory.length());
        if end.is_none() || !(result.is_empty() || result.len() == length) {
            return Err(InvalidAtomic);
        }
        let adds = self.operation == Operation::Sum && self.datatype.is_integer();
        for index in 0..self.count as usize {
            let at = at + index * size;
            let old = match self.operation {
                Operation::Read => {
                    let mut value = [0; 8];
                    memory.read(at, &mut value[..size]).map(|()| u64::from_le_bytes(value))
                }
                _ if adds => memory.add(at, size, bits(self.operand, index, size)),
                _ => memory.update(at, size, |old| self.element(index, old)),
            };
            // Only the first element can fail: where memory does not begin at a multiple of the size.
            let old = old.map_err(|_| InvalidAtomic)?;
            if let Some(result) = result.get_mut(index * size..(index + 1) * size) {
                result.copy_from_slice(&old.to_le_bytes()[..size]);
            }
        }
        Ok(())
    }
}

/// The bits of an element of a row; 0 when there is none.
#[inline(always)]
pub fn bits(row: &[u8], index: usize, size: usize) -> u64 {
    let mut word = [0; 8];
    if let Some(bytes) = row.get(index * size..(index + 1) * size) {
        word[..size].copy_from_slice(bytes);
    }
    u64::from_le_bytes(word)
}

#[inline(always)]
fn one<T: Element>(operation: Operation, target: u64, operand: u64, compare: u64) -> u64 {
    let (old, new, given) = (T::from_bits(target), T::from_bits(operand), T::from_bits(compare));
    let truth = |truth: bool| if truth { T::ONE } else { T::ZERO };
    let swap = |swap: bool| if swap { new } else { old };
    let (was, is) = (old != T::ZERO, new != T::ZERO);
    let value = match operation {
        Operation::Sum => old.sum(new),
        Operation::Product => old.product(new),
        Operation::Minimum => swap(new < old),
        Operation::Maximum => swap(new > old),
        Operation::LogicalAnd => truth(was && is),
        Operation::LogicalOr => truth(was || is),
        Operation::LogicalXor => truth(was != is),
        Operation::BitAnd => T::from_bits(target & operand),
        Operation::BitOr => T::from_bits(target | operand),
        Operation::BitXor => T::from_bits(target ^ operand),
        Operation::Replace => new,
        Operation::Read => old,
        Operation::SwapEqual => swap(given == old),
        Operation::SwapUnequal => swap(given != old),
        Operation::SwapLessOrEqual => swap(given <= old),
        Operation::SwapLess => swap(given < old),
        Operation::SwapGreaterOrEqual => swap(given >= old),
        Operation::SwapGreater => swap(given > old),
        Operation::SwapMasked => T::from_bits(operand & compare | target & !compare),
    };
    value.bits()
}

/// What the operations need of a type.
trait Element: Copy + PartialOrd {
    const ZERO: Self;
    const ONE: Self;
    fn from_bits(bits: u64) -> Self;
    fn bits(self) -> u64;
    fn sum(self, other: Self) -> Self;
    fn product(self, other: Self) -> Self;
}

macro_rules! integers {
    ($($name:ty, $unsigned:ty;)*) => { $(
        impl Element for $name {
            const ZERO: Self = 0;
            const ONE: Self = 1;
            #[inline(always)]
            fn from_bits(bits: u64) -> Self {
                bits as Self
            }
            #[inline(always)]
            fn bits(self) -> u64 {
                self as $unsigned as u64
            }
            #[inline(always)]
            fn sum(self, other: Self) -> Self {
                self.wrapping_add(other)
            }
            #[inline(always)]
            fn product(self, other: Self) -> Self {
                self.wrapping_mul(other)
            }
        }
    )* };
}

integers! { i8, u8; u8, u8; i16, u16; u16, u16; i32, u32; u32, u32; i64, u64; u64, u64; }

macro_rules! fractions {
    ($($name:ty, $bits:ty;)*) => { $(
        impl Element for $name {
            const ZERO: Self = 0.0;
            const ONE: Self = 1.0;
            #[inline(always)]
            fn from_bits(bits: u64) -> Self {
                <$name>::from_bits(bits as $bits)
            }
            #[inline(always)]
            fn bits(self) -> u64 {
                self.to_bits() as u64
            }
            #[inline(always)]
            fn sum(self, other: Self) -> Self {
                self + other
            }
            #[inline(always)]
            fn product(self, other: Self) -> Self {
                self * other
            }
        }
    )* };
}

fractions! { f32, u32; f64, u64; }

#[cfg(test)]
mod tests;
