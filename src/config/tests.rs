use proptest::prelude::*;

use super::*;

const REQUIRED: &str = "group.id=g\nzookeeper.connect=h\n";

fn read(more: &str) -> Result<Config> {
    Config::from_properties(&format!("{REQUIRED}{more}"))
}

fn config(more: &str) -> Config {
    read(more).unwrap()
}

fn refusal(more: &str) -> String {
    read(more).map(|_| ()).expect_err(more).to_string()
}

fn ms(count: u64) -> Duration {
    Duration::from_millis(count)
}

#[test]
fn defaults_are_those_of_the_table() {
    let config = Config::new("g", "h").unwrap();
    for key in KEYS {
        let has_text = !key.default.starts_with('(');
        if let (true, Some(shown)) = (has_text, (key.show)(&config)) {
            assert_eq!(shown, key.default, "{}", key.name);
        }
        if has_text {
            let read = read(&format!("{}={}", key.name, key.default));
            let read = read.unwrap_or_else(|error| panic!("{error}"));
            assert_eq!(
                read.own_pairs().collect::<Vec<_>>(),
                config.own_pairs().collect::<Vec<_>>()
            );
        }
    }
    assert_eq!(config.client_id(), "g");
    assert_eq!(config.connection_timeout(), ms(6000));
    assert_eq!(config.warnings(), [""; 0]);
    config.check().unwrap();
    assert_eq!(
        config.own_pairs().collect::<Vec<_>>(),
        self::config("").own_pairs().collect::<Vec<_>>()
    );
}

// L-130
#[test]
fn every_key_of_the_old_consumer_is_known() {
    for key in [
        "group.id",
        "zookeeper.connect",
        "consumer.id",
        "client.id",
        "zookeeper.session.timeout.ms",
        "zookeeper.connection.timeout.ms",
        "zookeeper.sync.time.ms",
        "rebalance.backoff.ms",
        "rebalance.max.retries",
        "partition.assignment.strategy",
        "auto.offset.reset",
        "auto.commit.enable",
        "auto.commit.interval.ms",
        "offsets.storage",
        "dual.commit.enabled",
        "offsets.channel.backoff.ms",
        "offsets.channel.socket.timeout.ms",
        "offsets.commit.max.retries",
        "exclude.internal.topics",
        "consumer.timeout.ms",
        "queued.max.message.chunks",
        "num.consumer.fetchers",
        "fetch.message.max.bytes",
        "fetch.max.bytes",
        "fetch.min.bytes",
        "fetch.wait.max.ms",
        "socket.timeout.ms",
        "socket.receive.buffer.bytes",
        "refresh.leader.backoff.ms",
    ] {
        let known = find(key).unwrap_or_else(|| panic!("{key}"));
        assert_ne!(known.since, "ours", "{key}");
    }
}

#[test]
fn no_key_stands_twice() {
    let names: std::collections::BTreeSet<&str> = KEYS.iter().map(|key| key.name).collect();
    assert_eq!(names.len(), KEYS.len());
}

/// Rewrite the table with `REWRITE=1`.
#[test]
fn the_documentation_lists_every_key_with_its_default() {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/docs/configuration.md");
    let text = std::fs::read_to_string(path).unwrap();
    let (begin, end) = ("<!-- keys -->\n", "<!-- end of keys -->");
    let (before, rest) = text.split_once(begin).unwrap();
    let (table, after) = rest.split_once(end).unwrap();
    if std::env::var_os("REWRITE").is_some() {
        let new = format!("{before}{begin}{}{end}{after}", markdown_table());
        std::fs::write(path, new).unwrap();
        return;
    }
    assert_eq!(table, markdown_table());
    let setting = client::settings(&Config::new("g", "h").unwrap());
    for key in setting.keys() {
        assert!(after.contains(&format!("`{key}")), "{key} is not explained");
    }
}

