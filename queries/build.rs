//! Has the queries built in again when a file is added or removed: `include_dir!` alone sees only changed ones.

fn main() {
    println!("cargo:rerun-if-changed=queries");
}
