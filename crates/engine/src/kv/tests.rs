use super::*;

fn shape(slots: usize, blocks: usize, context: usize, rings: Vec<Ring>) -> KvShape {
    KvShape { slots, blocks, context, rings }
}

/// Returns a lease of a slot whose sequence is taken over.
fn taken(slot: usize, reused: usize) -> Lease {
    Lease { slot, reused, copied_from: None, branch: 0 }
}

fn fill(kv: &mut KvBooks, slot: usize, rows: usize) {
    kv.reserve(slot, kv.length(slot) + rows).unwrap();
    kv.advance(slot, rows);
    kv.check_integrity().unwrap();
}

/// Compares the rule of [`Ring::keeps`] with a ring that is actually written.
#[test]
fn a_ring_keeps_exactly_what_was_not_overwritten() {
    for window in 1..=9 {
        for length in window..=12 {
            let ring = Ring { window, length };
            for written in 0..=40_usize {
                let mut cells = vec![None; length];
                (0..written).for_each(|position| cells[position % length] = Some(position));
                for position in 0..=written {
                    let needed = (position + 1).saturating_sub(window)..position;
                    let held = needed.clone().all(|p| cells[p % length] == Some(p));
                    assert_eq!(
                        ring.keeps(position, written),
                        held,
                        "window {window}, length {length}, written {written}, position {position}"
                    );
                }
            }
        }
    }
}

#[test]
fn blocks_are_counted() {
    let mut pool = BlockPool::new(2);
    let (a, b) = (pool.take().unwrap(), pool.take().unwrap());
    assert_eq!((a, b, pool.take()), (0, 1, None));
    pool.share(a);
    assert_eq!(pool.shared_blocks(), 1);
    pool.share(a);
    pool.release(a);
    assert_eq!(pool.shared_blocks(), 1, "two are left");
    pool.release(a);
    assert_eq!(pool.shared_blocks(), 0);
    assert_eq!(pool.free_blocks(), 0);
    pool.check_integrity(&[1, 1]).unwrap();
    assert!(pool.check_integrity(&[2, 1]).unwrap_err().contains("block 0"));
    pool.release(a);
    pool.release(b);
    assert_eq!(pool.free_blocks(), pool.blocks());
    pool.check_integrity(&[0, 0]).unwrap();
}

#[test]
#[should_panic(expected = "released twice")]
fn a_block_cannot_be_released_twice() {
    let mut pool = BlockPool::new(1);
    let block = pool.take().unwrap();
    pool.release(block);
    pool.release(block);
}

#[test]
fn the_longest_prefix_wins_and_the_last_token_is_run() {
    let mut kv = KvBooks::new(shape(3, 12, 128, Vec::new()));
    for (slot, rows) in [(0, 40), (1, 50)] {
        assert_eq!(kv.lease(rows, |_| 0), Some(taken(slot, 0)));
        fill(&mut kv, slot, rows);
    }
    kv.release(0, true);
    kv.release(1, true);
    let common = |slot: usize| [20, 50, 0][slot];
    assert_eq!(kv.lease(50, common), Some(taken(1, 49)));
    assert_eq!(kv.blocks(1).len(), 2);
    let forked = Lease { slot: 2, reused: 32, copied_from: Some(1), branch: 0 };
    assert_eq!(kv.lease(50, common), Some(forked), "a running sequence's blocks are shared");
    assert_eq!(kv.lease(50, |slot| [20, 0, 0][slot]), Some(taken(0, 20)));
    assert_eq!(kv.blocks(0).len(), 1, "blocks beyond the prefix are free again");
    kv.check_integrity().unwrap();
}

#[test]
fn a_few_common_tokens_do_not_cost_another_sequence_its_cache() {
    let mut kv = KvBooks::new(shape(2, 8, 128, Vec::new()));
    kv.lease(40, |_| 0).unwrap();
    fill(&mut kv, 0, 40);
    kv.release(0, true);
    assert_eq!(kv.lease(40, |_| WORTHWHILE - 1), Some(taken(1, 0)));
    fill(&mut kv, 1, 40);
    assert_eq!(kv.lease(40, |_| 3), Some(taken(0, 0)), "no unused slot is left");
    assert_eq!(kv.lease(40, |_| 40), None, "both are running");
}

#[test]
fn the_oldest_ended_sequence_gives_way() {
    let mut kv = KvBooks::new(shape(3, 4, 128, Vec::new()));
    for slot in 0..2 {
        kv.lease(64, |_| 0).unwrap();
        fill(&mut kv, slot, 64);
    }
    kv.release(1, true);
    kv.release(0, true);
    let lease = kv.lease(64, |_| 0).unwrap();
    assert_eq!(lease, taken(2, 0));
    fill(&mut kv, 2, 33);
    assert_eq!((kv.length(0), kv.length(1)), (64, 0));
    fill(&mut kv, 2, 31 + 64);
    kv.reserve(2, 128).unwrap();
    assert_eq!(kv.free_blocks(), 0);
    let other = kv.lease(1, |_| 0).unwrap();
    assert!(matches!(kv.reserve(other.slot, 1), Err(EngineError::OutOfBlocks { .. })));
    kv.release(2, true);
    kv.forget();
    assert_eq!(kv.free_blocks(), 4);
    kv.check_integrity().unwrap();
}

