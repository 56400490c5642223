//! Messages into a NATS JetStream stream: the subject is the topic, `Nats-Msg-Id` is `<topic>/<id>`, and taken is what the stream
//! has acknowledged.
//!
//! The server drops a second copy while its `duplicate_window` remembers the first, and says so; that counts as taken. A window
//! that retries can outlast is reported ([`Nats::retries_last`]). For a memory without end, one subject per id
//! ([`Nats::one_subject_per_id`]): the stream's refusal of a second message on the subject then means "here already". Refused for
//! good: a topic that is no subject, a header NATS cannot carry, a message too large for the server or the stream.

use super::{PATIENCE, Unusable, again, card, chain, dedupe_key, never, reserved, visible, wave};
use crate::handler::fail::{Fail, Outcome};
use crate::handler::publish::AsyncPublisher;
use crate::model::outbox::Message;
use crate::observe::events;
use async_nats::jetstream::context::{PublishError, PublishErrorKind};
use async_nats::jetstream::message::PublishMessage;
use async_nats::jetstream::stream::{Config, DiscardPolicy};
use async_nats::jetstream::{self, Context, ContextBuilder, ErrorCode};
use async_nats::{Client, ConnectOptions, HeaderMap, HeaderName, HeaderValue, ServerAddr, Subject, connection::State};
use parking_lot::Mutex;
use std::collections::HashSet;
use std::error::Error;
use std::fmt;
use std::time::Duration;
use tokio::sync::Mutex as AsyncMutex;
use tokio::time::timeout;

/// Publishes to JetStream.
///
/// A `nats://` address without TLS works as it stands. For TLS, credentials and everything else, connect yourself and hand the
/// client over ([`Nats::with_client`]).
pub struct Nats {
    address: Option<ServerAddr>,
    client: AsyncMutex<Option<Client>>,
    patience: Duration,
    one_subject_per_id: bool,
    watch: Watch,
    looked: Mutex<HashSet<String>>,
}

struct Watch {
    retries: Duration,
    told: Box<dyn Fn(StreamWarning) + Send + Sync>,
}

/// Where a stream's memory is shorter than the retries, so that a late copy would arrive as a new message.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum StreamWarning {
    /// It forgets ids before the retries end: make `duplicate_window` longer, or use one subject per id.
    ShortWindow {
        /// The stream.
        stream: String,
        /// How long it remembers an id.
        window: Duration,
        /// How long a message may be retried.
        retries: Duration,
    },
    /// Used with one subject per id, but it takes a second message on a subject: set `max_messages_per_subject = 1`,
    /// `discard = new` and `discard_new_per_subject`.
    TakesSecond {
        /// The stream.
        stream: String,
    },
    /// Used with one subject per id, but it drops messages, and so their ids, before the retries end: `max_age`.
    ShortMemory {
        /// The stream.
        stream: String,
        /// How long it keeps a message.
        age: Duration,
        /// How long a message may be retried.
        retries: Duration,
    },
    /// Its settings could not be read, so nobody knows how long it remembers.
    NotRead {
        /// The subject whose stream was asked for.
        subject: String,
        /// What the server said.
        why: String,
    },
}

impl fmt::Display for StreamWarning {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::ShortWindow { stream, window, retries } => write!(
                f,
                "stream {stream} forgets ids after {window:?}, but retries may last {}: a late copy would be a second \
                 message; raise duplicate_window or use one subject per id",
                Lasting(*retries)
            ),
            Self::TakesSecond { stream } => write!(
                f,
                "stream {stream} takes a second message on a subject: set max_messages_per_subject = 1, discard = new and \
                 discard_new_per_subject"
            ),
            Self::ShortMemory { stream, age, retries } => write!(
                f,
                "stream {stream} drops messages after {age:?}, but retries may last {}: raise max_age",
                Lasting(*retries)
            ),
            Self::NotRead { subject, why } => {
                write!(f, "the stream of {subject} cannot be read, nobody knows how long it remembers ids: {why}")
            }
        }
    }
}

/// How long retries last, for a reader.
struct Lasting(Duration);

impl fmt::Display for Lasting {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            Duration::MAX => f.write_str("for ever"),
            d => write!(f, "{d:?}"),
        }
    }
}

