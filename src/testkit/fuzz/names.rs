//! Ids: they come back as they were from every encoding, order in tables as they do in memory, and two identities never share a key.

use super::Reader;
use crate::model::id::{EffectId, IdempotencyKey, JobId, JobKey, KindId, Token};
use crate::rules::{effect, outbox};
use crate::store;
use serde::Serialize;
use serde::de::DeserializeOwned;
use std::fmt::Debug;

/// Everything that tells one request to a provider from another.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Identity {
    scope: String,
    kind: String,
    key: JobKey,
    incarnation: u32,
    effect: EffectId,
    generation: u32,
}

impl Identity {
    fn key(&self) -> IdempotencyKey {
        effect::idempotency_key(&self.scope, &self.kind, &self.key, self.incarnation, &self.effect, self.generation)
    }
}

/// Two identities out of the same letters, cut at different places; and numbers.
pub fn ids(bytes: &[u8]) -> usize {
    let mut r = Reader::new(bytes);
    let numbers = [r.number(), r.number()];
    let cuts: [[usize; 4]; 2] = std::array::from_fn(|_| std::array::from_fn(|_| usize::from(r.byte())));
    let small: [u32; 4] = std::array::from_fn(|_| u32::from(r.byte()));
    let text = String::from_utf8_lossy(r.rest()).into_owned();
    let [a, b] = [(cuts[0], &small[..2]), (cuts[1], &small[2..])].map(|(cuts, small)| identity(&text, cuts, small));
    keys(&a, &b);
    for id in [&a, &b] {
        comes_back(&id.key);
        comes_back(&id.effect);
        assert_eq!(JobKey::from(id.key.as_str()), id.key);
        assert_eq!(id.key.to_string(), id.key.as_str());
        // What the sidecar calls a topic is no job's number.
        assert!(outbox::tag(&id.kind).number() >> 63 == 1);
    }
    let kinds = small.map(KindId);
    store::intent_keys((kinds[0], a.key.as_str()), (kinds[2], b.key.as_str()));
    of_numbers(numbers);
    store::words(numbers[0], numbers[1]);
    text.len()
}

fn identity(text: &str, cuts: [usize; 4], small: &[u32]) -> Identity {
    let mut rest = text;
    let mut cut = |at: usize| {
        let at = (0..=at.min(rest.len())).rev().find(|at| rest.is_char_boundary(*at)).unwrap_or(0);
        let (part, after) = rest.split_at(at);
        rest = after;
        part.to_owned()
    };
    let [scope, kind, key, name] = cuts.map(&mut cut);
    let effect = EffectId { name, part: rest.to_owned() };
    let [incarnation, generation] = [0, 1].map(|n| small.get(n).copied().unwrap_or(0));
    Identity { scope, kind, key: key.into(), incarnation, effect, generation }
}

fn keys(a: &Identity, b: &Identity) {
    let [of_a, of_b] = [a, b].map(Identity::key);
    assert_eq!(of_a == of_b, a == b, "{a:?} {b:?}");
    assert_eq!(a.clone().key(), of_a, "the same key on every call");
    let hex = |c: u8| c.is_ascii_digit() || (b'a'..=b'f').contains(&c);
    assert!(of_a.as_str().len() == 64 && of_a.as_str().bytes().all(hex), "{of_a}");
    comes_back(&of_a);
}

fn of_numbers(numbers: [u64; 2]) {
    let [a, b] = numbers;
    for n in numbers {
        assert_eq!(JobId::from_number(n).number(), n);
        assert_eq!(JobId(n).to_string().parse(), Ok(n));
        comes_back(&JobId(n));
        comes_back(&Token(n));
        let epoch = Token(n).epoch();
        assert!(Token::first_of(epoch) <= Token(n) && Token::first_of(epoch).epoch() == epoch);
    }
    assert_eq!(JobId(a).cmp(&JobId(b)), a.cmp(&b));
    assert_eq!(Token(a).cmp(&Token(b)), a.cmp(&b));
    // A token of a later epoch is greater, whatever the counters were.
    assert!(Token(a).epoch() >= Token(b).epoch() || Token(a) < Token(b));
}

/// In both encodings of an app.
fn comes_back<T: Serialize + DeserializeOwned + PartialEq + Debug>(value: &T) {
    let json = serde_json::to_vec(value).map(|json| serde_json::from_slice::<T>(&json));
    assert!(matches!(&json, Ok(Ok(read)) if read == value), "{value:?}: {json:?}");
    let compact = store::encode_app(value).and_then(|bytes| store::decode_app::<T>(&bytes));
    assert!(matches!(&compact, Ok(read) if read == value), "{value:?}: {compact:?}");
}
