//! Outgrowing one process: a shop takes orders in its own queue and tells a warehouse about them over NATS JetStream; the warehouse
//! has a queue of its own. The shop is killed with `kill -9` again and again, some of the times after the stream has acknowledged
//! messages and before the shop could note that, and acknowledgements of the warehouse get lost, too. Nothing is lost, and every
//! order is shipped once, because the warehouse enqueues with key = message id.
//!
//! ```text
//! eval "$(.ci/servers start /tmp/servers)"                     a server, if you have none; its address is in ONCEWARD_NATS
//! cargo run --example outgrow --features nats                  to watch
//! cargo run --example outgrow --features nats -- --once        quick, as in CI
//! ```
//! It ends with an error if an order is missing, shipped twice or overtaken by a later one of its customer, or if nothing arrived
//! twice (then it would have shown nothing).
#![expect(
    clippy::disallowed_methods,
    reason = "a program of its own: it has a process to start, to kill and to wait for"
)]

#[path = "outgrow/kinds.rs"]
mod kinds;

use kinds::{ORDERS, Order, PARCELS, Parcel, ShipOrder, TakeOrder, Taken, ship, take};
use onceward::prelude::*;
use onceward::publishers::Nats;
use onceward::publishers::async_nats::jetstream::consumer::{Consumer, pull};
use onceward::publishers::async_nats::jetstream::stream::{Config, Stream};
use onceward::publishers::async_nats::{self, jetstream};
use onceward::redb::{ReadableTable, ReadableTableMetadata};
use onceward::{AsyncPublisher, Backoff, Message, Topic};
use std::collections::{BTreeMap, BTreeSet};
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitCode, Stdio};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

type Failure = Box<dyn std::error::Error + Send + Sync>;

const LONG: Duration = Duration::from_secs(60);
/// Where the server is.
const ADDRESS: &str = "ONCEWARD_NATS";
const CUSTOMERS: u64 = 7;
/// The shortest memory of ids a stream can have: on purpose, so that repeated messages reach the warehouse.
const WINDOW: Duration = Duration::from_millis(100);
/// The stream gives a message out again if it hears nothing for so long.
const ACK_WAIT: Duration = Duration::from_millis(300);
/// Every so many messages the warehouse's acknowledgement is lost.
const LOSES: usize = 11;
/// Messages that are handed to the stream together: after a death at most so many arrive twice.
const BATCH: usize = 8;

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let ended = match arguments.iter().map(String::as_str).collect::<Vec<_>>()[..] {
        ["shop", dir, topic, orders, end] => shop(Path::new(dir), topic, orders, end),
        [] => run(Plan { orders: 1_400, kills: 24 }),
        ["--once"] => run(Plan { orders: 210, kills: 6 }),
        _ => Err("there is only --once".into()),
    };
    match ended {
        Ok(()) => ExitCode::SUCCESS,
        Err(e) => {
            eprintln!("outgrow: {e}");
            ExitCode::FAILURE
        }
    }
}

#[derive(Clone, Copy)]
struct Plan {
    orders: u64,
    kills: usize,
}

fn run(plan: Plan) -> Result<(), Failure> {
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build()?;
    runtime.block_on(async { tokio::time::timeout(Duration::from_secs(500), story(plan)).await })?
}

fn address() -> Result<String, Failure> {
    std::env::var(ADDRESS).map_err(|_| {
        format!("{ADDRESS} says where a NATS server with JetStream is: nats://127.0.0.1:4222, or see .ci/servers")
            .into()
    })
}

// ---- the shop: a process of its own, killed now and then ---------------------------------------------------------------------

/// How a life of the shop is meant to end.
#[derive(Clone, Copy, Debug)]
enum End {
    /// It stops after the stream has acknowledged so many messages, before they are marked; then it is killed.
    Unmarked(usize),
    /// It is killed when it has taken so many orders, in the middle of whatever it does.
    Taking(usize),
    /// It comes to its end by itself.
    Well,
}

/// The stream, and a place to die: after the acknowledgement, before the mark.
struct Doomed {
    nats: Nats,
    stop_at: usize,
    acknowledged: AtomicUsize,
}

impl AsyncPublisher for Doomed {
    async fn publish_all(&self, messages: Vec<Message>) -> Vec<Outcome> {
        let told = self.nats.publish_all(messages).await;
        let taken = told.iter().filter(|t| t.is_ok()).count();
        let all = self.acknowledged.fetch_add(taken, Ordering::SeqCst) + taken;
        if all >= self.stop_at {
            println!("stopped {taken}");
            // Nothing is marked any more: the parent kills this process here.
            std::future::pending::<()>().await;
        }
        told
    }
}

