//! The omniORB adapter, and other ORBs beside it.

mod calls;
mod churn;
mod ends;
mod examples;
mod omniorbpy;
mod other_orbs;
mod raw;
