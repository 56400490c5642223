//! Time that goes on when nobody can, and threads that are counted.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::panic::Location;
use std::sync::Arc;
use std::time::Duration;

/// So often in a row the keeper is asked before it believes that nobody else can go on.
const ASKED: u32 = 24;
/// What a thread spends that looks again and again.
const GLANCE: Duration = Duration::from_micros(10);

// All threads of a run share one thread of the operating system, so these are the run's own.
std::thread_local! {
    static NOW: Cell<Duration> = const { Cell::new(Duration::ZERO) };
    static NEXT: Cell<u64> = const { Cell::new(0) };
    static OVER: Cell<bool> = const { Cell::new(false) };
    /// Who waits where.
    static PLACES: RefCell<BTreeMap<u64, (String, &'static Location<'static>)>> = const { RefCell::new(BTreeMap::new()) };
    /// Waits that have an end, by that and a number.
    static WAITS: RefCell<BTreeMap<(Duration, u64), Arc<shuttle::sync::Condvar>>> = const { RefCell::new(BTreeMap::new()) };
}

/// Time since the start of the run.
pub(crate) fn since_start() -> Duration {
    NOW.get()
}

/// Places so far where a thread could have been put off.
pub(super) fn steps() -> usize {
    shuttle::current::context_switches()
}

/// Says for as long as it lives where a thread waits.
pub(super) struct Waiting(u64);

impl Waiting {
    pub(super) fn at(place: &'static Location<'static>) -> Self {
        NEXT.set(NEXT.get() + 1);
        let name = shuttle::thread::current().name().unwrap_or("the test's").to_owned();
        PLACES.with_borrow_mut(|all| all.insert(NEXT.get(), (name, place)));
        Self(NEXT.get())
    }
}

impl Drop for Waiting {
    fn drop(&mut self) {
        PLACES.with_borrow_mut(|all| all.remove(&self.0));
    }
}

/// A wait that ends by itself.
pub(super) struct Until(Duration, u64);

impl Until {
    pub(super) fn new(at_most: Duration, waits: &Arc<shuttle::sync::Condvar>) -> Self {
        NEXT.set(NEXT.get() + 1);
        let until = Self(NOW.get().saturating_add(at_most), NEXT.get());
        WAITS.with_borrow_mut(|all| all.insert((until.0, until.1), waits.clone()));
        until
    }
    /// Whether it has ended.
    pub(super) fn is_over(&self) -> bool {
        !WAITS.with_borrow(|all| all.contains_key(&(self.0, self.1)))
    }
}

impl Drop for Until {
    fn drop(&mut self) {
        WAITS.with_borrow_mut(|all| all.remove(&(self.0, self.1)));
    }
}

/// Runs `f` with somebody who keeps the time.
pub(super) fn keep(f: impl FnOnce()) {
    NOW.set(Duration::ZERO);
    NEXT.set(0);
    OVER.set(false);
    WAITS.with_borrow_mut(BTreeMap::clear);
    PLACES.with_borrow_mut(BTreeMap::clear);
    let keeper = shuttle::thread::spawn(keeper);
    f();
    OVER.set(true);
    keeper.join().expect("the keeper of the time has nothing that could panic but its own complaint");
}

fn keeper() {
    while !OVER.get() {
        if (0..ASKED).any(|_| somebody_goes_on()) {
            continue;
        }
        let Some(((at, _), waits)) = WAITS.with_borrow_mut(BTreeMap::pop_first) else {
            let place = |(name, at): &(String, &Location<'_>)| format!("\n{name} at {at}");
            let places = PLACES.with_borrow(|all| all.values().map(place).collect::<String>());
            panic!("every thread waits, and nothing is due, after {} steps: a deadlock{places}", steps());
        };
        NOW.set(NOW.get().max(at));
        waits.notify_all();
    }
}

/// Lets the others go first.
fn somebody_goes_on() -> bool {
    let before = steps();
    shuttle::thread::yield_now();
    OVER.get() || steps() > before + 1
}

/// `std::thread`, as far as the crate uses it.
pub(crate) mod thread {
    use super::{GLANCE, NOW};
    use shuttle::thread as inner;
    use std::sync::Arc;
    use std::sync::atomic::{AtomicBool, Ordering};

    pub(crate) use inner::{ThreadId, current};
    pub(crate) use std::thread::panicking;

    /// Somebody looks again and again: that takes time.
    pub(crate) fn yield_now() {
        NOW.set(NOW.get() + GLANCE);
        inner::yield_now();
    }

    pub(crate) struct JoinHandle<T>(inner::JoinHandle<T>, Arc<AtomicBool>);

    impl<T> JoinHandle<T> {
        #[track_caller]
        pub(crate) fn join(self) -> std::thread::Result<T> {
            let _waits = super::Waiting::at(std::panic::Location::caller());
            self.0.join()
        }
        pub(crate) fn thread(&self) -> &inner::Thread {
            self.0.thread()
        }
        pub(crate) fn is_finished(&self) -> bool {
            self.1.load(Ordering::SeqCst)
        }
    }

    #[derive(Default)]
    pub(crate) struct Builder(Option<String>);

    impl Builder {
        pub(crate) fn new() -> Self {
            Self::default()
        }
        pub(crate) fn name(self, name: String) -> Self {
            Self(Some(name))
        }
        pub(crate) fn spawn<T: Send + 'static>(
            self,
            f: impl FnOnce() -> T + Send + 'static,
        ) -> std::io::Result<JoinHandle<T>> {
            let over = Arc::new(AtomicBool::new(false));
            let told = over.clone();
            let named = self.0.into_iter().fold(inner::Builder::new(), inner::Builder::name);
            let spawned = named.spawn(move || {
                let value = f();
                told.store(true, Ordering::SeqCst);
                value
            })?;
            Ok(JoinHandle(spawned, over))
        }
    }
}
