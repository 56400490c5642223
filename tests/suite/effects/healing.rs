//! The storage fails while handlers sit inside effects: a heal is no process start, nobody is claimed twice, and what the providers
//! answered is recorded.

use super::charge;
use crate::rig::order::{Do, Order, Probed, SameKey, Shop, mixes};
use crate::rig::provider::Act;
use crate::rig::{PATIENCE, is};
use onceward::store::disk::{Fails, Fault, On};
use onceward::{EffectState, JobId, State};

/// An I/O error while eight handlers sit inside effects, and the store heals: no job is claimed twice, no death is counted, the
/// confirmations arrive, every order is charged once.
#[test]
fn eight_calls_outlast_a_storage_failure() {
    let mut told = 0;
    for mix in mixes() {
        for (on, fails) in [
            (On::Sync, Fails::Eio),
            (On::Sync, Fails::Sync { reached: 50, forget: false, seed: 7 }),
            (On::Sync, Fails::Sync { reached: 100, forget: true, seed: 7 }),
            (On::Write, Fails::Full),
            (On::AnyChange, Fails::Short),
        ] {
            let shop = Shop::without_keys(mix);
            let jobs = shop
                .builder::<SameKey, Probed>(crate::rig::order::always(vec![Do::Charge(500), Do::Reserve, Do::Finish]))
                .workers(8)
                .start()
                .unwrap();
            shop.pay.will(std::iter::repeat_n(Act::Dawdles("call"), 8));
            let ids: Vec<JobId> =
                (1..=8).map(|n| jobs.enqueue(&Order::<SameKey, Probed>::number(n)).unwrap().id()).collect();
            shop.world.stage.came("call", 8);
            shop.world.disk.fail(Fault { on, after: 0, times: 3, fails });
            (0..8).for_each(|_| shop.world.stage.open("call"));
            for id in &ids {
                let ended = jobs.wait(*id, PATIENCE);
                assert!(
                    matches!(ended, Ok(State::Done)),
                    "{mix:?} {on:?} {fails:?}: {ended:?}, {:?} {:?} {:?} {:?}",
                    jobs.state(*id),
                    jobs.history(*id),
                    jobs.ledger(*id),
                    shop.world.disk.counts()
                );
                is(&jobs, *id, State::Done);
                assert_eq!(charge(&jobs, *id), EffectState::Confirmed);
            }
            assert!(shop.world.disk.counts().faults > 0, "nothing failed");
            assert_eq!((shop.pay.calls().len(), shop.pay.times(), shop.stock.times()), (8, 8, 8));
            let counts = jobs.snapshot().unwrap().all;
            assert_eq!((counts.claims_total, counts.attempts_total), (8, 8), "{counts:?}");
            assert!(shop.world.lines.all().iter().all(|l| l.given_back.is_none()));
            told += 1;
        }
    }
    println!("{told} heals");
    assert!(told >= 5);
}