/// After a reuse the rings still lack what the longer sequence overwrote.
/// A step verified more guesses than were right.
#[test]
fn overwritten_positions_neither_count_nor_keep_blocks() {
    let ring = Ring { window: 8, length: 32 };
    let mut kv = KvBooks::new(shape(1, 4, 128, vec![ring]));
    kv.lease(60, |_| 0).unwrap();
    fill(&mut kv, 0, 60);
    kv.reserve(0, 70).unwrap();
    kv.advance(0, 2);
    kv.overwrite(0, 8);
    kv.check_integrity().unwrap();
    assert_eq!((kv.length(0), kv.written(0), kv.blocks(0).len()), (62, 70, 3));
    // The rings have lost what the overwritten positions replaced, and no more.
    assert!(ring.keeps(62, 70) && !ring.keeps(40, 70));
    kv.release(0, true);
    kv.check_integrity().unwrap();
    assert_eq!(
        (kv.blocks(0).len(), kv.free_blocks()),
        (2, 2),
        "a block held none of its positions"
    );
}

#[test]
fn what_was_reserved_and_is_not_needed_is_given_back() {
    let mut kv = KvBooks::new(shape(2, 4, 128, Vec::new()));
    kv.lease(30, |_| 0).unwrap();
    fill(&mut kv, 0, 30);
    kv.reserve(0, 100).unwrap();
    kv.give_back(0, 33);
    kv.check_integrity().unwrap();
    assert_eq!((kv.blocks(0).len(), kv.free_blocks(), kv.running_blocks()), (2, 2, 2));
    kv.give_back(0, 33);
    kv.give_back(0, 30);
    kv.check_integrity().unwrap();
    assert_eq!((kv.blocks(0).len(), kv.length(0)), (1, 30));
}

#[test]
fn a_second_cut_remembers_the_first_sequence() {
    let ring = Ring { window: 5, length: 32 };
    let mut kv = KvBooks::new(shape(1, 8, 256, vec![ring]));
    kv.lease(100, |_| 0).unwrap();
    fill(&mut kv, 0, 100);
    kv.release(0, true);
    // 100 positions are written, and the ring holds 68 and later; going on from 72 needs 68.
    assert_eq!(kv.clone().lease(100, |_| 71).unwrap().reused, 0);
    assert_eq!(kv.lease(100, |_| 75).unwrap().reused, 75);
    fill(&mut kv, 0, 1);
    kv.release(0, true);
    assert_eq!(kv.clone().lease(100, |_| 72).unwrap().reused, 72);
    assert_eq!(kv.clone().lease(100, |_| 71).unwrap().reused, 0);
    assert_eq!(kv.length(0), 76);
}

#[test]
fn a_branch_is_forked_and_both_go_on() {
    let ring = Ring { window: 5, length: 64 };
    let mut kv = KvBooks::new(shape(3, 16, 256, vec![ring]));
    kv.lease(100, |_| 0).unwrap();
    fill(&mut kv, 0, 100);
    // A running sequence's full blocks are shared while its rings still hold what is needed.
    let fork = kv.lease(120, |_| 98).unwrap();
    assert_eq!(fork, Lease { slot: 1, reused: 96, copied_from: Some(0), branch: 0 });
    assert_eq!(kv.blocks(1), &kv.blocks(0)[..3]);
    assert_eq!((kv.running_blocks(), kv.shared_blocks()), (4, 3));
    assert_eq!((kv.own_blocks(0), kv.own_blocks(1)), (1, 0));
    fill(&mut kv, 1, 24);
    assert_ne!(kv.blocks(0)[3], kv.blocks(1)[3], "they go on in blocks of their own");
    kv.release(0, true);
    assert_eq!(kv.running_blocks(), 4);
    // Little is lost when an ended sequence is taken over near its end, and much in its middle.
    assert_eq!(kv.clone().lease(150, |slot| [100, 0, 0][slot]).unwrap(), taken(0, 100));
    let forked = kv.clone().lease(150, |slot| [65, 0, 0][slot]).unwrap();
    assert_eq!(forked, Lease { slot: 2, reused: 64, copied_from: Some(0), branch: 0 });
    kv.release(1, true);
    kv.forget();
    assert_eq!((kv.free_blocks(), kv.running_blocks()), (16, 0));
    kv.check_integrity().unwrap();
}

