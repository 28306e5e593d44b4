//! The judge of runs: for every rule a made-up run that breaks it, and one that nearly does.
#![cfg(feature = "testing")]

mod tale;

mod deliveries;
mod ends;
mod form;
mod lines;
mod listening;
mod nodes;
mod offsets;
mod starts;
mod verdicts;
