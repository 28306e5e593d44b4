//! Broker nodes: where the brokers listen (L-46).

use std::collections::BTreeMap;
use std::fmt;

use crate::error::{Error, Result, printable};
use crate::wire::{MAX_VALUE, quote};

/// What a broker with old clients in mind listens on, and what a listener without a name is.
const PLAINTEXT: &str = "PLAINTEXT";

/// What one broker registered.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Broker {
    /// The version of the registration, 1 or more. It follows `inter.broker.protocol.version`, so it may be lower than
    /// the broker's release suggests, never higher.
    pub version: u32,
    /// The listeners that a client could connect to, in the broker's order. May be empty.
    pub endpoints: Vec<Endpoint>,
}

impl Broker {
    /// The first listener that speaks this protocol (`PLAINTEXT`, `SSL`, `SASL_PLAINTEXT`, `SASL_SSL`).
    pub fn endpoint(&self, protocol: &str) -> Option<&Endpoint> {
        self.endpoints
            .iter()
            .find(|endpoint| endpoint.protocol.eq_ignore_ascii_case(protocol))
    }
}

/// One listener of a broker; shown as `host:port`, with brackets around an IPv6 address.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Endpoint {
    /// The listener's name, which for brokers before 0.10.2 is the protocol.
    pub listener: String,
    /// The security protocol in capitals, by the broker's own map if it has one.
    pub protocol: String,
    /// Host name or address, never empty and without brackets.
    pub host: String,
    /// The port, never 0.
    pub port: u16,
}

impl fmt::Display for Endpoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", bracketed(&self.host), self.port)
    }
}

fn bracketed(host: &str) -> String {
    if host.contains(':') {
        format!("[{host}]")
    } else {
        host.to_owned()
    }
}

/// The lowest version of these registrations, by which the fallback for old brokers goes (docs/brokers.md); `None` for none.
pub fn lowest_version<'a>(brokers: impl IntoIterator<Item = &'a Broker>) -> Option<u32> {
    brokers.into_iter().map(|broker| broker.version).min()
}

/// The data of a broker node with one PLAINTEXT listener, as Kafka 0.9 wrote it; every old consumer can read it.
///
/// For trees of our own making, as in tests. The timestamp, which nobody reads, is 0.
pub fn encode_broker(host: &str, port: u16) -> Vec<u8> {
    let endpoint = quote(&format!("{PLAINTEXT}://{}:{port}", bracketed(host))).replace("\\/", "/");
    format!(
        "{{\"jmx_port\":-1,\"timestamp\":\"0\",\"endpoints\":[{endpoint}],\"host\":{},\"version\":2,\"port\":{port}}}",
        quote(host)
    )
    .into_bytes()
}

/// Reads a broker node of any version from 1 on; what versions above 5 may add is not looked at.
///
/// Version 1 has one PLAINTEXT listener, `host` and `port`. Later ones have `endpoints`, and `host` may be null; if there
/// are none, `host` and `port` count. Listeners without a host or with a port out of range are left out.
///
/// # Errors
/// [`Malformed`](crate::error::ErrorKind::Malformed) if it is not a JSON object with a `version`, an endpoint cannot be
/// taken apart, a host has characters that no host has, or it is longer than [`MAX_VALUE`].
pub fn decode_broker(data: &[u8]) -> Result<Broker> {
    if data.len() > MAX_VALUE {
        return Err(malformed("it is longer than 1 MiB"));
    }
    let node: Node = serde_json::from_slice(data).map_err(|error| malformed(&error.to_string()))?;
    if node.version == 0 {
        return Err(malformed("its version is 0"));
    }
    Ok(Broker {
        version: node.version,
        endpoints: endpoints(&node)?,
    })
}

#[derive(serde::Deserialize)]
struct Node {
    version: u32,
    host: Option<String>,
    port: Option<i64>,
    endpoints: Option<Vec<String>>,
    listener_security_protocol_map: Option<BTreeMap<String, String>>,
}

fn malformed(reason: &str) -> Error {
    Error::malformed(format!("malformed broker node: {}", printable(reason)))
}

fn endpoints(node: &Node) -> Result<Vec<Endpoint>> {
    let listed = node.endpoints.as_deref().unwrap_or_default();
    if node.version == 1 || listed.is_empty() {
        let host = node.host.as_deref().unwrap_or_default();
        let only = endpoint(PLAINTEXT, PLAINTEXT, host, node.port.unwrap_or(-1))?;
        return Ok(only.into_iter().collect());
    }
    let mut endpoints = Vec::new();
    for text in listed {
        endpoints.extend(listener(text, node)?);
    }
    Ok(endpoints)
}