impl Nats {
    /// To this server (`nats://host:4222`, a user and password in it if need be). Connects at the first message.
    ///
    /// # Errors
    /// The address is none.
    pub fn at(address: &str) -> Result<Self, Unusable> {
        let address = address.parse().map_err(|e| Unusable::new("the address of the NATS server", e))?;
        Ok(Self::new(Some(address), None))
    }
    /// Through a client of the app's.
    pub fn with_client(client: Client) -> Self {
        Self::new(None, Some(client))
    }
    fn new(address: Option<ServerAddr>, client: Option<Client>) -> Self {
        Self {
            address,
            client: AsyncMutex::new(client),
            patience: PATIENCE,
            one_subject_per_id: false,
            watch: Watch { retries: Duration::MAX, told: Box::new(|weak| events::warning(&weak.to_string())) },
            looked: Mutex::default(),
        }
    }
    /// How long to wait for a connection, and for sending a batch and its acknowledgements, 15 s unless set.
    pub fn timeout(mut self, timeout: Duration) -> Self {
        self.patience = timeout;
        self
    }
    /// Publishes on `<topic>.<id>` (the id percent-encoded into one token) and takes the stream's refusal of a second message on
    /// the subject for "here already". The stream binds `<topic>.*` with `max_messages_per_subject = 1`, `discard = new`,
    /// `discard_new_per_subject`.
    pub fn one_subject_per_id(mut self) -> Self {
        self.one_subject_per_id = true;
        self
    }
    /// How long a message may be retried: the topic's deadline. At the first message of each topic its stream is looked at, and what
    /// such a message cannot rely on is told. Unless set, retries may last for ever, as a topic without a deadline has it, and a
    /// warning in the log tells.
    pub fn retries_last(mut self, retries: Duration, told: impl Fn(StreamWarning) + Send + Sync + 'static) -> Self {
        self.watch = Watch { retries, told: Box::new(told) };
        self
    }
    /// Looks at the stream of a topic now: what a message that is retried this long cannot rely on.
    ///
    /// # Errors
    /// The server cannot be reached, or no stream takes the topic.
    pub async fn check(&self, topic: &str, retries: Duration) -> Outcome<Vec<StreamWarning>> {
        let probe = Message::new(topic, "check", Vec::new());
        let subject = self.subject(&probe)?;
        let context = self.context().await?;
        let config = timeout(self.patience, stream_of(&context, &subject)).await.map_err(|_| silent(self.patience))?;
        match config {
            Look::Found(config) => Ok(self.weak(&config, retries)),
            Look::NoStream => Err(no_stream(&subject)),
            Look::NotRead(why) => Err(again(format!("the stream of {subject} cannot be read: {why}"))),
        }
    }

