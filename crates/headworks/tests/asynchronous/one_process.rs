//! Both ends in one process.

use std::future::poll_fn;
use std::pin::Pin;
use std::sync::mpsc::TryRecvError;

use futures_core::Stream;
use futures_sink::Sink;
use headworks::blocking::{BlockingError, BlockingReceiver, BlockingSender};
use headworks::ring::Framing;
use headworks::testing::each_seed;

use super::*;

fn is_sendable<T: Send + Unpin>() {}

#[test]
fn ends_may_move_between_threads() {
    is_sendable::<AsyncSender>();
    is_sendable::<AsyncReceiver>();
}

#[test]
fn few_messages_are_closed_while_the_receiver_waits_for_more() {
    for count in [0, 1, 31, 32, 33] {
        let ring = ring(&fixed(128));
        run(async move || {
            let (mut sender, mut receiver, _fabric) = ring.ends();
            let receiving = tokio::spawn(async move {
                expect(&mut receiver, 0..count).await;
                let end = receiver.recv().await.map(|message| message.to_vec());
                (end, receiver)
            });
            send(&mut sender, 0..count).await;
            sender.close().await.expect("everything was consumed");
            // The receiver waits until the peer is gone, which the end of the control stream shows.
            drop(sender);
            let (end, _receiver) = receiving.await.expect("receives");
            assert!(matches!(end, Err(BlockingError::PeerGone)), "{end:?}");
        });
    }
}

/// A ring of 8 slots of 64 bytes; a message may take all 7 that can be filled.
fn crowded() -> RingConfig {
    RingConfig {
        mode: Mode::Notify,
        framing: Framing::Variable(7 * 64 - 8),
        ..RingConfig::variable(8, 64)
    }
}

#[test]
fn two_rings_that_cross_pass_everything_in_one_thread() {
    cross(20_000, "");
}

#[test]
fn rings_of_hostile_devices_wake_whom_they_should() {
    each_seed(1..=4, |seed| cross(500, &format!(",hostile,seed={seed}")));
}

/// Sends messages over one ring and echoes them over the other.
fn cross(count: u64, options: &str) {
    let (there, back) = (ring_on(&crowded(), options), ring_on(&crowded(), options));
    run(async move || {
        let (mut asks, mut asked, _fabric) = there.ends();
        let (mut answers, mut answered, _other) = back.ends();
        let echo = tokio::spawn(async move {
            let mut number = 0;
            let end = loop {
                let message = match asked.recv().await {
                    Ok(message) => message,
                    Err(end) => break end,
                };
                answers.send(&message).await.expect("answers");
                drop(message);
                answers.flush().await.expect("publishes");
                number += 1;
            };
            assert!(matches!(end, BlockingError::PeerGone), "{end}");
            assert_eq!(number, count);
            answers.close().await.expect("was consumed");
        });
        let longest = asks.ring().max_message();
        let asking = tokio::spawn(async move {
            for number in 0..count {
                let mut place = asks.reserve(longest).await.expect("room");
                let message = varied(number, longest);
                place[..message.len()].copy_from_slice(&message);
                place.commit_len(message.len()).expect("sends");
            }
            asks.close().await.expect("was consumed");
        });
        for number in 0..count {
            let received = answered.recv().await.expect("an answer");
            assert_eq!(*received, varied(number, longest)[..], "answer {number}");
        }
        // A waiting receiver returns its space, so the echo can close its ring.
        let end = answered.recv().await.map(|message| message.to_vec());
        assert!(matches!(end, Err(BlockingError::PeerGone)), "{end:?}");
        asking.await.expect("asks");
        echo.await.expect("answers");
    });
}

