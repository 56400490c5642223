//! Durable background jobs inside your app, in one file.
pub mod model;
pub mod rules;
