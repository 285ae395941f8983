//! Arrays of numbers that are sent from where they are.

use crate::buffer::{Buffer, Element};
use bytemuck::NoUninit;

impl<'a> Buffer<'a> {
    /// Puts an array that stays where it is until the request is sent. The receiver gets it as one that [`Buffer::put_array`] has put.
    pub fn put_array_in_place<T: Element + NoUninit>(&mut self, numbers: &'a [T]) -> &mut Self {
        self.put(numbers.len() as u64);
        self.borrow(bytemuck::cast_slice(numbers))
    }
}
