//! MQTT 5, against mosquitto.

use super::{again, message, one, refused, run, server, unique};
use crate::ground::thread;
use onceward::publishers::Mqtt;
use onceward::publishers::rumqttc::v5::mqttbytes::QoS;
use onceward::publishers::rumqttc::v5::mqttbytes::v5::Publish;
use onceward::publishers::rumqttc::v5::{AsyncClient, Event, EventLoop, Incoming, MqttOptions};
use onceward::{AsyncPublisher, Message};
use std::collections::HashSet;
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::time::Duration;

pub(super) fn split(address: &str) -> (String, u16) {
    let (host, port) = address.split_once(':').unwrap();
    (host.to_owned(), port.parse().unwrap())
}

/// Somebody who has subscribed to a topic.
pub(super) struct Subscriber {
    _client: AsyncClient,
    events: EventLoop,
}

impl Subscriber {
    pub(super) async fn new(address: &str, topic: &str) -> Self {
        let (host, port) = split(address);
        let (client, events) = AsyncClient::new(MqttOptions::new(unique("sub"), host, port), 10);
        client.subscribe(topic, QoS::AtLeastOnce).await.unwrap();
        let mut subscriber = Self { _client: client, events };
        while !matches!(subscriber.events.poll().await.unwrap(), Event::Incoming(Incoming::SubAck(_))) {}
        subscriber
    }
    pub(super) async fn next(&mut self) -> Publish {
        loop {
            if let Event::Incoming(Incoming::Publish(publish)) = self.events.poll().await.unwrap() {
                return publish;
            }
        }
    }
}

pub(super) fn property(publish: &Publish, name: &str) -> String {
    let properties = &publish.properties.as_ref().unwrap().user_properties;
    properties.iter().find(|(n, _)| n == name).map(|(_, value)| value.clone()).unwrap()
}

/// A repeated message arrives as often as it is sent, each time with its topic and id: a receiver that remembers them has it once.
#[test]
fn mqtt_delivers_at_least_once_with_the_id_to_dedupe_by() {
    let Some(address) = server("ONCEWARD_MQTT") else { return };
    run(async {
        let topic = unique("orders/paid");
        let mut subscriber = Subscriber::new(&address, &topic).await;
        let (host, port) = split(&address);
        let mqtt = Mqtt::at(&host, port, &unique("pub"));
        let a = message(&topic, "ü/1");
        one(&mqtt, &a).await.unwrap();
        one(&mqtt, &a).await.unwrap();
        let told = mqtt.publish_all(vec![message(&topic, "2"), message(&topic, "3")]).await;
        assert!(told.len() == 2 && told.iter().all(Result::is_ok), "{told:?}");
        let (mut got, mut once) = (Vec::new(), HashSet::new());
        while got.len() < 4 {
            let publish = subscriber.next().await;
            once.insert((property(&publish, "onceward-topic"), property(&publish, "onceward-id")));
            got.push(publish);
        }
        let order: Vec<_> = got.iter().map(|p| property(p, "onceward-id")).collect();
        assert_eq!(order, ["ü/1", "ü/1", "2", "3"]);
        assert_eq!(once.len(), 3);
        assert_eq!((&got[0].payload[..], got[0].qos), (&a.body[..], QoS::AtLeastOnce));
        assert_eq!(property(&got[0], "traceparent"), "00-1-2-03");
        assert_eq!(property(&got[0], "onceward-kind"), "order-paid");
        println!("mqtt: 4 publications, {} messages for a receiver that remembers", once.len());
    });
}

