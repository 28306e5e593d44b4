//! Events as lines of JSON, one event a line.

use std::io::{BufRead, Read};
use std::sync::Arc;

use serde_json::{Map, Value, json};

use crate::error::{Error, ErrorKind, Result, printable};
use crate::group::{Topic, TopicPartition};

use crate::check::event::{Event, Fact, How, Phase};

/// The longest line that is read.
const MAX_LINE: u64 = 1 << 20;

/// Reads a whole log. A last line that is not ended and cannot be read is left out: a process that is killed tears it.
///
/// Every line is an object with `v` (1), `mem`, `inc`, `seq`, `mono`, perhaps `zxid`, and `ev`, which says what else there is;
/// an `ev` that is not known counts for the numbering only.
///
/// # Errors
/// [`Malformed`](ErrorKind::Malformed), naming the line, for anything else that is no event; what reading itself fails with.
pub fn read_events(mut log: impl BufRead) -> Result<Vec<Event>> {
    let mut events = Vec::new();
    for number in 1.. {
        let mut line = Vec::new();
        let mut part = log.by_ref().take(MAX_LINE);
        part.read_until(b'\n', &mut line).map_err(|error| {
            let text = format!("cannot read line {number} of an event log");
            Error::new(ErrorKind::Malformed, text).with_source(error)
        })?;
        if line.is_empty() {
            break;
        }
        let is_whole = line.ends_with(b"\n");
        let is_last = !is_whole && (line.len() as u64) < MAX_LINE;
        match event(&line) {
            Ok(event) => events.push(event),
            Err(_) if is_last => break,
            Err(why) => {
                let text = format!("malformed event log, line {number}: {why}");
                return Err(Error::malformed(text));
            }
        }
    }
    Ok(events)
}

type Reason = String;

fn event(line: &[u8]) -> std::result::Result<Event, Reason> {
    let value: Value = serde_json::from_slice(line).map_err(|error| error.to_string())?;
    let Value::Object(fields) = value else {
        return Err("it is no object".to_owned());
    };
    let fields = Fields(fields);
    if fields.long("v")? != 1 {
        return Err("v is not 1".to_owned());
    }
    Ok(Event {
        member: fields.text("mem")?.into(),
        incarnation: fields.number("inc")?,
        seq: fields.number("seq")?,
        mono: fields.number("mono")?,
        zxid: fields.maybe("zxid")?,
        fact: fields.fact()?,
    })
}

struct Fields(Map<String, Value>);

impl Fields {
    fn get(&self, name: &str) -> std::result::Result<&Value, Reason> {
        self.0.get(name).ok_or_else(|| format!("{name} is missing"))
    }

    fn text(&self, name: &str) -> std::result::Result<&str, Reason> {
        let text = self.get(name)?.as_str();
        text.ok_or_else(|| format!("{name} is no text"))
    }

    fn long(&self, name: &str) -> std::result::Result<i64, Reason> {
        let number = self.get(name)?.as_i64();
        number.ok_or_else(|| format!("{name} is no whole number"))
    }

    fn number<T: TryFrom<u64>>(&self, name: &str) -> std::result::Result<T, Reason> {
        let number = self.get(name)?.as_u64();
        let number = number.and_then(|number| T::try_from(number).ok());
        number.ok_or_else(|| format!("{name} is no number that fits"))
    }

    fn maybe(&self, name: &str) -> std::result::Result<Option<i64>, Reason> {
        match self.0.get(name) {
            None | Some(Value::Null) => Ok(None),
            Some(_) => self.long(name).map(Some),
        }
    }

    fn truth(&self, name: &str) -> std::result::Result<bool, Reason> {
        let truth = self.get(name)?.as_bool();
        truth.ok_or_else(|| format!("{name} is neither true nor false"))
    }

    fn partition(&self) -> std::result::Result<TopicPartition, Reason> {
        partition(self.text("t")?, self.long("p")?)
    }

    fn partitions(&self) -> std::result::Result<Vec<TopicPartition>, Reason> {
        let list = self.get("of")?.as_array().ok_or("of is no list")?;
        let pair = |value: &Value| {
            let pair = value.as_array().filter(|pair| pair.len() == 2);
            let pair = pair.and_then(|pair| Some((pair[0].as_str()?, pair[1].as_i64()?)));
            let (topic, number) = pair.ok_or("of has something that is no partition")?;
            partition(topic, number)
        };
        list.iter().map(pair).collect()
    }

    fn fact(&self) -> std::result::Result<Fact, Reason> {
        Ok(match self.text("ev")? {
            "session" => Fact::Joined {
                session: self.long("sid")?,
            },
            "check" => Fact::Checked {
                partition: self.partition()?,
                token: self.long("tok")?,
            },
            "deliver" => Fact::Delivered {
                partition: self.partition()?,
                token: self.long("tok")?,
                offset: self.long("off")?,
            },
            "done" => Fact::Done {
                partition: self.partition()?,
                token: self.long("tok")?,
                offset: self.long("off")?,
            },
            "start_pos" => Fact::Started {
                partition: self.partition()?,
                token: self.long("tok")?,
                offset: self.long("off")?,
                how: how(self.text("src")?)?,
            },
            "explicit_reset" => Fact::Reset {
                partition: self.partition()?,
                from: self.maybe("from")?,
                to: self.long("to")?,
            },
            "released" => Fact::Released {
                partition: self.partition()?,
                undone: self.number("undone")?,
                is_forced: self.truth("forced")?,
            },
            "cb" => Fact::Callback {
                name: self.text("name")?.to_owned(),
                phase: phase(self.text("phase")?)?,
                partitions: self.partitions()?,
            },
            "overrun" => Fact::Overrun {
                name: self.text("name")?.to_owned(),
            },
            "stopped" => Fact::Stopped {
                member: self.text("who")?.into(),
                from: self.number("from")?,
                to: self.number("to")?,
            },
            "cut" => Fact::Cut {
                member: self.text("who")?.into(),
                from: self.number("from")?,
                to: self.number("to")?,
            },
            "killed" => Fact::Killed {
                member: self.text("who")?.into(),
            },
            "expired" => Fact::Expired {
                session: self.long("sid")?,
            },
            "queued" => Fact::Queued,
            "healed" => Fact::Healed,
            "settled" => Fact::Settled,
            "sent" => Fact::Sent {
                partition: self.partition()?,
                offset: self.long("off")?,
            },
            "trimmed" => Fact::Trimmed {
                partition: self.partition()?,
                before: self.long("before")?,
            },
            "clock" => Fact::Clock {
                real_us: self.long("real")?,
            },
            other => Fact::Other(other.to_owned()),
        })
    }
}

