//! Whole groups on the in-memory registry, with paused time: joins, leaves, deaths, lost sessions, slow hands.

mod kit;

mod life;
