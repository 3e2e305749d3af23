//! One subscriber to the manager's events, read by hand: the benchmark has no async runtime.

use futures_core::Stream;
use kvbm_logical::events::{EventsManager, KvCacheEvent};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};

pub struct Subscriber {
    stream: Pin<Box<dyn Stream<Item = KvCacheEvent> + Send>>,
    pub stored: u64,
    pub removed: u64,
}

impl Subscriber {
    pub fn attach(manager: &Arc<EventsManager>) -> Self {
        Self { stream: Box::pin(manager.subscribe()), stored: 0, removed: 0 }
    }

    /// Takes everything that is waiting.
    pub fn drain(&mut self) {
        let mut context = Context::from_waker(Waker::noop());
        while let Poll::Ready(Some(event)) = self.stream.as_mut().poll_next(&mut context) {
            match event {
                KvCacheEvent::Create(_) => self.stored += 1,
                KvCacheEvent::Remove(_) => self.removed += 1,
            }
        }
    }
}
