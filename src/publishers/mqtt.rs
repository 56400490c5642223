//! Messages to an MQTT 5 broker at QoS 1: the topic as it is, the id as the user property `onceward-id`, and taken is what the
//! broker has acknowledged (PubAck).
//!
//! MQTT has no memory of ids: a message arrives at least once, and the receiver dedupes by `onceward-topic` and `onceward-id`.
//! Refused for good: a topic or a header MQTT does not allow, a packet too large for the broker, a PubAck that says bad topic name or
//! bad payload. "Not authorised" is "again": the broker's rules can be mended. An acknowledgement without subscribers is taken.

use super::{PATIENCE, again, card, never, reserved};
use crate::handler::fail::{Fail, Outcome};
use crate::handler::publish::AsyncPublisher;
use crate::model::outbox::Message;
use rumqttc::v5::mqttbytes::v5::{DisconnectReasonCode, PubAck, PubAckReason, PublishProperties};
use rumqttc::v5::mqttbytes::{Error as MqttError, QoS, valid_topic};
use rumqttc::v5::{AsyncClient, ConnectionError, Event, EventLoop, Incoming, MqttOptions, StateError};
use std::time::Duration;
use tokio::sync::Mutex;
use tokio::time::timeout;

/// Publishes to a broker over plain TCP; for TLS give options with a transport ([`Mqtt::with_options`]) and switch the feature of
/// `rumqttc` on.
pub struct Mqtt {
    options: MqttOptions,
    patience: Duration,
    live: Mutex<Option<Live>>,
}

/// One session. It is given up at the first error, so that nothing is sent again behind the relay's back.
struct Live {
    client: AsyncClient,
    events: EventLoop,
}

/// What becomes of the session.
enum Trouble {
    /// The broker said no; the session goes on.
    Said(Fail),
    /// The session ended, not for this message.
    Lost(Fail),
    /// The session ended because of this message.
    Ended(Fail),
}

/// The longest string MQTT has a length for.
const LONGEST: usize = u16::MAX as usize;

impl Mqtt {
    /// To this broker, under a client id that nobody else uses: a broker ends the older of two sessions with the same id. Connects
    /// at the first message.
    pub fn at(host: &str, port: u16, client_id: &str) -> Self {
        Self::with_options(MqttOptions::new(client_id, host, port))
    }
    /// With options of the app's: login, transport, last will. The session is always a clean one, since the relay keeps what is
    /// not acknowledged.
    pub fn with_options(mut options: MqttOptions) -> Self {
        options.set_clean_start(true);
        Self { options, patience: PATIENCE, live: Mutex::new(None) }
    }
    /// Logs in with this name and password.
    pub fn login(mut self, user: &str, password: &str) -> Self {
        self.options.set_credentials(user, password);
        self
    }
    /// How long to wait for one acknowledgement, a new connection included: 15 s unless set.
    pub fn timeout(mut self, timeout: Duration) -> Self {
        self.patience = timeout;
        self
    }

    /// One message, within one patience: a second session is part of it.
    async fn publish(&self, held: &mut Option<Live>, message: &Message) -> Outcome<()> {
        let silent = |_| Err(again(format!("no acknowledgement from the MQTT broker within {:?}", self.patience)));
        timeout(self.patience, self.acknowledge(held, message)).await.unwrap_or_else(silent)
    }
    async fn acknowledge(&self, held: &mut Option<Live>, message: &Message) -> Outcome<()> {
        let properties = properties(message)?;
        // A session that lay idle may have ended long ago, and only trying tells: then once more on a new one.
        let mut fresh = held.is_none();
        loop {
            // Taken out while it is used: a call that is dropped half-way leaves no session that waits for another's answer.
            let mut live = held.take().unwrap_or_else(|| {
                let (client, events) = AsyncClient::new(self.options.clone(), 1);
                Live { client, events }
            });
            let sent = live.send(message, properties.clone());
            match sent.await {
                Ok(()) => {
                    *held = Some(live);
                    return Ok(());
                }
                Err(Trouble::Said(fail)) => {
                    *held = Some(live);
                    return Err(fail);
                }
                Err(Trouble::Lost(_)) if !fresh => fresh = true,
                Err(Trouble::Lost(fail) | Trouble::Ended(fail)) => return Err(fail),
            }
        }
    }
}

impl AsyncPublisher for Mqtt {
    async fn publish_all(&self, messages: Vec<Message>) -> Vec<Outcome<()>> {
        let mut held = self.live.lock().await;
        let mut told = Vec::with_capacity(messages.len());
        // One after the other: a refused packet ends the session, and with it the acknowledgements of all that are on their way.
        for message in &messages {
            let one = self.publish(&mut held, message).await;
            let stop = one.is_err();
            told.push(one);
            if stop {
                break;
            }
        }
        told
    }
}

