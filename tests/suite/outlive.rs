//! What outlives its place: a future that nobody polls any more, a call that was left behind before it was made, a caller whose
//! storage gave up, a handle that is dropped where it must not be waited for.

use crate::rig::stage::Life;
use crate::rig::{MINUTE, PATIENCE, World};
use onceward::prelude::*;
use onceward::{Backoff, State};
use serde::{Deserialize, Serialize};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

/// A job with two effects, of which a handler may ask for one instead of the other.
#[derive(Serialize, Deserialize)]
struct Pay;
impl Job for Pay {
    const KIND: &'static str = "pay";
    fn key(&self) -> JobKey {
        "order/1".into()
    }
    fn effects() -> Vec<EffectCard> {
        vec![First::card(), Second::card()]
    }
    fn policy() -> Policy {
        Policy::default().backoff(Backoff::steps([MINUTE]))
    }
}

macro_rules! effect {
    ($name:ident, $text:literal) => {
        #[derive(Serialize, Deserialize)]
        struct $name;
        impl Effect for $name {
            type Result = ();
            const NAME: &'static str = $text;
            fn says(&self) -> String {
                concat!("Pay at the ", $text, " provider").into()
            }
            fn recovery() -> Recovery {
                Recovery::probe(MINUTE)
            }
        }
    };
}
effect!(First, "first");
effect!(Second, "second");

/// Counts what happens at the two providers; a call of the first waits at the door "call".
#[derive(Clone, Default)]
struct Paid {
    first: Arc<AtomicUsize>,
    second: Arc<AtomicUsize>,
}

impl Paid {
    fn counts(&self) -> (usize, usize) {
        (self.first.load(Ordering::SeqCst), self.second.load(Ordering::SeqCst))
    }
    fn builder(&self, world: &World, waits: bool) -> onceward::Builder {
        let (first, second, life) = (self.first.clone(), self.second.clone(), world.life.clone());
        let found = self.first.clone();
        world
            .builder()
            .effect(move |_: &First, _| {
                if waits && !life.wait("call") {
                    return Err(Fail::new("the process ended"));
                }
                first.fetch_add(1, Ordering::SeqCst);
                Ok(())
            })
            .effect(move |_: &Second, _| {
                second.fetch_add(1, Ordering::SeqCst);
                Ok(())
            })
            .probe(move |_: &First, _| Ok((found.load(Ordering::SeqCst) > 0).then_some(())))
            .probe(|_: &Second, _| Ok(None))
    }
}

#[cfg(feature = "tokio")]
mod futures {
    use super::*;
    use onceward::EffectState;
    use std::future::poll_fn;
    use std::pin::pin;
    use std::task::Poll;

    /// An async handler puts a timeout around a charge and, when it strikes, asks another provider. The first call still runs: the
    /// second provider is not called beside it, whatever the handler makes of the timeout. One payment.
    #[test]
    fn a_handler_that_stops_waiting_does_not_get_a_second_provider() {
        let (world, paid) = (World::new(), Paid::default());
        let life: Life = world.life.clone();
        let jobs = paid
            .builder(&world, true)
            .on_async(move |cx: AsyncCx, _: Pay| {
                let life = life.clone();
                async move {
                    let first = {
                        let mut call = pin!(cx.effect(First));
                        let mut timeout = pin!(life.wait_async("timeout"));
                        poll_fn(|task| match call.as_mut().poll(task) {
                            Poll::Ready(done) => Poll::Ready(Some(done)),
                            Poll::Pending => timeout.as_mut().poll(task).map(|_| None),
                        })
                        .await
                    };
                    match first {
                        Some(done) => done,
                        None => cx.effect(Second).await,
                    }
                }
            })
            .start()
            .unwrap();
        let id = jobs.enqueue(&Pay).unwrap().id();
        world.stage.came("call", 1);
        world.stage.open("timeout");
        world.lines.wait(1);
        world.stage.until("the wait for the first call", || (jobs.state(id).unwrap() == State::Waiting).then_some(()));
        assert_eq!(paid.counts(), (0, 0));
        world.stage.open("call");
        assert_eq!(jobs.wait(id, PATIENCE).unwrap(), State::Done);
        assert_eq!(paid.counts(), (1, 0));
        assert_eq!(jobs.ledger(id).unwrap()[0].state, EffectState::Confirmed);
    }

    /// A handler spawns a charge, does not wait for it and fails, while the call still waits for a thread. The next attempt asks
    /// the provider, hears "not there" and charges. Then the first call gets its thread: it is not made any more. One payment.
    #[test]
    fn a_call_left_behind_before_it_was_made_is_never_made() {
        let (world, paid) = (World::new(), Paid::default());
        let rt = tokio::runtime::Builder::new_multi_thread().worker_threads(2).max_blocking_threads(1).build().unwrap();
        let (life, pool) = (world.life.clone(), world.life.clone());
        rt.spawn_blocking(move || pool.wait("pool"));
        let (probed, claims) = (paid.first.clone(), Arc::new(AtomicUsize::new(0)));
        let jobs = paid
            .builder(&world, false)
            .probe_async(move |_: First, _| {
                let there = probed.load(Ordering::SeqCst) > 0;
                async move { Ok(there.then_some(())) }
            })
            .runtime(rt.handle().clone())
            .on_async(move |cx: AsyncCx, _: Pay| {
                let (life, again) = (life.clone(), claims.fetch_add(1, Ordering::SeqCst) > 0);
                async move {
                    if again {
                        return cx.effect(First).await;
                    }
                    let beside = cx.clone();
                    tokio::spawn(async move { beside.effect(First).await });
                    life.wait_async("return").await;
                    Err(Fail::transient("did not wait for the charge"))
                }
            })
            .start()
            .unwrap();
        // Long enough for a provider's "not there" to be believed.
        world.clock.advance(2 * MINUTE);
        let id = jobs.enqueue(&Pay).unwrap().id();
        world.stage.until("the intent", || jobs.ledger(id).unwrap().first().map(|_| ()));
        world.stage.open("return");
        world.lines.wait(1);
        // The probe said "not there", and the second attempt's call stands behind the first one's.
        world.stage.until("the second call", || {
            (jobs.ledger(id).unwrap()[0].calls == 2 && jobs.state(id).unwrap() == State::Running).then_some(())
        });
        world.stage.open("pool");
        assert_eq!(jobs.wait(id, PATIENCE).unwrap(), State::Done);
        assert_eq!(paid.counts(), (1, 0));
        jobs.shutdown(PATIENCE).unwrap();
    }
}
