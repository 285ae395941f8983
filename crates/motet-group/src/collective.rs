//! Collective operations on a circuit. All members call the same ones in the same order.
//!
//! | operation | algorithm |
//! | --- | --- |
//! | barrier | recursive doubling; dissemination if the number of members is no power of two |
//! | broadcast, reduce | binomial tree |
//! | all-reduce | recursive doubling; reduce and broadcast if it is none |
//! | gather | each to the root |
//!
//! Values are combined in the order of ranks, so a result depends on the number of members only.

use crate::circuit::{Circuit, Kind};
use crate::error::Error;

/// Rounds of one collective operation have numbers of their own.
const ROUND_BITS: u32 = 6;

/// A number that collective operations combine.
pub trait Element: Copy + sealed::Bytes {}

mod sealed {
    /// Numbers as little-endian bytes.
    pub trait Bytes: Sized {
        /// Its length in bytes.
        const LENGTH: usize;
        fn put(self, into: &mut [u8]);
        fn get(from: &[u8]) -> Self;
    }
}

macro_rules! elements {
    ($($type:ty),*) => {$(
        impl Element for $type {}
        impl sealed::Bytes for $type {
            const LENGTH: usize = size_of::<$type>();
            fn put(self, into: &mut [u8]) {
                into.copy_from_slice(&self.to_le_bytes());
            }
            fn get(from: &[u8]) -> Self {
                let mut bytes = [0; size_of::<$type>()];
                bytes.copy_from_slice(from);
                Self::from_le_bytes(bytes)
            }
        }
    )*};
}
elements!(u8, u16, u32, u64, i8, i16, i32, i64, f32, f64);

/// Operations for reductions.
pub mod op {
    /// The sum.
    pub fn sum<T: std::ops::Add<Output = T>>(a: T, b: T) -> T {
        a + b
    }

    /// The product.
    pub fn product<T: std::ops::Mul<Output = T>>(a: T, b: T) -> T {
        a * b
    }

    /// The smaller one; of values that do not compare the first.
    pub fn min<T: PartialOrd>(a: T, b: T) -> T {
        if b < a { b } else { a }
    }

    /// The larger one; of values that do not compare the first.
    pub fn max<T: PartialOrd>(a: T, b: T) -> T {
        if b > a { b } else { a }
    }
}

fn to_bytes<T: Element>(values: &[T], bytes: &mut Vec<u8>) {
    bytes.resize(values.len() * T::LENGTH, 0);
    for (value, into) in values.iter().zip(bytes.chunks_exact_mut(T::LENGTH)) {
        value.put(into);
    }
}

fn from_bytes<T: Element>(bytes: &[u8]) -> impl Iterator<Item = T> {
    bytes.chunks_exact(T::LENGTH).map(T::get)
}

/// One collective operation under way.
struct Collective<'a> {
    circuit: &'a Circuit,
    number: u32,
}

