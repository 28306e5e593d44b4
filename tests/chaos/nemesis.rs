//! Does to members and servers what the plan says, and takes it down.

use std::collections::BTreeMap;
use std::sync::Mutex;
use std::time::Duration;
use std::time::Instant;

use evenkeel::testing::check::Fact;

use crate::crew::Slot;
use crate::faults::Blow;
use crate::faults::Ending;
use crate::faults::Fault;
use crate::faults::Part;
use crate::faults::millis;
use crate::plan::Plan;
use crate::stage::Stage;
use crate::support::Direction;
use crate::support::Journal;
use crate::support::now;

/// How often what was done.
pub type Tally = BTreeMap<&'static str, usize>;

/// Takes down what is done, by whichever thread.
pub struct Nemesis {
    pub journal: Journal,
    /// Everybody who was ever there: the nodes of the dead stay for a while.
    names: Mutex<Vec<String>>,
    tally: Mutex<Tally>,
}

impl Nemesis {
    /// It has done nothing yet.
    pub fn new(journal: Journal) -> Self {
        Self {
            journal,
            names: Mutex::default(),
            tally: Mutex::default(),
        }
    }

    /// What was done so far.
    pub fn tally(&self) -> Tally {
        self.tally.lock().unwrap().clone()
    }

    fn count(&self, what: &'static str) {
        *self.tally.lock().unwrap().entry(what).or_default() += 1;
    }

    /// Carries the whole plan out, and leaves nothing broken behind but processes that are not there.
    pub fn carry_out(&self, plan: &Plan, stage: &Stage, slots: &mut [Slot]) {
        let start = Instant::now();
        let wait = |at_ms| {
            let at = start + millis(at_ms);
            std::thread::sleep(at.saturating_duration_since(Instant::now()));
        };
        let wait = &wait;
        std::thread::scope(|scope| {
            for (number, slot) in slots.iter_mut().enumerate() {
                let steps = plan.steps.iter().filter(move |step| step.slot == number);
                scope.spawn(move || {
                    for step in steps {
                        wait(step.at_ms);
                        self.strike(stage, slot, step.fault);
                    }
                });
            }
            scope.spawn(|| {
                for (at_ms, blow) in &plan.blows {
                    wait(*at_ms);
                    self.shake(stage, *blow);
                }
            });
            scope.spawn(|| {
                for (at_ms, total) in &plan.growth {
                    wait(*at_ms);
                    stage.grow(*total);
                    self.count("partitions added");
                }
            });
        });
    }

    /// Starts the process of a place.
    pub fn start(&self, slot: &mut Slot, keeps_name: bool) {
        slot.start(keeps_name);
        if !keeps_name {
            self.names.lock().unwrap().push(slot.name());
        }
    }

    /// SIGKILL.
    pub fn kill(&self, slot: &mut Slot) {
        let member = slot.name().as_str().into();
        self.journal.note(Fact::Killed { member });
        slot.kill();
    }

    fn strike(&self, stage: &Stage, slot: &mut Slot, fault: Fault) {
        self.count(fault.name());
        match fault {
            Fault::Kill {
                down_ms,
                keeps_name,
            } => {
                self.kill(slot);
                std::thread::sleep(millis(down_ms));
                self.start(slot, keeps_name);
            }
            Fault::Leave { down_ms } => {
                slot.leave();
                std::thread::sleep(millis(down_ms));
                self.start(slot, false);
            }
            Fault::Rejoin => slot.rejoin(),
            Fault::Stop { ms } => {
                let from = now();
                slot.process().pause();
                std::thread::sleep(millis(ms));
                slot.process().resume();
                let (member, to) = (slot.name().as_str().into(), now());
                self.journal.note(Fact::Stopped { member, from, to });
            }
            Fault::Break { how } => self.cut_off(slot, |slot| {
                match how {
                    Ending::Cut => slot.proxy.cut(),
                    Ending::Reset => slot.proxy.rst(),
                    Ending::Finish => slot.proxy.fin(),
                };
            }),
            Fault::Silence { way, ms } => self.cut_off(slot, |slot| {
                slot.proxy.blackhole(way.direction());
                std::thread::sleep(millis(ms));
                slot.proxy.heal();
            }),
            Fault::Refuse { ms } => self.cut_off(slot, |slot| {
                slot.proxy.refuse_for(millis(ms));
                slot.proxy.cut();
                std::thread::sleep(millis(ms));
                slot.proxy.admit();
            }),
            Fault::Slow { way, delay_ms, ms } => self.cut_off(slot, |slot| {
                let delay = millis(delay_ms);
                slot.proxy.delay(way.direction(), delay, delay / 2);
                std::thread::sleep(millis(ms));
                slot.proxy.hurry();
            }),
            Fault::Lose { what, of, ms } => self.cut_off(slot, |slot| {
                match what {
                    Part::Request => slot.proxy.lose_request(of.matcher(), 1),
                    Part::Answer => slot.proxy.lose_reply(of.matcher(), 1),
                }
                std::thread::sleep(millis(ms));
                if slot.proxy.disarm() == 0 {
                    self.count("lost and met");
                }
            }),
            Fault::Rob { ms } => self.cut_off(slot, |slot| {
                slot.proxy.blackhole(Direction::ToServer);
                std::thread::sleep(millis(ms / 2));
                if stage.rob(&slot.name()) {
                    self.count("owner node deleted");
                }
                std::thread::sleep(millis(ms / 2));
                slot.proxy.heal();
            }),
            Fault::Panic => slot.order("panic"),
            Fault::Block { ms } => slot.order(&format!("block {ms}")),
            Fault::Hog { ms } => {
                slot.order(&format!("hog {ms}"));
                std::thread::sleep(millis(ms));
            }
            Fault::Jump { by_ms } => {
                if slot.jump(by_ms) {
                    self.count("wall clock seen");
                }
            }
        }
    }

    /// Does something because of which the member may not reach the server for a while.
    fn cut_off(&self, slot: &mut Slot, work: impl FnOnce(&Slot)) {
        let from = now();
        work(slot);
        let (member, to) = (slot.name().as_str().into(), now());
        self.journal.note(Fact::Cut { member, from, to });
    }

    fn shake(&self, stage: &Stage, blow: Blow) {
        let from = now();
        let mut zookeeper = stage.zookeeper.lock().unwrap();
        match blow {
            Blow::Restart { is_killed } => {
                self.count("server restarted");
                if is_killed {
                    zookeeper.kill();
                } else {
                    zookeeper.stop();
                }
                zookeeper.restart();
            }
            Blow::Freeze { ms } => {
                self.count("server frozen");
                zookeeper.pause();
                std::thread::sleep(Duration::from_millis(ms));
                zookeeper.resume();
            }
        }
        drop(zookeeper);
        let to = now();
        for member in self.names.lock().unwrap().iter() {
            let member = member.as_str().into();
            self.journal.note(Fact::Cut { member, from, to });
        }
    }
}