    fn subject(&self, message: &Message) -> Outcome<Subject> {
        let subject = match (self.one_subject_per_id, message.id.is_empty()) {
            (true, true) => return Err(never("an empty id makes no subject of its own")),
            (true, false) => format!("{}.{}", message.topic, visible(&message.id, ".*>")),
            (false, _) => message.topic.clone(),
        };
        let wild = subject.split('.').any(|token| token == "*" || token == ">");
        match Subject::validated(&subject) {
            Ok(subject) if !wild => Ok(subject),
            _ => Err(never(format!("the topic {:?} is no subject of NATS: words joined by dots", message.topic))),
        }
    }
    /// What is wrong with a stream for retries of this length.
    fn weak(&self, config: &Config, retries: Duration) -> Vec<StreamWarning> {
        let stream = config.name.clone();
        if !self.one_subject_per_id {
            // A copy may be on its way when the retries end.
            let window = config.duplicate_window;
            let short = window < retries.saturating_add(self.patience);
            return short.then_some(StreamWarning::ShortWindow { stream, window, retries }).into_iter().collect();
        }
        let mut weak = Vec::new();
        let discards = config.discard == DiscardPolicy::New && config.discard_new_per_subject;
        if config.max_messages_per_subject != 1 || !discards {
            weak.push(StreamWarning::TakesSecond { stream: stream.clone() });
        }
        let age = config.max_age;
        if !age.is_zero() && age < retries.saturating_add(self.patience) {
            weak.push(StreamWarning::ShortMemory { stream, age, retries });
        }
        weak
    }
    async fn context(&self) -> Outcome<Context> {
        let mut held = self.client.lock().await;
        let client = match &*held {
            Some(client) => client.clone(),
            None => {
                // Boxed by the client as a list; without an address there was a client from the start.
                let addresses: Vec<ServerAddr> = self.address.iter().cloned().collect();
                let options = ConnectOptions::new().connection_timeout(self.patience);
                let connected = timeout(self.patience, options.connect(addresses)).await;
                let client = connected.map_err(|_| silent(self.patience))?;
                held.insert(client.map_err(|e| again(format!("NATS cannot be reached: {}", chain(&e))))?).clone()
            }
        };
        // The client would keep what is published now and send it whenever it is connected again; the relay keeps it better.
        if client.connection_state() != State::Connected {
            return Err(again("NATS is not connected; the client is trying"));
        }
        Ok(ContextBuilder::new().timeout(self.patience).ack_timeout(self.patience).build(client))
    }
    /// Looks at the stream of a topic once, and tells.
    async fn look(&self, context: &Context, message: &Message, subject: &Subject) {
        let watch = &self.watch;
        if self.looked.lock().contains(&message.topic) {
            return;
        }
        let look = timeout(self.patience, stream_of(context, subject)).await;
        let warnings = match look.unwrap_or_else(|_| Look::NotRead("no answer".to_owned())) {
            // The publication will say it, and the stream may come.
            Look::NoStream => return,
            Look::Found(config) => self.weak(&config, watch.retries),
            Look::NotRead(why) => vec![StreamWarning::NotRead { subject: subject.to_string(), why }],
        };
        if self.looked.lock().insert(message.topic.clone()) {
            warnings.into_iter().for_each(&watch.told);
        }
    }
    async fn send(&self, context: &Context, message: &Message) -> Outcome<jetstream::context::PublishAckFuture> {
        let subject = self.subject(message)?;
        let headers = headers(message)?;
        let publish = PublishMessage::build().headers(headers).payload(message.body.clone().into());
        context.send_publish(subject.clone(), publish).await.map_err(|e| failed(&e, &subject))
    }
    /// Sends all of them, then waits for every acknowledgement, no longer than one patience in all. What was not sent by then is
    /// left out.
    async fn publish_wave(&self, context: &Context, messages: &[Message]) -> Vec<Outcome<()>> {
        for message in messages {
            if let Ok(subject) = self.subject(message) {
                self.look(context, message, &subject).await;
            }
        }
        let (mut begun, mut told) = (0, Vec::with_capacity(messages.len()));
        let acknowledged = async {
            let mut sent = Vec::with_capacity(messages.len());
            for message in messages {
                begun += 1;
                sent.push(self.send(context, message).await);
            }
            for (ack, message) in sent.into_iter().zip(messages) {
                told.push(match ack {
                    Ok(ack) => ack.await.map(drop).or_else(|e| self.settle(&e, message)),
                    Err(fail) => Err(fail),
                });
            }
        };
        // A connection that takes nothing more ends it, or a late acknowledgement; whoever has none is told below.
        drop(timeout(self.patience, acknowledged).await);
        told.resize_with(begun, || Err(silent(self.patience)));
        told
    }
    fn settle(&self, e: &PublishError, message: &Message) -> Outcome<()> {
        let there = refusal(e).is_some_and(|refused| {
            // The same code stands for a full stream; only the text tells them apart.
            refused.error_code() == ErrorCode::STREAM_STORE_FAILED
                && refused.to_string().contains("maximum messages per subject exceeded")
        });
        if there && self.one_subject_per_id {
            return Ok(());
        }
        Err(failed(e, &self.subject(message)?))
    }
}

impl AsyncPublisher for Nats {
    async fn publish_all(&self, messages: Vec<Message>) -> Vec<Outcome<()>> {
        let context = match self.context().await {
            Ok(context) => context,
            Err(fail) => return vec![Err(fail)],
        };
        let mut told: Vec<Outcome<()>> = Vec::with_capacity(messages.len());
        while told.len() < messages.len() && told.iter().all(Result::is_ok) {
            let rest = &messages[told.len()..];
            told.extend(self.publish_wave(&context, &rest[..wave(rest)]).await);
        }
        told
    }
}

enum Look {
    Found(Box<Config>),
    NoStream,
    NotRead(String),
}

