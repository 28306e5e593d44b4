//! Whole groups on the in-memory registry, with paused time: joins, leaves, deaths, lost sessions, slow hands.
#![cfg(feature = "testing")]

mod book;
mod brokers;
mod kit;

mod anywhere;
mod claims;
mod handle;
mod input;
mod lease;
mod leaving;
mod life;
mod listening;
mod lost_replies;
mod offsets;
mod own;
mod passing;
mod peers;
mod races;
mod reading;
mod rules;
mod silence;
mod storms;
