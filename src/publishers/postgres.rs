//! Messages as rows of an inbox table in PostgreSQL: `INSERT .. ON CONFLICT (topic, id) DO NOTHING`, a whole batch in one
//! statement, so it is there or it is not.
//!
//! The primary key keeps a second copy out for as long as the row is there: whoever prunes the table decides how long that is.
//! Refused for good: what the database says about the values (class 22: not JSON, a zero character; 23514: a named check of the
//! table) and rows too large for the index. Everything else is "again": what is wrong with the table (missing, a column or a key
//! too many, no partition) can be mended while messages wait. After a lost connection the next call connects anew.

use super::{PATIENCE, Unusable, again, chain, never};
use crate::handler::fail::{Fail, Outcome};
use crate::handler::publish::AsyncPublisher;
use crate::model::outbox::Message;
use serde::Serializer;
use std::error::Error;
use std::future::Future;
use std::pin::Pin;
use std::time::Duration;
use tokio::sync::Mutex;
use tokio::task::AbortHandle;
use tokio::time::timeout;
use tokio_postgres::types::{ToSql, Type};
use tokio_postgres::{Client, Config, NoTls};

/// The table that messages go to. Under another name it works as well; more columns need defaults.
///
/// `body` and `headers` are the text as it was sent (`json` keeps it, `jsonb` would not); `body->>'order'` works all the same.
///
/// A consumer claims rows (`FOR UPDATE SKIP LOCKED`, or a column that says what is done). It must not remember the last `seq` and
/// ask for greater ones: two transactions that write at the same time may commit in the other order, and a row would be skipped.
pub const INBOX_DDL: &str = "\
CREATE TABLE IF NOT EXISTS inbox (
    topic    text        NOT NULL,
    id       text        NOT NULL,
    key      text        NOT NULL,
    kind     text        NOT NULL,
    headers  json        NOT NULL,
    body     json        NOT NULL,
    seq      bigint      GENERATED ALWAYS AS IDENTITY,
    received timestamptz NOT NULL DEFAULT now(),
    PRIMARY KEY (topic, id)
)";

type Connected = Pin<Box<dyn Future<Output = Result<Live, Box<dyn Error + Send + Sync>>> + Send>>;

/// Writes messages into an inbox table ([`INBOX_DDL`]).
///
/// [`Postgres::at`] speaks plain TCP or a unix socket, without TLS; with TLS, connect yourself ([`Postgres::connected_by`]).
pub struct Postgres {
    connect: Box<dyn Fn() -> Connected + Send + Sync>,
    insert: String,
    patience: Duration,
    live: Mutex<Option<Live>>,
}

/// A connection; its task ends with it.
struct Live {
    client: Client,
    task: Option<AbortHandle>,
}

impl Drop for Live {
    fn drop(&mut self) {
        // A server that went silent would keep the task, and the socket, for as long as TCP hopes.
        if let Some(task) = &self.task {
            task.abort();
        }
    }
}

impl Postgres {
    /// To this database (`postgres://user@host/db`, or `host=.. user=..`), into this table (`inbox` or `schema.inbox`, as the
    /// catalogue spells it). Connects at the first message.
    ///
    /// # Errors
    /// The address or the table's name is none.
    pub fn at(address: &str, table: &str) -> Result<Self, Unusable> {
        let mut config: Config = address
            .parse()
            .map_err(|e: tokio_postgres::Error| Unusable::new("the address of the database", chain(&e)))?;
        if config.get_connect_timeout().is_none() {
            config.connect_timeout(PATIENCE);
        }
        let connect = move || -> Connected {
            let config = config.clone();
            Box::pin(async move {
                let (client, connection) = config.connect(NoTls).await?;
                // How it ended is what the next query says.
                let task = tokio::spawn(async move { drop(connection.await) });
                Ok(Live { client, task: Some(task.abort_handle()) })
            })
        };
        Self::new(Box::new(connect), table)
    }
    /// Through connections that the app opens, TLS and all: `connect` is called for each, and spawns the connection's task.
    ///
    /// # Errors
    /// The table's name is none.
    pub fn connected_by<F, C>(connect: C, table: &str) -> Result<Self, Unusable>
    where
        C: Fn() -> F + Send + Sync + 'static,
        F: Future<Output = Result<Client, Box<dyn Error + Send + Sync>>> + Send + 'static,
    {
        let connect = move || -> Connected {
            let client = connect();
            Box::pin(async move { Ok(Live { client: client.await?, task: None }) })
        };
        Self::new(Box::new(connect), table)
    }
    fn new(connect: Box<dyn Fn() -> Connected + Send + Sync>, table: &str) -> Result<Self, Unusable> {
        // The conflict is named: without the key on (topic, id) the statement fails instead of letting copies in, and a conflict
        // with another key of the table is an error instead of a lost message.
        let insert = format!(
            "INSERT INTO {} (topic, id, key, kind, headers, body) \
             SELECT topic, id, key, kind, headers::json, body::json \
             FROM unnest($1, $2, $3, $4, $5, $6) WITH ORDINALITY AS m (topic, id, key, kind, headers, body, n) \
             ORDER BY n ON CONFLICT (topic, id) DO NOTHING",
            quoted(table)?
        );
        Ok(Self { connect, insert, patience: PATIENCE, live: Mutex::new(None) })
    }
    /// How long to wait for a connection and for a batch, 15 s unless set. The server gives a statement up after the same time.
    pub fn timeout(mut self, timeout: Duration) -> Self {
        self.patience = timeout;
        self
    }

