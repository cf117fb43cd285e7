use std::collections::{BTreeMap, HashMap};
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Instant, SystemTime};

use indexmap::IndexMap;
use tokio::sync::Notify;

use super::circuit_breaker::Cause;
use super::context::RunContext;
use super::limiter::{Change, Ended, Grant, Limiter, SLACK};
use crate::agent::Reply;

/// The state that all partitions of a process share: a limiter per agent, and the limits on all calls together.
///
/// Each partition has a `Seat`, and each of its calls a `Permit`. The lock is held while the calls of a wave are picked
/// or the end of one is noted, and never across an await.
#[derive(Debug, Default)]
pub struct Registry {
    state: Mutex<State>,
    done: AtomicU64,
    failed: AtomicU64,
    /// Bytes of the requests of all waiting rows.
    waiting_bytes: Arc<AtomicUsize>,
    /// The part of `auto` limits that this process has, if others send to the same agents.
    part: Option<f64>,
}

#[derive(Debug, Default)]
pub(super) struct State {
    agents: IndexMap<Arc<str>, Limiter>,
    /// The ends of pauses that agents asked other processes for.
    paused: HashMap<String, Instant>,
    seats: Vec<SeatState>,
    /// Calls that may be in flight, over all agents.
    concurrency: usize,
    in_flight: usize,
    /// Memory of the calls in flight in bytes, and its limit.
    in_flight_bytes: u64,
    most_bytes: u64,
    /// Whether a notice said that there is memory for fewer calls than are allowed.
    is_short: bool,
}

#[derive(Debug, Default)]
struct SeatState {
    wake: Arc<Notify>,
    in_flight: usize,
    sent: u64,
    /// Whether the partition has rows that could be sent but for the limits.
    wants: bool,
    /// Whether the partition waits for a permit, and not for an instant.
    is_starved: bool,
    /// Whether the partition has ended. The seat is free once its calls have, too.
    has_ended: bool,
}

/// Whether the limits on all calls together allow another one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Room {
    Free,
    /// Not before a call ends.
    None,
    /// The free permits are for other partitions.
    OthersTurn,
    /// Not before a call ends, because memory is short. No notice was given yet.
    ShortOfMemory {
        calls: usize,
        concurrency: usize,
    },
}

impl Registry {
    /// Creates the registry of a process that has this part, above 0 and up to 1, of the limits of several.
    pub fn of_part(part: f64) -> Self {
        Self {
            part: Some(part),
            ..Self::default()
        }
    }

    /// Returns whether other processes have parts of the same limits.
    pub(super) fn is_part(&self) -> bool {
        self.part.is_some()
    }

    /// Returns this process's part of a limit of calls, at least 1.
    pub(crate) fn own_part(&self, limit: usize) -> usize {
        let part = self.part.map(|part| (limit as f64 * part) as usize);
        part.map_or(limit, |part| part.max(1))
    }

    /// Returns until when each agent wants to be left alone, where it said so by `Retry-After`.
    pub fn pauses(&self) -> BTreeMap<String, SystemTime> {
        let (now, time) = (Instant::now(), SystemTime::now());
        let state = self.lock();
        let agents = state.agents.iter().filter_map(|(name, limiter)| {
            let left = limiter.paused_until()?.checked_duration_since(now)?;
            Some((name.to_string(), time + left))
        });
        agents.collect()
    }

    /// Sends nothing to an agent before this time, since it asked another process for that.
    pub fn pause(&self, agent_name: &str, until: SystemTime) {
        let left = until.duration_since(SystemTime::now()).unwrap_or_default();
        let until = Instant::now() + left;
        let mut state = self.lock();
        if let Some(limiter) = state.agents.get_mut(agent_name) {
            limiter.pause(until);
        }
        state.paused.insert(agent_name.to_owned(), until);
    }

    pub(super) fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn waiting_bytes(&self) -> &Arc<AtomicUsize> {
        &self.waiting_bytes
    }

