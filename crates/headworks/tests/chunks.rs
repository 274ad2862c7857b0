//! Received bytes that an application keeps without a copy.
#![cfg(all(feature = "daemon", feature = "soft"))]

use headworks::net::clock;
use headworks::service::{CHUNKS_MAX, Chunk, Service, ServiceError, Stream};
use headworks::testing::Daemons;
use headworks::verbs::Duration;

const PIECE: usize = 64 << 10;

fn byte(at: usize) -> u8 {
    (at ^ at >> 8 ^ at >> 16) as u8
}

fn bytes(from: usize, len: usize) -> Vec<u8> {
    (from..from + len).map(byte).collect()
}

/// Sends one piece after the other, and keeps what arrives until a chunk of the pool is the last of `most`.
fn keep(near: &mut Stream, far: &mut Stream, at: &mut usize, most: usize) -> Vec<(usize, Chunk)> {
    let mut kept = Vec::new();
    while kept.len() < most {
        near.send_all(&bytes(*at, PIECE)).expect("is sent");
        let mut left = PIECE;
        while left > 0 {
            let chunk = far.recv_chunk().expect("arrives");
            assert!(!chunk.is_empty() && chunk.is_in_pool());
            left -= chunk.len();
            kept.push((*at, chunk));
            *at += kept.last().map_or(0, |(_, chunk)| chunk.len());
        }
    }
    kept
}

fn check(kept: &[(usize, Chunk)]) {
    for (from, chunk) in kept {
        assert!(
            **chunk == bytes(*from, chunk.len()),
            "the bytes from {from} on"
        );
    }
}

/// Connects two applications, which the first two results keep attached.
fn pair(daemons: &Daemons) -> ([Service; 2], Stream, Stream) {
    let services = [0, 1].map(|host| daemons.attach(host, "test").expect("a daemon"));
    let [near, far] = &services;
    let listener = far.listen(7000, 1).expect("a port");
    let mut near = near.connect(daemons.address(1, 7000)).expect("connects");
    let mut far = listener.accept().expect("a caller");
    let until = clock::now() + Duration::from_secs(60);
    near.set_deadline(Some(until));
    far.set_deadline(Some(until));
    // The ring of the sender grows until a piece is sent whole.
    let mut whole = 0;
    while whole < 3 {
        near.send_all(&[1; PIECE]).expect("is sent");
        let first = far.recv_chunk().expect("arrives");
        whole = if first.len() == PIECE { whole + 1 } else { 0 };
        let mut left = PIECE - first.len();
        while left > 0 {
            left -= far.recv_chunk().expect("arrives").len();
        }
    }
    (services, near, far)
}

#[test]
fn chunks_stay_as_they_are_while_more_arrives_and_other_threads_may_drop_them() {
    let daemons = Daemons::start(2).expect("starts");
    let (_services, mut near, mut far) = pair(&daemons);
    let mut at = 0;
    let kept = keep(&mut near, &mut far, &mut at, CHUNKS_MAX / 2);
    let more = keep(&mut near, &mut far, &mut at, CHUNKS_MAX / 4);
    check(&kept);
    check(&more);
    std::thread::spawn(move || {
        check(&kept);
        drop(kept);
    })
    .join()
    .expect("no panic");
    // What was dropped is used again, and what is kept is not.
    for _ in 0..CHUNKS_MAX / 2 {
        check(&keep(&mut near, &mut far, &mut at, 1));
        check(&more);
    }
}

#[test]
fn short_pieces_are_copies_and_an_end_is_an_empty_chunk() {
    let daemons = Daemons::start(2).expect("starts");
    let (_services, mut near, mut far) = pair(&daemons);
    near.send_all(&bytes(0, 100)).expect("is sent");
    let chunk = far.recv_chunk().expect("arrives");
    assert!(!chunk.is_in_pool() && *chunk == bytes(0, 100));
    near.end().expect("ends");
    assert!(far.recv_chunk().expect("the end").is_empty());
    assert!(far.recv_chunk().expect("the end").is_empty());
}

#[test]
fn a_chunk_that_is_too_old_is_a_typed_error_and_no_stall() {
    let daemons = Daemons::start(2).expect("starts");
    let (_services, mut near, mut far) = pair(&daemons);
    let mut at = 0;
    let oldest = keep(&mut near, &mut far, &mut at, 1);
    // Later ones are dropped at once.
    drop(keep(
        &mut near,
        &mut far,
        &mut at,
        CHUNKS_MAX - oldest.len(),
    ));
    near.send_all(&bytes(at, PIECE)).expect("is sent");
    let error = far.recv(&mut [0; 100]).expect_err("no descriptor is left");
    assert!(matches!(error, ServiceError::ChunksKept), "{error}");
    let error = far.recv_chunk().expect_err("no descriptor is left");
    assert!(error.to_string().contains("still kept"), "{error}");
    check(&oldest);
    drop(oldest);
    let mut rest = vec![0; PIECE];
    std::io::Read::read_exact(&mut far, &mut rest).expect("arrives");
    assert!(rest == bytes(at, PIECE));
}

#[test]
fn a_chunk_outlives_its_stream() {
    let daemons = Daemons::start(2).expect("starts");
    let (_services, mut near, mut far) = pair(&daemons);
    let mut at = 0;
    let kept = keep(&mut near, &mut far, &mut at, 2);
    drop(far);
    check(&kept);
    drop(kept);
    // Now the connection is closed.
    assert_eq!(near.recv(&mut [0]).expect("the end"), 0);
}