#[test]
fn each_kind_of_end_speaks_with_the_blocking_one() {
    const COUNT: u64 = 5_000;
    let ring_here = ring(&fixed(8));
    let (sender, control) = ring_here.sender;
    let sending = thread::spawn(move || {
        let mut sender = BlockingSender::new(sender, control).expect("can be slept on");
        for number in 0..COUNT {
            sender.send(&message(number)).expect("sends");
        }
        sender.close().map(drop)
    });
    let (receiver, control) = ring_here.receiver;
    run(async || {
        let mut receiver = AsyncReceiver::new(receiver, control).expect("can be slept on");
        expect(&mut receiver, 0..COUNT).await;
        receiver.close();
    });
    sending.join().expect("sends").expect("closes");

    let ring_there = ring(&fixed(8));
    let (receiver, control) = ring_there.receiver;
    let receiving = thread::spawn(move || {
        let mut receiver = BlockingReceiver::new(receiver, control).expect("can be slept on");
        for number in 0..COUNT {
            assert_eq!(*receiver.recv().expect("a message"), message(number)[..]);
        }
        drop(receiver.close());
    });
    let (sender, control) = ring_there.sender;
    run(async || {
        let mut sender = AsyncSender::new(sender, control).expect("can be slept on");
        send(&mut sender, 0..COUNT).await;
        sender.close().await.expect("everything was consumed");
    });
    receiving.join().expect("receives");
}

/// Polls the sink once for readiness.
fn ready(sender: &mut AsyncSender, cx: &mut Context<'_>) -> bool {
    let sink: Pin<&mut AsyncSender> = Pin::new(sender);
    match Sink::<&[u8]>::poll_ready(sink, cx) {
        Poll::Ready(ready) => {
            ready.expect("whole");
            true
        }
        Poll::Pending => false,
    }
}

#[test]
fn a_sink_is_not_ready_while_the_ring_is_full_and_is_woken_when_there_is_room() {
    let ring = ring(&fixed(8));
    run(async || {
        let (mut sender, mut receiver, _fabric) = ring.ends();
        let woken = Arc::new(Woken::default());
        let waker = Waker::from(woken.clone());
        let mut cx = Context::from_waker(&waker);
        let mut sent = 0;
        while ready(&mut sender, &mut cx) {
            let message = message(sent);
            Pin::new(&mut sender)
                .start_send(&message[..])
                .expect("sends");
            sent += 1;
        }
        assert_eq!(sent, 7, "of 8 slots one is empty");
        // Lets the reactor deliver the sender's own events, so that they are not counted.
        for _ in 0..10 {
            tokio::task::yield_now().await;
        }
        assert!(!ready(&mut sender, &mut cx));
        let before = woken.0.load(Ordering::Relaxed);
        expect(&mut receiver, 0..7).await;
        // A waiting receiver returns all free space to the sender.
        assert!(poll_once(receiver.recv()).is_none());
        while woken.0.load(Ordering::Relaxed) == before {
            tokio::task::yield_now().await;
        }
        assert!(ready(&mut sender, &mut cx));
        Pin::new(&mut sender)
            .start_send(message(7))
            .expect("a sink of all that is bytes");
        poll_fn(|cx| Sink::<&[u8]>::poll_flush(Pin::new(&mut sender), cx))
            .await
            .expect("publishes");
        expect(&mut receiver, 7..8).await;
    });
}

#[test]
fn a_sink_keeps_an_accepted_message_until_room_appears() {
    let ring = ring(&crowded());
    run(async || {
        let (mut sender, mut receiver, _fabric) = ring.ends();
        let longest = vec![7; sender.ring().max_message()];
        let mut cx = Context::from_waker(Waker::noop());
        assert!(ready(&mut sender, &mut cx));
        Pin::new(&mut sender).start_send(b"first").expect("sends");
        // There is room for one slot, but this message needs all of them.
        assert!(ready(&mut sender, &mut cx));
        Pin::new(&mut sender).start_send(&longest).expect("keeps");
        assert!(!ready(&mut sender, &mut cx));
        let refused = Pin::new(&mut sender).start_send(b"too early");
        assert!(matches!(refused, Err(BlockingError::System { .. })));
        let sending = tokio::spawn(async move {
            // The kept message is sent first.
            sender.send(b"last").await.expect("sends");
            poll_fn(|cx| Sink::<&[u8]>::poll_close(Pin::new(&mut sender), cx)).await
        });
        for expected in [b"first", &longest[..], b"last"] {
            assert_eq!(*receiver.recv().await.expect("a message"), *expected);
        }
        receiver.close();
        sending.await.expect("sends").expect("closes");
    });
}

