//! Packets of a session: sending those that are queued, and handling those that have arrived.

use super::*;

impl SharedSession {
    /// Sends all queued packets and handles all that have arrived.
    ///
    /// # Errors
    ///
    /// [`ServiceError::Refused`] if the daemon hung up and gave a reason; [`ServiceError::DaemonGone`] if it
    /// gave none or has stopped.
    /// [`ServiceError::DaemonSilent`]: the daemon takes no packets.
    pub(in crate::service) fn exchange(
        &self,
        state: &mut SessionState,
    ) -> Result<(), ServiceError> {
        self.exchange_within(state, self.patience)
    }

    /// Does what [`SharedSession::exchange`] does, without waiting: what the socket has no room for stays queued.
    pub(in crate::service) fn exchange_now(
        &self,
        state: &mut SessionState,
    ) -> Result<(), ServiceError> {
        match self.exchange_within(state, Duration::ZERO) {
            Err(ServiceError::DaemonSilent { .. }) => Ok(()),
            exchanged => exchanged,
        }
    }

    pub(super) fn exchange_within(
        &self,
        state: &mut SessionState,
        patience: Duration,
    ) -> Result<(), ServiceError> {
        let said = self.send_packets(state, patience);
        // Packets that the daemon sent before it hung up can still be read.
        self.receive_packets(state)?;
        // Receiving may queue more packets, for what was abandoned meanwhile.
        match said.and_then(|()| self.send_packets(state, patience)) {
            Err(ServiceError::DaemonGone) => Err(state.why_gone()),
            said => said,
        }
    }

    pub(super) fn receive_packets(&self, state: &mut SessionState) -> Result<(), ServiceError> {
        // A new slab may hold bytes that any thread waits for, and the end of the session concerns every thread.
        let mut is_for_all = false;
        let mut had_some = false;
        loop {
            match self.socket.recv() {
                Ok(RecvOutcome::Packet(packet)) => {
                    had_some = true;
                    let file = packet.files.into_iter().next();
                    is_for_all |= file.is_some();
                    let reply = Reply::decode(&packet.bytes);
                    let segment = match (reply, file) {
                        (Ok(Reply::PairSocket { pair }), file) => {
                            state.take_pair_socket(pair, file);
                            None
                        }
                        // A pair without its memory, which the session handles: too few descriptors, or too little address
                        // space. The peer has mapped the memory, and may have written over its header.
                        (Ok(Reply::PairMemory { .. }), file) => {
                            if file.is_none() {
                                warn_of_lost_file();
                            }
                            let attach = SharedSegment::attach_without_header_check;
                            file.and_then(|file| attach(file).ok())
                        }
                        // The daemon has sent its file. The kernel closes a file for which the process has no descriptor left.
                        (Ok(Reply::Slab { .. }), None) => {
                            let none_left =
                                io::Error::from_raw_os_error(Errno::MFILE.raw_os_error());
                            return Err(system("the memory of the daemon")(none_left));
                        }
                        (_, None) => None,
                        (
                            Ok(Reply::Slab {
                                is_read_only: true, ..
                            }),
                            Some(file),
                        ) => Some(SharedSegment::attach_read_only(file)?),
                        (_, Some(file)) => Some(SharedSegment::attach(file)?),
                    };
                    let view = segment.map(|segment| View::from(Arc::new(segment)));
                    state.session.input(&packet.bytes, view)?;
                }
                Ok(RecvOutcome::WouldBlock) => break,
                Ok(RecvOutcome::Closed) => {
                    is_for_all |= !state.is_gone;
                    state.is_gone = true;
                    self.is_hung_up.store(true, Ordering::Release);
                    break;
                }
                Err(error) => return Err(system("the daemon's socket")(error)),
            }
        }
        let mut rang = Vec::new();
        let mut has_answers = false;
        while let Some(event) = state.session.event() {
            match event {
                Event::Rang { handle } => {
                    rang.push(handle);
                    continue;
                }
                Event::Connected {
                    request,
                    connection,
                } => state.settle(request, Ok(Answer::Connected(connection))),
                Event::Listening {
                    request,
                    listener,
                    port,
                } => state.settle(request, Ok(Answer::Listening { listener, port })),
                Event::Allocated { request, extent } => {
                    state.settle(request, Ok(Answer::Allocated(extent)));
                }
                Event::Exported { request, export_id } => {
                    state.settle(request, Ok(Answer::Exported(export_id)));
                }
                Event::Revoked { request } => state.settle(request, Ok(Answer::Revoked)),
                Event::Watched { request } => state.settle(request, Ok(Answer::Watched)),
                Event::Refused { request, why } => state.settle(request, Err(why)),
                Event::Incoming {
                    listener,
                    connection,
                } => state.on_incoming(listener, connection),
                Event::Attached => {}
                Event::Over(_) => is_for_all = true,
            }
            has_answers = true;
        }
        if had_some || is_for_all {
            self.packets.fetch_add(1, Ordering::Release);
            let pollers = state.pollers.iter().filter_map(Weak::upgrade);
            pollers.for_each(|poller| poller.wake_if_asleep());
        }
        for (is_leader, handle, waker) in state.waiters.iter() {
            let is_concerned = match handle {
                Some(handle) => rang.contains(&handle),
                None => has_answers,
            };
            match is_leader {
                _ if !is_concerned && !is_for_all => {}
                true => self.wake_leader()?,
                false => waker.wake(),
            }
        }
        Ok(())
    }

