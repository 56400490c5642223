//! What is said about a job before it runs (safety cards), while it waits for people (alerts) and when they decide.

mod alerts;
pub(crate) mod cards;
mod pairs;
mod people;
mod told;
