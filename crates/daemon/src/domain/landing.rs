//! Transfers that other hosts announced: which is READ next, and into which memory. The memory and the turns are the
//! [receive pool's](crate::pool).

use headworks_client::{Reset, Vqpn};
use headworks_rxpool::holdings::AppId;
use headworks_verbs::{Duration, Instant};

use super::context::ConnectionContext;
use super::{Domain, Output};
use crate::ingress::Place;
use crate::pool::Turn;
use crate::send_queue::OnCompletion;

/// Bytes of READs that a part of a domain begins in one step. The bound keeps short messages from waiting.
const MOVED: u32 = 128 << 10;
/// Descriptors of a connection whose bytes are moved out of the pool in one step.
const MOVED_OUT: usize = 4;

/// Outcome of a connection's turn.
enum TurnStep {
    /// A READ of this many bytes has begun.
    Begun(u32),
    /// Its queue pair has no room for a READ now, or its application may hold no more.
    Wait,
    /// It has no more turns.
    Over,
}

impl Domain {
    /// Admits transfers, begins READs, and takes a step of the pool's escape controller. Returns whether there was
    /// something to do.
    pub(super) fn land(&mut self) -> bool {
        let now = self.now;
        let mut was_busy = false;
        while let Some(admitted) = self.pool.admit() {
            let connection = self.connections.get_mut(admitted.transfer());
            match connection.filter(|one| matches!(one.ingress.turn, Turn::Queued)) {
                Some(connection) => connection.ingress.turn = Turn::Admitted(admitted),
                None => debug_assert!(false, "a connection withdraws before it goes"),
            }
            was_busy = true;
        }
        let are_stuck = self.pool.are_turns_stuck(now);
        let (mut moved, mut idle) = (0, 0);
        while moved < MOVED
            && idle < self.pool.turns()
            && let Some(number) = self.pool.next_turn()
        {
            match self.take_turn(number, are_stuck) {
                TurnStep::Begun(bytes) => {
                    moved += bytes;
                    idle = 0;
                    was_busy = true;
                }
                TurnStep::Wait => {
                    self.pool.turn_again(number);
                    idle += 1;
                }
                TurnStep::Over => {}
            }
        }
        for number in self.pool.waited_too_long(now) {
            if !self.pool.may_read_elsewhere() {
                self.pool.look_from(number);
                break;
            }
            if let Some(mut context) = self.context(number) {
                was_busy |= context.read_elsewhere();
            }
        }
        was_busy |= self.escape();
        was_busy
    }

    fn take_turn(&mut self, number: Vqpn, is_stuck: bool) -> TurnStep {
        match self.context(number) {
            Some(mut context) => context.take_turn(is_stuck),
            None => TurnStep::Over,
        }
    }

    /// Takes a step of the escape controller. Returns whether there was something to do.
    fn escape(&mut self) -> bool {
        let step = self.pool.escape(self.now);
        if self.pool.is_level_new() {
            self.outputs.push_back(Output::PoolLevel);
        }
        if step.signals {
            for (at, entry) in &mut self.groups {
                entry.group.is_slow_due = true;
                if !std::mem::replace(&mut entry.is_active, true) {
                    self.active.push(at);
                }
            }
        }
        if let Some(app) = step.copy {
            let mut of_app = self.sessions.iter_mut().filter(|(_, one)| one.app == app);
            if let Some((_, session)) = of_app.next() {
                // The daemon cannot move chunks that the application keeps, so it may copy nothing.
                tracing::warn!(
                    "application {:?} has held memory of the receive pool for long, and the pool is short: bytes that it has \
                     not begun to read are copied out, and it may keep no more chunks for now",
                    session.name
                );
                session.is_copy_due = true;
                self.moving_out.extend(session.handles.iter());
            }
        }
        if let Some(app) = step.overdue {
            self.reset_keepers(app);
        }
        let is_moving = !self.moving_out.is_empty();
        if let Some(number) = self.moving_out.pop_front()
            && let Some(context) = self.context(number)
        {
            let app = context.session.app;
            let memory = &mut context.session.memory;
            let ingress = &mut context.connection.ingress;
            let (moved, bytes) =
                ingress.move_out(MOVED_OUT, (context.pool, app), memory, context.copies);
            context.session.traffic.copied_out += bytes;
            if moved > 0 && std::mem::take(&mut context.session.is_copy_due) {
                context.pool.count_copy();
            }
            if moved == MOVED_OUT {
                self.moving_out.push_front(number);
            }
            self.attend(number);
        }
        is_moving || step.replaced > 0
    }

