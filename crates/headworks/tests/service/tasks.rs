//! Streams for tasks of the tokio runtime.

use std::future::poll_fn;
use std::pin::Pin;
use std::sync::mpsc::channel;
use std::task::Poll;
use std::thread;

use headworks::asynchronous::{AsyncListener, AsyncStream};
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
