//! The model and the environments of the simulation, as a client finds them that runs agents itself.

mod client;
mod environments;
mod model;
mod serving;
