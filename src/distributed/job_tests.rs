use super::*;

const SECOND: Duration = Duration::from_secs(1);

fn job(nodes: usize, processes: usize, max_restarts: u64) -> (Job, Instant) {
    let now = Instant::now();
    let (heartbeat, join) = (10 * SECOND, 60 * SECOND);
    (
        Job::new(
            JobSettings {
                nodes,
                processes,
                max_restarts,
                heartbeat,
                join,
            },
            now,
        ),
        now,
    )
}

fn run(generation: u64) -> Order {
    Order::Run {
        generation,
        note: None,
    }
}

fn report(generation: u64, ended: Vec<(usize, Ended)>, idle: bool) -> Report {
    Report {
        generation,
        ended,
        idle,
        signal: None,
    }
}

fn beat(saved: u64) -> Beat {
    Beat {
        saved: (saved > 0).then_some(saved),
        ..Beat::default()
    }
}

fn ends(verdict: Verdict) -> Order {
    Order::End {
        verdict,
        note: None,
    }
}

fn fails(cause: &str, is_lasting: bool) -> Order {
    let cause = cause.into();
    ends(Verdict::Failed { cause, is_lasting })
}

fn failed(cause: Cause, code: i32, message: &str) -> Ended {
    let message = message.into();
    Ended::Failed {
        cause,
        code,
        message,
    }
}

#[test]
fn a_job_runs_when_all_nodes_are_there_and_ends_with_its_last_rank() {
    let (mut job, now) = job(2, 1, 0);
    assert_eq!(job.admit_node(0, 2, 1, "a"), Ok(()));
    assert_eq!(job.report(0, report(0, vec![], true), now), Order::Wait);
    let mut refused =
        |node, nodes, processes| job.admit_node(node, nodes, processes, "b").unwrap_err();
    assert!(refused(1, 3, 1).contains("--nnodes 3"));
    assert!(refused(1, 2, 4).contains("--nproc_per_node 4"));
    assert!(refused(0, 2, 1).contains("node_rank"));
    // The launcher that has joined may come back.
    assert_eq!(job.admit_node(0, 2, 1, "a"), Ok(()));
    assert_eq!(job.report(1, report(0, vec![], true), now), run(0));
    assert!(
        job.admit_rank(0, 4, 0, now)
            .unwrap_err()
            .contains("4 processes, and this one has 2")
    );
    assert_eq!(
        job.report(0, report(0, vec![(0, Ended::Well)], true), now),
        run(0)
    );
    assert_eq!(
        job.report(1, report(0, vec![(1, Ended::Well)], true), now),
        ends(Verdict::Done)
    );
    assert!(!job.all_know_the_end(now));
    assert_eq!(
        job.report(0, report(0, vec![], true), now),
        ends(Verdict::Done)
    );
    assert!(job.all_know_the_end(now));
}

#[test]
fn the_killed_rank_is_blamed_though_another_is_heard_of_first() {
    let (mut job, now) = job(1, 2, 1);
    assert_eq!(job.report(0, report(0, vec![], true), now), run(0));
    for rank in 0..2 {
        job.admit_rank(rank, 2, 0, now).unwrap();
        assert_eq!(job.beat(rank, beat(7), now), None);
    }
    let consequence = "all-reduce failed on rank 0 of 2: connection closed";
    job.leave(0, failed(Cause::Peers, 1, consequence), now);
    assert_eq!(
        job.report(
            0,
            report(0, vec![(1, Ended::Killed(libc::SIGKILL))], false),
            now
        ),
        run(0)
    );
    let later = now + 2 * SECOND;
    assert_eq!(
        job.report(0, report(0, vec![], false), later),
        Order::Stop { generation: 0 }
    );
    let Order::Run {
        generation: 1,
        note: Some(note),
    } = job.report(0, report(0, vec![], true), later)
    else {
        panic!("no restart")
    };
    assert!(
        note.contains("rank 1 was killed by signal 9")
            && note.ends_with("; starting again from step 7, restart 1 of 1"),
        "{note}"
    );
    // The second failure is the last.
    assert!(
        job.admit_rank(0, 2, 0, later)
            .unwrap_err()
            .contains("attempt 0")
    );
    job.report(
        0,
        report(1, vec![(0, failed(Cause::Own, 1, "disk full"))], false),
        later,
    );
    let later = later + 2 * SECOND;
    job.report(0, report(1, vec![], false), later);
    let end = job.report(0, report(1, vec![], true), later);
    assert_eq!(
        end,
        fails("rank 0 failed: disk full; the last saved step is 7", false)
    );
}

