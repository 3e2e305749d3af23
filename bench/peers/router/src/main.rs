//! Runs one index of dynamo-kv-router on an index workload and prints one JSON line per figure.
//!
//! What each operation does, what is timed and what `check` holds is written in bench/peers/README.md; the
//! C++ program beside this one does the same, step by step.

mod arguments;
mod memory;
mod subject;
mod workload;

use arguments::{Arguments, USAGE};
use dynamo_kv_router::protocols::WorkerWithDpRank;
use dynamo_kv_router::{ConcurrentRadixTreeCompressed, PositionalIndexer, RadixTree};
use std::hint::black_box;
use std::time::{Duration, Instant};
use subject::{Subject, Threaded, Tree};
use workload::{Fingerprint, Query, Workload, blocks_in};

const PEER: &str = "dynamo-kv-router 1.6.1";
/// Calls per reading of the clock.
const BATCH: usize = 64;
/// Queries of each list that go into a fingerprint.
const CHECKED: usize = 512;
/// Events that are built at a time while memory is counted.
const SLICE: usize = 64;

type Failure = String;

struct Bench {
    workload: Workload,
    arguments: Arguments,
}

fn main() {
    let arguments =
        Arguments::parse(std::env::args().skip(1)).unwrap_or_else(|e| fail(&format!("{e}\n{USAGE}")));
    let workload = Workload::read(&arguments.workload).unwrap_or_else(|e| fail(&e));
    let bench = Bench { workload, arguments };
    let done = if bench.arguments.memory { bench.memory() } else { bench.speed() };
    done.unwrap_or_else(|e| fail(&e));
    // What is left belongs to the process: tearing it down is not measured.
    std::process::exit(0);
}

fn fail(message: &str) -> ! {
    eprintln!("router_peer: {message}");
    std::process::exit(2);
}

fn per(elapsed: Duration, units: usize) -> f64 {
    elapsed.as_nanos() as f64 / units as f64
}

/// The value below which `share` percent lie; 0 where there is none. Sorts.
fn percentile(values: &mut [f64], share: usize) -> f64 {
    values.sort_by(f64::total_cmp);
    values.get(values.len() * share / 100).copied().unwrap_or(0.0)
}

impl Bench {
    fn make(&self) -> Result<Box<dyn Subject>, Failure> {
        Ok(match self.arguments.structure.as_str() {
            "radix_tree" => Box::new(Tree(RadixTree::new())),
            "concurrent_radix_tree" => Box::new(Threaded::new(ConcurrentRadixTreeCompressed::new())),
            "positional" => Box::new(Threaded::new(PositionalIndexer::new(self.arguments.jump))),
            other => return Err(format!("unknown structure {other}\n{USAGE}")),
        })
    }

    fn events(&self, list: &str) -> Result<&[workload::Event], Failure> {
        self.workload.events(list, self.arguments.event_size)
    }

    fn print(&self, op: &str, value: f64, units: usize, check: &str) {
        println!(
            "{{\"peer\":\"{PEER}\",\"structure\":\"{}\",\"event_size\":{},\"op\":\"{op}\",\
             \"value\":{value:.3},\"units\":{units},\"check\":\"{check}\"}}",
            self.arguments.structure, self.arguments.event_size
        );
    }

    /// What the index answers now.
    fn found(&self, subject: &dyn Subject, lists: &[&str]) -> Result<Fingerprint, Failure> {
        let mut found = Fingerprint::default();
        let mut hashes = Vec::new();
        for list in lists {
            for (number, query) in self.workload.queries(list)?.iter().take(CHECKED).enumerate() {
                self.workload.expand(query, &mut hashes);
                found.add(number, &subject.find(&mut hashes));
            }
        }
        Ok(found)
    }

    fn found_by_all(&self, subject: &dyn Subject) -> Result<Fingerprint, Failure> {
        self.found(subject, &["hit", "partial", "miss", "mixed"])
    }

    /// Nanoseconds per call: the median over batches. The queries of a batch are written just before it, as a
    /// router has just hashed its request.
    fn find(&self, subject: &dyn Subject, queries: &[Query]) -> f64 {
        let mut staged = vec![Vec::new(); BATCH];
        let mut times = Vec::new();
        for batch in queries.chunks_exact(BATCH) {
            for (query, hashes) in batch.iter().zip(&mut staged) {
                self.workload.expand(query, hashes);
            }
            let start = Instant::now();
            for hashes in &mut staged {
                black_box(subject.find(hashes));
            }
            times.push(per(start.elapsed(), BATCH));
        }
        percentile(&mut times, 50)
    }

