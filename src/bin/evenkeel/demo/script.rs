//! What happens, one act after the other.

use std::time::Duration;

use futures_util::future::join_all;

use crate::output::Outcome;

use super::fleet::{GROUPS, HOSTS, SPARES, Seat};
use super::member::Member;
use super::stage::Stage;

/// One change and what came of it, in times since the beginning.
#[derive(Debug, Clone)]
pub struct Act {
    pub name: &'static str,
    pub from: Duration,
    pub to: Duration,
    /// How long until every partition was in the right hands again; none if that was not waited for to the end.
    pub settled: Option<Duration>,
}

fn seat(host: &str, group: &str) -> Seat {
    Seat {
        host: host.to_owned(),
        group: group.to_owned(),
    }
}

fn on_host(host: &str) -> Vec<Seat> {
    GROUPS.iter().map(|group| seat(host, group)).collect()
}

impl Stage {
    pub async fn nothing_happens(&mut self) -> Outcome<Act> {
        self.act("nothing changes", "messages flow")
            .await?
            .end()
            .await
    }

    pub async fn a_member_joins(&mut self) -> Outcome<Act> {
        let mut candidates = Vec::new();
        for host in SPARES {
            for seat in on_host(host) {
                if self.fleet.would_work(&seat)? {
                    candidates.push(seat);
                }
            }
        }
        let chosen = self
            .dice
            .pick(&candidates)
            .unwrap_or_else(|| seat(SPARES[0], GROUPS[0]));
        let what = format!("{} gets one more, on {}", chosen.group, chosen.host);
        let scene = self.act("a member joins", &what).await?;
        scene.stage.join(vec![chosen]).await?;
        scene.end().await
    }

    pub async fn a_member_leaves(&mut self) -> Outcome<Act> {
        let chosen = self.somebody_working()?;
        let what = format!("{} on {} shuts down", chosen.group, chosen.host);
        let scene = self.act("a member leaves", &what).await?;
        scene.stage.leave(vec![chosen]).await?;
        scene.end().await
    }

    pub async fn a_member_dies(&mut self) -> Outcome<Act> {
        let chosen = self.somebody_working()?;
        let what = format!("{} on {} is killed", chosen.group, chosen.host);
        let scene = self.act("a member dies", &what).await?;
        scene.stage.kill(vec![chosen]).await?;
        scene.end().await
    }

    pub async fn a_host_joins(&mut self) -> Outcome<Act> {
        let there = self.fleet.hosts();
        let host = SPARES
            .iter()
            .find(|host| !there.contains(**host))
            .unwrap_or(&SPARES[0]);
        let what = format!("{host} starts, with a member of every group");
        let scene = self.act("a host joins", &what).await?;
        scene.stage.join(on_host(host)).await?;
        scene.end().await
    }

    pub async fn a_host_leaves(&mut self) -> Outcome<Act> {
        let host = self.some_host()?;
        let what = format!("{host} is drained");
        let seats = self.seats_on(&host);
        let scene = self.act("a host leaves", &what).await?;
        scene.stage.leave(seats).await?;
        scene.end().await
    }

    pub async fn a_host_dies(&mut self) -> Outcome<Act> {
        let host = self.some_host()?;
        let what = format!("{host} loses its power");
        let seats = self.seats_on(&host);
        let scene = self.act("a host dies", &what).await?;
        scene.stage.kill(seats).await?;
        scene.end().await
    }

    /// One of the first members, with work.
    fn somebody_working(&mut self) -> Outcome<Seat> {
        let working = self.fleet.working()?;
        let first: Vec<Seat> = working
            .into_iter()
            .filter(|seat| HOSTS.contains(&seat.host.as_str()))
            .collect();
        Ok(self
            .dice
            .pick(&first)
            .unwrap_or_else(|| seat(HOSTS[0], GROUPS[0])))
    }

    /// One of the first hosts, with work.
    fn some_host(&mut self) -> Outcome<String> {
        let spread = self.fleet.spread()?.into_iter();
        let working = spread.filter(|(host, share)| *share > 0 && HOSTS.contains(&host.as_str()));
        let hosts: Vec<String> = working.map(|(host, _)| host).collect();
        Ok(self
            .dice
            .pick(&hosts)
            .unwrap_or_else(|| HOSTS[0].to_owned()))
    }

    fn seats_on(&self, host: &str) -> Vec<Seat> {
        self.members
            .keys()
            .filter(|seat| seat.host == host)
            .cloned()
            .collect()
    }

    async fn leave(&mut self, seats: Vec<Seat>) -> Outcome {
        let leaving: Vec<Member> = self.take(&seats);
        let farewells = join_all(leaving.into_iter().map(Member::leave));
        for farewell in self.watch(farewells).await? {
            farewell?;
        }
        Ok(())
    }

    async fn kill(&mut self, seats: Vec<Seat>) -> Outcome {
        let dying: Vec<Member> = self.take(&seats);
        let in_hand = {
            let falling = join_all(dying.iter().map(Member::fall));
            self.watch(falling).await?.into_iter().sum::<usize>()
        };
        for member in dying {
            member.die(&self.world);
        }
        self.note(&format!(
            "dead; messages in hand that were not acknowledged: {in_hand}"
        ))
    }
}