async fn stream_of(context: &Context, subject: &Subject) -> Look {
    use jetstream::context::GetStreamByNameErrorKind;
    let name = match context.stream_by_subject(subject.as_str()).await {
        Ok(name) => name,
        Err(e) if e.kind() == GetStreamByNameErrorKind::NotFound => return Look::NoStream,
        Err(e) => return Look::NotRead(format!("no answer from the stream list: {}", chain(&e))),
    };
    match context.get_stream(name).await {
        Ok(stream) => Look::Found(Box::new(stream.cached_info().config.clone())),
        Err(e) => Look::NotRead(format!("no answer about the stream: {}", chain(&e))),
    }
}

fn headers(message: &Message) -> Outcome<HeaderMap> {
    let mut map = HeaderMap::new();
    for (name, value) in &message.headers {
        reserved(name, &["nats-*"])?;
        let bad = |e: &dyn fmt::Display| never(format!("the header {name:?} of the message cannot be sent: {e}"));
        let name: HeaderName = name.parse().map_err(|e| bad(&e))?;
        map.append(name, value.parse::<HeaderValue>().map_err(|e| bad(&e))?);
    }
    for (name, value) in card(message) {
        map.insert(name, visible(value, ""));
    }
    map.insert("Nats-Msg-Id", dedupe_key(message));
    Ok(map)
}

fn refusal(e: &PublishError) -> Option<&jetstream::Error> {
    e.source()?.downcast_ref()
}

fn failed(e: &PublishError, subject: &Subject) -> Fail {
    let too_large = [ErrorCode::STREAM_MESSAGE_EXCEEDS_MAXIMUM, ErrorCode::STREAM_HEADER_EXCEEDS_MAXIMUM];
    if refusal(e).is_some_and(|refused| too_large.contains(&refused.error_code())) {
        return never(format!("the stream refuses the message: {}", chain(&e)));
    }
    match e.kind() {
        PublishErrorKind::MaxPayloadExceeded => never(format!("the server refuses the message: {}", chain(&e))),
        PublishErrorKind::StreamNotFound => no_stream(subject),
        PublishErrorKind::TimedOut
        | PublishErrorKind::BrokenPipe
        | PublishErrorKind::MaxAckPending
        | PublishErrorKind::WrongLastMessageId
        | PublishErrorKind::WrongLastSequence
        | PublishErrorKind::Other => again(format!("not acknowledged by NATS: {}", chain(&e))),
    }
}

fn no_stream(subject: &Subject) -> Fail {
    again(format!("no stream takes the subject {subject}: create one that binds it"))
}

fn silent(patience: Duration) -> Fail {
    again(format!("no answer from NATS within {patience:?}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn subject(nats: &Nats, topic: &str, id: &str) -> Option<String> {
        nats.subject(&Message::new(topic, id, Vec::new())).ok().map(|s| s.to_string())
    }

    #[test]
    fn an_id_makes_one_token_of_a_subject_and_no_other_id_makes_the_same() {
        let each = Nats::at("nats://127.0.0.1").map(Nats::one_subject_per_id).unwrap();
        assert_eq!(subject(&each, "orders.paid", "a.b*>/%").as_deref(), Some("orders.paid.a%2Eb%2A%3E/%25"));
        assert_eq!(subject(&each, "orders", ""), None);
        let plain = Nats::at("127.0.0.1:4222").unwrap();
        assert_eq!(subject(&plain, "orders.paid", "a.b").as_deref(), Some("orders.paid"));
        for bad in ["", "a b", "a..b", "a.*", ">", ".a"] {
            assert_eq!(subject(&plain, bad, "1"), None, "{bad:?}");
        }
    }

    #[test]
    fn a_stream_that_forgets_too_early_is_told() {
        let hour = Duration::from_secs(3600);
        let plain = Nats::at("127.0.0.1:4222").unwrap();
        let mut config = Config { name: "S".into(), duplicate_window: hour, ..Config::default() };
        assert_eq!(plain.weak(&config, hour / 2), []);
        assert!(matches!(plain.weak(&config, hour)[..], [StreamWarning::ShortWindow { .. }]));
        let each = Nats::at("127.0.0.1:4222").unwrap().one_subject_per_id();
        config.max_age = hour;
        let weak = each.weak(&config, hour);
        assert!(matches!(weak[..], [StreamWarning::TakesSecond { .. }, StreamWarning::ShortMemory { .. }]), "{weak:?}");
        config.max_messages_per_subject = 1;
        config.discard = DiscardPolicy::New;
        config.discard_new_per_subject = true;
        assert_eq!(each.weak(&config, hour / 2), []);
    }
}
