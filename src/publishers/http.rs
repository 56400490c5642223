//! Messages as POST requests: `Idempotency-Key: <topic>/<id>`, the body as it is, the message's headers as headers.
//!
//! Taken is what the receiver answers with 2xx. A repeated request carries the same key, and the receiver dedupes by it, for as
//! long as it says. Refused for good is what judges the message: 400, 406, 411, 413 to 416, 422, 431, 451. Every other answer, a
//! timeout and every connection error is "again", not before the `Retry-After` of the answer. A signature follows the Standard
//! Webhooks convention.

use super::http_answer::{self, Verdict};
use super::http_signature::signature;
use super::{PATIENCE, Unusable, again, card, dedupe_key, never, reserved, visible};
use crate::clock::{Clock, SystemClock};
use crate::handler::fail::Outcome;
use crate::handler::publish::Publisher;
use crate::model::outbox::Message;
use std::io::Read;
use std::time::Duration;
use ureq::http::header::CONTENT_TYPE;
use ureq::http::{HeaderName, HeaderValue, Uri};

/// POSTs each message to one URL.
///
/// Plain `http` as it stands. For `https` the app switches TLS on: `ureq = { version = "3", features = ["rustls"] }`.
pub struct Http {
    uri: Uri,
    agent: ureq::Agent,
    timeout: Duration,
    headers: Vec<(HeaderName, HeaderValue)>,
    secret: Option<Vec<u8>>,
    conflict_means_there: bool,
}

/// What a message may not say for us: `*` stands for any end.
const OURS: [&str; 11] = [
    "connection",
    "content-length",
    "expect",
    "host",
    "idempotency-key",
    "keep-alive",
    "te",
    "trailer",
    "transfer-encoding",
    "upgrade",
    "webhook-*",
];

impl Http {
    /// To this URL, through no proxy, whatever the environment says.
    ///
    /// # Errors
    /// The URL is not `http://host/..` or `https://host/..`.
    pub fn to(url: &str) -> Result<Self, Unusable> {
        // The URL may hold a secret: errors name the place only.
        let uri: Uri = url.parse().map_err(|e| Unusable::new("the URL of the webhook", e))?;
        if !matches!(uri.scheme_str(), Some("http" | "https")) || uri.host().is_none_or(str::is_empty) {
            return Err(Unusable::new("the URL of the webhook", "it has to begin with http://host or https://host"));
        }
        let agent = ureq::Agent::config_builder().proxy(None).build().new_agent();
        Ok(Self { uri, agent, timeout: PATIENCE, headers: Vec::new(), secret: None, conflict_means_there: false })
    }
    /// Through an agent of the app's: its proxy, its TLS, its connections. Timeout and redirects stay as set here.
    pub fn agent(mut self, agent: ureq::Agent) -> Self {
        self.agent = agent;
        self
    }
    /// How long one request may take in all, 15 s unless set.
    pub fn timeout(mut self, timeout: Duration) -> Self {
        self.timeout = timeout;
        self
    }
    /// A header on every request, e.g. `Authorization`. A message may not bring its own of the same name, but for `Content-Type`: the
    /// message's wins.
    ///
    /// # Errors
    /// HTTP does not allow the name or the value, or the name is one that this publisher sets.
    pub fn header(mut self, name: &str, value: &str) -> Result<Self, Unusable> {
        let what = format!("the header {name:?} of the webhook");
        reserved(name, &OURS).map_err(|e| Unusable::new(&what, e))?;
        let name = HeaderName::try_from(name).map_err(|e| Unusable::new(&what, e))?;
        let mut value = HeaderValue::try_from(value).map_err(|e| Unusable::new(&what, e))?;
        value.set_sensitive(true);
        self.headers.push((name, value));
        Ok(self)
    }
    /// Signs every request with this secret: `webhook-id`, `webhook-timestamp` (seconds, of this attempt) and
    /// `webhook-signature: v1,<base64 of HMAC-SHA256 over "id.timestamp.body">`. Of a secret written `whsec_..` the bytes are
    /// what base64 makes of the rest.
    pub fn signed(mut self, secret: &[u8]) -> Self {
        self.secret = Some(secret.to_vec());
        self
    }
    /// Takes the answer 409 for "this key is here already". Without it 409 is "again": the receiver is still busy with the key.
    pub fn conflict_means_there(mut self) -> Self {
        self.conflict_means_there = true;
        self
    }