    /// Resets those connections of an application for which it keeps memory of the pool: it does so for long, while the
    /// pool is short. What it has merely not read is moved out.
    fn reset_keepers(&mut self, app: AppId) {
        let Some((_, session)) = self.sessions.iter().find(|(_, one)| one.app == app) else {
            return;
        };
        let reset_time = Duration::from_millis(self.config.pool_reset_time.into());
        let until = Instant::ZERO + self.now.since(Instant::ZERO + reset_time);
        self.moving_out.extend(session.handles.iter());
        let connections = &self.connections;
        let keeps = |number: &Vqpn| {
            let connection = connections.get(*number);
            connection.is_some_and(|one| one.is_alive() && one.ingress.keeps_pool(until))
        };
        let keepers: Vec<Vqpn> = session.handles.iter().filter(keeps).collect();
        if keepers.is_empty() {
            return;
        }
        self.pool.count_reset();
        tracing::warn!(
            "application {:?} keeps what it has received, and the receive pool is short for long: its connections for which it \
             keeps memory of the pool are reset",
            session.name
        );
        for number in keepers {
            if let Some(connection) = self.connections.get_mut(number) {
                connection.reset(Reset::Kept, false);
                self.attend(number);
            }
        }
    }

    /// Handles the signal of a peer whose receive pool is in danger.
    pub(super) fn slow_down(&mut self, at: usize) {
        if let Some(entry) = self.groups.get_mut(at) {
            entry.group.signals_came += 1;
            entry.group.signals_pending += 1;
            self.slowed.insert(at);
        }
    }

    /// Slows down the groups whose peers signalled, and wakes those that may send again.
    pub(super) fn pace(&mut self) {
        let now = self.now;
        let mut slowed = std::mem::take(&mut self.slowed);
        slowed.retain(|at| {
            let Some(mut group) = self.group_context(*at) else {
                return false;
            };
            let of = &mut group.entry.group;
            let signals = std::mem::replace(&mut of.signals_pending, 0);
            (0..signals).for_each(|_| of.rate.slow_down(now));
            if of.rate.may_send(now) {
                group.activate();
            }
            group.entry.group.rate.is_limited()
        });
        self.slowed = slowed;
    }

    /// Returns when this part of the domain must be stepped at the latest.
    pub fn deadline(&self) -> Option<Instant> {
        let slowed = self.slowed.iter();
        let slowed = slowed.filter_map(|at| self.groups.get(*at)?.group.rate.due());
        slowed.chain(self.pool.deadline()).min()
    }
}

