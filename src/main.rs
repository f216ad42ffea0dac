//! The `sidekeeper` program.

fn main() {}
