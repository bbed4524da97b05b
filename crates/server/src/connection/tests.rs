//! Which connections are closed, and when.

use std::net::Ipv4Addr;
use std::pin::pin;

use mainstay_store::clock::ManualClock;

use super::*;

const NEAR: IpAddr = IpAddr::V4(Ipv4Addr::LOCALHOST);
const FAR: IpAddr = IpAddr::V4(Ipv4Addr::new(192, 0, 2, 1));

#[test]
fn each_state_has_its_own_patience() {
    let limits = Limits::default();
    let calm = Reading {
        shaken: true,
        busy: false,
        head: None,
        unused: None,
        quiet: Duration::ZERO,
        stalled: None,
        unread: None,
    };
    let second = Duration::from_secs(1);
    let shaking = Reading { shaken: false, ..calm };
    let head = |reading: Reading, time| Reading { head: Some(time), ..reading };
    let unused = |time| Reading { unused: Some(time), ..calm };
    let busy = Reading { busy: true, ..calm };
    let after = |reading: Reading, quiet| Reading { quiet, ..reading };
    let stalled = |stalled| Reading { stalled: Some(stalled), ..busy };
    let cases = [
        (after(shaking, limits.handshake), false),
        (after(shaking, limits.handshake + second), true),
        (head(calm, limits.head_time), false),
        (head(calm, limits.head_time + second), true),
        (head(busy, limits.head_time + second), true),
        (unused(limits.head_time), false),
        (unused(limits.head_time + second), true),
        (after(calm, limits.idle), false),
        (after(calm, limits.idle + second), true),
        (after(busy, limits.idle * 10), false),
        (stalled(limits.stall), false),
        (stalled(limits.stall + second), true),
        (Reading { unread: Some(limits.stall), ..busy }, false),
        (Reading { unread: Some(limits.stall + second), ..calm }, true),
    ];
    for (reading, closed) in cases {
        assert_eq!(overstays(reading, &limits).is_some(), closed, "{reading:?}");
    }
}

#[tokio::test]
async fn a_head_that_never_ends_is_cut_off_and_a_request_under_way_is_not() {
    let clock = ManualClock::new("2026-11-16T00:00:00Z".parse().unwrap());
    let all = Connections::new(clock.clone(), Limits::default());
    let (slow, busy) = (all.enter(NEAR), all.enter(NEAR));
    for place in [&slow, &busy] {
        place.pulse.shaken(false);
        place.pulse.heard(true);
    }
    let under_way = busy.pulse.begin();
    let mut sweep = pin!(all.sweep());
    assert!(futures_util::poll!(&mut sweep).is_pending());
    clock.advance(Duration::from_secs(10));
    slow.pulse.heard(true);
    clock.advance(Duration::from_secs(10));
    assert!(futures_util::poll!(&mut sweep).is_pending());
    assert!(!slow.pulse.ordered().await);
    assert_eq!(busy.pulse.order.load(Relaxed), GO_ON);
    drop((under_way, slow));
    assert_eq!(all.len(), 1);
}

#[test]
fn a_head_that_began_behind_a_request_counts_from_the_end_of_the_request() {
    let clock = ManualClock::new("2026-11-16T00:00:00Z".parse().unwrap());
    let all = Connections::new(clock, Limits::default());
    let (piped, done) = (all.enter(NEAR), all.enter(NEAR));
    for (place, partial) in [(&piped, true), (&done, false)] {
        place.pulse.shaken(false);
        place.pulse.heard(partial);
        drop(place.pulse.begin());
        assert_eq!(place.pulse.reading().head, partial.then_some(Duration::ZERO));
    }
}

#[test]
fn pings_do_not_prolong_an_incomplete_head_over_http2() {
    let clock = ManualClock::new("2026-11-16T00:00:00Z".parse().unwrap());
    let all = Connections::new(clock, Limits::default());
    let place = all.enter(NEAR);
    place.pulse.shaken(true);
    for (tick, partial, head) in
        [(0, false, None), (5, true, Some(0)), (9, true, Some(4)), (10, false, None)]
    {
        all.tick.store(tick, Relaxed);
        place.pulse.heard_frames(partial);
        let reading = place.pulse.reading();
        assert_eq!(reading.head, head.map(Duration::from_millis), "{tick}");
        assert_eq!(reading.unused, Some(Duration::from_millis(tick)));
    }
    let _request = place.pulse.begin();
    assert_eq!(place.pulse.reading().unused, None);
}

#[test]
fn the_longest_idle_connection_makes_room() {
    let clock = ManualClock::new("2026-11-16T00:00:00Z".parse().unwrap());
    let all = Connections::new(clock, Limits::default());
    let (first, second, third) = (all.enter(NEAR), all.enter(NEAR), all.enter(FAR));
    let _request = first.pulse.begin();
    second.pulse.since.store(5, Relaxed);
    third.pulse.since.store(9, Relaxed);
    all.close_idlest(None);
    let orders = [&first, &second, &third].map(|place| place.pulse.order.load(Relaxed));
    assert_eq!(orders, [GO_ON, CLOSE, GO_ON]);
    all.close_idlest(Some(FAR));
    assert_eq!(third.pulse.order.load(Relaxed), CLOSE, "one from there makes room");
}