#[test]
fn silence_is_a_failure_with_a_name() {
    let (mut job, now) = job(1, 2, 0);
    job.report(0, report(0, vec![], true), now);
    for rank in 0..2 {
        job.admit_rank(rank, 2, 0, now).unwrap();
    }
    for second in 1..14 {
        job.beat(0, beat(3), now + second * SECOND);
        job.report(0, report(0, vec![], false), now + second * SECOND);
    }
    let cause = "no heartbeat from rank 1 for 10 s; it appears hung; the last saved step is 3";
    assert_eq!(
        job.report(0, report(0, vec![], true), now + 14 * SECOND),
        fails(cause, false)
    );
}

#[test]
fn a_lost_node_ends_the_job_and_a_usage_error_is_not_tried_again() {
    let (mut first, now) = job(2, 1, 5);
    first.report(0, report(0, vec![], true), now);
    first.report(1, report(0, vec![], true), now);
    let mut last = Order::Wait;
    for second in 1..16 {
        last = first.report(0, report(0, vec![], true), now + second * SECOND);
    }
    let Order::End {
        verdict: Verdict::Failed { cause, .. },
        ..
    } = last
    else {
        panic!("{last:?}")
    };
    assert!(cause.starts_with("no heartbeat from node 1"), "{cause}");

    let (mut second, now) = job(1, 1, 5);
    second.report(
        0,
        report(
            0,
            vec![(0, failed(Cause::of_exit_code(2), 2, "no such flag"))],
            true,
        ),
        now,
    );
    second.report(0, report(0, vec![], true), now + 2 * SECOND);
    let end = second.report(0, report(0, vec![], true), now + 2 * SECOND);
    assert_eq!(end, fails("rank 0 failed: no such flag", true));
}

#[test]
fn without_launchers_the_ranks_learn_it_themselves() {
    let (mut job, now) = job(0, 2, 0);
    job.admit_rank(0, 2, 0, now).unwrap();
    job.admit_rank(1, 2, 0, now).unwrap();
    assert_eq!(job.beat(0, beat(1), now + 11 * SECOND), None);
    let reason = job.beat(0, beat(1), now + 13 * SECOND).unwrap();
    assert!(reason.starts_with("no heartbeat from rank 1"), "{reason}");
}

#[test]
fn the_cause_is_what_a_rank_says_and_not_what_its_message_contains() {
    for (first, second, blamed) in [
        (Cause::Peers, Cause::Own, 1),
        (Cause::Own, Cause::Peers, 0),
        (
            Cause::of_exit_code(LOST_RENDEZVOUS),
            Cause::of_exit_code(1),
            1,
        ),
    ] {
        let (mut job, now) = job(0, 2, 0);
        // Each sounds like the other's.
        job.leave(0, failed(first, 1, "the rendezvous is on fire"), now);
        job.leave(1, failed(second, 1, "disk full"), now);
        let reason = job.beat(0, beat(1), now + 2 * SECOND).unwrap();
        assert!(reason.starts_with(&format!("rank {blamed}")), "{reason}");
    }
}

#[test]
fn ranks_stop_after_a_step_that_none_has_passed() {
    let (mut job, now) = job(0, 3, 0);
    assert_eq!(job.agree(0, 5, None), None);
    assert!(!job.stop_is_asked());
    assert_eq!(job.agree(1, 5, Some(libc::SIGTERM)), None);
    assert!(job.stop_is_asked());
    // Rank 0 learns of it late, rank 2 has ended: each goes on until all have said where they are.
    assert_eq!(job.agree(1, 6, Some(libc::SIGTERM)), None);
    job.leave(2, Ended::Well, now);
    let last = Some(LastStep {
        step: 9,
        signal: libc::SIGTERM,
    });
    assert_eq!(job.agree(0, 8, None), last);
    assert_eq!(job.agree(1, 7, Some(libc::SIGTERM)), last);
    // A second signal changes nothing.
    assert_eq!(job.agree(1, 8, Some(libc::SIGINT)), last);
    assert_eq!(job.agree(0, 9, None), last);
}

#[test]
fn who_did_not_come_is_named() {
    let (mut first, now) = job(4, 1, 0);
    first.report(0, report(0, vec![], true), now);
    first.report(2, report(0, vec![], true), now);
    let end = first.report(0, report(0, vec![], true), now + 61 * SECOND);
    let text = "nodes 1 and 3 did not join within 60 s";
    assert_eq!(end, fails(text, false));

    let (mut second, now) = job(0, 30, 0);
    second.admit_rank(4, 30, 0, now).unwrap();
    let mut reason = None;
    for tick in 1..64 {
        reason = second.beat(4, beat(0), now + tick * SECOND).or(reason);
    }
    assert_eq!(
        reason.unwrap(),
        "ranks 0, 1, 2, 3, 5, 6, 7, 8, 9, 10 and 19 more did not join within 60 s"
    );
    assert_eq!(listed("rank", &[3]), "rank 3");
    assert_eq!(listed("rank", &[1, 2, 5]), "ranks 1, 2 and 5");
}