fn partition(topic: &str, number: i64) -> std::result::Result<TopicPartition, Reason> {
    let topic = Topic::foreign(topic).map_err(|error| error.to_string())?;
    let number = i32::try_from(number).ok().filter(|number| *number >= 0);
    let number = number.ok_or("p is no partition")?;
    Ok(TopicPartition::new(topic, number))
}

fn how(text: &str) -> std::result::Result<How, Reason> {
    match text {
        "stored" => Ok(How::Stored),
        "policy" => Ok(How::Policy),
        "reset" => Ok(How::Reset),
        other => Err(format!("src {} is not known", printable(other))),
    }
}

fn phase(text: &str) -> std::result::Result<Phase, Reason> {
    match text {
        "enter" => Ok(Phase::Enter),
        "leave" => Ok(Phase::Leave),
        "panic" => Ok(Phase::Panic),
        other => Err(format!("phase {} is not known", printable(other))),
    }
}

impl Event {
    /// The event as one line, its end included, to be written with one call.
    pub fn to_line(&self) -> String {
        let mut fields = json!({
            "v": 1,
            "mem": &*self.member,
            "inc": self.incarnation,
            "seq": self.seq,
            "mono": self.mono,
            "zxid": self.zxid,
        });
        let more = fact(&self.fact);
        if let (Value::Object(fields), Value::Object(more)) = (&mut fields, more) {
            fields.extend(more);
        }
        format!("{fields}\n")
    }
}

fn owned(ev: &str, at: &TopicPartition, token: i64, offset: i64) -> Value {
    let TopicPartition { topic, partition } = at;
    json!({ "ev": ev, "t": topic.as_str(), "p": partition, "tok": token, "off": offset })
}

fn fact(fact: &Fact) -> Value {
    let name = |who: &Arc<str>| who.to_string();
    match fact {
        Fact::Joined { session } => json!({ "ev": "session", "sid": session }),
        Fact::Checked { partition, token } => {
            let TopicPartition { topic, partition } = partition;
            json!({ "ev": "check", "t": topic.as_str(), "p": partition, "tok": token })
        }
        Fact::Delivered {
            partition,
            token,
            offset,
        } => owned("deliver", partition, *token, *offset),
        Fact::Done {
            partition,
            token,
            offset,
        } => owned("done", partition, *token, *offset),
        Fact::Started {
            partition,
            token,
            offset,
            how,
        } => {
            let mut fields = owned("start_pos", partition, *token, *offset);
            fields["src"] = match how {
                How::Stored => "stored".into(),
                How::Policy => "policy".into(),
                How::Reset => "reset".into(),
            };
            fields
        }
        Fact::Reset {
            partition: TopicPartition { topic, partition },
            from,
            to,
        } => {
            json!({ "ev": "explicit_reset", "t": topic.as_str(), "p": partition, "from": from, "to": to })
        }
        Fact::Released {
            partition: TopicPartition { topic, partition },
            undone,
            is_forced,
        } => {
            json!({ "ev": "released", "t": topic.as_str(), "p": partition, "undone": undone, "forced": is_forced })
        }
        Fact::Callback {
            name,
            phase,
            partitions,
        } => {
            let phase = match phase {
                Phase::Enter => "enter",
                Phase::Leave => "leave",
                Phase::Panic => "panic",
            };
            let of = partitions
                .iter()
                .map(|at| json!([at.topic.as_str(), at.partition]));
            let of: Vec<Value> = of.collect();
            json!({ "ev": "cb", "name": name, "phase": phase, "of": of })
        }
        Fact::Overrun { name } => json!({ "ev": "overrun", "name": name }),
        Fact::Stopped { member, from, to } => {
            json!({ "ev": "stopped", "who": name(member), "from": from, "to": to })
        }
        Fact::Cut { member, from, to } => {
            json!({ "ev": "cut", "who": name(member), "from": from, "to": to })
        }
        Fact::Killed { member } => json!({ "ev": "killed", "who": name(member) }),
        Fact::Expired { session } => json!({ "ev": "expired", "sid": session }),
        Fact::Queued => json!({ "ev": "queued" }),
        Fact::Healed => json!({ "ev": "healed" }),
        Fact::Settled => json!({ "ev": "settled" }),
        Fact::Sent {
            partition: TopicPartition { topic, partition },
            offset,
        } => json!({ "ev": "sent", "t": topic.as_str(), "p": partition, "off": offset }),
        Fact::Trimmed {
            partition: TopicPartition { topic, partition },
            before,
        } => json!({ "ev": "trimmed", "t": topic.as_str(), "p": partition, "before": before }),
        Fact::Clock { real_us } => json!({ "ev": "clock", "real": real_us }),
        Fact::Other(ev) => json!({ "ev": ev }),
    }
}
