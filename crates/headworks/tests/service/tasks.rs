//! Streams for tasks of the tokio runtime.

use std::future::poll_fn;
use std::io::IoSlice;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::mpsc::channel;
use std::task::Poll;
use std::thread;

use headworks::asynchronous::{AsyncListener, AsyncStream};
use headworks::service::{Service, ServiceError};
use rustix::process::Signal;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

use super::LIMIT;
use super::daemon::DaemonProcess;
use super::polling::both_ways;

/// Runs a task, and what it spawns, on one thread. Panics if it hangs.
fn run<F: Future<Output = ()>>(task: impl FnOnce() -> F + Send + 'static) {
    let (tell, told) = channel();
    let running = thread::spawn(move || {
        let mut builder = tokio::runtime::Builder::new_current_thread();
        let runtime = builder.enable_io().build().expect("a runtime");
        runtime.block_on(async { task().await });
        let _ = tell.send(());
    });
    if told.recv_timeout(LIMIT).is_err() {
        assert!(running.is_finished(), "hangs");
    }
    running.join().expect("the task succeeds");
}

async fn read(stream: &mut AsyncStream, into: &mut [u8]) -> usize {
    let mut into = ReadBuf::new(into);
    poll_fn(|cx| Pin::new(&mut *stream).poll_read(cx, &mut into))
        .await
        .expect("reads");
    into.filled().len()
}

async fn write_all(stream: &mut AsyncStream, mut bytes: &[u8]) {
    while !bytes.is_empty() {
        let written = poll_fn(|cx| Pin::new(&mut *stream).poll_write(cx, bytes)).await;
        bytes = &bytes[written.expect("writes")..];
    }
}

async fn shutdown(stream: &mut AsyncStream) {
    poll_fn(|cx| Pin::new(&mut *stream).poll_shutdown(cx))
        .await
        .expect("shuts down");
}

/// Each side has to wait for the other, in both directions.
#[test]
fn tasks_exchange_more_than_the_buffers_hold() {
    both_ways(tasks_exchange);
}

fn tasks_exchange(daemon: &DaemonProcess) {
    let service = daemon.attach();
    run(move || async move {
        let listener = service.listen(0, 8).expect("listens");
        let listener = AsyncListener::new(listener).expect("a descriptor");
        let at = listener.get_ref().local_addr().expect("an address");
        let echo = tokio::spawn(async move {
            for _ in 0..3 {
                let mut stream = listener.accept().await.expect("accepts");
                tokio::spawn(async move {
                    let mut buffer = [0; 70_000];
                    loop {
                        let len = read(&mut stream, &mut buffer).await;
                        if len == 0 {
                            return;
                        }
                        write_all(&mut stream, &buffer[..len]).await;
                    }
                });
            }
        });
        let mut clients = Vec::new();
        for client in 0..3u8 {
            let service = service.clone();
            clients.push(tokio::spawn(async move {
                let mut stream = AsyncStream::connect(&service, at).await.expect("connects");
                let mut buffer = vec![0; 200_000];
                for round in 0..20 {
                    let sent = vec![client ^ round; 1 + usize::from(round) * 10_000];
                    write_all(&mut stream, &sent).await;
                    let mut got = 0;
                    while got < sent.len() {
                        got += read(&mut stream, &mut buffer[got..sent.len()]).await;
                    }
                    assert!(
                        buffer[..sent.len()] == sent,
                        "client {client}, round {round}"
                    );
                }
                shutdown(&mut stream).await;
                assert_eq!(read(&mut stream, &mut buffer).await, 0);
            }));
        }
        for client in clients {
            client.await.expect("all answers are right");
        }
        echo.await.expect("all were accepted");
    });
}

#[test]
fn a_task_waits_for_room_until_the_peer_reads() {
    both_ways(a_task_waits_for_room);
}

