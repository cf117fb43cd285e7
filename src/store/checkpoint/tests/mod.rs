mod cleaning;
mod copying;
mod faulty_store;
mod machine;
mod random;