    async fn connected(&self) -> Outcome<Live> {
        let live = timeout(self.patience, (self.connect)()).await.map_err(|_| self.silent())?;
        let live = live.map_err(|e| again(format!("the database cannot be reached: {}", chain(&*e))))?;
        // A statement that waits for a lock would outlive this side, and every retry would add one.
        let limit = format!("SET statement_timeout = {}", self.patience.as_millis().clamp(1, i32::MAX as u128));
        match timeout(self.patience, live.client.batch_execute(&limit)).await {
            Ok(Ok(())) => Ok(live),
            Ok(Err(e)) => Err(again(format!("the database does not serve: {}", chain(&e)))),
            Err(_) => Err(self.silent()),
        }
    }
    async fn insert<'r>(&self, live: &Live, rows: &'r [Row<'r>]) -> Result<(), Trouble> {
        let column = |f: fn(&'r Row<'r>) -> &'r str| rows.iter().map(f).collect::<Vec<_>>();
        let columns = [
            column(|r| &r.message.topic),
            column(|r| &r.message.id),
            column(|r| &r.message.key),
            column(|r| &r.message.kind),
            column(|r| &r.headers),
            column(|r| r.body),
        ];
        let params: Vec<_> = columns.iter().map(|c| (c as &(dyn ToSql + Sync), Type::TEXT_ARRAY)).collect();
        match timeout(self.patience, live.client.execute_typed(&self.insert, &params)).await {
            Ok(Ok(_)) => Ok(()),
            Ok(Err(e)) => Err(judge(&e)),
            Err(_) => Err(Trouble::Lost(self.silent())),
        }
    }
    fn silent(&self) -> Fail {
        again(format!("no answer from the database within {:?}", self.patience))
    }
}

impl AsyncPublisher for Postgres {
    async fn publish_all(&self, messages: Vec<Message>) -> Vec<Outcome<()>> {
        let mut rows = Vec::with_capacity(messages.len());
        let mut unfit = None;
        for message in &messages {
            match Row::of(message) {
                Ok(row) => rows.push(row),
                Err(fail) => {
                    unfit = Some(fail);
                    break;
                }
            }
        }
        let mut told = self.write(&rows).await;
        if told.len() == rows.len() && told.iter().all(Result::is_ok) {
            told.extend(unfit.map(Err));
        }
        told
    }
}