    /// Notes a finished rollout. Returns how many rollouts are done, and how many have failed.
    pub(super) fn finished(&self, is_done: bool) -> (u64, u64) {
        let count = |count: &AtomicU64, one: bool| {
            count.fetch_add(u64::from(one), Ordering::Relaxed) + u64::from(one)
        };
        (count(&self.done, is_done), count(&self.failed, !is_done))
    }
}

impl State {
    /// Returns the index of an agent's limiter, which it adds if it is new.
    pub(super) fn agent(&mut self, context: &RunContext, name: &Arc<str>) -> usize {
        match self.agents.get_index_of(name) {
            Some(agent) => agent,
            None => self.add(context, name, u64::MAX),
        }
    }

    fn add(&mut self, context: &RunContext, name: &Arc<str>, outstanding: u64) -> usize {
        let mut limiter = Limiter::new(name, context, outstanding);
        if let Some(until) = self.paused.get(&**name) {
            limiter.pause(*until);
        }
        self.agents.insert_full(Arc::clone(name), limiter).0
    }

    pub(super) fn limiter(&mut self, agent: usize) -> Option<&mut Limiter> {
        self.agents.get_index_mut(agent).map(|(_, limiter)| limiter)
    }

    /// Computes how many calls each agent may have in flight, until this is called again.
    pub(super) fn share(&mut self) {
        let share = (self.concurrency / self.agents.len().max(1)).max(1);
        let reserved = self.agents.values().map(|limiter| limiter.reserved(share));
        let all: usize = reserved.sum();
        for limiter in self.agents.values_mut() {
            let others = all - limiter.reserved(share);
            limiter.set_ceiling(self.concurrency.saturating_sub(others).max(1));
        }
    }

    /// Returns whether a partition may send another call.
    pub(super) fn room(&mut self, now: Instant, seat: usize) -> Room {
        if self.has_place() {
            return if self.is_turn_of(now, seat) {
                Room::Free
            } else {
                Room::OthersTurn
            };
        }
        let was_short = self.is_short;
        self.is_short |= self.in_flight < self.concurrency;
        if self.is_short == was_short {
            return Room::None;
        }
        Room::ShortOfMemory {
            calls: self.in_flight,
            concurrency: self.concurrency,
        }
    }

    /// Returns whether memory is short. One call is always allowed, whatever it takes.
    fn is_short_of_memory(&self) -> bool {
        self.in_flight > 0 && self.in_flight_bytes >= self.most_bytes
    }

    fn has_place(&self) -> bool {
        self.in_flight < self.concurrency && !self.is_short_of_memory()
    }

    /// Returns whether a partition may take a permit. One that has sent many calls leaves a permit to each idle one.
    fn is_turn_of(&self, now: Instant, seat: usize) -> bool {
        let sent = self.seats.get(seat).map_or(0, |own| own.sent);
        let others = self.seats.iter().enumerate().filter(|(other, state)| {
            *other != seat && state.wants && state.in_flight == 0 && state.sent + SLACK <= sent
        });
        let claims = others.filter(|(other, _)| self.could_send(*other, Some(now)));
        self.concurrency - self.in_flight.min(self.concurrency) > claims.count()
    }

    /// Returns whether some agent has a permit for a call of this partition, and takes calls at that instant.
    fn could_send(&self, seat: usize, at: Option<Instant>) -> bool {
        self.agents.values().any(|limiter| {
            limiter.is_wanted_by(seat)
                && limiter.has_room()
                && limiter.is_turn_of(seat)
                && at.is_none_or(|now| limiter.opens_at(now) <= now)
        })
    }

    /// Grants a call.
    pub(super) fn take(
        &mut self,
        now: Instant,
        seat: usize,
        agent: usize,
        memory: u64,
        is_fresh: bool,
    ) -> Option<Grant> {
        let grant = self.limiter(agent)?.take(now, seat, is_fresh);
        self.in_flight += 1;
        self.in_flight_bytes += memory;
        if let Some(seat) = self.seats.get_mut(seat) {
            seat.in_flight += 1;
            seat.sent += 1;
        }
        Some(grant)
    }

