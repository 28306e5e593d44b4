//! Whole groups on the in-memory registry, with paused time: joins, leaves, deaths, lost sessions, slow hands.

mod kit;

mod claims;
mod input;
mod leaving;
mod life;
mod listening;
mod lost_replies;
mod offsets;
mod peers;
mod reading;
mod storms;