/// A restart would end the same way.
#[test]
fn a_damaged_checkpoint_or_a_full_disk_spends_no_restart() {
    for late in [false, true] {
        let (mut job, now) = job(1, 2, 5);
        job.report(0, report(0, vec![], true), now);
        // Rank 0 may hear of it from rank 1, before that one has said so itself.
        let first = failed(Cause::Own, 1, "rank 1 could not write its part");
        let second = failed(Cause::Lasting, 1, "no space left");
        let (first, second) = if late {
            (first, second)
        } else {
            (second, first)
        };
        job.leave(0, first, now);
        job.leave(1, second, now + SECOND);
        job.report(0, report(0, vec![], false), now + 2 * SECOND);
        let end = job.report(0, report(0, vec![], true), now + 2 * SECOND);
        let Order::End {
            verdict: Verdict::Failed { is_lasting, .. },
            ..
        } = end
        else {
            panic!("{end:?}")
        };
        assert!(is_lasting);
    }
}

/// Whatever the moment, a signal ends the job: nothing is started after it.
#[test]
fn a_signal_ends_a_job_in_every_phase() {
    let term = libc::SIGTERM;
    let signalled = |generation, ended, idle| Report {
        signal: Some(term),
        ..report(generation, ended, idle)
    };
    // While nodes are waited for.
    let (mut first, now) = job(2, 1, 5);
    first.report(0, report(0, vec![], true), now);
    let interrupted = ends(Verdict::Interrupted(term));
    assert_eq!(
        first.report(1, signalled(0, vec![], true), now),
        interrupted
    );
    assert_eq!(first.report(0, report(0, vec![], true), now), interrupted);
    // Before a rank has taken the signal over, when another waits for it in vain, and fails.
    let (mut second, now) = job(1, 2, 5);
    second.report(0, report(0, vec![], true), now);
    second.report(
        0,
        signalled(0, vec![(1, Ended::Interrupted(term))], false),
        now,
    );
    second.leave(0, failed(Cause::Peers, 1, "rank 1 is gone"), now);
    let later = now + 2 * SECOND;
    assert_eq!(
        second.report(0, signalled(0, vec![], false), later),
        Order::Stop { generation: 0 }
    );
    assert_eq!(
        second.report(0, signalled(0, vec![], true), later),
        interrupted
    );
    // Between a failure and the restart.
    let (mut third, now) = job(1, 1, 5);
    third.report(0, report(0, vec![], true), now);
    third.report(0, report(0, vec![(0, Ended::Killed(9))], true), now);
    third.report(0, signalled(0, vec![], true), now + 2 * SECOND);
    let end = third.report(0, signalled(0, vec![], true), now + 2 * SECOND);
    let Order::End {
        verdict,
        note: Some(note),
    } = end
    else {
        panic!("{end:?}")
    };
    assert_eq!(verdict, Verdict::Interrupted(term));
    assert!(
        note.contains("killed by signal 9") && note.contains("not started again"),
        "{note}"
    );
    // But what could not be saved is not passed over in silence.
    let (mut fourth, now) = job(1, 1, 5);
    fourth.report(0, report(0, vec![], true), now);
    let full = failed(Cause::Lasting, 1, "no space left");
    fourth.report(0, signalled(0, vec![(0, full)], true), now);
    fourth.report(0, signalled(0, vec![], true), now + 2 * SECOND);
    let end = fourth.report(0, signalled(0, vec![], true), now + 2 * SECOND);
    assert_eq!(end, fails("rank 0 failed: no space left", true));
}

#[test]
fn ranks_learn_what_keeps_the_others() {
    let (mut job, now) = job(0, 3, 0);
    let beats = |is_saving, is_compiling| Beat {
        is_saving,
        is_compiling,
        ..Beat::default()
    };
    let others = |are_busy, delay_devices| Others {
        are_busy,
        delay_devices,
    };
    assert_eq!(job.others(1), others(false, false));
    // If a device hangs while all of them save, rank 0's wait is the one that shows it.
    for rank in 0..3 {
        job.beat(rank, beats(true, false), now);
    }
    assert_eq!(job.others(0), others(true, false));
    assert_eq!(job.others(1), others(true, true));
    job.beat(0, beats(false, false), now);
    assert_eq!(job.others(2), others(true, false));
    job.beat(1, beats(false, true), now);
    assert_eq!(job.others(0), others(true, true));
    job.leave(1, Ended::Well, now);
    assert_eq!(job.others(0), others(true, false));
}