/// One of `endpoints`: `<listener>://<host>:<port>`.
fn listener(text: &str, node: &Node) -> Result<Option<Endpoint>> {
    let (name, address) = text.split_once("://").unwrap_or((PLAINTEXT, text));
    let parts = address.rsplit_once(':');
    let Some((host, Ok(port))) = parts.map(|(host, port)| (host, port.parse::<i64>())) else {
        return Err(malformed(&format!(
            "endpoint \"{}\" is not listener://host:port",
            printable(text)
        )));
    };
    let map = node.listener_security_protocol_map.as_ref();
    let protocol = map.and_then(|map| map.get(name)).map_or(name, |p| p);
    endpoint(name, protocol, host, port)
}

fn endpoint(listener: &str, protocol: &str, host: &str, port: i64) -> Result<Option<Endpoint>> {
    let host = host.strip_prefix('[').unwrap_or(host);
    let host = host.strip_suffix(']').unwrap_or(host);
    // Kafka's own set; a comma, say, would become two brokers in a bootstrap list.
    let is_host = |b: u8| b.is_ascii_alphanumeric() || b"-%._:".contains(&b);
    if !host.bytes().all(is_host) {
        let shown = printable(host);
        return Err(malformed(&format!("\"{shown}\" is not a host")));
    }
    let port = u16::try_from(port).ok().filter(|port| *port > 0);
    Ok(port.filter(|_| !host.is_empty()).map(|port| Endpoint {
        listener: listener.to_owned(),
        protocol: protocol.to_ascii_uppercase(),
        host: host.to_owned(),
        port,
    }))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::error::ErrorKind;
    use proptest::prelude::*;

    fn read(text: &str) -> Broker {
        decode_broker(text.as_bytes()).unwrap()
    }
    fn shown(broker: &Broker) -> Vec<String> {
        let text = |e: &Endpoint| format!("{} {} {e}", e.listener, e.protocol);
        broker.endpoints.iter().map(text).collect()
    }

    #[test]
    fn a_broker_node_of_version_1_has_one_plaintext_listener() {
        let broker = read(
            r#"{"jmx_port":-1,"timestamp":"1441234567890","host":"k1.example.com","version":1,"port":9092}"#,
        );
        assert_eq!(broker.version, 1);
        assert_eq!(shown(&broker), ["PLAINTEXT PLAINTEXT k1.example.com:9092"]);
    }

    #[test]
    fn broker_nodes_of_versions_2_and_3_list_their_listeners() {
        let broker = read(
            r#"{"jmx_port":-1,"timestamp":"1446000000000","endpoints":["PLAINTEXT://k1:9092","SSL://k1:9093"],"host":"k1","version":2,"port":9092}"#,
        );
        assert_eq!(broker.version, 2);
        assert_eq!(
            shown(&broker),
            ["PLAINTEXT PLAINTEXT k1:9092", "SSL SSL k1:9093"]
        );
        assert_eq!(broker.endpoint("ssl").unwrap().port, 9093);
        assert!(broker.endpoint("SASL_SSL").is_none());
        let broker = read(
            r#"{"jmx_port":-1,"timestamp":"1","endpoints":["PLAINTEXT://k1:9092"],"host":"k1","version":3,"port":9092,"rack":"r1"}"#,
        );
        assert_eq!((broker.version, broker.endpoints.len()), (3, 1));
    }

    #[test]
    fn later_broker_nodes_say_what_their_listeners_speak() {
        let broker = read(
            r#"{"listener_security_protocol_map":{"INSIDE":"SASL_SSL","OPEN":"PLAINTEXT"},"endpoints":["INSIDE://k1:9094","OPEN://k1.example.com:9092"],"rack":null,"jmx_port":-1,"host":null,"timestamp":"1","port":-1,"version":4}"#,
        );
        assert_eq!(
            shown(&broker),
            [
                "INSIDE SASL_SSL k1:9094",
                "OPEN PLAINTEXT k1.example.com:9092"
            ]
        );
        assert_eq!(broker.endpoint("PLAINTEXT").unwrap().listener, "OPEN");
        let broker = read(
            r#"{"features":{},"listener_security_protocol_map":{"PLAINTEXT":"PLAINTEXT"},"endpoints":["PLAINTEXT://localhost:9092"],"jmx_port":-1,"port":9092,"host":"localhost","version":5,"timestamp":"1"}"#,
        );
        assert_eq!(shown(&broker), ["PLAINTEXT PLAINTEXT localhost:9092"]);
        assert_eq!(
            read(r#"{"version":9,"endpoints":["SSL://a:1"]}"#).version,
            9
        );
    }

    #[test]
    fn ipv6_hosts_are_read_and_shown_in_brackets() {
        for text in [
            r#"{"version":1,"host":"::1","port":9092}"#,
            r#"{"version":1,"host":"[::1]","port":9092}"#,
            r#"{"version":2,"host":"::1","port":9092,"endpoints":["PLAINTEXT://[::1]:9092"]}"#,
            r#"{"version":2,"host":"::1","port":9092,"endpoints":["[::1]:9092"]}"#,
            r#"{"version":2,"host":"::1","port":9092,"endpoints":["PLAINTEXT://::1:9092"]}"#,
        ] {
            let broker = read(text);
            assert_eq!(broker.endpoints[0].host, "::1", "{text}");
            assert_eq!(shown(&broker), ["PLAINTEXT PLAINTEXT [::1]:9092"], "{text}");
        }
    }

    #[test]
    fn listeners_nobody_can_reach_are_left_out() {
        for text in [
            r#"{"version":1,"host":null,"port":-1}"#,
            r#"{"version":1}"#,
            r#"{"version":2,"endpoints":[],"host":null,"port":-1}"#,
            r#"{"version":2,"endpoints":["PLAINTEXT://:9092","SSL://h:0","SSL://h:-1","SSL://h:65536"]}"#,
        ] {
            assert!(read(text).endpoints.is_empty(), "{text}");
        }
        let broker = read(r#"{"version":4,"endpoints":[],"host":"h","port":9092}"#);
        assert_eq!(shown(&broker), ["PLAINTEXT PLAINTEXT h:9092"]);
    }

    #[test]
    fn a_broker_node_that_cannot_be_understood_is_refused() {
        for bad in [
            "",
            "null",
            "[]",
            "{}",
            r#"{"host":"h","port":1}"#,
            r#"{"version":0,"host":"h","port":1}"#,
            r#"{"version":-1,"host":"h","port":1}"#,
            r#"{"version":2,"endpoints":"PLAINTEXT://h:1"}"#,
            r#"{"version":2,"endpoints":["PLAINTEXT://h"]}"#,
            r#"{"version":2,"endpoints":["PLAINTEXT://h:x"]}"#,
            r#"{"version":1,"host":"a,b","port":1}"#,
            r#"{"version":1,"host":"a b","port":1}"#,
            r#"{"version":1,"host":"a\nb","port":1}"#,
            "{\"version\":1,\"host\":\"a\",\"port\":1} x",
        ] {
            let error = decode_broker(bad.as_bytes()).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Malformed, "{bad}");
            assert!(!error.to_string().contains('\n'), "{bad}");
        }
        assert!(decode_broker(&[b' '; MAX_VALUE + 1]).is_err());
    }

    #[test]
    fn our_broker_node_is_what_kafka_0_9_wrote() {
        assert_eq!(
            String::from_utf8(encode_broker("k1", 9092)).unwrap(),
            r#"{"jmx_port":-1,"timestamp":"0","endpoints":["PLAINTEXT://k1:9092"],"host":"k1","version":2,"port":9092}"#
        );
        let broker = decode_broker(&encode_broker("::1", 9092)).unwrap();
        assert_eq!(shown(&broker), ["PLAINTEXT PLAINTEXT [::1]:9092"]);
    }

    #[test]
    fn the_oldest_registration_counts() {
        let brokers = [3, 1, 5].map(|version| Broker {
            version,
            endpoints: Vec::new(),
        });
        assert_eq!(lowest_version(&brokers), Some(1));
        assert_eq!(lowest_version(&[]), None);
    }

    proptest! {
        #[test]
        fn a_broker_node_never_panics(data in prop_oneof![
            any::<Vec<u8>>(),
            "\\{\"version\":[0-9]{1,2},\"endpoints\":\\[\"[A-Z:/\\[\\]0-9]{0,12}\"\\],\"host\":\"[\\[\\]:a]{0,4}\",\"port\":-?[0-9]{1,6}\\}"
                .prop_map(String::into_bytes),
        ]) {
            if let Ok(broker) = decode_broker(&data) {
                prop_assert!(broker.endpoints.iter().all(|e| !e.host.is_empty() && e.port > 0));
            }
        }
    }
}
