//! The omniORB adapter, alone and with other ORBs.

mod calls;
mod churn;
mod examples;
mod failures;
mod malformed_giop;
mod omniorbpy;
mod other_orbs;