#[test]
fn every_key_that_is_kept_is_read_back_as_it_is_shown() {
    let text = "bootstrap.servers=a:1, b:2\nconsumer.id=c/d\nclient.id=x\nzookeeper.session.timeout.ms=7000\n\
        zookeeper.connection.timeout.ms=7\nrebalance.backoff.ms=3000\nrebalance.max.retries=5\n\
        partition.assignment.strategy=roundrobin\npartition.assignment.compat=0.10.2\nauto.offset.reset=none\n\
        auto.commit.enable=false\nauto.commit.interval.ms=7\nexclude.internal.topics=false\ninternal.topics.compat=0.8.1\n\
        fetch.message.max.bytes=7\nfetch.max.bytes=7000\nfetch.min.bytes=7\nfetch.wait.max.ms=7\nsocket.timeout.ms=7000\n\
        socket.receive.buffer.bytes=7\nrefresh.leader.backoff.ms=7\nlease=off\ndrain.timeout.ms=7\n\
        legacy.handover.delay.ms=7\ntakeover.delay.ms=7\nregistration.check.interval.ms=7\nzookeeper.dialect=3.4\n\
        malformed.peer=as_jvm\nmalformed.offset=treat_as_missing\nmax.unacked.messages=7\nmax.unacked.bytes=7\n\
        unacked.warn.age.ms=7\nmax.buffered.bytes=7\n";
    let changed = config(text);
    let default = config("");
    let pairs: BTreeMap<&str, String> = changed.own_pairs().collect();
    let defaults: BTreeMap<&str, String> = default.own_pairs().collect();
    for key in KEYS
        .iter()
        .skip(2)
        .filter(|key| pairs.contains_key(key.name))
    {
        assert_ne!(pairs.get(key.name), defaults.get(key.name), "{}", key.name);
    }
    assert_eq!(pairs.len(), text.lines().count() + 2);
    let again = Config::from_pairs(pairs.clone()).unwrap();
    assert_eq!(again.own_pairs().collect::<BTreeMap<_, _>>(), pairs);
    changed.check().unwrap();
}

#[test]
fn what_is_built_in_code_is_what_is_read() {
    let built = Config::new("g", "h")
        .unwrap()
        .with_session_timeout(ms(9000))
        .with_strategy(super::Strategy::RoundRobin)
        .with_client_id("c".to_owned())
        .with_kafka("check.crcs", "true");
    let read = config(
        "zookeeper.session.timeout.ms=9000\npartition.assignment.strategy=roundrobin\nclient.id=c\nkafka.check.crcs=true",
    );
    assert_eq!(built, read);
    assert_eq!(built.connection_timeout(), ms(9000));
}

#[test]
fn a_wrong_value_names_key_value_line_and_rule() {
    for (line, error) in [
        (
            "fetch.min.bytes=many",
            "fetch.min.bytes \"many\" at line 3 is refused: a whole number within 32 bits is wanted",
        ),
        (
            "fetch.min.bytes=3000000000",
            "fetch.min.bytes \"3000000000\" at line 3 is refused: a whole number within 32 bits is wanted",
        ),
        (
            "fetch.min.bytes=-1",
            "fetch.min.bytes \"-1\" at line 3 is refused: a whole number of 0 or more is wanted",
        ),
        (
            "zookeeper.session.timeout.ms=0",
            "zookeeper.session.timeout.ms \"0\" at line 3 is refused: a whole number of 1 or more is wanted",
        ),
        (
            "rebalance.max.retries=",
            "rebalance.max.retries \"\" at line 3 is refused: a whole number within 32 bits is wanted",
        ),
        (
            "num.consumer.fetchers=1.0",
            "num.consumer.fetchers \"1.0\" at line 3 is refused: a whole number within 32 bits is wanted",
        ),
        (
            "auto.commit.enable=TRUE",
            "auto.commit.enable \"TRUE\" at line 3 is refused: exactly true or false is wanted",
        ),
        (
            "lease=on",
            "lease \"on\" at line 3 is refused: one of quorum, off is wanted",
        ),
        (
            "auto.offset.reset=earliest",
            "auto.offset.reset \"earliest\" at line 3 is refused: that is the newer consumer's word, here it is smallest",
        ),
        (
            "client.id=a b",
            "client.id \"a b\" at line 3 is refused: only A-Z a-z 0-9 . _ - may stand here",
        ),
        (
            "bootstrap.servers=,",
            "bootstrap.servers \",\" at line 3 is refused: host:port,host:port is wanted",
        ),
        (
            "offsets.storage=Kafka",
            "offsets.storage \"Kafka\" at line 3 is refused: offsets kept in Kafka are not built yet",
        ),
        (
            "settling.window.ms=1",
            "settling.window.ms \"1\" at line 3 is refused: a settling window is not built yet; 0 is the only value",
        ),
        (
            "static.grace.ms=1",
            "static.grace.ms \"1\" at line 3 is refused: a grace time for known ids is not built yet; 0 is the only value",
        ),
        (
            "zookeeper.set.acl=true",
            "zookeeper.set.acl \"true\" at line 3 is refused: nodes that only their creator may change are not built yet",
        ),
    ] {
        assert_eq!(refusal(line), error);
    }
    assert_eq!(
        refusal("\nlease=x\ndrain.timeout.ms=-\nfetch.min.bytes=y"),
        "lease \"x\" at line 4 is refused: one of quorum, off is wanted"
    );
    let error = Config::from_properties("zookeeper.connect=h").unwrap_err();
    assert_eq!(error.to_string(), "group.id is missing");
    let error = Config::from_properties("group.id=a/b\nzookeeper.connect=h").unwrap_err();
    assert!(
        error.to_string().ends_with("not . or .. at line 1"),
        "{error}"
    );
}

