//! The outside world: four providers that write into one ledger file, appended before they answer. The file is not part of the
//! store and survives every kill.

use super::app::at;
use onceward::{Effect, Fail, IdempotencyKey, Outcome, Recovery};
use serde::{Deserialize, Serialize};
use std::fs::{File, OpenOptions};
use std::io::Write;
use std::path::Path;
use std::sync::{Arc, Mutex};
use std::time::Duration;

/// One thing that really happened.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Happened {
    pub(super) effect: String,
    pub(super) order: u64,
    pub(super) key: String,
}

impl Happened {
    /// What the provider calls it.
    pub(super) fn receipt(&self) -> String {
        format!("{}-{}-{}", self.effect, self.order, &self.key[..8])
    }
}

/// The ledger file: one line for each thing that really happened.
#[derive(Clone)]
pub(super) struct Ledger(Arc<Mutex<(File, Vec<Happened>)>>);

impl Ledger {
    pub(super) fn open(dir: &Path) -> Self {
        let path = dir.join("ledger");
        let file = OpenOptions::new().append(true).create(true).open(&path).expect("the ledger opens");
        let text = std::fs::read_to_string(path).expect("the ledger can be read");
        assert!(text.is_empty() || text.ends_with('\n'), "an append was torn, which no kill can do");
        Self(Arc::new(Mutex::new((file, text.lines().map(parse).collect()))))
    }
    pub(super) fn all(&self) -> Vec<Happened> {
        self.0.lock().expect("no panic holds it").1.clone()
    }
    pub(super) fn find(&self, key: &str) -> Option<Happened> {
        self.all().into_iter().find(|h| h.key == key)
    }
    /// It happens. Whether it may is the caller's business: the ledger dedupes nothing.
    pub(super) fn happen(&self, effect: &str, order: u64, key: &str) -> Happened {
        let h = Happened { effect: effect.to_owned(), order, key: key.to_owned() };
        let mut ledger = self.0.lock().expect("no panic holds it");
        let line = format!("{} {} {}\n", h.effect, h.order, h.key);
        ledger.0.write_all(line.as_bytes()).expect("the ledger can be written");
        ledger.1.push(h.clone());
        h
    }
}

fn parse(line: &str) -> Happened {
    match line.split(' ').collect::<Vec<_>>()[..] {
        [effect, order, key] => {
            Happened { effect: effect.into(), order: order.parse().expect("a number"), key: key.into() }
        }
        _ => panic!("not a line of the ledger: {line:?}"),
    }
}

macro_rules! effect {
    ($name:ident, $word:literal, $says:literal, $recovery:expr) => {
        #[derive(Serialize, Deserialize)]
        pub(super) struct $name {
            pub(super) order: u64,
        }
        impl Effect for $name {
            type Result = String;
            const NAME: &'static str = $word;
            fn says(&self) -> String {
                format!($says, self.order)
            }
            fn recovery() -> Recovery {
                $recovery
            }
            fn reference(done: &String) -> Option<String> {
                Some(done.clone())
            }
            fn from_reference(&self, reference: &str) -> Option<String> {
                Some(reference.to_owned())
            }
        }
        impl $name {
            /// The provider dedupes nothing: it happens whenever it is asked to.
            pub(super) fn perform(&self, ledger: &Ledger, key: &IdempotencyKey) -> Outcome<String> {
                at(concat!("before ", $word));
                let done = ledger.happen($word, self.order, key.as_str());
                at(concat!("after ", $word));
                Ok(done.receipt())
            }
        }
    };
}

const DAY: Duration = Duration::from_secs(24 * 3600);
const SETTLE: Duration = Duration::from_millis(150);

effect!(Charge, "charge", "Charge the card for order {}", Recovery::same_key(DAY));
effect!(Ship, "ship", "Ship order {}", Recovery::probe(SETTLE));
effect!(Print, "print", "Print the label of order {}", Recovery::ask());
effect!(Mail, "mail", "Mail the receipt of order {}", Recovery::repeat());

impl Charge {
    /// This provider honours keys: the same key is the same charge.
    pub(super) fn once(&self, ledger: &Ledger, key: &IdempotencyKey) -> Outcome<String> {
        match ledger.find(key.as_str()) {
            Some(done) if done.order == self.order => Ok(done.receipt()),
            Some(done) => Err(Fail::refused(format!("the key belongs to order {}", done.order)).for_good()),
            None => self.perform(ledger, key),
        }
    }
}

impl Ship {
    pub(super) fn probe(ledger: &Ledger, key: &IdempotencyKey) -> Option<String> {
        at("asking ship");
        ledger.find(key.as_str()).map(|h| h.receipt())
    }
}
