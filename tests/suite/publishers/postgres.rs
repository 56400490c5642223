//! The inbox table, against PostgreSQL.

use super::{again, message, one, refused, run, server, unique};
use onceward::publishers::tokio_postgres::{Client, NoTls};
use onceward::publishers::{INBOX_DDL, Postgres, tokio_postgres};
use onceward::{AsyncPublisher, Message};
use std::time::Duration;

pub(super) async fn connect(address: &str) -> Result<Client, tokio_postgres::Error> {
    let (client, connection) = tokio_postgres::connect(address, NoTls).await?;
    tokio::spawn(async move { drop(connection.await) });
    Ok(client)
}

/// A client, and an inbox of the test's own.
pub(super) async fn inbox(address: &str) -> (Client, String) {
    let (client, table) = (connect(address).await.unwrap(), unique("inbox"));
    client.batch_execute(&INBOX_DDL.replace("inbox", &table)).await.unwrap();
    (client, table)
}

pub(super) async fn ids(client: &Client, table: &str) -> Vec<String> {
    let rows = client.query(&format!("SELECT id FROM {table} ORDER BY seq"), &[]).await.unwrap();
    rows.iter().map(|row| row.get(0)).collect()
}

/// The same message twice, in two calls and within one batch: one row, with everything the message says, in the order sent.
#[test]
fn postgres_has_a_repeated_message_once() {
    let Some(address) = server("ONCEWARD_POSTGRES") else { return };
    run(async {
        let (client, table) = inbox(&address).await;
        let postgres = Postgres::at(&address, &table).unwrap();
        let [a, b, c] = ["a", "b", "c"].map(|id| message("orders", id));
        one(&postgres, &a).await.unwrap();
        one(&postgres, &a).await.unwrap();
        let told = postgres.publish_all(vec![c.clone(), a.clone(), b.clone(), c.clone()]).await;
        assert!(told.len() == 4 && told.iter().all(Result::is_ok), "{told:?}");
        one(&postgres, &message("returns", "a")).await.unwrap();
        assert_eq!(ids(&client, &table).await, ["a", "c", "b", "a"], "an id is unique within its topic");
        let sql = format!(
            "SELECT topic, key, kind, headers->>'traceparent', body::text, body->>'order' FROM {table} WHERE id = 'b'"
        );
        let row = client.query_one(&sql, &[]).await.unwrap();
        let texts: Vec<String> = (0..6).map(|i| row.get(i)).collect();
        assert_eq!(texts, ["orders", "key of b", "order-paid", "00-1-2-03", r#"{"order":"b"}"#, "b"]);
        println!("postgres: 7 publications, {} rows", ids(&client, &table).await.len());
    });
}

/// One bad message in a batch: those before it are there, it is refused for good, those after it are left for later.
#[test]
fn postgres_refuses_for_good_what_it_can_never_take() {
    let Some(address) = server("ONCEWARD_POSTGRES") else { return };
    run(async {
        let (client, table) = inbox(&address).await;
        client.batch_execute(&format!("ALTER TABLE {table} ADD CHECK (kind <> 'forbidden')")).await.unwrap();
        let postgres = Postgres::at(&address, &table).unwrap();
        let of = |id: &str, body: &[u8]| Message::new("orders", id, body.to_vec());
        let told = postgres.publish_all(vec![of("1", b"{}"), of("2", b"not json"), of("3", b"{}")]).await;
        assert!(told.len() == 2 && told[0].is_ok(), "{told:?}");
        refused(&told[1], "invalid input syntax for type json");
        assert_eq!(ids(&client, &table).await, ["1"]);
        let told = postgres.publish_all(vec![of("4", b"{}"), of("5", b"\xff"), of("6", b"{}")]).await;
        assert!(told.len() == 2 && told[0].is_ok(), "{told:?}");
        refused(&told[1], "not JSON");
        refused(&one(&postgres, &of("zero\0", b"{}")).await, "invalid byte sequence");
        // Not to be compressed: an index takes about 2700 bytes.
        let long: String = (0..1000).map(|_| unique("long")).collect();
        refused(&one(&postgres, &of(&long, b"{}")).await, "index row");
        let mut forbidden = of("7", b"{}");
        forbidden.kind = "forbidden".to_owned();
        refused(&one(&postgres, &forbidden).await, "check constraint");
        one(&postgres, &of("8", b"{}")).await.unwrap();
        assert_eq!(ids(&client, &table).await, ["1", "4", "8"]);
    });
}

/// The table is missing, or has no key to dedupe by: again, saying what to do; nothing is written without the key.
#[test]
fn an_inbox_that_cannot_dedupe_takes_nothing() {
    let Some(address) = server("ONCEWARD_POSTGRES") else { return };
    run(async {
        let (client, table) = inbox(&address).await;
        let missing = Postgres::at(&address, &unique("missing")).unwrap();
        again(&one(&missing, &message("orders", "1")).await, "INBOX_DDL");
        client.batch_execute(&format!("ALTER TABLE {table} DROP CONSTRAINT {table}_pkey")).await.unwrap();
        let postgres = Postgres::at(&address, &table).unwrap();
        again(&one(&postgres, &message("orders", "1")).await, "INBOX_DDL");
        client.batch_execute(&format!("ALTER TABLE {table} ADD PRIMARY KEY (topic, id)")).await.unwrap();
        one(&postgres, &message("orders", "1")).await.unwrap();
        assert_eq!(ids(&client, &table).await, ["1"]);
    });
}

/// A column without a default, a second key, a reference, a partition that nobody made: the table is at fault and not the message. It
/// waits, says what to mend, and is delivered when that is done.
#[test]
fn a_table_at_fault_refuses_nothing_for_good() {
    let Some(address) = server("ONCEWARD_POSTGRES") else { return };
    run(async {
        let (client, _) = inbox(&address).await;
        let mut faults = 0;
        for (fault, mended) in [
            ("ALTER TABLE {t} ADD extra text NOT NULL", "ALTER TABLE {t} ALTER extra SET DEFAULT ''"),
            (
                "INSERT INTO {t} VALUES ('old', 'old', '', 'order-paid', '{}', '{}'); \
                 ALTER TABLE {t} ADD CONSTRAINT {t}_two UNIQUE (kind)",
                "ALTER TABLE {t} DROP CONSTRAINT {t}_two",
            ),
            (
                "CREATE TABLE {t}_kinds (kind text PRIMARY KEY); ALTER TABLE {t} ADD FOREIGN KEY (kind) REFERENCES {t}_kinds",
                "INSERT INTO {t}_kinds VALUES ('order-paid')",
            ),
            (
                "ALTER TABLE {t} RENAME TO {t}_old; \
                 CREATE TABLE {t} (LIKE {t}_old INCLUDING INDEXES) PARTITION BY LIST (topic); \
                 ALTER TABLE {t} ALTER seq DROP NOT NULL, ALTER received DROP NOT NULL",
                "CREATE TABLE {t}_part PARTITION OF {t} DEFAULT",
            ),
        ] {
            let (_, table) = inbox(&address).await;
            let postgres = Postgres::at(&address, &table).unwrap();
            client.batch_execute(&fault.replace("{t}", &table)).await.unwrap();
            again(&one(&postgres, &message("orders", "1")).await, "INBOX_DDL");
            client.batch_execute(&mended.replace("{t}", &table)).await.unwrap();
            one(&postgres, &message("orders", "1")).await.unwrap();
            faults += 1;
        }
        println!("postgres: {faults} faults of a table, each mended");
    });
}

/// Somebody holds the table: the call ends within its time, nothing is left waiting on the server, and later it is delivered.
#[test]
fn a_locked_inbox_is_again_after_the_timeout() {
    let Some(address) = server("ONCEWARD_POSTGRES") else { return };
    run(async {
        let (mut client, table) = inbox(&address).await;
        let lock = client.transaction().await.unwrap();
        lock.batch_execute(&format!("LOCK TABLE {table}")).await.unwrap();
        let postgres = Postgres::at(&address, &table).unwrap().timeout(Duration::from_millis(300));
        let told = one(&postgres, &message("orders", "1")).await;
        let text = told.as_ref().unwrap_err().to_string();
        // Whose clock is first, the server's or ours.
        again(&told, if text.contains("within") { "within 300ms" } else { "statement timeout" });
        let other = connect(&address).await.unwrap();
        super::until("no statement waits any more", || async {
            let sql = format!(
                "SELECT 1 FROM pg_stat_activity WHERE query LIKE 'INSERT INTO \"{table}\"%' AND state = 'active'"
            );
            other.query(&sql, &[]).await.unwrap().is_empty().then_some(())
        })
        .await;
        lock.rollback().await.unwrap();
        let patient = postgres.timeout(Duration::from_secs(15));
        super::until("delivered", || async { one(&patient, &message("orders", "1")).await.ok() }).await;
        assert_eq!(ids(&client, &table).await, ["1"]);
    });
}

/// The server ends the connection between two messages: the next call opens another one. An app may open them itself.
#[test]
fn a_lost_connection_to_postgres_is_opened_again() {
    let Some(address) = server("ONCEWARD_POSTGRES") else { return };
    run(async {
        let (client, table) = inbox(&address).await;
        let own = format!("{address}?application_name={table}");
        let opened = std::sync::Arc::new(std::sync::atomic::AtomicUsize::new(0));
        let counted = opened.clone();
        let connect = move || {
            counted.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
            let own = own.clone();
            async move { Ok(connect(&own).await?) }
        };
        let postgres = Postgres::connected_by(connect, &table).unwrap();
        one(&postgres, &message("orders", "1")).await.unwrap();
        one(&postgres, &message("orders", "2")).await.unwrap();
        let kill = format!("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name = '{table}'");
        assert_eq!(client.query(&kill, &[]).await.unwrap().len(), 1);
        super::until("delivered", || async { one(&postgres, &message("orders", "3")).await.ok() }).await;
        assert_eq!(ids(&client, &table).await, ["1", "2", "3"]);
        assert_eq!(opened.load(std::sync::atomic::Ordering::Relaxed), 2);
        assert!(Postgres::at("not an address", "inbox").is_err() && Postgres::at(&address, "inbox; --").is_err());
    });
}