impl ConnectionContext<'_> {
    /// Queues the connection for memory, if it has a transfer and does not wait or have its turns already.
    pub(super) fn want_memory(&mut self) {
        let ingress = &mut self.connection.ingress;
        let is_open = self.group.is_some();
        if let Some(left) = ingress.first().filter(|_| is_open)
            && matches!(ingress.turn, Turn::None)
        {
            ingress.turn = Turn::Queued;
            let app = self.session.app;
            self.pool.queue(self.connection.number, app, left, self.now);
        }
        self.note_wait();
    }

    /// Notes whether the connection waits for memory, and since when its application has read everything before.
    fn note_wait(&mut self) {
        let (number, app) = (self.connection.number, self.session.app);
        let ingress = &self.connection.ingress;
        if ingress.first().is_none() || self.group.is_none() {
            self.pool.stop_waiting(number);
        } else if ingress.is_blocked_on_memory() && ingress.did_without_pool {
            self.pool.wait(number, app, true, self.now);
        } else if !self.pool.is_waiting(number) || !ingress.is_blocked_on_memory() {
            self.pool.wait(number, app, false, self.now);
        }
    }

    /// Begins a READ of an admitted transfer into the pool. If it cannot begin and `is_stuck`, others go first.
    fn take_turn(&mut self, is_stuck: bool) -> TurnStep {
        let Some(group) = &mut self.group else {
            return TurnStep::Over;
        };
        let ingress = &mut self.connection.ingress;
        let number = self.connection.number;
        let Turn::Admitted(admitted) = std::mem::take(&mut ingress.turn) else {
            debug_assert!(false, "only admitted connections have turns");
            return TurnStep::Over;
        };
        let queue_pair = &mut group.entry.group;
        let (Some(left), Some(from)) = (ingress.first(), ingress.source()) else {
            // The application must release something before.
            self.pool.end(admitted);
            return TurnStep::Over;
        };
        if !queue_pair.may_read() {
            self.pool.note_stuck(self.now);
            if is_stuck {
                // The peer does not answer. Connections to others go first.
                self.pool.end(admitted);
                self.want_memory();
                return TurnStep::Over;
            }
            ingress.turn = Turn::Admitted(admitted);
            return TurnStep::Wait;
        }
        let app = self.session.app;
        let most = left.min(self.pool.fragment().into()) as u32;
        let Some(held) = self.pool.take(app, most, self.now) else {
            // The application holds as much as it may.
            if is_stuck {
                self.pool.end(admitted);
                self.want_memory();
                return TurnStep::Over;
            }
            ingress.turn = Turn::Admitted(admitted);
            self.note_wait();
            return TurnStep::Wait;
        };
        let bytes = most.min(held.extent.len());
        let then = OnCompletion::Fetched(number);
        queue_pair.bulk.read(self.pool.sge(held, bytes), from, then);
        queue_pair.reads += 1;
        queue_pair.fetched += 1;
        group.activate();
        self.pool.read_begun(bytes, true);
        self.session.traffic.pooled += u64::from(bytes);
        match ingress.read_begun(Place::Pool(held), bytes, self.now) {
            true => {
                self.pool.end(admitted);
                self.pool.begun(1);
                self.want_memory();
            }
            false => {
                ingress.turn = Turn::Admitted(admitted);
                self.pool.turn_again(number);
            }
        }
        TurnStep::Begun(bytes)
    }

    /// Begins a READ into memory that is not the pool's, because the pool has none for long. Returns whether it did.
    fn read_elsewhere(&mut self) -> bool {
        // The application does not tell of every byte that it has read.
        if self.connection.is_left() || self.connection.ingress.look().is_err() {
            return false;
        }
        self.collect();
        if !self.connection.ingress.is_blocked_on_memory() {
            self.want_memory();
            return false;
        }
        let Some(group) = &mut self.group else {
            return false;
        };
        let ingress = &mut self.connection.ingress;
        let number = self.connection.number;
        let queue_pair = &mut group.entry.group;
        if !queue_pair.may_read() {
            return false;
        }
        let fragment = self.pool.fragment();
        let reserve = ingress.reserve(fragment);
        let (Some(reserve), Some(from), Some(left)) = (reserve, ingress.source(), ingress.first())
        else {
            return false;
        };
        // Ordinary memory of the application, or of its ring if the application is at its limit.
        let wanted = left.min(fragment.into()) as u32;
        let (place, extent) = match self.session.memory.take(wanted) {
            Ok(memory) => (Place::Memory(memory), memory.part(0, wanted)),
            Err(_) => (Place::Reserve(reserve), reserve),
        };
        let then = OnCompletion::Fetched(number);
        queue_pair
            .bulk
            .read(self.session.memory.sge(extent), from, then);
        queue_pair.reads += 1;
        queue_pair.fetched += 1;
        group.activate();
        self.pool.read_begun(extent.len, false);
        self.session.traffic.beside_pool += u64::from(extent.len);
        if ingress.read_begun(place, extent.len, self.now) {
            let turn = std::mem::take(&mut ingress.turn);
            self.pool.withdraw(number, self.session.app, turn);
            self.pool.begun(1);
        }
        self.want_memory();
        true
    }
}
