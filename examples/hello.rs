//! The smallest use: a kind, a handler, an intent that is enqueued twice and runs once.

use onceward::{Builder, prelude::*};
use serde::{Deserialize, Serialize};
use std::time::Duration;

#[derive(Serialize, Deserialize)]
struct Greet {
    name: String,
}

impl Job for Greet {
    const KIND: &'static str = "greet";
    fn key(&self) -> JobKey {
        self.name.as_str().into()
    }
}

/// What is registered: also what the safety card in JOB-SAFETY.md is rendered from.
pub(crate) fn registered(builder: Builder) -> Builder {
    builder.on(|cx, job: Greet| {
        println!("hello {} (attempt {})", job.name, cx.attempt());
        Ok(())
    })
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let file = std::env::temp_dir().join(format!("hello-{}.redb", std::process::id()));
    let jobs = registered(Jobs::open(&file)).start()?;
    let first = jobs.enqueue(&Greet { name: "ada".into() })?;
    let again = jobs.enqueue(&Greet { name: "ada".into() })?;
    assert_eq!(first.id(), again.id()); // the same intent is the same job
    assert_eq!(jobs.wait(first.id(), Duration::from_secs(5))?, State::Done);
    jobs.shutdown(Duration::from_secs(5))?;
    Ok(())
}