fn a_task_waits_for_room(daemon: &DaemonProcess) {
    let service = daemon.attach();
    run(move || async move {
        let listener = service.listen(0, 8).expect("listens");
        let listener = AsyncListener::new(listener).expect("a descriptor");
        let at = listener.get_ref().local_addr().expect("an address");
        let near = tokio::spawn(async move {
            let mut near = AsyncStream::connect(&service, at).await.expect("connects");
            near.send_all(&vec![9; 20 << 20]).await.expect("sends");
            near.end().await.expect("ends");
            assert_eq!(near.recv(&mut [0]).await.expect("the end"), 0);
        });
        let mut far = listener.accept().await.expect("accepts");
        // Lets the sender fill all buffers first: its task runs until it has to wait for room.
        let mut turns = 0;
        poll_fn(|cx| {
            turns += 1;
            cx.waker().wake_by_ref();
            if turns < 1000 {
                Poll::Pending
            } else {
                Poll::Ready(())
            }
        })
        .await;
        let (mut buffer, mut got) = (vec![0; 50_000], 0);
        loop {
            let len = far.recv(&mut buffer).await.expect("receives");
            if len == 0 {
                break;
            }
            assert!(buffer[..len].iter().all(|byte| *byte == 9));
            got += len;
        }
        assert_eq!(got, 20 << 20);
        drop(far);
        near.await.expect("everything is written");
    });
}

/// Returns both ends of a connection.
async fn connected_tasks(service: &Service) -> (AsyncStream, AsyncStream) {
    let listener = service.listen(0, 8).expect("listens");
    let listener = AsyncListener::new(listener).expect("a poller");
    let at = listener.get_ref().local_addr().expect("an address");
    let service = service.clone();
    let near = tokio::spawn(async move { AsyncStream::connect(&service, at).await });
    let far = listener.accept().await.expect("accepts");
    let near = near.await.expect("the task succeeds");
    (near.expect("connects"), far)
}

/// One task sends more than all buffers hold with vectored writes, another one receives on the same connection, and the
/// other end echoes with its two halves in tasks of their own.
#[test]
fn halves_are_used_by_tasks_of_their_own() {
    both_ways(|daemon| {
        let service = daemon.attach();
        run(move || async move {
            const LEN: usize = 3 << 20;
            let (near, far) = connected_tasks(&service).await;
            assert_eq!(near.is_direct(), far.is_direct());
            let (mut from_near, mut to_near) = far.into_split();
            let (passes, mut passed) = (std::sync::mpsc::channel::<Vec<u8>>(), 0);
            let (pass, take) = passes;
            let receives = tokio::spawn(async move {
                let mut buffer = vec![0; 30_000];
                loop {
                    match from_near.recv(&mut buffer).await.expect("receives") {
                        0 => return,
                        len => pass.send(buffer[..len].to_vec()).expect("the sender waits"),
                    }
                }
            });
            let (mut reader, mut writer) = near.into_split();
            let sends = tokio::spawn(async move {
                let bytes: Vec<u8> = (0..LEN).map(|at| (at * 7 / 3) as u8).collect();
                let mut sent = 0;
                while sent < LEN {
                    let rest = &bytes[sent..];
                    let (first, second) = rest.split_at(rest.len().min(5));
                    let pieces = [&[][..], first, second].map(IoSlice::new);
                    let written =
                        poll_fn(|cx| Pin::new(&mut writer).poll_write_vectored(cx, &pieces)).await;
                    sent += written.expect("writes");
                }
                writer.end().await.expect("ends");
            });
            let returns = tokio::spawn(async move {
                while passed < LEN {
                    match take.try_recv() {
                        Ok(bytes) => {
                            passed += bytes.len();
                            to_near.send_all(&bytes).await.expect("sends");
                        }
                        Err(_) => tokio::task::yield_now().await,
                    }
                }
            });
            let mut back = vec![0; LEN + 1];
            let mut got = 0;
            loop {
                match reader.recv(&mut back[got..]).await.expect("receives") {
                    0 => break,
                    len => got += len,
                }
            }
            assert_eq!(got, LEN);
            assert!((0..LEN).all(|at| back[at] == (at * 7 / 3) as u8));
            for task in [receives, sends, returns] {
                task.await.expect("the task succeeds");
            }
        });
    });
}

