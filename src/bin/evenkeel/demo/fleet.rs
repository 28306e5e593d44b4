//! The pretended hosts and their members by name: who would get what, under our ids and under the old ones.

use std::collections::{BTreeMap, BTreeSet};

use evenkeel::assign::{Assignor, Range};
use evenkeel::group::Subscriptions;
use evenkeel::id::{HashedHost, IdContext, IdStrategy, LegacyAuto, name};
use evenkeel::{ConsumerId, GroupName, Topic};

use crate::output::Outcome;

/// One group for each of a service's jobs, each with a topic of the same name.
pub const GROUPS: [&str; 8] = [
    "alerts", "audit", "billing", "export", "mail", "orders", "search", "stats",
];
/// Partitions of each topic: fewer than there are hosts, so that somebody has to stand by.
pub const PARTITIONS: i32 = 2;
/// Where every group runs at first.
pub const HOSTS: [&str; 5] = ["app01", "app02", "app03", "app04", "app05"];
/// Hosts that may come later: one for the single member, one for the whole host.
pub const SPARES: [&str; 4] = ["app06", "app07", "app08", "app09"];

/// A number generator that anybody can repeat (SplitMix64).
pub struct Dice(u64);

impl Dice {
    pub fn new(seed: u64) -> Self {
        Self(seed)
    }

    pub fn roll(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// One of several; none of none.
    pub fn pick<T: Clone>(&mut self, from: &[T]) -> Option<T> {
        let count = u64::try_from(from.len()).ok().filter(|count| *count > 0)?;
        let place = usize::try_from(self.roll() % count).ok()?;
        from.get(place).cloned()
    }
}

/// A place for one member: a group on a host.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Seat {
    pub host: String,
    pub group: String,
}

/// Which members there are, by the names that they were given.
#[derive(Clone, Default)]
pub struct Fleet {
    names: BTreeMap<Seat, ConsumerId>,
}

/// What the id of a member on this host is made from.
pub fn context(seat: &Seat, dice: &mut Dice) -> Outcome<IdContext> {
    let random = format!("{:016x}", dice.roll());
    Ok(IdContext::new(
        &seat.host,
        &GroupName::new(&seat.group)?,
        random,
    )?)
}

impl Fleet {
    pub fn add(&mut self, seat: Seat, consumer: ConsumerId) {
        self.names.insert(seat, consumer);
    }

    pub fn remove(&mut self, seat: &Seat) {
        self.names.remove(seat);
    }

    pub fn hosts(&self) -> BTreeSet<String> {
        self.names.keys().map(|seat| seat.host.clone()).collect()
    }

    /// How many members a group has.
    pub fn members(&self, group: &str) -> usize {
        self.names.keys().filter(|seat| seat.group == group).count()
    }

    /// How many partitions each member gets. Those that stand by have none.
    pub fn shares(&self) -> Outcome<BTreeMap<Seat, usize>> {
        self.shares_with(|_, consumer| Ok(consumer.clone()))
    }

    fn shares_with(
        &self,
        name: impl Fn(&Seat, &ConsumerId) -> Outcome<ConsumerId>,
    ) -> Outcome<BTreeMap<Seat, usize>> {
        let mut shares: BTreeMap<Seat, usize> = BTreeMap::new();
        for group in GROUPS {
            let topic = Topic::new(group)?;
            let mut seats = BTreeMap::new();
            for (seat, consumer) in self.names.iter().filter(|(seat, _)| seat.group == group) {
                shares.insert(seat.clone(), 0);
                seats.insert(name(seat, consumer)?, seat);
            }
            let one = BTreeMap::from([(topic.clone(), 1)]);
            let subscriptions: Subscriptions =
                seats.keys().map(|id| (id.clone(), one.clone())).collect();
            let partitions = BTreeMap::from([(topic, (0..PARTITIONS).collect())]);
            let assignment = Range.assign(&subscriptions, &partitions)?;
            for stream in assignment.values().flat_map(BTreeMap::values) {
                let seat = seats[&stream.consumer()];
                *shares.entry(seat.clone()).or_default() += 1;
            }
        }
        Ok(shares)
    }

