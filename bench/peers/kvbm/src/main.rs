//! Runs one operation of kvbm-logical on a workload file and prints one JSON line.
//!
//! What each operation does, what is timed and what `check` holds is written in bench/peers/README.md; the
//! C++ program beside this one does the same, step by step.

mod arguments;
mod events;
mod workload;

use arguments::{Arguments, USAGE};
use events::Subscriber;
use kvbm_logical::events::{AllEventsPolicy, EventsManager};
use kvbm_logical::manager::{FrequencyTrackingCapacity, LineageEviction};
use kvbm_logical::testing::TestMeta;
use kvbm_logical::{BlockManager, BlockRegistry, ImmutableBlock};
use std::hint::black_box;
use std::sync::{Arc, Barrier};
use std::time::{Duration, Instant};
use workload::{Fingerprint, Workload};

const PEER: &str = "kvbm-logical 1.6.1";

type Manager = BlockManager<TestMeta>;
type Held = Vec<ImmutableBlock<TestMeta>>;

/// What one operation measured. `units` are blocks, or calls for match_miss.
struct Outcome {
    elapsed: Duration,
    units: u64,
    check: String,
}

struct Bench {
    workload: Workload,
    manager: Manager,
    subscriber: Option<Subscriber>,
    threads: usize,
    rounds: usize,
    /// Two sides agree on which blocks survive only where the policy does not rest on an estimate.
    exact_policy: bool,
}

fn main() {
    let arguments =
        Arguments::parse(std::env::args().skip(1)).unwrap_or_else(|e| fail(&format!("{e}\n{USAGE}")));
    let mut bench = Bench::build(&arguments).unwrap_or_else(|e| fail(&e));
    let outcome = match arguments.op.as_str() {
        "cycle" => bench.cycle(),
        "match_inactive" => bench.match_inactive(),
        "match_active" => bench.match_active(false),
        "match_shared" => bench.match_active(true),
        "bulk_drop" => bench.bulk_drop(),
        "match_miss" => bench.match_miss(),
        other => fail(&format!("unknown operation {other}\n{USAGE}")),
    };
    println!(
        "{{\"peer\":\"{PEER}\",\"op\":\"{}\",\"backend\":\"{}\",\"threads\":{},\
         \"ns_per_block\":{:.3},\"blocks\":{},\"check\":\"{}\"}}",
        arguments.op,
        arguments.backend,
        arguments.threads,
        outcome.elapsed.as_nanos() as f64 / outcome.units as f64,
        outcome.units,
        outcome.check
    );
    // What is left belongs to the process: tearing it down is not measured.
    std::process::exit(0);
}

fn fail(message: &str) -> ! {
    eprintln!("kvbm_peer: {message}");
    std::process::exit(2);
}

impl Bench {
    fn build(arguments: &Arguments) -> Result<Self, String> {
        let workload = Workload::read(&arguments.workload)?;
        let mut registry = BlockRegistry::builder();
        if arguments.frequency {
            registry = registry.frequency_tracker(FrequencyTrackingCapacity::default().create_tracker());
        }
        let mut subscriber = None;
        if arguments.events {
            // Room for all events of one chain, so that the subscriber loses none.
            let capacity = (4 * workload.chain_length).max(1024);
            let events =
                EventsManager::builder().policy(Arc::new(AllEventsPolicy::new())).channel_capacity(capacity);
            let events = Arc::new(events.build());
            subscriber = Some(Subscriber::attach(&events));
            registry = registry.event_manager(events);
        }
        let builder = Manager::builder()
            .block_count(workload.pool)
            .block_size(workload.block_size)
            .registry(registry.build());
        let builder = match arguments.backend.as_str() {
            "lru" => builder.with_lru_backend(),
            "multi_lru" => builder.with_multi_lru_backend(),
            "lineage" => builder.with_lineage_backend_eviction(LineageEviction::Tick),
            "hashmap" => builder.with_hashmap_backend(),
            other => return Err(format!("unknown backend {other}\n{USAGE}")),
        };
        let manager = builder.build().map_err(|e| e.to_string())?;
        Ok(Self {
            workload,
            manager,
            subscriber,
            threads: arguments.threads,
            rounds: arguments.rounds,
            exact_policy: arguments.backend != "multi_lru",
        })
    }

    fn rounds_or(&self, default: usize) -> usize {
        if self.rounds == 0 { default } else { self.rounds }
    }

    /// Allocates, completes and registers one chain.
    fn put(&self, chain: usize) -> Held {
        let blocks = &self.workload.chains[chain];
        let empty = self.manager.allocate_blocks(blocks.len()).expect("the pool has room");
        let complete = empty
            .into_iter()
            .zip(blocks)
            .map(|(block, tokens)| block.complete(tokens).expect("the block size fits"))
            .collect();
        self.manager.register_blocks(complete)
    }

    fn drain_events(&mut self) {
        if let Some(subscriber) = &mut self.subscriber {
            subscriber.drain();
        }
    }

    /// Fills the pool, passes the churn chains through it, then leaves the resident chains in it, all
    /// inactive.
    fn prepare_residents(&mut self) {
        for chain in self.workload.churn() {
            drop(self.put(chain));
            self.drain_events();
        }
        let mut held = Vec::new();
        for chain in self.workload.resident() {
            held.push(self.put(chain));
            self.drain_events();
        }
        drop(held);
    }

    /// Matches every chain of `chains` once, untimed.
    fn survey(&self, chains: impl Iterator<Item = usize>) -> Fingerprint {
        let mut found = Fingerprint::default();
        for chain in chains {
            for (index, block) in self.manager.match_blocks(&self.workload.hashes[chain]).iter().enumerate() {
                found.add(index, block.sequence_hash());
            }
        }
        found
    }

