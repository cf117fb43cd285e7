//! What is said where a store can't be used as it is set up.