impl Live {
    async fn send(&mut self, message: &Message, properties: PublishProperties) -> Result<(), Trouble> {
        let (topic, body) = (message.topic.clone(), message.body.clone());
        // The room for one request is empty: every earlier one was taken before its acknowledgement came.
        let asked = self.client.publish_with_properties(topic, QoS::AtLeastOnce, false, body, properties).await;
        asked.map_err(|e| Trouble::Lost(again(format!("MQTT: {e}"))))?;
        let mut waiting = None;
        loop {
            match self.events.poll().await.map_err(|e| judge(&e))? {
                Event::Outgoing(rumqttc::Outgoing::Publish(packet)) => waiting = Some(packet),
                Event::Incoming(Incoming::PubAck(ack)) if waiting == Some(ack.pkid) => {
                    return acknowledged(&ack).map_err(Trouble::Said);
                }
                Event::Incoming(_) | Event::Outgoing(_) => {}
            }
        }
    }
}

fn acknowledged(ack: &PubAck) -> Outcome<()> {
    let said = ack.properties.as_ref().and_then(|p| p.reason_string.as_deref()).unwrap_or_default();
    let text = || format!("the MQTT broker answers {:?} {said}", ack.reason);
    match ack.reason {
        PubAckReason::Success | PubAckReason::NoMatchingSubscribers => Ok(()),
        PubAckReason::TopicNameInvalid | PubAckReason::PayloadFormatInvalid => Err(never(text())),
        PubAckReason::NotAuthorized
        | PubAckReason::UnspecifiedError
        | PubAckReason::ImplementationSpecificError
        | PubAckReason::PacketIdentifierInUse
        | PubAckReason::QuotaExceeded => Err(again(text())),
    }
}

/// An error that ended the session. Some of them judge the message that was on its way.
fn judge(e: &ConnectionError) -> Trouble {
    use DisconnectReasonCode::{PacketTooLarge, PayloadFormatInvalid, TopicNameInvalid};
    let about_it = if let ConnectionError::MqttState(StateError::ServerDisconnect { reason_code, .. }) = e {
        matches!(reason_code, PacketTooLarge | TopicNameInvalid | PayloadFormatInvalid)
    } else if let ConnectionError::MqttState(StateError::Deserialization(e)) = e {
        matches!(e, MqttError::OutgoingPacketTooLarge { .. })
    } else {
        false
    };
    if about_it {
        return Trouble::Ended(never(format!("the MQTT broker does not take the message: {e}")));
    }
    Trouble::Lost(again(format!("the connection to the MQTT broker failed: {e}")))
}

fn properties(message: &Message) -> Outcome<PublishProperties> {
    let fits = |text: &str| text.len() <= LONGEST && !text.contains('\0');
    if message.topic.is_empty() || !fits(&message.topic) || !valid_topic(&message.topic) {
        let topic = &message.topic;
        return Err(never(format!(
            "{topic:?} is no topic of MQTT: not empty, no +, no #, no zero character, 65535 bytes"
        )));
    }
    let mut user: Vec<(String, String)> = Vec::new();
    for (name, value) in &message.headers {
        reserved(name, &[])?;
        user.push((name.clone(), value.clone()));
    }
    user.extend(card(message).map(|(name, value)| (name.to_ascii_lowercase(), value.to_owned())));
    if let Some((name, _)) = user.iter().find(|(name, value)| !fits(name) || !fits(value)) {
        return Err(never(format!("{name:?} does not fit into a property of MQTT: 65535 bytes, no zero character")));
    }
    let text = std::str::from_utf8(&message.body).is_ok();
    Ok(PublishProperties {
        payload_format_indicator: text.then_some(1),
        content_type: Some("application/json".to_owned()),
        user_properties: user,
        ..PublishProperties::default()
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_mqtt_cannot_carry_is_refused_before_it_is_sent() {
        let of = |topic: &str| properties(&Message::new(topic, "1", b"{}".to_vec()));
        assert!(of("orders/paid").is_ok());
        for bad in ["", "a/+", "a/#", "a\0", &"x".repeat(65_536)] {
            assert!(of(bad).is_err(), "{} bytes", bad.len());
        }
        let mut message = Message::new("t", "1", b"{}".to_vec());
        message.headers = vec![("note".into(), "x".repeat(65_536))];
        assert!(properties(&message).is_err());
        message.headers = vec![("onceward-id".into(), "2".into())];
        assert!(properties(&message).is_err());
    }
}