/// Futures are dropped while they wait, again and again. No byte is lost or doubled.
#[test]
fn a_dropped_call_has_taken_nothing() {
    both_ways(|daemon| {
        let service = daemon.attach();
        run(move || async move {
            let (mut near, mut far) = connected_tasks(&service).await;
            for round in 0..200u8 {
                for _ in 0..3 {
                    let mut one = [0];
                    let mut waits = std::pin::pin!(far.recv(&mut one));
                    let looked = poll_fn(|cx| Poll::Ready(waits.as_mut().poll(cx).is_pending()));
                    assert!(looked.await, "nothing was sent");
                }
                near.send_all(&[round]).await.expect("sends");
                let mut one = [0; 2];
                assert_eq!(far.recv(&mut one).await.expect("receives"), 1);
                assert_eq!(one[0], round);
            }
        });
    });
}

#[test]
fn a_reset_the_end_of_the_daemon_and_that_of_the_runtime_wake_a_task() {
    for is_direct in [false, true] {
        let mut daemon = DaemonProcess::start_with(is_direct);
        let service = daemon.attach();
        let runtime = || {
            let mut builder = tokio::runtime::Builder::new_current_thread();
            builder.enable_io().build().expect("a runtime")
        };
        let other = runtime();
        let (mut near, far) = other.block_on(connected_tasks(&service));
        // The other end is dropped with bytes that it did not read: a reset.
        let asleep = other.spawn(async move { (near.recv(&mut [0]).await, near) });
        other.block_on(async {
            tokio::task::yield_now().await;
            let (mut here, mut there) = connected_tasks(&service).await;
            here.send_all(b"unread").await.expect("sends");
            assert_eq!(there.recv(&mut [0]).await.expect("receives"), 1);
            drop(there);
            assert!(matches!(
                here.recv(&mut [0]).await,
                Err(ServiceError::Reset(_))
            ));
        });
        drop(far);
        let (ended, mut near) = other.block_on(asleep).expect("the task succeeds");
        assert_eq!(ended.expect("an end"), 0);
        // The daemon ends while a task waits for a connection.
        let listener = service.listen(0, 8).expect("listens");
        let waits = other.spawn(async move {
            let listener = AsyncListener::new(listener).expect("a poller");
            listener.accept().await.map(drop)
        });
        other.block_on(tokio::task::yield_now());
        daemon.end(Signal::KILL);
        let waited = other.block_on(waits).expect("the task succeeds");
        assert!(
            matches!(waited, Err(ServiceError::DaemonGone)),
            "{waited:?}"
        );
        // Without its runtime a stream fails in another one, and does not wait for ever.
        drop(other);
        let sent = runtime().block_on(async {
            let mut bytes = 0;
            loop {
                match near.send(&[0; 4096]).await {
                    Ok(len) => bytes += len,
                    Err(error) => return error,
                }
                assert!(bytes < 1 << 30, "the other end is closed");
            }
        });
        println!("{sent}");
    }
}

#[test]
fn several_tasks_accept_at_one_listener() {
    both_ways(|daemon| {
        let service = daemon.attach();
        run(move || async move {
            let listener = service.listen(0, 8).expect("listens");
            let listener = Arc::new(AsyncListener::new(listener).expect("a poller"));
            let at = listener.get_ref().local_addr().expect("an address");
            let accepting: Vec<_> = (0..3)
                .map(|_| {
                    let listener = listener.clone();
                    tokio::spawn(async move { listener.accept().await.map(drop) })
                })
                .collect();
            // All of them wait now.
            tokio::task::yield_now().await;
            for _ in 0..3 {
                let connected = AsyncStream::connect(&service, at).await;
                drop(connected.expect("connects"));
            }
            for task in accepting {
                task.await.expect("the task succeeds").expect("accepts");
            }
        });
    });
}