#[test]
fn a_shared_block_is_not_cut_in_its_middle() {
    let mut kv = KvBooks::new(shape(2, 8, 128, Vec::new()));
    kv.lease(64, |_| 0).unwrap();
    fill(&mut kv, 0, 64);
    kv.lease(70, |_| 64).unwrap();
    fill(&mut kv, 1, 6);
    kv.release(0, true);
    // The second block is also the running sequence's: position 40 in it may not be written.
    assert_eq!(kv.lease(50, |slot| [40, 0][slot]).unwrap(), taken(0, 32));
    kv.check_integrity().unwrap();
}

#[test]
fn what_rings_have_forgotten_is_named_and_kept_the_next_time() {
    let ring = Ring { window: 5, length: 32 };
    let mut kv = KvBooks::new(shape(3, 24, 256, vec![ring]));
    kv.lease(200, |_| 0).unwrap();
    fill(&mut kv, 0, 200);
    kv.release(0, true);
    let second = kv.lease(200, |_| 100).unwrap();
    assert_eq!(second, Lease { slot: 1, reused: 0, copied_from: None, branch: 96 });
    fill(&mut kv, 1, 96);
    assert_eq!(kv.snapshot(1), Some(2));
    fill(&mut kv, 1, 104);
    kv.release(1, true);
    kv.check_integrity().unwrap();
    // All later requests use the fork; the oldest other sequence loses its slot.
    for _ in 0..2 {
        let next = kv.lease(200, |slot| [100, 100, 96][slot]).unwrap();
        assert_eq!((next.reused, next.copied_from), (96, Some(2)));
        fill(&mut kv, next.slot, 50);
        kv.release(next.slot, true);
    }
    kv.check_integrity().unwrap();
}

#[test]
fn what_comes_from_elsewhere_is_reused_as_far_as_its_rings_go() {
    let ring = Ring { window: 5, length: 64 };
    let mut kv = KvBooks::new(shape(3, 12, 256, vec![ring]));
    let slot = kv.adopt(96, 64).unwrap();
    kv.check_integrity().unwrap();
    assert_eq!((kv.length(slot), kv.running_blocks(), kv.free_blocks()), (96, 0, 9));
    let reused = |common: usize| {
        kv.clone().lease(120, |other| if other == slot { common } else { 0 }).unwrap().reused
    };
    assert_eq!((reused(96), reused(70), reused(68)), (96, 70, 68));
    // The query at 67 sees 63, which the rings never held.
    assert_eq!((reused(67), reused(64)), (0, 0));
    // A fork of it holds no more.
    kv.lease(120, |_| 96).unwrap();
    fill(&mut kv, slot, 10);
    let fork = kv.lease(120, |other| if other == slot { 100 } else { 0 }).unwrap();
    assert_eq!((fork.reused, fork.copied_from), (96, Some(slot)));
    kv.release(fork.slot, true);
    assert_eq!(kv.lease(120, |other| if other == fork.slot { 67 } else { 0 }).unwrap().reused, 0);
    // First adopts more than there are blocks for, then exactly as much.
    let mut small = KvBooks::new(shape(2, 2, 256, vec![ring]));
    assert_eq!(small.adopt(96, 64), None);
    small.check_integrity().unwrap();
    assert_eq!(small.free_blocks(), 2);
    assert!(small.adopt(64, 32).is_some());
}

/// Without rings, and with windows of one position, what is adopted can be cut anywhere.
#[test]
fn what_comes_from_elsewhere_is_cut_where_no_ring_minds() {
    for rings in [Vec::new(), vec![Ring { window: 1, length: 32 }]] {
        let mut kv = KvBooks::new(shape(2, 8, 256, rings));
        let slot = kv.adopt(96, 96).unwrap();
        assert_eq!(kv.lease(120, |_| 70), Some(taken(slot, 70)));
        kv.check_integrity().unwrap();
    }
}

#[test]
fn losses_are_recorded_while_the_device_still_holds_them() {
    let ring = Ring { window: 5, length: 64 };
    let mut kv = KvBooks::new(shape(2, 6, 192, vec![ring]));
    kv.record_losses();
    kv.lease(100, |_| 0).unwrap();
    fill(&mut kv, 0, 100);
    let blocks = kv.blocks(0).to_vec();
    kv.release(0, true);
    let lost = Lost { slot: 0, length: 100, blocks, rings_from: 36 };
    assert_eq!(kv.kept(), std::slice::from_ref(&lost));
    kv.lease(150, |_| 0).unwrap();
    assert!(kv.take_lost().is_empty());
    kv.reserve(1, 150).unwrap();
    assert_eq!(kv.take_lost(), [lost]);
    assert!(kv.take_lost().is_empty() && kv.kept().is_empty());
    kv.advance(1, 150);
    kv.release(1, true);
    // A request takes little of it, and later nothing that would be of use is lost.
    kv.lease(160, |slot| [0, 140][slot]).unwrap();
    assert!(kv.take_lost().is_empty());
    kv.release(1, true);
    kv.forget();
    assert!(kv.take_lost().is_empty());
}