#[test]
fn a_stream_copies_messages_and_says_once_why_it_ended() {
    let ring = ring(&fixed(8));
    run(async || {
        let (mut sender, mut receiver, _fabric) = ring.ends();
        let sending = tokio::spawn(async move {
            send(&mut sender, 0..100).await;
            sender.flush().await.expect("publishes");
        });
        let mut next = async || poll_fn(|cx| Pin::new(&mut receiver).poll_next(cx)).await;
        for number in 0..100 {
            let received = next().await.expect("goes on").expect("a message");
            assert_eq!(received, message(number));
        }
        sending.await.expect("sends");
        let end = next().await.expect("says why");
        assert!(matches!(end, Err(BlockingError::PeerGone)), "{end:?}");
        assert!(next().await.is_none());
    });
}

#[test]
fn an_end_that_never_waits_leaves_other_tasks_their_turn() {
    const COUNT: u64 = 2_000;
    let ring = ring(&fixed(4_096));
    run(async || {
        let (mut sender, mut receiver, _fabric) = ring.ends();
        let turns = Arc::new(AtomicU32::new(0));
        let others = turns.clone();
        let other = tokio::spawn(async move {
            loop {
                others.fetch_add(1, Ordering::Relaxed);
                tokio::task::yield_now().await;
            }
        });
        send(&mut sender, 0..COUNT).await;
        let while_sending = turns.swap(0, Ordering::Relaxed);
        assert!(while_sending > 1, "{while_sending} turns");
        sender.flush().await.expect("publishes");
        turns.store(0, Ordering::Relaxed);
        expect(&mut receiver, 0..COUNT).await;
        let while_receiving = turns.load(Ordering::Relaxed);
        assert!(while_receiving > 1, "{while_receiving} turns");
        other.abort();
    });
}

#[test]
fn a_waiting_task_is_polled_only_on_arrivals() {
    let ring = ring(&fixed(8));
    let (sender, control) = ring.sender;
    let (receiver, other) = ring.receiver;
    let (tell, told) = channel();
    let sending = thread::spawn(move || {
        let mut sender = BlockingSender::new(sender, control).expect("can be slept on");
        for number in 0..20 {
            let () = told.recv().expect("goes on");
            sender.send(&message(number)).expect("sends");
            sender.flush().expect("publishes");
        }
        sender
    });
    let polls = run(async move || {
        let mut receiver = AsyncReceiver::new(receiver, other).expect("can be slept on");
        let mut polls = 0;
        for number in 0..20 {
            let mut receiving = pin!(receiver.recv());
            let received = poll_fn(|cx| {
                polls += 1;
                let polled = receiving.as_mut().poll(cx);
                if polls % 2 == 1 {
                    // The sender sends only after a poll found nothing.
                    assert!(polled.is_pending());
                    tell.send(()).expect("goes on");
                }
                polled
            });
            assert_eq!(*received.await.expect("a message"), message(number)[..]);
            polls += polls % 2;
        }
        polls
    });
    // One poll finds nothing and one finds the message; an own completion causes an extra one now and then.
    assert!(polls <= 60, "{polls} polls for 20 messages");
    drop(sending.join().expect("sends"));
}

#[test]
fn a_message_arriving_while_arming_is_not_missed() {
    const ROUNDS: u64 = 10_000;
    let ring = ring(&fixed(8));
    let (mut sender, _line) = ring.sender;
    let (mut receiver, mut control) = ring.receiver;
    let (tell, told) = channel::<u64>();
    // One message at a time is in flight, so nothing else would end a wait that missed it.
    let sending = thread::spawn(move || {
        for number in 0..ROUNDS {
            let next = loop {
                match told.try_recv() {
                    Ok(next) => break next,
                    Err(TryRecvError::Empty) => thread::yield_now(),
                    Err(TryRecvError::Disconnected) => return,
                }
            };
            assert_eq!(next, number);
            sender.try_send(&message(number)).expect("room");
            while !sender.flush().expect("whole") {}
            let _ = sender.step();
        }
        // The ring must stay until the last message was received.
        let _ = told.recv();
    });
    run(async move || {
        for number in 0..ROUNDS {
            // Removes events of earlier waits, which would make the receiver look again.
            receiver.drain_events();
            let mut ends = AsyncReceiver::new(receiver, control).expect("can be slept on");
            tell.send(number).expect("goes on");
            // Varies the moment of the wait at which the message arrives.
            for _ in 0..number % 128 {
                std::hint::spin_loop();
            }
            expect(&mut ends, number..number + 1).await;
            (receiver, control) = ends.into_parts();
        }
    });
    sending.join().expect("sends");
}

