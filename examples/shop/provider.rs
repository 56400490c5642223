//! The payment company: honours `Idempotency-Key`, can be asked by key, and has bad days.

use super::http::{Reply, Request, Server};
use super::plan::{Fault, Plan, SLOW, fault};
use serde_json::json;
use std::collections::HashMap;
use std::io;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

/// Money that moved.
#[derive(Clone, Debug)]
pub(crate) struct Charge {
    pub(crate) id: String,
    pub(crate) order: u64,
    pub(crate) cents: u64,
}

#[derive(Default)]
struct Ledger {
    charges: Vec<Charge>,
    by_key: HashMap<String, Charge>,
    requests: HashMap<u64, usize>,
}

pub(crate) struct Payments {
    plan: Arc<Plan>,
    latency: Duration,
    ledger: Mutex<Ledger>,
}

impl Payments {
    pub(crate) fn open(plan: Arc<Plan>, latency: Duration) -> io::Result<(Arc<Self>, Server)> {
        let payments = Arc::new(Self { plan, latency, ledger: Mutex::default() });
        let theirs = payments.clone();
        let server = Server::start(move |request| theirs.answer(request))?;
        Ok((payments, server))
    }
    pub(crate) fn charges(&self) -> Vec<Charge> {
        self.ledger().charges.clone()
    }

    fn answer(&self, request: &Request) -> Reply {
        std::thread::sleep(self.latency);
        match (request.method.as_str(), request.path.strip_prefix("/charges")) {
            ("POST", Some("")) => self.charge(request),
            ("GET", Some(key)) => match self.ledger().by_key.get(key.trim_start_matches('/')) {
                Some(charge) => Reply::Answer(200, json!({ "id": charge.id })),
                None => Reply::Answer(404, json!({ "error": "no charge under this key" })),
            },
            _ => Reply::Answer(400, json!({ "error": "POST /charges or GET /charges/KEY" })),
        }
    }

    fn charge(&self, request: &Request) -> Reply {
        let (Some(order), Some(cents)) = (request.body["order"].as_u64(), request.body["cents"].as_u64()) else {
            return Reply::Answer(400, json!({ "error": "order and cents are missing" }));
        };
        let nth = {
            let mut ledger = self.ledger();
            let seen = ledger.requests.entry(order).or_default();
            *seen += 1;
            *seen - 1
        };
        let today = fault(&self.plan.charge, order, nth);
        match today {
            Some(Fault::Busy) => return Reply::Answer(503, json!({ "error": "busy; nothing was charged" })),
            Some(Fault::Slow) => std::thread::sleep(SLOW),
            Some(Fault::LoseAnswer) | None => {}
        }
        let charge = self.move_money(order, cents, request.idempotency_key.as_deref());
        match today {
            Some(Fault::LoseAnswer) => Reply::HangUp,
            Some(Fault::Slow | Fault::Busy) | None => Reply::Answer(201, json!({ "id": charge.id })),
        }
    }

    /// The same key is the same charge, also when two requests come at once.
    fn move_money(&self, order: u64, cents: u64, key: Option<&str>) -> Charge {
        let mut ledger = self.ledger();
        if let Some(charge) = key.and_then(|k| ledger.by_key.get(k)) {
            return charge.clone();
        }
        let charge = Charge { id: format!("ch_{order}_{}", ledger.charges.len() + 1), order, cents };
        ledger.charges.push(charge.clone());
        if let Some(key) = key {
            ledger.by_key.insert(key.to_owned(), charge.clone());
        }
        charge
    }

    fn ledger(&self) -> std::sync::MutexGuard<'_, Ledger> {
        self.ledger.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