fn shop(dir: &Path, topic: &str, orders: &str, stop_at: &str) -> Result<(), Failure> {
    let (orders, stop_at): (u64, usize) = (orders.parse()?, stop_at.parse()?);
    let nats = Nats::at(&address()?)?.retries_last(LONG, |warning| println!("warning {warning}"));
    let jobs = Jobs::open(dir.join("shop.redb"))
        .on(take(topic.to_owned()))
        .publisher_async(topic, Doomed { nats, stop_at, acknowledged: AtomicUsize::new(0) })
        .topic(topic, Topic::default().batch(BATCH).backoff(Backoff::steps([Duration::from_millis(50)])))
        .start()?;
    // Every life takes all orders anew: the same order is the same job.
    let all: Vec<TakeOrder> =
        (0..orders).map(|order| TakeOrder(Order { order, customer: order % CUSTOMERS })).collect();
    let mut taken = 0;
    for some in all.chunks(CUSTOMERS as usize) {
        let new = jobs.enqueue_many(some)?.iter().filter(|told| told.is_new()).count();
        if new > 0 {
            taken += new;
            println!("taken {taken}");
            // The shop keeps open for a while, so that every life finds something to do.
            std::thread::sleep(Duration::from_millis(10));
        }
    }
    jobs.drain(LONG)?;
    let rows = jobs.read(|r| r.open_table(ORDERS).and_then(|t| Ok(t.len()?)))??;
    let told = jobs.outbox().topics()?.into_iter().find(|t| t.topic == topic).ok_or("the topic is known")?;
    let unsent = told.depth + told.aside;
    jobs.shutdown(LONG)?;
    println!("closed {rows} {} {unsent}", told.last_number);
    Ok(())
}

// ---- the warehouse -----------------------------------------------------------------------------------------------------------

/// What the outside world has: every parcel that was handed over, in order, repeated ones too.
#[derive(Clone, Default)]
struct Ledger(Arc<Mutex<Vec<u64>>>);

impl Ledger {
    fn all(&self) -> Vec<u64> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
    fn note(&self, order: u64) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).push(order);
    }
}

fn warehouse(file: &Path, ledger: &Ledger) -> Result<Jobs, Failure> {
    let ledger = ledger.clone();
    let jobs = Jobs::open(file)
        .key_scope("outgrow-demo")
        .effect(move |parcel: &Parcel, _| {
            ledger.note(parcel.order);
            Ok(format!("parcel_{}", parcel.order))
        })
        .on(ship)
        .start()?;
    Ok(jobs)
}

/// What came over the wire.
#[derive(Debug, Default)]
struct Arrived {
    deliveries: usize,
    known: usize,
    unacknowledged: usize,
    /// The first arrivals of each customer: how many orders were taken before.
    first: BTreeMap<u64, Vec<u64>>,
}

/// One delivery: enqueue with key = message id, which is durable, and only then acknowledge.
async fn receive(jobs: &Jobs, message: &async_nats::Message, arrived: &mut Arrived) -> Result<(), Failure> {
    let id = message.headers.as_ref().and_then(|h| h.get("Onceward-Id")).ok_or("a message without an id")?;
    let Taken { order, before } = serde_json::from_slice(&message.payload)?;
    let told = jobs.enqueue_async(&ShipOrder { message: id.as_str().to_owned(), order }).await?;
    arrived.deliveries += 1;
    if told.is_new() {
        arrived.first.entry(order.customer).or_default().push(before);
    } else {
        arrived.known += 1;
    }
    Ok(())
}