    pub(super) fn limit_of(&self, agent: usize) -> usize {
        let limiter = self.agents.get_index(agent);
        limiter.map_or(0, |(_, limiter)| limiter.limit(self.concurrency))
    }

    /// Notes that a partition has sent what it could. `wants`: it has more rows to send. `is_starved`: it waits for a
    /// permit. Wakes the partitions that can use the permits that are left.
    pub(super) fn rest(&mut self, now: Instant, seat: usize, wants: bool, is_starved: bool) {
        self.set_wants(seat, wants, is_starved);
        self.wake_others(now, seat, Some(now));
    }

    fn set_wants(&mut self, seat: usize, wants: bool, is_starved: bool) {
        let waiting = self.seats.iter().filter(|other| other.wants);
        let least = waiting.map(|other| other.sent).min().unwrap_or(0);
        if let Some(own) = self.seats.get_mut(seat) {
            if wants && !own.wants {
                own.sent = own.sent.max(least);
            }
            own.wants = wants;
            own.is_starved = is_starved;
        }
    }

    /// Notes that a partition sends nothing for now, whatever rows it has.
    pub(super) fn stall(&mut self, seat: usize) {
        for limiter in self.agents.values_mut() {
            limiter.set_rows(seat, 0, 0);
        }
        self.set_wants(seat, false, false);
        self.wake_others(Instant::now(), seat, None);
    }

    /// Wakes the partitions that wait for a permit and can have one.
    ///
    /// After a wave, it wakes only those that can send at once: two that can't must not wake each other. After a call
    /// has ended, it also wakes those that have to wait for an instant that they do not know yet.
    fn wake_others(&mut self, now: Instant, seat: usize, at: Option<Instant>) {
        if !self.has_place() || !self.is_any_starved(seat) {
            return;
        }
        self.share();
        for other in 0..self.seats.len() {
            let is_starved = self.seats.get(other).is_some_and(|seat| seat.is_starved);
            if other != seat
                && is_starved
                && self.is_turn_of(now, other)
                && self.could_send(other, at)
            {
                self.wake(other);
            }
        }
    }

    fn is_any_starved(&self, but: usize) -> bool {
        let mut seats = self.seats.iter().enumerate();
        seats.any(|(seat, state)| seat != but && state.is_starved)
    }

    /// Wakes all partitions: what they wait for has changed.
    pub(super) fn wake_all(&mut self) {
        (0..self.seats.len()).for_each(|seat| self.wake(seat));
    }

    fn wake(&mut self, seat: usize) {
        if let Some(seat) = self.seats.get_mut(seat) {
            seat.is_starved = false;
            seat.wake.notify_one();
        }
    }

    fn ended(&mut self, now: Instant, permit: &Permit, reply: Option<&Reply>) -> Learned {
        self.in_flight = self.in_flight.saturating_sub(1);
        self.in_flight_bytes = self.in_flight_bytes.saturating_sub(permit.memory);
        if let Some(seat) = self.seats.get_mut(permit.seat) {
            seat.in_flight = seat.in_flight.saturating_sub(1);
        }
        let Some(limiter) = self.limiter(permit.agent) else {
            return Learned::default();
        };
        let change = limiter.ended(now, permit.seat, &permit.call, reply);
        let learned = Learned {
            change,
            limit: limiter.new_limit(),
        };
        if change != Change::None {
            self.wake_all();
        } else if self.is_any_starved(permit.seat) {
            // The partition of this call learns of its end anyway, and sends the next call.
            let limiter = self.agents.get_index(permit.agent);
            let is_used = limiter.is_some_and(|(_, limiter)| {
                limiter.is_wanted_by(permit.seat) && limiter.is_turn_of(permit.seat)
            });
            if !is_used {
                self.wake_others(now, permit.seat, None);
            }
        }
        learned
    }
}

