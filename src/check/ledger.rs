//! What was handed out of one ownership, cut where reading began anew, and how far all of it is done.

use std::collections::BTreeSet;

use crate::check::Fact;
use crate::check::verdict::Rule;
use crate::check::view::{Reset, View};

/// Offsets that were handed out one after the other, from a beginning on.
#[derive(Debug, Clone)]
struct Run {
    start: i64,
    offsets: Vec<i64>,
    /// The events that handed them out.
    events: Vec<usize>,
    done: Vec<bool>,
    /// So many from the first on are done.
    reached: usize,
}

impl Run {
    fn position(&self) -> i64 {
        match self.reached.checked_sub(1) {
            Some(last) => self.offsets[last].saturating_add(1),
            None => self.start,
        }
    }
}

/// The runs of one ownership.
#[derive(Debug, Clone, Default)]
pub(super) struct Ledger {
    runs: Vec<Run>,
}

/// A delivery that does not follow from what was before it.
pub(super) struct Issue {
    pub rule: Rule,
    pub event: usize,
    pub what: String,
}

/// Explicit positions that have explained something already.
#[derive(Default)]
pub(super) struct Used(BTreeSet<usize>);

impl Used {
    /// One that fits and has not explained anything yet.
    pub fn take(&mut self, resets: &[Reset], fits: impl Fn(i64) -> bool) -> Option<i64> {
        self.take_told(resets, |_| true, fits)
    }

    /// The same of those that were told then.
    pub fn take_told(
        &mut self,
        resets: &[Reset],
        told: impl Fn(usize) -> bool,
        fits: impl Fn(i64) -> bool,
    ) -> Option<i64> {
        let free =
            |reset: &&Reset| !self.0.contains(&reset.event) && told(reset.event) && fits(reset.to);
        let reset = resets.iter().find(free)?;
        self.0.insert(reset.event);
        Some(reset.to)
    }
}

impl Ledger {
    /// Reads the deliveries of an ownership (I5, I6).
    pub fn read(view: &View<'_>, at: usize, used: &mut Used) -> (Self, Vec<Issue>) {
        let (window, seen) = (&view.story.windows[at], &view.seen[at]);
        let resets = view.resets_of(window);
        let (mut ledger, mut issues) = (Self::default(), Vec::new());
        let mut last: Option<(i64, usize)> = None;
        for event in seen.deliveries.iter().copied() {
            let Fact::Delivered { offset, .. } = view.case.events[event].fact else {
                continue;
            };
            let mut issue = |rule, what| {
                issues.push(Issue { rule, event, what });
                offset
            };
            let fits = |from| view.fits(&window.partition, from, offset);
            match last {
                None => {
                    let start = beginning(view, at, event, offset, used);
                    let start = start.unwrap_or_else(|what| issue(Rule::I6, what));
                    ledger.begin(start);
                }
                Some((last, before)) if fits(last + 1) => {
                    // Where what lay between is gone from the log, reading may have begun anew all the same.
                    let since = view.told_between(before, event);
                    if let Some(start) = used.take_told(resets, since, fits) {
                        ledger.begin(start);
                    }
                }
                Some((last, before)) => {
                    let given = used.take(resets, fits);
                    let given = given.or_else(|| view.set_by_others(window, Some(before), fits));
                    let start = given.unwrap_or_else(|| {
                        let how = if offset > last {
                            "skips to"
                        } else {
                            "goes back to"
                        };
                        issue(Rule::I5, format!("after {last} it {how} {offset}"))
                    });
                    ledger.begin(start);
                }
            }
            ledger.hand_out(offset, event);
            last = Some((offset, event));
        }
        (ledger, issues)
    }

    fn begin(&mut self, start: i64) {
        self.runs.push(Run {
            start,
            offsets: Vec::new(),
            events: Vec::new(),
            done: Vec::new(),
            reached: 0,
        });
    }

    fn hand_out(&mut self, offset: i64, event: usize) {
        if let Some(run) = self.runs.last_mut() {
            run.offsets.push(offset);
            run.events.push(event);
            run.done.push(false);
        }
    }

    /// A message is done, by this event: the one that had been handed out last, if there are several. A topic that was made anew
    /// has others with the same offsets.
    pub fn done(&mut self, offset: i64, event: usize) {
        for run in self.runs.iter_mut().rev() {
            let place = run.offsets.binary_search(&offset);
            let Some(place) = place.ok().filter(|place| run.events[*place] < event) else {
                continue;
            };
            run.done[place] = true;
            while run.done.get(run.reached) == Some(&true) {
                run.reached += 1;
            }
            return;
        }
    }

    /// The most that may be committed of what was handed out.
    pub fn most(&self) -> Option<i64> {
        self.runs.iter().map(Run::position).max()
    }

    /// Where the last run stands.
    pub fn position(&self) -> Option<i64> {
        self.runs.last().map(Run::position)
    }

    /// Whether it was read from one beginning only.
    pub fn is_plain(&self) -> bool {
        self.runs.len() < 2
    }
}

/// Where reading must have begun for this offset to come first.
fn beginning(
    view: &View<'_>,
    at: usize,
    event: usize,
    offset: i64,
    used: &mut Used,
) -> Result<i64, String> {
    let window = &view.story.windows[at];
    let fits = |from| view.fits(&window.partition, from, offset);
    if let Some(stored) = window.stored.filter(|stored| fits(*stored)) {
        return Ok(stored);
    }
    // Somebody put an offset there for the one who waits for it.
    if let Some(theirs) = view.set_by_others(window, None, fits) {
        return Ok(theirs);
    }
    let writes = window.writes.iter().map(|at| &view.story.writes[*at]);
    let resets = view.resets_of(window);
    if let Some(stored) = window.stored {
        let reset = used.take(resets, fits);
        return reset.ok_or_else(|| format!("{offset} comes first, and {stored} was stored"));
    }
    let mut ours = writes.filter(|write| write.is_ours && write.value.is_some());
    let Some(first) = ours.next() else {
        return Err(format!(
            "{offset} comes first, and no start was ever committed"
        ));
    };
    let start = first.value.unwrap_or(offset);
    if view.is_surely_before(&view.case.events[event], first.mark) {
        return Err(format!(
            "{offset} comes before the start was committed, as {start} at zxid {}",
            first.mark.zxid
        ));
    }
    if fits(start) {
        // The policy's position was told as well.
        used.take(resets, |to| to == start);
        return Ok(start);
    }
    let reset = used.take(resets, fits);
    reset.ok_or_else(|| format!("{offset} comes first, and {start} was committed as the start"))
}
