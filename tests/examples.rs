//! The examples do what they say.
#![cfg(feature = "testing")]

#[path = "../examples/in_memory.rs"]
mod in_memory;

#[test]
fn a_service_is_tested_in_memory_and_judged() {
    in_memory::main().unwrap();
}