// L-130
#[test]
fn values_are_read_as_java_reads_them() {
    let config = config(
        "fetch.min.bytes = \t+7 \noffsets.storage=ZooKeeper\nsocket.receive.buffer.bytes=-1\nrebalance.max.retries=007\n",
    );
    assert_eq!(config.fetch_min_bytes, 7);
    assert_eq!(config.socket_receive_buffer_bytes, None);
    assert_eq!(config.rebalance_max_retries, 7);
}

#[test]
fn the_sync_time_is_the_default_of_the_back_off_wherever_it_stands() {
    assert_eq!(
        config("zookeeper.sync.time.ms=50").rebalance_backoff,
        ms(50)
    );
    let both = config("rebalance.backoff.ms=70\nzookeeper.sync.time.ms=50");
    assert_eq!(both.rebalance_backoff, ms(70));
}

#[test]
fn without_the_timer_its_period_may_be_anything() {
    let off = config("auto.commit.enable=false\nauto.commit.interval.ms=-1");
    assert_eq!(off.auto_commit_interval, ms(60_000));
    assert!(refusal("auto.commit.interval.ms=-1").contains("1 or more"));
}

// L-30
#[test]
fn internal_topics_follow_from_the_compat_level_unless_said() {
    for (text, rule) in [
        ("", InternalTopics::OffsetsAndTransactions),
        ("partition.assignment.compat=0.8.2", InternalTopics::Offsets),
        (
            "partition.assignment.compat=0.10.2\ninternal.topics.compat=0.11",
            InternalTopics::OffsetsAndTransactions,
        ),
        (
            "exclude.internal.topics=false\ninternal.topics.compat=0.11",
            InternalTopics::None,
        ),
    ] {
        assert_eq!(config(text).internal_topics(), rule, "{text}");
    }
}

#[test]
fn what_is_unknown_or_idle_or_moved_is_told_and_no_error() {
    let text = "zk.connect=h\nnum.consumer.fetchers=4\nfetch.min.bytes=0\nsocket.timeout.ms=0\nmy.key=hunter2\nfetch.min.bytes=0";
    assert_eq!(
        config(text).warnings(),
        [
            "fetch.min.bytes stands on lines 5 and 8, the last one counts",
            "num.consumer.fetchers at line 4 has no effect: the Kafka client has one connection per broker",
            "fetch.min.bytes 0 at line 8 is taken as 1: the Kafka client bears 1 to 100000000",
            "socket.timeout.ms 0 at line 6 is taken as 300000, the longest that the Kafka client bears",
            "my.key at line 7 is unknown and ignored",
            "zk.connect at line 3 is unknown and ignored (0.7's name for zookeeper.connect)",
        ]
    );
}

