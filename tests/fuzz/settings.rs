//! Properties files: unknown keys are told, known ones keep their old defaults, and no secret is ever shown.

use std::time::Duration;

use evenkeel::Config;
use evenkeel::config::Reset;

const SECRET: &str = "canary7391";

/// What the file does not name at all has the default that it always had.
fn assert_defaults(text: &str, config: &Config) {
    let is_named = |key: &str| text.contains(key) || text.contains('\\');
    let millis = Duration::from_millis;
    for (key, holds) in [
        (
            "zookeeper.session.timeout.ms",
            config.session_timeout == millis(6000),
        ),
        ("rebalance.max.retries", config.rebalance_max_retries == 4),
        (
            "auto.commit.interval.ms",
            config.auto_commit_interval == millis(60_000),
        ),
        ("auto.commit.enable", config.auto_commit),
        (
            "auto.offset.reset",
            config.auto_offset_reset == Reset::Largest,
        ),
        (
            "fetch.message.max.bytes",
            config.fetch_message_max_bytes == 1 << 20,
        ),
    ] {
        assert!(holds || is_named(key), "{key} is not its default");
    }
}

/// The file, and behind it a secret, a key that nobody knows, and a word that says what was forced.
fn with_secret(bytes: &[u8], key: &str) -> Result<Config, String> {
    let more = format!("\n\n{key}={SECRET}\nno.such.key={SECRET}\n");
    let text = [bytes, more.as_bytes()].concat();
    Config::from_reader(&text[..]).map_err(|error| format!("{error} {error:?}"))
}

/// Security 6 and 11 of the settings.
pub fn properties(bytes: &[u8]) {
    if let Ok(config) = Config::from_reader(bytes) {
        assert_defaults(&String::from_utf8_lossy(bytes), &config);
        config.check().unwrap();
    }
    for key in [
        "kafka.plugin.token",
        "kafka.sasl.password",
        "sasl.jaas.config",
        "ssl.key.password",
    ] {
        match with_secret(bytes, key) {
            Err(told) => assert!(!told.contains(SECRET), "{told}"),
            Ok(config) => {
                let told = format!("{config:?} {:?}", config.warnings());
                assert!(!told.contains(SECRET), "{told}");
                assert!(told.contains("no.such.key"), "{told}");
                let kafka = config.kafka_settings();
                assert!(kafka.values().any(|value| value == SECRET), "{key}");
                assert_eq!(kafka["enable.auto.commit"], "false");
                assert_eq!(kafka["enable.auto.offset.store"], "false");
                assert_eq!(kafka["auto.offset.reset"], "error");
            }
        }
    }
}
