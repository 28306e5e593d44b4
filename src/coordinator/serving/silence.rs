//! The watchdog: a partition that gives nothing although its log goes on is begun anew (K2).

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use futures_util::StreamExt;
use futures_util::stream::iter;
use tokio::time::{Instant, timeout_at};

use crate::coordinator::serving::feeding::resume;
use crate::coordinator::serving::{Done, HeldState, Serving};
use crate::event::Event;
use crate::group::TopicPartition;
use crate::stream::{Edge, Ownership};

/// So long a partition may give nothing with messages ahead. Twice as long each time that beginning anew brought nothing,
/// up to so many times: behind the last message there may be nothing but a gap, left by a transaction or by compaction.
const PATIENCE: Duration = Duration::from_secs(30);
const DOUBLINGS: u32 = 4;

/// How often we look who is silent. A clock of its own: the pause between two self-checks is the user's to choose.
pub(super) const EVERY: Duration = Duration::from_secs(15);

/// Ends of logs that are asked for after one look, and how many of them at a time: a leader that does not answer must not hold
/// up what else the brokers are asked.
const QUESTIONS: usize = 8;
const AT_A_TIME: usize = 2;

/// What is not answered before the next look comes is not waited for.
const ANSWERED_WITHIN: Duration = Duration::from_secs(10);

/// What is known of a partition that gives nothing.
#[derive(Default)]
pub(super) struct Quiet {
    /// Where reading stands, and since when it was seen to stand there with nothing to be had.
    at: Option<(i64, Instant)>,
    asked: Option<Instant>,
    /// Since when the log is known to go on from there.
    behind: Option<Instant>,
    anew: Option<Anew>,
    /// How often in a row beginning anew brought nothing.
    vain: u32,
}

/// The last time it was begun anew: where, and where its log ended then.
struct Anew {
    position: i64,
    end: i64,
    is_vain: bool,
}

/// The end of a partition's log, asked for while it was silent; none if nobody answered in time.
pub(in crate::coordinator) struct Answer {
    ownership: Arc<Ownership>,
    position: i64,
    asked: Instant,
    end: Option<i64>,
}

impl Quiet {
    /// Takes down where a look found reading to stand; none if the partition is not silent.
    pub fn note(&mut self, position: Option<i64>, now: Instant) {
        if self.at.map(|(at, _)| at) != position {
            self.at = position.map(|position| (position, now));
            self.behind = None;
        }
        let (Some(anew), Some(position)) = (&mut self.anew, position) else {
            return;
        };
        if anew.position == position {
            self.vain += u32::from(!anew.is_vain);
            anew.is_vain = true;
        } else {
            if !anew.is_vain {
                self.vain = 0;
            }
            self.anew = None;
        }
    }

    /// Whether to ask how far the log goes: not of one that moved since the last look, and not often of one at its end.
    fn is_due(&self, now: Instant) -> bool {
        let is_old = |since: Instant, age| now - since >= age;
        match (self.at, self.behind) {
            (None, _) => false,
            (Some(_), Some(since)) => is_old(since, self.patience()),
            (Some((_, since)), None) => {
                is_old(since, EVERY) && self.asked.is_none_or(|asked| is_old(asked, PATIENCE))
            }
        }
    }

    /// Those that seem to be behind come first, then those that were not asked about for longest.
    fn turn(&self) -> (bool, Option<Instant>) {
        (self.behind.is_none(), self.asked)
    }

    fn patience(&self) -> Duration {
        PATIENCE * 2u32.pow(self.vain.min(DOUBLINGS))
    }

    /// Takes up an answer. If the partition is to be begun anew: how many offsets lie ahead, and how long nothing came.
    fn heard(&mut self, answer: &Answer) -> Option<(i64, Duration)> {
        let (position, since) = self.at.filter(|(at, _)| *at == answer.position)?;
        let goes_on = |end: &i64| {
            // What beginning anew did not bring will not come by doing it again.
            let is_tried = |anew: &Anew| anew.position == position && anew.end == *end;
            *end > position && !self.anew.as_ref().is_some_and(is_tried)
        };
        let Some(end) = answer.end.filter(goes_on) else {
            self.behind = None;
            return None;
        };
        let behind = *self.behind.get_or_insert(answer.asked);
        if answer.asked - behind < self.patience() {
            return None;
        }
        self.at = None;
        self.behind = None;
        self.anew = Some(Anew {
            position,
            end,
            is_vain: false,
        });
        Some((end - position, answer.asked - since))
    }
}

impl Serving<'_> {
    /// Looks who is silent, and asks of some of them whether there is more to come.
    pub(super) fn listen(&mut self, now: Instant) {
        self.next_listen = now + EVERY;
        let streams = self.core.parts.streams.values().flatten();
        let silent: BTreeMap<TopicPartition, i64> = streams
            .flat_map(|stream| stream.silent())
            .map(|ownership| (ownership.partition.clone(), ownership.token))
            .collect();
        // While no broker can be reached silence says nothing.
        let is_reachable = !self.standing.contains_key("kafka");
        let mut due = Vec::new();
        for (partition, held) in &mut self.held {
            let is_silent = is_reachable
                && matches!(held.state, HeldState::Reading)
                && silent.get(partition) == Some(&held.ownership.token);
            let position = held.ownership.read_position().filter(|_| is_silent);
            held.quiet.note(position, now);
            if held.quiet.is_due(now) {
                due.extend(position.map(|position| (position, held)));
            }
        }
        due.sort_by_key(|(_, held)| held.quiet.turn());
        let mut questions = Vec::new();
        for (position, held) in due.into_iter().take(QUESTIONS) {
            held.quiet.asked = Some(now);
            questions.push(Answer {
                ownership: held.ownership.clone(),
                position,
                asked: now,
                end: None,
            });
        }
        self.ask_for_ends(questions, now + ANSWERED_WITHIN);
    }

    fn ask_for_ends(&mut self, questions: Vec<Answer>, until: Instant) {
        let Some(reader) = self.reader.clone().filter(|_| !questions.is_empty()) else {
            return;
        };
        let ask = move |mut question: Answer| {
            let reader = reader.clone();
            async move {
                if Instant::now() < until {
                    let end = reader.edge(&question.ownership.partition, Edge::Latest);
                    question.end = timeout_at(until, end).await.ok().and_then(Result::ok);
                }
                question
            }
        };
        let number = self.reader_number;
        self.works.push(Box::pin(async move {
            let answers = iter(questions).map(ask).buffer_unordered(AT_A_TIME);
            Done::Heard(number, answers.collect().await)
        }));
    }

    pub(super) fn on_heard(&mut self, answers: Vec<Answer>) {
        let now = Instant::now();
        for answer in answers {
            let ownership = &answer.ownership;
            let partition = ownership.partition.clone();
            let Some(held) = self.held.get_mut(&partition) else {
                continue;
            };
            let is_it = |silent: &Arc<Ownership>| Arc::ptr_eq(silent, ownership);
            let is_silent = Arc::ptr_eq(&held.ownership, ownership)
                && matches!(held.state, HeldState::Reading)
                && ownership.read_position() == Some(answer.position)
                && ownership.stream.silent().iter().any(is_it);
            if !is_silent {
                continue;
            }
            let Some((ahead, waited)) = held.quiet.heard(&answer) else {
                continue;
            };
            // What it still gave out would come again, and be passed over by the commit.
            ownership.pause();
            let Some(from) = resume(held) else { continue };
            held.state = HeldState::Later { at: now, from };
            self.core.parts.common.note_silence();
            self.tell(Event::Silent {
                partition,
                ahead,
                waited,
            });
        }
        self.begin_again();
    }
}
