//! The settings that are a choice between words.

use crate::config::value::words;

words! {
    /// How partitions are shared out: `partition.assignment.strategy`. Nothing in ZooKeeper tells it (L-31), so all members must be
    /// configured alike.
    Strategy {
        /// `range`: topic by topic, in blocks (L-55).
        Range = "range",
        /// `roundrobin`: all partitions dealt out in turn (L-58 and on).
        RoundRobin = "roundrobin",
    }
}

words! {
    /// Which releases' round robin to agree with: `partition.assignment.compat`.
    Compat {
        /// `0.8.2`: 0.8.2 to 0.10.1, equal subscriptions only.
        V0_8_2 = "0.8.2",
        /// `0.10.2`: 0.10.2 and 0.11, unequal subscriptions too.
        V0_10_2 = "0.10.2",
        /// `1.0`: 1.0 and 1.1, another order of partitions.
        V1_0 = "1.0",
    }
}

words! {
    /// Which topics a white or black list never covers, by release (L-30): `internal.topics.compat`.
    InternalTopics {
        /// `0.8.1`: there are none.
        None = "0.8.1",
        /// `0.8.2`: 0.8.2 to 0.10.2, `__consumer_offsets`.
        Offsets = "0.8.2",
        /// `0.11`: 0.11 and later, `__transaction_state` too.
        OffsetsAndTransactions = "0.11",
    }
}

/// The newest.
impl Default for Compat {
    fn default() -> Self {
        Self::V1_0
    }
}

impl InternalTopics {
    /// Whether the topic is internal by this rule.
    pub fn has(self, topic: &str) -> bool {
        match self {
            Self::None => false,
            Self::Offsets => topic == "__consumer_offsets",
            Self::OffsetsAndTransactions => {
                matches!(topic, "__consumer_offsets" | "__transaction_state")
            }
        }
    }
}

words! {
    /// Where reading starts if there is no offset, or one out of range: `auto.offset.reset` (L-107).
    Reset {
        /// `smallest`: at the oldest message.
        Smallest = "smallest",
        /// `largest`: behind the newest message.
        Largest = "largest",
        /// `none`: nowhere; the partition is held with an event. No JVM member knows this word.
        None = "none",
    }
}

words! {
    /// What delivery of messages rests on: `lease`.
    LeaseMode {
        /// `quorum`: a majority of ZooKeeper has answered us within half the session time-out.
        Quorum = "quorum",
        /// `off`: nothing; two members may read one partition for a while, as with the JVM.
        Off = "off",
    }
}

words! {
    /// How to speak to ZooKeeper: `zookeeper.dialect`.
    Dialect {
        /// `auto`: find out.
        Auto = "auto",
        /// `3.4`: as a server of 3.4 understands it.
        V3_4 = "3.4",
        /// `3.5`: as 3.5 and later understand it.
        V3_5 = "3.5",
    }
}

words! {
    /// What a member with an unreadable registration means: `malformed.peer`.
    MalformedPeer {
        /// `quarantine`: it counts as absent, with an event.
        Quarantine = "quarantine",
        /// `as_jvm`: nobody rebalances until it is gone (D-9).
        AsJvm = "as_jvm",
    }
}

words! {
    /// What an unreadable offset means: `malformed.offset`.
    MalformedOffset {
        /// `hold`: its partition waits, with an event.
        Hold = "hold",
        /// `treat_as_missing`: `auto.offset.reset` decides, and the offset is written over.
        TreatAsMissing = "treat_as_missing",
    }
}
