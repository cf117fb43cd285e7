//! The server as its clients see it: over TCP, byte for byte.

mod changes;
mod client;
mod faults;
mod serving;