// L-86, L-145
#[test]
fn times_that_go_badly_together_are_told() {
    for (text, word) in [
        ("zookeeper.session.timeout.ms=8000", "(L-86)"),
        ("drain.timeout.ms=7750", "(L-145)"),
        ("auto.commit.interval.ms=7000", "after a crash"),
        ("fetch.wait.max.ms=29500", "may time out"),
        ("lease=off", "as a JVM member does"),
    ] {
        let warnings = config(text).warnings();
        assert!(
            warnings.len() == 1 && warnings[0].contains(word),
            "{text}: {warnings:?}"
        );
    }
    assert!(config("drain.timeout.ms=7749").warnings().is_empty());
}

#[test]
fn what_is_set_in_code_is_checked_as_if_it_had_been_read() {
    let base = || Config::new("g", "h").unwrap();
    for (config, key) in [
        (
            base().with_session_timeout(ms(0)),
            "zookeeper.session.timeout.ms",
        ),
        (
            base().with_session_timeout(Duration::MAX),
            "zookeeper.session.timeout.ms",
        ),
        (base().with_rebalance_backoff(ms(0)), "rebalance.backoff.ms"),
        (base().with_fetch_min_bytes(0), "fetch.min.bytes"),
        (
            base().with_socket_receive_buffer_bytes(0),
            "socket.receive.buffer.bytes",
        ),
        (base().with_client_id("a b".to_owned()), "client.id"),
        (base().with_max_unacked_messages(0), "max.unacked.messages"),
        (base().with_kafka("group.id", "x"), "kafka.group.id"),
    ] {
        let error = config.check().unwrap_err().to_string();
        assert!(error.starts_with(key), "{error}");
        let _ = config.warnings();
    }
}

// K4, K5: commits, resets and membership are ours.
#[test]
fn the_kafka_client_gets_what_it_must_and_no_user_can_change_that() {
    let settings =
        config("kafka.fetch.queue.backoff.ms=77\nkafka.check.crcs=true\nfetch.max.bytes=500000")
            .kafka_settings();
    for (key, value) in [
        ("group.id", "g"),
        ("client.id", "g"),
        ("enable.auto.commit", "false"),
        ("enable.auto.offset.store", "false"),
        ("auto.offset.reset", "error"),
        ("fetch.queue.backoff.ms", "77"),
        ("fetch.wait.max.ms", "100"),
        ("fetch.max.bytes", "500000"),
        ("message.max.bytes", "500000"),
        ("check.crcs", "true"),
    ] {
        assert_eq!(settings[key], value, "{key}");
    }
    assert_eq!(config("").kafka_settings()["fetch.queue.backoff.ms"], "10");
    assert!(!settings.contains_key("bootstrap.servers"));
    for key in [
        "enable.auto.commit",
        "enable.auto.offset.store",
        "auto.offset.reset",
        "group.id",
        "group.instance.id",
        "bootstrap.servers",
        "fetch.min.bytes",
    ] {
        let error = refusal(&format!("kafka.{key}=hunter2"));
        assert!(
            error.starts_with(&format!("kafka.{key} at line 3 is refused: ")),
            "{error}"
        );
    }
}

#[test]
fn security_is_refused_with_the_reason_where_it_is_not_built() {
    for key in ["sasl.mechanism", "kafka.sasl.username"] {
        assert!(refusal(&format!("{key}=x")).contains("SASL towards Kafka is not built yet"));
    }
    assert!(refusal("security.protocol=SASL_SSL").contains("SASL"));
    assert_eq!(
        config("security.protocol=PLAINTEXT").kafka_settings()["security.protocol"],
        "PLAINTEXT"
    );
    let tls = read("security.protocol=SSL\nssl.ca.location=/ca");
    assert_eq!(tls.is_ok(), cfg!(feature = "tls"));
    if let Err(error) = tls {
        assert!(
            error.to_string().contains("needs the feature tls"),
            "{error}"
        );
    }
}

const CANARY: &str = "c4n4ry";

