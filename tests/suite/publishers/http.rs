//! The webhook, against a small receiver that runs in the test and answers as it is told.

use super::{again, message, refused, unique};
use crate::ground::thread;
use onceward::publishers::{Http, dedupe_key};
use onceward::{Message, Publisher};
use std::collections::{HashMap, HashSet};
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::{Arc, Mutex};
use std::time::Duration;

#[derive(Clone, Debug)]
pub(super) struct Request {
    line: String,
    pub(super) headers: HashMap<String, String>,
    body: Vec<u8>,
}

/// What the receiver says: a status line with headers, or nothing (the connection ends).
type Answer = Option<String>;

pub(super) struct Receiver {
    port: u16,
    got: Arc<Mutex<Vec<Request>>>,
}

impl Receiver {
    fn new(answer: impl Fn(&Request, usize) -> Answer + Send + Sync + 'static) -> Self {
        Self::on(TcpListener::bind("127.0.0.1:0").unwrap(), answer)
    }
    fn on(listener: TcpListener, answer: impl Fn(&Request, usize) -> Answer + Send + Sync + 'static) -> Self {
        let (port, got) = (listener.local_addr().unwrap().port(), Arc::<Mutex<Vec<Request>>>::default());
        let (kept, answer) = (got.clone(), Arc::new(answer));
        thread(move || {
            for stream in listener.incoming() {
                let (kept, answer) = (kept.clone(), answer.clone());
                thread(move || serve(stream.unwrap(), &kept, &*answer));
            }
        });
        Self { port, got }
    }
    pub(super) fn url(&self) -> String {
        format!("http://127.0.0.1:{}/hook?token=secret", self.port)
    }
    pub(super) fn got(&self) -> Vec<Request> {
        self.got.lock().unwrap().clone()
    }
}

fn serve(stream: TcpStream, kept: &Mutex<Vec<Request>>, answer: &dyn Fn(&Request, usize) -> Answer) {
    let mut reader = BufReader::new(stream.try_clone().unwrap());
    let mut writer = stream;
    loop {
        let mut line = String::new();
        if reader.read_line(&mut line).unwrap_or(0) == 0 {
            return;
        }
        let mut headers = HashMap::new();
        loop {
            let mut field = String::new();
            reader.read_line(&mut field).unwrap();
            let Some((name, value)) = field.trim_end().split_once(':') else { break };
            let value = value.trim();
            // One that is there twice is seen twice.
            let join = |had: &mut String| *had = format!("{had}, {value}");
            headers.entry(name.to_ascii_lowercase()).and_modify(join).or_insert_with(|| value.to_owned());
        }
        let mut body = vec![0; headers.get("content-length").map_or(0, |n| n.parse().unwrap())];
        reader.read_exact(&mut body).unwrap();
        let request = Request { line: line.trim_end().to_owned(), headers, body };
        let nth = {
            let mut kept = kept.lock().unwrap();
            kept.push(request.clone());
            kept.len()
        };
        let Some(said) = answer(&request, nth) else { return };
        let (head, text) = said.split_once('|').unwrap_or((&said, ""));
        let head = format!("HTTP/1.1 {head}\r\ncontent-length: {}\r\n\r\n{text}", text.len());
        if writer.write_all(head.as_bytes()).is_err() {
            return;
        }
    }
}

pub(super) fn always(said: &'static str) -> Receiver {
    Receiver::new(move |_, _| Some(said.to_owned()))
}