    /// Partitions by host, under the names that the members have.
    pub fn spread(&self) -> Outcome<BTreeMap<String, usize>> {
        Ok(by_host(&self.shares()?))
    }

    /// Partitions by host, if the members had the names that JVM members would have given themselves there.
    pub fn old_spread(&self) -> Outcome<BTreeMap<String, usize>> {
        let old = |seat: &Seat, _: &ConsumerId| {
            let context = IdContext::new(&seat.host, &GroupName::new(&seat.group)?, "1a2b3c4d")?;
            Ok(name(&context.with_time_ms(1_441_234_567_890), &LegacyAuto)?)
        };
        Ok(by_host(&self.shares_with(old)?))
    }

    /// Seats whose member has something to do.
    pub fn working(&self) -> Outcome<Vec<Seat>> {
        let shares = self.shares()?.into_iter();
        Ok(shares
            .filter(|(_, share)| *share > 0)
            .map(|(seat, _)| seat)
            .collect())
    }

    /// Whether a member here would get something at once.
    pub fn would_work(&self, seat: &Seat) -> Outcome<bool> {
        let context = IdContext::new(&seat.host, &GroupName::new(&seat.group)?, "0")?;
        let mut fleet = self.clone();
        let id = HashedHost.id(&context)?;
        fleet.add(
            seat.clone(),
            ConsumerId::new(format!("{}_{id}", seat.group)),
        );
        Ok(fleet.shares()?.get(seat).is_some_and(|share| *share > 0))
    }
}

fn by_host(shares: &BTreeMap<Seat, usize>) -> BTreeMap<String, usize> {
    let mut hosts = BTreeMap::new();
    for (seat, share) in shares {
        *hosts.entry(seat.host.clone()).or_default() += share;
    }
    hosts
}

#[cfg(test)]
mod tests {
    use super::*;

    fn fleet(seed: u64) -> Fleet {
        let mut dice = Dice::new(seed);
        let mut fleet = Fleet::default();
        for host in HOSTS {
            for group in GROUPS {
                let (host, group) = (host.to_owned(), group.to_owned());
                let seat = Seat { host, group };
                let context = context(&seat, &mut dice).unwrap();
                fleet.add(seat, name(&context, &HashedHost).unwrap());
            }
        }
        fleet
    }

    #[test]
    fn the_old_ids_let_the_first_hosts_do_everything() {
        let spread = fleet(1).old_spread().unwrap();
        assert_eq!(
            spread.values().copied().collect::<Vec<_>>(),
            [8, 8, 0, 0, 0]
        );
    }

    #[test]
    fn ours_spread_the_same_work() {
        let spread = fleet(1).spread().unwrap();
        assert_eq!(spread.values().sum::<usize>(), 16);
        assert!(spread.values().all(|share| *share < 8), "{spread:?}");
    }

    #[test]
    fn a_seed_repeats_the_names() {
        assert_eq!(fleet(7).names, fleet(7).names);
        assert_ne!(fleet(7).names, fleet(8).names);
    }

    #[test]
    fn somebody_new_would_find_work_somewhere() {
        let fleet = fleet(1);
        let mut seats = SPARES.iter().flat_map(|host| {
            GROUPS.iter().map(|group| Seat {
                host: (*host).to_owned(),
                group: (*group).to_owned(),
            })
        });
        assert!(seats.any(|seat| fleet.would_work(&seat).unwrap()));
        assert_eq!(fleet.members("mail"), HOSTS.len());
    }

    #[test]
    fn nothing_is_picked_from_nothing() {
        let mut dice = Dice::new(1);
        assert_eq!(dice.pick::<u8>(&[]), None);
        assert_eq!(dice.pick(&[3]), Some(3));
    }
}
