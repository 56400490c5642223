//! The oldest undelivered message of a topic: looked for a slice of keys at a time, then remembered while it is there.
//!
//! Numbers rise, so nothing older comes in: a topic whose oldest message does not move is asked for one row, however many keys wait in
//! it, and a long backlog holds up neither timer nor writer. Called by `look`.

use crate::model::time::Wall;
use crate::store::{StoreError, View};

/// Keys looked at in one slice, over all topics.
pub(super) const SLICE: usize = 1_024;

/// How far the search in one topic is.
#[derive(Debug, Default)]
pub(crate) struct Sweep {
    /// The oldest so far: key, number, when.
    found: Option<(String, u64, Wall)>,
    /// Keys up to this one were looked at.
    after: Option<String>,
    /// All were.
    whole: bool,
}

/// What is known of a topic.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Oldest {
    /// When its oldest undelivered message was committed; `None` if there is none.
    Known(Option<Wall>),
    /// The search goes on with the next slice.
    Unclear,
    /// The oldest that was found went out while the others were looked at: the topic moves, and is searched anew in a while.
    Moves,
}

/// Of those that stand aside the lowest number is the oldest; they too wait for a person. `most` keys are looked at.
pub(super) fn oldest(v: &View<'_>, topic: &str, sweep: &mut Sweep, most: &mut usize) -> Result<Oldest, StoreError> {
    let aside = v.put_aside(topic, 0, 1)?.first().map(|(_, delivery)| delivery.committed);
    let known = |at: Option<Wall>| Oldest::Known(aside.into_iter().chain(at).min());
    if sweep.whole {
        match &sweep.found {
            Some((key, number, at)) if is_there(v, topic, key, *number)? => return Ok(known(Some(*at))),
            None if v.next_line(topic, None)?.is_none() => return Ok(known(None)),
            Some(_) | None => *sweep = Sweep::default(),
        }
    }
    let begun = sweep.after.is_some();
    while let Some(key) = v.next_line(topic, sweep.after.as_deref())? {
        if *most == 0 {
            return Ok(Oldest::Unclear);
        }
        if let Some((number, at)) = first(v, topic, &key, most)?
            && sweep.found.as_ref().is_none_or(|(_, _, oldest)| at < *oldest)
        {
            sweep.found = Some((key.clone(), number, at));
        }
        sweep.after = Some(key);
    }
    // What an earlier slice found may have gone out since: whoever delivers the oldest is not stuck.
    if begun
        && let Some((key, number, _)) = &sweep.found
        && !is_there(v, topic, key, *number)?
    {
        *sweep = Sweep::default();
        return Ok(Oldest::Moves);
    }
    sweep.whole = true;
    Ok(known(sweep.found.as_ref().map(|(_, _, at)| *at)))
}

/// The oldest of one key: the first that does not stand aside, or one before it that was put back beside the others.
fn first(v: &View<'_>, topic: &str, key: &str, most: &mut usize) -> Result<Option<(u64, Wall)>, StoreError> {
    let (mut after, mut oldest) = (0, None);
    while let Some((number, delivery)) = v.line(topic, key, after, 1)?.pop() {
        after = number;
        *most = most.saturating_sub(1);
        let Some(delivery) = StoreError::readable(delivery.map(Some))? else { continue };
        if oldest.is_none_or(|(_, at)| delivery.committed < at) {
            oldest = Some((number, delivery.committed));
        }
        if !delivery.aside {
            break;
        }
    }
    Ok(oldest)
}

fn is_there(v: &View<'_>, topic: &str, key: &str, number: u64) -> Result<bool, StoreError> {
    Ok(StoreError::readable(v.delivery(topic, key, number))?.is_some())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::clock::ManualClock;
    use crate::model::outbox::{Message, OutboxRow};
    use crate::store::disk::SimDisk;
    use crate::store::{Lane, Op, Place, Store, StoreOptions, Write};
    use std::sync::Arc;
    use std::sync::mpsc::{Sender, channel};

    struct Once<F>(F, Sender<()>);
    impl<F: FnMut(&mut Write<'_>) -> Result<(), StoreError> + Send> Op for Once<F> {
        fn run(&mut self, tx: &mut Write<'_>) -> Result<(), StoreError> {
            (self.0)(tx)
        }
        fn settle(self: Box<Self>, result: Result<(), StoreError>) {
            result.unwrap();
            self.1.send(()).unwrap();
        }
    }
    fn ask(store: &Store, f: impl FnMut(&mut Write<'_>) -> Result<(), StoreError> + Send + 'static) {
        let (tell, told) = channel();
        store.submit(Lane::Enqueue, Box::new(Once(f, tell))).map_err(|(_, e)| e).unwrap();
        told.recv().unwrap();
    }

    /// Fifty keys wait, ten are looked at in one slice: the oldest is known after five, then without a look at any key until it is
    /// gone; one that goes while the search is under way is not taken for the oldest.
    #[test]
    fn a_long_backlog_is_searched_in_slices_and_its_oldest_remembered() {
        let options = StoreOptions::new(Place::Disk(Arc::new(SimDisk::new())), Arc::new(ManualClock::default()));
        let store = Store::open(options).unwrap().0;
        ask(&store, |tx| {
            for n in 1..=50_u64 {
                let id = n.to_string();
                let key = format!("k{n:02}");
                let message = Message { key, ..Message::new("t", &id, Vec::new()) };
                tx.add_message(&OutboxRow { message, committed: Wall(n) }, [0; 16])?;
            }
            Ok(())
        });
        let sweep = std::cell::RefCell::new(Sweep::default());
        let look = |most: usize| store.read(|v| oldest(v, "t", &mut sweep.borrow_mut(), &mut { most })).unwrap();
        let gone = |n: u64| ask(&store, move |tx| tx.remove_delivery("t", &format!("k{n:02}"), n));
        for _ in 0..4 {
            assert_eq!(look(10), Oldest::Unclear);
        }
        assert_eq!(look(10), Oldest::Known(Some(Wall(1))));
        assert_eq!(look(0), Oldest::Known(Some(Wall(1))), "one row");
        gone(50);
        assert_eq!(look(0), Oldest::Known(Some(Wall(1))));
        gone(1);
        assert_eq!(look(10), Oldest::Unclear, "looked for anew");
        gone(2);
        for _ in 0..3 {
            assert_eq!(look(10), Oldest::Unclear);
        }
        assert_eq!(look(10), Oldest::Moves, "what was found went out meanwhile");
        for _ in 0..4 {
            assert_eq!(look(10), Oldest::Unclear, "looked for anew");
        }
        assert_eq!(look(10), Oldest::Known(Some(Wall(3))));
        ask(&store, |tx| (3..50).try_for_each(|n| tx.remove_delivery("t", &format!("k{n:02}"), n)));
        assert_eq!((look(1), look(0)), (Oldest::Known(None), Oldest::Known(None)));
        store.close().unwrap();
    }
}