/// A message becomes one POST with its body as it is, its id as the idempotency key, and its headers.
#[test]
fn a_webhook_gets_the_body_the_key_and_the_headers() {
    let receiver = always("204 No Content");
    let http = Http::to(&receiver.url()).unwrap().header("authorization", "Bearer t").unwrap();
    let mut sent = message("orders/paid", "order 42/ü");
    sent.headers.push(("Content-Type".to_owned(), "application/cloudevents+json".to_owned()));
    http.publish(&sent).unwrap();
    http.publish(&message("orders", "1")).unwrap();
    let got = receiver.got();
    assert_eq!(got.len(), 2);
    assert_eq!((got[0].line.as_str(), &got[0].body), ("POST /hook?token=secret HTTP/1.1", &sent.body));
    let header = |name: &str| got[0].headers[name].as_str();
    assert_eq!(header("idempotency-key"), "orders%2Fpaid/order%2042/%C3%BC");
    assert_eq!(header("content-type"), "application/cloudevents+json");
    assert_eq!(header("onceward-id"), "order%2042/%C3%BC");
    assert_eq!((header("onceward-topic"), header("onceward-kind")), ("orders/paid", "order-paid"));
    assert_eq!((header("traceparent"), header("authorization")), ("00-1-2-03", "Bearer t"));
    assert_eq!(got[1].headers["content-type"], "application/json");
    assert!(!got[0].headers.contains_key("webhook-signature"), "unsigned unless asked");
    println!("http: {} requests looked at", got.len());
}

/// The answer is lost after the receiver has acted: the second request carries the same key, and the receiver acts once.
#[test]
fn a_webhook_whose_answer_is_lost_is_repeated_with_the_same_key() {
    let acted = Arc::<Mutex<HashSet<String>>>::default();
    let seen = acted.clone();
    let receiver = Receiver::new(move |request, nth| {
        let new = seen.lock().unwrap().insert(request.headers["idempotency-key"].clone());
        assert_eq!(new, nth == 1);
        (nth > 1).then(|| "200 OK|done".to_owned())
    });
    let http = Http::to(&receiver.url()).unwrap();
    let message = message("orders", "7");
    again(&http.publish(&message), "the webhook at 127.0.0.1");
    http.publish(&message).unwrap();
    assert_eq!((receiver.got().len(), acted.lock().unwrap().len()), (2, 1));
}

/// Nobody listens: again, at once. Somebody does: delivered.
#[test]
fn a_webhook_that_is_down_is_again_and_delivered_when_it_is_back() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    drop(listener);
    let http = Http::to(&format!("http://{address}/")).unwrap();
    let message = message("orders", "8");
    again(&http.publish(&message), "the webhook at");
    let receiver = Receiver::on(TcpListener::bind(address).unwrap(), |_, _| Some("201 Created".to_owned()));
    http.publish(&message).unwrap();
    assert_eq!(receiver.got().len(), 1);
}

/// Every answer has its class, and the receiver's wish when to come back is kept.
#[test]
fn a_webhooks_answer_says_whether_and_when_to_come_back() {
    let mut asked = 0;
    let mut ask = |said: &'static str| {
        asked += 1;
        Http::to(&always(said).url()).unwrap().publish(&message("orders", "9"))
    };
    for said in ["400 Bad|no such order", "413 Large|no such order", "422 Other|no such order"] {
        refused(&ask(said), "no such order");
    }
    // A token that ran out or a path that moved is no judgement of the message.
    for said in ["401 Who", "403 No", "404 Where", "405 How", "407 Proxy", "410 Gone", "402 Pay", "421 Not me"] {
        again(&ask(said), &said[..3]);
    }
    for said in
        ["408 Slow", "409 Busy", "425 Early", "429 Often", "500 Broken", "503 Down", "302 There\r\nlocation: /x"]
    {
        again(&ask(said), &said[..3]);
    }
    let wait = ask("429 Often\r\nretry-after: 90").unwrap_err();
    assert!(format!("{wait:?}").contains("retry_after: Some(90s)"), "{wait:?}");
    let (date, later) = ("Sun, 06 Nov 1994 12:00:00 GMT", "Sun, 06 Nov 1994 12:02:00 GMT");
    let said = Receiver::new(move |_, _| Some(format!("503 Down\r\ndate: {date}\r\nretry-after: {later}")));
    let wait = Http::to(&said.url()).unwrap().publish(&message("orders", "9")).unwrap_err();
    assert!(format!("{wait:?}").contains("retry_after: Some(120s)"), "{wait:?}");
    let there = Http::to(&always("409 Conflict").url()).unwrap().conflict_means_there();
    there.publish(&message("orders", "9")).unwrap();
    println!("http: {} answers classified", asked + 2);
}

