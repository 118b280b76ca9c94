//! The trine command line.

fn main() {}
