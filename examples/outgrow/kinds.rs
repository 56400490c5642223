//! The two kinds of `outgrow`: one in the shop that sends, one in the warehouse that receives. They need no broker, so their safety
//! cards are rendered also where the demo itself is not built.

use onceward::prelude::*;
use onceward::redb::{ReadableTableMetadata, TableDefinition};
use onceward::{Builder, Outgoing};
use serde::{Deserialize, Serialize};

/// The shop's own rows: order and customer.
pub(crate) const ORDERS: TableDefinition<'_, u64, u64> = TableDefinition::new("orders");
/// The warehouse's own rows: order and parcel.
pub(crate) const PARCELS: TableDefinition<'_, u64, &str> = TableDefinition::new("parcels");

/// An order as the customer placed it.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub(crate) struct Order {
    pub(crate) order: u64,
    pub(crate) customer: u64,
}

/// What the shop tells: the body of the message.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub(crate) struct Taken {
    pub(crate) order: Order,
    /// Orders that were taken before it.
    pub(crate) before: u64,
}

/// In the shop: take an order.
#[derive(Serialize, Deserialize)]
pub(crate) struct TakeOrder(pub(crate) Order);

impl Job for TakeOrder {
    const KIND: &'static str = "take-order";
    fn key(&self) -> JobKey {
        format!("order/{}", self.0.order).into()
    }
    fn policy() -> Policy {
        Policy::default().success("the order is in the shop's table, and the warehouse is owed a message about it")
    }
}

/// The row, the message and the end of the job are one commit: all of them or none.
pub(crate) fn take(topic: String) -> impl Fn(&Cx, TakeOrder) -> Outcome + Send + Sync + 'static {
    move |cx, TakeOrder(order)| {
        let topic = topic.clone();
        cx.finish(move |tx| {
            let mut orders = tx.open_table(ORDERS)?;
            let before = orders.len()?;
            orders.insert(order.order, order.customer)?;
            drop(orders);
            let (id, key) = (format!("order/{}", order.order), format!("customer/{}", order.customer));
            // The orders of one customer arrive in the order in which they were taken.
            tx.send(Outgoing::new(topic.as_str(), id, &Taken { order, before }).key(key))?;
            Ok(())
        })
    }
}

/// In the warehouse: ship what a message asks for. Its key is the message's id, so a message that comes twice is one job.
#[derive(Serialize, Deserialize)]
pub(crate) struct ShipOrder {
    pub(crate) message: String,
    pub(crate) order: Order,
}

impl Job for ShipOrder {
    const KIND: &'static str = "ship-order";
    fn key(&self) -> JobKey {
        self.message.as_str().into()
    }
    fn effects() -> Vec<EffectCard> {
        vec![Parcel::card()]
    }
    fn policy() -> Policy {
        Policy::default()
            .success("one parcel was handed to the carrier, and it is in the warehouse's table")
            .review("a parcel nobody knows about; the fourth failure")
    }
}

/// Hand a parcel to the carrier.
#[derive(Serialize, Deserialize)]
pub(crate) struct Parcel {
    pub(crate) order: u64,
}

impl Effect for Parcel {
    type Result = String;
    const NAME: &'static str = "parcel";
    const RISK: Risk = Risk::Order;
    fn says(&self) -> String {
        format!("Hand the parcel of order {} to the carrier", self.order)
    }
}

pub(crate) fn ship(cx: &Cx, job: ShipOrder) -> Outcome {
    let order = job.order.order;
    let parcel = cx.effect(Parcel { order })?;
    cx.finish(move |tx| {
        tx.open_table(PARCELS)?.insert(order, parcel.as_str())?;
        Ok(())
    })
}

/// Everything that the two sides register: what the safety cards in JOB-SAFETY.md are rendered from.
#[allow(dead_code, reason = "a test renders the safety cards from it")]
pub(crate) fn registered(builder: Builder) -> Builder {
    builder
        .key_scope("outgrow-demo")
        .on(take("orders".to_owned()))
        .effect(|parcel: &Parcel, _| Ok(format!("parcel_{}", parcel.order)))
        .on(ship)
}
