//! A bounded queue between a data worker and the step's thread.
//!
//! Unlike a channel of the standard library, a full queue is not topped up after each batch that is
//! taken, but when it has run low. Waking a thread is what taking a batch costs: where the cores
//! are busy the system may well run the worker at once, on the core of the thread that woke it,
//! which then waits for its next turn, tens of milliseconds on a machine that others use.

use std::collections::VecDeque;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};

struct State<T> {
    items: VecDeque<T>,
    /// One of the two sides is gone.
    closed: bool,
}

struct Queue<T> {
    state: Mutex<State<T>>,
    capacity: usize,
    /// There is something to take, or nothing will come.
    filled: Condvar,
    /// The queue has run low, or nobody takes from it.
    low: Condvar,
}

impl<T> Queue<T> {
    fn lock(&self) -> MutexGuard<'_, State<T>> {
        // No code that can panic runs under the lock, so a poisoned one is as good as any.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// This many items are enough for now: whoever takes the next one still finds another.
    fn low_mark(&self) -> usize {
        self.capacity / 4
    }

    fn close(&self) {
        self.lock().closed = true;
        self.filled.notify_all();
        self.low.notify_all();
    }
}

/// The worker's side.
pub(super) struct Sender<T>(Arc<Queue<T>>);

/// The side of the step's thread.
pub(super) struct Receiver<T>(Arc<Queue<T>>);

/// A queue of at most `capacity` items.
pub(super) fn queue<T>(capacity: usize) -> (Sender<T>, Receiver<T>) {
    let state = Mutex::new(State {
        items: VecDeque::with_capacity(capacity),
        closed: false,
    });
    let queue = Arc::new(Queue {
        state,
        capacity,
        filled: Condvar::new(),
        low: Condvar::new(),
    });
    (Sender(queue.clone()), Receiver(queue))
}

impl<T> Sender<T> {
    /// Appends an item; of a full queue, once it has run low. `false`: nobody will take it.
    pub fn send(&self, item: T) -> bool {
        let queue = &*self.0;
        let mut state = queue.lock();
        if state.items.len() >= queue.capacity {
            let low = queue.low_mark();
            let wait = queue
                .low
                .wait_while(state, |state| state.items.len() > low && !state.closed);
            state = wait.unwrap_or_else(PoisonError::into_inner);
        }
        if state.closed {
            return false;
        }
        state.items.push_back(item);
        drop(state);
        queue.filled.notify_one();
        true
    }
}

impl<T> Receiver<T> {
    /// The next item; `None` when there is none and none will come.
    pub fn receive(&self) -> Option<T> {
        let queue = &*self.0;
        let wait = queue.filled.wait_while(queue.lock(), |state| {
            state.items.is_empty() && !state.closed
        });
        let mut state = wait.unwrap_or_else(PoisonError::into_inner);
        let item = state.items.pop_front();
        let is_low = state.items.len() == queue.low_mark();
        drop(state);
        if is_low {
            queue.low.notify_one();
        }
        item
    }
}

impl<T> Drop for Sender<T> {
    fn drop(&mut self) {
        self.0.close();
    }
}

impl<T> Drop for Receiver<T> {
    fn drop(&mut self) {
        self.0.close();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::{AtomicUsize, Ordering};
    use std::time::Duration;

    #[test]
    fn items_come_in_order_and_the_end_is_told_to_both_sides() {
        let (sender, receiver) = queue(3);
        let worker = std::thread::spawn(move || (0..1000).all(|n| sender.send(n)));
        assert!((0..1000).all(|n| receiver.receive() == Some(n)));
        assert_eq!(receiver.receive(), None, "the worker is gone");
        assert!(worker.join().unwrap());

        let (sender, receiver) = queue(1);
        let worker = std::thread::spawn(move || (0..).take_while(|n| sender.send(*n)).count());
        assert_eq!(receiver.receive(), Some(0));
        drop(receiver);
        assert!(
            worker.join().unwrap() <= 2,
            "a worker that waits for room is let go"
        );
    }

    /// After the queue was full, nothing is made until it has run low, and then as much as there is
    /// room for.
    #[test]
    fn a_full_queue_is_filled_again_when_it_has_run_low() {
        let (sender, receiver) = queue(4);
        let made = Arc::new(AtomicUsize::new(0));
        let count = made.clone();
        let worker = std::thread::spawn(move || {
            while sender.send(()) {
                count.fetch_add(1, Ordering::SeqCst);
            }
        });
        let settled = || {
            std::thread::sleep(Duration::from_millis(100));
            made.load(Ordering::SeqCst)
        };
        assert_eq!(settled(), 4);
        receiver.receive();
        receiver.receive();
        assert_eq!(settled(), 4, "two are left");
        receiver.receive();
        assert_eq!(settled(), 7, "one was left");
        drop(receiver);
        worker.join().unwrap();
    }
}