#[test]
fn control_messages_are_left_for_the_lines_next_owner() {
    let ring = ring(&fixed(8));
    run(async || {
        let (mut sender, mut control) = ring.sender;
        let (receiver, other) = ring.receiver;
        let mut receiver = AsyncReceiver::new(receiver, other).expect("can be slept on");
        let mut polls = 0;
        {
            let mut receiving = pin!(receiver.recv());
            let received = poll_fn(|cx| {
                polls += 1;
                let polled = receiving.as_mut().poll(cx);
                match polls {
                    1 => control.send_control(b"aside").expect("sends"),
                    // The message on the control stream wakes the task, which then waits again.
                    2 => {
                        assert!(polled.is_pending());
                        sender.try_send(&message(0)).expect("room");
                        assert!(sender.flush().expect("whole"));
                    }
                    _ => {}
                }
                polled
            });
            assert_eq!(*received.await.expect("a message"), message(0)[..]);
        }
        let mut other = receiver.close();
        let heard = other.recv_control().expect("open");
        assert_eq!(heard.as_deref(), Some(&b"aside"[..]));
        let mut sender = AsyncSender::new(sender, control).expect("can be slept on");
        sender.close().await.expect("was consumed");
        let (mut sender, _line) = sender.into_parts();
        assert!(sender.step().is_ok());
    });
}

#[test]
fn the_consumed_count_is_known_after_the_receiver_left() {
    let ring = ring(&fixed(8));
    run(async || {
        let (mut sender, mut receiver, _fabric) = ring.ends();
        send(&mut sender, 0..5).await;
        sender.flush().await.expect("publishes");
        expect(&mut receiver, 0..3).await;
        drop(receiver.close());
        let error = loop {
            if let Err(error) = sender.send(&message(5)).await {
                break error;
            }
        };
        assert!(matches!(error, BlockingError::PeerGone), "{error}");
        assert_eq!(sender.ring().consumed(), 3);
        let error = sender.close().await.expect_err("two were not consumed");
        assert!(matches!(error, BlockingError::PeerGone), "{error}");
    });
}

/// The sender sees the end of the control stream before it sees the last head; the head decides.
#[test]
fn closing_succeeds_though_the_line_ended_before_the_last_head_was_seen() {
    let ring = ring(&fixed(8));
    run(async || {
        let (mut sender, receiver, _fabric) = ring.ends();
        send(&mut sender, 0..5).await;
        let (mut receiver, control) = receiver.into_parts();
        drop(control);
        let error = sender.close().await.expect_err("nothing was consumed");
        assert!(matches!(error, BlockingError::PeerGone), "{error}");
        for number in 0..5 {
            let received = receiver.try_recv().expect("whole").expect("published");
            assert_eq!(*received, message(number)[..]);
        }
        assert!(receiver.push_head().expect("whole"));
        sender.close().await.expect("everything was consumed");
    });
}

#[test]
fn overlong_messages_and_polled_rings_are_refused() {
    let polled = ring(&RingConfig::fixed(8, LEN));
    let whole = ring(&fixed(8));
    run(async || {
        let (ring, control) = polled.sender;
        let refused = AsyncSender::new(ring, control).err();
        assert!(matches!(refused, Some(BlockingError::NotNotify)));
        let (ring, control) = polled.receiver;
        let refused = AsyncReceiver::new(ring, control).err();
        assert!(matches!(refused, Some(BlockingError::NotNotify)));
        let (mut sender, mut receiver, _fabric) = whole.ends();
        let refused = sender.send(&[0; LEN + 1]).await.expect_err("too long");
        assert!(matches!(refused, BlockingError::Length(_)), "{refused}");
        let refused = Pin::new(&mut sender).start_send(b"short");
        assert!(matches!(refused, Err(BlockingError::Length(_))));
        send(&mut sender, 0..1).await;
        sender.flush().await.expect("goes on");
        expect(&mut receiver, 0..1).await;
    });
}