/// Takes messages one by one until the shop is done and the stream has nothing left.
async fn consume(
    jobs: Jobs,
    client: async_nats::Client,
    mut consumer: Consumer<pull::Config>,
    shop_is_done: Arc<AtomicBool>,
) -> Result<Arrived, Failure> {
    let context = jetstream::new(client.clone());
    let info = consumer.cached_info();
    let next = format!("$JS.API.CONSUMER.MSG.NEXT.{}.{}", info.stream_name, info.name);
    let mut arrived = Arrived::default();
    loop {
        // With an inbox of its own: the answer is the message itself, under its own subject.
        let ask = async_nats::Request::new().payload(r#"{"batch":1,"no_wait":true}"#.into()).inbox(client.new_inbox());
        let message = client.send_request(next.clone(), ask).await?;
        if message.status.is_some() {
            // Nothing for the moment.
            let done = shop_is_done.load(Ordering::SeqCst);
            let info = consumer.info().await?;
            if done && info.num_pending == 0 && info.num_ack_pending == 0 {
                return Ok(arrived);
            }
            tokio::time::sleep(ACK_WAIT / 10).await;
            continue;
        }
        receive(&jobs, &message, &mut arrived).await?;
        if arrived.deliveries % LOSES == 0 {
            arrived.unacknowledged += 1;
        } else {
            jetstream::Message { message, context: context.clone() }.double_ack().await?;
        }
    }
}

// ---- the story ---------------------------------------------------------------------------------------------------------------

async fn story(plan: Plan) -> Result<(), Failure> {
    let address = address()?;
    let client = async_nats::connect(&address).await.map_err(|e| format!("no NATS server at {ADDRESS}: {e}"))?;
    let dir = tempfile::tempdir()?;
    let topic = topic_of(dir.path());
    let config =
        Config { name: topic.clone(), subjects: vec![topic.clone()], duplicate_window: WINDOW, ..Config::default() };
    let mut stream = jetstream::new(client.clone()).create_stream(config).await?;
    let consumer =
        pull::Config { durable_name: Some("warehouse".into()), ack_wait: ACK_WAIT, ..pull::Config::default() };
    let consumer = stream.create_consumer(consumer).await?;
    println!("the shop takes {} orders and is killed {} times; the warehouse listens", plan.orders, plan.kills);

    let (ledger, file) = (Ledger::default(), dir.path().join("warehouse.redb"));
    let jobs = warehouse(&file, &ledger)?;
    let done = Arc::new(AtomicBool::new(false));
    let consumed = tokio::spawn(consume(jobs.clone(), client.clone(), consumer, done.clone()));
    let (in_dir, of_topic) = (dir.path().to_owned(), topic.clone());
    let lives = tokio::task::spawn_blocking(move || lives(&in_dir, &of_topic, plan)).await??;
    done.store(true, Ordering::SeqCst);
    let arrived = consumed.await??;
    jobs.drain_async(LONG).await?;
    let result = look(&jobs, &ledger, &mut stream, &arrived, &lives, plan).await;
    jobs.shutdown_async(LONG).await?;
    jetstream::new(client).delete_stream(&topic).await?;
    result
}

/// A stream of this run's own.
fn topic_of(dir: &Path) -> String {
    let word: String = dir.to_string_lossy().chars().filter(char::is_ascii_alphanumeric).collect();
    format!("outgrow_{word}_{}", std::process::id())
}

/// What the shop's lives came to.
#[derive(Debug, Default)]
struct Lives {
    kills: usize,
    /// Kills after an acknowledgement and before its mark, and the messages that were acknowledged then.
    unmarked: (usize, usize),
    /// At the end: rows in the shop's table, the last number of the topic, messages that are not delivered.
    closed: [u64; 3],
}

/// Starts the shop, kills it, and starts it again, until it has been killed as often as planned and comes to its end.
fn lives(dir: &Path, topic: &str, plan: Plan) -> Result<Lives, Failure> {
    let mut lives = Lives::default();
    let mut warned = false;
    loop {
        let end = match lives.kills {
            n if n >= plan.kills => End::Well,
            n if n % 3 == 2 => End::Taking(4 * CUSTOMERS as usize),
            // Past what the life before had left open, so that every life gets further.
            n => End::Unmarked(2 * BATCH + n % BATCH),
        };
        let mut life = Life::start(dir, topic, plan, end)?;
        while let Some(line) = life.next()? {
            match (line.split(' ').collect::<Vec<_>>()[..].as_ref(), end) {
                (["stopped", taken], End::Unmarked(_)) => {
                    lives.unmarked.0 += 1;
                    lives.unmarked.1 += taken.parse::<usize>()?;
                    println!("  kill -9: the stream has acknowledged {taken} messages, the shop has not noted it");
                    life.child.kill()?;
                }
                (["taken", n], End::Taking(at)) if n.parse::<usize>()? == at => {
                    println!("  kill -9: {n} more orders taken");
                    life.child.kill()?;
                }
                (["closed", rows, last, unsent], _) => {
                    lives.closed = [rows.parse()?, last.parse()?, unsent.parse()?];
                }
                (["warning", ..], _) if !std::mem::replace(&mut warned, true) => {
                    println!("  the shop is told: {}", line.trim_start_matches("warning "));
                }
                _ => {}
            }
        }
        let status = life.child.wait()?;
        if status.success() {
            return Ok(lives);
        }
        if matches!(end, End::Well) || status.code().is_some() {
            return Err(format!("the shop ended by itself: {status}").into());
        }
        lives.kills += 1;
        // Until the stream has forgotten the ids.
        std::thread::sleep(2 * WINDOW);
    }
}

/// One life of the shop.
struct Life {
    child: Child,
    lines: std::io::Lines<BufReader<std::process::ChildStdout>>,
}

impl Life {
    fn start(dir: &Path, topic: &str, plan: Plan, end: End) -> Result<Self, Failure> {
        let stop_at = match end {
            End::Unmarked(n) => n,
            End::Taking(_) | End::Well => usize::MAX,
        };
        let program: PathBuf = std::env::current_exe()?;
        let mut child = Command::new(program)
            .arg("shop")
            .arg(dir)
            .args([topic, &plan.orders.to_string(), &stop_at.to_string()])
            .stdout(Stdio::piped())
            .spawn()?;
        let lines = BufReader::new(child.stdout.take().ok_or("the shop's output is a pipe")?).lines();
        Ok(Self { child, lines })
    }
    /// What it says next; `None` when it is over.
    fn next(&mut self) -> Result<Option<String>, Failure> {
        Ok(self.lines.next().transpose()?)
    }
}

impl Drop for Life {
    fn drop(&mut self) {
        // Nobody is left behind when the story ends with an error.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// The proof: what the shop took, what is in the stream, what the warehouse has as jobs, in its table and in the ledger.
async fn look(
    jobs: &Jobs,
    ledger: &Ledger,
    stream: &mut Stream,
    arrived: &Arrived,
    lives: &Lives,
    plan: Plan,
) -> Result<(), Failure> {
    let published = stream.info().await?.state.messages;
    let all: BTreeSet<u64> = (0..plan.orders).collect();
    let handed = ledger.all();
    let shipped: BTreeSet<u64> = handed.iter().copied().collect();
    let rows: BTreeSet<u64> = jobs.read(|r| {
        let table = r.open_table(PARCELS)?;
        let keys = table.iter()?.map(|row| Ok(row?.0.value()));
        keys.collect::<Result<_, onceward::StoreError>>()
    })??;
    let (mut done, mut unknown) = (0, 0);
    for order in &all {
        // The id names the job: enqueueing what is known changes nothing, and tells where it stands.
        let message = format!("order/{order}");
        let job = ShipOrder { message, order: Order { order: *order, customer: order % CUSTOMERS } };
        let told = jobs.enqueue_async(&job).await?;
        unknown += u64::from(told.is_new());
        done += u64::from(!told.is_new() && jobs.state(told.id())? == State::Done);
    }
    let [taken, last, unsent] = lives.closed;
    let lost = all.difference(&shipped).count();
    let twice = handed.len() - shipped.len();
    let overtaken =
        arrived.first.values().map(|orders| orders.windows(2).filter(|w| w[0] > w[1]).count()).sum::<usize>();
    let copies = published.saturating_sub(plan.orders);
    println!(
        "the shop:      killed {} times, {} of them between acknowledgement and mark",
        lives.kills, lives.unmarked.0
    );
    println!("               {taken} orders in its table, {last} messages numbered, {unsent} not delivered");
    println!(
        "the stream:    {published} messages for {} orders: {copies} copies with the id of an earlier one",
        plan.orders
    );
    println!(
        "the warehouse: {} deliveries ({} acknowledgements lost), {} of them known",
        arrived.deliveries, arrived.unacknowledged, arrived.known
    );
    println!("               {done} jobs done, {} rows, {} parcels handed over", rows.len(), handed.len());
    println!("lost {lost}, twice {twice}, overtaken {overtaken}");
    let orders = plan.orders;
    check(lives.kills == plan.kills, "the shop was killed as often as planned")?;
    check((taken, last, unsent) == (orders, orders, 0), "every order was taken once and its message delivered")?;
    check(lives.unmarked.0 > 0 && copies > 0, "messages arrived twice: without that this run shows nothing")?;
    check(arrived.known > 0 && arrived.unacknowledged > 0, "deliveries were repeated, too")?;
    check((done, unknown) == (orders, 0) && rows == all, "every order is a job that is done, with its row")?;
    check((lost, twice) == (0, 0) && shipped == all, "every parcel was handed over once")?;
    check(overtaken == 0, "no order overtook an earlier one of its customer")?;
    println!("ok: nothing lost, nothing twice");
    Ok(())
}

fn check(ok: bool, what: &str) -> Result<(), Failure> {
    if ok { Ok(()) } else { Err(format!("wrong: not true that {what}").into()) }
}
