//! What members tell, as facts and as counters.

use evenkeel::Event;
use evenkeel::event::LostCause;
use evenkeel::testing::check::{Fact, Hearing};

use crate::facts::Facts;

/// What a member tells, as facts and as counters.
pub(super) fn tell(facts: &Facts, hearing: &mut Hearing, member: &str, event: Event) {
    if let Some(fact) = hearing.hear(&event) {
        facts.note(member, fact);
    }
    match event {
        Event::OffsetReset { to: Some(_), .. } => facts.count("reset"),
        Event::Released {
            is_forced: true, ..
        } => facts.count("forced release"),
        Event::Lapsed => facts.count("lapse"),
        Event::Resumed { .. } => facts.count("lapse then resume"),
        Event::SessionLost { .. } => facts.count("session lost"),
        Event::Waiting { .. } => facts.count("claim conflict"),
        Event::Stuck { .. } => facts.count("stuck"),
        Event::IdHeld { .. } => facts.count("own id held by an earlier session"),
        Event::Lost {
            partition,
            cause,
            undone,
        } => {
            facts.count(match cause {
                LostCause::OwnerNodeGone => "owner node deleted by somebody else",
                LostCause::RegistrationGone => "registration deleted by somebody else",
                _ => "lost with the session",
            });
            // Its release may have been under way when the session ended, and carried out.
            if cause == LostCause::SessionLost {
                let undone = undone as u64;
                let lost = Fact::Released {
                    partition,
                    undone,
                    is_forced: true,
                };
                facts.note(member, lost);
            }
        }
        Event::RewindRepaired { .. } => facts.count("rewind repaired"),
        Event::ForeignAdvance { .. } => facts.count("foreign advance"),
        Event::CommitFailed { .. } => facts.count("commit failed"),
        Event::ListenerFailed { .. } => facts.count("listener failed"),
        Event::Repaired { .. } => facts.count("self-check repaired"),
        Event::ReadFailed { .. } => facts.count("read failed"),
        Event::Silent { .. } => facts.count("silent partition begun anew"),
        Event::OffsetMalformed { .. } => facts.count("offset nobody can read"),
        Event::TopicMalformed { .. } => facts.count("topic nobody can read"),
        Event::BrokersMissing { .. } => facts.count("brokers missing"),
        Event::MemberMalformed { .. } => facts.count("registration nobody can read"),
        _ => {}
    }
}
