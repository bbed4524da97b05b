//! Finds reporters that have been silent for longer than a timeout: a hash map and a doubly linked list
//! ordered by last report.
//!
//! A report moves its element to the tail in O(1). A scan walks from the head and stops at the
//! first fresh element: O(stale). The nodes, instances and sessions of the session engine use it.
//!
//! Always true: the list is ordered by the time of the last report, and every element of it
//! is in the map.

use std::collections::HashMap;
use std::hash::Hash;
use std::time::Duration;

#[derive(Clone, Debug)]
struct Element<K> {
    key: K,
    last: Duration,
    next: Option<usize>,
    previous: Option<usize>,
}

/// When each reporter last reported.
#[derive(Clone, Debug)]
pub struct Monitor<K> {
    places: HashMap<K, usize>,
    elements: Vec<Option<Element<K>>>,
    free: Vec<usize>,
    head: Option<usize>,
    tail: Option<usize>,
}

impl<K> Default for Monitor<K> {
    fn default() -> Self {
        Self {
            places: HashMap::new(),
            elements: Vec::new(),
            free: Vec::new(),
            head: None,
            tail: None,
        }
    }
}

impl<K: Clone + Eq + Hash> Monitor<K> {
    /// Notes a report. Time does not go back: an earlier `now` than the last one counts as that.
    pub fn touch(&mut self, key: &K, now: Duration) {
        let last = self.tail.and_then(|tail| self.elements[tail].as_ref()).map(|tail| tail.last);
        let now = now.max(last.unwrap_or_default());
        let place = match self.places.get(key) {
            Some(place) => {
                let place = *place;
                self.unlink(place);
                place
            }
            None => {
                let place = self.free.pop().unwrap_or(self.elements.len());
                if place == self.elements.len() {
                    self.elements.push(None);
                }
                self.places.insert(key.clone(), place);
                place
            }
        };
        let element = Element { key: key.clone(), last: now, next: None, previous: self.tail };
        self.elements[place] = Some(element);
        match self.tail {
            Some(tail) => self.link(tail, |element| element.next = Some(place)),
            None => self.head = Some(place),
        }
        self.tail = Some(place);
    }

    /// Forgets a reporter. Does nothing if it is not known.
    pub fn remove(&mut self, key: &K) {
        if let Some(place) = self.places.remove(key) {
            self.unlink(place);
            self.elements[place] = None;
            self.free.push(place);
        }
    }

    /// When a reporter last reported.
    #[must_use]
    pub fn last(&self, key: &K) -> Option<Duration> {
        let place = self.places.get(key)?;
        self.elements[*place].as_ref().map(|element| element.last)
    }

    /// Removes and returns the reporters silent for longer than `timeout`, the longest silent first.
    pub fn stale(&mut self, now: Duration, timeout: Duration) -> Vec<K> {
        let mut stale = Vec::new();
        while let Some(head) = self.head.and_then(|head| self.elements[head].as_ref()) {
            if now.saturating_sub(head.last) <= timeout {
                break;
            }
            let key = head.key.clone();
            self.remove(&key);
            stale.push(key);
        }
        stale
    }

    /// When the next reporter becomes stale if none reports before; `None` if there are none.
    #[must_use]
    pub fn next_stale(&self, timeout: Duration) -> Option<Duration> {
        let head = self.elements[self.head?].as_ref()?;
        Some(head.last + timeout)
    }

    /// How many reporters are known.
    #[must_use]
    pub fn len(&self) -> usize {
        self.places.len()
    }

    /// Whether there are none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.places.is_empty()
    }

    /// Every reporter, the longest silent first.
    pub fn iter(&self) -> impl Iterator<Item = &K> {
        let mut next = self.head;
        std::iter::from_fn(move || {
            let element = self.elements[next?].as_ref()?;
            next = element.next;
            Some(&element.key)
        })
    }

    fn link(&mut self, place: usize, change: impl FnOnce(&mut Element<K>)) {
        if let Some(element) = self.elements[place].as_mut() {
            change(element);
        }
    }

    fn unlink(&mut self, place: usize) {
        let Some(element) = self.elements[place].as_ref() else { return };
        let (previous, next) = (element.previous, element.next);
        match previous {
            Some(previous) => self.link(previous, |element| element.next = next),
            None => self.head = next,
        }
        match next {
            Some(next) => self.link(next, |element| element.previous = previous),
            None => self.tail = previous,
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use proptest::prelude::*;

    use super::*;

    fn at(seconds: f64) -> Duration {
        Duration::from_secs_f64(seconds)
    }

    proptest! {
        #[test]
        fn it_behaves_like_a_plain_map_of_times(
            steps in proptest::collection::vec((0_u8..8, 0_u8..4, 0_u64..5), 1..80)
        ) {
            let timeout = at(6.0);
            let (mut monitor, mut model) = (Monitor::default(), BTreeMap::new());
            let mut now = Duration::ZERO;
            for (key, what, pass) in steps {
                now += Duration::from_secs(pass);
                match what {
                    0 => {
                        monitor.remove(&key);
                        model.remove(&key);
                    }
                    1 => {
                        let mut stale = monitor.stale(now, timeout);
                        stale.sort_unstable();
                        let (gone, kept): (BTreeMap<u8, Duration>, _) =
                            model.into_iter().partition(|(_, last)| now - *last > timeout);
                        model = kept;
                        prop_assert_eq!(stale, gone.into_keys().collect::<Vec<_>>());
                    }
                    _ => {
                        monitor.touch(&key, now);
                        model.insert(key, now);
                    }
                }
                prop_assert_eq!(monitor.len(), model.len());
                let times: Vec<_> = monitor.iter().map(|key| model[key]).collect();
                prop_assert!(times.is_sorted());
                prop_assert_eq!(times.len(), model.len());
            }
        }
    }
}
