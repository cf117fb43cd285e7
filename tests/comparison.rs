//! What a comparison of runs says, over tables that are made in memory: by hand, and of many simulated pairs.
#![allow(
    clippy::expect_used,
    clippy::indexing_slicing,
    clippy::panic,
    clippy::unwrap_used
)]

mod comparison {
    mod by_hand;
    mod rates;
    mod run;
}