/// What the broker will never take is final, what cannot be sent is not tried, and the session goes on afterwards.
#[test]
fn mqtt_refuses_for_good_what_the_broker_will_never_take() {
    let Some(address) = server("ONCEWARD_MQTT") else { return };
    run(async {
        let (host, port) = split(&address);
        let mqtt = Mqtt::at(&host, port, &unique("pub"));
        // The broker's rules can be mended: that is no judgement of the message.
        again(&one(&mqtt, &message("forbidden/orders", "1")).await, "NotAuthorized");
        refused(&one(&mqtt, &message("orders/#", "1")).await, "no topic of MQTT");
        let large = Message::new("orders", "2", vec![b'1'; 1 << 20]);
        refused(&one(&mqtt, &large).await, "does not take the message");
        let told = mqtt.publish_all(vec![message("orders", "3"), large, message("orders", "4")]).await;
        assert!(told.len() == 2 && told[0].is_ok(), "{told:?}");
        refused(&told[1], "does not take the message");
        one(&mqtt, &message("orders", "4")).await.unwrap();
    });
}

/// One packet of MQTT: its first byte and the rest, without the length; `None` when the connection has ended.
fn packet(stream: &mut TcpStream) -> Option<(u8, Vec<u8>)> {
    let mut byte = [0];
    stream.read_exact(&mut byte).ok()?;
    let (first, mut length, mut shift) = (byte[0], 0, 0);
    loop {
        stream.read_exact(&mut byte).ok()?;
        length |= usize::from(byte[0] & 127) << shift;
        shift += 7;
        if byte[0] < 128 {
            break;
        }
    }
    let mut rest = vec![0; length];
    stream.read_exact(&mut rest).ok()?;
    Some((first, rest))
}

#[expect(clippy::disallowed_methods, reason = "nothing is waited for: the broker is slow")]
fn slow(late: Duration) {
    std::thread::sleep(late);
}

/// A broker that ends the session at its second message, late, and in the next session acknowledges as late: each within the
/// patience, both together not.
fn slow_broker(late: Duration) -> u16 {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    thread(move || {
        let mut published = 0;
        for stream in listener.incoming() {
            let mut stream = stream.unwrap();
            while let Some((first, rest)) = packet(&mut stream) {
                match first >> 4 {
                    1 => drop(stream.write_all(&[0x20, 3, 0, 0, 0])),
                    3 => {
                        published += 1;
                        if published > 1 {
                            slow(late);
                        }
                        if published == 2 {
                            break;
                        }
                        let at = 2 + usize::from(u16::from_be_bytes([rest[0], rest[1]]));
                        drop(stream.write_all(&[0x40, 2, rest[at], rest[at + 1]]));
                    }
                    _ => {}
                }
            }
        }
    });
    port
}

/// A session ends late and the next one acknowledges late: the call takes no longer than it was told to, whatever it tries.
#[test]
fn a_second_session_has_no_patience_of_its_own() {
    run(async {
        let patience = Duration::from_secs(2);
        let mqtt = Mqtt::at("127.0.0.1", slow_broker(patience * 2 / 3), &unique("pub")).timeout(patience);
        one(&mqtt, &message("orders", "1")).await.unwrap();
        again(&one(&mqtt, &message("orders", "2")).await, "no acknowledgement from the MQTT broker within 2s");
    });
}

/// Another session takes the client id, so the broker ends ours while it lies idle: the next message goes out on a new one.
#[test]
fn an_idle_session_that_the_broker_ended_costs_no_message() {
    let Some(address) = server("ONCEWARD_MQTT") else { return };
    run(async {
        let (host, port) = split(&address);
        let (topic, id) = (unique("idle"), unique("pub"));
        let mut subscriber = Subscriber::new(&address, &topic).await;
        let mqtt = Mqtt::at(&host, port, &id);
        one(&mqtt, &message(&topic, "1")).await.unwrap();
        let thief = Mqtt::at(&host, port, &id);
        one(&thief, &message(&topic, "2")).await.unwrap();
        one(&mqtt, &message(&topic, "3")).await.unwrap();
        for id in ["1", "2", "3"] {
            assert_eq!(property(&subscriber.next().await, "onceward-id"), id);
        }
        // Port 1 of the loopback: nobody is there.
        again(&one(&Mqtt::at("127.0.0.1", 1, &id), &message(&topic, "4")).await, "failed");
    });
}
