//! `evenkeel id`: what a member would call itself.

use std::io::{self, Write};

use clap::{Args, ValueEnum};
use serde_json::{Value, json};

use evenkeel::id::{
    Fixed, HashedHost, HashedInstance, IdContext, IdStrategy, LegacyAuto, RankedHost, name,
};
use evenkeel::{ConsumerId, GroupName};

use crate::output::{Outcome, bad, print_json};

/// Print the name that a member would have under `ids`
///
/// The names decide who gets what: partitions are dealt to the streams in the order of their names. So an operator can see
/// beforehand which hosts will work for a group and which will stand by.
#[derive(Args)]
#[command(after_help = "Examples:
  evenkeel id --host app01.example.com --group etl
  evenkeel id --host app01.example.com --group etl --strategy ranked-host --rank 1
  evenkeel id --host app01.example.com --group etl --random 00c0ffee --streams 2 --json
  for h in app01 app02 app03; do evenkeel id --host $h --group etl; done | sort
      The order in which three hosts are served.

A host or group that no member could have exits 2.")]
pub struct Id {
    /// The host's name, as the system gives it
    #[arg(long, allow_hyphen_values = true)]
    host: String,
    /// The group
    #[arg(long, allow_hyphen_values = true)]
    group: String,
    /// How the name is made
    #[arg(long, value_enum, default_value_t = Kind::HashedHost)]
    strategy: Kind,
    /// ranked-host: members of rank 0 are served before those of rank 1, and so on up to 255
    #[arg(long, value_name = "N", default_value_t = 0)]
    rank: u8,
    /// ranked-host: changes the order of the hosts
    #[arg(long, value_name = "N", default_value_t = 0)]
    salt: u64,
    /// hashed-instance: which of the group's members on this host it is, from 0
    #[arg(long, value_name = "N", default_value_t = 0)]
    instance: u32,
    /// legacy-auto: when the member was made, in milliseconds since 1970; now, if not given
    #[arg(long, value_name = "N")]
    time_ms: Option<u64>,
    /// fixed: the name itself, without the group
    #[arg(long, value_name = "X", allow_hyphen_values = true)]
    consumer_id: Option<String>,
    /// The random part, hexadecimal digits; drawn, if not given
    #[arg(long, value_name = "HEX")]
    random: Option<String>,
    /// How many streams to name as well, one line each
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=100_000))]
    streams: Option<u32>,
    /// Print {"consumer_id": name under ids, "id": without the group, "streams": [...]}; one stream unless --streams says otherwise
    #[arg(long)]
    json: bool,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug, ValueEnum)]
enum Kind {
    /// sha256(host + group), host, random: every group has its own order of hosts
    HashedHost,
    /// The same with a rank before it and a salt in it
    RankedHost,
    /// The same with the instance number in the hash
    HashedInstance,
    /// What a JVM member calls itself: host, time, random
    LegacyAuto,
    /// What --consumer-id says
    Fixed,
}

impl Id {
    pub fn run(&self) -> Outcome {
        self.check_choice()?;
        let consumer = name(&self.context()?, &*self.strategy()?)?;
        if self.json {
            print_json(&self.as_json(&consumer))
        } else {
            self.print(&consumer)
        }
    }

    /// An option of another strategy is a mistake, and the name would not show it.
    fn check_choice(&self) -> Outcome {
        if self.strategy != Kind::RankedHost && (self.rank, self.salt) != (0, 0) {
            return bad("--rank and --salt belong to --strategy ranked-host");
        }
        if self.strategy != Kind::Fixed && self.consumer_id.is_some() {
            return bad("--consumer-id belongs to --strategy fixed");
        }
        Ok(())
    }

    fn context(&self) -> Outcome<IdContext> {
        let group = GroupName::new(&self.group)?;
        let (here, _) = IdContext::of_this_process(&group);
        let random = self.random.clone().unwrap_or(here.random);
        let context = IdContext::new(&self.host, &group, random)?;
        Ok(context
            .with_instance(self.instance)
            .with_time_ms(self.time_ms.unwrap_or(here.time_ms)))
    }

    fn strategy(&self) -> Outcome<Box<dyn IdStrategy>> {
        Ok(match self.strategy {
            Kind::HashedHost => Box::new(HashedHost),
            Kind::RankedHost => Box::new(RankedHost {
                rank: self.rank,
                salt: self.salt,
            }),
            Kind::HashedInstance => Box::new(HashedInstance),
            Kind::LegacyAuto => Box::new(LegacyAuto),
            Kind::Fixed => match &self.consumer_id {
                Some(id) => Box::new(Fixed::new(id)),
                None => return bad("--strategy fixed needs --consumer-id"),
            },
        })
    }

    fn as_json(&self, consumer: &ConsumerId) -> Value {
        let prefix = self.group.len() + 1;
        let streams: Vec<String> = streams(consumer, self.streams.unwrap_or(1)).collect();
        json!({
            "consumer_id": consumer.as_str(),
            "id": &consumer.as_str()[prefix..],
            "streams": streams,
        })
    }

    fn print(&self, consumer: &ConsumerId) -> Outcome {
        let mut out = io::BufWriter::new(io::stdout().lock());
        writeln!(out, "{}", consumer.as_str())?;
        for stream in streams(consumer, self.streams.unwrap_or(0)) {
            writeln!(out, "{stream}")?;
        }
        Ok(out.flush()?)
    }
}

fn streams(consumer: &ConsumerId, count: u32) -> impl Iterator<Item = String> {
    (0..count).map(|number| consumer.stream(number).as_str().to_owned())
}