    /// Applies a list in two halves, with a look at the answers between them.
    fn remove(&self, subject: &mut dyn Subject, list: &str) -> Result<(), Failure> {
        let events = self.events(list)?;
        let (first, second) = events.split_at(events.len() / 2);
        let mut elapsed = subject.apply(self.workload.build(first));
        let half = self.found_by_all(subject)?;
        elapsed += subject.apply(self.workload.build(second));
        let end = self.found_by_all(subject)?;
        let blocks = blocks_in(events);
        self.print(list, per(elapsed, blocks), blocks, &format!("half={half} end={end}"));
        Ok(())
    }

    /// A new index with the resident sequences; its time goes to `fills`.
    fn filled(&self, fills: &mut Vec<f64>) -> Result<Box<dyn Subject>, Failure> {
        let stores = self.events("store")?;
        let mut subject = self.make()?;
        fills.push(per(subject.apply(self.workload.build(stores)), blocks_in(stores)));
        Ok(subject)
    }

    fn speed(&self) -> Result<(), Failure> {
        let mut fills = Vec::new();
        let mut subject = self.filled(&mut fills)?;
        let found = self.found_by_all(&*subject)?;
        for list in ["hit", "partial", "miss"] {
            let queries = self.workload.queries(list)?;
            let time = self.find(&*subject, queries);
            self.print(
                &format!("find_{list}"),
                time,
                queries.len(),
                &format!("found={}", self.found(&*subject, &[list])?),
            );
        }
        self.remove(&mut *subject, "remove_tail")?;
        drop(subject);
        let mut subject = self.filled(&mut fills)?;
        self.remove(&mut *subject, "remove_random")?;
        drop(subject);
        let mut subject = self.filled(&mut fills)?;
        let stored = blocks_in(self.events("store")?);
        self.print("store", percentile(&mut fills, 50), stored, &format!("found={found}"));
        if subject.concurrent().is_some() {
            self.mixed(&mut *subject)?;
        }
        Ok(())
    }

    /// One thread applies the churn, this one queries until it is done.
    fn mixed(&self, subject: &mut dyn Subject) -> Result<(), Failure> {
        let churn = self.events("churn")?;
        let queries = self.workload.queries("mixed")?;
        let mut times = Vec::with_capacity(1 << 20);
        let mut hashes = Vec::new();
        let mut cut_short = 0;
        let concurrent = subject.concurrent().expect("a concurrent structure");
        concurrent.start(self.workload.build(churn));
        let elapsed = loop {
            if let Some(elapsed) = concurrent.finished() {
                break elapsed;
            }
            let query = &queries[times.len() % queries.len()];
            self.workload.expand(query, &mut hashes);
            let start = Instant::now();
            let scores = concurrent.find(&mut hashes);
            times.push(start.elapsed().as_nanos() as f64);
            let holder = WorkerWithDpRank::new(self.workload.worker_of[query.sequence], 0);
            let depth = scores.scores.get(&holder).copied().unwrap_or(0) as usize;
            cut_short += usize::from(self.workload.stays(query.sequence) && depth < query.keep);
        };
        let blocks = blocks_in(churn);
        let check = format!("cut_short={cut_short} found={}", self.found_by_all(subject)?);
        self.print("mixed_write", per(elapsed, blocks), blocks, &check);
        self.print("mixed_find_p50", percentile(&mut times, 50), times.len(), "");
        self.print("mixed_find_p99", percentile(&mut times, 99), times.len(), "");
        Ok(())
    }

    fn memory(&self) -> Result<(), Failure> {
        let stores = self.events("store")?;
        memory::start_counting();
        let before = memory::live_bytes();
        let mut subject = self.make()?;
        for slice in stores.chunks(SLICE) {
            subject.apply(self.workload.build(slice));
        }
        let bytes = memory::live_bytes() - before;
        let found = self.found_by_all(&*subject)?;
        let pairs = self.workload.pairs;
        self.print("memory", bytes as f64 / pairs as f64, pairs as usize, &format!("found={found}"));
        Ok(())
    }
}