impl Postgres {
    async fn write(&self, rows: &[Row<'_>]) -> Vec<Outcome<()>> {
        if rows.is_empty() {
            return Vec::new();
        }
        let mut held = self.live.lock().await;
        // Taken out while it is used: a call that is dropped half-way leaves no connection in an unknown state.
        let live = match held.take() {
            Some(live) if !live.client.is_closed() => live,
            _ => match self.connected().await {
                Ok(live) => live,
                Err(fail) => return vec![Err(fail)],
            },
        };
        let mut told = Vec::with_capacity(rows.len());
        match self.insert(&live, rows).await {
            Ok(()) => told.extend(rows.iter().map(|_| Ok(()))),
            Err(Trouble::Lost(fail)) => return vec![Err(fail)],
            Err(Trouble::Said(fail)) if rows.len() == 1 => told.push(Err(fail)),
            // One of them spoiled it for all: those before it are delivered, it gets its answer.
            Err(Trouble::Said(_)) => {
                for row in rows {
                    match self.insert(&live, std::slice::from_ref(row)).await {
                        Ok(()) => told.push(Ok(())),
                        Err(Trouble::Said(fail)) => {
                            told.push(Err(fail));
                            break;
                        }
                        Err(Trouble::Lost(fail)) => {
                            told.push(Err(fail));
                            return told;
                        }
                    }
                }
            }
        }
        *held = Some(live);
        told
    }
}

/// A message as the statement takes it.
struct Row<'a> {
    message: &'a Message,
    headers: String,
    body: &'a str,
}

impl<'a> Row<'a> {
    fn of(message: &'a Message) -> Outcome<Self> {
        let body = std::str::from_utf8(&message.body)
            .map_err(|e| never(format!("the body is not JSON, the inbox takes nothing else: {e}")))?;
        let mut headers = Vec::new();
        // Not through a map: a header that is there twice stays there twice.
        let pairs = message.headers.iter().map(|(name, value)| (name, value));
        serde_json::Serializer::new(&mut headers).collect_map(pairs)?;
        Ok(Self { message, headers: String::from_utf8(headers)?, body })
    }
}

/// Whether the connection can still be used.
enum Trouble {
    Said(Fail),
    Lost(Fail),
}

fn judge(e: &tokio_postgres::Error) -> Trouble {
    let text = chain(e);
    let Some(said) = e.as_db_error() else {
        return Trouble::Lost(again(format!("the database did not answer: {text}")));
    };
    let code = said.code().code();
    match (&code[..2], code) {
        // Data, a check that somebody wrote for it, a key that no index holds: about these values.
        ("22", _) | (_, "54000") => Trouble::Said(never(format!("the database refuses the message: {text}"))),
        (_, "23514") if said.constraint().is_some() => {
            Trouble::Said(never(format!("the database refuses the message: {text}")))
        }
        // Constraints that an inbox has no reason to have, or a partition that nobody made: about the table.
        ("23", _) | (_, "42P01" | "42703" | "42P10") => Trouble::Said(again(format!(
            "the inbox table is not what it has to be, see onceward::publishers::INBOX_DDL: {text}"
        ))),
        // Shutdown, administrator, too many connections: whatever comes next, not on this connection.
        ("57" | "53" | "08", _) if code != "57014" => Trouble::Lost(again(format!("the database goes: {text}"))),
        _ => Trouble::Said(again(format!("the database could not write the message: {text}"))),
    }
}

/// `schema.table` with every part quoted.
fn quoted(table: &str) -> Result<String, Unusable> {
    let plain = |c: char| c.is_ascii_alphanumeric() || c == '_';
    let parts: Vec<_> = table.split('.').collect();
    if parts.len() > 2 || parts.iter().any(|p| p.is_empty() || p.len() > 63 || !p.chars().all(plain)) {
        let why = "one or two words of ASCII letters, digits and underscores, joined by a dot";
        return Err(Unusable::new(&format!("the table name {table:?}"), why));
    }
    Ok(parts.iter().map(|p| format!("\"{p}\"")).collect::<Vec<_>>().join("."))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_table_name_cannot_smuggle_sql() {
        assert_eq!(quoted("inbox").unwrap(), "\"inbox\"");
        assert_eq!(quoted("app.In_2").unwrap(), "\"app\".\"In_2\"");
        for bad in ["", ".", "a.", "a.b.c", "a b", "a\"b", "a;b", "ä", &"a".repeat(64)] {
            assert!(quoted(bad).is_err(), "{bad:?}");
        }
    }

    #[test]
    fn a_header_that_is_there_twice_stays_there_twice() {
        let mut message = Message::new("t", "1", b"{}".to_vec());
        message.headers = vec![("a".into(), "1".into()), ("a".into(), "\"2".into())];
        assert_eq!(Row::of(&message).unwrap().headers, r#"{"a":"1","a":"\"2"}"#);
    }
}