impl Collective<'_> {
    fn tag(&self, round: u32) -> u32 {
        self.number << ROUND_BITS | round
    }

    fn send(&self, to: usize, round: u32, bytes: &[u8]) -> Result<(), Error> {
        let operation = self.circuit.start_send(to, self.tag(round), bytes)?;
        self.circuit.finish_send(to, operation)
    }

    /// Sends to one member and receives from one, which may be the same; as many bytes as `buffer` has.
    fn exchange(&self, (to, from): (usize, usize), round: u32, bytes: &[u8], buffer: &mut [u8]) -> Result<(), Error> {
        let operation = self.circuit.start_send(to, self.tag(round), bytes)?;
        let received = self.receive(from, round, buffer);
        let sent = self.circuit.finish_send(to, operation);
        received.and(sent)
    }

    fn check_length(&self, from: usize, theirs: usize, own: usize) -> Result<(), Error> {
        if theirs == own {
            return Ok(());
        }
        let rank = self.circuit.rank();
        Err(Error::Invalid(format!(
            "a collective operation with {theirs} bytes of rank {from}, and {own} of rank {rank}"
        )))
    }

    /// Receives exactly as many bytes as `buffer` has.
    fn receive(&self, from: usize, round: u32, buffer: &mut [u8]) -> Result<(), Error> {
        let (tag, limit) = (self.tag(round), self.circuit.left());
        let received = self.circuit.receive_as(Kind::Collective, Some(from), tag, buffer, limit)?;
        self.check_length(from, received.length, buffer.len())
    }

    /// Broadcasts along a binomial tree.
    fn broadcast(&self, root: usize, first_round: u32, bytes: &mut [u8]) -> Result<(), Error> {
        let size = self.circuit.size();
        let own = (self.circuit.rank() + size - root) % size; // relative to the root
        let rank = |relative: usize| (relative + root) % size;
        let mut bit = 1;
        while bit < size && own & bit == 0 {
            bit <<= 1;
        }
        if own != 0 {
            self.receive(rank(own - bit), first_round, bytes)?;
        }
        while bit > 1 {
            bit >>= 1;
            if own + bit < size {
                self.send(rank(own + bit), first_round, bytes)?;
            }
        }
        Ok(())
    }

    /// Reduces to rank 0 along a binomial tree.
    fn reduce<T: Element>(&self, values: &mut [T], operation: fn(T, T) -> T) -> Result<(), Error> {
        let (own, size) = (self.circuit.rank(), self.circuit.size());
        let mut bytes = Vec::new();
        let mut bit = 1;
        while bit < size {
            if own & bit != 0 {
                to_bytes(values, &mut bytes);
                return self.send(own - bit, 0, &bytes);
            }
            if own + bit < size {
                bytes.resize(values.len() * T::LENGTH, 0);
                self.receive(own + bit, 0, &mut bytes)?;
                for (value, other) in values.iter_mut().zip(from_bytes(&bytes)) {
                    *value = operation(*value, other);
                }
            }
            bit <<= 1;
        }
        Ok(())
    }
}

