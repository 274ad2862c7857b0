//! Futures that are dropped before they are ready.

use super::*;

#[test]
fn dropped_receives_lose_no_message() {
    let ring = ring(&fixed(8));
    run(async || {
        let (mut sender, mut receiver, _fabric) = ring.ends();
        for number in 0..2_000 {
            for _ in 0..2 {
                assert!(poll_once(receiver.recv()).is_none());
                assert!(poll_once(receiver.take()).is_none());
            }
            send(&mut sender, number..number + 1).await;
            sender.flush().await.expect("publishes");
            expect(&mut receiver, number..number + 1).await;
            tokio::task::yield_now().await;
        }
    });
}

#[test]
fn a_receive_that_loses_a_race_each_time_loses_no_message() {
    const COUNT: u64 = 5_000;
    let ring = ring(&fixed(8));
    run(async || {
        let (mut sender, mut receiver, _fabric) = ring.ends();
        let sending = tokio::spawn(async move {
            send(&mut sender, 0..COUNT).await;
            sender.close().await
        });
        for number in 0..COUNT {
            let received = loop {
                match poll_once(receiver.take()) {
                    Some(received) => break received.expect("a message"),
                    None => tokio::task::yield_now().await,
                }
            };
            let ring = receiver.ring();
            assert_eq!(ring.bytes(&received), message(number));
            ring.release(received).expect("releases");
        }
        // No receive waits any more, so `close` must return the space.
        receiver.close();
        sending.await.expect("sends").expect("closes");
    });
}

#[test]
fn a_dropped_send_sent_nothing_and_one_that_was_ready_everything() {
    let ring = ring(&fixed(8));
    run(async || {
        let (mut sender, mut receiver, _fabric) = ring.ends();
        let (mut sent, mut cancelled, mut received) = (0, 0, 0);
        while received < 2_000 {
            match poll_once(sender.send(&message(sent))) {
                Some(done) => {
                    done.expect("sends");
                    sent += 1;
                    continue;
                }
                None => cancelled += 1,
            }
            assert!(poll_once(sender.reserve(LEN)).is_none());
            // When the ring is full, the sender has published everything.
            while received < sent {
                expect(&mut receiver, received..received + 1).await;
                received += 1;
            }
            assert!(poll_once(receiver.recv()).is_none(), "sent twice");
            // Once a task's budget is spent, everything it polls is pending until it yields.
            tokio::task::yield_now().await;
        }
        assert!(cancelled > 100, "{cancelled} were cancelled");
    });
}

#[test]
fn a_close_that_was_dropped_can_be_called_again() {
    let ring = ring(&fixed(8));
    run(async || {
        let (mut sender, mut receiver, _fabric) = ring.ends();
        send(&mut sender, 0..3).await;
        assert!(poll_once(sender.close()).is_none());
        expect(&mut receiver, 0..3).await;
        receiver.close();
        sender.close().await.expect("everything was consumed");
    });
}