    /// The part of `check` that every operation has: the names of all blocks, and the events where they are
    /// on.
    fn common_check(&mut self) -> String {
        self.drain_events();
        let mut names = Fingerprint::default();
        for chain in &self.workload.hashes {
            for (index, hash) in chain.iter().enumerate() {
                names.add(index, *hash);
            }
        }
        let mut check = format!("names={names} available={}", self.manager.available_blocks());
        if self.exact_policy
            && let Some(subscriber) = &self.subscriber
        {
            check += &format!(" stored={} removed={}", subscriber.stored, subscriber.removed);
        }
        check
    }

    fn cycle(&mut self) -> Outcome {
        let all = self.workload.chains.len();
        for chain in all - self.workload.chains_in_pool()..all {
            drop(self.put(chain));
            self.drain_events();
        }
        let before = self.manager.metrics().snapshot();
        let mut elapsed = Duration::ZERO;
        let mut units = 0;
        for _ in 0..self.rounds_or(3) {
            if self.subscriber.is_none() {
                let start = Instant::now();
                for chain in 0..all {
                    let held = black_box(self.put(chain));
                    units += held.len() as u64;
                }
                elapsed += start.elapsed();
            } else {
                for chain in 0..all {
                    let start = Instant::now();
                    let held = black_box(self.put(chain));
                    units += held.len() as u64;
                    drop(held);
                    elapsed += start.elapsed();
                    self.drain_events();
                }
            }
        }
        let after = self.manager.metrics().snapshot();
        let mut check = format!("registered={units} {}", self.common_check());
        if self.exact_policy {
            check +=
                &format!(" evicted={} resident={}", after.evictions - before.evictions, self.survey(0..all));
        }
        Outcome { elapsed, units, check }
    }

    fn match_inactive(&mut self) -> Outcome {
        self.prepare_residents();
        let found = self.survey(self.workload.resident());
        let mut units = 0;
        let start = Instant::now();
        for _ in 0..self.rounds_or(40) {
            for chain in self.workload.resident() {
                let held = black_box(self.manager.match_blocks(&self.workload.hashes[chain]));
                units += held.len() as u64;
            }
        }
        let elapsed = start.elapsed();
        let check = format!("matched={units} found={found} {}", self.common_check());
        Outcome { elapsed, units, check }
    }

    /// Matches chains that are held elsewhere. Each thread has its own share of them; if `shared`, all have
    /// the first.
    fn match_active(&mut self, shared: bool) -> Outcome {
        self.prepare_residents();
        let resident = self.workload.resident();
        let held: Vec<Held> =
            resident.clone().map(|c| self.manager.match_blocks(&self.workload.hashes[c])).collect();
        let found = self.survey(resident.clone());
        let per_thread = resident.len() / self.threads;
        if per_thread == 0 {
            fail(&format!("{} threads are more than {} resident chains", self.threads, resident.len()));
        }
        let rounds = self.rounds_or(100);
        let barrier = Barrier::new(self.threads);
        let (manager, hashes) = (&self.manager, &self.workload.hashes);
        let parts: Vec<(Instant, Instant, u64)> = std::thread::scope(|scope| {
            let workers: Vec<_> = (0..self.threads)
                .map(|thread| {
                    let barrier = &barrier;
                    scope.spawn(move || {
                        let mut units = 0;
                        barrier.wait();
                        let start = Instant::now();
                        for _ in 0..rounds {
                            for i in 0..per_thread {
                                let chain = if shared { 0 } else { thread * per_thread + i };
                                let held = black_box(manager.match_blocks(&hashes[chain]));
                                units += held.len() as u64;
                            }
                        }
                        (start, Instant::now(), units)
                    })
                })
                .collect();
            workers.into_iter().map(|w| w.join().expect("worker")).collect()
        });
        let start = parts.iter().map(|p| p.0).min().unwrap();
        let end = parts.iter().map(|p| p.1).max().unwrap();
        let units = parts.iter().map(|p| p.2).sum();
        let check = format!("matched={units} found={found} {}", self.common_check());
        drop(held);
        Outcome { elapsed: end - start, units, check }
    }

    fn bulk_drop(&mut self) -> Outcome {
        self.prepare_residents();
        let mut elapsed = Duration::ZERO;
        let mut units = 0;
        for _ in 0..self.rounds_or(40) {
            let held: Vec<Held> = self
                .workload
                .resident()
                .map(|c| self.manager.match_blocks(&self.workload.hashes[c]))
                .collect();
            units += held.iter().map(|h| h.len() as u64).sum::<u64>();
            let held = black_box(held);
            let start = Instant::now();
            drop(held);
            elapsed += start.elapsed();
        }
        let found = self.survey(self.workload.resident());
        let check = format!("dropped={units} found={found} {}", self.common_check());
        Outcome { elapsed, units, check }
    }

    fn match_miss(&mut self) -> Outcome {
        self.prepare_residents();
        let (mut calls, mut matched) = (0, 0);
        let start = Instant::now();
        for _ in 0..self.rounds_or(20_000) {
            for chain in self.workload.absent() {
                let held = black_box(self.manager.match_blocks(&self.workload.hashes[chain]));
                matched += held.len() as u64;
                calls += 1;
            }
        }
        let elapsed = start.elapsed();
        let check = format!("calls={calls} matched={matched} {}", self.common_check());
        Outcome { elapsed, units: calls, check }
    }
}
