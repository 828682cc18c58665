//! What several users share as long as one of them has it, such as a model in memory.
//!
//! Two who ask for one thing at once make it once, and who asks for another waits for neither.

use std::sync::{Arc, Weak};

use parking_lot::Mutex;

/// Things by key, as long as somebody has them.
#[derive(Debug)]
pub(super) struct Shared<K, T> {
    entries: Mutex<Vec<(K, Slot<T>)>>,
}

/// Locked while its thing is made.
type Slot<T> = Arc<Mutex<Weak<T>>>;

impl<K, T> Default for Shared<K, T> {
    fn default() -> Self {
        Self { entries: Mutex::default() }
    }
}

impl<K: PartialEq, T> Shared<K, T> {
    /// The thing of that key; made where nobody has it, which waits for no thing of another key.
    pub fn get<E>(&self, key: K, make: impl FnOnce() -> Result<T, E>) -> Result<Arc<T>, E> {
        let slot = self.slot(key);
        let mut thing = slot.lock();
        if let Some(thing) = thing.upgrade() {
            return Ok(thing);
        }
        let made = Arc::new(make()?);
        *thing = Arc::downgrade(&made);
        Ok(made)
    }

    fn slot(&self, key: K) -> Slot<T> {
        let mut entries = self.entries.lock();
        // One that is in use may have its thing soon; the others are not locked.
        entries.retain(|(_, slot)| Arc::strong_count(slot) > 1 || slot.lock().strong_count() > 0);
        if let Some((_, slot)) = entries.iter().find(|(other, _)| *other == key) {
            return slot.clone();
        }
        let slot = Slot::default();
        entries.push((key, slot.clone()));
        slot
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;
    use std::thread;

    use super::*;

    #[test]
    fn a_thing_is_made_once_and_again_when_nobody_has_it() {
        let shared = Shared::default();
        let get = |made: &'static str| shared.get::<()>("key", || Ok(made)).unwrap();
        let (first, second) = (get("first"), get("second"));
        assert_eq!((*first, *second), ("first", "first"));
        drop((first, second));
        let third = get("third");
        assert_eq!(*third, "third");
        assert_eq!(shared.get("other", || Err("no")), Err("no"));
        assert_eq!(shared.entries.lock().len(), 2);
        // What nobody has is forgotten when the next one comes.
        drop(third);
        drop(get("fourth"));
        assert_eq!(shared.entries.lock().len(), 1);
    }

    #[test]
    fn while_one_thing_is_made_another_is_given_and_the_same_is_waited_for() {
        let shared = Shared::default();
        let (begun, has_begun) = mpsc::channel();
        let (go_on, goes_on) = mpsc::channel();
        let had = shared.get::<()>("had", || Ok("had")).unwrap();
        thread::scope(|scope| {
            let slow = scope.spawn(|| {
                shared.get::<()>("slow", move || {
                    begun.send(()).unwrap();
                    goes_on.recv().unwrap();
                    Ok("slow")
                })
            });
            has_begun.recv().unwrap();
            assert_eq!(*shared.get::<()>("had", || Ok("again")).unwrap(), *had);
            assert_eq!(*shared.get::<()>("fresh", || Ok("fresh")).unwrap(), "fresh");
            let same = scope.spawn(|| shared.get::<()>("slow", || Ok("made twice")));
            go_on.send(()).unwrap();
            let slow = slow.join().unwrap().unwrap();
            assert_eq!((*slow, *same.join().unwrap().unwrap()), ("slow", "slow"));
        });
    }
}
