//! The structures under test behind one interface: events in a prepared list go in at once and are timed
//! until the last one is applied; queries are answered one by one.

use dynamo_kv_router::RadixTree;
use dynamo_kv_router::indexer::{SyncIndexer, WorkerTask};
use dynamo_kv_router::protocols::{LocalBlockHash, OverlapScores, RouterEvent};
use std::future::Future;
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex};
use std::task::{Context, Wake, Waker};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};
use tokio::sync::oneshot;

pub trait Subject {
    fn apply(&mut self, events: Vec<RouterEvent>) -> Duration;
    /// May take the query away.
    fn find(&self, query: &mut Vec<LocalBlockHash>) -> OverlapScores;
    /// The same structure where events can be applied beside queries.
    fn concurrent(&mut self) -> Option<&mut dyn ConcurrentSubject> {
        None
    }
}

pub trait ConcurrentSubject: Subject {
    /// Starts applying events; query until finished() tells how long it took.
    fn start(&mut self, events: Vec<RouterEvent>);
    fn finished(&self) -> Option<Duration>;
}

/// The single-threaded tree, called directly.
pub struct Tree(pub RadixTree);

impl Subject for Tree {
    fn apply(&mut self, events: Vec<RouterEvent>) -> Duration {
        let start = Instant::now();
        for event in events {
            self.0.apply_event(event).expect("the events of a workload are valid");
        }
        start.elapsed()
    }
    fn find(&self, query: &mut Vec<LocalBlockHash>) -> OverlapScores {
        self.0.find_matches(std::mem::take(query), false)
    }
}

/// A point in a worker's queue at which the worker stops until it is let go. It is a flush whose waker
/// blocks: the worker wakes it itself, from the same thread.
struct Barrier {
    gate: Arc<Gate>,
    _reply: oneshot::Receiver<()>,
}

#[derive(Default)]
struct Gate {
    reached: AtomicBool,
    state: Mutex<(Option<Instant>, bool)>, // when the worker came, and whether it may go
    changed: Condvar,
}

impl Wake for Gate {
    fn wake(self: Arc<Self>) {
        let mut state = self.state.lock().unwrap();
        state.0 = Some(Instant::now());
        self.reached.store(true, Ordering::Release);
        self.changed.notify_all();
        drop(self.changed.wait_while(state, |state| !state.1).unwrap());
    }
}

impl Barrier {
    fn send(tasks: &flume::Sender<WorkerTask>) -> Self {
        let gate = Arc::new(Gate::default());
        let (send, mut reply) = oneshot::channel();
        let waker = Waker::from(gate.clone());
        assert!(Pin::new(&mut reply).poll(&mut Context::from_waker(&waker)).is_pending());
        tasks.send(WorkerTask::Flush(send)).expect("the worker lives");
        Self { gate, _reply: reply }
    }
    fn wait(&self) -> Instant {
        let state = self.gate.changed.wait_while(self.gate.state.lock().unwrap(), |state| state.0.is_none());
        state.unwrap().0.unwrap()
    }
    fn open(&self) {
        self.gate.state.lock().unwrap().1 = true;
        self.gate.changed.notify_all();
    }
}

/// A shared index and the thread that applies its events, as its thread pool runs it with one thread. The
/// queue is filled while the thread waits.
pub struct Threaded<T: SyncIndexer> {
    index: Arc<T>,
    tasks: flume::Sender<WorkerTask>,
    barrier: Barrier, // the thread waits here, or is on its way to it
    started: Instant,
    thread: Option<JoinHandle<()>>,
}

impl<T: SyncIndexer> Threaded<T> {
    pub fn new(index: T) -> Self {
        let index = Arc::new(index);
        let (tasks, queue) = flume::unbounded();
        let barrier = Barrier::send(&tasks);
        let shared = index.clone();
        let thread = std::thread::spawn(move || shared.worker(queue, None).expect("the worker runs"));
        barrier.wait();
        Self { index, tasks, barrier, started: Instant::now(), thread: Some(thread) }
    }
}

impl<T: SyncIndexer> Subject for Threaded<T> {
    fn apply(&mut self, events: Vec<RouterEvent>) -> Duration {
        self.start(events);
        self.barrier.wait() - self.started
    }
    fn find(&self, query: &mut Vec<LocalBlockHash>) -> OverlapScores {
        self.index.find_matches(query, false)
    }
    fn concurrent(&mut self) -> Option<&mut dyn ConcurrentSubject> {
        Some(self)
    }
}

impl<T: SyncIndexer> ConcurrentSubject for Threaded<T> {
    fn start(&mut self, events: Vec<RouterEvent>) {
        self.barrier.wait();
        for event in events {
            self.tasks.send(WorkerTask::Event(event)).expect("the worker lives");
        }
        let next = Barrier::send(&self.tasks);
        self.started = Instant::now();
        self.barrier.open();
        self.barrier = next;
    }
    fn finished(&self) -> Option<Duration> {
        self.barrier.gate.reached.load(Ordering::Acquire).then(|| self.barrier.wait() - self.started)
    }
}

impl<T: SyncIndexer> Drop for Threaded<T> {
    fn drop(&mut self) {
        let _ = self.tasks.send(WorkerTask::Terminate);
        self.barrier.open();
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}