// X6
#[test]
fn no_secret_is_ever_shown() {
    for key in [
        "sasl.password",
        "sasl.username",
        "sasl.jaas.config",
        "sasl.oauthbearer.client.secret",
        "sasl.oauthbearer.config",
        "ssl.key.password",
        "ssl.keystore.password",
        "ssl.key.pem",
        "ssl.truststore.password",
        "kafka.sasl.password",
        "kafka.ssl.key.password",
        "kafka.plugin.secret",
        "kafka.enable.auto.commit",
        "kafka.",
        "zookeeper.digest",
        "my.own.password",
    ] {
        match read(&format!("{key}={CANARY}")) {
            Err(error) => assert!(!format!("{error}{error:?}").contains(CANARY), "{error}"),
            Ok(config) => assert_hidden(&config, key),
        }
        let bare = key.trim_start_matches("kafka.");
        assert_hidden(
            &Config::new("g", "h").unwrap().with_kafka(bare, CANARY),
            bare,
        );
    }
    let json =
        format!(r#"{{"group.id":"g","zookeeper.connect":"h","sasl.password":["{CANARY}"]}}"#);
    let error = serde_json::from_str::<Config>(&json)
        .unwrap_err()
        .to_string();
    assert!(!error.contains(CANARY), "{error}");
    let broken = Properties::parse(&format!("sasl.password={CANARY}\\u12"))
        .map(|_| ())
        .unwrap_err();
    assert!(!format!("{broken:?}").contains(CANARY), "{broken}");
}

fn assert_hidden(config: &Config, key: &str) {
    let is_open = matches!(key, "enable.auto.commit" | "zookeeper.digest" | "");
    let shown = format!(
        "{config:?}{config:#?}{}{:?}",
        serde_json::to_string(config).unwrap(),
        config.warnings()
    );
    assert!(is_open || !shown.contains(CANARY), "{key}: {shown}");
    if let Err(error) = config.check() {
        assert!(
            !format!("{error}{error:?}").contains(CANARY),
            "{key}: {error}"
        );
    }
}

#[test]
fn a_configuration_survives_serde() {
    let before = config("lease=off\nkafka.check.crcs=true\nfetch.wait.max.ms=9\nconsumer.id=c");
    let json = serde_json::to_string(&before).unwrap();
    assert_eq!(serde_json::from_str::<Config>(&json).unwrap(), before);
    let typed = r#"{"group.id":"g","zookeeper.connect":"h","fetch.min.bytes":5,"auto.commit.enable":false}"#;
    let typed: Config = serde_json::from_str(typed).unwrap();
    assert_eq!((typed.fetch_min_bytes, typed.auto_commit), (5, false));
    let wrong = r#"{"group.id":"g","zookeeper.connect":"h","lease":"x"}"#;
    let error = serde_json::from_str::<Config>(wrong).unwrap_err();
    assert!(
        error.to_string().contains("one of quorum, off is wanted"),
        "{error}"
    );
}

#[test]
fn a_secret_that_was_left_out_must_be_given_anew() {
    let config = Config::new("g", "h")
        .unwrap()
        .with_kafka("plugin.password", CANARY);
    config.check().unwrap();
    let json = serde_json::to_string(&config).unwrap();
    let error = serde_json::from_str::<Config>(&json)
        .unwrap_err()
        .to_string();
    assert!(
        error.contains("kafka.plugin.password is refused: its value was left out"),
        "{error}"
    );
}

#[test]
fn keys_set_over_a_file_win_quietly() {
    let properties = Properties::parse("group.id=a\nzookeeper.connect=h\nlease=off").unwrap();
    let config =
        Config::from_read(&properties.with("group.id", "b").with("lease", "quorum")).unwrap();
    assert_eq!(config.group.as_str(), "b");
    assert!(config.warnings().is_empty());
}

proptest! {
    #[test]
    fn no_value_makes_it_panic(number in 0..KEYS.len(), text in "(-?[0-9]{1,12}|[a-z,:/.\\[\\]]{0,12}|\\PC{0,8})") {
        let key = KEYS[number].name;
        let pairs = [("group.id", "g"), ("zookeeper.connect", "h"), (key, &text)];
        if let Ok(config) = Config::from_pairs(pairs) {
            let _ = (config.warnings(), config.kafka_settings());
            prop_assert!(config.check().is_ok(), "{key} {text}");
        }
    }
}
