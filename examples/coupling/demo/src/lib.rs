//! Runs the two coupled codes of this example, checks their results against exact solutions, and compares runs.
//!
//! It is not a part of Motet: Motet is an optional command in front of the programs, and nothing here links to it.
//! Downwards: [`compare`] and [`validate`] -> [`run`] -> [`children`]; [`report`] and [`picture`] only draw what they get.
#![forbid(unsafe_code)]

pub mod case;
pub mod children;
pub mod compare;
pub mod exact;
pub mod field;
mod machine_load;
pub mod outcome;
pub mod paths;
pub mod picture;
pub mod report;
pub mod run;
pub mod validate;