    fn place(&self) -> String {
        let port = self.uri.port_u16().map(|p| format!(":{p}")).unwrap_or_default();
        format!("the webhook at {}{port}", self.uri.host().unwrap_or_default())
    }
    fn request(&self, message: &Message) -> Outcome<Vec<(HeaderName, HeaderValue)>> {
        let mut own = Vec::with_capacity(message.headers.len() + 8);
        for (name, value) in &message.headers {
            reserved(name, &OURS)?;
            let (name, value) = header(name, value)?;
            if name != CONTENT_TYPE && self.headers.iter().any(|(ours, _)| *ours == name) {
                return Err(never(format!("the header {name:?} is the webhook's to set: give it another name")));
            }
            own.push((name, value));
        }
        let typed = own.iter().any(|(name, _)| name == CONTENT_TYPE);
        own.extend(self.headers.iter().filter(|(name, _)| !typed || name != CONTENT_TYPE).cloned());
        if !own.iter().any(|(name, _)| name == CONTENT_TYPE) {
            own.push(header("content-type", "application/json")?);
        }
        for (name, value) in card(message) {
            own.push(header(name, &visible(value, ""))?);
        }
        let key = dedupe_key(message);
        own.push(header("idempotency-key", &key)?);
        if let Some(secret) = &self.secret {
            let seconds = SystemClock::new().now().wall.0 / 1000;
            own.push(header("webhook-id", &key)?);
            own.push(header("webhook-timestamp", &seconds.to_string())?);
            own.push(header("webhook-signature", &signature(secret, &key, seconds, &message.body))?);
        }
        Ok(own)
    }
}

impl Publisher for Http {
    fn publish(&self, message: &Message) -> Outcome<()> {
        let own = self.request(message)?;
        // A redirected POST becomes a GET, and its 200 would count as delivered: redirects are not followed.
        let mut request = self
            .agent
            .post(&self.uri)
            .config()
            .http_status_as_error(false)
            .max_redirects(0)
            .timeout_global(Some(self.timeout))
            .build();
        for (name, value) in &own {
            request = request.header(name, value);
        }
        let mut answer =
            request.send(&message.body[..]).map_err(|e| again(format!("{}: {}", self.place(), why(&e))))?;
        let status = answer.status().as_u16();
        let verdict = http_answer::verdict(status, self.conflict_means_there);
        let said = match verdict {
            // Read to the end, so that the connection can be used again.
            Verdict::Taken => read(&mut answer, 64 << 10),
            Verdict::Again | Verdict::Never => read(&mut answer, 300),
        };
        let text = || format!("{} answered {}: {}", self.place(), answer.status(), said.trim());
        match verdict {
            Verdict::Taken => Ok(()),
            Verdict::Never => Err(never(text())),
            Verdict::Again => {
                let field = |name| answer.headers().get(name).and_then(|v: &HeaderValue| v.to_str().ok());
                match http_answer::retry_after(field("retry-after"), field("date")) {
                    Some(wait) => Err(again(text()).retry_after(wait)),
                    None => Err(again(text())),
                }
            }
        }
    }
}

fn header(name: &str, value: &str) -> Outcome<(HeaderName, HeaderValue)> {
    let bad = |e: &dyn std::fmt::Display| never(format!("the header {name:?} of the message cannot be sent: {e}"));
    let value = HeaderValue::from_str(value).map_err(|e| bad(&e))?;
    Ok((HeaderName::try_from(name).map_err(|e| bad(&e))?, value))
}

/// The beginning of the answer's body; what cannot be read is not missed, the status has been said.
fn read(answer: &mut ureq::http::Response<ureq::Body>, limit: u64) -> String {
    let mut bytes = Vec::new();
    drop(answer.body_mut().as_reader().take(limit).read_to_end(&mut bytes));
    String::from_utf8_lossy(&bytes).into_owned()
}

fn why(e: &ureq::Error) -> String {
    if matches!(e, ureq::Error::TlsRequired) {
        return "https needs TLS: add `ureq = { version = \"3\", features = [\"rustls\"] }` to the app".to_owned();
    }
    e.to_string()
}
