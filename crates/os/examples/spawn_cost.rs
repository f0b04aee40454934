//! A measurement of what a spawn costs in a process with many descriptors: with a copied descriptor
//! table and through reserved slots, in turns. It judges nothing.
//!
//! `spawn_cost [ROUNDS]` prints medians in microseconds: from the spawn of `true` to its end, and
//! of the spawn alone.

#![expect(clippy::unwrap_used, clippy::print_stdout, reason = "a measurement that people run by hand")]

use std::ffi::CString;
use std::os::fd::{AsFd, OwnedFd};
use std::time::Instant;

use belay_os::spawn::{Session, SpawnSpec, spawn};
use belay_os::{fds, slots};
use rustix::process::{WaitId, WaitIdOptions};

const DEFAULT_ROUNDS: usize = 1_000;
const DESCRIPTORS: [usize; 4] = [19, 1_009, 6_009, 19_009];

/// One way's samples, in microseconds.
#[derive(Default)]
struct Samples {
    to_end_us: Vec<f64>,
    spawn_us: Vec<f64>,
}

fn main() {
    let rounds = std::env::args().nth(1).map_or(DEFAULT_ROUNDS, |word| word.parse().unwrap());
    fds::close_from(3).unwrap();
    fds::raise_nofile().unwrap();
    println!("descriptors  copied: to end  spawn   slots: to end  spawn");
    for descriptors in DESCRIPTORS {
        // Reserved first, so that the low numbers stay free for every later reservation.
        let reservation = slots::reserve().unwrap();
        let mut open: Vec<OwnedFd> = Vec::new();
        // 0, 1 and 2 and the four of the reservation are open.
        open.resize_with(descriptors - 7, || fds::null().unwrap());
        drop(reservation);
        let (mut copied, mut through_slots) = (Samples::default(), Samples::default());
        for round in 0..rounds {
            // Each way is first in half of the rounds.
            if round % 2 == 0 {
                measure(&mut copied, &open);
            }
            let reservation = slots::reserve().unwrap();
            measure(&mut through_slots, &open);
            assert!(reservation.is_active());
            drop(reservation);
            if round % 2 == 1 {
                measure(&mut copied, &open);
            }
        }
        println!(
            "{descriptors:>11}  {:>14.0}  {:>5.0}   {:>13.0}  {:>5.0}",
            median(&mut copied.to_end_us),
            median(&mut copied.spawn_us),
            median(&mut through_slots.to_end_us),
            median(&mut through_slots.spawn_us),
        );
    }
}

/// Runs `true` with an open descriptor as all its streams.
fn measure(samples: &mut Samples, open: &[OwnedFd]) {
    let (argv, envp) = ([c"/bin/true".to_owned()], Vec::<CString>::new());
    let stream = open.last().unwrap().as_fd();
    let spec = SpawnSpec {
        argv: &argv,
        envp: &envp,
        cwd: None,
        umask: None,
        rlimits: &[],
        stdin: stream,
        stdout: stream,
        stderr: stream,
        cgroup: None,
        session: Session::NewGroup,
    };
    let began = Instant::now();
    let spawned = spawn(&spec).unwrap();
    samples.spawn_us.push(began.elapsed().as_secs_f64() * 1e6);
    rustix::process::waitid(WaitId::PidFd(spawned.pidfd.as_fd()), WaitIdOptions::EXITED).unwrap();
    samples.to_end_us.push(began.elapsed().as_secs_f64() * 1e6);
}

fn median(samples: &mut [f64]) -> f64 {
    samples.sort_by(f64::total_cmp);
    samples.get(samples.len() / 2).copied().unwrap_or(f64::NAN)
}