/// The changes that the end of a call made for its agent.
#[derive(Default)]
struct Learned {
    change: Change,
    /// The adaptive limit, if it has changed.
    limit: Option<usize>,
}

/// The place of a running partition in the registry.
#[derive(Debug)]
pub(super) struct Seat {
    context: Arc<RunContext>,
    index: usize,
    wake: Arc<Notify>,
}

impl Seat {
    /// Takes a place for a partition of a run that may have `concurrency` calls in flight.
    pub(super) fn take(context: &Arc<RunContext>, concurrency: usize) -> Self {
        let mut state = context.registry.lock();
        state.concurrency = concurrency;
        state.most_bytes = context.memory.calls;
        for (name, pending) in &context.pending {
            if !state.agents.contains_key(&**name) {
                state.add(context, &Arc::from(&**name), *pending);
            }
        }
        let is_free = |seat: &SeatState| seat.has_ended && seat.in_flight == 0;
        let free = state.seats.iter().position(is_free);
        let index = free.unwrap_or(state.seats.len());
        let seat = SeatState::default();
        let wake = Arc::clone(&seat.wake);
        match state.seats.get_mut(index) {
            Some(free) => *free = seat,
            None => state.seats.push(seat),
        }
        Self {
            context: Arc::clone(context),
            index,
            wake,
        }
    }

    pub(super) fn index(&self) -> usize {
        self.index
    }

    /// Waits until there may be a permit again.
    pub(super) fn woken(&self) -> impl Future<Output = ()> + use<'_> {
        self.wake.notified()
    }

    /// Returns the permit of a call that was granted.
    pub(super) fn permit(&self, agent: usize, memory: u64, call: Ended) -> Permit {
        Permit {
            context: Arc::clone(&self.context),
            seat: self.index,
            agent,
            memory,
            call,
            is_returned: false,
        }
    }
}

impl Drop for Seat {
    fn drop(&mut self) {
        let mut state = self.context.registry.lock();
        state.stall(self.index);
        if let Some(seat) = state.seats.get_mut(self.index) {
            seat.has_ended = true;
        }
    }
}

/// Permission for a call in flight. Dropping it gives it back.
#[derive(Debug)]
pub(super) struct Permit {
    pub(super) context: Arc<RunContext>,
    seat: usize,
    agent: usize,
    memory: u64,
    call: Ended,
    is_returned: bool,
}

impl Permit {
    /// Notes that the call ended, and tells all partitions what that says about its agent.
    pub(super) fn end(mut self, agent_name: &str, reply: &Reply) {
        let learned = self.give_back(Some(reply));
        let progress = &self.context.progress;
        if let Some(limit) = learned.limit {
            progress.set_concurrency_limit(agent_name, limit);
        }
        let failure = reply.result.as_ref().err();
        let why = failure.map_or("", |failure| &failure.message);
        let text = match learned.change {
            Change::None => return,
            Change::Down { cause, patience } => {
                let what = match cause {
                    Cause::Unreachable => "can't be reached",
                    Cause::Gateway | Cause::Agent => "answers nothing but failures",
                };
                let patience = humantime::format_duration(patience);
                format!(
                    "agent '{agent_name}' {what} ({why}): its rollouts wait while it is probed, for up to {patience} \
                     (--agent-patience)"
                )
            }
            Change::Back => format!("agent '{agent_name}' answers again"),
            Change::Misconfigured { answers } => format!(
                "{why}. All of the first {answers} answers of agent '{agent_name}' failed in this way: nothing more is \
                 sent to it, and the rest of its rollouts stays pending. Check its settings and the tasks; then \
                 --resume tries again, or --overwrite starts over"
            ),
        };
        progress.notice(text);
    }

    fn give_back(&mut self, reply: Option<&Reply>) -> Learned {
        self.is_returned = true;
        let mut state = self.context.registry.lock();
        state.ended(Instant::now(), self, reply)
    }
}

impl Drop for Permit {
    fn drop(&mut self) {
        if !self.is_returned {
            self.give_back(None);
        }
    }
}