    /// Returns the descriptor of the socket to the daemon.
    pub(in crate::service) fn socket_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }

    /// Returns how many times packets were handled.
    pub(in crate::service) fn packets(&self) -> u64 {
        self.packets.load(Ordering::Acquire)
    }

    /// Whether the daemon has hung up, as far as this process has read its packets.
    pub(in crate::service) fn is_hung_up(&self) -> bool {
        self.is_hung_up.load(Ordering::Acquire)
    }

    /// Sends all queued packets.
    ///
    /// # Errors
    ///
    /// [`ServiceError::DaemonGone`]. [`ServiceError::DaemonSilent`]: the daemon takes no packets. Those that are left
    /// stay queued for the next call, which does not wait if this one did in vain.
    pub(super) fn send_packets(
        &self,
        state: &mut SessionState,
        patience: Duration,
    ) -> Result<(), ServiceError> {
        loop {
            let next = match state.unsent.take() {
                Some(unsent) => Some(unsent),
                None => state.session.output().map(|packet| {
                    let request = packet.file_of;
                    let file = request.and_then(|request| state.files.remove(&request));
                    (packet.bytes, file)
                }),
            };
            let Some((bytes, file)) = next else {
                return Ok(());
            };
            let within = if state.is_stuck {
                Duration::ZERO
            } else {
                patience
            };
            match self.send(&bytes, file.as_ref().map(AsFd::as_fd), within) {
                Ok(true) => state.is_stuck = false,
                Ok(false) => {
                    state.unsent = Some((bytes, file));
                    state.is_stuck |= patience == self.patience;
                    return Err(silent(&self.path, self.patience));
                }
                Err(error) => return Err(error),
            }
        }
    }

    /// Sends a packet. Returns false if the socket has no room for it within `patience`.
    pub(super) fn send(
        &self,
        packet: &[u8],
        file: Option<BorrowedFd<'_>>,
        patience: Duration,
    ) -> Result<bool, ServiceError> {
        let until = clock::now() + patience;
        loop {
            match self.socket.send(packet, file) {
                Ok(true) => return Ok(true),
                Ok(false) => {
                    let left = until.since(clock::now());
                    if left == Duration::ZERO {
                        return Ok(false);
                    }
                    let left = std::time::Duration::from_nanos(left.nanos());
                    let left = Timespec::try_from(left).ok();
                    let mut fds = [PollFd::new(&self.socket, PollFlags::OUT)];
                    match poll(&mut fds, left.as_ref()) {
                        Ok(_) | Err(Errno::INTR) => {}
                        Err(error) => return Err(system("waiting")(error.into())),
                    }
                }
                Err(_) => return Err(ServiceError::DaemonGone),
            }
        }
    }
}

/// Logs that a file of a pair did not come, or cannot be used.
fn warn_of_lost_file() {
    tracing::warn!(
        "too few file descriptors for direct connections with an application: those with it go through the daemons"
    );
}

impl SessionState {
    /// Takes this end of the socket of a pair. Without it the pair cannot be used.
    fn take_pair_socket(&mut self, pair: u32, file: Option<OwnedFd>) {
        let known = self.session.pair(pair);
        let is_peer_gone = known.map(|pair| pair.is_peer_gone.clone());
        let added = is_peer_gone
            .zip(file)
            .map(|(is_peer_gone, file)| self.pairs.add(pair, file, is_peer_gone));
        if !matches!(added, Some(Ok(()))) {
            warn_of_lost_file();
            self.session.lose_pair(pair);
        }
    }
}
