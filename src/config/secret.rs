//! What must not be shown.

/// What stands in the place of a secret.
pub(super) const REDACTED: &str = "[redacted]";

/// Parts of a Kafka client's key that mark its value as secret.
const MARKS: [&str; 9] = [
    "password",
    "passwd",
    "secret",
    "token",
    "jaas",
    "oauth",
    "credential",
    "pem",
    "username",
];

/// Values below `sasl.` and `ssl.` that may be shown; all others there may not.
const HARMLESS: [&str; 12] = [
    "sasl.mechanism",
    "sasl.mechanisms",
    "sasl.kerberos.service.name",
    "ssl.ca.location",
    "ssl.certificate.location",
    "ssl.cipher.suites",
    "ssl.crl.location",
    "ssl.curves.list",
    "ssl.endpoint.identification.algorithm",
    "ssl.key.location",
    "ssl.keystore.location",
    "ssl.sigalgs.list",
];

/// Whether the value of this key of the Kafka client must not be shown.
pub(super) fn is_secret(key: &str) -> bool {
    let key = key.to_ascii_lowercase();
    let is_security = key.starts_with("sasl.") || key.starts_with("ssl.");
    MARKS.iter().any(|mark| key.contains(mark)) || (is_security && !HARMLESS.contains(&&*key))
}

/// The value, or what may stand in its place.
pub(super) fn shown(key: &str, value: &str) -> String {
    if is_secret(key) { REDACTED } else { value }.to_owned()
}
