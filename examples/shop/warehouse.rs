//! The warehouse and what leaves it. Reservations know no key, but can be asked about; couriers can neither drop a repeated
//! request nor be asked; the post takes every letter.

use super::http::{Reply, Request, Server};
use super::plan::{Fault, Plan, SLOW, fault};
use serde_json::json;
use std::collections::HashMap;
use std::io;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// What was done, each time with its order.
#[derive(Clone, Default)]
pub(crate) struct Book {
    pub(crate) reservations: Vec<u64>,
    pub(crate) pickups: Vec<u64>,
    pub(crate) receipts: Vec<u64>,
    requests: HashMap<(&'static str, u64), usize>,
}

pub(crate) struct Warehouse {
    plan: Arc<Plan>,
    latency: Duration,
    book: Mutex<Book>,
}

impl Warehouse {
    pub(crate) fn open(plan: Arc<Plan>, latency: Duration) -> io::Result<(Arc<Self>, Server)> {
        let warehouse = Arc::new(Self { plan, latency, book: Mutex::default() });
        let theirs = warehouse.clone();
        let server = Server::start(move |request| theirs.answer(request))?;
        Ok((warehouse, server))
    }
    pub(crate) fn book(&self) -> MutexGuard<'_, Book> {
        self.book.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn answer(&self, request: &Request) -> Reply {
        std::thread::sleep(self.latency);
        let asked = request.path.strip_prefix("/reservations/").and_then(|n| n.parse().ok());
        let order = request.body["order"].as_u64();
        match (request.method.as_str(), request.path.as_str(), order.or(asked)) {
            ("POST", "/reservations", Some(n)) => {
                let today = fault(&self.plan.reserve, n, self.nth("reserve", n));
                act(today, || numbered("res", n, &mut self.book().reservations))
            }
            ("POST", "/pickups", Some(n)) => {
                let today = fault(&self.plan.courier, n, self.nth("courier", n));
                act(today, || numbered("pick", n, &mut self.book().pickups))
            }
            ("POST", "/receipts", Some(n)) => act(None, || numbered("mail", n, &mut self.book().receipts)),
            ("GET", _, Some(n)) => self.look_up(n),
            _ => Reply::Answer(400, json!({ "error": "there is no such thing here" })),
        }
    }

    fn look_up(&self, order: u64) -> Reply {
        if fault(&self.plan.look_up, order, self.nth("look up", order)).is_some() {
            return Reply::Answer(503, json!({ "error": "the catalogue is closed for a moment" }));
        }
        match self.book().reservations.iter().position(|n| *n == order) {
            Some(at) => Reply::Answer(200, json!({ "id": format!("res_{order}_{}", at + 1) })),
            None => Reply::Answer(404, json!({ "error": "nothing is reserved for this order" })),
        }
    }

    fn nth(&self, what: &'static str, order: u64) -> usize {
        let mut book = self.book();
        let seen = book.requests.entry((what, order)).or_default();
        *seen += 1;
        *seen - 1
    }
}

fn act(today: Option<Fault>, act: impl FnOnce() -> String) -> Reply {
    match today {
        Some(Fault::Busy) => Reply::Answer(503, json!({ "error": "busy; nothing was done" })),
        Some(Fault::LoseAnswer) => {
            act();
            Reply::HangUp
        }
        Some(Fault::Slow) => {
            std::thread::sleep(SLOW);
            Reply::Answer(201, json!({ "id": act() }))
        }
        None => Reply::Answer(201, json!({ "id": act() })),
    }
}

/// Writes it down and numbers it.
fn numbered(what: &str, order: u64, book: &mut Vec<u64>) -> String {
    book.push(order);
    format!("{what}_{order}_{}", book.len())
}