/// A receiver that accepts and then says nothing costs no more than the timeout.
#[test]
fn a_silent_webhook_is_again_after_the_timeout() {
    let silent = TcpListener::bind("127.0.0.1:0").unwrap();
    let http = Http::to(&format!("http://{}/", silent.local_addr().unwrap())).unwrap();
    again(&http.timeout(Duration::from_millis(200)).publish(&message("orders", "10")), "timeout");
}

/// What HTTP cannot carry, or would let a message speak for the publisher, is refused and not sent.
#[test]
fn a_header_that_http_cannot_carry_is_refused_unsent() {
    let receiver = always("200 OK");
    let http = Http::to(&receiver.url()).unwrap();
    let with = |name: &str, value: &str| {
        let mut message = Message::new("orders", "11", b"{}".to_vec());
        message.headers = vec![(name.to_owned(), value.to_owned())];
        http.publish(&message)
    };
    refused(&with("a b", "1"), "a b");
    refused(&with("note", "1\r\nx: 2"), "note");
    refused(&with("Idempotency-Key", "other"), "Idempotency-Key");
    refused(&with("Content-Length", "0"), "Content-Length");
    refused(&with("webhook-id", "other"), "webhook-id");
    assert!(receiver.got().is_empty());
    assert!(Http::to("ftp://127.0.0.1/").is_err() && Http::to("/hook").is_err() && Http::to("http://").is_err());
    for name in ["a b", "idempotency-key"] {
        assert!(Http::to(&receiver.url()).unwrap().header(name, "1").is_err(), "{name}");
    }
    // Somebody has to listen: the connection comes first.
    let tls = Http::to(&receiver.url().replace("http:", "https:")).unwrap();
    again(&tls.publish(&message("orders", "11")), "https needs TLS: add");
}

/// A header of the webhook and one of the message have the same name: only one of them is sent, and nothing is lost in silence.
#[test]
fn a_header_is_never_sent_twice() {
    let receiver = always("200 OK");
    let http = Http::to(&receiver.url()).unwrap();
    let http = http.header("authorization", "Bearer t").unwrap().header("content-type", "text/plain").unwrap();
    let with = |name: &str, value: &str| {
        let mut message = message("orders", "13");
        message.headers = vec![(name.to_owned(), value.to_owned())];
        http.publish(&message)
    };
    refused(&with("Authorization", "Bearer other"), "authorization");
    assert!(receiver.got().is_empty());
    with("Content-Type", "application/cloudevents+json").unwrap();
    with("note", "1").unwrap();
    let got = receiver.got();
    let sent: Vec<_> = got.iter().map(|r| (&*r.headers["content-type"], &*r.headers["authorization"])).collect();
    assert_eq!(sent, [("application/cloudevents+json", "Bearer t"), ("text/plain", "Bearer t")]);
}

/// A receiver that knows the secret finds that the signature is that of this id, this time and this body.
#[test]
fn a_signed_webhook_can_be_verified_by_its_receiver() {
    let receiver = always("200 OK");
    let secret = unique("secret");
    let http = Http::to(&receiver.url()).unwrap().signed(secret.as_bytes());
    let sent = message("orders", "12");
    http.publish(&sent).unwrap();
    let got = receiver.got();
    let header = |name: &str| got[0].headers[name].as_str();
    assert_eq!(header("webhook-id"), dedupe_key(&sent));
    let seconds: u64 = header("webhook-timestamp").parse().unwrap();
    assert!(seconds > 1_700_000_000);
    let text = format!("{}.{seconds}.{}", dedupe_key(&sent), String::from_utf8(sent.body).unwrap());
    // By another implementation: python's.
    let script = "import base64, hashlib, hmac, sys; \
                  print('v1,' + base64.b64encode(hmac.new(*[a.encode() for a in sys.argv[1:3]], hashlib.sha256).digest()).decode())";
    let other = std::process::Command::new("python3").args(["-c", script, &secret, &text]).output().unwrap();
    assert!(other.status.success(), "{other:?}");
    assert_eq!(String::from_utf8(other.stdout).unwrap().trim(), header("webhook-signature"));
}