impl Circuit {
    fn collective(&self) -> Collective<'_> {
        Collective { circuit: self, number: self.next_collective() }
    }

    fn check_root(&self, root: usize) -> Result<(), Error> {
        match root < self.size() {
            true => Ok(()),
            false => Err(Error::Invalid(format!("there is no rank {root}: the circuit has {}", self.size()))),
        }
    }

    /// Waits until all members have called this.
    pub fn barrier(&self) -> Result<(), Error> {
        let collective = self.collective();
        let (own, size) = (self.rank(), self.size());
        let in_pairs = size.is_power_of_two();
        let (mut distance, mut round) = (1, 0);
        while distance < size {
            let (to, from) = match in_pairs {
                true => (own ^ distance, own ^ distance),
                false => ((own + distance) % size, (own + size - distance) % size),
            };
            collective.exchange((to, from), round, &[], &mut [])?;
            (distance, round) = (distance * 2, round + 1);
        }
        Ok(())
    }

    /// Copies the root's bytes to all members, which give as many bytes.
    pub fn broadcast(&self, root: usize, bytes: &mut [u8]) -> Result<(), Error> {
        self.check_root(root)?;
        self.collective().broadcast(root, 0, bytes)
    }

    /// Collects the bytes of all members at the root, by rank; at the other members the result is empty. No member gives more than `max` bytes.
    pub fn gather(&self, root: usize, bytes: &[u8], max: usize) -> Result<Vec<Vec<u8>>, Error> {
        let mut all = Vec::new();
        let mut buffer = if self.rank() == root && self.size() > 1 { vec![0; max] } else { Vec::new() };
        self.gather_parts(root, bytes, max, |_, receive| {
            match receive {
                Some(receive) => {
                    let length = receive(&mut buffer)?;
                    all.push(buffer[..length].to_vec());
                }
                None => all.push(bytes.to_vec()),
            }
            Ok(())
        })?;
        Ok(all)
    }

    /// Collects the bytes of all members at the root: those of rank r in `all`, from r times `each`, and `lengths` gets how many. `each` is the same
    /// at all members; members that are not the root give no `all` and no `lengths`.
    pub fn gather_into(
        &self,
        root: usize,
        bytes: &[u8],
        each: usize,
        all: &mut [u8],
        lengths: &mut [usize],
    ) -> Result<(), Error> {
        let needed = each.checked_mul(self.size());
        if self.rank() == root && (needed.is_none_or(|needed| all.len() < needed) || lengths.len() < self.size()) {
            return Err(Error::Invalid(format!("the room is not that of {} members", self.size())));
        }
        self.gather_parts(root, bytes, each, |from, receive| {
            let part = &mut all[from * each..][..each];
            lengths[from] = match receive {
                Some(receive) => receive(part)?,
                None => {
                    part[..bytes.len()].copy_from_slice(bytes);
                    bytes.len()
                }
            };
            Ok(())
        })
    }

    /// Sends to the root; there `take` is called for each rank in order, with a function that receives its bytes, except for the root's own.
    fn gather_parts(
        &self,
        root: usize,
        bytes: &[u8],
        max: usize,
        mut take: impl FnMut(usize, Option<&dyn Fn(&mut [u8]) -> Result<usize, Error>>) -> Result<(), Error>,
    ) -> Result<(), Error> {
        self.check_root(root)?;
        let collective = self.collective();
        if bytes.len() > max {
            return Err(Error::Invalid(format!("{} bytes to gather, and at most {max} are allowed", bytes.len())));
        }
        if self.rank() != root {
            return collective.send(root, 0, bytes);
        }
        for from in 0..self.size() {
            let receive = |into: &mut [u8]| {
                let (tag, limit) = (collective.tag(0), self.left());
                let received = self.receive_as(Kind::Collective, Some(from), tag, into, limit)?;
                Ok(received.length)
            };
            take(from, if from == root { None } else { Some(&receive) })?;
        }
        Ok(())
    }

    /// Combines the values of all members; the root gets the result, the others' values are undefined then.
    pub fn reduce<T: Element>(&self, root: usize, values: &mut [T], operation: fn(T, T) -> T) -> Result<(), Error> {
        self.check_root(root)?;
        let collective = self.collective();
        collective.reduce(values, operation)?;
        if root == 0 {
            return Ok(());
        }
        let mut bytes = Vec::new();
        if self.rank() == 0 {
            to_bytes(values, &mut bytes);
            return collective.send(root, 1, &bytes);
        }
        if self.rank() == root {
            bytes.resize(size_of_val(values), 0);
            collective.receive(0, 1, &mut bytes)?;
            values.iter_mut().zip(from_bytes(&bytes)).for_each(|(value, other)| *value = other);
        }
        Ok(())
    }

    /// Combines the values of all members; all get the result.
    pub fn all_reduce<T: Element>(&self, values: &mut [T], operation: fn(T, T) -> T) -> Result<(), Error> {
        let collective = self.collective();
        let (own, size) = (self.rank(), self.size());
        let mut bytes = Vec::new();
        if !size.is_power_of_two() {
            collective.reduce(values, operation)?;
            to_bytes(values, &mut bytes);
            collective.broadcast(0, 1, &mut bytes)?;
            values.iter_mut().zip(from_bytes(&bytes)).for_each(|(value, other)| *value = other);
            return Ok(());
        }
        let (mut bit, mut round) = (1, 0);
        let mut sent = Vec::new();
        while bit < size {
            let partner = own ^ bit;
            to_bytes(values, &mut sent);
            bytes.resize(sent.len(), 0);
            collective.exchange((partner, partner), round, &sent, &mut bytes)?;
            for (value, other) in values.iter_mut().zip(from_bytes(&bytes)) {
                *value = if partner < own { operation(other, *value) } else { operation(*value, other) };
            }
            (bit, round) = (bit << 1, round + 1);
        }
        Ok(())
    }
}
