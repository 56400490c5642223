//! HTTP/1.1 as far as the demo needs it: JSON bodies, one request per connection, on loopback.

use serde_json::Value;
use std::io::{self, BufRead, BufReader, Read, Write};
use std::net::{Ipv4Addr, Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

pub(crate) struct Request {
    pub(crate) method: String,
    pub(crate) path: String,
    pub(crate) idempotency_key: Option<String>,
    pub(crate) body: Value,
}

pub(crate) enum Reply {
    Answer(u16, Value),
    /// The connection is closed without a word.
    HangUp,
}

/// A server with a thread per connection. Dropped, it ends after the requests that are under way.
pub(crate) struct Server {
    port: u16,
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Server {
    pub(crate) fn start(answer: impl Fn(&Request) -> Reply + Send + Sync + 'static) -> io::Result<Self> {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?;
        let port = listener.local_addr()?.port();
        let stop = Arc::new(AtomicBool::new(false));
        let (stopped, answer) = (stop.clone(), Arc::new(answer));
        let thread = std::thread::spawn(move || {
            let mut open: Vec<JoinHandle<()>> = Vec::new();
            for stream in listener.incoming().flatten() {
                if stopped.load(Ordering::Acquire) {
                    break;
                }
                let answer = answer.clone();
                open.retain(|t| !t.is_finished());
                // A client that was killed in the middle of a request is no matter of ours.
                open.push(std::thread::spawn(move || drop(serve(&stream, &*answer))));
            }
            for thread in open {
                let _ = thread.join();
            }
        });
        Ok(Self { port, stop, thread: Some(thread) })
    }
    pub(crate) fn port(&self) -> u16 {
        self.port
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Release);
        // Wakes the thread that waits for the next connection.
        drop(TcpStream::connect((Ipv4Addr::LOCALHOST, self.port)));
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

fn serve(stream: &TcpStream, answer: &dyn Fn(&Request) -> Reply) -> io::Result<()> {
    stream.set_read_timeout(Some(Duration::from_secs(5)))?;
    let mut from = BufReader::new(stream);
    let head = Head::read(&mut from)?;
    let mut words = head.first.split(' ').map(str::to_owned);
    let (method, path) = (words.next().unwrap_or_default(), words.next().unwrap_or_default());
    let request = Request {
        method,
        path,
        idempotency_key: head.field("idempotency-key").map(str::to_owned),
        body: head.body(from)?,
    };
    match answer(&request) {
        Reply::HangUp => stream.shutdown(Shutdown::Both),
        Reply::Answer(status, body) => {
            let retry = if status == 503 { "Retry-After: 1\r\n" } else { "" };
            let body = body.to_string();
            let text = format!(
                "HTTP/1.1 {status} {}\r\nContent-Type: application/json\r\nContent-Length: {}\r\n{retry}Connection: close\r\n\r\n{body}",
                reason(status),
                body.len()
            );
            let mut to = stream;
            to.write_all(text.as_bytes())
        }
    }
}

fn reason(status: u16) -> &'static str {
    match status {
        200 => "OK",
        201 => "Created",
        404 => "Not Found",
        503 => "Service Unavailable",
        _ => "Bad Request",
    }
}

/// A complete answer.
pub(crate) struct Answer {
    pub(crate) status: u16,
    pub(crate) retry_after: Option<Duration>,
    pub(crate) body: Value,
}

/// No answer, and what is known about the request.
pub(crate) enum NoAnswer {
    /// There was no connection: it never left.
    NotSent(io::Error),
    /// It left, or part of it.
    Lost(io::Error),
}

/// Sends one request and waits for its answer, at most `patience`.
pub(crate) fn send(
    port: u16,
    method: &str,
    path: &str,
    idempotency_key: Option<&str>,
    body: &Value,
    patience: Duration,
) -> Result<Answer, NoAnswer> {
    let address = SocketAddr::from((Ipv4Addr::LOCALHOST, port));
    let stream = TcpStream::connect_timeout(&address, patience).map_err(NoAnswer::NotSent)?;
    let body = if body.is_null() { String::new() } else { body.to_string() };
    let key = idempotency_key.map(|k| format!("Idempotency-Key: {k}\r\n")).unwrap_or_default();
    let text = format!(
        "{method} {path} HTTP/1.1\r\nHost: {address}\r\n{key}Content-Type: application/json\r\nContent-Length: {}\r\nConnection: close\r\n\r\n{body}",
        body.len()
    );
    exchange(&stream, &text, patience).map_err(NoAnswer::Lost)
}

fn exchange(mut stream: &TcpStream, text: &str, patience: Duration) -> io::Result<Answer> {
    stream.set_read_timeout(Some(patience))?;
    stream.write_all(text.as_bytes())?;
    let mut from = BufReader::new(stream);
    let head = Head::read(&mut from)?;
    let status = head.first.split(' ').nth(1).and_then(|s| s.parse().ok());
    let status = status.ok_or_else(|| io::Error::new(io::ErrorKind::InvalidData, "no status in the answer"))?;
    let retry_after = head.field("retry-after").and_then(|s| s.parse().ok()).map(Duration::from_secs);
    Ok(Answer { status, retry_after, body: head.body(from)? })
}

/// The first line and the fields, names in lower case.
struct Head {
    first: String,
    fields: Vec<(String, String)>,
}

impl Head {
    fn read(from: &mut impl BufRead) -> io::Result<Self> {
        let first = line(from)?;
        let mut fields = Vec::new();
        loop {
            let next = line(from)?;
            match next.split_once(':') {
                Some((name, value)) => fields.push((name.to_ascii_lowercase(), value.trim().to_owned())),
                None => return Ok(Self { first, fields }),
            }
        }
    }
    fn field(&self, name: &str) -> Option<&str> {
        self.fields.iter().find(|(n, _)| n == name).map(|(_, v)| v.as_str())
    }
    fn body(&self, mut from: impl BufRead) -> io::Result<Value> {
        let length = self.field("content-length").and_then(|l| l.parse::<u16>().ok()).unwrap_or(0);
        let mut bytes = vec![0; usize::from(length)];
        from.read_exact(&mut bytes)?;
        Ok(if bytes.is_empty() { Value::Null } else { serde_json::from_slice(&bytes)? })
    }
}

/// One line without its end; a connection that was closed before is an error.
fn line(from: &mut impl BufRead) -> io::Result<String> {
    let mut text = String::new();
    from.by_ref().take(8_192).read_line(&mut text)?;
    match text.strip_suffix('\n') {
        Some(whole) => Ok(whole.trim_end_matches('\r').to_owned()),
        None => Err(io::Error::new(io::ErrorKind::UnexpectedEof, "the connection was closed before the answer")),
    }
}
