//! Futures are dropped, held and polled side by side: what only async handlers can do wrong.

use super::{charge, effects};
use crate::rig::order::{Ask, Charge, Do, Mail, Mix, Order, Probed, Reserve, Rule, SameKey, Shop, mixes};
use crate::rig::provider::Act;
use crate::rig::{MINUTE, is};
use onceward::{AsyncCx, EffectState, Fail, Jobs, Outcome, State};
use std::marker::PhantomData;
use std::pin::pin;
use std::sync::{Arc, Mutex};
use std::task::Poll;

fn async_mixes() -> Vec<Mix> {
    let mixes: Vec<Mix> = mixes().into_iter().filter(|m| m.handler).collect();
    assert_eq!(mixes.len(), 4);
    mixes
}

fn charge_of<C>(order: u64) -> Charge<C> {
    Charge { order, cents: 500, rule: PhantomData }
}

/// Opens a shop with a handler of the test's own.
fn open<C: Rule, F>(shop: &Shop, handler: impl Fn(AsyncCx, u64) -> F + Send + Sync + 'static) -> Jobs
where
    F: Future<Output = Outcome> + Send + 'static,
{
    let life = &shop.world.life;
    let b = shop.world.builder().on(|_, _: crate::rig::order::Refund| Ok(()));
    let b = if shop.mix.performer {
        b.effect_async(shop.pay.performs_async::<Charge<C>>(life))
    } else {
        b.effect(shop.pay.performs::<Charge<C>>(life))
    };
    b.effect(shop.stock.performs::<Reserve<Probed>>(life))
        .effect(shop.post.performs::<Mail>(life))
        .probe(shop.stock.tells::<Reserve<Probed>>(life))
        .probe(shop.pay.tells::<Charge<C>>(life))
        .on_async(move |cx, job: Order<C, Probed>| handler(cx, job.order))
        .start()
        .unwrap()
}

/// Polls once.
async fn poll_once<T>(mut f: std::pin::Pin<&mut impl Future<Output = T>>) -> Option<T> {
    std::future::poll_fn(|cx| match f.as_mut().poll(cx) {
        Poll::Ready(t) => Poll::Ready(Some(t)),
        Poll::Pending => Poll::Ready(None),
    })
    .await
}

/// The handler loses patience, drops the future of a call that was entered, and returns Ok. That only stopped the waiting: it is no
/// success, the call runs to its end beside it and is recorded, and the job goes on with its result. One charge.
#[test]
fn dropping_the_handlers_future_only_stops_waiting() {
    for mix in async_mixes() {
        let shop = Shop::new(mix);
        let life = shop.world.life.clone();
        let first = Arc::new(Mutex::new(true));
        let jobs = open::<Ask, _>(&shop, move |cx, order| {
            let (life, first) = (life.clone(), std::mem::replace(&mut *first.lock().unwrap(), false));
            async move {
                let mut call = Box::pin(cx.effect(charge_of::<Ask>(order)));
                if !first {
                    return call.await.map(|_| ());
                }
                // Driven until it is inside its performer, then dropped.
                either(call.as_mut(), pin!(life.wait_async("impatient"))).await;
                drop(call);
                Ok(())
            }
        });
        shop.pay.will([Act::Dawdles("call")]);
        let id = shop.order::<Ask, Probed>(&jobs);
        shop.world.stage.came("call", 1);
        shop.world.stage.open("impatient");
        shop.world.lines.wait(1);
        assert_ne!(jobs.state(id).unwrap(), State::Done);
        shop.world.stage.open("call");
        shop.world.stage.until("the end", || (jobs.state(id).unwrap() == State::Done).then_some(()));
        assert_eq!((shop.pay.calls().len(), shop.pay.times()), (1, 1));
        assert_eq!(charge(&jobs, id), EffectState::Confirmed);
    }
}

/// Polls both until one is ready.
async fn either<A, B>(
    mut a: std::pin::Pin<&mut impl Future<Output = A>>,
    mut b: std::pin::Pin<&mut impl Future<Output = B>>,
) {
    std::future::poll_fn(|cx| match (a.as_mut().poll(cx), b.as_mut().poll(cx)) {
        (Poll::Pending, Poll::Pending) => Poll::Pending,
        _ => Poll::Ready(()),
    })
    .await;
}

/// The intent is committed, the process stands still (SIGSTOP), the lease lapses, the replacement charges, the first goes on: the
/// fenced attempt never enters its performer. One charge, by one call.
#[test]
fn a_fenced_attempt_never_enters_its_performer() {
    for mix in async_mixes() {
        let shop = Shop::without_keys(mix);
        let life = shop.world.life.clone();
        let first = Arc::new(Mutex::new(true));
        let jobs = open::<SameKey, _>(&shop, move |cx, order| {
            let (life, first) = (life.clone(), std::mem::replace(&mut *first.lock().unwrap(), false));
            async move {
                let mut call = Box::pin(cx.effect(charge_of::<SameKey>(order)));
                if first {
                    // The writer has the intent; the thread that would make the call stands still, in the middle of a poll.
                    assert!(poll_once(call.as_mut()).await.is_none());
                    life.wait("stopped");
                }
                call.await.map(|_| ())
            }
        });
        let id = shop.order::<SameKey, Probed>(&jobs);
        shop.world.stage.came("stopped", 1);
        shop.world.stage.until("the intent", || {
            (effects(&jobs, id) == [("charge".to_owned(), EffectState::Intended)]).then_some(())
        });
        shop.world.pass_to_line(1, MINUTE);
        shop.world.pass(&jobs, MINUTE);
        is(&jobs, id, State::Done);
        shop.world.stage.open("stopped");
        let _ = jobs.shutdown(crate::rig::PATIENCE).unwrap();
        assert_eq!((shop.pay.calls().len(), shop.pay.times()), (1, 1));
    }
}

/// Two effects of one attempt are lost side by side; the next claim asks both providers side by side, and neither question stops
/// the other.
#[test]
fn two_lost_effects_are_asked_for_side_by_side() {
    for mix in async_mixes() {
        let shop = Shop::without_keys(mix);
        let jobs = shop.open::<Probed, Probed>(vec![Do::Both(500), Do::Finish]);
        shop.pay.will([Act::Loses]);
        shop.stock.will([Act::Loses]);
        let id = shop.order::<Probed, Probed>(&jobs);
        shop.world.settle(&jobs);
        is(&jobs, id, State::Done);
        assert_eq!((shop.pay.times(), shop.stock.times()), (1, 1));
        assert_eq!((shop.pay.calls().len(), shop.stock.calls().len()), (1, 1));
    }
}

/// One of two effects side by side is lost, the other one's answer is recorded all the same; the retry calls only the first.
#[test]
fn a_lost_effect_does_not_take_its_neighbour_along() {
    for mix in async_mixes() {
        let shop = Shop::new(mix);
        let jobs = shop.open::<SameKey, Probed>(vec![Do::Both(500), Do::Finish]);
        shop.pay.will([Act::Loses]);
        let id = shop.order::<SameKey, Probed>(&jobs);
        shop.world.settle(&jobs);
        shop.world.pass(&jobs, MINUTE);
        is(&jobs, id, State::Done);
        assert_eq!((shop.pay.times(), shop.stock.times()), (1, 1));
        assert_eq!((shop.pay.calls().len(), shop.stock.calls().len()), (2, 1));
    }
}

/// A context that outlives its handler, in a task or a thread of the app's own, is refused.
#[test]
fn a_context_that_outlives_its_handler_is_refused() {
    for mix in async_mixes() {
        let shop = Shop::new(mix);
        let kept: Arc<Mutex<Option<AsyncCx>>> = Arc::default();
        let keep = kept.clone();
        let jobs = open::<SameKey, _>(&shop, move |cx, _| {
            *keep.lock().unwrap() = Some(cx);
            async { Err(Fail::new("later")) }
        });
        let id = shop.order::<SameKey, Probed>(&jobs);
        shop.world.settle(&jobs);
        let cx = kept.lock().unwrap().take().unwrap();
        let refused = crate::rig::block_on(cx.effect(charge_of::<SameKey>(1)));
        assert!(refused.unwrap_err().to_string().contains("fenced"));
        assert!(crate::rig::block_on(cx.commit("c", |_| Ok(()))).is_err());
        assert!(cx.renew().is_err());
        assert_eq!((effects(&jobs, id), shop.pay.calls().len()), (vec![], 0));
    }
}
